//! The index of the extents on the SSD: a hash table of buckets. A full bucket overflows into the next ones and counts
//! how many entries did, so that a lookup stops early and entries never move: a position is the entry's slot in the
//! eviction policy. With the policy's 8 bytes, an entry takes less than 29 bytes at full load.
//!
//! The key is the fingerprint of a place, 64 bits: one entry for all contents of an address. Two extents may share one,
//! and two contents a tag: the header on the SSD decides.

use tradewind_model::eviction::{Entries, Entry, Slot};

use super::frames::Space;
use crate::fingerprint::{ContentTag, ExtentName};
use crate::policy::SlotEntries;

/// Entries of a bucket.
pub(crate) const BUCKET_ENTRIES: usize = 16;

/// Load at which the index is full, in percent.
const MAX_LOAD_PERCENT: usize = 90;

/// A fingerprint that no extent has.
const EMPTY: u64 = 0;

/// A count of overflown entries that is no longer exact.
const SATURATED: u8 = u8::MAX;

/// The bit that tells heads from data and objects in the form of a kind.
const HEAD_BIT: u32 = 1 << 31;

/// The bit of a head that was found without data.
const STALE_BIT: u32 = 1 << 30;

/// The kind of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    /// A small object: its head and its data.
    Object,
    /// A data extent of the content with this tag.
    Data(ContentTag),
    /// A head without its data.
    Head {
        /// The number of extents of the object's data, at most [`ExtentKind::MAX_EXTENTS`].
        extents: u32,
        /// True if none of them was in the index when that was examined last.
        is_stale: bool,
    },
}

impl ExtentKind {
    /// The highest number of extents that the kind of a head has.
    pub const MAX_EXTENTS: u32 = STALE_BIT - 1;

    /// The form in the index and in checkpoints.
    pub const fn encode(self) -> u32 {
        match self {
            Self::Object => 0,
            Self::Data(tag) => tag.0,
            Self::Head { extents, is_stale: false } => HEAD_BIT | extents,
            Self::Head { extents, is_stale: true } => HEAD_BIT | STALE_BIT | extents,
        }
    }

    pub const fn decode(encoded: u32) -> Self {
        match encoded {
            0 => Self::Object,
            tag if tag & HEAD_BIT == 0 => Self::Data(ContentTag(tag)),
            head => Self::Head { extents: head & Self::MAX_EXTENTS, is_stale: head & STALE_BIT != 0 },
        }
    }
}

/// An entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// The fingerprint of the place. The eviction policy knows the entry by it.
    pub place: u64,
    pub space: Space,
    pub class: u8,
    pub kind: ExtentKind,
}

impl IndexEntry {
    /// The view of the eviction policy.
    pub fn as_entry(&self) -> Entry {
        Entry { key: self.place, blocks: self.space.blocks(), class: self.class }
    }

    /// Returns true if the eviction policy ranks the entry. A head without data is not ranked: it follows its data.
    pub const fn is_ranked(&self) -> bool {
        !matches!(self.kind, ExtentKind::Head { .. })
    }

    /// Returns true if the entry may be the extent of this name.
    pub fn has_name(&self, name: ExtentName) -> bool {
        let content = match self.kind {
            ExtentKind::Data(tag) => Some(tag),
            ExtentKind::Object | ExtentKind::Head { .. } => None,
        };
        self.place == name.place && content == name.content
    }
}

impl Entries for Index {
    fn entry(&self, slot: Slot) -> Entry {
        // An empty slot is a broken invariant of the policy; this entry makes the caller find nothing in it.
        self.get(slot).map_or(Entry { key: 0, blocks: 1, class: 0 }, |entry| entry.as_entry())
    }
}

/// The entries that are ranked.
impl SlotEntries for Index {
    fn slots(&self) -> Slot {
        Slot::try_from(self.capacity()).unwrap_or(Slot::MAX)
    }

    fn occupied(&self, slot: Slot) -> Option<Entry> {
        self.get(slot).filter(IndexEntry::is_ranked).map(|entry| entry.as_entry())
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    places: [u64; BUCKET_ENTRIES],
    blocks: [u32; BUCKET_ENTRIES],
    /// The kinds of the extents, encoded.
    kinds: [u32; BUCKET_ENTRIES],
    /// The size of the space in the upper three bits, the class in the lower five.
    sizes: [u8; BUCKET_ENTRIES],
    /// Entries that belong here and are in a later bucket.
    overflown: u8,
}

const EMPTY_BUCKET: Bucket = Bucket {
    places: [EMPTY; BUCKET_ENTRIES],
    blocks: [0; BUCKET_ENTRIES],
    kinds: [0; BUCKET_ENTRIES],
    sizes: [0; BUCKET_ENTRIES],
    overflown: 0,
};

impl Bucket {
    fn set(&mut self, position: usize, entry: &IndexEntry) {
        self.places[position] = entry.place;
        self.blocks[position] = entry.space.block;
        self.kinds[position] = entry.kind.encode();
        self.sizes[position] = entry.space.size << 5 | entry.class & 31;
    }
}

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

    /// The slot of the extent of this name.
    pub fn find_extent(&self, name: ExtentName) -> Option<Slot> {
        self.find(name.place).filter(|slot| self.get(*slot).is_some_and(|entry| entry.has_name(name)))
    }

    /// The slot of a place.
    pub fn find(&self, place: u64) -> Option<Slot> {
        let mut bucket = self.home(place);
        for _ in 0..self.buckets.len() {
            let entries = &self.buckets[bucket];
            if let Some(position) = entries.places.iter().position(|other| *other == place) {
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
        let place = bucket.places[position];
        let size = bucket.sizes[position];
        let space = Space { block: bucket.blocks[position], size: size >> 5 };
        let kind = ExtentKind::decode(bucket.kinds[position]);
        (place != EMPTY).then_some(IndexEntry { place, space, class: size & 31, kind })
    }

    /// Adds an entry with a place that the index does not have. `None` if the index is full.
    pub fn insert(&mut self, entry: IndexEntry) -> Option<Slot> {
        if self.is_full() || entry.place == EMPTY {
            return None;
        }
        let mut at = self.home(entry.place);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(position) = bucket.places.iter().position(|other| *other == EMPTY) {
                bucket.set(position, &entry);
                self.entries += 1;
                self.changes += 1;
                return Some(slot(at, position));
            }
            bucket.overflown = bucket.overflown.saturating_add(1);
            at = self.next(at);
        }
    }

    /// Replaces the entry in a slot by another one of the same place.
    pub fn replace(&mut self, slot: Slot, entry: &IndexEntry) {
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        debug_assert_eq!(bucket.places[position], entry.place, "a slot belongs to one place");
        bucket.set(position, entry);
        self.changes += 1;
    }

    /// Changes the kind of the entry in a slot. No change that a checkpoint needs.
    pub fn set_kind(&mut self, slot: Slot, kind: ExtentKind) {
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.kinds[position] = kind.encode();
        }
    }

    /// Changes the class of the entry in a slot.
    pub fn set_class(&mut self, slot: Slot, class: u8) {
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.sizes[position] = bucket.sizes[position] & !31 | class & 31;
        }
    }

    /// Removes the entry in a slot.
    pub fn remove(&mut self, slot: Slot) -> Option<IndexEntry> {
        let entry = self.get(slot)?;
        let (bucket, position) = (slot as usize / BUCKET_ENTRIES, slot as usize % BUCKET_ENTRIES);
        self.buckets[bucket].places[position] = EMPTY;
        let mut passed = self.home(entry.place);
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

    fn home(&self, place: u64) -> usize {
        let product = u128::from(place) * self.buckets.len() as u128;
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
    fn an_extent_takes_at_most_29_bytes_with_its_policy_state() {
        let policy_bytes = 8;
        let bytes = size_of::<Bucket>() as f64 / BUCKET_ENTRIES as f64 + f64::from(policy_bytes);
        let per_entry = bytes * 100.0 / MAX_LOAD_PERCENT as f64;
        assert!(per_entry <= 29.0, "{per_entry} bytes");
    }

    proptest! {
        #[test]
        fn index_equals_a_map(
            capacity in 1_usize..60,
            steps in prop::collection::vec(
                (any::<bool>(), 1_u64..80, 0_u32..1000, 0_u8..5, 0_u8..32, any::<u32>()), 0..600),
        ) {
            let mut index = Index::new(capacity);
            let mut model: HashMap<u64, IndexEntry> = HashMap::new();
            for (is_insert, number, block, size, class, kind) in steps {
                // Few homes, so that buckets overflow.
                let place = (number % 3) << 62 | number;
                match (index.find(place), is_insert) {
                    (Some(slot), false) => {
                        prop_assert_eq!(index.remove(slot), model.remove(&place));
                    }
                    (None, true) => {
                        let kind = ExtentKind::decode(kind);
                        let entry = IndexEntry { place, space: Space { block, size }, class, kind };
                        let inserted = index.insert(entry);
                        prop_assert_eq!(inserted.is_some(), model.len() < capacity);
                        if inserted.is_some() {
                            model.insert(place, entry);
                        }
                    }
                    (Some(slot), true) => {
                        let kind = ExtentKind::decode(kind);
                        let entry = IndexEntry { place, space: Space { block, size }, class, kind };
                        index.replace(slot, &entry);
                        model.insert(place, entry);
                    }
                    (None, false) => prop_assert!(!model.contains_key(&place)),
                }
                prop_assert_eq!(index.entries(), model.len());
            }
            for (place, entry) in &model {
                let found = index.find(*place).and_then(|slot| index.get(slot));
                prop_assert_eq!(found.as_ref(), Some(entry));
            }
            let listed = (0..index.buckets()).flat_map(|bucket| index.bucket_entries(bucket)).count();
            prop_assert_eq!(listed, model.len());
        }
    }
}
