//! Taking the log into the index: from where the index ends, or from the beginning where it is made
//! anew. A commit record that a crash tore was never acknowledged: it is voided, so that no later
//! rebuild takes it for a whole one. Where a later record says that it had been durable, the same
//! sight is damage: the record counts, and whoever reads it is told.

use std::collections::HashSet;
use std::sync::Arc;

use tradewind_core::error::Result;

use super::apply::{Located, NOWHERE, apply};
use super::frame::RecordKind;
use super::index::entries::Coverage;
use super::index::{Changes, Index, keys};
use super::io::io_error;
use super::layout::Layout;
use super::position::Position;
use super::record::{BucketId, Record, decode_name};
use super::recovery::Recovery;
use super::scan::{Item, Scanned, Scanner, read_payload};
use super::segment::{Segment, SegmentKind, Segments};

/// Entries changed in one batch of a replay.
pub(super) const REPLAY_BATCH: usize = 4096;

/// What has to be known of a piece of log before its records are taken in.
pub(super) struct Survey {
    /// Positions that a void names.
    voided: HashSet<Position>,
    /// Everything before this was durable.
    durable: Position,
    /// Where the log first speaks of a bucket with a number higher than all before it, in order.
    buckets: Vec<(Position, BucketId)>,
    /// Where the last record ends, and the numbers that come next.
    pub coverage: Coverage,
}

impl Survey {
    /// Looks over the log from `coverage` on.
    pub fn of(layout: &Layout, segments: &Segments, coverage: Coverage) -> Result<Self> {
        let mut known =
            Self { voided: HashSet::new(), durable: coverage.covered, buckets: Vec::new(), coverage };
        for (segment, start) in log_from(segments, coverage.covered) {
            let mut scanner = Scanner::new(segment, layout.salt, start);
            while let Some(item) = scanner.next()? {
                if let Item::Record(scanned) = item {
                    known.take(&scanned)?;
                }
            }
        }
        Ok(known)
    }

    fn take(&mut self, scanned: &Scanned) -> Result<()> {
        self.durable = self.durable.max(scanned.header.durable);
        let coverage = &mut self.coverage;
        coverage.covered = Position::new(scanned.at.segment, scanned.end());
        coverage.next_id = coverage.next_id.max(scanned.header.seq + 1);
        let bucket = match scanned.header.kind {
            RecordKind::Void | RecordKind::BucketCreated | RecordKind::BucketDeleted => {
                match scanned.record()? {
                    Record::Void { at } => {
                        self.voided.insert(at);
                        return Ok(());
                    }
                    Record::BucketCreated(bucket) => bucket.id,
                    Record::BucketDeleted { id } => id,
                    _ => 0,
                }
            }
            RecordKind::Object | RecordKind::Tombstone | RecordKind::UploadCreated => {
                decode_name(&scanned.fields)?.0
            }
            RecordKind::Extent | RecordKind::Part | RecordKind::UploadEnded => return Ok(()),
        };
        if self.buckets.last().is_none_or(|(_, highest)| bucket > *highest) {
            self.buckets.push((scanned.at, bucket));
        }
        coverage.next_bucket = coverage.next_bucket.max(bucket + 1);
        Ok(())
    }

    /// Whether the log spoke of a bucket before what a crash may have torn.
    fn is_old(&self, bucket: BucketId) -> bool {
        self.buckets.iter().any(|(at, number)| *at < self.durable && *number >= bucket)
    }

    /// Whether what is damaged here may be what a crash tore, and was never voided yet.
    fn is_torn(&self, at: Position) -> bool {
        at >= self.durable && !self.voided.contains(&at)
    }
}

/// How the log is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Behind what the index has; the coverage grows with every batch.
    Onward,
    /// All of it, into an empty index that covers nothing before the end: a stop half way begins anew.
    Anew,
}

/// Takes in the log from `from` on. What a crash tore is entered as voided, in the same changes that cover
/// it: the record that says so is still to be written, however often the store stops before that.
pub(super) fn take_log(
    layout: &Layout,
    index: &Index,
    segments: &Segments,
    (from, mode): (Position, Mode),
    known: &Survey,
    recovery: &mut Recovery,
) -> Result<()> {
    let mut changes = index.changes();
    let mut reached = known.coverage;
    for (segment, start) in log_from(segments, from) {
        let mut scanner = Scanner::new(segment.clone(), layout.salt, start);
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                Item::Record(scanned) => scanned,
                Item::Gap { from, to } => {
                    let at = Position::new(segment.number, from);
                    if at < known.durable && !known.voided.contains(&at) {
                        tracing::error!(segment = %segment.path.display(), from, to, "the log is damaged");
                        recovery.damaged_bytes += u64::from(to - from);
                    } else if known.is_torn(at) && at < known.coverage.covered {
                        // Records behind it will say that they found everything durable.
                        void(&mut changes, at);
                    }
                    continue;
                }
            };
            reached.covered = Position::new(segment.number, scanned.end());
            if known.voided.contains(&scanned.at) {
                continue;
            }
            let record = scanned.record()?;
            if known.is_torn(scanned.at)
                && (read_payload(&segment, &scanned)?.is_none()
                    || lacks_bucket(&changes, known, &scanned, &record)?)
            {
                void(&mut changes, scanned.at);
                continue;
            }
            take_in(&mut changes, &scanned, &record, mode)?;
            recovery.replayed += 1;
            if changes.len() >= REPLAY_BATCH {
                let batch = std::mem::replace(&mut changes, index.changes());
                match mode {
                    Mode::Onward => apply_with_coverage(batch, reached)?,
                    Mode::Anew => batch.apply()?,
                }
            }
        }
        // What is served from now on must not be lost any more, and what a failed write left and was cut
        // off must not come back.
        segment.file.sync_data().map_err(|e| io_error("a segment could not be made durable", e))?;
    }
    match mode {
        Mode::Onward => apply_with_coverage(changes, known.coverage)?,
        Mode::Anew => changes.apply()?,
    }
    Ok(())
}

/// Enters that what is at a position never happened, though no record says so yet.
fn void(changes: &mut Changes<'_>, at: Position) {
    changes.put(keys::void(at), NOWHERE.encode());
}

/// Whether a crash tore the record of the bucket that a record needs, out of the same batch.
fn lacks_bucket(changes: &Changes<'_>, known: &Survey, scanned: &Scanned, record: &Record) -> Result<bool> {
    let bucket = match record {
        Record::Object(object) => object.bucket,
        Record::UploadCreated(upload) => upload.bucket,
        _ => return Ok(false),
    };
    // Copies stand in any order; their originals were durable.
    Ok(!scanned.header.relocated && !known.is_old(bucket) && changes.get(&keys::bucket(bucket))?.is_none())
}

fn take_in(changes: &mut Changes<'_>, scanned: &Scanned, record: &Record, mode: Mode) -> Result<()> {
    let places_extents = mode == Mode::Onward && !scanned.header.relocated;
    let located =
        Located { header: &scanned.header, record, fields: &scanned.fields, at: scanned.at, places_extents };
    apply(changes, &located)
}

/// Applies changes together with what is covered then.
pub(super) fn apply_with_coverage(mut changes: Changes<'_>, coverage: Coverage) -> Result<()> {
    changes.put(keys::META, coverage.encode());
    changes.apply()
}

/// The log segments from a position on, in the order they were written, and where each begins.
fn log_from(segments: &Segments, from: Position) -> Vec<(Arc<Segment>, u32)> {
    let all = segments.all();
    let mut logs: Vec<_> =
        all.values().filter(|s| s.kind == SegmentKind::Log && s.number >= from.segment).collect();
    logs.sort_by_key(|segment| segment.number);
    let start = |number: u32| if number == from.segment { from.offset } else { 0 };
    logs.into_iter().map(|segment| (segment.clone(), start(segment.number))).collect()
}
