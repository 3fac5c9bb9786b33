//! Changes in flight, by key. They keep cached objects linearizable with the writes that pass through the cache.
//!
//! A fixed array of stripes, by hash of the key; keys that share a stripe only cost hits. Each stripe counts the
//! changes in flight and all changes so far:
//! - While a change of a key is in flight, reads of it go to the backing store and fill nothing.
//! - A fill takes a [`Token`] before it reads the backing store, and inserts only if the token is still current. The
//!   tiers compare it under their lock, and the change removes the cached object under the same lock before it ends.
//! - A change whose outcome is unknown may still be applied later. For [`UNCERTAIN_WINDOW`], cached objects of the
//!   stripe are compared with the backing store on every read, and afterwards once.
//!
//! Changes of a whole bucket (its versioning, its deletion) are counted in stripes of their own, and remembered by a
//! sequence number: objects that were cached before are compared once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The number of stripes; a power of two.
const STRIPES: usize = 4096;

/// The time for which a request whose outcome is unknown may still be applied.
pub(crate) const UNCERTAIN_WINDOW: Duration = Duration::from_secs(600);

/// Buckets whose last changes are known one by one. One more lets the objects of all buckets be compared once.
const MAX_CHANGED_BUCKETS: usize = 4096;

/// One change in flight, in the low bits of a stripe's state; above them is the count of all begins and ends.
const IN_FLIGHT: u64 = 1;
const IN_FLIGHT_MASK: u64 = (1 << 20) - 1;
const CHANGE: u64 = 1 << 20;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Changes {
    keys: Box<[KeyStripe]>,
    /// The latest time for all keys, as in [`KeyStripe`].
    all_uncertain_until: AtomicU64,
    buckets: Box<[AtomicU64]>,
    /// Like that of a [`KeyStripe`], for the keys of a bucket.
    buckets_uncertain_until: Box<[AtomicU64]>,
    changed_buckets: Mutex<ChangedBuckets>,
    sequence: AtomicU64,
}

/// The sequence numbers of the last changes of buckets.
#[derive(Debug, Default)]
struct ChangedBuckets {
    /// By hash; at most [`MAX_CHANGED_BUCKETS`].
    by_bucket: HashMap<u64, u64>,
    /// That of all other buckets.
    others: u64,
}

impl ChangedBuckets {
    fn insert(&mut self, bucket: u64, sequence: u64) {
        if self.by_bucket.len() >= MAX_CHANGED_BUCKETS && !self.by_bucket.contains_key(&bucket) {
            self.by_bucket.clear();
            self.others = sequence;
        }
        self.by_bucket.insert(bucket, sequence);
    }

    fn last_change(&self, bucket: u64) -> u64 {
        self.by_bucket.get(&bucket).copied().unwrap_or(self.others)
    }
}

#[derive(Debug, Default)]
struct KeyStripe {
    state: AtomicU64,
    /// Milliseconds since the clock's origin; 0 if no outcome was ever unknown.
    uncertain_until: AtomicU64,
    /// See [`Changes::observed_at`], in nanoseconds since the clock's origin.
    observed_at: AtomicU64,
}

/// The state of a key and its bucket, in hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyHash {
    /// Of bucket and key.
    pub key: u64,
    /// Of the bucket.
    pub bucket: u64,
}

/// Proof that no change of a key was in flight at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    hash: KeyHash,
    key_state: u64,
    bucket_state: u64,
    /// The sequence number of bucket changes at that moment.
    pub sequence: u64,
}

impl Token {
    /// The key.
    pub const fn hash(&self) -> KeyHash {
        self.hash
    }
}

/// The subject of a change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope {
    Key(KeyHash),
    Bucket(u64),
}

/// A change in flight. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Change {
    changes: Arc<Changes>,
    scope: Scope,
    /// The state of the key once this change ended, unless another one overlaps it.
    token_after: Option<Token>,
}

impl Changes {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            keys: (0..STRIPES).map(|_| KeyStripe::default()).collect(),
            all_uncertain_until: AtomicU64::new(0),
            buckets: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            buckets_uncertain_until: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            changed_buckets: Mutex::default(),
            sequence: AtomicU64::new(1),
        })
    }

    /// A token, unless a change is in flight.
    pub fn token(&self, hash: KeyHash) -> Option<Token> {
        let token = Token {
            hash,
            sequence: self.sequence.load(Ordering::SeqCst),
            bucket_state: self.buckets[stripe(hash.bucket)].load(Ordering::SeqCst),
            key_state: self.keys[stripe(hash.key)].state.load(Ordering::SeqCst),
        };
        ((token.key_state | token.bucket_state) & IN_FLIGHT_MASK == 0).then_some(token)
    }

    /// Returns true if no change began since the token was taken.
    pub fn is_current(&self, token: &Token) -> bool {
        self.buckets[stripe(token.hash.bucket)].load(Ordering::SeqCst) == token.bucket_state
            && self.keys[stripe(token.hash.key)].state.load(Ordering::SeqCst) == token.key_state
    }

    /// The sequence number since which the bucket is unchanged.
    pub fn unchanged_since(&self, bucket: u64) -> u64 {
        if self.sequence.load(Ordering::SeqCst) == 1 {
            return 0;
        }
        self.changed_buckets.lock().last_change(bucket)
    }

    /// The time from which on a comparison with the backing store counts.
    pub fn uncertain_until(&self, hash: KeyHash) -> Duration {
        let of_key = self.keys[stripe(hash.key)].uncertain_until.load(Ordering::SeqCst);
        let of_bucket = self.buckets_uncertain_until[stripe(hash.bucket)].load(Ordering::SeqCst);
        let of_all = self.all_uncertain_until.load(Ordering::SeqCst);
        Duration::from_millis(of_key.max(of_bucket).max(of_all))
    }

    /// The begin of the last read that returned an object of the backing store which the cache may not have: what was compared
    /// before may be older than what a client has seen. For this key and some others.
    pub fn observed_at(&self, hash: KeyHash) -> Duration {
        Duration::from_nanos(self.keys[stripe(hash.key)].observed_at.load(Ordering::SeqCst))
    }

    /// Notes such a read, which began at `time`.
    pub fn note_observed(&self, hash: KeyHash, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.keys[stripe(hash.key)].observed_at.fetch_max(nanos, Ordering::SeqCst);
    }

    /// Lets all that is compared within [`UNCERTAIN_WINDOW`] from `now` on be compared again: a request whose outcome is
    /// unknown may be for any key.
    pub fn set_all_uncertain(&self, now: Duration) {
        self.all_uncertain_until.fetch_max(end_of_window(now), Ordering::SeqCst);
    }

    /// Lets what was compared before `time` be compared again, for this key and some others.
    pub fn require_comparison(&self, hash: KeyHash, time: Duration) {
        let until = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.keys[stripe(hash.key)].uncertain_until.fetch_max(until, Ordering::SeqCst);
        self.note_observed(hash, time);
    }

    /// Begins a change.
    pub fn begin(self: &Arc<Self>, scope: Scope) -> Change {
        let before = match scope {
            Scope::Key(hash) => self.token(hash),
            Scope::Bucket(_) => None,
        };
        let previous = self.state(scope).fetch_add(CHANGE + IN_FLIGHT, Ordering::SeqCst);
        let token_after = before.filter(|token| token.key_state == previous);
        let token_after = token_after.map(|token| Token { key_state: previous + 2 * CHANGE, ..token });
        Change { changes: self.clone(), scope, token_after }
    }

    fn state(&self, scope: Scope) -> &AtomicU64 {
        match scope {
            Scope::Key(hash) => &self.keys[stripe(hash.key)].state,
            Scope::Bucket(bucket) => &self.buckets[stripe(bucket)],
        }
    }
}

impl Change {
    /// A token of the moment at which this change ends. It is not current if another change overlaps or follows.
    pub const fn token_after(&self) -> Option<Token> {
        self.token_after
    }

    /// Marks the outcome as unknown.
    pub fn set_uncertain(&self, now: Duration) {
        match self.scope {
            Scope::Bucket(bucket) => {
                self.set_bucket_changed();
                let until = &self.changes.buckets_uncertain_until[stripe(bucket)];
                until.fetch_max(end_of_window(now), Ordering::SeqCst);
            }
            Scope::Key(hash) => {
                let stripe = &self.changes.keys[stripe(hash.key)];
                stripe.uncertain_until.fetch_max(end_of_window(now), Ordering::SeqCst);
            }
        }
    }

    /// Lets all objects of the bucket be compared with the backing store.
    pub fn set_bucket_changed(&self) {
        let Scope::Bucket(bucket) = self.scope else { return };
        let mut buckets = self.changes.changed_buckets.lock();
        let sequence = self.changes.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        buckets.insert(bucket, sequence);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.changes.state(self.scope).fetch_add(CHANGE - IN_FLIGHT, Ordering::SeqCst);
    }
}

/// In milliseconds since the clock's origin.
fn end_of_window(now: Duration) -> u64 {
    u64::try_from((now + UNCERTAIN_WINDOW).as_millis()).unwrap_or(u64::MAX)
}

fn stripe(hash: u64) -> usize {
    usize::try_from(hash >> 32).unwrap_or(0) & (STRIPES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: KeyHash = KeyHash { key: 7 << 32, bucket: 9 << 32 };

    #[test]
    fn token_is_current_until_a_change_begins() {
        let changes = Changes::new();
        let token = changes.token(HASH).unwrap();
        assert!(changes.is_current(&token));
        let change = changes.begin(Scope::Key(HASH));
        assert!(changes.token(HASH).is_none() && !changes.is_current(&token));
        drop(change);
        assert!(changes.token(HASH).is_some() && !changes.is_current(&token));
        let token = changes.token(HASH).unwrap();
        let change = changes.begin(Scope::Bucket(HASH.bucket));
        assert!(changes.token(HASH).is_none() && !changes.is_current(&token));
        drop(change);
        assert!(changes.token(HASH).is_some() && !changes.is_current(&token));
    }

    #[test]
    fn concurrent_changes_keep_the_key_changing_until_the_last_ends() {
        let changes = Changes::new();
        let (first, second) = (changes.begin(Scope::Key(HASH)), changes.begin(Scope::Key(HASH)));
        drop(first);
        assert!(changes.token(HASH).is_none());
        drop(second);
        assert!(changes.token(HASH).is_some());
    }

    #[test]
    fn token_after_a_change_is_current_unless_another_overlaps_or_follows() {
        let changes = Changes::new();
        let change = changes.begin(Scope::Key(HASH));
        let token = change.token_after().unwrap();
        assert!(!changes.is_current(&token));
        drop(change);
        assert!(changes.is_current(&token));
        let first = changes.begin(Scope::Key(HASH));
        assert!(!changes.is_current(&token));
        let second = changes.begin(Scope::Key(HASH));
        assert!(second.token_after().is_none());
        let token = first.token_after().unwrap();
        drop((first, second));
        assert!(!changes.is_current(&token));
    }

    #[test]
    fn bucket_change_is_newer_than_tokens_taken_before() {
        let changes = Changes::new();
        let before = changes.token(HASH).unwrap().sequence;
        changes.begin(Scope::Bucket(HASH.bucket)).set_bucket_changed();
        assert!(changes.unchanged_since(HASH.bucket) > before);
        assert!(changes.unchanged_since(HASH.bucket) <= changes.token(HASH).unwrap().sequence);
    }

    #[test]
    fn changes_of_many_buckets_stay_known_in_bounded_memory() {
        let changes = Changes::new();
        let change = |bucket: u64| changes.begin(Scope::Bucket(bucket)).set_bucket_changed();
        let buckets = 0..MAX_CHANGED_BUCKETS as u64 + 1;
        for bucket in buckets.clone() {
            let before = changes.sequence.load(Ordering::SeqCst);
            change(bucket);
            assert!(changes.unchanged_since(bucket) > before);
        }
        assert!(changes.changed_buckets.lock().by_bucket.len() <= MAX_CHANGED_BUCKETS);
        let newest = changes.sequence.load(Ordering::SeqCst);
        for bucket in buckets {
            // Bucket b was changed as number b + 2.
            assert!((bucket + 2..=newest).contains(&changes.unchanged_since(bucket)), "bucket {bucket}");
        }
    }
}
