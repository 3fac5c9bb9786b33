//! The changes, and how each decides on the state that it finds.

use bytes::Bytes;
use tradewind_core::clock::Timestamp;
use tradewind_core::condition::Precondition;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Expected, Generation};
use tradewind_core::store::Deleted;
use tradewind_core::{ETag, VersionId, Versioning};

use super::Change;
use super::batch::Batch;
use crate::local::apply::upload_records;
use crate::local::current_version::find_version;
use crate::local::frame::{RecordHeader, RecordKind};
use crate::local::index::entries::{ObjectEntry, PartEntry, UploadEntry};
use crate::local::index::keys;
use crate::local::record::{
    Bucket, BucketId, Object, ObjectContent, Part, Record, Upload, UploadSeq, VersionName, VersionSlot,
};
use crate::local::segment::SegmentPin;

/// Creates a bucket.
pub(crate) struct CreateBucket {
    pub name: String,
    pub created: Timestamp,
}

impl Change for CreateBucket {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        if batch.bucket(&self.name).is_ok() {
            return Err(Error::new(Reason::BucketExists, format!("bucket {:?} exists already", self.name)));
        }
        batch.create_bucket(Bucket {
            id: 0,
            name: self.name.clone(),
            created: self.created,
            versioning: Versioning::Off,
        })
    }
}

/// Changes the versioning of a bucket.
pub(crate) struct SetVersioning {
    pub name: String,
    pub versioning: Versioning,
}

impl Change for SetVersioning {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        let bucket = batch.bucket(&self.name)?;
        if bucket.versioning == self.versioning {
            return Ok(());
        }
        if self.versioning == Versioning::Off {
            return Err(Error::for_client(
                Reason::InvalidRequest,
                "versioning can only be suspended once it was enabled",
            ));
        }
        batch.rewrite_bucket(Bucket { versioning: self.versioning, ..bucket })
    }
}

/// Removes an empty bucket and aborts its uploads.
pub(crate) struct DeleteBucket {
    pub name: String,
}

impl Change for DeleteBucket {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        let bucket = batch.bucket(&self.name)?;
        let holds = |from: Vec<u8>, to: Vec<u8>| batch.index_changes.any_in_range(&from, &to);
        if holds(keys::object_from(bucket.id, b""), keys::bucket_end(bucket.id))?
            || holds(keys::versions_from(bucket.id, b""), keys::versions_end(bucket.id))?
        {
            return Err(Error::new(
                Reason::BucketNotEmpty,
                format!("bucket {:?} still holds objects", self.name),
            ));
        }
        batch.allow_reserve();
        for (key, value) in batch.index_changes.with_prefix(&[keys::prefix::UPLOAD])? {
            if UploadEntry::decode(&value)?.bucket == bucket.id {
                let seq = batch.next_id();
                batch.append(&Record::UploadEnded { upload: keys::number(&key)? }, seq)?;
            }
        }
        batch.delete_bucket(bucket)
    }
}

/// Writes an object, whose bytes are in the record or in durable extents.
pub(crate) struct PutObject {
    pub bucket: String,
    pub object: Box<Object>,
    /// The bytes if the object is inline.
    pub payload: Vec<Bytes>,
    pub block_crcs: Vec<u64>,
    /// Set if the committer computes the MD5 of the payload.
    pub deferred_md5: Option<DeferredMd5>,
    pub precondition: Precondition,
    /// Keeps the extents from being compacted until the commit is done.
    #[expect(dead_code, reason = "held for its drop")]
    pub pins: Vec<SegmentPin>,
}

/// The use of an MD5 that the committer computes.
pub(crate) struct DeferredMd5 {
    /// True if it becomes the ETag.
    pub is_etag: bool,
    /// The MD5 to verify, if any; the other fields are empty.
    pub expected: Expected,
}

/// The result of [`PutObject`].
pub(crate) struct WrittenObject {
    pub generation: Generation,
    pub etag: ETag,
    pub version: Option<VersionId>,
}

impl Change for PutObject {
    type Output = WrittenObject;

    fn md5_input(&self) -> Option<&[Bytes]> {
        self.deferred_md5.as_ref().map(|_| &self.payload[..])
    }

    fn set_md5(&mut self, md5: [u8; 16]) -> Result<()> {
        let Some(DeferredMd5 { is_etag, expected }) = self.deferred_md5.take() else { return Ok(()) };
        if is_etag {
            self.object.etag = ETag::from_md5(&md5);
        }
        expected.verify(self.object.size, Some(md5), &[])
    }

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<WrittenObject> {
        let bucket = batch.bucket(&self.bucket)?;
        self.object.bucket = bucket.id;
        self.object.is_versioned = bucket.versioning == Versioning::Enabled;
        check_precondition(batch, self.object.bucket, &self.object.key, &self.precondition)?;
        let seq = batch.next_id();
        let etag = self.object.etag.clone();
        let version = bucket.version_id(self.object.slot(seq));
        let record = Record::Object(std::mem::take(&mut self.object));
        batch.append_with_payload(&record, seq, &self.payload, &self.block_crcs)?;
        Ok(WrittenObject { generation: Generation(seq), etag, version })
    }
}

/// Rewrites a version with other metadata and the same bytes.
pub(crate) struct RewriteVersion {
    /// The bucket's name.
    pub bucket: String,
    pub object: Box<Object>,
    /// The seq of the record that is rewritten. If it is no longer the version's newest, the change fails with
    /// [`Conflict`](Reason::Conflict).
    pub seq: u64,
    /// The bytes if the object is inline.
    pub payload: Vec<Bytes>,
    pub block_crcs: Vec<u64>,
}

impl Change for RewriteVersion {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        let bucket = batch.bucket(&self.bucket)?.id;
        let object = &mut self.object;
        let found = find_version(&batch.index_changes, bucket, &object.key, object.slot(self.seq))?.found;
        if object.bucket != bucket || found.is_none_or(|found| found.entry.seq != self.seq) {
            return Err(Error::new(
                Reason::Conflict,
                format!("key {:?} was changed concurrently", object.key),
            ));
        }
        object.creation_seq = Some(object.creation(self.seq));
        object.rewritten_seq = Some(self.seq);
        object.upload = None;
        if let ObjectContent::Extents { new_extents, .. } = &mut object.content {
            new_extents.clear();
        }
        let seq = batch.next_id();
        let record = Record::Object(std::mem::take(&mut self.object));
        batch.append_with_payload(&record, seq, &self.payload, &self.block_crcs)
    }
}

/// Deletes an object, or one of its versions.
pub(crate) struct DeleteObject {
    pub bucket: String,
    pub key: String,
    /// The version to remove. `None` deletes the object: it removes the `null` version or adds a delete marker,
    /// depending on the bucket's versioning.
    pub version: Option<VersionId>,
    pub precondition: Precondition,
    /// The time of a delete marker.
    pub deleted: Timestamp,
}

impl Change for DeleteObject {
    type Output = Deleted;

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<Deleted> {
        let bucket = batch.bucket(&self.bucket)?;
        check_precondition(batch, bucket.id, &self.key, &self.precondition)?;
        if let Some(version) = &self.version {
            version.check_numbered()?;
            let removed = match VersionSlot::from_id(version) {
                Some(slot) => self.remove(batch, bucket.id, slot)?,
                None => None,
            };
            return Ok(Deleted {
                existed: removed.is_some(),
                version: Some(version.clone()),
                is_delete_marker: removed.is_some_and(|entry| entry.is_delete_marker),
            });
        }
        if bucket.versioning == Versioning::Off {
            let existed = self.remove(batch, bucket.id, VersionSlot::Null)?.is_some();
            return Ok(Deleted { existed, ..Deleted::default() });
        }
        let existed = batch.index_changes.get(&keys::object(bucket.id, &self.key))?.is_some();
        let marker = Object {
            bucket: bucket.id,
            key: self.key.clone(),
            modified: self.deleted,
            is_versioned: bucket.versioning == Versioning::Enabled,
            is_delete_marker: true,
            ..Object::default()
        };
        let seq = batch.next_id();
        let version = bucket.version_id(marker.slot(seq));
        batch.append(&Record::Object(Box::new(marker)), seq)?;
        Ok(Deleted { existed, version, is_delete_marker: true })
    }
}

impl DeleteObject {
    /// Removes a version. Returns its entry; `None` if it does not exist.
    fn remove(
        &self,
        batch: &mut Batch<'_>,
        bucket: BucketId,
        slot: VersionSlot,
    ) -> Result<Option<ObjectEntry>> {
        let Some(found) = find_version(&batch.index_changes, bucket, &self.key, slot)?.found else {
            return Ok(None);
        };
        // Unlike a delete marker, this frees space in the end.
        batch.allow_reserve();
        let seq = batch.next_id();
        batch.append(&Record::Tombstone(VersionName { bucket, key: self.key.clone(), slot }), seq)?;
        Ok(Some(found.entry))
    }
}

/// Creates an upload.
pub(crate) struct CreateUpload {
    pub bucket: String,
    pub upload: Box<Upload>,
}

impl Change for CreateUpload {
    type Output = UploadSeq;

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<UploadSeq> {
        self.upload.bucket = batch.bucket(&self.bucket)?.id;
        let seq = batch.next_id();
        batch.append(&Record::UploadCreated(self.upload.clone()), seq)?;
        Ok(seq)
    }
}

/// Writes a part, whose bytes are in durable extents.
pub(crate) struct PutPart {
    pub bucket: String,
    pub key: String,
    pub part: Box<Part>,
    #[expect(dead_code, reason = "held for its drop")]
    pub pins: Vec<SegmentPin>,
}

impl Change for PutPart {
    type Output = Generation;

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<Generation> {
        find_upload(batch, &self.bucket, &self.key, self.part.upload)?;
        let seq = batch.next_id();
        batch.append(&Record::Part(self.part.clone()), seq)?;
        Ok(Generation(seq))
    }
}

/// Rewrites the record of a part, whose bytes stay in their extents.
pub(crate) struct RewritePart {
    pub bucket: String,
    pub key: String,
    pub part: Box<Part>,
    /// The seq of the record that is rewritten. If it is no longer the part's newest, the change fails with
    /// [`Conflict`](Reason::Conflict).
    pub seq: u64,
}

impl Change for RewritePart {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        let part = &mut self.part;
        find_upload(batch, &self.bucket, &self.key, part.upload)?;
        let entry = batch.index_changes.get(&keys::part(part.upload, part.number))?;
        let entry = entry.map(|value| PartEntry::decode(&value)).transpose()?;
        if entry.is_none_or(|entry| entry.seq != self.seq) {
            let message = format!("part {} of {:?} was replaced concurrently", part.number, self.key);
            return Err(Error::new(Reason::Conflict, message));
        }
        part.rewritten_seq = Some(self.seq);
        part.new_extents.clear();
        let seq = batch.next_id();
        batch.append(&Record::Part(part.clone()), seq)
    }
}

/// Makes the object of an upload visible. The object was assembled when `newest_part_seq` was the seq of the latest part.
/// If a part arrived since, the object may contain a replaced part and must be assembled again.
pub(crate) struct CompleteUpload {
    pub put: PutObject,
    pub upload: UploadSeq,
    pub newest_part_seq: u64,
}

impl Change for CompleteUpload {
    /// `None` if the object must be assembled again.
    type Output = Option<WrittenObject>;

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<Option<WrittenObject>> {
        find_upload(batch, &self.put.bucket, &self.put.object.key, self.upload)?;
        if upload_records(&batch.index_changes, self.upload)?.newest_part_seq != self.newest_part_seq {
            return Ok(None);
        }
        let written = self.put.decide(batch)?;
        batch.allow_reserve();
        let seq = batch.next_id();
        batch.append(&Record::UploadEnded { upload: self.upload }, seq)?;
        Ok(Some(written))
    }
}

/// Aborts an upload.
pub(crate) struct AbortUpload {
    pub bucket: String,
    pub key: String,
    pub upload: UploadSeq,
}

impl Change for AbortUpload {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        find_upload(batch, &self.bucket, &self.key, self.upload)?;
        batch.allow_reserve();
        let seq = batch.next_id();
        batch.append(&Record::UploadEnded { upload: self.upload }, seq)
    }
}

/// Writes copies of log records that compaction moves, with one sync for all. The copy of a record that was
/// superseded concurrently is only garbage.
pub(crate) struct RelocateRecords(pub Vec<RecordCopy>);

/// A log record, read and verified.
pub(crate) struct RecordCopy {
    pub header: RecordHeader,
    pub fields: Vec<u8>,
    pub payload: Bytes,
    pub block_crcs: Vec<u64>,
}

impl Change for RelocateRecords {
    type Output = ();

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        batch.allow_reserve();
        for copy in &self.0 {
            debug_assert!(copy.header.kind != RecordKind::Extent, "extents are moved within bulk segments");
            let record = Record::decode(copy.header.kind, &copy.fields)?;
            // The original fields, including those of later versions that this program does not know.
            batch.append_copy(&record, &copy.fields, copy.header.seq, &copy.payload, &copy.block_crcs)?;
        }
        Ok(())
    }
}

/// A change by upkeep, recovery or a test, given as a closure.
pub(crate) struct MaintenanceChange<F>(pub F);

impl<F, T> Change for MaintenanceChange<F>
where
    F: FnMut(&mut Batch<'_>) -> Result<T> + Send + 'static,
    T: Send + 'static,
{
    type Output = T;

    fn decide(&mut self, batch: &mut Batch<'_>) -> Result<T> {
        batch.allow_reserve();
        (self.0)(batch)
    }
}

/// Evaluates a precondition on the current state of the batch.
fn check_precondition(
    batch: &Batch<'_>,
    bucket: BucketId,
    key: &str,
    precondition: &Precondition,
) -> Result<()> {
    if *precondition == Precondition::None {
        return Ok(());
    }
    let entry = match batch.index_changes.get(&keys::object(bucket, key))? {
        Some(value) => Some(ObjectEntry::decode(&value)?),
        None => None,
    };
    precondition.check(key, entry.as_ref().map(|e| (&e.etag, Generation(e.seq))))
}

fn find_upload(batch: &Batch<'_>, bucket: &str, key: &str, upload: UploadSeq) -> Result<UploadEntry> {
    let bucket = batch.bucket(bucket)?.id;
    let entry = batch
        .index_changes
        .get(&keys::upload(upload))?
        .map(|value| UploadEntry::decode(&value))
        .transpose()?;
    entry
        .filter(|entry| entry.bucket == bucket && entry.key == key)
        .ok_or_else(|| Error::no_such_upload(&crate::local::uploads::format_id(upload)))
}
