//! The bodies of reads, and writes in progress: they wait for a turn before each slice.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt as _, Stream};
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::{Body, Observation, Staged};
use tradewind_model::slices::{DiskWork, HEAD_BYTES, MAX_UNSLICED_BYTES};

use super::disk_request::DiskRequest;
use super::read_gate::ReadGate;

/// The body of a read, whose store waits for turns by the gate.
pub(super) fn slice_body(body: Body, gate: Arc<ReadGate>) -> Body {
    Body::from_stream(body.length(), SlicedBody { body, gate })
}

/// A reader that does not poll loses its turn, and requests the next one when it polls.
struct SlicedBody {
    body: Body,
    gate: Arc<ReadGate>,
}

impl Stream for SlicedBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.gate.record_demand();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        match &piece {
            Some(Ok(bytes)) => this.gate.record_piece(bytes.len() as u64),
            Some(Err(_)) | None => this.gate.end(),
        }
        Poll::Ready(piece)
    }
}

/// A write in progress. Up to [`MAX_UNSLICED_BYTES`], only its commit waits for the disk.
pub(super) struct SlicedWrite {
    inner: Box<dyn Staged>,
    request: DiskRequest,
    deadline: Deadline,
    size: Option<u64>,
    written: u64,
    /// Bytes that may be written before the next turn.
    credit_bytes: u64,
    is_started: bool,
}

impl SlicedWrite {
    pub fn wrap(
        inner: Box<dyn Staged>,
        request: DiskRequest,
        size: Option<u64>,
        deadline: &Deadline,
    ) -> Box<dyn Staged> {
        let credit_bytes = match size {
            Some(size) if size > MAX_UNSLICED_BYTES => 0,
            _ => MAX_UNSLICED_BYTES,
        };
        let deadline = deadline.clone();
        Box::new(Self { inner, request, deadline, size, written: 0, credit_bytes, is_started: false })
    }

    /// Waits for the next slice. The first one is short, and has priority.
    async fn next_slice(&mut self) -> Result<()> {
        let left = self.size.map_or(u64::MAX, |size| size.saturating_sub(self.written).max(1));
        let is_first = self.written == 0 && !self.is_started;
        let bytes = if is_first { HEAD_BYTES } else { self.request.slice_bytes() }.min(left);
        self.is_started = true;
        let work = DiskWork::Write { bytes };
        let wait = match is_first {
            true => self.request.request_first(work)?.map(|wait| wait.boxed()),
            false => self.request.request_further(work).map(|wait| wait.boxed()),
        };
        if let Some(wait) = wait {
            self.deadline.guard(wait).await?;
        }
        self.credit_bytes = bytes;
        Ok(())
    }

    fn is_stream(&self) -> bool {
        self.size.unwrap_or(self.written) > MAX_UNSLICED_BYTES
    }
}

#[async_trait]
impl Staged for SlicedWrite {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        loop {
            if self.credit_bytes == 0 && !bytes.is_empty() {
                self.next_slice().await?;
            }
            let length =
                usize::try_from(self.credit_bytes).map_or(bytes.len(), |credit| credit.min(bytes.len()));
            self.inner.write(bytes.split_to(length)).await?;
            self.written += length as u64;
            self.credit_bytes -= length as u64;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let is_stream = self.is_stream();
        let Self { inner, mut request, deadline, .. } = *self;
        // A stream that was accepted is not rejected at its end.
        let wait = match is_stream {
            true => request.request_further(DiskWork::Change).map(|wait| wait.boxed()),
            false => request.request_first(DiskWork::Change)?.map(|wait| wait.boxed()),
        };
        if let Some(wait) = wait {
            deadline.guard(wait).await?;
        }
        request.begin();
        inner.commit(expected).await
    }
}
