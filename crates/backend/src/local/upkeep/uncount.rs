//! Takes the records of a segment about to be removed out of the counts that keep tombstones, and the ends of
//! uploads, alive.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};

use super::UpkeepControl;
use super::subject::{RecordSubject, read_subject};
use crate::local::apply::{put_tombstone, remove_live_bytes, remove_tombstone, uncount_record};
use crate::local::commit::{Batch, IndexAmendment};
use crate::local::index::entries::{DeletedEntry, ObjectEntry, RecordLocation, SegmentEntry};
use crate::local::index::{IndexChanges, keys};
use crate::local::open_store::OpenStore;
use crate::local::position::Position;
use crate::local::scan::{ScanItem, Scanner};
use crate::local::segment::Segment;

/// Records per change: writers wait for it only a few milliseconds.
const MAX_CHANGE_RECORDS: usize = 1024;

/// Takes the segment's records out of the counts in chunks. The progress is part of each change, so that an
/// interruption counts nothing twice.
pub(super) fn uncount_records(
    local: &OpenStore,
    segment: &Arc<Segment>,
    control: &UpkeepControl,
) -> Result<()> {
    let key = keys::segment(segment.number);
    let entry = local.shared.index.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
    let from = entry.unwrap_or_default().uncounted_end;
    let mut scanner = Scanner::new(segment.clone(), local.shared.layout.salt, from);
    loop {
        let mut records = Vec::with_capacity(MAX_CHANGE_RECORDS);
        let mut progress = None;
        while records.len() < MAX_CHANGE_RECORDS
            && let Some(item) = scanner.next()?
        {
            if let ScanItem::Record(scanned) = item {
                progress = Some(scanned.end());
                records.push((scanned.position, read_subject(&scanned)?));
            }
        }
        let Some(progress) = progress else { return Ok(()) };
        if control.is_stopped() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closing"));
        }
        local.committer.submit_blocking(IndexAmendment(move |batch: &mut Batch<'_>| {
            for (at, about) in &records {
                forget_one(&mut batch.changes, *at, about)?;
            }
            let entry = batch.changes.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
            let entry = SegmentEntry { uncounted_end: progress, ..entry.unwrap_or_default() };
            batch.changes.put(key, entry.encode());
            Ok(())
        }))?;
    }
}

fn forget_one(changes: &mut IndexChanges<'_>, at: Position, about: &RecordSubject) -> Result<()> {
    if changes.get(&keys::void(at))?.is_some() {
        // It never happened, so it was never counted.
        return Ok(());
    }
    match about {
        RecordSubject::Key { bucket, key } => {
            let object_key = keys::object(*bucket, key);
            if let Some(value) = changes.get(&object_key)? {
                let mut entry = ObjectEntry::decode(&value)?;
                entry.other_records = entry.other_records.saturating_sub(1);
                changes.put(object_key, entry.encode());
                return Ok(());
            }
            forget_tombstone(changes, &keys::deleted(*bucket, key), at)
        }
        RecordSubject::Upload(upload) | RecordSubject::Part { upload, .. } => {
            uncount_record(changes, *upload)
        }
        // The end of an upload without remaining records, and a void of something that no longer exists, hide
        // nothing. Copies of them elsewhere were never counted.
        RecordSubject::UploadEnd(upload) => {
            remove_if_here(changes, &keys::upload_ended(*upload), at).map(|_| ())
        }
        RecordSubject::Void(target) => match remove_if_here(changes, &keys::void(*target), at)? {
            Some(place) => remove_live_bytes(changes, place),
            None => Ok(()),
        },
        RecordSubject::Bucket(_) | RecordSubject::BucketEnd(_) | RecordSubject::Extent(_) => Ok(()),
    }
}

fn remove_if_here(
    changes: &mut IndexChanges<'_>,
    key: &[u8],
    at: Position,
) -> Result<Option<RecordLocation>> {
    let place = changes
        .get(key)?
        .map(|value| RecordLocation::decode(&value))
        .transpose()?
        .filter(|place| place.position == at);
    if place.is_some() {
        changes.remove(key);
    }
    Ok(place)
}

/// Removes a tombstone that is here; one elsewhere has one record less to hide.
fn forget_tombstone(changes: &mut IndexChanges<'_>, key: &[u8], at: Position) -> Result<()> {
    let Some(value) = changes.get(key)? else { return Ok(()) };
    let entry = DeletedEntry::decode(&value)?;
    if entry.location.position != at {
        let others = entry.other_records.saturating_sub(1);
        return put_tombstone(changes, key.to_vec(), DeletedEntry { other_records: others, ..entry });
    }
    if entry.other_records > 0 {
        return Err(Error::new(
            Reason::Defect,
            "a tombstone that still hides a record was about to be removed",
        ));
    }
    remove_tombstone(changes, key.to_vec())
}
