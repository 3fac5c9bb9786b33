//! The body of a request: buffers that are at hand, so that it can be sent again.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Buffers, sent one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Payload {
    pieces: std::collections::VecDeque<Bytes>,
    left: u64,
}

impl Payload {
    /// What these buffers hold.
    pub fn of(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces: std::collections::VecDeque<Bytes> =
            pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, left }
    }

    /// Bytes in all.
    pub const fn length(&self) -> u64 {
        self.left
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.pieces.pop_front();
        if let Some(piece) = &next {
            self.left -= piece.len() as u64;
        }
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
