//! Copying within a store: in one request, or in parts where S3 takes no object of this size in one.

use std::sync::Arc;

use tradewind_core::condition::ETagMatch;
use tradewind_core::error::Result;
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest};
use tradewind_core::{Algorithm, ByteRange, ObjectStore};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;
use super::upload::Upload;

/// S3 copies no larger object in one request.
const MOST_WHOLE: u64 = 5 << 30;
/// The size of copied parts: no byte of them comes here.
const PART_BYTES: u64 = 512 << 20;

/// Copies an object within a store.
pub async fn store_copy(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    request: CopyRequest,
) -> Result<Committed> {
    let request = &request;
    let found = carrier
        .again(|| async move {
            let slot = carrier.slot(0).await?;
            let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
            store.head(&slot.context, &request.source, get).await
        })
        .await?;
    let info = found.info;
    if info.size <= MOST_WHOLE {
        return carrier
            .again(|| async move {
                let slot = carrier.slot(0).await?;
                store.copy(&slot.context, request.clone()).await
            })
            .await;
    }
    // All parts are of the version that was looked at.
    let mut pinned = request.clone();
    pinned.source_conditions.if_match = Some(ETagMatch::OneOf(vec![info.etag.clone()]));
    let metadata = request.metadata.clone().unwrap_or(info.metadata);
    let upload =
        Upload::begin(carrier, store, &request.destination, (metadata, Algorithm::Crc64Nvme)).await?;
    let copied = copy_parts(carrier, store, &pinned, &upload, info.size).await;
    if copied.is_err() {
        upload.give_up().await;
    }
    copied
}

async fn copy_parts(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    request: &CopyRequest,
    upload: &Upload,
    size: u64,
) -> Result<Committed> {
    let parts = Plan::chunks(size, PART_BYTES).zip(1..).map(|((offset, length), number)| async move {
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
        let copied = carrier
            .again(|| async move {
                let slot = carrier.slot(0).await?;
                store.copy_part(&slot.context, part.clone()).await
            })
            .await?;
        Ok::<_, tradewind_core::Error>(Upload::stored(part.number, &copied))
    });
    let done = futures::future::try_join_all(parts).await?;
    upload.complete(done).await
}
