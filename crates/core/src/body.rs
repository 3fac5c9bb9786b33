//! The body of an object that is read: a stream of reference-counted buffers. A buffer may carry a
//! [`Reservation`](crate::Reservation); dropping the buffer returns its memory to the window.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, Stream, StreamExt};

use crate::error::Result;

/// A body of known length. Yields exactly that many bytes or an error; an error ends it.
/// Dropping it cancels whatever feeds it.
pub struct Body {
    length: u64,
    source: BodySource,
}

enum BodySource {
    One(Option<Bytes>),
    Stream(BoxStream<'static, Result<Bytes>>),
}

impl Body {
    /// A body in one buffer: the common case for small objects, without an allocation.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self { length: bytes.len() as u64, source: BodySource::One(Some(bytes)) }
    }

    /// A body from a stream that yields `length` bytes in total.
    pub fn from_stream(length: u64, stream: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Self {
        Self { length, source: BodySource::Stream(stream.boxed()) }
    }

    /// Bytes in the whole body.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Returns the bytes if the whole body is in one buffer, else the body itself.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        match self.source {
            BodySource::One(bytes) => Ok(bytes.unwrap_or_default()),
            BodySource::Stream(_) => Err(self),
        }
    }

    /// The next bytes, in memory of their own: their reservation is released before this returns. For bodies that are
    /// passed on to a store, which may need the window before it has taken them. `None` at the end.
    pub async fn next_copied(&mut self) -> Result<Option<Bytes>> {
        let Some(piece) = self.next().await.transpose()? else { return Ok(None) };
        Ok(Some(Bytes::copy_from_slice(&piece)))
    }

    /// This body without a reservation: bytes that were read already are copied. For a body that waits while its
    /// destination is opened.
    #[must_use]
    pub fn unreserved(self) -> Self {
        match self.source {
            BodySource::One(Some(bytes)) => Self::from_bytes(Bytes::copy_from_slice(&bytes)),
            source => Self { source, ..self },
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
            BodySource::One(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(Ok)),
            BodySource::Stream(stream) => stream.as_mut().poll_next(cx),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.length)
    }
}
