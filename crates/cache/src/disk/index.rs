//! The index of the extents on the SSD: a hash table of buckets. A full bucket overflows into the next ones and counts
//! how many entries did, so that a lookup stops early and entries never move: a position is the entry's slot in the
//! eviction policy. With the policy's 8 bytes, an entry takes less than 24 bytes at full load.
//!
//! The key is a fingerprint of 64 bits. Two extents may share one: the header on the SSD decides.

use tradewind_model::eviction::{Entries, Entry, Slot};

use super::frames::Space;
use crate::policy::SlotEntries;

/// Entries of a bucket.
pub(crate) const BUCKET_ENTRIES: usize = 16;

/// Load at which the index is full, in percent.
const MAX_LOAD_PERCENT: usize = 90;

/// A fingerprint that no extent has.
const EMPTY: u64 = 0;

/// A count of overflown entries that is no longer exact.
const SATURATED: u8 = u8::MAX;

/// An entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub fingerprint: u64,
    pub space: Space,
    pub class: u8,
}

impl IndexEntry {
    /// The view of the eviction policy.
    pub fn as_entry(&self) -> Entry {
        Entry { key: self.fingerprint, blocks: self.space.blocks(), class: self.class }
    }
}

impl Entries for Index {
    fn entry(&self, slot: Slot) -> Entry {
        // An empty slot is a broken invariant of the policy; this entry makes the caller find nothing in it.
        self.get(slot).map_or(Entry { key: 0, blocks: 1, class: 0 }, |entry| entry.as_entry())
    }
}

impl SlotEntries for Index {
    fn slots(&self) -> Slot {
        Slot::try_from(self.capacity()).unwrap_or(Slot::MAX)
    }

    fn occupied(&self, slot: Slot) -> Option<Entry> {
        self.get(slot).map(|entry| entry.as_entry())
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    fingerprints: [u64; BUCKET_ENTRIES],
    blocks: [u32; BUCKET_ENTRIES],
    /// The size of the space in the upper three bits, the class in the lower five.
    kinds: [u8; BUCKET_ENTRIES],
    /// Entries that belong here and are in a later bucket.
    overflown: u8,
}

const EMPTY_BUCKET: Bucket = Bucket {
    fingerprints: [EMPTY; BUCKET_ENTRIES],
    blocks: [0; BUCKET_ENTRIES],
    kinds: [0; BUCKET_ENTRIES],
    overflown: 0,
};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Vec<Bucket>,
    entries: usize,
    max_entries: usize,
    /// Insertions and removals so far.
    changes: u64,
}

impl Index {
    pub fn new(max_entries: usize) -> Self {
        let buckets = (max_entries * 100 / MAX_LOAD_PERCENT).div_ceil(BUCKET_ENTRIES).max(1);
        Self { buckets: vec![EMPTY_BUCKET; buckets], entries: 0, max_entries, changes: 0 }
    }

    /// Slots are below this: more than there may be entries.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * BUCKET_ENTRIES
    }

    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Number of insertions and removals so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn max_entries(&self) -> usize {
        self.max_entries
    }

    pub fn is_full(&self) -> bool {
        self.entries >= self.max_entries
    }

    /// The slot of a fingerprint.
    pub fn find(&self, fingerprint: u64) -> Option<Slot> {
        let mut bucket = self.home(fingerprint);
        for _ in 0..self.buckets.len() {
            let entries = &self.buckets[bucket];
            if let Some(position) = entries.fingerprints.iter().position(|other| *other == fingerprint) {
                return Some(slot(bucket, position));
            }
            if entries.overflown == 0 {
                return None;
            }
            bucket = self.next(bucket);
        }
        None
    }

    /// The entry in a slot.
    pub fn get(&self, slot: Slot) -> Option<IndexEntry> {
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        let bucket = self.buckets.get(bucket)?;
        let fingerprint = bucket.fingerprints[position];
        let kind = bucket.kinds[position];
        let space = Space { block: bucket.blocks[position], size: kind >> 5 };
        (fingerprint != EMPTY).then_some(IndexEntry { fingerprint, space, class: kind & 31 })
    }

    /// Adds an entry with a fingerprint that the index does not have. `None` if the index is full.
    pub fn insert(&mut self, entry: IndexEntry) -> Option<Slot> {
        if self.is_full() || entry.fingerprint == EMPTY {
            return None;
        }
        let mut at = self.home(entry.fingerprint);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(position) = bucket.fingerprints.iter().position(|other| *other == EMPTY) {
                bucket.fingerprints[position] = entry.fingerprint;
                bucket.blocks[position] = entry.space.block;
                bucket.kinds[position] = entry.space.size << 5 | entry.class & 31;
                self.entries += 1;
                self.changes += 1;
                return Some(slot(at, position));
            }
            bucket.overflown = bucket.overflown.saturating_add(1);
            at = self.next(at);
        }
    }

    /// Changes the class of the entry in a slot.
    pub fn set_class(&mut self, slot: Slot, class: u8) {
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.kinds[position] = bucket.kinds[position] & !31 | class & 31;
        }
    }

    /// Removes the entry in a slot.
    pub fn remove(&mut self, slot: Slot) -> Option<IndexEntry> {
        let entry = self.get(slot)?;
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        self.buckets[bucket].fingerprints[position] = EMPTY;
        let mut passed = self.home(entry.fingerprint);
        while passed != bucket {
            let overflown = &mut self.buckets[passed].overflown;
            if *overflown != SATURATED {
                *overflown -= 1;
            }
            passed = self.next(passed);
        }
        self.entries -= 1;
        self.changes += 1;
        Some(entry)
    }

    /// The entries of a bucket.
    pub fn bucket_entries(&self, bucket: usize) -> impl Iterator<Item = IndexEntry> + '_ {
        (0..BUCKET_ENTRIES).filter_map(move |position| self.get(slot(bucket, position)))
    }

    fn home(&self, fingerprint: u64) -> usize {
        let product = u128::from(fingerprint) * self.buckets.len() as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }
}

fn slot(bucket: usize, position: usize) -> Slot {
    Slot::try_from(bucket * BUCKET_ENTRIES + position).unwrap_or(Slot::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn an_extent_takes_at_most_24_bytes_with_its_policy_state() {
        let policy_bytes = 8;
        let bytes = size_of::<Bucket>() as f64 / BUCKET_ENTRIES as f64 + f64::from(policy_bytes);
        let per_entry = bytes * 100.0 / MAX_LOAD_PERCENT as f64;
        assert!(per_entry <= 24.0, "{per_entry} bytes");
    }

    proptest! {
        #[test]
        fn index_equals_a_map(
            capacity in 1_usize..60,
            steps in prop::collection::vec((any::<bool>(), 1_u64..80, 0_u32..1000, 0_u8..5, 0_u8..32), 0..600),
        ) {
            let mut index = Index::new(capacity);
            let mut model: HashMap<u64, IndexEntry> = HashMap::new();
            for (is_insert, number, block, size, class) in steps {
                // Few homes, so that buckets overflow.
                let fingerprint = (number % 3) << 62 | number;
                match (index.find(fingerprint), is_insert) {
                    (Some(slot), false) => {
                        prop_assert_eq!(index.remove(slot), model.remove(&fingerprint));
                    }
                    (None, true) => {
                        let entry = IndexEntry { fingerprint, space: Space { block, size }, class };
                        let inserted = index.insert(entry);
                        prop_assert_eq!(inserted.is_some(), model.len() < capacity);
                        if inserted.is_some() {
                            model.insert(fingerprint, entry);
                        }
                    }
                    (found, _) => prop_assert_eq!(found.is_some(), model.contains_key(&fingerprint)),
                }
                prop_assert_eq!(index.entries(), model.len());
            }
            for (fingerprint, entry) in &model {
                let found = index.find(*fingerprint).and_then(|slot| index.get(slot));
                prop_assert_eq!(found.as_ref(), Some(entry));
            }
            let listed = (0..index.buckets()).flat_map(|bucket| index.bucket_entries(bucket)).count();
            prop_assert_eq!(listed, model.len());
        }
    }
}
