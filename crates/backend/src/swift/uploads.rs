//! Multipart uploads. An upload is a marker in the companion; its parts are records and segments next to it. Any
//! process can continue an upload, since all its state is in the store.
//!
//! Within a process, completing and aborting an upload excludes everything else on it. Between processes, the removal
//! of the marker decides: a completion succeeds only if it removed the marker, and an abort keeps the segments if the
//! key refers to the upload already. If one process aborts while another completes, the completion fails and may leave
//! an unreadable object.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::Method;
use http::header::CONTENT_TYPE;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{
    self, CompleteUpload, CreateUpload, ListUploads, PartInfo, UploadId, UploadInfo, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::{Address, Algorithm, BucketName, Checksum, ChecksumScope, Context, ETag};

use super::part_records::PartRecord;
use super::replace::ObjectContent;
use super::stored_metadata::StoredMetadata;
use super::upload_marker::UploadMarker;
use super::{SwiftStore, names, reject_condition};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields::{generation, header_value};
use crate::remote::payload::BufferedBody;

/// Number of locks above which unused ones are dropped.
const MAX_UNUSED_LOCKS: usize = 1024;
/// Maximum number of parts of an upload that are committed concurrently.
const SHARED_PERMITS: u32 = 1024;

/// Locks of the uploads in this process: shared for committing a part, exclusive for ending an upload.
#[derive(Default)]
pub(super) struct UploadLocks {
    uploads: Mutex<HashMap<UploadId, Arc<Semaphore>>>,
}

impl UploadLocks {
    /// Takes a shared lock.
    pub async fn lock_shared(&self, context: &Context, upload: &UploadId) -> Result<OwnedSemaphorePermit> {
        self.lock(context, upload, 1).await
    }

    /// Takes the exclusive lock.
    async fn lock_exclusive(&self, context: &Context, upload: &UploadId) -> Result<OwnedSemaphorePermit> {
        self.lock(context, upload, SHARED_PERMITS).await
    }

    async fn lock(&self, context: &Context, upload: &UploadId, count: u32) -> Result<OwnedSemaphorePermit> {
        let permits = {
            let mut uploads = self.uploads.lock();
            if uploads.len() > MAX_UNUSED_LOCKS {
                uploads.retain(|_, permits| Arc::strong_count(permits) > 1);
            }
            let new = || Arc::new(Semaphore::new(SHARED_PERMITS as usize));
            uploads.entry(upload.clone()).or_insert_with(new).clone()
        };
        let taken = context.guard(permits.acquire_many_owned(count)).await?;
        taken.map_err(|e| Error::with_source(Reason::Defect, "upload locks are never closed", e))
    }
}

fn no_such_upload(id: &UploadId) -> Error {
    Error::new(Reason::NoSuchUpload, format!("there is no upload {id:?} of this key"))
}

impl SwiftStore {
    /// Creates an upload by writing its marker.
    pub(super) async fn start_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        context.check()?;
        request.check()?;
        names::object(address.key.as_str())?;
        let CreateUpload { metadata, checksum } = request;
        let marker = UploadMarker { key: address.key.to_string(), metadata, checksum };
        self.find_bucket(context, &address.bucket).await?;
        let companion = self.ensure_companion(context, &address.bucket).await?;
        let id = UploadId(names::unique_id(self.clock().wall())?);
        let name = names::marker_name(&id.0);
        let mut call = Call::in_container(Method::PUT, ResourceKind::Bucket, &companion, Some(&name));
        call.headers.insert(CONTENT_TYPE, header_value(&marker.content_type())?);
        call.payload = BufferedBody::from_buffers([marker.document()]);
        let put = self.send_and_drain(context, &call).await;
        put.inspect_err(|_| self.uncache_companion(&address.bucket))?;
        Ok(id)
    }

    /// Reads the marker of an upload of this key. Fails with [`NoSuchBucket`](Reason::NoSuchBucket) if the bucket does
    /// not exist.
    pub(super) async fn find_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<UploadMarker> {
        let found = self.read_marker(context, address, upload).await;
        if found.as_ref().is_err_and(|error| error.reason() == Reason::NoSuchUpload) {
            self.find_bucket(context, &address.bucket).await?;
        }
        found
    }

    async fn read_marker(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<UploadMarker> {
        context.check()?;
        if !names::is_unique_id(&upload.0) {
            return Err(no_such_upload(upload));
        }
        let document =
            self.read_companion_object(context, address, &names::marker_name(&upload.0), false).await?;
        let marker = UploadMarker::parse(&document).ok_or_else(|| {
            Error::new(Reason::CorruptData, format!("the marker of upload {upload:?} is corrupt"))
        })?;
        if marker.key != address.key.as_str() {
            return Err(no_such_upload(upload));
        }
        Ok(marker)
    }

    /// Lists one page of uploads. Reads all uploads of the bucket, because their names sort by time, not by key.
    pub(super) async fn uploads_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.find_bucket(context, bucket).await?;
        if request.limit == 0 {
            return Ok(UploadsPage { entries: Vec::new(), next: None });
        }
        let lines = match self.list_objects(context, &names::companion(bucket), "u/").await {
            Err(e) if e.reason() == Reason::NoSuchBucket => Vec::new(),
            lines => lines?,
        };
        let mut uploads: Vec<UploadInfo> = lines.iter().filter_map(UploadMarker::from_listing).collect();
        uploads.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
        let position = |id: &UploadId| names::is_unique_id(&id.0).then(|| id.0.clone());
        multipart::page_uploads(uploads, request, position)
    }

    /// Completes an upload. It continues in the background if the caller is cancelled, so that it is not left half
    /// done.
    pub(super) async fn complete_in_background(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: CompleteUpload,
    ) -> Result<Committed> {
        context.check()?;
        reject_condition(&completion.precondition)?;
        let (store, context, address, upload) =
            (self.this(), context.clone(), address.clone(), upload.clone());
        let ending =
            tokio::spawn(async move { store.complete(&context, &address, &upload, completion).await });
        ending
            .await
            .map_err(|e| Error::with_source(Reason::Defect, "a completion ended without a result", e))?
    }

    async fn complete(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: CompleteUpload,
    ) -> Result<Committed> {
        let _guard = self.upload_locks.lock_exclusive(context, upload).await?;
        let marker = self.find_upload(context, address, upload).await?;
        let mut records: HashMap<_, _> = HashMap::new();
        for (record, modified) in self.all_records(context, address, upload).await? {
            records.insert(record.number, (record.info(modified), record));
        }
        let matched = multipart::match_parts(&completion.parts, |number| records.get(&number).cloned())?;
        let (parts, records): (Vec<PartInfo>, Vec<PartRecord>) = matched.into_iter().unzip();
        let size = parts.iter().map(|part| part.size).sum();
        let (checksum, scope) = completed_checksum(&marker, &completion, &parts, size)?;
        let etag = multipart_etag(&parts);
        let segments: Vec<_> = records.into_iter().filter_map(PartRecord::into_segment).collect();
        let chosen: HashSet<String> = segments.iter().map(|segment| segment.name.clone()).collect();
        let stored = StoredMetadata {
            metadata: marker.metadata,
            etag: Some(etag.clone()),
            checksums: vec![checksum],
            scope: Some(scope),
            parts: u32::try_from(parts.len()).ok(),
            id: Some(upload.0.clone()),
        };
        // Swift allows neither empty segments nor empty manifests.
        let content = if segments.is_empty() {
            ObjectContent::Bytes(Vec::new())
        } else {
            ObjectContent::Segments(segments)
        };
        let head = self.replace_object(context, address, stored, content).await?;
        self.remove_marker(context, address, upload).await?;
        self.delete_parts(context, address, upload, Some(&chosen)).await;
        let modified = self.modification_time(&head.headers)?;
        let generation = generation(modified, etag.as_str());
        Ok(Committed {
            etag,
            size,
            modified,
            generation,
            checksums: vec![checksum],
            scope,
            version: None,
            source_version: None,
        })
    }

    /// Aborts an upload: removes the marker, so that it cannot be completed any more, then the parts.
    pub(super) async fn abort(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        context.check()?;
        let _guard = self.upload_locks.lock_exclusive(context, upload).await?;
        self.find_upload(context, address, upload).await?;
        self.remove_marker(context, address, upload).await?;
        if self.current_id(context, address).await?.as_ref() == Some(&upload.0) {
            // It was completed, and only the marker remained.
            return Err(no_such_upload(upload));
        }
        self.delete_parts(context, address, upload, None).await;
        Ok(())
    }

    async fn remove_marker(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        let (companion, name) = (names::companion(&address.bucket), names::marker_name(&upload.0));
        let call = Call::in_container(Method::DELETE, ResourceKind::Upload, &companion, Some(&name));
        self.send_and_drain(context, &call).await.map(drop)
    }

    /// Deletes the records and, except the `chosen` ones, the segments of the parts. The upload has ended already, so a
    /// failure is only logged: it leaves orphaned objects.
    async fn delete_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        chosen: Option<&HashSet<String>>,
    ) {
        let companion = names::companion(&address.bucket);
        let dropped = async {
            let mut lines = self.list_objects(context, &companion, &names::record_prefix(&upload.0)).await?;
            let data = names::segment_prefix(&upload.0);
            // The object also needs its metadata and second-level manifests, whose names have no part number.
            let is_needed = |name: &str| {
                chosen.is_some_and(|chosen| {
                    chosen.contains(name) || super::part_records::part_number(name).is_none()
                })
            };
            lines.extend(self.list_objects(context, &companion, &data).await?);
            let all = lines
                .into_iter()
                .map(|line| line.name)
                .filter(|name| !(name.starts_with(&data) && is_needed(name)));
            self.delete_all(context, &companion, all).await
        };
        if let Err(e) = dropped.await {
            tracing::warn!(error = %e, upload = %upload, "cannot delete the parts of an ended upload");
        }
    }
}

/// The checksum of the whole object. Fails if it or the size differs from what the request expects.
fn completed_checksum(
    marker: &UploadMarker,
    completion: &CompleteUpload,
    parts: &[PartInfo],
    size: u64,
) -> Result<(Checksum, ChecksumScope)> {
    let (algorithm, scope) = marker.checksum.unwrap_or((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
    let checksum = multipart::checksum_of_parts(algorithm, scope, parts)
        .ok_or_else(|| Error::new(Reason::Defect, "a part lacks the checksum of its upload"))?;
    if completion.expected_size.is_some_and(|expected| expected != size) {
        return Err(Error::new(Reason::InvalidRequest, format!("the parts have {size} bytes in total")));
    }
    match completion.expected_checksum {
        Some(expected) if expected.algorithm() != algorithm => {
            Err(Error::new(Reason::InvalidRequest, "the upload has another checksum algorithm"))
        }
        Some(expected) if expected != checksum => {
            Err(Error::new(Reason::BadDigest, "the object's checksum is not the one expected"))
        }
        _ => Ok((checksum, scope)),
    }
}

fn multipart_etag(parts: &[PartInfo]) -> ETag {
    let mut md5 = Md5::new();
    parts.iter().filter_map(|part| part.etag.md5()).for_each(|part| md5.update(part));
    ETag::from_parts(&md5.finalize().into(), parts.len())
}
