//! Extent ids of a write: allocated in growing blocks, so that concurrent writes still get long consecutive runs
//! and manifests stay short.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::frame::MAX_PAYLOAD_BYTES;

const MAX_BLOCK_IDS: u64 = 256;

pub(super) struct ExtentIds {
    remaining: Range<u64>,
    /// The number of ids that the next allocation takes.
    next_block: u64,
}

impl ExtentIds {
    /// The first allocation takes as many ids as the expected size needs.
    pub fn for_size(size: Option<u64>) -> Self {
        let extents = size.unwrap_or(0).div_ceil(MAX_PAYLOAD_BYTES as u64);
        Self { remaining: 0..0, next_block: extents.clamp(1, MAX_BLOCK_IDS) }
    }

    pub fn next(&mut self, next_id: &AtomicU64) -> u64 {
        if let Some(id) = self.remaining.next() {
            return id;
        }
        let first = next_id.fetch_add(self.next_block, Ordering::AcqRel);
        self.remaining = first + 1..first + self.next_block;
        self.next_block = (self.next_block * 4).min(MAX_BLOCK_IDS);
        first
    }
}
