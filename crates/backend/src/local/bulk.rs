//! Bulk segments, to which many requests write extents concurrently, each to a range of its own. An extent means
//! nothing until an object or part record refers to it, and that record is written only after the extent is durable. So
//! bulk segments are never replayed.

mod extent_writer;
mod write_queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::error::Result;

pub(crate) use self::extent_writer::ExtentWriter;
use self::write_queue::WriteQueue;
use super::position::Position;
use super::segment::{Segment, SegmentPin};
use super::store_state::StoreState;

/// A background sync starts each time this many bytes of a segment are written, so that a commit's own sync has little
/// left to write.
const WRITE_OUT_BYTES: u32 = 32 << 20;

/// Allocates the ranges of extents.
#[derive(Default)]
pub(crate) struct ExtentAllocator {
    /// The segment from which ranges are allocated.
    active: Mutex<Option<Arc<Segment>>>,
    /// Held while a segment is created.
    creating: Mutex<()>,
    queue: Arc<WriteQueue>,
}

/// An extent with its complete payload and block checksums.
pub(crate) struct ExtentBytes {
    pub id: u64,
    pub payload: Vec<Bytes>,
    pub payload_bytes: usize,
    pub block_crcs: Vec<u64>,
    /// True for a copy made by compaction.
    pub is_relocated: bool,
}

impl ExtentAllocator {
    /// Ensures that the active segment takes further extents, creating a new one if it is full. Concurrent calls create
    /// only one.
    pub fn ensure_segment(
        &self,
        segment_bytes: u32,
        create_segment: impl FnOnce() -> Result<Arc<Segment>>,
    ) -> Result<()> {
        let _guard = self.creating.lock();
        let is_open = |active: &Arc<Segment>| active.end.load(Ordering::Acquire) < segment_bytes;
        if self.active.lock().as_ref().is_some_and(is_open) {
            return Ok(());
        }
        let segment = create_segment()?;
        if let Some(full) = self.active.lock().replace(segment) {
            full.is_sealed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Allocates a range in the active segment. `None` if it is full, or if there is none.
    fn allocate(&self, state: &StoreState, record_bytes: u32) -> Option<(SegmentPin, Position)> {
        let active = self.active.lock();
        let segment = active.as_ref()?;
        let offset = segment.end.load(Ordering::Acquire);
        if offset >= state.options.segment_bytes {
            return None;
        }
        segment.end.store(offset.checked_add(record_bytes)?, Ordering::Release);
        // Pinned under the lock: a sealed segment never gains a pin.
        Some((SegmentPin::new(segment.clone()), Position::new(segment.number, offset)))
    }
}

/// Starts a sync if a range that was just written crosses a multiple of [`WRITE_OUT_BYTES`]. The segment records a
/// failure and its next sync returns it.
fn start_write_out(state: &StoreState, segment: &Arc<Segment>, offset: u32, length: u32) {
    if offset / WRITE_OUT_BYTES != (offset + length) / WRITE_OUT_BYTES {
        segment.start_sync(&state.io);
    }
}
