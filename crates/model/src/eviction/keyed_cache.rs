//! A cache without data: a policy and an index by key, for simulations.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};

/// An index of entries by key, whose entries a policy admits and evicts.
///
/// Callers know keys only, so that a policy never gets a slot that is not occupied. The blocks of all entries never
/// exceed the capacity.
#[derive(Debug)]
pub struct KeyedCache<P> {
    policy: P,
    capacity: Capacity,
    blocks: u64,
    slots: HashMap<u64, Slot, BuildHasherDefault<KeyHasher>>,
    entries: SlotEntries,
    free: Vec<Slot>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The entry was in the cache.
    Hit,
    /// The entry was not in the cache, and was inserted.
    Inserted,
    /// The entry was not in the cache and is not worth a place, or is larger than the cache.
    Bypassed,
}

#[derive(Debug)]
struct SlotEntries(Vec<Entry>);

impl Entries for SlotEntries {
    fn entry(&self, slot: Slot) -> Entry {
        self.0[slot as usize]
    }
}

impl<P: EvictionPolicy> KeyedCache<P> {
    /// An empty cache. The policy must have the same capacity, and no entries.
    #[must_use]
    pub fn new(capacity: Capacity, policy: P) -> Self {
        let slots = capacity.slots as usize;
        Self {
            policy,
            capacity,
            blocks: 0,
            slots: HashMap::with_capacity_and_hasher(slots, BuildHasherDefault::default()),
            entries: SlotEntries(vec![Entry { key: 0, blocks: 0, class: 0 }; slots]),
            free: (0..capacity.slots).rev().collect(),
        }
    }

    /// Requests an entry: records a hit, or inserts the entry in place of others if the policy admits it. An entry
    /// whose size or class has changed is a miss.
    pub fn request(&mut self, entry: &Entry) -> Lookup {
        if let Some(&slot) = self.slots.get(&entry.key) {
            if self.entries.entry(slot) == *entry {
                self.policy.hit(slot, entry);
                return Lookup::Hit;
            }
            self.remove(entry.key);
        }
        let is_admitted = self.policy.admits(entry);
        let is_too_large = u64::from(entry.blocks) > self.capacity.blocks || self.capacity.slots == 0;
        if !is_admitted || is_too_large {
            return Lookup::Bypassed;
        }
        self.insert(entry);
        Lookup::Inserted
    }

    /// Removes an entry. Returns false if it is not in the cache.
    pub fn remove(&mut self, key: u64) -> bool {
        let Some(slot) = self.slots.remove(&key) else { return false };
        let entry = self.entries.entry(slot);
        self.policy.remove(slot, &entry);
        self.release(slot, &entry);
        true
    }

    /// Returns true if the cache has an entry of this key.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        self.slots.contains_key(&key)
    }

    /// Blocks of all entries.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, for changes of its settings.
    pub const fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// All entries, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.slots.values().map(|&slot| self.entries.entry(slot))
    }

    fn insert(&mut self, entry: &Entry) {
        while self.free.is_empty() || self.blocks + u64::from(entry.blocks) > self.capacity.blocks {
            assert!(self.evict(), "the policy evicts nothing from a full cache");
        }
        let slot = self.free.pop().expect("an eviction freed a slot");
        self.entries.0[slot as usize] = *entry;
        self.slots.insert(entry.key, slot);
        self.blocks += u64::from(entry.blocks);
        self.policy.insert(slot, entry);
        while self.policy.has_excess() && self.evict() {}
    }

    fn evict(&mut self) -> bool {
        let Some(victim) = self.policy.evict(&self.entries) else { return false };
        let entry = self.entries.entry(victim);
        let removed = self.slots.remove(&entry.key);
        assert_eq!(removed, Some(victim), "the policy evicted a free slot");
        self.release(victim, &entry);
        true
    }

    fn release(&mut self, slot: Slot, entry: &Entry) {
        self.blocks -= u64::from(entry.blocks);
        self.free.push(slot);
    }
}

#[cfg(test)]
impl KeyedCache<super::AdaptiveWindow> {
    /// Pins the entry of a key if it is in the cache. Returns false if it is not, or the bound of pins has no room.
    pub(super) fn pin(&mut self, key: u64) -> bool {
        let Some(&slot) = self.slots.get(&key) else { return false };
        self.policy.pin(slot, &self.entries.entry(slot))
    }

    /// Unpins all entries of a class. Returns their number.
    pub(super) fn unpin_class(&mut self, class: u8) -> u32 {
        self.policy.unpin_class(class, u32::MAX, &self.entries)
    }
}

/// Passes keys through: they are hashes.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}
