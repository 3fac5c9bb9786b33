//! The effect of a record on the index: one deterministic function for live commits, replay and rebuilding. In a
//! compacted log, records may come in any order. For each version of a key the record with the highest seq wins; among equal seqs,
//! the last one applied.
//!
//! Compaction decides by two counts what it may remove: the live bytes of each segment, and for each key the number of
//! its *other* records still on disk, next to the winning one. (For an upload: all of its records except its end.) A
//! tombstone may be removed once its key has no other records, because nothing is left for it to hide.

use tradewind_core::error::Result;

use super::current_version::{IndexedVersion, find_version, put_version, remove_version};
use super::fields::malformed;
use super::frame::{RecordHeader, RecordKind};
use super::index::entries::{
    BucketEntry, DeletedEntry, ObjectEntry, PartEntry, RecordLocation, SegmentEntry, UploadEntry,
    UploadRecords,
};
use super::index::keys;
use super::index::{IndexChanges, IndexReader};
use super::position::Position;
use super::record::{
    Bucket, ExtentLocation, ExtentRun, Object, ObjectContent, Part, Record, Upload, UploadSeq, VersionName,
};

/// The location in an index entry for which no record is on disk yet; see `pending_records`.
pub(crate) const NO_LOCATION: RecordLocation =
    RecordLocation { position: Position::new(0, 0), record_bytes: 0 };

/// A record and its position.
pub(crate) struct LocatedRecord<'a> {
    pub header: &'a RecordHeader,
    pub record: &'a Record,
    /// The encoded fields of the record.
    pub fields: &'a [u8],
    pub position: Position,
    /// True if the positions in the record's `new_extents` are valid. False for a relocated copy, whose extents may
    /// have moved since the original was written, and in a rebuild, which scans the bulk segments for them.
    pub are_extent_positions_valid: bool,
}

impl LocatedRecord<'_> {
    fn location(&self) -> RecordLocation {
        #[expect(clippy::cast_possible_truncation, reason = "a record has at most 18 MiB")]
        let record_bytes = self.header.record_bytes() as u32;
        RecordLocation { position: self.position, record_bytes }
    }
}

/// Applies one record to the index.
pub(crate) fn apply(changes: &mut IndexChanges<'_>, located: &LocatedRecord<'_>) -> Result<()> {
    // Even if nothing will refer to the record: the segment's entry states how far the segment reaches.
    update_segment(changes, located.location(), 0)?;
    match located.record {
        Record::BucketCreated(bucket) => bucket_created(changes, bucket, located),
        Record::BucketDeleted { id } => {
            if let Some(old) = changes.get(&keys::bucket(*id))? {
                remove_live_bytes(changes, BucketEntry::decode(&old)?.location)?;
                changes.remove(keys::bucket(*id));
            }
            replace_location(changes, &keys::bucket_deleted(*id), located.location())
        }
        Record::Object(object) => object_written(changes, object, located),
        Record::Tombstone(name) => tombstone(changes, name, located),
        // Extents are in bulk segments and enter the index with the first log record that refers to them.
        Record::Extent { .. } => Ok(()),
        Record::UploadCreated(upload) => upload_created(changes, upload, located),
        Record::Part(part) => part_written(changes, part, located),
        Record::UploadEnded { upload } => {
            end_upload(changes, *upload, &[])?;
            put_upload_end(changes, *upload, located.location())
        }
        Record::Void { at } => replace_location(changes, &keys::void(*at), located.location()),
    }
}

/// A bucket's record is written again when its versioning changes: the one with the highest seq counts.
fn bucket_created(
    changes: &mut IndexChanges<'_>,
    bucket: &Bucket,
    located: &LocatedRecord<'_>,
) -> Result<()> {
    if changes.get(&keys::bucket_deleted(bucket.id))?.is_some() {
        return Ok(());
    }
    let seq = located.header.seq;
    if let Some(old) = changes.get(&keys::bucket(bucket.id))? {
        let old = BucketEntry::decode(&old)?;
        if seq < old.seq {
            return Ok(());
        }
        remove_live_bytes(changes, old.location)?;
    }
    add_live_bytes(changes, located.location())?;
    let entry = BucketEntry {
        location: located.location(),
        created: bucket.created,
        name: bucket.name.clone(),
        seq,
        versioning: bucket.versioning,
    };
    changes.put(keys::bucket(bucket.id), entry.encode());
    Ok(())
}

fn object_written(
    changes: &mut IndexChanges<'_>,
    object: &Object,
    located: &LocatedRecord<'_>,
) -> Result<()> {
    let seq = located.header.seq;
    let (bucket, key, slot) = (object.bucket, &object.key, object.slot(seq));
    let deleted_key = keys::deleted(bucket, key, slot);
    let mut other_records = 0;
    let lookup = find_version(changes, bucket, key, slot)?;
    if let Some(IndexedVersion { index_key, entry: current }) = &lookup.found {
        other_records = current.other_records + 1;
        if seq < current.seq {
            let current = ObjectEntry { other_records, ..current.clone() };
            changes.put(index_key.clone(), current.encode());
            return Ok(());
        }
        remove_live_bytes(changes, current.location)?;
        let reuses_extents = seq == current.seq || object.rewritten_seq == Some(current.seq);
        if current.in_extents && !reuses_extents {
            changes.put(keys::reclaim(current.seq), current.location.encode());
        }
    } else if let Some(value) = changes.get(&deleted_key)? {
        let mut deleted = DeletedEntry::decode(&value)?;
        other_records = deleted.other_records + 1;
        if seq < deleted.seq {
            deleted.other_records = other_records;
            return put_tombstone(changes, deleted_key, deleted);
        }
        remove_tombstone(changes, deleted_key)?;
    }
    let mut in_extents = false;
    if let ObjectContent::Extents { runs, new_extents } = &object.content {
        in_extents = true;
        if located.are_extent_positions_valid {
            put_extents(changes, new_extents)?;
        }
        if let Some(upload) = object.upload {
            end_upload(changes, upload, runs)?;
        }
    }
    add_live_bytes(changes, located.location())?;
    let entry = ObjectEntry {
        seq,
        location: located.location(),
        head_bytes: u32::try_from(located.header.head_bytes())
            .map_err(|_| malformed("a head is too long"))?,
        size: object.size,
        modified: object.modified,
        etag: object.etag.clone(),
        checksum: object.checksums.first().map(|c| (c.algorithm(), object.scope)),
        in_extents,
        other_records,
        slot,
        creation_seq: object.creation(seq),
        is_delete_marker: object.is_delete_marker,
        storage_class: object.metadata.headers.storage_class.clone(),
    };
    put_version(changes, bucket, key, lookup, &entry)
}

fn tombstone(changes: &mut IndexChanges<'_>, name: &VersionName, located: &LocatedRecord<'_>) -> Result<()> {
    let seq = located.header.seq;
    let (bucket, key, slot) = (name.bucket, &name.key, name.slot);
    let deleted_key = keys::deleted(bucket, key, slot);
    let mut other_records = 0;
    if let Some(version) = find_version(changes, bucket, key, slot)?.found {
        let current = &version.entry;
        other_records = current.other_records + 1;
        if seq < current.seq {
            let current = ObjectEntry { other_records, ..current.clone() };
            changes.put(version.index_key, current.encode());
            return Ok(());
        }
        remove_live_bytes(changes, current.location)?;
        if current.in_extents {
            changes.put(keys::reclaim(current.seq), current.location.encode());
        }
        remove_version(changes, bucket, key, version)?;
    } else if let Some(value) = changes.get(&deleted_key)? {
        let mut current = DeletedEntry::decode(&value)?;
        other_records = current.other_records + 1;
        if seq < current.seq {
            current.other_records = other_records;
            return put_tombstone(changes, deleted_key, current);
        }
    }
    put_tombstone(changes, deleted_key, DeletedEntry { seq, location: located.location(), other_records })
}

/// Adds or replaces a tombstone. Its record counts as live while other records of the key, which it hides, are on disk.
pub(crate) fn put_tombstone(
    changes: &mut IndexChanges<'_>,
    key: Vec<u8>,
    tombstone: DeletedEntry,
) -> Result<()> {
    remove_tombstone(changes, key.clone())?;
    if tombstone.other_records > 0 {
        add_live_bytes(changes, tombstone.location)?;
    }
    changes.put(key, tombstone.encode());
    Ok(())
}

/// Removes a tombstone from the index.
pub(crate) fn remove_tombstone(changes: &mut IndexChanges<'_>, key: Vec<u8>) -> Result<()> {
    if let Some(value) = changes.get(&key)? {
        let old = DeletedEntry::decode(&value)?;
        if old.other_records > 0 {
            remove_live_bytes(changes, old.location)?;
        }
        changes.remove(key);
    }
    Ok(())
}

fn put_extents(changes: &mut IndexChanges<'_>, new_extents: &[ExtentLocation]) -> Result<()> {
    for extent in new_extents {
        let location = RecordLocation { position: extent.position, record_bytes: extent.record_bytes };
        replace_location(changes, &keys::extent(extent.id), location)?;
    }
    Ok(())
}

fn upload_created(
    changes: &mut IndexChanges<'_>,
    upload: &Upload,
    located: &LocatedRecord<'_>,
) -> Result<()> {
    let seq = located.header.seq;
    count_upload_record(changes, seq, 0)?;
    if changes.get(&keys::upload_ended(seq))?.is_some() {
        return Ok(());
    }
    if let Some(value) = changes.get(&keys::upload(seq))? {
        remove_live_bytes(changes, UploadEntry::decode(&value)?.location)?;
    }
    add_live_bytes(changes, located.location())?;
    let entry = UploadEntry { bucket: upload.bucket, key: upload.key.clone(), location: located.location() };
    changes.put(keys::upload(seq), entry.encode());
    Ok(())
}

fn part_written(changes: &mut IndexChanges<'_>, part: &Part, located: &LocatedRecord<'_>) -> Result<()> {
    let seq = located.header.seq;
    count_upload_record(changes, part.upload, seq)?;
    if changes.get(&keys::upload_ended(part.upload))?.is_some() {
        return Ok(());
    }
    let key = keys::part(part.upload, part.number);
    if let Some(value) = changes.get(&key)? {
        let old = PartEntry::decode(&value)?;
        if seq < old.seq {
            return Ok(());
        }
        remove_live_bytes(changes, old.location)?;
        if seq > old.seq && part.rewritten_seq != Some(old.seq) {
            changes.put(keys::reclaim(old.seq), old.location.encode());
        }
    }
    if located.are_extent_positions_valid {
        put_extents(changes, &part.new_extents)?;
    }
    add_live_bytes(changes, located.location())?;
    changes
        .put(key, PartEntry { seq, location: located.location(), fields: located.fields.to_vec() }.encode());
    Ok(())
}

/// Counts a record of an upload, in progress or ended: its creation (`part_seq` 0), or the part with that seq.
fn count_upload_record(changes: &mut IndexChanges<'_>, upload: UploadSeq, part_seq: u64) -> Result<()> {
    let mut records = upload_records(changes, upload)?;
    records.count += 1;
    records.newest_part_seq = records.newest_part_seq.max(part_seq);
    if records.count == 1 {
        add_live_bytes(changes, upload_end(changes, upload)?)?;
    }
    changes.put(keys::upload_records(upload), records.encode());
    Ok(())
}

/// Counts the removal of a record of an upload.
pub(crate) fn uncount_upload_record(changes: &mut IndexChanges<'_>, upload: UploadSeq) -> Result<()> {
    let mut records = upload_records(changes, upload)?;
    if records.count > 1 {
        records.count -= 1;
        changes.put(keys::upload_records(upload), records.encode());
    } else if records.count == 1 {
        remove_live_bytes(changes, upload_end(changes, upload)?)?;
        changes.remove(keys::upload_records(upload));
    }
    Ok(())
}

/// The location of the record that ends an upload.
fn upload_end(changes: &IndexChanges<'_>, upload: UploadSeq) -> Result<RecordLocation> {
    let value = changes.get(&keys::upload_ended(upload))?;
    value.map_or(Ok(NO_LOCATION), |value| RecordLocation::decode(&value))
}

/// Adds the end of an upload. Its record counts as live while other records of the upload, which it hides, are on disk.
fn put_upload_end(changes: &mut IndexChanges<'_>, upload: UploadSeq, location: RecordLocation) -> Result<()> {
    if upload_records(changes, upload)?.count > 0 {
        remove_live_bytes(changes, upload_end(changes, upload)?)?;
        add_live_bytes(changes, location)?;
    }
    changes.put(keys::upload_ended(upload), location.encode());
    Ok(())
}

/// The records of an upload on disk.
pub(crate) fn upload_records(index: &impl IndexReader, upload: UploadSeq) -> Result<UploadRecords> {
    let value = index.value(&keys::upload_records(upload))?;
    Ok(value.map(|value| UploadRecords::decode(&value)).transpose()?.unwrap_or_default())
}

/// Removes an upload and its parts. `reused_runs` are the runs that the completed object takes over from the parts; the
/// extents of all other parts are freed.
fn end_upload(changes: &mut IndexChanges<'_>, upload: UploadSeq, reused_runs: &[ExtentRun]) -> Result<()> {
    let Some(value) = changes.get(&keys::upload(upload))? else { return Ok(()) };
    remove_live_bytes(changes, UploadEntry::decode(&value)?.location)?;
    changes.remove(keys::upload(upload));
    let reused: std::collections::HashSet<u64> = reused_runs.iter().map(|run| run.first_id).collect();
    for (key, value) in changes.with_prefix(&keys::parts(upload))? {
        let part = PartEntry::decode(&value)?;
        remove_live_bytes(changes, part.location)?;
        let Record::Part(record) = Record::decode(RecordKind::Part, &part.fields)? else {
            return Err(malformed("a part entry holds another record"));
        };
        if record.runs.iter().any(|run| !reused.contains(&run.first_id)) {
            changes.put(keys::reclaim(part.seq), part.location.encode());
        }
        changes.remove(key);
    }
    // The upload's end record, which hides its remaining records, is applied next and replaces this location.
    changes.put(keys::upload_ended(upload), NO_LOCATION.encode());
    Ok(())
}

fn replace_location(changes: &mut IndexChanges<'_>, key: &[u8], location: RecordLocation) -> Result<()> {
    if let Some(old) = changes.get(key)? {
        remove_live_bytes(changes, RecordLocation::decode(&old)?)?;
    }
    add_live_bytes(changes, location)?;
    changes.put(key, location.encode());
    Ok(())
}

/// Marks a record as referred to.
pub(crate) fn add_live_bytes(changes: &mut IndexChanges<'_>, location: RecordLocation) -> Result<()> {
    update_segment(changes, location, i64::from(location.record_bytes))
}

/// Marks a record as no longer referred to.
pub(crate) fn remove_live_bytes(changes: &mut IndexChanges<'_>, location: RecordLocation) -> Result<()> {
    update_segment(changes, location, -i64::from(location.record_bytes))
}

/// Adds `live_bytes`, which may be negative, to the segment of a record. Does nothing for [`NO_LOCATION`].
fn update_segment(changes: &mut IndexChanges<'_>, location: RecordLocation, live_bytes: i64) -> Result<()> {
    if location.record_bytes == 0 {
        return Ok(());
    }
    let key = keys::segment(location.position.segment);
    let mut entry = match changes.get(&key)? {
        Some(value) => SegmentEntry::decode(&value)?,
        None => SegmentEntry::default(),
    };
    entry.live_bytes += live_bytes;
    if live_bytes >= 0 {
        entry.end = entry.end.max(location.end());
    }
    changes.put(key, entry.encode());
    Ok(())
}
