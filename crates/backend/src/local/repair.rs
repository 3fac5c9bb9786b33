//! Facts that the index has but no record states, after a crash or damage: that torn records never happened, that a
//! completed upload ended, the name of a bucket whose record was lost. They are entered with the place of no record
//! until a record is durable; so no interruption loses them.

use std::collections::BTreeSet;

use tradewind_core::error::Result;

use super::apply::NOWHERE;
use super::commit::{Amendment, Batch};
use super::index::entries::{BucketEntry, Coverage, Place};
use super::index::{Index, keys};
use super::leaf::Local;
use super::log::Log;
use super::position::Position;
use super::record::Record;

/// Records still to be written.
pub(super) struct Unsaid {
    records: Vec<Record>,
    /// The number of voids of torn records among them.
    pub voids: u64,
    /// The position named by the first of them. If a record stated that anything after it was durable, and the voids
    /// themselves were torn, the positions that they named would count as damage.
    pub durable: Option<Position>,
}

impl Unsaid {
    /// Collects them from the index.
    pub fn of(index: &Index) -> Result<Self> {
        let view = index.view();
        let mut records = Vec::new();
        let (mut durable, mut voids) = (None, 0);
        for entry in view.prefix(&[keys::space::VOID]) {
            let (key, value) = entry?;
            if Place::decode(&value)? == NOWHERE {
                let at = Position::unpack(keys::number(&key)?);
                if !at.is_accepted_end() {
                    durable = durable.or(Some(at));
                    voids += 1;
                }
                records.push(Record::Void { at });
            }
        }
        for entry in view.prefix(&[keys::space::UPLOAD_ENDED]) {
            let (key, value) = entry?;
            if Place::decode(&value)? == NOWHERE {
                records.push(Record::UploadEnded { upload: keys::number(&key)? });
            }
        }
        for entry in view.prefix(&[keys::space::BUCKET]) {
            let (key, value) = entry?;
            let entry = BucketEntry::decode(&value)?;
            if entry.place == NOWHERE {
                records.push(Record::BucketCreated(entry.into_bucket(&key)?));
            }
        }
        Ok(Self { records, voids, durable })
    }

    /// Writes them in one batch.
    pub fn say(self, local: &Local) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
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
pub(super) struct Legacy {
    /// The next numbers. Lost data had used those before them.
    numbers: Option<Coverage>,
    /// Accepted ends of segments.
    accepted: BTreeSet<Position>,
}

impl Legacy {
    /// Reads them from an index, which may be one whose creation was interrupted.
    pub fn of(index: &Index, log: &Log) -> Result<Self> {
        let numbers = match index.coverage()? {
            Some(coverage) => Some(coverage),
            None => index.get(&keys::NUMBERS)?.map(|value| Coverage::decode(&value)).transpose()?,
        };
        let mut accepted = BTreeSet::new();
        for entry in index.view().prefix(&[keys::space::VOID]) {
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
    pub fn raise(&self, coverage: &mut Coverage) {
        if let Some(numbers) = self.numbers {
            coverage.raise_numbers(numbers);
        }
    }

    /// Returns true if an index without coverage is one whose creation was interrupted.
    pub fn is_in(index: &Index) -> Result<bool> {
        Ok(index.get(&keys::NUMBERS)?.is_some())
    }

    /// Writes these facts and the next numbers into an empty index and makes them durable, before anything else: an
    /// interrupted rebuild forgets none of them.
    pub fn enter(&self, index: &Index, numbers: Coverage) -> Result<()> {
        let mut changes = index.changes();
        changes.put(keys::NUMBERS, numbers.encode());
        for at in &self.accepted {
            changes.put(keys::void(*at), NOWHERE.encode());
        }
        changes.apply()?;
        index.checkpoint()
    }
}
