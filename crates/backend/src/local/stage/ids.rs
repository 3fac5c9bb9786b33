//! Numbers for a write's extents: given out in growing blocks, so that concurrent writes still get
//! long runs of neighbours and manifests stay short.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::frame::MAX_PAYLOAD_BYTES;

const LARGEST_BLOCK: u64 = 256;

pub(super) struct ExtentIds {
    left: Range<u64>,
    next_block: u64,
}

impl ExtentIds {
    /// Begins with one block for the size that is expected.
    pub fn for_size(size: Option<u64>) -> Self {
        let extents = size.unwrap_or(0).div_ceil(MAX_PAYLOAD_BYTES as u64);
        Self { left: 0..0, next_block: extents.clamp(1, LARGEST_BLOCK) }
    }

    pub fn next(&mut self, numbers: &AtomicU64) -> u64 {
        if let Some(id) = self.left.next() {
            return id;
        }
        let first = numbers.fetch_add(self.next_block, Ordering::AcqRel);
        self.left = first + 1..first + self.next_block;
        self.next_block = (self.next_block * 4).min(LARGEST_BLOCK);
        first
    }
}
