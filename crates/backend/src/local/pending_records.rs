//! Pending records. After a crash or damage, the index states facts for which no record is in the log: that a torn
//! record is void, that a completed upload has ended, that a bucket exists whose record was lost. Their entries have
//! [`NO_LOCATION`] until the records are written, so no interruption loses them.

use std::collections::BTreeSet;

use tradewind_core::error::Result;

use super::apply::NO_LOCATION;
use super::commit::{Batch, MaintenanceChange};
use super::index::entries::{BucketEntry, Coverage, RecordLocation};
use super::index::{Index, keys};
use super::open_store::OpenStore;
use super::position::Position;
use super::record::Record;
use super::segment_files::SegmentFiles;

/// The records that the log lacks.
pub(super) struct PendingRecords {
    records: Vec<Record>,
    /// The number of voids in `records` for torn records and the torn bytes between them.
    pub void_count: u64,
    /// The first position that these voids name; `None` without voids. Until they are durable, no record may state that
    /// the log beyond this position is durable. A crash may leave only some of these voids on disk; the positions named
    /// by the lost ones would then count as damage.
    pub durable_end: Option<Position>,
}

impl PendingRecords {
    /// Collects the records whose entries in the index have no location.
    pub fn collect(index: &Index) -> Result<Self> {
        let snapshot = index.snapshot();
        let mut records = Vec::new();
        let (mut durable_end, mut void_count) = (None, 0);
        for entry in snapshot.prefix(&[keys::prefix::VOID]) {
            let (key, value) = entry?;
            if RecordLocation::decode(&value)? == NO_LOCATION {
                let at = Position::unpack(keys::number(&key)?);
                if !at.is_accepted_end() {
                    durable_end = durable_end.or(Some(at));
                    void_count += 1;
                }
                records.push(Record::Void { at });
            }
        }
        for entry in snapshot.prefix(&[keys::prefix::UPLOAD_ENDED]) {
            let (key, value) = entry?;
            if RecordLocation::decode(&value)? == NO_LOCATION {
                records.push(Record::UploadEnded { upload: keys::number(&key)? });
            }
        }
        for entry in snapshot.prefix(&[keys::prefix::BUCKET]) {
            let (key, value) = entry?;
            let entry = BucketEntry::decode(&value)?;
            if entry.location == NO_LOCATION {
                records.push(Record::BucketCreated(entry.into_bucket(&key)?));
            }
        }
        Ok(Self { records, void_count, durable_end })
    }

    /// Writes the records in one batch.
    pub fn write(self, store: &OpenStore) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
            for record in &self.records {
                let seq = batch.next_id();
                batch.append(record, seq)?;
            }
            Ok(())
        }))
    }
}

/// Facts that no record states, and that an index inherits from the one that it replaces.
#[derive(Default)]
pub(super) struct InheritedFacts {
    /// The next numbers; its `covered_end` is ignored. Lost data may have used the numbers before them.
    next_numbers: Option<Coverage>,
    /// Ends of segments whose loss was accepted, as [`Position::accepted_end`].
    accepted_ends: BTreeSet<Position>,
    /// The log before this position was durable, and has a void for each torn batch.
    pub durable_end: Position,
}

impl InheritedFacts {
    /// Reads the facts from an index, whose creation may have been interrupted.
    pub fn read_from(index: &Index, files: &SegmentFiles) -> Result<Self> {
        let next_numbers = match index.coverage()? {
            Some(coverage) => Some(coverage),
            None => index.get(&keys::NEXT_NUMBERS)?.map(|value| Coverage::decode(&value)).transpose()?,
        };
        let mut durable_end =
            index.coverage()?.map_or_else(Position::default, |coverage| coverage.covered_end);
        let mut accepted_ends = BTreeSet::new();
        for entry in index.snapshot().prefix(&[keys::prefix::VOID]) {
            let (key, value) = entry?;
            let at = Position::unpack(keys::number(&key)?);
            if !at.is_accepted_end() {
                if !files.has_record(RecordLocation::decode(&value)?) {
                    durable_end = durable_end.min(at);
                }
            } else if files.segments.get(at.segment).is_some() {
                accepted_ends.insert(at);
            }
        }
        Ok(Self { next_numbers, accepted_ends, durable_end })
    }

    /// Returns true if the loss of an end was accepted.
    pub fn has_accepted(&self, end: Position) -> bool {
        self.accepted_ends.contains(&end)
    }

    /// Adds ends whose loss is accepted.
    pub fn accept(&mut self, ends: impl IntoIterator<Item = Position>) {
        self.accepted_ends.extend(ends);
    }

    /// Raises the next numbers of `coverage` above those that lost data may have used.
    pub fn raise_numbers(&self, coverage: &mut Coverage) {
        if let Some(next_numbers) = self.next_numbers {
            coverage.raise_numbers(next_numbers);
        }
    }

    /// Returns true if an index without coverage is a rebuild that was interrupted.
    pub fn is_interrupted_rebuild(index: &Index) -> Result<bool> {
        Ok(index.get(&keys::NEXT_NUMBERS)?.is_some())
    }

    /// Writes these facts and the next numbers to an empty index and makes them durable. This is the first step of a
    /// rebuild, so that an interrupted rebuild loses none of them.
    pub fn write_to(&self, index: &Index, next_numbers: Coverage) -> Result<()> {
        let mut changes = index.changes();
        changes.put(keys::NEXT_NUMBERS, next_numbers.encode());
        for at in &self.accepted_ends {
            changes.put(keys::void(*at), NO_LOCATION.encode());
        }
        changes.apply()?;
        index.checkpoint()
    }
}
