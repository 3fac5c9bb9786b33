//! What the index knows and no record says, after a crash or damage: that torn records never happened,
//! that a completed upload ended, what a bucket is called whose record was lost. It is entered with the
//! place of no record, and kept so until a record is durable; so no stop in between loses it.

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

/// Records that are still to be written.
pub(super) struct Unsaid {
    records: Vec<Record>,
    /// How many of them are voids of what a crash tore.
    pub voids: u64,
    /// Where the first of them points. A record that says that more than what lies before it was durable
    /// would make damage of what the voids, should they be torn themselves, do not name any more.
    pub durable: Option<Position>,
}

impl Unsaid {
    /// Looks for them.
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

    /// Writes them, in one batch.
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

/// What no record says, and an index that is given up hands on to the one that takes its place.
#[derive(Default)]
pub(super) struct Legacy {
    /// The numbers that come next. What was lost had used those before them.
    numbers: Option<Coverage>,
    /// Ends of segments whose loss was accepted.
    accepted: BTreeSet<Position>,
}

impl Legacy {
    /// Reads it from an index, which may be one whose making was interrupted.
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

    /// Whether the loss of an end was accepted.
    pub fn has_accepted(&self, end: Position) -> bool {
        self.accepted.contains(&end)
    }

    /// Adds ends whose loss is accepted.
    pub fn accept(&mut self, ends: impl IntoIterator<Item = Position>) {
        self.accepted.extend(ends);
    }

    /// Raises what comes next over what was used.
    pub fn raise(&self, coverage: &mut Coverage) {
        if let Some(numbers) = self.numbers {
            coverage.raise_numbers(numbers);
        }
    }

    /// Whether an index that covers nothing is one whose making was interrupted.
    pub fn is_in(index: &Index) -> Result<bool> {
        Ok(index.get(&keys::NUMBERS)?.is_some())
    }

    /// Enters it into an empty index, with the numbers that come next, and makes it durable, before anything else: a start that stops while the index is
    /// made anew forgets none of it.
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
