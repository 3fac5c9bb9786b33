//! Uncounting: before a segment is removed, its records are taken out of the counts of other records. These counts keep
//! tombstones, and the end records of uploads, alive.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};

use super::UpkeepControl;
use super::subject::{RecordSubject, read_subject};
use crate::local::apply::{put_tombstone, remove_live_bytes, remove_tombstone, uncount_upload_record};
use crate::local::commit::{Batch, MaintenanceChange};
use crate::local::current_version::{IndexedVersion, find_version};
use crate::local::index::entries::{DeletedEntry, RecordLocation, SegmentEntry};
use crate::local::index::{IndexChanges, keys};
use crate::local::open_store::OpenStore;
use crate::local::position::Position;
use crate::local::record::VersionName;
use crate::local::scan::{ScanItem, Scanner};
use crate::local::segment::Segment;

/// Maximum records per change, so that writers wait for the change only a few milliseconds.
const MAX_CHANGE_RECORDS: usize = 1024;

/// Takes the segment's records out of the counts, in several changes. Each change also records the progress, so that no
/// record is uncounted twice after an interruption.
pub(super) fn uncount_records(
    store: &OpenStore,
    segment: &Arc<Segment>,
    control: &UpkeepControl,
) -> Result<()> {
    let key = keys::segment(segment.number);
    let entry = store.state.index.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
    let from = entry.unwrap_or_default().uncounted_end;
    let mut scanner = Scanner::new(segment.clone(), store.state.layout.salt, from);
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
        store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
            for (at, subject) in &records {
                uncount_record(&mut batch.index_changes, *at, subject)?;
            }
            let entry =
                batch.index_changes.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
            let entry = SegmentEntry { uncounted_end: progress, ..entry.unwrap_or_default() };
            batch.index_changes.put(key, entry.encode());
            Ok(())
        }))?;
    }
}

fn uncount_record(changes: &mut IndexChanges<'_>, at: Position, subject: &RecordSubject) -> Result<()> {
    if changes.get(&keys::void(at))?.is_some() {
        // The record is voided, so it was never counted.
        return Ok(());
    }
    match subject {
        RecordSubject::Version(VersionName { bucket, key, slot }) => {
            let found = find_version(changes, *bucket, key, *slot)?.found;
            if let Some(IndexedVersion { index_key, mut entry }) = found {
                if entry.location.position == at {
                    return Err(Error::new(Reason::Defect, "a live version was about to be removed"));
                }
                entry.other_records = entry.other_records.saturating_sub(1);
                changes.put(index_key, entry.encode());
                return Ok(());
            }
            uncount_hidden_record(changes, &keys::deleted(*bucket, key, *slot), at)
        }
        RecordSubject::Upload(upload) | RecordSubject::Part { upload, .. } => {
            uncount_upload_record(changes, *upload)
        }
        // A dead end record of an upload, and a dead void, hide nothing any more: their entries go with them. If the
        // entry refers to a copy elsewhere, this record was never counted.
        RecordSubject::UploadEnd(upload) => {
            remove_if_here(changes, &keys::upload_ended(*upload), at).map(|_| ())
        }
        RecordSubject::Void(target) => match remove_if_here(changes, &keys::void(*target), at)? {
            Some(location) => remove_live_bytes(changes, location),
            None => Ok(()),
        },
        RecordSubject::Bucket(_) | RecordSubject::BucketEnd(_) | RecordSubject::Extent(_) => Ok(()),
    }
}

/// Removes an entry if it refers to the record at this position. Returns its location if so.
fn remove_if_here(
    changes: &mut IndexChanges<'_>,
    key: &[u8],
    at: Position,
) -> Result<Option<RecordLocation>> {
    let location = changes
        .get(key)?
        .map(|value| RecordLocation::decode(&value))
        .transpose()?
        .filter(|location| location.position == at);
    if location.is_some() {
        changes.remove(key);
    }
    Ok(location)
}

/// Removes the tombstone of a key if its record is at this position. Otherwise the tombstone hides one record less.
fn uncount_hidden_record(changes: &mut IndexChanges<'_>, key: &[u8], at: Position) -> Result<()> {
    let Some(value) = changes.get(key)? else { return Ok(()) };
    let entry = DeletedEntry::decode(&value)?;
    if entry.location.position != at {
        let other_records = entry.other_records.saturating_sub(1);
        return put_tombstone(changes, key.to_vec(), DeletedEntry { other_records, ..entry });
    }
    if entry.other_records > 0 {
        return Err(Error::new(
            Reason::Defect,
            "a tombstone that still hides a record was about to be removed",
        ));
    }
    remove_tombstone(changes, key.to_vec())
}
