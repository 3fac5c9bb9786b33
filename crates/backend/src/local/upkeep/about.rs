//! What compaction needs to know about a record: its subject, and whether anything still refers to it.

use tradewind_core::error::{Error, Reason, Result};

use crate::local::apply::upload_records;
use crate::local::frame::RecordKind;
use crate::local::index::entries::{BucketEntry, DeletedEntry, ObjectEntry, PartEntry, Place, UploadEntry};
use crate::local::index::{Changes, keys};
use crate::local::leaf::Local;
use crate::local::position::Position;
use crate::local::record::{BucketId, Record, UploadSeq, decode_name};
use crate::local::scan::Scanned;

/// The subject of a record.
#[derive(Debug, Clone)]
pub(super) enum About {
    Bucket(BucketId),
    BucketEnd(BucketId),
    Key { bucket: BucketId, key: String },
    Upload(UploadSeq),
    Part { upload: UploadSeq, number: u16 },
    UploadEnd(UploadSeq),
    Extent(u64),
    Void(Position),
}

/// The liveness of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Something refers to it.
    Live,
    /// It is superseded, or no longer hides anything.
    Dead,
}

/// Reads the subject of a record.
pub(super) fn about(scanned: &Scanned) -> Result<About> {
    if matches!(scanned.header.kind, RecordKind::Object | RecordKind::Tombstone) {
        let (bucket, key) = decode_name(&scanned.fields)?;
        return Ok(About::Key { bucket, key });
    }
    Ok(match scanned.record()? {
        Record::BucketCreated(bucket) => About::Bucket(bucket.id),
        Record::BucketDeleted { id } => About::BucketEnd(id),
        Record::UploadCreated(_) => About::Upload(scanned.header.seq),
        Record::Part(part) => About::Part { upload: part.upload, number: part.number },
        Record::UploadEnded { upload } => About::UploadEnd(upload),
        Record::Extent { id } => About::Extent(id),
        Record::Void { at } => About::Void(at),
        Record::Object(_) | Record::Tombstone { .. } => {
            return Err(Error::new(Reason::Defect, "unhandled record kind"));
        }
    })
}

/// Determines whether anything refers to a record. Once dead, it stays dead.
pub(super) fn fate(changes: &Changes<'_>, local: &Local, scanned: &Scanned) -> Result<Fate> {
    let at = scanned.at;
    let is_here = |place: Place| if place.at == at { Fate::Live } else { Fate::Dead };
    let place_of = |key: &[u8]| -> Result<Fate> {
        Ok(changes.get(key)?.map(|value| Place::decode(&value)).transpose()?.map_or(Fate::Dead, is_here))
    };
    match about(scanned)? {
        About::Key { bucket, key } => match changes.get(&keys::object(bucket, &key))? {
            Some(value) => Ok(is_here(ObjectEntry::decode(&value)?.place)),
            None => {
                let entry = changes.get(&keys::deleted(bucket, &key))?;
                let entry = entry.map(|value| DeletedEntry::decode(&value)).transpose()?;
                // A tombstone that hides nothing is not worth a copy.
                Ok(entry.filter(|entry| entry.others > 0).map_or(Fate::Dead, |entry| is_here(entry.place)))
            }
        },
        About::Bucket(id) => {
            let entry =
                changes.get(&keys::bucket(id))?.map(|value| BucketEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        About::BucketEnd(id) => place_of(&keys::bucket_deleted(id)),
        About::Upload(seq) => {
            let entry =
                changes.get(&keys::upload(seq))?.map(|value| UploadEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        About::Part { upload, number } => {
            let entry = changes
                .get(&keys::part(upload, number))?
                .map(|value| PartEntry::decode(&value))
                .transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        // Nor is the end of an upload without remaining records.
        About::UploadEnd(seq) if upload_records(changes, seq)?.count == 0 => Ok(Fate::Dead),
        About::UploadEnd(seq) => place_of(&keys::upload_ended(seq)),
        About::Extent(id) => place_of(&keys::extent(id)),
        // A void is needed as long as the record that it voids exists.
        About::Void(target) if local.shared.segments.get(target.segment).is_none() => Ok(Fate::Dead),
        About::Void(target) => place_of(&keys::void(target)),
    }
}
