//! The two bodies of a request as operations see them. A [`RequestBody`] is decoded and verifies
//! itself: whoever read it to its end without an error has what the client signed. A
//! [`ResponseBody`] carries the store's buffers to the connection without a copy.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

use crate::error::WireError;

/// Any error, as hyper and its kind want it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A request's body, decoded. Its errors are [`WireError`]s; after one it is over, and nothing that
/// was read may be committed.
pub struct RequestBody {
    length: Option<u64>,
    stream: Option<BoxStream<'static, Result<Bytes, WireError>>>,
}

impl RequestBody {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self { length: Some(0), stream: None }
    }

    /// A body from a stream; `length` where it is known.
    pub fn new(
        length: Option<u64>,
        stream: impl Stream<Item = Result<Bytes, WireError>> + Send + 'static,
    ) -> Self {
        Self { length, stream: Some(stream.boxed()) }
    }

    /// Bytes in the whole decoded body, where known.
    #[must_use]
    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// Whether there certainly is nothing to read.
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

/// A response's body.
pub struct ResponseBody(Source);

enum Source {
    Once(Option<Bytes>),
    Object(tradewind_core::Body),
    Other(UnsyncBoxBody<Bytes, BoxError>),
}

impl ResponseBody {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Source::Once(None))
    }

    /// Any other body.
    pub fn boxed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Source::Other(body.map_err(Into::into).boxed_unsync()))
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Once(Some(bytes).filter(|b| !b.is_empty())))
    }
}

impl From<tradewind_core::Body> for ResponseBody {
    fn from(body: tradewind_core::Body) -> Self {
        match body.into_bytes() {
            Ok(bytes) => bytes.into(),
            Err(body) => Self(Source::Object(body)),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Source::Once(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Object(body) => {
                let item = ready!(body.poll_next_unpin(cx));
                Poll::Ready(item.map(|item| item.map(Frame::data).map_err(Into::into)))
            }
            Source::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Once(bytes) => bytes.is_none(),
            Source::Object(_) => false,
            Source::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Once(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Source::Object(body) => SizeHint::with_exact(body.length()),
            Source::Other(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseBody({:?})", self.size_hint())
    }
}
