//! The bodies of reads, and writes in progress: they wait for a turn before each slice.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::{Body, Observation, Staged};
use tradewind_model::slices::{DiskWork, HEAD_BYTES, MAX_UNSLICED_BYTES};

use super::disk_request::DiskRequest;

type Dispatch = BoxFuture<'static, Result<()>>;

fn guarded(wait: impl Future<Output = ()> + Send + 'static, deadline: &Deadline) -> Dispatch {
    let deadline = deadline.clone();
    Box::pin(async move { deadline.guard(wait).await })
}

/// Slices the body of a read that has a turn for its first bytes.
pub(super) fn slice_body(body: Body, mut request: DiskRequest, deadline: &Deadline) -> Body {
    let length = body.length();
    let body = match body.into_bytes() {
        Ok(bytes) => {
            request.end();
            return Body::from_bytes(bytes);
        }
        Err(body) => body,
    };
    let mut dispatch = None;
    if length == 0 {
        request.end();
    } else if length > HEAD_BYTES && length <= MAX_UNSLICED_BYTES {
        // An object of this size is read at once, without other requests in between.
        dispatch = request.exchange_for_reads(length).map(|wait| guarded(wait, deadline));
    }
    let deadline = deadline.clone();
    Body::from_stream(length, SlicedBody { body, request, deadline, left: length, dispatch, may_read: false })
}

/// A reader that does not poll loses its turn, and requests the next one when it polls.
struct SlicedBody {
    body: Body,
    request: DiskRequest,
    deadline: Deadline,
    left: u64,
    /// The wait for a turn.
    dispatch: Option<Dispatch>,
    /// True from a dispatch to the next piece: each turn reads at least one piece.
    may_read: bool,
}

impl SlicedBody {
    /// Waits until the stream has a turn.
    fn poll_turn(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(dispatch) = &mut self.dispatch {
                let dispatched = ready!(dispatch.as_mut().poll(cx));
                self.dispatch = None;
                dispatched?;
                self.may_read = true;
            }
            if self.may_read || self.left == 0 || self.request.has_bytes() {
                self.may_read = true;
                return Poll::Ready(Ok(()));
            }
            match self.request.request_further(DiskWork::Read { bytes: self.left })? {
                Some(wait) => self.dispatch = Some(guarded(wait, &self.deadline)),
                None => self.may_read = true,
            }
        }
    }
}

impl Stream for SlicedBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.request.record_demand();
        if let Err(error) = ready!(this.poll_turn(cx)) {
            this.request.end();
            return Poll::Ready(Some(Err(error)));
        }
        this.request.begin();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        this.may_read = false;
        match &piece {
            Some(Ok(bytes)) => {
                this.left = this.left.saturating_sub(bytes.len() as u64);
                if this.left > 0 {
                    let next = this.request.pause_slice(bytes.len() as u64, this.left);
                    this.dispatch = next.map(|wait| guarded(wait, &this.deadline));
                }
            }
            Some(Err(_)) | None => this.left = 0,
        }
        if this.left == 0 {
            this.request.end();
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
        let wait = if is_first {
            self.request.request_first(work)?.map(|wait| guarded(wait, &self.deadline))
        } else {
            self.request.request_further(work)?.map(|wait| guarded(wait, &self.deadline))
        };
        if let Some(wait) = wait {
            wait.await?;
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
        let wait = if is_stream {
            request.request_further(DiskWork::Change)?.map(|wait| guarded(wait, &deadline))
        } else {
            request.request_first(DiskWork::Change)?.map(|wait| guarded(wait, &deadline))
        };
        if let Some(wait) = wait {
            wait.await?;
        }
        request.begin();
        inner.commit(expected).await
    }
}
