//! Writes and deletes: changes that leave an object in one tier. The order of the steps is that of the module `routed`.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tracing::warn;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{Deleted, ETagForm, StageRequest};
use tradewind_core::{Address, Context, Observation, Precondition, Staged};

use super::tier_set::{Change, Copies, TierSet, without_deadline};

/// A write to a tier.
struct RoutedStaged {
    set: Arc<TierSet>,
    context: Context,
    address: Address,
    tier: usize,
    precondition: Precondition,
    inner: Box<dyn Staged>,
}

/// Begins a write in the tier of its class.
pub(super) async fn stage(
    set: &Arc<TierSet>,
    context: &Context,
    address: &Address,
    request: StageRequest,
) -> Result<Box<dyn Staged>> {
    let tier = set.place(&request.metadata, request.size);
    set.prepare_bucket(context, tier, &address.bucket).await?;
    let precondition = request.precondition.clone();
    let request = StageRequest { precondition: Precondition::None, etag: ETagForm::Md5, ..request };
    // The tier must not end its commit by the deadline: a change that begins is completed.
    let unlimited = without_deadline(context);
    let staged = context.guard(set.tiers[tier].store.stage(&unlimited, address, request)).await?;
    let inner = set.tiers[tier].named(staged)?;
    let (set, context, address) = (set.clone(), context.clone(), address.clone());
    Ok(Box::new(RoutedStaged { set, context, address, tier, precondition, inner }))
}

#[async_trait]
impl Staged for RoutedStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let written = self.context.guard(self.inner.write(bytes)).await?;
        self.set.tiers[self.tier].named(written)
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { set, context, address, tier, precondition, inner } = *self;
        let work = move |change: Change| async move {
            let copies = change.admit(tier, &precondition).await?;
            let (committed, observation) = change.replace(tier, copies, inner.commit(expected)).await?;
            Ok((change.outer(tier, committed), observation))
        };
        set.change(&context, &address, work).await
    }
}

impl Change {
    /// Looks for copies before a write to a tier, and evaluates its precondition. Fails if a tier is away whose copy
    /// would hide the object, or whose copy decides the precondition.
    pub async fn admit(&self, tier: usize, precondition: &Precondition) -> Result<Copies> {
        let copies = self.find_copies().await;
        copies.check_reachable(tier)?;
        self.check(&copies, precondition)?;
        Ok(copies)
    }

    /// Commits an object to a tier, and deletes its copies in other tiers.
    ///
    /// If a copy in a tier before it cannot be deleted, that copy stays visible, and the result is an error of unknown
    /// outcome. A copy in a tier after it is hidden: if it cannot be deleted now, the write succeeds nevertheless.
    pub async fn replace<T>(
        &self,
        tier: usize,
        copies: Copies,
        commit: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let others: Vec<usize> = copies.holders().filter(|holder| *holder != tier).collect();
        let committed = self.tier(tier).named(commit.await)?;
        // Not before the commit, which may take long: listings of the bucket wait for moves. A reader that missed the
        // new copy, because it looked into its tier before, either finds the old one or sees that a move has begun.
        let _move = (!others.is_empty()).then(|| self.set.locks.begin_move(&self.address));
        for other in others {
            match self.delete_copy(other).await {
                Err(error) if other > tier => warn!(
                    %error, bucket = %self.address.bucket,
                    "a replaced copy of an object remains, hidden, until the object is written or moved again"
                ),
                Err(error) => return Err(unknown_outcome(error)),
                Ok(_) => {}
            }
        }
        Ok(committed)
    }

    /// Deletes the object from all tiers, the last one first, so that no hidden copy becomes visible.
    pub async fn delete(&self, precondition: &Precondition) -> Result<Deleted> {
        let copies = self.find_copies().await;
        copies.check_reachable(self.set.tiers.len())?;
        self.check(&copies, precondition)?;
        let holders: Vec<usize> = copies.holders().collect();
        if holders.is_empty() {
            return self.delete_copy(self.set.base()).await;
        }
        let _move = (holders.len() > 1).then(|| self.set.locks.begin_move(&self.address));
        let mut deleted = None;
        for holder in holders {
            deleted = match self.delete_copy(holder).await {
                // A copy is gone, which may have been the object.
                Err(error) if deleted.is_some() => return Err(unknown_outcome(error)),
                now => Some(now?),
            };
        }
        Ok(deleted.unwrap_or_default())
    }

    /// Deletes the copy of a tier.
    pub async fn delete_copy(&self, tier: usize) -> Result<Deleted> {
        let tier = self.tier(tier);
        tier.named(tier.store.delete(&self.context, &self.address, Precondition::None).await)
    }

    /// The result of a commit to a tier, as clients see it.
    pub fn outer(&self, tier: usize, committed: Committed) -> Committed {
        Committed { generation: self.set.generation(tier, committed.generation), ..committed }
    }
}

/// The error of a change that has changed a tier, and not all of them: the caller must not take it for a rejection.
fn unknown_outcome(error: Error) -> Error {
    let message = format!("{}; it is unknown whether the object was changed", error.message());
    match error.kind() {
        ErrorKind::Unavailable => error.with_message(message),
        _ => Error::with_source(Reason::Io, message, error),
    }
}
