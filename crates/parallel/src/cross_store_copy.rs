//! Copies an object from one store to another. Each read is relayed directly into a write, so only bytes in flight are
//! held in memory. A large object is copied in parts: each is a ranged read of the version found first, and is retried
//! on its own. A copy with a checkpoint resumes after an interruption.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use tokio::task::JoinSet;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, GetRequest, StageRequest};
use tradewind_core::{
    Address, Algorithm, Body, Checksum, ChecksumScope, Metadata, ObjectInfo, ObjectStore, Precondition,
    ReadConditions, Span, Staged, SystemHeaders, Tags,
};
use tradewind_model::plan::split_evenly;
use tradewind_model::retry::Attempts;

use super::multipart_upload::MultipartUpload;
use super::origin::{Origin, check_span};
use super::sent_bytes::SentBytes;
use super::transfer_context::{RequestPermits, TransferContext};
use super::upload_checkpoint::{
    CheckpointedPart, FinishedCopy, SourceVersion, StoredPart, UploadCheckpoint, UploadState,
};

/// Called with the change in bytes sent; negative when a failed attempt is rolled back. It must not block.
pub type OnProgress = Arc<dyn Fn(i64) + Send + Sync>;

/// A store and an address in it.
pub type StoreLocation<'a> = (&'a Arc<dyn ObjectStore>, &'a Address);

/// Copies an object to another store, with its metadata except the storage class, whose names are specific to each
/// service. `size` is the object's size according to a listing, if known. The copy is of a single version and is
/// verified against the source's full-object checksum, if there is one. The destination stores a checksum of the same
/// algorithm if it can.
///
/// # Errors
///
/// [`Conflict`](Reason::Conflict) if the source changed during the copy; the destination is then unchanged.
pub async fn copy_between_stores(
    transfers: &Arc<TransferContext>,
    from: StoreLocation<'_>,
    to: StoreLocation<'_>,
    size: Option<u64>,
    on_progress: OnProgress,
    checkpoint: Option<Arc<dyn UploadCheckpoint>>,
) -> Result<FinishedCopy> {
    let copy = Arc::new(CrossStoreCopy {
        transfers: transfers.clone(),
        origin: Origin { store: from.0.clone(), address: from.1.clone() },
        to: to.0.clone(),
        address: to.1.clone(),
        changes: RelayChanges::default(),
        on_progress,
        checkpoint,
    });
    copy.copy(size).await
}

/// Copies an object within a store like [`ObjectStore::copy`], but through this process. `size` is the object's size.
pub(crate) async fn relay_within_store(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    request: &CopyRequest,
    size: u64,
) -> Result<FinishedCopy> {
    let copy = Arc::new(CrossStoreCopy {
        transfers: transfers.clone(),
        origin: Origin { store: store.clone(), address: request.source.clone() },
        to: store.clone(),
        address: request.destination.clone(),
        changes: RelayChanges {
            source_conditions: request.source_conditions.clone(),
            metadata: request.metadata.clone(),
            tags: request.tags.clone(),
            precondition: request.precondition.clone(),
            is_within_store: true,
        },
        on_progress: Arc::new(|_| ()),
        checkpoint: None,
    });
    copy.copy(Some(size)).await
}

/// The differences between an object and its copy, and the conditions of the copy.
#[derive(Debug, Default)]
struct RelayChanges {
    source_conditions: ReadConditions,
    /// New metadata; `None` copies the metadata.
    metadata: Option<Metadata>,
    /// New tags; `None` copies the tags.
    tags: Option<Tags>,
    precondition: Precondition,
    /// The copy is within one store, as by [`ObjectStore::copy`].
    is_within_store: bool,
}

impl RelayChanges {
    /// The metadata of the copy of an object with `metadata`.
    fn apply(&self, metadata: Metadata) -> Metadata {
        let tags = self.tags.clone().unwrap_or_else(|| metadata.tags.clone());
        match &self.metadata {
            Some(new) => Metadata { tags, ..new.clone() },
            None if self.is_within_store => Metadata { tags, ..metadata.for_copy() },
            None => copy_metadata(metadata),
        }
    }
}
/// A copy between two stores.
struct CrossStoreCopy {
    transfers: Arc<TransferContext>,
    origin: Origin,
    to: Arc<dyn ObjectStore>,
    address: Address,
    changes: RelayChanges,
    on_progress: OnProgress,
    checkpoint: Option<Arc<dyn UploadCheckpoint>>,
}

/// A part stored at the destination, and the checksum of the relayed bytes.
type RelayedPart = (StoredPart, Checksum);

impl CrossStoreCopy {
    async fn copy(self: Arc<Self>, size: Option<u64>) -> Result<FinishedCopy> {
        let mut known_size = size.filter(|size| self.part_bytes(*size).is_none());
        loop {
            let size = match known_size {
                Some(size) => size,
                None => {
                    let info = self.head().await?;
                    if let Some(part_bytes) = self.part_bytes(info.size) {
                        let source = SourceVersion::from_info(&info);
                        let committed = self.clone().copy_in_parts(info, part_bytes).await?;
                        return Ok(FinishedCopy { committed, source });
                    }
                    info.size
                }
            };
            match self.copy_whole(size).await? {
                Some(copied) => {
                    self.discard_checkpoint().await;
                    return Ok(copied);
                }
                None => known_size = None,
            }
        }
    }

    fn part_bytes(&self, size: u64) -> Option<u64> {
        self.transfers.plan().part_bytes(size).filter(|_| self.to.capabilities().multipart)
    }

    /// A request for the whole source, under the conditions of the copy.
    fn request(&self) -> GetRequest {
        GetRequest { conditions: self.changes.source_conditions.clone(), ..GetRequest::default() }
    }

    async fn head(&self) -> Result<ObjectInfo> {
        let head = || async move {
            let permits = self.transfers.acquire_request_permits(0).await?;
            let Origin { store, address } = &self.origin;
            Ok(store.head(&permits.context, address, self.request()).await?.info)
        };
        self.transfers.retry(head).await
    }

    /// Copies an object of up to `size` bytes in one request; `None` if it has become larger.
    async fn copy_whole(&self, size: u64) -> Result<Option<FinishedCopy>> {
        self.transfers.retry(|| self.copy_whole_once(size)).await
    }

    async fn copy_whole_once(&self, size: u64) -> Result<Option<FinishedCopy>> {
        let mut permits = self.transfers.acquire_relay_permits(size).await?;
        let Origin { store, address } = &self.origin;
        let found = store.get(&permits.context, address, self.request()).await?;
        let info = found.info;
        if info.size > size {
            return Ok(None);
        }
        check_span(found.span, Span::whole(info.size))?;
        let expected = full_object_checksum(&info);
        if info.size < size && expected.is_none() {
            // The object was replaced, or the response is truncated. Release the connection before waiting for another
            // response.
            drop((found.body, permits));
            let actual_size = self.head().await?.size;
            if actual_size != info.size {
                let why =
                    format!("the source returned {} bytes of an object of {actual_size} bytes", info.size);
                return Err(Error::new(Reason::Io, why));
            }
            return Box::pin(self.copy_whole_once(actual_size)).await;
        }
        let algorithm = expected.map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm());
        let source = SourceVersion::from_info(&info);
        let request = StageRequest {
            metadata: self.changes.apply(info.metadata),
            size: Some(info.size),
            algorithms: vec![algorithm],
            checksum: expected,
            precondition: self.changes.precondition.clone(),
            ..StageRequest::default()
        };
        let staged = self.to.stage(&permits.context, &self.address, request).await?;
        let (committed, _) =
            self.relay(&mut permits, (found.body, info.size), staged, (algorithm, expected)).await?;
        Ok(Some(FinishedCopy { committed, source }))
    }

    async fn copy_in_parts(self: Arc<Self>, info: ObjectInfo, part_bytes: u64) -> Result<Committed> {
        let algorithm = part_algorithm(&info);
        let (upload, part_bytes, done, is_checkpointed) = match self.resume(&info, algorithm).await? {
            Some((upload, part_bytes, done)) => (upload, part_bytes, done, true),
            None => {
                let metadata = self.changes.apply(info.metadata.clone());
                let upload =
                    MultipartUpload::create(&self.transfers, &self.to, &self.address, (metadata, algorithm))
                        .await?;
                let state = || UploadState {
                    version: Some(SourceVersion::from_info(&info)),
                    upload: upload.id().clone(),
                    part_bytes,
                    parts: Vec::new(),
                };
                let is_checkpointed =
                    self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.start(&state()));
                if is_checkpointed {
                    upload.detach();
                }
                (upload, part_bytes, Vec::new(), is_checkpointed)
            }
        };
        let upload = Arc::new(upload);
        let mut parts = JoinSet::new();
        let work = (&mut parts, done);
        let copied = self.clone().copy_parts(&upload, work, Arc::new(info), (part_bytes, algorithm)).await;
        if let Err(e) = &copied {
            // A part that arrived after the abort would remain in the store.
            parts.shutdown().await;
            if is_checkpointed && e.is_resumable() {
                return copied;
            }
            upload.abort().await;
        }
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.clear();
        }
        copied
    }

    /// Discards a checkpointed upload that is obsolete, because the object was copied in one request.
    async fn discard_checkpoint(&self) {
        let Some(checkpoint) = &self.checkpoint else { return };
        if let Some(state) = checkpoint.load() {
            MultipartUpload::from_id(&self.transfers, &self.to, &self.address, state.upload).abort().await;
            checkpoint.clear();
        }
    }

    /// The checkpointed upload of this version, its part size, and its stored parts; `None` if there is none. An upload
    /// that cannot be resumed is aborted.
    async fn resume(
        &self,
        info: &ObjectInfo,
        algorithm: Algorithm,
    ) -> Result<Option<(MultipartUpload, u64, Vec<RelayedPart>)>> {
        let Some(state) = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.load()) else {
            return Ok(None);
        };
        if state.version != Some(SourceVersion::from_info(info)) {
            MultipartUpload::from_id(&self.transfers, &self.to, &self.address, state.upload).abort().await;
            return Ok(None);
        }
        let found = MultipartUpload::resume(&self.transfers, &self.to, &self.address, &state).await?;
        let Some((upload, parts)) = found else { return Ok(None) };
        let is_whole = |part: &&CheckpointedPart| {
            let offset = u64::from(part.number.get() - 1) * state.part_bytes;
            part.checksum.algorithm() == algorithm
                && part.length == state.part_bytes.min(info.size.saturating_sub(offset))
        };
        let done: Vec<RelayedPart> =
            parts.iter().filter(is_whole).map(|part| (part.to_stored(), part.checksum)).collect();
        for ((_, length), _) in &done {
            (self.on_progress)(i64::try_from(*length).unwrap_or(i64::MAX));
        }
        Ok(Some((upload, state.part_bytes, done)))
    }

    async fn copy_parts(
        self: Arc<Self>,
        upload: &Arc<MultipartUpload>,
        (parts, mut done): (&mut JoinSet<Result<RelayedPart>>, Vec<RelayedPart>),
        info: Arc<ObjectInfo>,
        (part_bytes, algorithm): (u64, Algorithm),
    ) -> Result<Committed> {
        let have: HashSet<i64> = done.iter().map(|((part, _), _)| part.number.get().into()).collect();
        let work = (part_bytes, algorithm);
        self.relay_parts(upload, (&mut *parts, &mut done), &info, work).await?;
        if let Err(e) = compare_parts(&done, &info) {
            // Only the checksum of the whole object is known, so any part may be damaged.
            self.transfers.wait_before_retry(e, &mut Attempts::new()).await?;
            (self.on_progress)(-i64::try_from(info.size).unwrap_or(i64::MAX));
            done.clear();
            self.relay_parts(upload, (&mut *parts, &mut done), &info, work).await?;
            compare_parts(&done, &info)?;
        }
        let committed = upload
            .complete(done.into_iter().map(|(part, _)| part).collect(), self.changes.precondition.clone())
            .await?;
        if !have.is_empty() && !info.metadata.tags.is_empty() {
            // Some stores do not keep the tags given at creation, which only the earlier process could then set.
            self.transfers.retry(|| self.tag(&info)).await?;
        }
        Ok(committed)
    }

    /// Copies all parts that are not in `done`, and adds them to it in order.
    async fn relay_parts(
        self: &Arc<Self>,
        upload: &Arc<MultipartUpload>,
        (parts, done): (&mut JoinSet<Result<RelayedPart>>, &mut Vec<RelayedPart>),
        info: &Arc<ObjectInfo>,
        (part_bytes, algorithm): (u64, Algorithm),
    ) -> Result<()> {
        let have: HashSet<i64> = done.iter().map(|((part, _), _)| part.number.get().into()).collect();
        let mut waiting =
            split_evenly(info.size, part_bytes).zip(1_i64..).filter(|(_, number)| !have.contains(number));
        loop {
            while parts.len() < self.transfers.plan().object_concurrency(part_bytes)
                && let Some((span, number)) = waiting.next()
            {
                let (copy, upload, info) = (self.clone(), upload.clone(), info.clone());
                parts.spawn(async move {
                    copy.copy_part(&upload, &info, (PartNumber::new(number)?, span), algorithm).await
                });
            }
            let Some(part) = parts.join_next().await else { break };
            done.push(part.map_err(|e| Error::with_source(Reason::Defect, "a part's task failed", e))??);
        }
        done.sort_by_key(|((part, _), _)| part.number);
        Ok(())
    }

    async fn tag(&self, info: &ObjectInfo) -> Result<()> {
        let permits = self.transfers.acquire_request_permits(0).await?;
        self.to.set_tags(&permits.context, &self.address, info.metadata.tags.clone()).await
    }

    /// Copies a part, with retries.
    async fn copy_part(
        &self,
        upload: &MultipartUpload,
        info: &ObjectInfo,
        (number, span): (PartNumber, (u64, u64)),
        algorithm: Algorithm,
    ) -> Result<RelayedPart> {
        let once = || async move {
            let mut permits = self.transfers.acquire_relay_permits(span.1).await?;
            let body = self.origin.get(&permits.context, info, span).await?;
            let algorithms = vec![algorithm];
            let request = StageRequest { size: Some(span.1), algorithms, ..StageRequest::default() };
            let staged = upload.stage_part(&permits.context, number, request).await?;
            let (committed, checksum) =
                self.relay(&mut permits, (body, span.1), staged, (algorithm, None)).await?;
            Ok((MultipartUpload::stored_part(number, &committed), checksum))
        };
        let (stored, checksum) = self.transfers.retry(once).await?;
        if let Some(checkpoint) = &self.checkpoint {
            let (length, etag) = (stored.1, stored.0.etag.clone());
            checkpoint.part_stored(&CheckpointedPart { number, length, etag, checksum });
        }
        Ok((stored, checksum))
    }

    /// Relays a body and commits it; returns the checksum of the relayed bytes. A rate limit charges each byte twice,
    /// as received and as sent.
    async fn relay(
        &self,
        permits: &mut RequestPermits<'_>,
        (mut body, length): (Body, u64),
        mut staged: Box<dyn Staged>,
        (algorithm, expected): (Algorithm, Option<Checksum>),
    ) -> Result<(Committed, Checksum)> {
        let mut hasher = Hasher::new(algorithm);
        let mut sent = SentBytes::new(&*self.on_progress);
        let mut relayed = 0;
        // Each byte is charged twice, so a piece of half the size costs one full piece.
        let piece_bytes = usize::try_from(self.transfers.piece_bytes() / 2).unwrap_or(usize::MAX).max(1);
        let piece_bytes = if self.transfers.is_rate_limited() { piece_bytes } else { usize::MAX };
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(source_error)?;
            hasher.update(&piece);
            relayed += piece.len() as u64;
            let mut left = piece;
            while !left.is_empty() {
                let piece = left.split_to(piece_bytes.min(left.len()));
                let bytes = piece.len();
                permits.throttle(2 * bytes as u64).await;
                staged.write(piece).await?;
                sent.add(bytes);
            }
        }
        if relayed != length {
            let why = format!("the source sent {relayed} bytes, but announced {length}");
            return Err(Error::new(Reason::Io, why));
        }
        let checksum = hasher.finish();
        if let Some(expected) = expected {
            compare(checksum, expected)?;
        }
        let (committed, _) = staged.commit(Expected::default()).await?;
        sent.confirm();
        self.transfers.record_first_write();
        Ok((committed, checksum))
    }
}

/// Compares the checksums of all parts, in order, with the source's full-object checksum.
fn compare_parts(done: &[RelayedPart], info: &ObjectInfo) -> Result<()> {
    let mut relayed = done.iter().map(|((_, length), checksum)| (*checksum, *length));
    let first = relayed.next().map(|(first, _)| first);
    let combined = first.and_then(|first| {
        relayed.try_fold(first, |combined, (next, length)| combined.combine(&next, length))
    });
    match (combined, full_object_crc(info)) {
        (Some(combined), Some(expected)) => compare(combined, expected),
        _ => Ok(()),
    }
}

/// The metadata of the copy.
fn copy_metadata(metadata: Metadata) -> Metadata {
    Metadata { headers: SystemHeaders { storage_class: None, ..metadata.headers }, ..metadata }
}

/// Names the source in an error of its body, which would not tell which of the two stores failed.
fn source_error(e: Error) -> Error {
    Error::with_source(e.reason(), format!("reading the source failed: {e}"), e)
}

/// The source's full-object checksum.
fn full_object_checksum(info: &ObjectInfo) -> Option<Checksum> {
    info.checksums.first().copied().filter(|_| info.scope == ChecksumScope::FullObject)
}

/// The source's full-object checksum that can be combined from those of parts: a CRC.
fn full_object_crc(info: &ObjectInfo) -> Option<Checksum> {
    let is_full_object = info.scope == ChecksumScope::FullObject;
    info.checksums.iter().copied().find(|checksum| is_full_object && checksum.algorithm().is_crc())
}

/// The algorithm of the parts' checksums: that of the source if it can be combined, else CRC-64/NVME.
fn part_algorithm(info: &ObjectInfo) -> Algorithm {
    full_object_crc(info).map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm())
}

fn compare(relayed: Checksum, expected: Checksum) -> Result<()> {
    if relayed.algorithm() != expected.algorithm() || relayed == expected {
        return Ok(());
    }
    let why = format!("checksum mismatch: received {relayed:?}, the source has {expected:?}");
    Err(Error::new(Reason::CorruptData, why))
}
