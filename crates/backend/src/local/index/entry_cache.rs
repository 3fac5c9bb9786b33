//! A cache of recently read object entries in front of the tree, where a lookup costs several times as much as
//! everything else that a small GET does in the store.
//!
//! A cached result equals what the tree would have returned at some moment of the call. A change has three steps: its
//! keys are evicted and closed, the tree changes, the keys are reopened. A reader that missed may insert its result
//! only if its key was open throughout.

use std::hash::{BuildHasher as _, RandomState};

use fjall::Slice;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Keys share a state with the others of their stripe.
const STRIPES: usize = 256;

/// Overhead per entry: two allocations, its slot and its hash table entry.
const OVERHEAD_BYTES: u64 = 120;

/// The cache.
pub(super) struct EntryCache {
    entries: Cache<Box<[u8]>, Slice, Bytes>,
    hashing: RandomState,
    stripes: Box<[Mutex<Stripe>]>,
}

/// The state of the keys of a stripe.
#[derive(Default)]
struct Stripe {
    /// Number of times that its keys were closed.
    times_closed: u64,
    /// Changes of its keys in progress.
    closed: usize,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Box<[u8]>, Slice> for Bytes {
    fn weight(&self, key: &Box<[u8]>, entry: &Slice) -> u64 {
        (key.len() + entry.len()) as u64 + OVERHEAD_BYTES
    }
}

impl EntryCache {
    /// A cache of `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        let typical = OVERHEAD_BYTES + 120;
        let count = usize::try_from(bytes / typical).unwrap_or(usize::MAX);
        let hashing = RandomState::new();
        Self {
            entries: Cache::with(
                count,
                bytes,
                Bytes,
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
        let before = {
            let stripe = stripe.lock();
            (stripe.closed == 0).then_some(stripe.times_closed)
        };
        let found = read()?;
        if let (Some(entry), Some(before)) = (&found, before) {
            // A copy, because a slice keeps its whole block alive.
            let (key, copy) = (Box::from(key), Slice::from(&entry[..]));
            // Under the lock, so that a change either sees this entry or keeps it out.
            let stripe = stripe.lock();
            if stripe.times_closed == before {
                self.entries.insert(key, copy);
            }
        }
        Ok(found)
    }

    /// Closes the keys that are about to change, until the guard is dropped.
    pub fn close<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> ClosedKeys<'_> {
        let stripes = keys.map(|key| {
            let stripe = self.stripe(key);
            let mut state = stripe.lock();
            state.times_closed += 1;
            state.closed += 1;
            self.entries.remove(key);
            stripe
        });
        ClosedKeys(stripes.collect())
    }

    fn stripe(&self, key: &[u8]) -> &Mutex<Stripe> {
        let hash = self.hashing.hash_one(key);
        // The high bits: the cache derives its shards and slots from the others.
        &self.stripes[(hash >> 56) as usize % STRIPES]
    }
}

/// A guard that keeps keys closed.
pub(super) struct ClosedKeys<'a>(Vec<&'a Mutex<Stripe>>);

impl Drop for ClosedKeys<'_> {
    fn drop(&mut self) {
        for stripe in &self.0 {
            stripe.lock().closed -= 1;
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
        drop(cache.close([&b"k"[..]].into_iter()));
        assert_eq!(cache.get(b"k", || found(b"2")).unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(cache.get(b"absent", || Ok::<_, ()>(None)), Ok(None));
        assert_eq!(cache.get(b"absent", || found(b"3")).unwrap().as_deref(), Some(&b"3"[..]));
        assert_eq!(cache.get(b"other", || Err(())), Err(()));
    }

    #[test]
    fn closed_key_is_not_cached() {
        let cache = EntryCache::new(1 << 20);
        let closed = cache.close([&b"k"[..]].into_iter());
        cache.get(b"k", || found(b"old")).unwrap();
        drop(closed);
        assert_eq!(cache.get(b"k", || found(b"new")).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn change_during_read_prevents_caching() {
        let cache = EntryCache::new(1 << 20);
        let read = || {
            drop(cache.close([&b"k"[..]].into_iter()));
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
