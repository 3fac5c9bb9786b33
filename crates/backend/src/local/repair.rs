//! What the index knows and no record says, after a crash or damage: that torn records never happened,
//! that a completed upload ended, what a bucket is called whose record was lost. It is entered with the
//! place of no record, and kept so until a record is durable; so no stop in between loses it.

use tradewind_core::error::Result;

use super::apply::NOWHERE;
use super::commit::{Amendment, Batch};
use super::index::entries::{BucketEntry, Place};
use super::index::{Index, keys};
use super::leaf::Local;
use super::position::Position;
use super::record::Record;

/// Records that are still to be written.
pub(super) struct Unsaid {
    records: Vec<Record>,
    /// How many of them are voids.
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
        let mut durable = None;
        for entry in view.prefix(&[keys::space::VOID]) {
            let (key, value) = entry?;
            if Place::decode(&value)? == NOWHERE {
                let at = Position::unpack(keys::number(&key)?);
                durable = durable.or(Some(at));
                records.push(Record::Void { at });
            }
        }
        let voids = records.len() as u64;
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
