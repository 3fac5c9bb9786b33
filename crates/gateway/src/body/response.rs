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

/// Any error, in the form that hyper and `http-body` use.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A response's body.
pub struct ResponseBody(BodySource);

enum BodySource {
    Once(Option<Bytes>),
    Object(tradewind_core::Body),
    Other(UnsyncBoxBody<Bytes, BoxError>),
}

impl ResponseBody {
    /// An empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(BodySource::Once(None))
    }

    /// Any other body.
    pub fn boxed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(BodySource::Other(body.map_err(Into::into).boxed_unsync()))
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self(BodySource::Once(Some(bytes).filter(|b| !b.is_empty())))
    }
}

impl From<tradewind_core::Body> for ResponseBody {
    fn from(body: tradewind_core::Body) -> Self {
        match body.into_bytes() {
            Ok(bytes) => bytes.into(),
            Err(body) => Self(BodySource::Object(body)),
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
            BodySource::Once(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodySource::Object(body) => {
                let item = ready!(body.poll_next_unpin(cx));
                Poll::Ready(item.map(|item| item.map(Frame::data).map_err(Into::into)))
            }
            BodySource::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Once(bytes) => bytes.is_none(),
            BodySource::Object(_) => false,
            BodySource::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Once(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            BodySource::Object(body) => SizeHint::with_exact(body.length()),
            BodySource::Other(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseBody({:?})", self.size_hint())
    }
}
