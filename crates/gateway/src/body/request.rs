//! A request's body, which is decoded and verified while it is read.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use http_body::{Body, Frame, SizeHint};

use crate::error::WireError;

/// A request's decoded body. Its errors are [`WireError`]s; after one the stream ends, and nothing that was read may be
/// committed.
pub struct RequestBody {
    length: Option<u64>,
    stream: Option<BoxStream<'static, Result<Bytes, WireError>>>,
}

impl RequestBody {
    /// An empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self { length: Some(0), stream: None }
    }

    /// A body from a stream. `length` is its decoded length in bytes, `None` if unknown.
    pub fn new(
        length: Option<u64>,
        stream: impl Stream<Item = Result<Bytes, WireError>> + Send + 'static,
    ) -> Self {
        Self { length, stream: Some(stream.boxed()) }
    }

    /// Length of the whole decoded body in bytes; `None` if unknown.
    #[must_use]
    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns true if there is certainly nothing left to read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.stream.is_none()
    }
}

impl Stream for RequestBody {
    type Item = Result<Bytes, WireError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let item = ready!(stream.as_mut().poll_next(cx));
        if !matches!(item, Some(Ok(_))) {
            self.stream = None;
        }
        Poll::Ready(item)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = WireError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        self.poll_next(cx).map(|item| item.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestBody({:?} bytes)", self.length)
    }
}
