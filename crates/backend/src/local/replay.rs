//! Replay of the log into the index, from the end of the index's coverage, or from the beginning for a rebuild.
//!
//! A batch that a crash tore was never acknowledged: all of its records are voided, so that no later rebuild applies
//! one of them. If a later record states that the batch was durable, an incomplete batch is damage instead: its records
//! count, and reading a damaged one is an error.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tradewind_core::error::Result;

use super::apply::{LocatedRecord, NO_LOCATION, apply};
use super::frame::{BatchRange, RecordKind};
use super::index::entries::Coverage;
use super::index::{Index, IndexChanges, keys};
use super::position::Position;
use super::record::{Record, decode_bucket_and_key};
use super::recovery::Recovery;
use super::scan::{ScanItem, ScannedRecord, Scanner, read_payload};
use super::segment::Segment;
use super::segment_files::SegmentFiles;

/// Maximum changed index entries that a replay collects before it applies them.
pub(super) const MAX_REPLAY_ENTRIES: usize = 4096;

/// Facts about a part of the log that are needed before its records are applied.
pub(super) struct LogSurvey {
    /// Positions named by voids.
    voided: HashSet<Position>,
    /// Positions still to be voided: each record of a torn batch, and each stretch between records that is not a
    /// record.
    torn: HashSet<Position>,
    /// The log before this position was durable.
    durable_end: Position,
    /// The highest durable offset of each segment, as stated by records.
    durable_ends: HashMap<u32, u32>,
    /// The coverage once the surveyed records are applied.
    pub coverage: Coverage,
}

impl LogSurvey {
    /// Surveys the log from `coverage` on.
    pub fn scan(files: &SegmentFiles, coverage: Coverage) -> Result<Self> {
        Self::scan_durable(files, coverage, coverage.covered_end)
    }

    /// Surveys the log from `coverage` on. Nothing before `known_durable_end` is torn: a damaged record of a batch that ends
    /// there or earlier counts, and cannot be read; bytes that are no record are damage.
    pub fn scan_durable(
        files: &SegmentFiles,
        coverage: Coverage,
        known_durable_end: Position,
    ) -> Result<Self> {
        let durable_end = coverage.covered_end;
        let mut survey = Self {
            voided: HashSet::new(),
            torn: HashSet::new(),
            durable_end,
            durable_ends: HashMap::from([(durable_end.segment, durable_end.offset)]),
            coverage,
        };
        for (segment, start) in files.log_segments_from(durable_end) {
            let mut scanner = Scanner::new(segment, files.salt, start);
            while let Some(item) = scanner.next()? {
                if let ScanItem::Record(scanned) = item {
                    survey.add_record(&scanned)?;
                }
            }
        }
        for (segment, start) in files.log_segments_from(survey.durable_end) {
            let start = batch_start(&segment, files.salt, start)?;
            let scanner = Scanner::new(segment.clone(), files.salt, start);
            survey.find_torn(&segment, scanner, known_durable_end)?;
        }
        Ok(survey)
    }

    fn add_record(&mut self, scanned: &ScannedRecord) -> Result<()> {
        let durable = scanned.header.durable_end;
        self.durable_end = self.durable_end.max(durable);
        let segment_end = self.durable_ends.entry(durable.segment).or_default();
        *segment_end = (*segment_end).max(durable.offset);
        let coverage = &mut self.coverage;
        // The log may be the only trace of removed segments; their numbers are not reused.
        coverage.next_segment = coverage.next_segment.max(durable.segment.saturating_add(1));
        coverage.covered_end = Position::new(scanned.position.segment, scanned.end());
        coverage.next_id = coverage.next_id.max(scanned.header.seq + 1);
        let bucket = match scanned.header.kind {
            RecordKind::Void | RecordKind::BucketCreated | RecordKind::BucketDeleted => {
                match scanned.record()? {
                    Record::Void { at } => {
                        self.voided.insert(at);
                        coverage.next_segment = coverage.next_segment.max(at.segment.saturating_add(1));
                        return Ok(());
                    }
                    Record::BucketCreated(bucket) => bucket.id,
                    Record::BucketDeleted { id } => id,
                    _ => 0,
                }
            }
            RecordKind::Object | RecordKind::Tombstone | RecordKind::UploadCreated => {
                decode_bucket_and_key(&scanned.fields)?.0
            }
            RecordKind::Extent | RecordKind::Part | RecordKind::UploadEnded => return Ok(()),
        };
        coverage.next_bucket = coverage.next_bucket.max(bucket + 1);
        Ok(())
    }

    /// Finds torn batches in what no record states to be durable.
    fn find_torn(
        &mut self,
        segment: &Arc<Segment>,
        mut scanner: Scanner,
        known_durable_end: Position,
    ) -> Result<()> {
        let mut batch = ScannedBatch::default();
        let is_durable =
            |batch: &ScannedBatch| Position::new(segment.number, batch.range.end) <= known_durable_end;
        while let Some(item) = scanner.next()? {
            match item {
                ScanItem::Record(scanned) => {
                    let range = batch_range(&scanned);
                    if range != batch.range {
                        let next = ScannedBatch { range, ..ScannedBatch::default() };
                        let finished = std::mem::replace(&mut batch, next);
                        if !is_durable(&finished) {
                            self.finish_batch(finished);
                        }
                    }
                    if read_payload(segment, &scanned)?.is_some() {
                        batch.complete_bytes += scanned.end() - scanned.position.offset;
                    }
                    // A void counts although its batch is torn: it only names bytes that do not count anyway.
                    if scanned.header.kind != RecordKind::Void {
                        batch.records.push(scanned.position);
                    }
                }
                ScanItem::NoRecord { from, .. } => {
                    let at = Position::new(segment.number, from);
                    // Bytes after the last record of the log need no void.
                    if at >= known_durable_end && at < self.coverage.covered_end {
                        self.mark_torn(at);
                    }
                }
            }
        }
        if !is_durable(&batch) {
            self.finish_batch(batch);
        }
        Ok(())
    }

    fn finish_batch(&mut self, batch: ScannedBatch) {
        if batch.complete_bytes != batch.range.end - batch.range.begin {
            batch.records.into_iter().for_each(|at| self.mark_torn(at));
        }
    }

    fn mark_torn(&mut self, at: Position) {
        if !self.voided.contains(&at) {
            self.torn.insert(at);
        }
    }

    /// Returns false for a voided or torn record.
    pub fn is_valid(&self, at: Position) -> bool {
        !self.voided.contains(&at) && !self.torn.contains(&at)
    }

    /// Returns true if a void names this position.
    pub fn is_voided(&self, at: Position) -> bool {
        self.voided.contains(&at)
    }

    /// The highest durable offset of each segment, as stated by records.
    pub fn durable_ends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.durable_ends.iter().map(|(segment, end)| (*segment, *end))
    }

    /// Returns true if bytes that are not a record were durable, and so are damage rather than a torn write.
    fn is_damage(&self, at: Position) -> bool {
        self.durable_ends.get(&at.segment).is_some_and(|end| at.offset < *end)
            && !self.voided.contains(&at)
            && !self.torn.contains(&at)
    }
}

/// The records of one batch, as far as they are scanned.
#[derive(Default)]
struct ScannedBatch {
    range: BatchRange,
    /// Bytes of the complete records.
    complete_bytes: u32,
    records: Vec<Position>,
}

/// The offset at which the batch begins that has a record at `offset`, or `offset`. A replay that was killed may have covered
/// a part of a batch.
fn batch_start(segment: &Arc<Segment>, salt: u64, offset: u32) -> Result<u32> {
    let first = Scanner::new(segment.clone(), salt, offset).next()?;
    let Some(ScanItem::Record(record)) = first else { return Ok(offset) };
    Ok(if record.position.offset == offset { batch_range(&record).begin } else { offset })
}

/// The range of a record's batch, or of the record itself if it stands alone.
fn batch_range(scanned: &ScannedRecord) -> BatchRange {
    let BatchRange { begin, end } = scanned.batch;
    let (record_begin, record_end) = (scanned.position.offset, scanned.end());
    // A record that is not within the range that it states stands alone.
    if begin <= record_begin && record_end <= end {
        scanned.batch
    } else {
        BatchRange { begin: record_begin, end: record_end }
    }
}

/// The part of the log to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayMode {
    /// From this position on, up to which the index covers the log. The coverage grows with every group of applied
    /// entries.
    Resume(Position),
    /// The whole log, into an empty index. It gets its coverage at the end, so that an interrupted rebuild is repeated.
    Rebuild,
}

/// Applies the log to the index, as given by `mode`. The log must be durable. Torn records are marked as voided in the
/// same atomic change that covers them. The void records are written later, as pending records: no interruption loses
/// them.
pub(super) fn replay_log(
    files: &SegmentFiles,
    index: &Index,
    mode: ReplayMode,
    survey: &LogSurvey,
    recovery: &mut Recovery,
) -> Result<()> {
    let mut changes = index.changes();
    let mut coverage = survey.coverage;
    let from = match mode {
        ReplayMode::Resume(from) => from,
        ReplayMode::Rebuild => Position::default(),
    };
    for (segment, start) in files.log_segments_from(from) {
        let mut scanner = Scanner::new(segment.clone(), files.salt, start);
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                ScanItem::Record(scanned) => scanned,
                ScanItem::NoRecord { from, to } => {
                    let at = Position::new(segment.number, from);
                    if survey.torn.contains(&at) {
                        // Without a void these bytes would be damage: later records will state that the log before
                        // them was durable.
                        mark_void(&mut changes, at);
                    } else if survey.is_damage(at) {
                        tracing::error!(segment = %segment.path.display(), from, to, "the log is damaged");
                        recovery.damaged_bytes += u64::from(to - from);
                    }
                    continue;
                }
            };
            coverage.covered_end = Position::new(segment.number, scanned.end());
            if survey.voided.contains(&scanned.position) {
                continue;
            }
            if survey.torn.contains(&scanned.position) {
                mark_void(&mut changes, scanned.position);
                continue;
            }
            let record = scanned.record()?;
            apply_record(&mut changes, &scanned, &record, mode)?;
            recovery.replayed_records += 1;
            if changes.len() >= MAX_REPLAY_ENTRIES {
                let group = std::mem::replace(&mut changes, index.changes());
                match mode {
                    ReplayMode::Resume(_) => apply_with_coverage(group, coverage)?,
                    ReplayMode::Rebuild => group.apply()?,
                }
            }
        }
    }
    match mode {
        ReplayMode::Resume(_) => apply_with_coverage(changes, survey.coverage)?,
        ReplayMode::Rebuild => changes.apply()?,
    }
    Ok(())
}

/// Marks a position as voided, with the void record pending.
fn mark_void(changes: &mut IndexChanges<'_>, at: Position) {
    changes.put(keys::void(at), NO_LOCATION.encode());
}

fn apply_record(
    changes: &mut IndexChanges<'_>,
    scanned: &ScannedRecord,
    record: &Record,
    mode: ReplayMode,
) -> Result<()> {
    let are_extent_positions_valid = matches!(mode, ReplayMode::Resume(_)) && !scanned.header.is_relocated;
    let located = LocatedRecord {
        header: &scanned.header,
        record,
        fields: &scanned.fields,
        position: scanned.position,
        are_extent_positions_valid,
    };
    apply(changes, &located)
}

/// Applies changes together with the new coverage.
pub(super) fn apply_with_coverage(mut changes: IndexChanges<'_>, coverage: Coverage) -> Result<()> {
    changes.put(keys::META, coverage.encode());
    changes.apply()
}
