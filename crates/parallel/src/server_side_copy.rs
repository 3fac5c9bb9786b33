//! Server-side copies within a store: in one request, or in parts if the object exceeds the size limit of S3 for one
//! request.

use std::sync::Arc;

use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest};
use tradewind_core::{Algorithm, ByteRange, ObjectInfo, ObjectStore, Precondition};
use tradewind_model::plan::split_evenly;

use super::cross_store_copy::relay_within_store;
use super::multipart_upload::MultipartUpload;
use super::transfer_context::TransferContext;
use super::upload_checkpoint::{FinishedCopy, SourceVersion};

/// S3 copies at most 5 GiB in one request.
const MAX_SINGLE_COPY_BYTES: u64 = 5 << 30;
/// Size of copied parts. It may be large, because the bytes do not pass through this process.
const COPY_PART_BYTES: u64 = 512 << 20;

/// Copies an object within a store. A multipart copy is pinned to the version found first, and aborted if a part fails. A
/// store without server-side copies reads and writes the object through this process, from then on at once.
pub async fn copy_within_store(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    request: CopyRequest,
) -> Result<FinishedCopy> {
    copy_with_limit(transfers, store, &request, MAX_SINGLE_COPY_BYTES).await
}

/// Copies objects of up to `max_single_bytes` in one request.
async fn copy_with_limit(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    request: &CopyRequest,
    max_single_bytes: u64,
) -> Result<FinishedCopy> {
    let found = transfers
        .retry(|| async move {
            let permits = transfers.acquire_request_permits(0).await?;
            let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
            store.head(&permits.context, &request.source, get).await
        })
        .await?;
    let info = found.info;
    let may_relay = may_relay(request);
    if may_relay && transfers.lacks_copies(store) {
        return relay_within_store(transfers, store, request, info.size).await;
    }
    let copied = if info.size <= max_single_bytes {
        let copy = || async move {
            let permits = transfers.acquire_request_permits(0).await?;
            store.copy(&permits.context, request.clone()).await
        };
        transfers.retry(copy).await
    } else {
        copy_in_parts(transfers, store, request, &info).await
    };
    match copied {
        Err(e) if e.reason() == Reason::Unsupported && may_relay => {
            tracing::debug!(error = %e, "copying an object through this process");
            let relayed = relay_within_store(transfers, store, request, info.size).await?;
            transfers.record_lack_of_copies(store);
            Ok(relayed)
        }
        copied => Ok(FinishedCopy { committed: copied?, source: SourceVersion::from_info(&info) }),
    }
}

/// Returns true unless the copy replaces its own source without a condition: while the bytes pass through this process, a
/// newer write of the object would be lost.
fn may_relay(request: &CopyRequest) -> bool {
    let (source, destination) = (&request.source, &request.destination);
    let is_own_source =
        source.version.is_none() && (&source.bucket, &source.key) == (&destination.bucket, &destination.key);
    !is_own_source || request.precondition != Precondition::None
}

async fn copy_in_parts(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    request: &CopyRequest,
    info: &ObjectInfo,
) -> Result<Committed> {
    // All parts must be of the version found by the HEAD request.
    let mut pinned = request.clone();
    pinned.source_conditions.if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
    let metadata = request.metadata.clone().unwrap_or_else(|| info.metadata.clone().for_copy());
    let upload =
        MultipartUpload::create(transfers, store, &request.destination, (metadata, Algorithm::Crc64Nvme))
            .await?;
    let copied = copy_parts(transfers, store, &pinned, &upload, info.size).await;
    if copied.is_err() {
        upload.abort().await;
    }
    copied
}

async fn copy_parts(
    transfers: &Arc<TransferContext>,
    store: &Arc<dyn ObjectStore>,
    request: &CopyRequest,
    upload: &MultipartUpload,
    size: u64,
) -> Result<Committed> {
    let parts = split_evenly(size, COPY_PART_BYTES).zip(1..).map(|((offset, length), number)| async move {
        let part = CopyPartRequest {
            source: request.source.clone(),
            range: Some(ByteRange::Inclusive { first: offset, last: offset + length - 1 }),
            source_conditions: request.source_conditions.clone(),
            destination: request.destination.clone(),
            upload: upload.id().clone(),
            number: PartNumber::new(number)?,
            etag: request.etag,
        };
        let part = &part;
        let copied = transfers
            .retry(|| async move {
                let permits = transfers.acquire_request_permits(0).await?;
                store.copy_part(&permits.context, part.clone()).await
            })
            .await?;
        Ok::<_, tradewind_core::Error>(MultipartUpload::stored_part(part.number, &copied))
    });
    let done = futures::future::try_join_all(parts).await?;
    upload.complete(done, request.precondition.clone()).await
}

#[cfg(test)]
mod tests;
