//! Storing an object: in one request, or in parts that take turns with everything else.

use std::collections::HashSet;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};
use tradewind_model::plan::Plan;

use super::carrier::Carrier;
use super::memory::StoredPart;
use super::sent::pour;
use super::source::Source;
use super::upload::Upload;

/// Stores an object of `size` bytes.
pub async fn store(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn Source>,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let is_multipart = store.capabilities().multipart;
    match carrier.plan().part_bytes(size).filter(|_| is_multipart) {
        None => {
            if let Some(id) = source.outdated().or_else(|| source.earlier().map(|(id, _)| id)) {
                // It was large before, or parts were smaller.
                Upload::of(carrier, store, address, id).give_up().await;
            }
            store_whole(carrier, store, address, &*source, size, metadata).await
        }
        Some(part_bytes) => {
            store_in_parts(carrier, store, address, source, (size, part_bytes), metadata).await
        }
    }
}

async fn store_whole(
    carrier: &Carrier,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: &dyn Source,
    size: u64,
    metadata: Metadata,
) -> Result<Committed> {
    let request = StageRequest { metadata, size: Some(size), ..StageRequest::default() };
    let request = &request;
    carrier
        .again(|| async move {
            let mut slot = carrier.slot(size).await?;
            let checksum = carrier.checksum_beforehand(source, (0, size))?;
            let request = StageRequest { checksum, ..request.clone() };
            let staged = store.stage(&slot.context, address, request).await?;
            pour(carrier, &mut slot, staged, source, (0, size)).await
        })
        .await
}

async fn store_in_parts(
    carrier: &Arc<Carrier>,
    store: &Arc<dyn ObjectStore>,
    address: &Address,
    source: Arc<dyn Source>,
    (size, part_bytes): (u64, u64),
    metadata: Metadata,
) -> Result<Committed> {
    if let Some(id) = source.outdated() {
        // Nobody goes on with what is of other bytes.
        Upload::of(carrier, store, address, id).give_up().await;
    }
    let earlier = match source.earlier() {
        Some((id, part_bytes)) => {
            let upload = Arc::new(Upload::of(carrier, store, address, id));
            match upload.parts_of(&source, (size, part_bytes)).await {
                Ok(found) => found.map(|parts| (upload, part_bytes, parts)),
                Err(e) if e.says_nothing() => return Err(e),
                Err(e) => {
                    tracing::debug!(error = %e, "an upload cannot go on");
                    upload.give_up().await;
                    None
                }
            }
        }
        None => None,
    };
    let (upload, part_bytes, done, is_kept) = match earlier {
        Some((upload, part_bytes, done)) => (upload, part_bytes, done, true),
        None => {
            let upload =
                Arc::new(Upload::begin(carrier, store, address, (metadata, Algorithm::Crc64Nvme)).await?);
            let is_kept = source.begun(upload.id(), part_bytes);
            if is_kept {
                upload.keep();
            }
            (upload, part_bytes, Vec::new(), is_kept)
        }
    };
    let stored = store_parts(carrier, &upload, source, (size, part_bytes), done).await;
    if let Err(e) = &stored
        && !(is_kept && e.may_go_on())
    {
        upload.give_up().await;
    }
    stored
}

async fn store_parts(
    carrier: &Arc<Carrier>,
    upload: &Arc<Upload>,
    source: Arc<dyn Source>,
    (size, part_bytes): (u64, u64),
    mut done: Vec<StoredPart>,
) -> Result<Committed> {
    // Dropped with this future, so that no part outlives a failure.
    let mut parts = tokio::task::JoinSet::new();
    let have: HashSet<u16> = done.iter().map(|(part, _)| part.number.get()).collect();
    let mut waiting =
        Plan::chunks(size, part_bytes).zip(1_u16..).filter(|(_, number)| !have.contains(number));
    loop {
        while parts.len() < carrier.plan().of_one_object(part_bytes)
            && let Some((span, number)) = waiting.next()
        {
            let (upload, source) = (upload.clone(), source.clone());
            parts.spawn(async move {
                let number = PartNumber::new(i64::from(number))?;
                upload.part(&*source, number, span).await
            });
        }
        match parts.join_next().await {
            Some(part) => {
                done.push(part.map_err(|e| Error::with_source(Reason::Defect, "a part's task failed", e))??)
            }
            None => break,
        }
    }
    source.check()?;
    upload.complete(done).await
}
