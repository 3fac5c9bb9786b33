//! Extent ids of a write: allocated in growing ranges, so that concurrent writes still get long consecutive runs
//! and manifests stay short.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::frame::MAX_PAYLOAD_BYTES;

/// Maximum ids of one allocation.
const MAX_RANGE_IDS: u64 = 256;

/// The allocator of one write's extent ids.
pub(super) struct ExtentIds {
    /// Allocated ids that no extent has yet.
    remaining: Range<u64>,
    /// The number of ids that the next allocation takes.
    next_range_ids: u64,
}

impl ExtentIds {
    /// The first allocation takes as many ids as the declared size needs.
    pub fn for_size(size: Option<u64>) -> Self {
        let extents = size.unwrap_or(0).div_ceil(MAX_PAYLOAD_BYTES as u64);
        Self { remaining: 0..0, next_range_ids: extents.clamp(1, MAX_RANGE_IDS) }
    }

    pub fn next(&mut self, next_id: &AtomicU64) -> u64 {
        if let Some(id) = self.remaining.next() {
            return id;
        }
        let first = next_id.fetch_add(self.next_range_ids, Ordering::AcqRel);
        self.remaining = first + 1..first + self.next_range_ids;
        self.next_range_ids = (self.next_range_ids * 4).min(MAX_RANGE_IDS);
        first
    }
}
