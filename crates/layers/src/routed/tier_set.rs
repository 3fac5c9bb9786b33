//! The tiers of a routed store, with what all operations share: locks, buckets, and tasks that outlive their caller.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::{
    Address, BucketName, Context, Generation, Metadata, ObjectInfo, ObjectStore, Precondition, Versioning,
};

use super::locks::{KeyGuard, Locks};
use super::mover::MoveQueue;
use super::placement::Placement;
use crate::store_error::StoreName;

/// Reads that look into the tiers without a lock before one takes it.
const MAX_UNLOCKED_READS: usize = 3;

/// A store that holds the objects of some classes.
#[derive(Debug, Clone)]
pub struct Tier {
    /// Name.
    pub name: String,
    /// The store.
    pub store: Arc<dyn ObjectStore>,
}

impl Tier {
    /// Names the tier in an error that is about its store.
    pub(super) fn named<T>(&self, result: Result<T>) -> Result<T> {
        StoreName { role: "tier", name: &self.name }.in_error(result)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct TierSet {
    /// By precedence. The last one is the base.
    pub tiers: Vec<Tier>,
    pub locks: Locks,
    pub placement: Box<dyn Placement>,
    /// Changes in progress.
    pub tasks: TaskTracker,
    /// Objects to be moved.
    pub queue: MoveQueue,
    known_buckets: Mutex<HashSet<KnownBucket>>,
}

/// A bucket that exists.
#[derive(Debug, PartialEq, Eq, Hash)]
struct KnownBucket {
    /// The tier in which it was prepared for changes.
    ready_in: Option<usize>,
    bucket: BucketName,
}

/// A result, and the tier that returned it.
#[derive(Debug)]
pub(super) struct FromTier<T> {
    pub tier: usize,
    pub result: Result<T>,
}

impl TierSet {
    pub fn new(tiers: Vec<Tier>, placement: Box<dyn Placement>) -> Self {
        Self {
            tiers,
            locks: Locks::new(),
            placement,
            tasks: TaskTracker::new(),
            queue: MoveQueue::new(),
            known_buckets: Mutex::default(),
        }
    }

    /// The index of the last tier.
    pub fn base(&self) -> usize {
        self.tiers.len() - 1
    }

    /// The tier for an object.
    pub fn place(&self, metadata: &Metadata, size: Option<u64>) -> usize {
        self.placement.tier(metadata, size).min(self.base())
    }

    /// The generation of an object of a tier: distinct from those of other tiers.
    pub fn generation(&self, tier: usize, inner: Generation) -> Generation {
        Generation(inner.0.wrapping_mul(self.tiers.len() as u64).wrapping_add(tier as u64))
    }

    /// The metadata of an object of a tier, as clients see it.
    pub fn outer_info(&self, tier: usize, info: ObjectInfo) -> ObjectInfo {
        ObjectInfo { generation: self.generation(tier, info.generation), ..info }
    }

    /// Returns true if the error of a tier says that it does not have the object. Only the base knows whether a bucket
    /// exists: other tiers get it with their first object.
    pub fn is_miss(&self, tier: usize, error: &Error) -> bool {
        match error.reason() {
            Reason::NoSuchKey | Reason::NoSuchVersion => true,
            // The id may be of a version in the base, whose ids have another form.
            Reason::NoSuchBucket | Reason::InvalidVersionId => tier != self.base(),
            _ => false,
        }
    }

    /// Reads from the first tier that has the object. The result is that of a moment during the call, although the
    /// object may change its tier meanwhile.
    pub async fn read<'a, T>(
        &'a self,
        context: &Context,
        address: &Address,
        call: impl Fn(&'a Tier) -> BoxFuture<'a, Result<T>>,
    ) -> Result<FromTier<T>> {
        self.check_bucket(context, &address.bucket).await?;
        let moves = self.locks.moves_of_key(address);
        for _ in 0..MAX_UNLOCKED_READS {
            let before = moves.at_rest();
            let read = self.read_in_order(&call).await;
            // An object in the first tier is always visible.
            if read.tier == 0 || moves.is_still(before) {
                return Ok(read);
            }
        }
        let _guard = context.guard(self.locks.lock_key(address)).await?;
        Ok(self.read_in_order(&call).await)
    }

    async fn read_in_order<'a, T>(
        &'a self,
        call: impl Fn(&'a Tier) -> BoxFuture<'a, Result<T>>,
    ) -> FromTier<T> {
        for (index, tier) in self.tiers.iter().enumerate() {
            match call(tier).await {
                Err(error) if index < self.base() && self.is_miss(index, &error) => {}
                result => return FromTier { tier: index, result: tier.named(result) },
            }
        }
        FromTier { tier: self.base(), result: Err(Error::new(Reason::Defect, "a routed store has no tier")) }
    }

    /// Runs a change of a key, alone and to its end: also if the caller stops waiting, because a change that has
    /// touched one tier must reach the others. Nothing is changed if the deadline passes before the change begins.
    pub async fn change<T, F>(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        work: impl FnOnce(Change) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let guard = context.guard(self.locks.lock_key(address)).await?;
        context.check()?;
        let change =
            Change { set: self.clone(), context: without_deadline(context), address: address.clone() };
        let work = work(change);
        self.run_to_end(context, async move {
            let _guard: KeyGuard = guard;
            work.await
        })
        .await
    }

    /// Runs work to its end, although the caller may stop waiting.
    pub async fn run_to_end<T: Send + 'static>(
        &self,
        context: &Context,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.tasks.is_closed() {
            return Err(Error::new(Reason::ShuttingDown, "the store was closed"));
        }
        match context.guard(self.tasks.spawn(work)).await? {
            Ok(result) => result,
            Err(failed) => Err(Error::with_source(Reason::Defect, "a change did not end", failed)),
        }
    }

    /// Fails if the bucket does not exist.
    pub async fn check_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        context.check()?;
        if self.is_known(None, bucket) {
            return Ok(());
        }
        let _shared = context.guard(self.locks.share_bucket(bucket)).await?;
        self.check_locked_bucket(context, bucket).await
    }

    /// Fails if the bucket does not exist. The caller keeps it from being deleted.
    async fn check_locked_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        if self.is_known(None, bucket) {
            return Ok(());
        }
        let base = &self.tiers[self.base()];
        base.named(base.store.head_bucket(context, bucket).await)?;
        self.remember(None, bucket);
        Ok(())
    }

    /// Prepares a bucket for changes in a tier: creates it there if necessary. Fails if it keeps versions.
    pub async fn prepare_bucket(&self, context: &Context, tier: usize, bucket: &BucketName) -> Result<()> {
        self.check_bucket(context, bucket).await?;
        if self.is_known(Some(tier), bucket) {
            return Ok(());
        }
        let _shared = context.guard(self.locks.share_bucket(bucket)).await?;
        // It may have been deleted while this waited: then it must not be created in the tier.
        self.check_locked_bucket(context, bucket).await?;
        let Tier { store, .. } = &self.tiers[tier];
        let prepared = async {
            match store.versioning(context, bucket).await {
                Ok(Versioning::Off) => return Ok(()),
                Ok(Versioning::Enabled | Versioning::Suspended) => {
                    return Err(Error::unsupported(
                        "change a bucket that keeps versions in one of its tiers",
                    ));
                }
                Err(error) if error.reason() == Reason::NoSuchBucket && tier < self.base() => {}
                Err(error) => return Err(error),
            }
            match store.create_bucket(context, bucket).await {
                Err(error) if error.reason() == Reason::BucketExists => Ok(()),
                created => created,
            }
        };
        self.tiers[tier].named(prepared.await)?;
        self.remember(Some(tier), bucket);
        Ok(())
    }

    fn is_known(&self, ready_in: Option<usize>, bucket: &BucketName) -> bool {
        self.known_buckets.lock().contains(&KnownBucket { ready_in, bucket: bucket.clone() })
    }

    fn remember(&self, ready_in: Option<usize>, bucket: &BucketName) {
        self.known_buckets.lock().insert(KnownBucket { ready_in, bucket: bucket.clone() });
    }

    /// Forgets that a bucket exists.
    pub fn forget_bucket(&self, bucket: &BucketName) {
        self.known_buckets.lock().retain(|known| known.bucket != *bucket);
    }
}

/// The context of work that runs to its end.
pub(super) fn without_deadline(context: &Context) -> Context {
    let clock = context.deadline.clock().clone();
    Context { deadline: Deadline::none(clock), ..context.clone() }
}

/// A change of a key in progress: no other one is.
#[derive(Debug)]
pub(super) struct Change {
    pub set: Arc<TierSet>,
    /// Without a deadline.
    pub context: Context,
    pub address: Address,
}

/// The copies of an object, by tier.
#[derive(Debug)]
pub(super) struct Copies(Vec<Result<Option<ObjectInfo>>>);

impl Copies {
    /// The copy that clients see, and its tier. Fails if a tier that may have it is away.
    pub fn visible(&self) -> Result<Option<VisibleCopy<'_>>> {
        for (tier, copy) in self.0.iter().enumerate() {
            match copy {
                Ok(Some(info)) => return Ok(Some(VisibleCopy { tier, info })),
                Ok(None) => {}
                Err(error) => return Err(copy_of_error(error)),
            }
        }
        Ok(None)
    }

    /// The tiers that have a copy, the last one first: in the order in which copies are deleted, so that none becomes
    /// visible that was hidden. A damaged copy is one, too.
    pub fn holders(&self) -> impl Iterator<Item = usize> {
        let has_copy = |copy: &Result<Option<ObjectInfo>>| match copy {
            Ok(found) => found.is_some(),
            Err(error) => is_damaged(error),
        };
        self.0.iter().enumerate().rev().filter(move |(_, copy)| has_copy(copy)).map(|(tier, _)| tier)
    }

    /// Fails if one of the first `tiers` tiers is away, or its copy is damaged.
    pub fn check_first(&self, tiers: usize) -> Result<()> {
        self.check_errors(tiers, |_| true)
    }

    /// Fails if one of the first `tiers` tiers is away. A damaged copy can be deleted, and replaced.
    pub fn check_reachable(&self, tiers: usize) -> Result<()> {
        self.check_errors(tiers, |error| !is_damaged(error))
    }

    fn check_errors(&self, tiers: usize, counts: impl Fn(&Error) -> bool) -> Result<()> {
        let errors = self.0.iter().take(tiers).filter_map(|copy| copy.as_ref().err());
        match errors.into_iter().find(|error| counts(error)) {
            Some(error) => Err(copy_of_error(error)),
            None => Ok(()),
        }
    }
}

/// The copy that clients see.
#[derive(Debug, Clone, Copy)]
pub(super) struct VisibleCopy<'a> {
    pub tier: usize,
    pub info: &'a ObjectInfo,
}

/// Returns true if a tier may have an object, and cannot read its record.
fn is_damaged(error: &Error) -> bool {
    error.reason() == Reason::CorruptData
}

/// An error with the reason and the message of another one.
fn copy_of_error(error: &Error) -> Error {
    let copy = Error::new(error.reason(), error.message());
    match error.is_final() {
        true => copy.without_retry(),
        false => copy,
    }
}

impl Change {
    /// The tier with an index.
    pub fn tier(&self, index: usize) -> &Tier {
        &self.set.tiers[index]
    }

    /// Looks for copies in all tiers.
    pub async fn find_copies(&self) -> Copies {
        let heads = self.set.tiers.iter().enumerate().map(|(index, tier)| async move {
            let found = tier.store.head(&self.context, &self.address, GetRequest::default()).await;
            match found {
                Ok(found) => Ok(Some(found.info)),
                Err(error) if self.set.is_miss(index, &error) => Ok(None),
                Err(error) => tier.named(Err(error)),
            }
        });
        Copies(join_all(heads).await)
    }

    /// Evaluates a precondition against the copy that clients see.
    pub fn check(&self, copies: &Copies, precondition: &Precondition) -> Result<()> {
        if *precondition == Precondition::None {
            return Ok(());
        }
        let visible = copies.visible()?;
        let current = visible
            .map(|VisibleCopy { tier, info }| (&info.etag, self.set.generation(tier, info.generation)));
        precondition.check(self.address.key.as_str(), current)
    }
}
