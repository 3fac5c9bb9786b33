//! A message as whole blocks: runs of blocks in the caller's buffers, and single blocks assembled from the ends that do
//! not fill a block.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::scalar::{self, BLOCK_BYTES, Block};

/// Whole blocks that are contiguous in memory.
pub(crate) enum Segment {
    /// A buffer of the caller; its length is a multiple of the block size.
    Buffer(Bytes),
    /// A block assembled from the ends of buffers, or padding.
    Assembled(Block),
}

/// Segments in the order of the message.
pub(crate) type Segments = VecDeque<Segment>;

impl Segment {
    /// The remaining blocks.
    pub(crate) fn blocks(&self) -> &[Block] {
        match self {
            Self::Buffer(bytes) => bytes.as_chunks().0,
            Self::Assembled(block) => std::slice::from_ref(block),
        }
    }

    /// Drops the first `blocks`, which must not be all of them.
    fn advance(&mut self, blocks: usize) {
        if let Self::Buffer(bytes) = self {
            bytes.advance(blocks * BLOCK_BYTES);
        }
    }
}

/// The blocks of the first segment; empty if there is none.
pub(crate) fn first_run(segments: &Segments) -> &[Block] {
    segments.front().map_or(&[], Segment::blocks)
}

/// Drops the first `blocks`, at most those of the first segment.
pub(crate) fn advance(segments: &mut Segments, blocks: usize) {
    if first_run(segments).len() > blocks {
        if let Some(segment) = segments.front_mut() {
            segment.advance(blocks);
        }
    } else {
        segments.pop_front();
    }
}

/// Splits a message into segments.
pub(crate) struct BlockSplitter {
    /// The incomplete block, of which the first `filled` bytes are filled.
    partial: Block,
    filled: usize,
    length: u64,
}

impl BlockSplitter {
    pub(crate) const fn new() -> Self {
        Self { partial: [0; BLOCK_BYTES], filled: 0, length: 0 }
    }

    /// The length of the message so far in bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Appends to the message; copies only ends that do not fill a block.
    pub(crate) fn split(&mut self, mut bytes: Bytes) -> impl Iterator<Item = Segment> + use<> {
        self.length = self.length.wrapping_add(bytes.len() as u64);
        let mut joint = None;
        if self.filled > 0 {
            let missing = bytes.split_to(bytes.len().min(BLOCK_BYTES - self.filled));
            self.partial[self.filled..][..missing.len()].copy_from_slice(&missing);
            self.filled += missing.len();
            if self.filled == BLOCK_BYTES {
                joint = Some(Segment::Assembled(self.partial));
                self.filled = 0;
            }
        }
        if !bytes.is_empty() {
            let tail = bytes.split_off(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
            self.partial[..tail.len()].copy_from_slice(&tail);
            self.filled = tail.len();
        }
        let buffer = if bytes.is_empty() { None } else { Some(Segment::Buffer(bytes)) };
        joint.into_iter().chain(buffer)
    }

    /// The one or two blocks that end the message.
    pub(crate) fn padding(&self) -> impl Iterator<Item = Segment> + use<> {
        let (padding, count) = scalar::padding(&self.partial[..self.filled], self.length);
        padding.into_iter().take(count).map(Segment::Assembled)
    }
}
