//! The subject of a record, and the record's liveness: compaction moves live records and drops dead ones.

use tradewind_core::error::{Error, Reason, Result};

use crate::local::apply::upload_records;
use crate::local::current_version::find_version;
use crate::local::frame::RecordKind;
use crate::local::index::entries::{BucketEntry, DeletedEntry, PartEntry, RecordLocation, UploadEntry};
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::position::Position;
use crate::local::record::{BucketId, Record, UploadSeq, VersionName};
use crate::local::scan::ScannedRecord;

/// The entity that a record is about: the version, upload, part, bucket, extent or position whose index entry decides
/// whether the record is live.
#[derive(Debug, Clone)]
pub(super) enum RecordSubject {
    Bucket(BucketId),
    BucketEnd(BucketId),
    Version(VersionName),
    Upload(UploadSeq),
    Part { upload: UploadSeq, number: u16 },
    UploadEnd(UploadSeq),
    Extent(u64),
    Void(Position),
}

/// The liveness of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    /// Something refers to it.
    Live,
    /// It is superseded, or no longer hides anything.
    Dead,
}

/// Reads the subject of a record.
pub(super) fn read_subject(scanned: &ScannedRecord) -> Result<RecordSubject> {
    if matches!(scanned.header.kind, RecordKind::Object | RecordKind::Tombstone) {
        return Ok(RecordSubject::Version(VersionName::decode(&scanned.fields, scanned.header.seq)?));
    }
    Ok(match scanned.record()? {
        Record::BucketCreated(bucket) => RecordSubject::Bucket(bucket.id),
        Record::BucketDeleted { id } => RecordSubject::BucketEnd(id),
        Record::UploadCreated(_) => RecordSubject::Upload(scanned.header.seq),
        Record::Part(part) => RecordSubject::Part { upload: part.upload, number: part.number },
        Record::UploadEnded { upload } => RecordSubject::UploadEnd(upload),
        Record::Extent { id } => RecordSubject::Extent(id),
        Record::Void { at } => RecordSubject::Void(at),
        Record::Object(_) | Record::Tombstone(_) => {
            return Err(Error::new(Reason::Defect, "unhandled record kind"));
        }
    })
}

/// Determines the liveness of a record, in a snapshot: a version that moves within the index is there at one place. A
/// dead record stays dead.
pub(super) fn liveness(store: &OpenStore, scanned: &ScannedRecord) -> Result<Liveness> {
    let index = store.state.index.snapshot();
    let at = scanned.position;
    let liveness_by =
        |location: RecordLocation| if location.position == at { Liveness::Live } else { Liveness::Dead };
    let liveness_in_index = |key: &[u8]| -> Result<Liveness> {
        Ok(index
            .get(key)?
            .map(|value| RecordLocation::decode(&value))
            .transpose()?
            .map_or(Liveness::Dead, liveness_by))
    };
    match read_subject(scanned)? {
        RecordSubject::Version(VersionName { bucket, key, slot }) => {
            match find_version(&index, bucket, &key, slot)?.found {
                Some(version) => Ok(liveness_by(version.entry.location)),
                None => {
                    let entry = index.get(&keys::deleted(bucket, &key, slot))?;
                    let entry = entry.map(|value| DeletedEntry::decode(&value)).transpose()?;
                    // A tombstone that hides nothing is dead.
                    Ok(entry
                        .filter(|entry| entry.other_records > 0)
                        .map_or(Liveness::Dead, |entry| liveness_by(entry.location)))
                }
            }
        }
        RecordSubject::Bucket(id) => {
            let entry = index.get(&keys::bucket(id))?.map(|value| BucketEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Liveness::Dead, |entry| liveness_by(entry.location)))
        }
        RecordSubject::BucketEnd(id) => liveness_in_index(&keys::bucket_deleted(id)),
        RecordSubject::Upload(seq) => {
            let entry =
                index.get(&keys::upload(seq))?.map(|value| UploadEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Liveness::Dead, |entry| liveness_by(entry.location)))
        }
        RecordSubject::Part { upload, number } => {
            let entry =
                index.get(&keys::part(upload, number))?.map(|value| PartEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Liveness::Dead, |entry| liveness_by(entry.location)))
        }
        // Without other records on disk, the end of an upload hides nothing.
        RecordSubject::UploadEnd(seq) if upload_records(&index, seq)?.count == 0 => Ok(Liveness::Dead),
        RecordSubject::UploadEnd(seq) => liveness_in_index(&keys::upload_ended(seq)),
        RecordSubject::Extent(id) => liveness_in_index(&keys::extent(id)),
        // A void is needed as long as the record that it voids exists.
        RecordSubject::Void(target) if store.state.segments.get(target.segment).is_none() => {
            Ok(Liveness::Dead)
        }
        RecordSubject::Void(target) => liveness_in_index(&keys::void(target)),
    }
}
