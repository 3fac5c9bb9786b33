//! Replay of the log into the index: from the end of its coverage, or from the start for a rebuild. A batch torn by a
//! crash was never acknowledged: all of its records are voided, so that no later rebuild takes one for complete. If a
//! later record states that it had been durable, the same finding is damage: the record counts, and its readers get
//! an error.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tradewind_core::error::Result;

use super::apply::{LocatedRecord, NO_LOCATION, apply};
use super::frame::{BatchRange, RecordKind};
use super::index::entries::Coverage;
use super::index::{Index, IndexChanges, keys};
use super::log_files::LogFiles;
use super::position::Position;
use super::record::{Record, decode_bucket_and_key};
use super::recovery::Recovery;
use super::scan::{ScanItem, ScannedRecord, Scanner, read_payload};
use super::segment::Segment;

/// Changed entries per batch of a replay.
pub(super) const MAX_REPLAY_BATCH_ENTRIES: usize = 4096;

/// Facts about a part of the log that are needed before its records are applied.
pub(super) struct LogSurvey {
    /// Positions named by voids.
    voided: HashSet<Position>,
    /// Records of torn batches, and remains of records there, that no void names yet.
    torn: HashSet<Position>,
    /// Everything before this was durable.
    durable: Position,
    /// The durable end of each segment according to records.
    durable_in: HashMap<u32, u32>,
    /// The end of the last record, and the next numbers.
    pub coverage: Coverage,
}

impl LogSurvey {
    /// Surveys the log from `coverage` on.
    pub fn scan(log: &LogFiles, coverage: Coverage) -> Result<Self> {
        let durable = coverage.covered_end;
        let mut survey = Self {
            voided: HashSet::new(),
            torn: HashSet::new(),
            durable,
            durable_in: HashMap::from([(durable.segment, durable.offset)]),
            coverage,
        };
        for (segment, start) in log.segments_from(durable) {
            let mut scanner = Scanner::new(segment, log.salt, start);
            while let Some(item) = scanner.next()? {
                if let ScanItem::Record(scanned) = item {
                    survey.add_record(&scanned)?;
                }
            }
        }
        for (segment, start) in log.segments_from(survey.durable) {
            survey.find_torn(&segment, Scanner::new(segment.clone(), log.salt, start))?;
        }
        Ok(survey)
    }

    fn add_record(&mut self, scanned: &ScannedRecord) -> Result<()> {
        let durable = scanned.header.durable;
        self.durable = self.durable.max(durable);
        let until = self.durable_in.entry(durable.segment).or_default();
        *until = (*until).max(durable.offset);
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

    /// Finds torn batches after everything that is known to be durable.
    fn find_torn(&mut self, segment: &Arc<Segment>, mut scanner: Scanner) -> Result<()> {
        let mut batch = FoundBatch::default();
        while let Some(item) = scanner.next()? {
            match item {
                ScanItem::Record(scanned) => {
                    let span = span_of(&scanned);
                    if span != batch.span {
                        self.finish_batch(std::mem::replace(
                            &mut batch,
                            FoundBatch { span, ..FoundBatch::default() },
                        ));
                    }
                    if read_payload(segment, &scanned)?.is_some() {
                        batch.whole_bytes += scanned.end() - scanned.position.offset;
                    }
                    // A void holds wherever it is, even in a torn batch.
                    if scanned.header.kind != RecordKind::Void {
                        batch.records.push(scanned.position);
                    }
                }
                ScanItem::Gap { from, .. } => {
                    let at = Position::new(segment.number, from);
                    // After the last record of the log no void is needed.
                    if at < self.coverage.covered_end {
                        self.tear(at);
                    }
                }
            }
        }
        self.finish_batch(batch);
        Ok(())
    }

    fn finish_batch(&mut self, batch: FoundBatch) {
        if batch.whole_bytes != batch.span.end - batch.span.begin {
            batch.records.into_iter().for_each(|at| self.tear(at));
        }
    }

    fn tear(&mut self, at: Position) {
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

    /// The durable end of each segment according to records.
    pub fn durable_ends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.durable_in.iter().map(|(segment, end)| (*segment, *end))
    }

    /// Returns true if bytes that are not a record once were one.
    fn is_damage(&self, at: Position) -> bool {
        self.durable_in.get(&at.segment).is_some_and(|until| at.offset < *until)
            && !self.voided.contains(&at)
            && !self.torn.contains(&at)
    }
}

/// The records of one batch found so far.
#[derive(Default)]
struct FoundBatch {
    span: BatchRange,
    /// Bytes of its complete records.
    whole_bytes: u32,
    records: Vec<Position>,
}

fn span_of(scanned: &ScannedRecord) -> BatchRange {
    let BatchRange { begin, end } = scanned.batch;
    let (at, after) = (scanned.position.offset, scanned.end());
    // A record without a batch, or outside the one that it names, stands alone.
    if begin <= at && after <= end { scanned.batch } else { BatchRange { begin: at, end: after } }
}

/// The extent of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayMode {
    /// From this position on, up to which the index covers the log; the coverage grows with every batch.
    Resume(Position),
    /// The whole log, into an empty index without coverage until the end: an interruption starts over.
    Rebuild,
}

/// Replays the log: in [`ReplayMode::Resume`] from the index's coverage, otherwise from the start. The log must be durable.
/// Torn records are entered as voided in the same changes that cover them: the void record is still to be written,
/// however often the store stops before that.
pub(super) fn replay_log(
    log: &LogFiles,
    index: &Index,
    mode: ReplayMode,
    survey: &LogSurvey,
    recovery: &mut Recovery,
) -> Result<()> {
    let mut changes = index.changes();
    let mut reached = survey.coverage;
    let from = match mode {
        ReplayMode::Resume(from) => from,
        ReplayMode::Rebuild => Position::default(),
    };
    for (segment, start) in log.segments_from(from) {
        let mut scanner = Scanner::new(segment.clone(), log.salt, start);
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                ScanItem::Record(scanned) => scanned,
                ScanItem::Gap { from, to } => {
                    let at = Position::new(segment.number, from);
                    if survey.torn.contains(&at) {
                        // Later records will state that everything before them was durable.
                        mark_void(&mut changes, at);
                    } else if survey.is_damage(at) {
                        tracing::error!(segment = %segment.path.display(), from, to, "the log is damaged");
                        recovery.damaged_bytes += u64::from(to - from);
                    }
                    continue;
                }
            };
            reached.covered_end = Position::new(segment.number, scanned.end());
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
            if changes.len() >= MAX_REPLAY_BATCH_ENTRIES {
                let batch = std::mem::replace(&mut changes, index.changes());
                match mode {
                    ReplayMode::Resume(_) => apply_with_coverage(batch, reached)?,
                    ReplayMode::Rebuild => batch.apply()?,
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

/// Enters that a position was never a record, although no record states it yet.
fn mark_void(changes: &mut IndexChanges<'_>, at: Position) {
    changes.put(keys::void(at), NO_LOCATION.encode());
}

fn apply_record(
    changes: &mut IndexChanges<'_>,
    scanned: &ScannedRecord,
    record: &Record,
    mode: ReplayMode,
) -> Result<()> {
    let places_extents = matches!(mode, ReplayMode::Resume(_)) && !scanned.header.is_relocated;
    let located = LocatedRecord {
        header: &scanned.header,
        record,
        fields: &scanned.fields,
        position: scanned.position,
        are_extent_positions_valid: places_extents,
    };
    apply(changes, &located)
}

/// Applies changes together with the new coverage.
pub(super) fn apply_with_coverage(mut changes: IndexChanges<'_>, coverage: Coverage) -> Result<()> {
    changes.put(keys::META, coverage.encode());
    changes.apply()
}
