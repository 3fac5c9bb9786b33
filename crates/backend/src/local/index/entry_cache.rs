//! A cache of recently read object entries in front of the tree, where a lookup costs several times as much as
//! everything else that a small GET does in the store.
//!
//! A lookup returns what the tree would have returned at some moment of the call. A change has three steps: it evicts
//! its keys and marks them as being changed; the tree changes; the mark is removed. A reader whose key was not cached
//! may insert what it read from the tree only if no change of the key was in progress, or started, during the read.

use std::hash::{BuildHasher as _, RandomState};

use fjall::Slice;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Number of stripes. All keys of a stripe share the state of their changes.
const STRIPES: usize = 256;

/// Overhead per entry: two allocations, its slot and its hash table entry.
const OVERHEAD_BYTES: u64 = 120;

/// The cache.
pub(super) struct EntryCache {
    entries: Cache<Box<[u8]>, Slice, EntryWeight>,
    hashing: RandomState,
    stripes: Box<[Mutex<Stripe>]>,
}

/// The changes of the keys of a stripe.
#[derive(Default)]
struct Stripe {
    /// Number of changes so far, including those in progress.
    changes_started: u64,
    /// Number of changes in progress.
    changes_in_progress: usize,
}

/// Weighs an entry by its bytes in memory.
#[derive(Clone)]
struct EntryWeight;

impl Weighter<Box<[u8]>, Slice> for EntryWeight {
    fn weight(&self, key: &Box<[u8]>, entry: &Slice) -> u64 {
        (key.len() + entry.len()) as u64 + OVERHEAD_BYTES
    }
}

impl EntryCache {
    /// A cache of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> Self {
        let typical_entry_bytes = OVERHEAD_BYTES + 120;
        let estimated_entries = usize::try_from(max_bytes / typical_entry_bytes).unwrap_or(usize::MAX);
        let hashing = RandomState::new();
        Self {
            entries: Cache::with(
                estimated_entries,
                max_bytes,
                EntryWeight,
                hashing.clone(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            hashing,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    /// The entry of `key`: cached, or read from the tree by `read`.
    pub fn get<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Slice>, E>,
    ) -> Result<Option<Slice>, E> {
        if let Some(entry) = self.entries.get(key) {
            return Ok(Some(entry));
        }
        let stripe = self.stripe(key);
        let changes_before = {
            let stripe = stripe.lock();
            (stripe.changes_in_progress == 0).then_some(stripe.changes_started)
        };
        let found = read()?;
        if let (Some(entry), Some(changes_before)) = (&found, changes_before) {
            // A copy, because a slice keeps its whole block alive.
            let (key, copy) = (Box::from(key), Slice::from(&entry[..]));
            // Inserted under the lock: a change that begins concurrently either evicts this entry or prevents it.
            let stripe = stripe.lock();
            if stripe.changes_started == changes_before {
                self.entries.insert(key, copy);
            }
        }
        Ok(found)
    }

    /// Evicts the keys that are about to change. Until the guard is dropped, they are not cached again.
    pub fn begin_change<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> ChangeGuard<'_> {
        let stripes = keys.map(|key| {
            let stripe = self.stripe(key);
            let mut state = stripe.lock();
            state.changes_started += 1;
            state.changes_in_progress += 1;
            self.entries.remove(key);
            stripe
        });
        ChangeGuard(stripes.collect())
    }

    fn stripe(&self, key: &[u8]) -> &Mutex<Stripe> {
        let hash = self.hashing.hash_one(key);
        // The high bits: the cache derives its shards and slots from the others.
        &self.stripes[(hash >> 56) as usize % STRIPES]
    }
}

/// A change in progress of some keys, given by their stripes.
pub(super) struct ChangeGuard<'a>(Vec<&'a Mutex<Stripe>>);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        for stripe in &self.0 {
            stripe.lock().changes_in_progress -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = Result<Option<Slice>, ()>;

    fn found(value: &[u8]) -> Found {
        Ok(Some(Slice::from(value)))
    }

    fn not_read() -> Found {
        panic!("the entry should be cached")
    }

    #[test]
    fn entry_is_cached_until_changed() {
        let cache = EntryCache::new(1 << 20);
        assert_eq!(cache.get(b"k", || found(b"1")).unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(cache.get(b"k", not_read).unwrap().as_deref(), Some(&b"1"[..]));
        drop(cache.begin_change([&b"k"[..]].into_iter()));
        assert_eq!(cache.get(b"k", || found(b"2")).unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(cache.get(b"absent", || Ok::<_, ()>(None)), Ok(None));
        assert_eq!(cache.get(b"absent", || found(b"3")).unwrap().as_deref(), Some(&b"3"[..]));
        assert_eq!(cache.get(b"other", || Err(())), Err(()));
    }

    #[test]
    fn key_being_changed_is_not_cached() {
        let cache = EntryCache::new(1 << 20);
        let change = cache.begin_change([&b"k"[..]].into_iter());
        cache.get(b"k", || found(b"old")).unwrap();
        drop(change);
        assert_eq!(cache.get(b"k", || found(b"new")).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn change_during_read_prevents_caching() {
        let cache = EntryCache::new(1 << 20);
        let read = || {
            drop(cache.begin_change([&b"k"[..]].into_iter()));
            found(b"old")
        };
        cache.get(b"k", read).unwrap();
        assert_eq!(cache.get(b"k", || found(b"new")).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn cache_size_is_bounded() {
        let cache = EntryCache::new(64 << 10);
        for number in 0_u32..10_000 {
            cache.get(&number.to_be_bytes(), || found(&[0; 100])).unwrap();
        }
        assert!(cache.entries.weight() <= 64 << 10, "{} bytes", cache.entries.weight());
    }
}
