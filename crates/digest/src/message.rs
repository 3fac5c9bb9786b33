//! A message as whole blocks: runs of them in the caller's buffers, and single ones put together from the ends
//! that do not fill a block.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::scalar::{self, BLOCK_BYTES, Block};

/// Whole blocks that lie side by side in memory.
pub(crate) enum Segment {
    /// A buffer of the caller; its length is a multiple of the block size.
    Buffer(Bytes),
    /// A block put together from the ends of buffers, or padding.
    Joint(Block),
}

/// Segments in the order of the message.
pub(crate) type Segments = VecDeque<Segment>;

impl Segment {
    /// The blocks that are left.
    pub(crate) fn blocks(&self) -> &[Block] {
        match self {
            Self::Buffer(bytes) => bytes.as_chunks().0,
            Self::Joint(block) => std::slice::from_ref(block),
        }
    }

    /// Drops the first `blocks`, which must not be all.
    fn advance(&mut self, blocks: usize) {
        if let Self::Buffer(bytes) = self {
            bytes.advance(blocks * BLOCK_BYTES);
        }
    }
}

/// The blocks of the first segment; none where there is no segment.
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

/// Cuts a message into segments.
pub(crate) struct Cutter {
    /// The begun block: the first `carried` bytes of it.
    carry: Block,
    carried: usize,
    length: u64,
}

impl Cutter {
    pub(crate) const fn new() -> Self {
        Self { carry: [0; BLOCK_BYTES], carried: 0, length: 0 }
    }

    /// Bytes of the message so far.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Appends to the message; copies nothing but ends that do not fill a block.
    pub(crate) fn cut(&mut self, mut bytes: Bytes) -> impl Iterator<Item = Segment> + use<> {
        self.length = self.length.wrapping_add(bytes.len() as u64);
        let mut joint = None;
        if self.carried > 0 {
            let missing = bytes.split_to(bytes.len().min(BLOCK_BYTES - self.carried));
            self.carry[self.carried..][..missing.len()].copy_from_slice(&missing);
            self.carried += missing.len();
            if self.carried == BLOCK_BYTES {
                joint = Some(Segment::Joint(self.carry));
                self.carried = 0;
            }
        }
        if !bytes.is_empty() {
            let tail = bytes.split_off(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
            self.carry[..tail.len()].copy_from_slice(&tail);
            self.carried = tail.len();
        }
        let buffer = if bytes.is_empty() { None } else { Some(Segment::Buffer(bytes)) };
        joint.into_iter().chain(buffer)
    }

    /// The one or two blocks that end the message.
    pub(crate) fn end(&self) -> impl Iterator<Item = Segment> + use<> {
        let (padding, count) = scalar::padding(&self.carry[..self.carried], self.length);
        padding.into_iter().take(count).map(Segment::Joint)
    }
}
