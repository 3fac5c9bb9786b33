//! An object's bytes on their way out: a stream of reference-counted buffers. A buffer may carry a
//! [`Reservation`](crate::Reservation); dropping the buffer gives its memory back to the window.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, Stream, StreamExt};

use crate::error::Result;

/// A body of known length. Yields exactly that many bytes or an error; after an error it is over.
/// Dropping it cancels whatever feeds it.
pub struct Body {
    length: u64,
    source: Source,
}

enum Source {
    One(Option<Bytes>),
    Stream(BoxStream<'static, Result<Bytes>>),
}

impl Body {
    /// A body in one buffer: the common case for small objects, without an allocation.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self { length: bytes.len() as u64, source: Source::One(Some(bytes)) }
    }

    /// A body from a stream that yields `length` bytes in all.
    pub fn from_stream(length: u64, stream: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Self {
        Self { length, source: Source::Stream(stream.boxed()) }
    }

    /// Bytes in the whole body.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The whole body where it is in one buffer, else the body back.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        match self.source {
            Source::One(bytes) => Ok(bytes.unwrap_or_default()),
            Source::Stream(_) => Err(self),
        }
    }

    /// Reads everything into one buffer. For tests and for bodies known to be small.
    pub async fn collect(mut self) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(bytes) = self.next().await {
            all.extend_from_slice(&bytes?);
        }
        Ok(all.freeze())
    }
}

impl Stream for Body {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.source {
            Source::One(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(Ok)),
            Source::Stream(stream) => stream.as_mut().poll_next(cx),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.length)
    }
}
