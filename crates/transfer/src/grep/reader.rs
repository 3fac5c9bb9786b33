//! Blocking reader of buffers that arrive over a channel, for the search thread.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

/// The reader. Dropping it closes the channel.
pub(super) struct ChannelReader {
    buffers: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl ChannelReader {
    pub const fn new(buffers: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { buffers, current: Bytes::new() }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.buffers.blocking_recv() {
                Some(current) => self.current = current?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
