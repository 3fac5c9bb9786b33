//! Locks of keys and buckets, in stripes, and counters of the changes that touch several tiers. A reader that looks
//! into one tier after another compares the counter before and after: an equal one means that no object changed its
//! tier.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tradewind_core::{Address, BucketName};

const KEY_STRIPES: usize = 1024;
const BUCKET_STRIPES: usize = 64;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Locks {
    hasher: RandomState,
    keys: Vec<KeyStripe>,
    buckets: Vec<BucketStripe>,
}

#[derive(Debug, Default)]
struct KeyStripe {
    lock: Arc<Mutex<()>>,
    moves: Arc<MoveCounter>,
}

#[derive(Debug, Default)]
struct BucketStripe {
    gate: Arc<RwLock<()>>,
    moves: Arc<MoveCounter>,
}

/// The right to change a key: no other change of it is in progress, and its bucket is not being deleted.
#[derive(Debug)]
pub(super) struct KeyGuard {
    _bucket: OwnedRwLockReadGuard<()>,
    _key: OwnedMutexGuard<()>,
}

impl Locks {
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            keys: (0..KEY_STRIPES).map(|_| KeyStripe::default()).collect(),
            buckets: (0..BUCKET_STRIPES).map(|_| BucketStripe::default()).collect(),
        }
    }

    /// Waits for the right to change a key.
    pub async fn lock_key(&self, address: &Address) -> KeyGuard {
        let bucket = self.share_bucket(&address.bucket).await;
        KeyGuard { _bucket: bucket, _key: self.key(address).lock.clone().lock_owned().await }
    }

    /// Waits until the bucket is not being deleted, and keeps it from being deleted.
    pub async fn share_bucket(&self, bucket: &BucketName) -> OwnedRwLockReadGuard<()> {
        self.bucket(bucket).gate.clone().read_owned().await
    }

    /// Waits until no key of the bucket is being changed, and keeps all from being changed.
    pub async fn lock_bucket(&self, bucket: &BucketName) -> OwnedRwLockWriteGuard<()> {
        self.bucket(bucket).gate.clone().write_owned().await
    }

    /// The counter of moves of a key.
    pub fn moves_of_key(&self, address: &Address) -> &MoveCounter {
        &self.key(address).moves
    }

    /// The counter of moves in a bucket.
    pub fn moves_in_bucket(&self, bucket: &BucketName) -> &MoveCounter {
        &self.bucket(bucket).moves
    }

    /// Counts a change of a key that touches several tiers. It ends when the result is dropped.
    pub fn begin_move(&self, address: &Address) -> [MoveInProgress; 2] {
        [&self.key(address).moves, &self.bucket(&address.bucket).moves].map(MoveInProgress::begin)
    }

    fn key(&self, address: &Address) -> &KeyStripe {
        &self.keys[self.stripe(&(&address.bucket, &address.key), KEY_STRIPES)]
    }

    fn bucket(&self, bucket: &BucketName) -> &BucketStripe {
        &self.buckets[self.stripe(&bucket, BUCKET_STRIPES)]
    }

    #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
    fn stripe(&self, value: &impl std::hash::Hash, stripes: usize) -> usize {
        self.hasher.hash_one(value) as usize % stripes
    }
}

/// Counts moves: changes that touch several tiers.
#[derive(Debug, Default)]
pub(super) struct MoveCounter {
    started: AtomicU64,
    ended: AtomicU64,
}

impl MoveCounter {
    /// The number of moves so far; `None` while one is in progress.
    pub fn at_rest(&self) -> Option<u64> {
        // In this order: a move that begins in between makes the numbers differ.
        let ended = self.ended.load(Ordering::SeqCst);
        (self.started.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    /// Returns true if no move has started since [`Self::at_rest`] returned `before`.
    pub fn is_still(&self, before: Option<u64>) -> bool {
        before == Some(self.started.load(Ordering::SeqCst))
    }
}

/// A move in progress.
#[derive(Debug)]
pub(super) struct MoveInProgress(Arc<MoveCounter>);

impl MoveInProgress {
    fn begin(counter: &Arc<MoveCounter>) -> Self {
        counter.started.fetch_add(1, Ordering::SeqCst);
        Self(counter.clone())
    }
}

impl Drop for MoveInProgress {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_reports_moves_in_progress_and_past_ones() {
        let counter = Arc::new(MoveCounter::default());
        let before = counter.at_rest();
        assert!(counter.is_still(before));
        let (one, other) = (MoveInProgress::begin(&counter), MoveInProgress::begin(&counter));
        assert!(counter.at_rest().is_none() && !counter.is_still(before));
        drop(one);
        assert!(counter.at_rest().is_none() && !counter.is_still(None));
        drop(other);
        assert!(counter.is_still(counter.at_rest()) && !counter.is_still(before));
    }
}
