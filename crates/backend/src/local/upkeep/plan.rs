//! Selection and order of the segments to compact.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tradewind_core::error::Result;

use crate::local::index::entries::SegmentEntry;
use crate::local::index::keys;
use crate::local::leaf::Local;
use crate::local::segment::{Segment, SegmentKind};

/// Small sealed segments (left by restarts) are merged when there are more than this.
const MAX_SMALL_SEGMENTS: usize = 8;
/// A segment is small below the size limit divided by this.
const SMALL_SIZE_DIVISOR: u32 = 16;

/// Live fraction below which a segment is worth compacting when writes are rejected for lack of space: each byte
/// freed costs up to nine copied ones.
pub(in crate::local) const MOST_LIVE: f64 = 0.9;

/// Live fraction below which a segment is worth compacting now.
pub(super) fn worth_below(local: &Local) -> f64 {
    let (below, shortage) = (local.shared.options.compact_below, local.shared.space.shortage());
    below + (MOST_LIVE - below).max(0.0) * shortage
}

/// The segments worth compacting at one moment.
#[derive(Default)]
pub(super) struct Plan {
    /// Log segments whose removal was interrupted. Their records are out of the counts but still exist: until they
    /// are removed, no tombstone, and so no other log segment, may be removed.
    pub begun: Vec<Arc<Segment>>,
    /// The others, in ascending order of their live fraction.
    pub worth: Vec<Candidate>,
}

/// A sealed segment with little live data.
pub(super) struct Candidate {
    pub segment: Arc<Segment>,
    /// Bytes to copy.
    pub live_bytes: u64,
    /// The live fraction; 0 if the segment was selected for another reason.
    pub share: f64,
}

impl Plan {
    /// Examines all segments except those to be skipped.
    pub fn of(local: &Local, skipped: &HashSet<u32>) -> Result<Self> {
        let shared = &local.shared;
        let mut plan = Self::default();
        let mut small = Vec::new();
        let worth_below = worth_below(local);
        for segment in shared.segments.all().values() {
            // Read before the index: what is no longer pinned is committed or aborted.
            let busy = !segment.sealed.load(Ordering::Acquire) || segment.pins.load(Ordering::Acquire) > 0;
            let entry = shared.index.get(&keys::segment(segment.number))?;
            let entry = entry.map(|value| SegmentEntry::decode(&value)).transpose()?.unwrap_or_default();
            if segment.kind == SegmentKind::Log && (entry.forgotten > 0 || entry.retired) {
                plan.begun.push(segment.clone());
                continue;
            }
            if busy || segment.damaged.load(Ordering::Acquire) || skipped.contains(&segment.number) {
                continue;
            }
            let live_bytes = entry.live_bytes.max(0).cast_unsigned();
            let size = segment.end.load(Ordering::Acquire);
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let share = live_bytes as f64 / f64::from(size.max(1));
            let candidate = Candidate { segment: segment.clone(), live_bytes, share };
            if share < worth_below {
                plan.worth.push(candidate);
            } else if size < shared.options.segment_bytes / SMALL_SIZE_DIVISOR {
                small.push(Candidate { share: 0.0, ..candidate });
            }
        }
        plan.begun.sort_by_key(|segment| segment.number);
        plan.worth.sort_by(|a, b| {
            a.share.total_cmp(&b.share).then_with(|| a.segment.number.cmp(&b.segment.number))
        });
        small.sort_by_key(|candidate| candidate.segment.number);
        small.truncate(small.len().saturating_sub(MAX_SMALL_SEGMENTS));
        plan.worth.append(&mut small);
        Ok(plan)
    }
}
