//! Emptying segments and removing them, a group at a time: one change, one checkpoint of the index and one
//! sync of the directory for all of it.
//!
//! All of a group is known to be dead before any of it is taken out of the counts. So a tombstone in it had
//! nothing left to hide outside of it nor in it, and it does not matter which of its files goes first, or
//! which stays because of trouble.

use std::collections::HashSet;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};

use super::about::{Fate, fate};
use super::forget::forget;
use super::moving::Mover;
use super::pace::Pace;
use super::reclaim::reclaim_within;
use super::{Control, is_final};
use crate::local::commit::{Amendment, Batch};
use crate::local::index::entries::SegmentEntry;
use crate::local::index::keys;
use crate::local::leaf::Local;
use crate::local::scan::{Item, Scanner};
use crate::local::segment::{Segment, SegmentKind};

/// What came of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compacted {
    /// Segments removed.
    pub removed: usize,
    /// A log segment is taken out of the counts, or partly, and still there.
    pub left_begun: bool,
}

/// Empties and removes a group of segments. One that makes trouble, is damaged, or is used again meanwhile
/// stays, joins `skipped`, and does not keep the others from their turn.
pub(super) fn compact(
    local: &Local,
    group: &[Arc<Segment>],
    skipped: &mut HashSet<u32>,
    (control, pace): (&Control, &mut Pace),
) -> Result<Compacted> {
    let mut troubled = |segment: &Segment, e: Error| {
        if is_final(&e) {
            return Err(e);
        }
        tracing::error!(error = ?e, segment = %segment.path.display(), "a segment could not be compacted");
        skipped.insert(segment.number);
        Ok(())
    };
    let mut dead = Vec::new();
    let mut living = Vec::new();
    let mut kept = Vec::new();
    let mut mover = Mover::new(local, control, pace);
    for segment in group {
        let looked = all_dead(local, segment).and_then(|is_dead| {
            if !is_dead {
                mover.empty(segment)?;
            }
            Ok(is_dead)
        });
        match looked {
            Ok(true) => dead.push(segment.clone()),
            Ok(false) => living.push(segment.clone()),
            Err(e) => troubled(segment, e)?,
        }
    }
    if !mover.finish()? {
        return Ok(Compacted::default());
    }
    for segment in living {
        match all_dead(local, &segment) {
            Ok(true) => dead.push(segment),
            Ok(false) => kept.push(segment.number),
            Err(e) => troubled(&segment, e)?,
        }
    }
    let mut left_begun = false;
    let mut removable = Vec::new();
    // Records there may have been superseded meanwhile: what they held is freed while they can be read.
    let held = reclaim_within(local, control, &numbers(&dead, SegmentKind::Log))?;
    for segment in dead {
        if segment.kind == SegmentKind::Log {
            if held.contains(&segment.number) {
                kept.push(segment.number);
                continue;
            }
            if let Err(e) = forget(local, &segment, control) {
                left_begun = true;
                troubled(&segment, e)?;
                continue;
            }
        }
        removable.push(segment);
    }
    skipped.extend(kept);
    remove(local, &removable)?;
    Ok(Compacted { removed: removable.len(), left_begun })
}

fn numbers(segments: &[Arc<Segment>], kind: SegmentKind) -> Vec<u32> {
    segments.iter().filter(|segment| segment.kind == kind).map(|segment| segment.number).collect()
}

/// Once dead, a record stays dead; so a look at a moment is enough.
fn all_dead(local: &Local, segment: &Arc<Segment>) -> Result<bool> {
    let mut scanner = Scanner::new(segment.clone(), local.shared.layout.salt, 0);
    let changes = local.shared.index.changes();
    while let Some(item) = scanner.next()? {
        let Item::Record(scanned) = item else { continue };
        if fate(&changes, local, &scanned)? == Fate::Live {
            tracing::trace!(at = %scanned.at, "a record is live");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the files of segments in which nothing lives and that nothing counts any more.
fn remove(local: &Local, segments: &[Arc<Segment>]) -> Result<()> {
    if segments.is_empty() {
        return Ok(());
    }
    let numbers: Vec<u32> = segments.iter().map(|segment| segment.number).collect();
    retire(local, &numbers)?;
    local.shared.index.checkpoint()?;
    if let Err(e) = local.shared.segments.unlink_all(&local.shared.layout.segments(), segments) {
        // Whether the records are gone cannot be known: what hides them must not go, nor anything else.
        local.committer.fail();
        return Err(Error::with_source(Reason::ReadOnly, "segments could not be removed", e));
    }
    tracing::debug!(segments = ?numbers, "segments compacted");
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        for number in &numbers {
            batch.changes.remove(keys::segment(*number));
        }
        Ok(())
    }))
}

/// Says that segments are as good as gone. How far they were taken out of the counts stays known: where the rest
/// of a removal fails, they are not taken out again.
fn retire(local: &Local, numbers: &[u32]) -> Result<()> {
    let numbers = numbers.to_vec();
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        for number in &numbers {
            let key = keys::segment(*number);
            let entry = batch.changes.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
            let entry = SegmentEntry { retired: true, ..entry.unwrap_or_default() };
            batch.changes.put(key, entry.encode());
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests;
