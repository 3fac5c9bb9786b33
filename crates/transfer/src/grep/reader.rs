//! Pieces that arrive over a channel, read as a file is: by a thread that waits for them.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

/// The reader. Dropping it tells the sender that no more is wanted.
pub(super) struct Reader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Reader {
    pub const fn new(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { pieces, piece: Bytes::new() }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
