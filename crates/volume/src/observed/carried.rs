//! Bodies and writes that count the bytes passing through them, without copying.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::{Body, Observation, Staged};

use super::request::{Arrival, Request};

/// Instruments the body of a read whose response has begun.
pub(super) fn reading(body: Body, at: Arrival, mut request: Request) -> Body {
    let length = body.length();
    let body = match body.into_bytes() {
        Ok(bytes) => {
            request.carried(at, bytes.len());
            request.done(at, length);
            return Body::from_bytes(bytes);
        }
        Err(body) => body,
    };
    if length == 0 {
        request.done(at, 0);
    }
    Body::from_stream(length, InstrumentedBody { body, request, left: length })
}

/// Completes the request with the last byte, because a consumer that counts bytes does not poll for the end.
struct InstrumentedBody {
    body: Body,
    request: Request,
    left: u64,
}

impl Stream for InstrumentedBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.request.wait();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        let (at, left) = (this.request.come(), this.left);
        match &piece {
            Some(Ok(bytes)) => {
                this.request.carried(at, bytes.len());
                this.left = left.saturating_sub(bytes.len() as u64);
                if this.left == 0 {
                    this.request.done(at, this.body.length());
                }
            }
            Some(Err(error)) => this.request.failed(at, error),
            // The consumer detects the missing bytes by itself.
            None if left > 0 => this.request.failed(at, &Error::new(Reason::Io, "the body ended early")),
            None => {}
        }
        Poll::Ready(piece)
    }
}

/// A write in progress.
pub(super) struct Writing {
    inner: Box<dyn Staged>,
    request: Request,
    written: u64,
}

impl Writing {
    pub fn wrap(inner: Box<dyn Staged>, request: Request) -> Box<dyn Staged> {
        Box::new(Self { inner, request, written: 0 })
    }
}

#[async_trait]
impl Staged for Writing {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let length = bytes.len();
        self.request.wait();
        let written = self.inner.write(bytes).await;
        let at = self.request.come();
        match &written {
            Ok(()) => {
                self.request.carried(at, length);
                self.written += length as u64;
            }
            Err(error) => self.request.failed(at, error),
        }
        written
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, mut request, written } = *self;
        request.wait();
        let committed = inner.commit(expected).await;
        let at = request.come();
        match &committed {
            Ok((_, observation)) => {
                request.answered(at, written, observation);
                request.done(at, written);
            }
            Err(error) => request.failed(at, error),
        }
        committed
    }
}
