//! A response's body, in the store's own buffers.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::stream::StreamExt;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

/// Any error, as hyper and its kind want it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

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
