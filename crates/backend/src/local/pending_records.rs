//! Facts that the index has but no record states, after a crash or damage: that torn records never happened, that a
//! completed upload ended, the name of a bucket whose record was lost. They are entered with the place of no record
//! until a record is durable; so no interruption loses them.

use std::collections::BTreeSet;

use tradewind_core::error::Result;

use super::apply::NO_LOCATION;
use super::commit::{Batch, IndexAmendment};
use super::index::entries::{BucketEntry, Coverage, RecordLocation};
use super::index::{Index, keys};
use super::log_files::LogFiles;
use super::open_store::OpenStore;
use super::position::Position;
use super::record::Record;

/// Records still to be written.
pub(super) struct PendingRecords {
    records: Vec<Record>,
    /// The number of voids of torn records among them.
    pub void_count: u64,
    /// The position named by the first of them. If a record stated that anything after it was durable, and the voids
    /// themselves were torn, the positions that they named would count as damage.
    pub durable_end: Option<Position>,
}

impl PendingRecords {
    /// Collects them from the index.
    pub fn collect(index: &Index) -> Result<Self> {
        let snapshot = index.snapshot();
        let mut records = Vec::new();
        let (mut durable, mut voids) = (None, 0);
        for entry in snapshot.prefix(&[keys::prefix::VOID]) {
            let (key, value) = entry?;
            if RecordLocation::decode(&value)? == NO_LOCATION {
                let at = Position::unpack(keys::number(&key)?);
                if !at.is_accepted_end() {
                    durable = durable.or(Some(at));
                    voids += 1;
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
        Ok(Self { records, void_count: voids, durable_end: durable })
    }

    /// Writes them in one batch.
    pub fn write(self, store: &OpenStore) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        store.committer.submit_blocking(IndexAmendment(move |batch: &mut Batch<'_>| {
            for record in &self.records {
                let seq = batch.next_id();
                batch.append(record, seq)?;
            }
            Ok(())
        }))
    }
}

/// Facts that no record states, which an abandoned index passes on to its replacement.
#[derive(Default)]
pub(super) struct InheritedFacts {
    /// The next numbers. Lost data had used those before them.
    numbers: Option<Coverage>,
    /// Accepted ends of segments.
    accepted: BTreeSet<Position>,
}

impl InheritedFacts {
    /// Reads them from an index, which may be one whose creation was interrupted.
    pub fn read_from(index: &Index, log: &LogFiles) -> Result<Self> {
        let numbers = match index.coverage()? {
            Some(coverage) => Some(coverage),
            None => index.get(&keys::NEXT_NUMBERS)?.map(|value| Coverage::decode(&value)).transpose()?,
        };
        let mut accepted = BTreeSet::new();
        for entry in index.snapshot().prefix(&[keys::prefix::VOID]) {
            let at = Position::unpack(keys::number(&entry?.0)?);
            if at.is_accepted_end() && log.segments.get(at.segment).is_some() {
                accepted.insert(at);
            }
        }
        Ok(Self { numbers, accepted })
    }

    /// Returns true if the loss of an end was accepted.
    pub fn has_accepted(&self, end: Position) -> bool {
        self.accepted.contains(&end)
    }

    /// Adds ends whose loss is accepted.
    pub fn accept(&mut self, ends: impl IntoIterator<Item = Position>) {
        self.accepted.extend(ends);
    }

    /// Raises the next numbers above the used ones.
    pub fn raise_numbers(&self, coverage: &mut Coverage) {
        if let Some(numbers) = self.numbers {
            coverage.raise_numbers(numbers);
        }
    }

    /// Returns true if an index without coverage is one whose creation was interrupted.
    pub fn is_interrupted_rebuild(index: &Index) -> Result<bool> {
        Ok(index.get(&keys::NEXT_NUMBERS)?.is_some())
    }

    /// Writes these facts and the next numbers into an empty index and makes them durable, before anything else: an
    /// interrupted rebuild forgets none of them.
    pub fn write_to(&self, index: &Index, numbers: Coverage) -> Result<()> {
        let mut changes = index.changes();
        changes.put(keys::NEXT_NUMBERS, numbers.encode());
        for at in &self.accepted {
            changes.put(keys::void(*at), NO_LOCATION.encode());
        }
        changes.apply()?;
        index.checkpoint()
    }
}
