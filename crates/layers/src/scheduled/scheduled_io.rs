//! The bodies of reads, and writes in progress. A large one is dispatched in steps: a write before each quantum, a read
//! after each piece.

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
use tradewind_model::lanes::{LaneKind, Priority, RequestSize};
use tradewind_model::store_statistics::Operation;

use super::dispatcher::ScheduledRequest;

/// Schedules the body of a read whose response has begun.
pub(super) fn schedule_body(body: Body, mut request: ScheduledRequest, deadline: &Deadline) -> Body {
    let length = body.length();
    let body = match body.into_bytes() {
        Ok(bytes) => {
            request.end_wait(bytes.len());
            request.complete();
            return Body::from_bytes(bytes);
        }
        Err(body) => body,
    };
    if length == 0 {
        request.complete();
    }
    Body::from_stream(
        length,
        ScheduledBody { body, request, deadline: deadline.clone(), left: length, dispatch: None },
    )
}

/// A slow reader occupies nothing: the next dispatch is awaited only when it polls for more.
struct ScheduledBody {
    body: Body,
    request: ScheduledRequest,
    deadline: Deadline,
    left: u64,
    /// The dispatch requested after the last piece, with its size. It is awaited before the next piece is read.
    dispatch: Option<BoxFuture<'static, Result<()>>>,
}

impl Stream for ScheduledBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(dispatch) = &mut this.dispatch {
            let passed = ready!(dispatch.as_mut().poll(cx));
            this.dispatch = None;
            if let Err(error) = passed {
                return Poll::Ready(Some(Err(error)));
            }
        }
        this.request.start_wait();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        let bytes = piece.as_ref().map_or(0, |piece| piece.as_ref().map_or(0, Bytes::len));
        this.request.end_wait(bytes);
        this.left = this.left.saturating_sub(bytes as u64);
        if this.left == 0 && matches!(piece, Some(Ok(_))) {
            this.request.complete();
        } else if bytes > 0
            && this.request.kind().size == RequestSize::Large
            && let Some(dispatch) = this.request.request_dispatch(bytes as u64)
        {
            let deadline = this.deadline.clone();
            this.dispatch = Some(Box::pin(async move { deadline.guard(dispatch).await }));
        }
        Poll::Ready(piece)
    }
}

/// A write in progress.
pub(super) struct ScheduledWrite {
    inner: Box<dyn Staged>,
    request: ScheduledRequest,
    operation: Operation,
    priority: Priority,
    deadline: Deadline,
    written: u64,
}

impl ScheduledWrite {
    pub fn wrap(
        inner: Box<dyn Staged>,
        request: ScheduledRequest,
        operation: Operation,
        priority: Priority,
        deadline: &Deadline,
    ) -> Box<dyn Staged> {
        Box::new(Self { inner, request, operation, priority, deadline: deadline.clone(), written: 0 })
    }
}

#[async_trait]
impl Staged for ScheduledWrite {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.written += bytes.len() as u64;
        // A write of unknown size may turn out to be large.
        self.request.update_kind(LaneKind::new(self.operation, self.priority, self.written))?;
        loop {
            let is_large = self.request.kind().size == RequestSize::Large;
            let quantum = if is_large {
                bytes.split_to(self.request.quantum_bytes().min(bytes.len()))
            } else {
                std::mem::take(&mut bytes)
            };
            let dispatch = if is_large { self.request.request_dispatch(quantum.len() as u64) } else { None };
            if let Some(dispatch) = dispatch {
                self.deadline.guard(dispatch).await?;
            }
            let length = quantum.len();
            self.request.start_wait();
            let written = self.inner.write(quantum).await;
            self.request.end_wait(length);
            written?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, mut request, .. } = *self;
        request.start_wait();
        let committed = inner.commit(expected).await;
        request.end_wait(0);
        if committed.is_ok() {
            request.complete();
        }
        committed
    }
}
