//! Storing an object: in one request, or in parts that take turns with everything else.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Committed;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};
use tradewind_model::plan::{Plan, Spread};

use super::carrier::Carrier;
use super::late::LateParts;
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
    let parts = usize::try_from(size.div_ceil(part_bytes)).unwrap_or(usize::MAX);
    store.expect_requests(&address.bucket, carrier.plan().of_one_object(part_bytes).min(parts));
    let asked = carrier.clock().now();
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
    let answered_in = carrier.clock().now().saturating_sub(asked);
    let spread = carrier.spread(store.round_trip(&address.bucket), answered_in);
    let stored = store_parts(carrier, &upload, source, (size, part_bytes), (done, spread)).await;
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
    (mut done, mut spread): (Vec<StoredPart>, Spread),
) -> Result<Committed> {
    // Dropped with this future, so that no part outlives a failure.
    let mut parts = tokio::task::JoinSet::new();
    let have: HashSet<u16> = done.iter().map(|(part, _)| part.number.get()).collect();
    let waiting = Plan::chunks(size, part_bytes).zip(1_u16..).filter(|(_, number)| !have.contains(number));
    let mut waiting: VecDeque<_> = waiting.collect();
    let mut late = LateParts::of(size);
    let most = carrier.plan().of_one_object(part_bytes);
    loop {
        while parts.len() < most {
            let now = carrier.clock().now();
            // Where nothing is under way nothing else would begin it.
            let begins =
                parts.is_empty() || carrier.is_limited() || late.begins(waiting.len(), part_bytes, now);
            let Some((span, number)) = begins.then(|| waiting.pop_front()).flatten() else { break };
            let (upload, source, progress) = (upload.clone(), source.clone(), late.watch(span.1, now));
            let (clock, turn) = (carrier.clock().clone(), spread.next(most));
            parts.spawn(async move {
                clock.sleep_until(turn).await;
                let number = PartNumber::new(i64::from(number))?;
                let part = upload.part(&*source, number, span, Some(&progress)).await?;
                Ok::<_, Error>((part, progress))
            });
        }
        let is_watched = (waiting.is_empty() || parts.len() < most) && !carrier.is_limited();
        let ended = tokio::select! {
            biased;
            ended = parts.join_next() => ended,
            () = late.wait(carrier), if is_watched => {
                // As long as parts wait, whoever is faster takes more of them.
                if waiting.is_empty() {
                    late.tell(carrier);
                }
                continue;
            }
        };
        let Some(ended) = ended else { break };
        let lost = |e| Error::with_source(Reason::Defect, "a part's task failed", e);
        let (part, progress) = ended.map_err(lost)??;
        late.end(&progress, carrier.clock().now());
        done.push(part);
    }
    source.check()?;
    are_all(done.iter().map(|(_, length)| *length), size)?;
    upload.complete(done).await
}

/// Parts of these lengths are all of an object, or it is not completed.
fn are_all(parts: impl Iterator<Item = u64>, size: u64) -> Result<()> {
    let stored: u64 = parts.sum();
    if stored == size {
        return Ok(());
    }
    let why = format!("parts of {stored} bytes were stored of an object that has {size}");
    Err(Error::new(Reason::Defect, why))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_misses_a_part_is_not_completed() {
        let all = |parts: &[u64]| super::are_all(parts.iter().copied(), 25);
        assert!(all(&[10, 10, 5]).is_ok());
        assert!(all(&[10, 5]).unwrap_err().to_string().contains("parts of 15 bytes"));
        assert!(all(&[10, 10, 10]).is_err());
    }
}
