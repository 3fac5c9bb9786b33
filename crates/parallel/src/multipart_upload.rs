//! A multipart upload whose parts share the permit pool with other requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartInfo, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{
    Address, Algorithm, ChecksumScope, Context, Metadata, ObjectStore, Precondition, Staged,
};

use tradewind_model::plan::split_evenly;

use super::buffer_pool::BUFFER_BYTES;
use super::part_tracker::PartProgress;
use super::sent_bytes::write_and_commit_tracked;
use super::transfer_context::TransferContext;
use super::upload_checkpoint::{CheckpointedPart, StoredPart, UploadState};
use super::upload_source::UploadSource;

/// A multipart upload in progress. Dropping it before its end aborts it, unless [`detach`](Self::detach) was called.
pub(crate) struct MultipartUpload {
    transfers: Arc<TransferContext>,
    store: Arc<dyn ObjectStore>,
    address: Address,
    id: UploadId,
    is_detached: AtomicBool,
}

impl Drop for MultipartUpload {
    fn drop(&mut self) {
        if *self.is_detached.get_mut() {
            return;
        }
        // Without a runtime the process is exiting.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let dropped = Self {
            transfers: self.transfers.clone(),
            store: self.store.clone(),
            address: self.address.clone(),
            id: self.id.clone(),
            is_detached: AtomicBool::new(true),
        };
        runtime.spawn(async move { dropped.abort().await });
    }
}

/// S3 lists at most 1,000 parts per page.
const MAX_PARTS_PER_PAGE: usize = 1000;

/// Returns the part if the source still has the same bytes, by its CRC-64/NVME or else its MD5; `None` if it has
/// neither.
fn matching_part(source: &dyn UploadSource, offset: u64, part: PartInfo) -> Result<Option<StoredPart>> {
    let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
    let stored_crc = part.checksums.iter().find(|checksum| checksum.algorithm() == Algorithm::Crc64Nvme);
    let mut md5 = part.etag.md5().filter(|_| stored_crc.is_none()).map(|expected| (Md5::new(), expected));
    if stored_crc.is_none() && md5.is_none() {
        return Ok(None);
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    for (at, length) in split_evenly(part.size, BUFFER_BYTES as u64) {
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
        source.read_at(offset + at, piece)?;
        hasher.update(piece);
        if let Some((md5, _)) = &mut md5 {
            md5.update(piece);
        }
    }
    let checksum = hasher.finish();
    let is_same = match (stored_crc, md5) {
        (Some(stored_crc), _) => *stored_crc == checksum,
        (None, Some((md5, expected))) => <[u8; 16]>::from(md5.finalize()) == expected,
        (None, None) => false,
    };
    let complete_part = CompletePart { number: part.number, etag: part.etag, checksum: Some(checksum) };
    Ok(is_same.then_some((complete_part, part.size)))
}

impl MultipartUpload {
    /// Creates an upload with a full-object checksum of this algorithm, which must be a CRC. The leaf retries it.
    pub async fn create(
        transfers: &Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        (metadata, algorithm): (Metadata, Algorithm),
    ) -> Result<Self> {
        let checksum = Some((algorithm, ChecksumScope::FullObject));
        let permits = transfers.acquire_request_permits(0).await?;
        let id = store.create_upload(&permits.context, address, CreateUpload { metadata, checksum }).await?;
        let (store, address) = (store.clone(), address.clone());
        Ok(Self { transfers: transfers.clone(), store, address, id, is_detached: AtomicBool::new(false) })
    }

    /// Refers to an existing upload, which is not aborted on drop.
    pub fn from_id(
        transfers: &Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        id: UploadId,
    ) -> Self {
        let (store, address) = (store.clone(), address.clone());
        Self { transfers: transfers.clone(), store, address, id, is_detached: AtomicBool::new(true) }
    }

    /// Resumes a checkpointed upload. Returns it with those checkpointed parts that the store still has; `None` if it
    /// cannot be resumed, in which case it is aborted.
    pub async fn resume(
        transfers: &Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        state: &UploadState,
    ) -> Result<Option<(Self, Vec<CheckpointedPart>)>> {
        let upload = Self::from_id(transfers, store, address, state.upload.clone());
        let listed = match upload.list_parts().await {
            Ok(Some(listed)) => listed,
            Ok(None) => return Ok(None),
            Err(e) if e.is_inconclusive() => return Err(e),
            Err(e) => {
                tracing::debug!(error = %e, "an upload cannot be resumed");
                upload.abort().await;
                return Ok(None);
            }
        };
        // If a part was stored repeatedly, the last one is valid.
        let saved = |listed: &PartInfo| state.parts.iter().rfind(|part| part.number == listed.number);
        let parts = listed.iter().filter_map(|part| saved(part).filter(|saved| saved.matches_listed(part)));
        let parts = parts.cloned().collect();
        Ok(Some((upload, parts)))
    }

    /// Leaves the upload in the store on drop, because it can be resumed.
    pub fn detach(&self) {
        self.is_detached.store(true, Ordering::Relaxed);
    }

    /// The stored parts whose bytes match the source; `None` if the upload no longer exists.
    pub async fn matching_parts(
        &self,
        source: &Arc<dyn UploadSource>,
        (size, part_bytes): (u64, u64),
    ) -> Result<Option<Vec<StoredPart>>> {
        let Some(parts) = self.list_parts().await? else { return Ok(None) };
        let mut same = Vec::new();
        for part in parts {
            let offset = u64::from(part.number.get() - 1) * part_bytes;
            if part.size == part_bytes.min(size.saturating_sub(offset)) {
                let source = source.clone();
                let compared = tokio::task::spawn_blocking(move || matching_part(&*source, offset, part));
                let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
                same.extend(compared.await.map_err(lost)??);
            }
        }
        Ok(Some(same))
    }

    /// All stored parts; `None` if the upload no longer exists.
    pub async fn list_parts(&self) -> Result<Option<Vec<PartInfo>>> {
        let (mut parts, mut after) = (Vec::new(), None);
        loop {
            let transfers = &self.transfers;
            let listed = transfers.retry(|| async move {
                let permits = transfers.acquire_request_permits(0).await?;
                self.store
                    .list_parts(&permits.context, &self.address, &self.id, after, MAX_PARTS_PER_PAGE)
                    .await
            });
            let page = match listed.await {
                Err(e) if e.reason() == Reason::NoSuchUpload => return Ok(None),
                page => page?,
            };
            parts.extend(page.parts);
            after = page.next;
            if after.is_none() {
                return Ok(Some(parts));
            }
        }
    }

    /// Aborts the upload. Returns false if that failed and it remains in the store.
    pub async fn abort(&self) -> bool {
        self.is_detached.store(true, Ordering::Relaxed);
        let aborted = async {
            let permits = self.transfers.acquire_request_permits(0).await?;
            self.store.abort_upload(&permits.context, &self.address, &self.id).await
        };
        match aborted.await {
            Err(e) if e.reason() != Reason::NoSuchUpload => {
                tracing::warn!(error = %e, upload = %self.id, "cannot abort an upload; it remains in the store");
                false
            }
            _ => true,
        }
    }

    /// Stores a part, with retries. A part that `progress` declares a straggler is aborted and sent again.
    pub async fn store_part(
        &self,
        source: &dyn UploadSource,
        number: PartNumber,
        span: (u64, u64),
        progress: Option<&PartProgress>,
    ) -> Result<StoredPart> {
        let algorithms = vec![Algorithm::Crc64Nvme];
        let request = StageRequest { size: Some(span.1), algorithms, ..StageRequest::default() };
        let request = &request;
        let transfers = &self.transfers;
        loop {
            let attempt = transfers.retry(|| async move {
                let mut permits = transfers.acquire_request_permits(span.1).await?;
                let checksum = transfers.checksum_in_advance(source, span)?;
                if let Some(progress) = progress {
                    progress.start_attempt(transfers.clock().now());
                }
                let request = StageRequest { checksum, ..request.clone() };
                let attempt = async {
                    let staged = self.stage_part(&permits.context, number, request).await?;
                    write_and_commit_tracked(transfers, &mut permits, staged, source, span, progress).await
                };
                let attempt = attempt.await;
                if let (Err(_), Some(progress)) = (&attempt, progress) {
                    progress.end_attempt();
                }
                attempt
            });
            if let Some(committed) = attempt.await? {
                return Ok(Self::stored_part(number, &committed));
            }
        }
    }

    /// Starts to write a part.
    pub async fn stage_part(
        &self,
        context: &Context,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.store.stage_part(context, &self.address, &self.id, number, request).await
    }

    /// A committed part as listed in the completion, and its length.
    pub fn stored_part(number: PartNumber, part: &Committed) -> StoredPart {
        let checksum = part.checksums.first().copied();
        (CompletePart { number, etag: part.etag.clone(), checksum }, part.size)
    }

    /// The upload id.
    pub const fn id(&self) -> &UploadId {
        &self.id
    }

    /// Completes the object from its parts, given in any order. The leaf retries it and resolves a lost response.
    pub async fn complete(&self, mut done: Vec<StoredPart>, precondition: Precondition) -> Result<Committed> {
        done.sort_by_key(|(part, _)| part.number);
        let mut checksums = done.iter().map(|(part, length)| (part.checksum, *length));
        let combined = checksums.next().and_then(|(first, _)| {
            checksums.try_fold(first?, |combined, (next, length)| combined.combine(&next?, length))
        });
        let completion = CompleteUpload {
            expected_size: Some(done.iter().map(|(_, length)| length).sum()),
            parts: done.into_iter().map(|(part, _)| part).collect(),
            precondition,
            expected_checksum: combined,
            identity: None,
        };
        let permits = self.transfers.acquire_request_permits(0).await?;
        let completed =
            self.store.complete_upload(&permits.context, &self.address, &self.id, completion).await?;
        self.is_detached.store(true, Ordering::Relaxed);
        Ok(completed)
    }
}
