//! The body of a request: buffers in memory, which can be sent again, or bytes that are supplied while it is sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
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

    /// The SHA-256 of the whole body.
    pub fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.buffers.iter().for_each(|buffer| hash.update(buffer));
        hash.finish()
    }
}

/// A body that is supplied while the request is in flight. If its length is unknown, an empty buffer ends it.
#[derive(Debug)]
pub(crate) struct StreamedBody {
    buffers: mpsc::Receiver<Bytes>,
    /// Bytes not yet sent; `None` if the length is unknown.
    remaining_bytes: Option<u64>,
    is_ended: bool,
}

impl StreamedBody {
    /// Returns a body of `length` bytes and the sender for its buffers. Dropping the sender before the end aborts the
    /// request.
    pub fn new(length: Option<u64>) -> (mpsc::Sender<Bytes>, Self) {
        let (body_sender, buffers) = mpsc::channel(1);
        (body_sender, Self { buffers, remaining_bytes: length, is_ended: length == Some(0) })
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
        Poll::Ready(Some(piece).filter(|piece| !piece.is_empty()).map(|piece| Ok(Frame::data(piece))))
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Payload {
    Buffered(BufferedBody),
    Streamed(StreamedBody),
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Buffered(held) => {
                let piece = held.buffers.pop_front();
                held.remaining_bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Streamed(body) => body.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Buffered(held) => held.remaining_bytes == 0,
            Self::Streamed(body) => body.is_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Buffered(held) => SizeHint::with_exact(held.remaining_bytes),
            Self::Streamed(body) => body.remaining_bytes.map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}
