//! Taking the log into the index: from where the index ends, or from the beginning where it is made
//! anew. A batch that a crash tore was never acknowledged: all of its records are voided, so that no
//! later rebuild takes one of them for a whole one. Where a later record says that it had been durable,
//! the same sight is damage: the record counts, and whoever reads it is told.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tradewind_core::error::Result;

use super::apply::{Located, NOWHERE, apply};
use super::frame::{BatchSpan, RecordKind};
use super::index::entries::Coverage;
use super::index::{Changes, Index, keys};
use super::log::Log;
use super::position::Position;
use super::record::{Record, decode_name};
use super::recovery::Recovery;
use super::scan::{Item, Scanned, Scanner, read_payload};
use super::segment::Segment;

/// Entries changed in one batch of a replay.
pub(super) const REPLAY_BATCH: usize = 4096;

/// What has to be known of a piece of log before its records are taken in.
pub(super) struct Survey {
    /// Positions that a void names.
    voided: HashSet<Position>,
    /// Records of torn batches, and what is left of records there, of which no void speaks yet.
    torn: HashSet<Position>,
    /// Everything before this was durable.
    durable: Position,
    /// Of each segment, how much of it records call durable.
    durable_in: HashMap<u32, u32>,
    /// Where the last record ends, and the numbers that come next.
    pub coverage: Coverage,
}

impl Survey {
    /// Looks over the log from `coverage` on.
    pub fn of(log: &Log, coverage: Coverage) -> Result<Self> {
        let durable = coverage.covered;
        let mut known = Self {
            voided: HashSet::new(),
            torn: HashSet::new(),
            durable,
            durable_in: HashMap::from([(durable.segment, durable.offset)]),
            coverage,
        };
        for (segment, start) in log.from(durable) {
            let mut scanner = Scanner::new(segment, log.salt, start);
            while let Some(item) = scanner.next()? {
                if let Item::Record(scanned) = item {
                    known.take(&scanned)?;
                }
            }
        }
        for (segment, start) in log.from(known.durable) {
            known.find_torn(&segment, Scanner::new(segment.clone(), log.salt, start))?;
        }
        Ok(known)
    }

    fn take(&mut self, scanned: &Scanned) -> Result<()> {
        let durable = scanned.header.durable;
        self.durable = self.durable.max(durable);
        let until = self.durable_in.entry(durable.segment).or_default();
        *until = (*until).max(durable.offset);
        let coverage = &mut self.coverage;
        // Of segments that were removed the log may be all that knows; their numbers are not used again.
        coverage.next_segment = coverage.next_segment.max(durable.segment.saturating_add(1));
        coverage.covered = Position::new(scanned.at.segment, scanned.end());
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
                decode_name(&scanned.fields)?.0
            }
            RecordKind::Extent | RecordKind::Part | RecordKind::UploadEnded => return Ok(()),
        };
        coverage.next_bucket = coverage.next_bucket.max(bucket + 1);
        Ok(())
    }

    /// Finds what a crash tore behind all that is known to be durable.
    fn find_torn(&mut self, segment: &Arc<Segment>, mut scanner: Scanner) -> Result<()> {
        let mut batch = Found::default();
        while let Some(item) = scanner.next()? {
            match item {
                Item::Record(scanned) => {
                    let span = span_of(&scanned);
                    if span != batch.span {
                        self.settle(std::mem::replace(&mut batch, Found { span, ..Found::default() }));
                    }
                    if read_payload(segment, &scanned)?.is_some() {
                        batch.whole_bytes += scanned.end() - scanned.at.offset;
                    }
                    // What a void says is true wherever it stands.
                    if scanned.header.kind != RecordKind::Void {
                        batch.records.push(scanned.at);
                    }
                }
                Item::Gap { from, .. } => {
                    let at = Position::new(segment.number, from);
                    // Behind the last record of all nothing is said of it, and nothing needs to be.
                    if at < self.coverage.covered {
                        self.tear(at);
                    }
                }
            }
        }
        self.settle(batch);
        Ok(())
    }

    fn settle(&mut self, batch: Found) {
        if batch.whole_bytes != batch.span.end - batch.span.begin {
            batch.records.into_iter().for_each(|at| self.tear(at));
        }
    }

    fn tear(&mut self, at: Position) {
        if !self.voided.contains(&at) {
            self.torn.insert(at);
        }
    }

    /// Returns false for a record that is voided, or that a crash tore.
    pub fn counts(&self, at: Position) -> bool {
        !self.voided.contains(&at) && !self.torn.contains(&at)
    }

    /// Whether a void names this position.
    pub fn is_voided(&self, at: Position) -> bool {
        self.voided.contains(&at)
    }

    /// Each segment that records call durable up to some offset, with that offset.
    pub fn durable_ends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.durable_in.iter().map(|(segment, end)| (*segment, *end))
    }

    /// Whether bytes that are no record were one once.
    fn is_damage(&self, at: Position) -> bool {
        self.durable_in.get(&at.segment).is_some_and(|until| at.offset < *until)
            && !self.voided.contains(&at)
            && !self.torn.contains(&at)
    }
}

/// What was found of a batch.
#[derive(Default)]
struct Found {
    span: BatchSpan,
    /// Bytes of its records that are whole.
    whole_bytes: u32,
    records: Vec<Position>,
}

fn span_of(scanned: &Scanned) -> BatchSpan {
    let BatchSpan { begin, end } = scanned.batch;
    let (at, behind) = (scanned.at.offset, scanned.end());
    // A record of no batch, or that lies outside of the one that it names, stands alone.
    if begin <= at && behind <= end { scanned.batch } else { BatchSpan { begin: at, end: behind } }
}

/// How the log is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// From this position on, up to which the index covers the log; the coverage grows with every batch.
    Onward(Position),
    /// All of it, into an empty index that covers nothing before the end: a stop half way begins anew.
    Anew,
}

/// Takes in the log: in [`Mode::Onward`] from `from`, which the index covers, else from the beginning. The log must be
/// durable. What a crash tore is entered as voided, in the same changes that cover it: the record that says so is still
/// to be written, however often the store stops before that.
pub(super) fn take_log(
    log: &Log,
    index: &Index,
    mode: Mode,
    known: &Survey,
    recovery: &mut Recovery,
) -> Result<()> {
    let mut changes = index.changes();
    let mut reached = known.coverage;
    let from = match mode {
        Mode::Onward(from) => from,
        Mode::Anew => Position::default(),
    };
    for (segment, start) in log.from(from) {
        let mut scanner = Scanner::new(segment.clone(), log.salt, start);
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                Item::Record(scanned) => scanned,
                Item::Gap { from, to } => {
                    let at = Position::new(segment.number, from);
                    if known.torn.contains(&at) {
                        // Records behind it will say that they found everything durable.
                        void(&mut changes, at);
                    } else if known.is_damage(at) {
                        tracing::error!(segment = %segment.path.display(), from, to, "the log is damaged");
                        recovery.damaged_bytes += u64::from(to - from);
                    }
                    continue;
                }
            };
            reached.covered = Position::new(segment.number, scanned.end());
            if known.voided.contains(&scanned.at) {
                continue;
            }
            if known.torn.contains(&scanned.at) {
                void(&mut changes, scanned.at);
                continue;
            }
            let record = scanned.record()?;
            take_in(&mut changes, &scanned, &record, mode)?;
            recovery.replayed += 1;
            if changes.len() >= REPLAY_BATCH {
                let batch = std::mem::replace(&mut changes, index.changes());
                match mode {
                    Mode::Onward(_) => apply_with_coverage(batch, reached)?,
                    Mode::Anew => batch.apply()?,
                }
            }
        }
    }
    match mode {
        Mode::Onward(_) => apply_with_coverage(changes, known.coverage)?,
        Mode::Anew => changes.apply()?,
    }
    Ok(())
}

/// Enters that what is at a position never happened, though no record says so yet.
fn void(changes: &mut Changes<'_>, at: Position) {
    changes.put(keys::void(at), NOWHERE.encode());
}

fn take_in(changes: &mut Changes<'_>, scanned: &Scanned, record: &Record, mode: Mode) -> Result<()> {
    let places_extents = matches!(mode, Mode::Onward(_)) && !scanned.header.relocated;
    let located =
        Located { header: &scanned.header, record, fields: &scanned.fields, at: scanned.at, places_extents };
    apply(changes, &located)
}

/// Applies changes together with what is covered then.
pub(super) fn apply_with_coverage(mut changes: Changes<'_>, coverage: Coverage) -> Result<()> {
    changes.put(keys::META, coverage.encode());
    changes.apply()
}
