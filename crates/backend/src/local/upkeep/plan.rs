//! Selection and order of the segments to compact.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tradewind_core::error::Result;

use crate::local::index::entries::SegmentEntry;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::segment::{Segment, SegmentKind};

/// Small sealed segments (left by restarts) are merged when there are more than this.
const MAX_SMALL_SEGMENTS: usize = 8;
/// A segment is small below the size limit divided by this.
const SMALL_SIZE_DIVISOR: u32 = 16;

/// Live fraction below which a segment is worth compacting when writes are rejected for lack of space: each byte
/// freed costs up to nine copied ones.
pub(in crate::local) const MAX_LIVE_FRACTION: f64 = 0.9;

/// Live fraction below which a segment is worth compacting now.
pub(super) fn max_worthwhile_fraction(store: &OpenStore) -> f64 {
    let without_shortage = store.state.options.compact_below_fraction;
    without_shortage + (MAX_LIVE_FRACTION - without_shortage).max(0.0) * store.state.space.shortage()
}

/// The segments that are worth compacting now.
#[derive(Default)]
pub(super) struct CompactionPlan {
    /// Log segments whose removal was interrupted. Their records are uncounted but still exist. Until these segments
    /// are removed, no tombstone, and so no other log segment, may be removed.
    pub interrupted: Vec<Arc<Segment>>,
    /// Other segments, in ascending order of their live fraction.
    pub candidates: Vec<CompactionCandidate>,
}

/// A sealed segment with little live data.
pub(super) struct CompactionCandidate {
    pub segment: Arc<Segment>,
    /// Bytes to copy.
    pub live_bytes: u64,
    /// The live fraction; 0 if the segment was selected for another reason.
    pub live_fraction: f64,
}

impl CompactionPlan {
    /// Examines all segments except those to be skipped.
    pub fn select(store: &OpenStore, skipped: &HashSet<u32>) -> Result<Self> {
        let state = &store.state;
        let mut plan = Self::default();
        let mut small = Vec::new();
        let max_fraction = max_worthwhile_fraction(store);
        for segment in state.segments.all().values() {
            // Read before the index: the extents of a segment without pins are committed or aborted.
            let is_in_use =
                !segment.is_sealed.load(Ordering::Acquire) || segment.pins.load(Ordering::Acquire) > 0;
            let entry = state.index.get(&keys::segment(segment.number))?;
            let entry = entry.map(|value| SegmentEntry::decode(&value)).transpose()?.unwrap_or_default();
            if segment.kind == SegmentKind::Log && (entry.uncounted_end > 0 || entry.is_retired) {
                plan.interrupted.push(segment.clone());
                continue;
            }
            if is_in_use || segment.is_damaged.load(Ordering::Acquire) || skipped.contains(&segment.number) {
                continue;
            }
            let live_bytes = entry.live_bytes.max(0).cast_unsigned();
            let size = segment.end.load(Ordering::Acquire);
            #[expect(clippy::cast_precision_loss, reason = "a fraction")]
            let live_fraction = live_bytes as f64 / f64::from(size.max(1));
            let candidate = CompactionCandidate { segment: segment.clone(), live_bytes, live_fraction };
            if live_fraction < max_fraction {
                plan.candidates.push(candidate);
            } else if size < state.options.segment_bytes / SMALL_SIZE_DIVISOR {
                small.push(CompactionCandidate { live_fraction: 0.0, ..candidate });
            }
        }
        plan.interrupted.sort_by_key(|segment| segment.number);
        plan.candidates.sort_by(|a, b| {
            a.live_fraction.total_cmp(&b.live_fraction).then_with(|| a.segment.number.cmp(&b.segment.number))
        });
        small.sort_by_key(|candidate| candidate.segment.number);
        small.truncate(small.len().saturating_sub(MAX_SMALL_SEGMENTS));
        plan.candidates.append(&mut small);
        Ok(plan)
    }
}
