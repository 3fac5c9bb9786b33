//! The body of a request: buffers that are at hand, so that it can be sent again, or bytes that are handed over while
//! it is sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Buffers that are at hand, sent one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    pieces: VecDeque<Bytes>,
    left: u64,
}

impl Held {
    /// What these buffers hold.
    pub fn of(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, left }
    }

    /// Bytes in all.
    pub const fn length(&self) -> u64 {
        self.left
    }
}

/// Bytes that are handed over while the request is under way, `left` of them.
#[derive(Debug)]
pub(crate) struct Fed {
    pieces: mpsc::Receiver<Bytes>,
    left: u64,
}

impl Fed {
    /// A body of `length` bytes, and where they are handed over. Dropping that before all are breaks the request off.
    pub fn new(length: u64) -> (mpsc::Sender<Bytes>, Self) {
        let (feed, pieces) = mpsc::channel(1);
        (feed, Self { pieces, left: length })
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Payload {
    Held(Held),
    Fed(Fed),
}

impl Payload {
    const fn left(&self) -> u64 {
        match self {
            Self::Held(held) => held.left,
            Self::Fed(fed) => fed.left,
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let (piece, left) = match self.get_mut() {
            Self::Held(held) => (held.pieces.pop_front(), &mut held.left),
            Self::Fed(fed) if fed.left == 0 => (None, &mut fed.left),
            Self::Fed(fed) => match fed.pieces.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                // Half a body would be an object to nobody: the connection ends instead.
                Poll::Ready(None) => return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
                Poll::Ready(piece) => (piece, &mut fed.left),
            },
        };
        if let Some(piece) = &piece {
            *left = left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}
