//! The body of a request: buffers in memory, which can be sent again, or bytes that are supplied while it is sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use md5::{Digest as _, Md5};
use tokio::sync::mpsc;
use tradewind_wire::sigv4::Sha256;

/// A body in memory: buffers that are sent in order. Cloning it is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct BufferedBody {
    buffers: VecDeque<Bytes>,
    remaining_bytes: u64,
}

impl BufferedBody {
    /// Builds a body from buffers; empty ones are dropped.
    pub fn from_buffers(buffers: impl IntoIterator<Item = Bytes>) -> Self {
        let buffers: VecDeque<Bytes> = buffers.into_iter().filter(|buffer| !buffer.is_empty()).collect();
        let remaining_bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        Self { buffers, remaining_bytes }
    }

    /// Total length, in bytes.
    pub const fn length(&self) -> u64 {
        self.remaining_bytes
    }

    /// The MD5 of the whole body.
    pub fn md5(&self) -> [u8; 16] {
        let mut hash = Md5::new();
        self.buffers.iter().for_each(|buffer| hash.update(buffer));
        hash.finalize().into()
    }

    /// The SHA-256 of the whole body.
    pub fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.buffers.iter().for_each(|buffer| hash.update(buffer));
        hash.finish()
    }
}

/// The end of one request's body. Either the connection takes the last bytes, or the request is abandoned and they are
/// never sent: then the store cannot have the whole body. The first of the two decides.
#[derive(Debug, Clone, Default)]
pub(crate) struct BodyEnd(Arc<AtomicU8>);

impl BodyEnd {
    const OPEN: u8 = 0;
    const REACHED: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Lets the connection take the last bytes. Returns false if the body was abandoned.
    fn reach(&self) -> bool {
        self.move_to(Self::REACHED) != Err(Self::ABANDONED)
    }

    /// Abandons the body. Returns true if the last bytes were not sent, and never will be.
    pub fn abandon(&self) -> bool {
        self.move_to(Self::ABANDONED) != Err(Self::REACHED)
    }

    fn move_to(&self, state: u8) -> Result<u8, u8> {
        self.0.compare_exchange(Self::OPEN, state, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// A body that is supplied while the request is in flight. If its length is unknown, an empty buffer ends it.
#[derive(Debug)]
pub(crate) struct StreamedBody {
    buffers: mpsc::Receiver<Bytes>,
    end: BodyEnd,
    /// Bytes not yet sent; `None` if the length is unknown.
    remaining_bytes: Option<u64>,
    is_ended: bool,
}

impl StreamedBody {
    /// Returns a body of `length` bytes and the sender for its buffers. Dropping the sender before the end aborts the
    /// request.
    pub fn new(length: Option<u64>) -> (mpsc::Sender<Bytes>, Self) {
        let (body_sender, buffers) = mpsc::channel(1);
        let (end, is_ended) = (BodyEnd::default(), length == Some(0));
        if is_ended {
            end.reach();
        }
        (body_sender, Self { buffers, end, remaining_bytes: length, is_ended })
    }

    /// The end of this body.
    pub fn end(&self) -> BodyEnd {
        self.end.clone()
    }
}

impl StreamedBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let piece = match self.buffers.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            // The sender was dropped early. An error closes the connection, so the store discards the partial body.
            Poll::Ready(None) => return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
            Poll::Ready(Some(piece)) => piece,
        };
        match &mut self.remaining_bytes {
            None => self.is_ended = piece.is_empty(),
            Some(left) => {
                *left = left.saturating_sub(piece.len() as u64);
                self.is_ended = *left == 0;
            }
        }
        if self.is_ended && !self.end.reach() {
            return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())));
        }
        Poll::Ready(Some(piece).filter(|piece| !piece.is_empty()).map(|piece| Ok(Frame::data(piece))))
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Payload {
    Buffered(BufferedBody, BodyEnd),
    Streamed(StreamedBody),
}

impl Payload {
    /// A body in memory, and its end.
    pub fn buffered(body: BufferedBody) -> (Self, BodyEnd) {
        let end = BodyEnd::default();
        if body.length() == 0 {
            end.reach();
        }
        (Self::Buffered(body, end.clone()), end)
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Buffered(held, end) => {
                let piece = held.buffers.pop_front();
                held.remaining_bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
                if held.remaining_bytes == 0 && !end.reach() {
                    return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())));
                }
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Streamed(body) => body.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Buffered(held, _) => held.remaining_bytes == 0,
            Self::Streamed(body) => body.is_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Buffered(held, _) => SizeHint::with_exact(held.remaining_bytes),
            Self::Streamed(body) => body.remaining_bytes.map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn take_all(payload: &mut Payload) -> io::Result<usize> {
        let mut bytes = 0;
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *payload).poll_frame(cx)).await {
            bytes += frame?.into_data().map_or(0, |piece| piece.len());
        }
        Ok(bytes)
    }

    fn two_buffers() -> BufferedBody {
        BufferedBody::from_buffers([Bytes::from_static(b"one"), Bytes::from_static(b"two")])
    }

    #[tokio::test]
    async fn abandoned_body_is_never_sent_to_its_end() {
        let (mut payload, end) = Payload::buffered(two_buffers());
        std::future::poll_fn(|cx| Pin::new(&mut payload).poll_frame(cx)).await.unwrap().unwrap();
        assert!(end.abandon() && end.abandon());
        assert!(take_all(&mut payload).await.is_err(), "the last buffer must not be sent");

        let (sender, body) = StreamedBody::new(Some(6));
        let end = body.end();
        sender.send(Bytes::from_static(b"onetwo")).await.unwrap();
        assert!(end.abandon());
        assert!(take_all(&mut Payload::Streamed(body)).await.is_err());
    }

    #[tokio::test]
    async fn body_sent_to_its_end_cannot_be_abandoned() {
        let (mut payload, end) = Payload::buffered(two_buffers());
        assert_eq!(take_all(&mut payload).await.unwrap(), 6);
        assert!(!end.abandon());
        let (_, end) = Payload::buffered(BufferedBody::default());
        assert!(!end.abandon(), "the head is the whole request");

        for length in [Some(3), None] {
            let (sender, body) = StreamedBody::new(length);
            let end = body.end();
            let feed = async {
                sender.send(Bytes::from_static(b"one")).await.unwrap();
                if length.is_none() {
                    sender.send(Bytes::new()).await.unwrap();
                }
            };
            let mut payload = Payload::Streamed(body);
            let (bytes, ()) = tokio::join!(take_all(&mut payload), feed);
            assert_eq!(bytes.unwrap(), 3);
            assert!(!end.abandon(), "{length:?}");
        }
    }
}
