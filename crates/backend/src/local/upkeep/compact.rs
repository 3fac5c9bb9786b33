//! Emptying and removing segments in groups, with one change, one checkpoint of the index and one sync of the directory
//! per group.
//!
//! No record of the group is uncounted before the whole group is known to be dead. So the group's tombstones hide
//! nothing any more, inside or outside the group: it does not matter which file is removed first, or which remains
//! after a failure.

use std::collections::HashSet;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};

use super::mover::Mover;
use super::pace::Pace;
use super::reclaim::reclaim_segments;
use super::subject::{Liveness, liveness};
use super::uncount::uncount_records;
use super::{UpkeepControl, is_fatal};
use crate::local::commit::{Batch, MaintenanceChange};
use crate::local::index::entries::SegmentEntry;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::scan::{ScanItem, Scanner};
use crate::local::segment::{Segment, SegmentKind};

/// The result of compacting a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CompactionResult {
    /// Segments removed.
    pub removed: usize,
    /// True if a log segment remains of which some or all records are uncounted.
    pub leaves_uncounted_segment: bool,
}

/// Empties and removes a group of segments. One that fails, is damaged, or is used again concurrently remains, is
/// added to `skipped`, and does not block the others.
pub(super) fn compact(
    store: &OpenStore,
    group: &[Arc<Segment>],
    skipped: &mut HashSet<u32>,
    (control, pace): (&UpkeepControl, &mut Pace),
) -> Result<CompactionResult> {
    let mut record_failure = |segment: &Segment, e: Error| {
        if is_fatal(&e) {
            return Err(e);
        }
        tracing::error!(error = ?e, segment = %segment.path.display(), "a segment could not be compacted");
        skipped.insert(segment.number);
        Ok(())
    };
    let mut dead = Vec::new();
    let mut live = Vec::new();
    let mut retained = Vec::new();
    let mut mover = Mover::new(store, control, pace);
    for segment in group {
        let outcome = all_dead(store, segment).and_then(|is_dead| {
            if !is_dead {
                mover.move_live(segment)?;
            }
            Ok(is_dead)
        });
        match outcome {
            Ok(true) => dead.push(segment.clone()),
            Ok(false) => live.push(segment.clone()),
            Err(e) => record_failure(segment, e)?,
        }
    }
    if !mover.finish()? {
        return Ok(CompactionResult::default());
    }
    for segment in live {
        match all_dead(store, &segment) {
            Ok(true) => dead.push(segment),
            Ok(false) => retained.push(segment.number),
            Err(e) => record_failure(&segment, e)?,
        }
    }
    let mut leaves_uncounted_segment = false;
    let mut removable = Vec::new();
    // Records in these segments may have been superseded since the round began. Their extents are freed first, because
    // that needs the records.
    let still_needed = reclaim_segments(store, control, &segment_numbers(&dead, SegmentKind::Log))?;
    for segment in dead {
        if segment.kind == SegmentKind::Log {
            if still_needed.contains(&segment.number) {
                retained.push(segment.number);
                continue;
            }
            if let Err(e) = uncount_records(store, &segment, control) {
                leaves_uncounted_segment = true;
                record_failure(&segment, e)?;
                continue;
            }
        }
        removable.push(segment);
    }
    skipped.extend(retained);
    remove(store, &removable)?;
    Ok(CompactionResult { removed: removable.len(), leaves_uncounted_segment })
}

fn segment_numbers(segments: &[Arc<Segment>], kind: SegmentKind) -> Vec<u32> {
    segments.iter().filter(|segment| segment.kind == kind).map(|segment| segment.number).collect()
}

/// Returns true if no record of a segment is live. A dead record stays dead, so the result stays true.
fn all_dead(store: &OpenStore, segment: &Arc<Segment>) -> Result<bool> {
    let mut scanner = Scanner::new(segment.clone(), store.state.layout.salt, 0);
    while let Some(item) = scanner.next()? {
        let ScanItem::Record(scanned) = item else { continue };
        if liveness(store, &scanned)? == Liveness::Live {
            tracing::trace!(at = %scanned.position, "a record is live");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the files of dead segments, whose records are uncounted.
fn remove(store: &OpenStore, segments: &[Arc<Segment>]) -> Result<()> {
    if segments.is_empty() {
        return Ok(());
    }
    let segment_numbers: Vec<u32> = segments.iter().map(|segment| segment.number).collect();
    retire(store, &segment_numbers)?;
    store.state.index.checkpoint()?;
    if let Err(e) = store.state.segments.unlink_all(&store.state.layout.segments(), segments) {
        // It is unknown which records are gone. What hides the others must not be removed, so the store becomes
        // read-only.
        store.committer.set_read_only();
        return Err(Error::with_source(Reason::ReadOnly, "segments could not be removed", e));
    }
    tracing::debug!(segments = ?segment_numbers, "segments compacted");
    store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
        for number in &segment_numbers {
            batch.index_changes.remove(keys::segment(*number));
        }
        Ok(())
    }))
}

/// Marks segments as retired. Their entries keep the progress of uncounting: if the rest of the removal fails, their
/// records are not uncounted again.
fn retire(store: &OpenStore, segment_numbers: &[u32]) -> Result<()> {
    let segment_numbers = segment_numbers.to_vec();
    store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
        for number in &segment_numbers {
            let key = keys::segment(*number);
            let entry =
                batch.index_changes.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
            let entry = SegmentEntry { is_retired: true, ..entry.unwrap_or_default() };
            batch.index_changes.put(key, entry.encode());
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests;
