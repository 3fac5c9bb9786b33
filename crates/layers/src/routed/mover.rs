//! The mover: moves objects to the tier of their class after the policy, the class or the known size has changed, and
//! deletes hidden copies that interrupted changes left. It has no state: a pass that was interrupted is repeated.
//!
//! How one object is moved is in `movement`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::warn;
use tradewind_core::error::{ErrorKind, Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::{Address, BucketName, Context, ObjectKey};
use tradewind_model::token_bucket::TokenBucket;

use super::movement::Movement;
use super::tier_set::{Change, TierSet, VisibleCopy};

/// Objects that wait to be moved before a whole pass replaces them.
const MAX_QUEUED_OBJECTS: usize = 1024;
/// Keys per listing request.
const PAGE_KEYS: usize = 1000;

/// Limits of the mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveLimits {
    /// Bytes per second, at least 1.
    pub bytes_per_second: u64,
    /// Objects in progress, at least 1.
    pub concurrency: usize,
}

/// The result of a pass of the mover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Objects moved to another tier.
    pub moved: u64,
    /// Bytes of these objects.
    pub moved_bytes: u64,
    /// Hidden copies deleted.
    pub hidden_deleted: u64,
    /// Objects that are in another tier than that of their class, because that tier cannot keep their identity, or
    /// because their own tier does not report their parts.
    pub unmovable: u64,
    /// Objects that could not be moved now.
    pub failed: u64,
}

/// Moves the objects of one routed store.
#[derive(Debug)]
pub struct Mover {
    pub(super) set: Arc<TierSet>,
    limits: MoveLimits,
    bucket: Mutex<Option<TokenBucket>>,
}

/// Objects whose tier may be another one since their last change.
#[derive(Debug)]
pub(super) struct MoveQueue {
    sender: mpsc::Sender<Address>,
    receiver: tokio::sync::Mutex<mpsc::Receiver<Address>>,
    /// An object was not added.
    is_incomplete: AtomicBool,
}

impl MoveQueue {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_OBJECTS);
        Self { sender, receiver: tokio::sync::Mutex::new(receiver), is_incomplete: AtomicBool::new(false) }
    }

    /// Adds an object. If the queue is full, a pass has to find the object.
    pub fn push(&self, address: &Address) {
        if self.sender.try_send(address.clone()).is_err() {
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
    }
}

/// The result for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    InPlace,
    Bytes(u64),
    Unmovable,
}

impl MoveReport {
    fn add(&mut self, moved: Moved, hidden: u64) {
        self.hidden_deleted += hidden;
        match moved {
            Moved::InPlace => {}
            Moved::Bytes(bytes) => {
                self.moved += 1;
                self.moved_bytes += bytes;
            }
            Moved::Unmovable => self.unmovable += 1,
        }
    }
}

impl Mover {
    pub(super) fn new(set: Arc<TierSet>, limits: MoveLimits) -> Self {
        Self { set, limits, bucket: Mutex::new(None) }
    }

    /// Visits all objects of the buckets that `is_served` names, and moves those that are in another tier than that of their
    /// class. The base may have buckets of other volumes, whose objects must stay where those look for them. A tier that is
    /// away ends the pass with an error; an object that cannot be moved does not.
    pub async fn run_pass(
        &self,
        context: &Context,
        is_served: impl Fn(&BucketName) -> bool,
    ) -> Result<MoveReport> {
        let base = &self.set.tiers[self.set.base()];
        let mut report = MoveReport::default();
        let buckets = base.named(base.store.list_buckets(context).await)?;
        for bucket in buckets.into_iter().filter(|bucket| is_served(&bucket.name)) {
            match self.set.prepare_bucket(context, self.set.base(), &bucket.name).await {
                Ok(()) => {}
                // Deleted meanwhile.
                Err(error) if error.reason() == Reason::NoSuchBucket => continue,
                Err(error) if error.reason() == Reason::Unsupported => {
                    warn!(%error, bucket = %bucket.name, "the objects of a bucket stay in their tiers");
                    continue;
                }
                Err(error) => return Err(error),
            }
            for tier in 0..self.set.tiers.len() {
                self.run_bucket(context, tier, &bucket.name, &mut report).await?;
            }
        }
        Ok(report)
    }

    /// Waits for an object whose class was changed, or whose size was unknown when its write began. Returns `None` if
    /// too many wait: then a pass is due.
    pub async fn next_object(&self) -> Option<Address> {
        let queue = &self.set.queue;
        let next = queue.receiver.lock().await.recv().await;
        if queue.is_incomplete.swap(false, Ordering::Relaxed) { None } else { next }
    }

    /// Moves one object, if it is in another tier than that of its class.
    pub async fn run_object(&self, context: &Context, address: &Address) -> Result<MoveReport> {
        let mut report = MoveReport::default();
        let (moved, hidden) = self.correct_tier(context, address).await?;
        report.add(moved, hidden);
        Ok(report)
    }

    async fn run_bucket(
        &self,
        context: &Context,
        tier: usize,
        bucket: &BucketName,
        report: &mut MoveReport,
    ) -> Result<()> {
        let tier = &self.set.tiers[tier];
        let mut request = ListRequest { limit: PAGE_KEYS, ..ListRequest::default() };
        loop {
            let page = match tier.store.list(context, bucket, &request).await {
                // Deleted meanwhile, or not in this tier.
                Err(error) if error.reason() == Reason::NoSuchBucket => return Ok(()),
                listed => tier.named(listed)?,
            };
            let keys = page.entries.into_iter().filter_map(|entry| match entry {
                ListEntry::Key(key, _) => ObjectKey::new(&key).ok(),
                ListEntry::CommonPrefix(_) => None,
            });
            let is_away = AtomicBool::new(false);
            let addresses = keys.map(|key| Address::new(bucket.clone(), key));
            let objects = futures::stream::iter(addresses)
                .take_while(|_| std::future::ready(!is_away.load(Ordering::Relaxed)))
                .map(|address| async move { self.correct_tier(context, &address).await });
            let mut objects = objects.buffer_unordered(self.limits.concurrency.max(1));
            let mut away = Ok(());
            while let Some(corrected) = objects.next().await {
                match corrected {
                    Ok((moved, hidden)) => report.add(moved, hidden),
                    // Moves in progress end before the pass does, so that they can undo what they began.
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        is_away.store(true, Ordering::Relaxed);
                        away = away.and(Err(error));
                    }
                    Err(error) => {
                        warn!(%error, %bucket, "cannot move an object to the tier of its class");
                        report.failed += 1;
                    }
                }
            }
            away?;
            match page.next {
                Some(next) => request.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Deletes hidden copies of an object, and moves it if it is misplaced. Returns the number of copies deleted, too.
    async fn correct_tier(&self, context: &Context, address: &Address) -> Result<(Moved, u64)> {
        let change = Change { set: self.set.clone(), context: context.clone(), address: address.clone() };
        let mut copies = change.find_copies().await;
        let mut hidden = 0;
        if copies.holders().nth(1).is_some() {
            let delete = |change: Change| async move { change.delete_hidden().await };
            hidden = self.set.change(context, address, delete).await?;
            copies = change.find_copies().await;
        }
        let Some(VisibleCopy { tier, info }) = copies.visible()? else { return Ok((Moved::InPlace, hidden)) };
        let target = self.set.place(&info.metadata, Some(info.size));
        if target == tier {
            return Ok((Moved::InPlace, hidden));
        }
        // Without these, the copy could not take its place.
        copies.check_first(target)?;
        let movement = Movement { mover: self, context, address, from: tier, to: target, info };
        Ok((movement.run().await?, hidden))
    }

    /// Waits until these bytes may pass.
    pub(super) async fn throttle(&self, context: &Context, bytes: u64) -> Result<()> {
        let clock = context.deadline.clock();
        let now = clock.now();
        let until: Duration = {
            let mut bucket = self.bucket.lock();
            bucket
                .get_or_insert_with(|| TokenBucket::new(self.limits.bytes_per_second, now))
                .reserve(bytes, now)
        };
        context.guard(clock.sleep_until(until)).await
    }
}

impl Change {
    /// Deletes all copies but the visible one. Returns their number.
    async fn delete_hidden(&self) -> Result<u64> {
        let copies = self.find_copies().await;
        let Some(VisibleCopy { tier: visible, .. }) = copies.visible()? else { return Ok(0) };
        let _move = self.set.locks.begin_move(&self.address);
        let mut deleted = 0;
        for holder in copies.holders().filter(|holder| *holder != visible) {
            self.delete_copy(holder).await?;
            deleted += 1;
        }
        Ok(deleted)
    }
}
