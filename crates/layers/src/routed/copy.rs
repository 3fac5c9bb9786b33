//! Copies. Within a tier, the tier copies. Between tiers, the object is read and written like by a client: see `relay`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, ETagForm, GetRequest};
use tradewind_core::{Address, Context, ObjectInfo, Precondition, ReadConditions};

use super::Routed;
use super::tier_set::{Change, FromTier, TierSet};
use crate::relay::{self, RelayEnd};
use crate::store_error::StoreName;

/// Copies within a tier before a copy is relayed, because its source changes its tier all the time.
const MAX_COPIES_WITHIN_TIER: usize = 2;

/// Copies an object.
pub(super) async fn copy(routed: &Routed, context: &Context, request: CopyRequest) -> Result<Committed> {
    let request = CopyRequest { etag: ETagForm::Md5, ..request };
    let set = &routed.set;
    for _ in 0..MAX_COPIES_WITHIN_TIER {
        let source = set.locate(context, &request.source, &request.source_conditions).await?;
        let (tier, info) = (source.tier, source.result?);
        let tags = request.tags.as_ref().unwrap_or(&info.metadata.tags).clone();
        let mut metadata = request.metadata.clone().unwrap_or_else(|| info.metadata.clone().for_copy());
        metadata.tags = tags;
        if set.place(&metadata, Some(info.size)) != tier {
            break;
        }
        if let Some(copied) = copy_within(set, context, tier, request.clone()).await? {
            return Ok(copied);
        }
    }
    let end = relay_end(routed);
    relay::copy(context, end, end, request).await
}

/// Copies within a tier. Returns `None` if the source is no longer there.
async fn copy_within(
    set: &Arc<TierSet>,
    context: &Context,
    tier: usize,
    request: CopyRequest,
) -> Result<Option<Committed>> {
    set.prepare_bucket(context, tier, &request.destination.bucket).await?;
    let destination = request.destination.clone();
    let work = move |change: Change| async move {
        let copies = change.admit(tier, &request.precondition).await?;
        let is_missing = AtomicBool::new(false);
        let copy = async {
            let request = CopyRequest { precondition: Precondition::None, ..request };
            let copied = change.tier(tier).store.copy(&change.context, request).await;
            let missing = copied.as_ref().is_err_and(|error| change.set.is_miss(tier, error));
            is_missing.store(missing, Ordering::Relaxed);
            copied
        };
        match change.replace(tier, copies, copy).await {
            Err(_) if is_missing.load(Ordering::Relaxed) => Ok(None),
            copied => Ok(Some(change.outer(tier, copied?))),
        }
    };
    set.change(context, &destination, work).await
}

/// Copies an object or a range of it into a part of an upload.
pub(super) async fn copy_part(
    routed: &Routed,
    context: &Context,
    request: CopyPartRequest,
) -> Result<Committed> {
    let request = CopyPartRequest { etag: ETagForm::Md5, ..request };
    let set = &routed.set;
    let upload = set.upload(context, &request.destination.bucket, &request.upload).await?;
    let source = set.locate(context, &request.source, &request.source_conditions).await?;
    source.result?;
    if source.tier == upload.tier {
        let tier = &set.tiers[upload.tier];
        let within = CopyPartRequest { upload: upload.inner.clone(), ..request.clone() };
        match tier.store.copy_part(context, within).await {
            // The source has changed its tier.
            Err(error) if error.reason() == Reason::NoSuchKey => {}
            copied => {
                let copied = set.about_upload(upload.tier, &request.upload, copied)?;
                let generation = set.generation(upload.tier, copied.generation);
                return Ok(Committed { generation, ..copied });
            }
        }
    }
    let end = relay_end(routed);
    relay::copy_part(context, end, end, request).await
}

fn relay_end(routed: &Routed) -> RelayEnd<'_> {
    RelayEnd { store: routed, name: StoreName { role: "layer", name: "routed" } }
}

impl TierSet {
    /// The tier of an object, and its metadata.
    async fn locate(
        &self,
        context: &Context,
        address: &Address,
        conditions: &ReadConditions,
    ) -> Result<FromTier<ObjectInfo>> {
        let request = GetRequest { conditions: conditions.clone(), ..GetRequest::default() };
        self.read(context, address, |tier| {
            let head = tier.store.head(context, address, request.clone());
            Box::pin(async { Ok(head.await?.info) })
        })
        .await
    }
}
