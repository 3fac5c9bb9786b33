//! Uploads an object of known size: in one request, or in parts that share the permit pool with all other requests.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};
use tradewind_model::plan::{StartStagger, split_evenly};

use super::multipart_upload::MultipartUpload;
use super::part_tracker::PartTracker;
use super::sent_bytes::write_and_commit;
use super::transfer_context::TransferContext;
use super::upload_checkpoint::StoredPart;
use super::upload_source::UploadSource;

/// Stores an object of `size` bytes. A large one is stored in parts, and resumes an unfinished upload of the source, if
/// there is one.
pub async fn store_object(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn UploadSource>,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let is_multipart = store.capabilities().multipart;
    match transfers.plan().part_bytes(size).filter(|_| is_multipart) {
        None => {
            if let Some(id) = source.stale_upload().or_else(|| source.resumable_upload().map(|(id, _)| id)) {
                // When that upload was started, the source was larger or the part size smaller.
                MultipartUpload::from_id(transfers, store, address, id).abort().await;
            }
            store_whole(transfers, store, address, &*source, size, metadata).await
        }
        Some(part_bytes) => {
            store_in_parts(transfers, store, address, source, (size, part_bytes), metadata).await
        }
    }
}

async fn store_whole(
    transfers: &TransferContext,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: &dyn UploadSource,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let request = StageRequest { metadata, size: Some(size), ..StageRequest::default() };
    let request = &request;
    transfers
        .retry(|| async move {
            let mut permits = transfers.acquire_request_permits(size).await?;
            let checksum = transfers.checksum_in_advance(source, (0, size))?;
            let request = StageRequest { checksum, ..request.clone() };
            let staged = store.stage(&permits.context, address, request).await?;
            write_and_commit(transfers, &mut permits, staged, source, (0, size)).await
        })
        .await
}

async fn store_in_parts(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn UploadSource>,
    (size, part_bytes): (u64, u64),
    metadata: Metadata,
) -> Result<Committed> {
    let parts = usize::try_from(size.div_ceil(part_bytes)).unwrap_or(usize::MAX);
    store.prewarm(&address.bucket, transfers.plan().object_concurrency(part_bytes).min(parts));
    let setup_started = transfers.clock().now();
    if let Some(id) = source.stale_upload() {
        // The upload is of different bytes and cannot be resumed.
        MultipartUpload::from_id(transfers, store, address, id).abort().await;
    }
    let resumed = match source.resumable_upload() {
        Some((id, part_bytes)) => {
            let upload = Arc::new(MultipartUpload::from_id(transfers, store, address, id));
            match upload.matching_parts(&source, (size, part_bytes)).await {
                Ok(found) => found.map(|parts| (upload, part_bytes, parts)),
                Err(e) if e.is_inconclusive() => return Err(e),
                Err(e) => {
                    tracing::debug!(error = %e, "an upload cannot be resumed");
                    upload.abort().await;
                    None
                }
            }
        }
        None => None,
    };
    let (upload, part_bytes, done, is_resumable) = match resumed {
        Some((upload, part_bytes, done)) => (upload, part_bytes, done, true),
        None => {
            let upload = Arc::new(
                MultipartUpload::create(transfers, store, address, (metadata, Algorithm::Crc64Nvme)).await?,
            );
            let is_resumable = source.upload_started(upload.id(), part_bytes);
            if is_resumable {
                upload.detach();
            }
            (upload, part_bytes, Vec::new(), is_resumable)
        }
    };
    let setup_time = transfers.clock().now().saturating_sub(setup_started);
    let stagger = transfers.start_stagger(store.min_rtt(&address.bucket), setup_time);
    let stored = store_parts(transfers, &upload, source, (size, part_bytes), (done, stagger)).await;
    if let Err(e) = &stored
        && !(is_resumable && e.is_resumable())
    {
        upload.abort().await;
    }
    stored
}

async fn store_parts(
    transfers: &Arc<TransferContext>,
    upload: &Arc<MultipartUpload>,
    source: Arc<dyn UploadSource>,
    (size, part_bytes): (u64, u64),
    (mut done, mut stagger): (Vec<StoredPart>, StartStagger),
) -> Result<Committed> {
    // Dropping this future aborts the parts in flight, so none of them outlives a failure.
    let mut parts = tokio::task::JoinSet::new();
    let stored_numbers: HashSet<u16> = done.iter().map(|(part, _)| part.number.get()).collect();
    let waiting =
        split_evenly(size, part_bytes).zip(1_u16..).filter(|(_, number)| !stored_numbers.contains(number));
    let mut waiting: VecDeque<_> = waiting.collect();
    let mut tracker = PartTracker::new(size);
    let max_parts = transfers.plan().object_concurrency(part_bytes);
    loop {
        while parts.len() < max_parts {
            let now = transfers.clock().now();
            // With no part in flight, no completion would trigger the start of the next one.
            let may_start = parts.is_empty()
                || transfers.is_rate_limited()
                || tracker.should_start_part(waiting.len(), part_bytes, now);
            let Some((span, number)) = may_start.then(|| waiting.pop_front()).flatten() else { break };
            let (upload, source, progress) = (upload.clone(), source.clone(), tracker.track(span.1, now));
            let (clock, start) = (transfers.clock().clone(), stagger.next_start(max_parts));
            parts.spawn(async move {
                clock.sleep_until(start).await;
                let number = PartNumber::new(i64::from(number))?;
                let part = upload.store_part(&*source, number, span, Some(&progress)).await?;
                Ok::<_, Error>((part, progress))
            });
        }
        let needs_checks = (waiting.is_empty() || parts.len() < max_parts) && !transfers.is_rate_limited();
        let ended = tokio::select! {
            biased;
            ended = parts.join_next() => ended,
            () = tracker.until_next_check(transfers), if needs_checks => {
                // While parts wait, no part is aborted: faster connections take more of the waiting ones.
                if waiting.is_empty() {
                    tracker.abort_stragglers(transfers);
                }
                continue;
            }
        };
        let Some(ended) = ended else { break };
        let task_failed = |e| Error::with_source(Reason::Defect, "a part's task failed", e);
        let (part, progress) = ended.map_err(task_failed)??;
        tracker.complete(&progress, transfers.clock().now());
        done.push(part);
    }
    source.check_unchanged()?;
    check_all_stored(done.iter().map(|(_, length)| *length), size)?;
    upload.complete(done, tradewind_core::Precondition::None).await
}

/// Fails unless parts of these lengths add up to the object: an incomplete upload must not be completed.
fn check_all_stored(parts: impl Iterator<Item = u64>, size: u64) -> Result<()> {
    let stored: u64 = parts.sum();
    if stored == size {
        return Ok(());
    }
    let why = format!("parts of {stored} bytes were stored for an object of {size} bytes");
    Err(Error::new(Reason::Defect, why))
}

#[cfg(test)]
mod tests {
    #[test]
    fn upload_with_a_missing_part_is_not_completed() {
        let all = |parts: &[u64]| super::check_all_stored(parts.iter().copied(), 25);
        assert!(all(&[10, 10, 5]).is_ok());
        assert!(all(&[10, 5]).unwrap_err().to_string().contains("parts of 15 bytes"));
        assert!(all(&[10, 10, 10]).is_err());
    }
}
