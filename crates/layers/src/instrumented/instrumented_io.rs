//! Bodies and writes that count the bytes passing through them, without copying.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::{Body, Observation, Staged};

use super::request_timer::{RequestTimer, WaitEnd};

/// Instruments the body of a read whose response has begun.
pub(super) fn instrument_body(body: Body, wait_end: WaitEnd, mut request: RequestTimer) -> Body {
    let length = body.length();
    let body = match body.into_bytes() {
        Ok(bytes) => {
            request.record_bytes(wait_end, bytes.len());
            request.complete(wait_end, length);
            return Body::from_bytes(bytes);
        }
        Err(body) => body,
    };
    if length == 0 {
        request.complete(wait_end, 0);
    }
    Body::from_stream(length, InstrumentedBody { body, request, left: length })
}

/// Completes the request with the last byte, because a consumer that counts bytes does not poll for the end.
struct InstrumentedBody {
    body: Body,
    request: RequestTimer,
    left: u64,
}

impl Stream for InstrumentedBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.request.start_wait();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        let (wait_end, left) = (this.request.end_wait(), this.left);
        match &piece {
            Some(Ok(bytes)) => {
                this.request.record_bytes(wait_end, bytes.len());
                this.left = left.saturating_sub(bytes.len() as u64);
                if this.left == 0 {
                    this.request.complete(wait_end, this.body.length());
                }
            }
            Some(Err(error)) => this.request.fail(wait_end, error),
            // The consumer detects the missing bytes by itself.
            None if left > 0 => this.request.fail(wait_end, &Error::new(Reason::Io, "the body ended early")),
            None => {}
        }
        Poll::Ready(piece)
    }
}

/// A write in progress.
pub(super) struct InstrumentedWrite {
    inner: Box<dyn Staged>,
    request: RequestTimer,
    written: u64,
}

impl InstrumentedWrite {
    pub fn wrap(inner: Box<dyn Staged>, request: RequestTimer) -> Box<dyn Staged> {
        Box::new(Self { inner, request, written: 0 })
    }
}

#[async_trait]
impl Staged for InstrumentedWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let length = bytes.len();
        self.request.start_wait();
        let written = self.inner.write(bytes).await;
        let wait_end = self.request.end_wait();
        match &written {
            Ok(()) => {
                self.request.record_bytes(wait_end, length);
                self.written += length as u64;
            }
            Err(error) => self.request.fail(wait_end, error),
        }
        written
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, mut request, written } = *self;
        request.start_wait();
        let committed = inner.commit(expected).await;
        let wait_end = request.end_wait();
        match &committed {
            Ok((_, observation)) => {
                request.record_first_byte(wait_end, written, observation);
                request.complete(wait_end, written);
            }
            Err(error) => request.fail(wait_end, error),
        }
        committed
    }
}
