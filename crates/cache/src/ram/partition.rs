//! A partition of the memory tier: entries under a limit of blocks and of slots, with an eviction policy of its own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::Address;
use tradewind_model::class_policy::FIRST_SLICES;
use tradewind_model::eviction::{CLASSES, ClassOccupancy, Entries, Entry, EvictionPolicy, MAX_SLOTS, Slot};

use super::{Placement, RAM_BLOCK_BYTES, ram_blocks};
use crate::counters::Counters;
use crate::head::{ContentId, Head};
use crate::policy::{
    AppliedPolicies, Eviction, MAX_EXCESS_EVICTIONS, MAX_STEP_ENTRIES, PinReason, Policy, SlotEntries,
    TierCapacity, TierPolicies, new_policy,
};

/// The limits of a partition, and its policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartitionLimits {
    pub bytes: usize,
    /// The policy has a slot for each of these bytes: smaller entries fill the slots before the memory.
    pub bytes_per_slot: usize,
    pub eviction: Eviction,
}

/// See the module's head.
pub(super) struct Partition {
    slots: HashMap<u64, Slot, BuildHasherDefault<FingerprintHasher>>,
    entries: RamEntries,
    free: Vec<Slot>,
    max_entries: usize,
    max_blocks: usize,
    policy: Policy,
    class_policies: AppliedPolicies,
    blocks: usize,
    counters: Arc<Counters>,
}

/// The entries by slot.
#[derive(Default)]
struct RamEntries(Vec<Option<RamEntry>>);

/// An entry of the memory tier.
pub(super) struct RamEntry {
    fingerprint: u64,
    /// The view of the eviction policy; the key is the reuse key.
    entry: Entry,
    pub value: RamValue,
}

/// The names of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct RamKeys {
    /// Identifies the entry in the tier.
    pub fingerprint: u64,
    /// Identifies it for the eviction policy: equal for the same part of the same address, whatever its content.
    pub reuse_key: u64,
}

impl RamKeys {
    /// The names of a head.
    pub const fn of_head(fingerprint: u64) -> Self {
        Self { fingerprint, reuse_key: fingerprint }
    }
}

pub(super) enum RamValue {
    Head(Arc<Head>),
    Data { content: ContentId, number: u32, bytes: Bytes },
}

impl RamEntry {
    pub fn new(keys: RamKeys, bytes: usize, class: u8, value: RamValue) -> Self {
        let entry = Entry { key: keys.reuse_key, blocks: ram_blocks(bytes), class };
        Self { fingerprint: keys.fingerprint, entry, value }
    }
}

impl RamEntries {
    fn get(&self, slot: Slot) -> Option<&RamEntry> {
        self.0.get(slot as usize)?.as_ref()
    }
}

impl Entries for RamEntries {
    fn entry(&self, slot: Slot) -> Entry {
        // An empty slot is a broken invariant of the policy; this entry makes the caller find nothing in it.
        self.get(slot).map_or(Entry { key: 0, blocks: 1, class: 0 }, |found| found.entry)
    }
}

impl SlotEntries for RamEntries {
    fn slots(&self) -> Slot {
        Slot::try_from(self.0.len()).unwrap_or(Slot::MAX)
    }

    fn occupied(&self, slot: Slot) -> Option<Entry> {
        self.get(slot).map(|found| found.entry)
    }
}

impl Partition {
    pub fn new(limits: PartitionLimits, counters: Arc<Counters>) -> Self {
        let max_blocks = limits.bytes / RAM_BLOCK_BYTES;
        let max_entries = (limits.bytes / limits.bytes_per_slot).clamp(1, MAX_SLOTS as usize);
        let capacity = TierCapacity {
            blocks: max_blocks as u64,
            slots: max_entries,
            max_entries,
            block_bytes: RAM_BLOCK_BYTES,
        };
        Self {
            slots: HashMap::default(),
            entries: RamEntries::default(),
            free: Vec::new(),
            max_entries,
            max_blocks,
            policy: new_policy(limits.eviction, capacity),
            class_policies: AppliedPolicies::new(),
            blocks: 0,
            counters,
        }
    }

    /// The head of an address. A use of it.
    pub fn use_head(&mut self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let slot = *self.slots.get(&fingerprint)?;
        let found = self.entries.get(slot)?;
        match found.value {
            RamValue::Head(ref head) if head.address == *address => {
                let (head, entry) = (head.clone(), found.entry);
                self.policy.hit(slot, &entry);
                Some(head)
            }
            _ => None,
        }
    }

    /// The head of an address. Not a use of it.
    pub fn find_head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let slot = *self.slots.get(&fingerprint)?;
        match &self.entries.get(slot)?.value {
            RamValue::Head(head) if head.address == *address => Some(head.clone()),
            _ => None,
        }
    }

    /// A data extent. A use of it.
    pub fn use_data(&mut self, fingerprint: u64, content: ContentId, number: u32) -> Option<Bytes> {
        let slot = *self.slots.get(&fingerprint)?;
        let found = self.entries.get(slot)?;
        match found.value {
            RamValue::Data { content: of, number: at, ref bytes } if of == content && at == number => {
                let (bytes, entry) = (bytes.clone(), found.entry);
                self.policy.hit(slot, &entry);
                Some(bytes)
            }
            _ => None,
        }
    }

    pub fn contains(&self, fingerprint: u64) -> bool {
        self.slots.contains_key(&fingerprint)
    }

    /// Caches an entry in place of the one with its fingerprint. Returns false if it is not admitted.
    pub fn insert(&mut self, value: RamEntry, pin: Option<PinReason>) -> bool {
        if self.max_blocks == 0 {
            return false;
        }
        let (fingerprint, entry) = (value.fingerprint, value.entry);
        self.release(fingerprint);
        let blocks = entry.blocks as usize;
        let is_pinned = self.class_policies.is_to_pin(entry.class, pin);
        let is_admitted = self.policy.admits(&entry) || is_pinned && self.policy.may_pin(&entry);
        if blocks > self.max_blocks || !is_admitted {
            return false;
        }
        while self.blocks + blocks > self.max_blocks || self.is_out_of_slots() {
            if !self.evict() {
                return false;
            }
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.0.push(None);
            Slot::try_from(self.entries.0.len() - 1).unwrap_or(Slot::MAX)
        });
        self.policy.insert(slot, &entry);
        if is_pinned && !self.policy.pin(slot, &entry) {
            self.counters.pins_ignored.increment();
        }
        self.slots.insert(fingerprint, slot);
        self.blocks += blocks;
        self.entries.0[slot as usize] = Some(value);
        self.trim(MAX_EXCESS_EVICTIONS);
        true
    }

    /// Pins an entry, if the bound of pins has room.
    pub fn pin(&mut self, fingerprint: u64, reason: PinReason) {
        let Some(slot) = self.slots.get(&fingerprint).copied() else { return };
        let Some(found) = self.entries.get(slot) else { return };
        let is_to_pin = self.class_policies.is_to_pin(found.entry.class, Some(reason));
        if is_to_pin && !self.policy.pin(slot, &found.entry) {
            self.counters.pins_ignored.increment();
        }
    }

    /// Moves an entry to the class of its present placement, and unpins it if only its former class was pinned.
    pub fn reclassify(&mut self, fingerprint: u64, placement: Placement) {
        let Some(slot) = self.slots.get(&fingerprint).copied() else { return };
        let Some(found) = self.entries.0.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let keeps_pin = self.class_policies.is_to_pin(placement.class, placement.pin);
        let class = found.entry.class;
        if class == placement.class && !(class == FIRST_SLICES && !keeps_pin && self.policy.is_pinned(slot)) {
            return;
        }
        self.policy.reclassify(slot, &found.entry, placement.class, keeps_pin);
        found.entry.class = placement.class;
        self.trim(MAX_EXCESS_EVICTIONS);
    }

    /// Returns true if an entry would be cached.
    pub fn would_admit(&self, entry: &Entry, is_pinned: bool) -> bool {
        entry.blocks as usize <= self.max_blocks
            && (self.policy.would_admit(entry) || is_pinned && self.policy.may_pin(entry))
    }

    /// Records a request for an entry that is not cached.
    pub fn record_bypass(&mut self, entry: &Entry) {
        if self.max_blocks > 0 {
            self.policy.admits(entry);
        }
    }

    /// Replaces the policies of classes. [`Self::apply_some_policies`] brings them to the entries.
    pub fn set_policies(&mut self, policies: &TierPolicies) {
        self.class_policies.replace(*policies, &mut self.policy);
    }

    /// Unpins the entries of all classes that are not pinned, with [`Self::apply_some_policies`].
    pub fn end_prefix_pins(&mut self, generation: u64) {
        self.class_policies.end_prefix_pins(generation);
    }

    /// Brings a change of the policies to some entries. Returns true if there may be more.
    pub fn apply_some_policies(&mut self) -> bool {
        self.class_policies.apply_some(&mut self.policy, &self.entries, &self.counters)
            || self.trim(MAX_STEP_ENTRIES)
    }

    /// The occupancy by class, in blocks of [`RAM_BLOCK_BYTES`].
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        self.policy.occupancy()
    }

    /// Removes an entry whose object has changed: neither the policy nor its simulations have it any longer.
    pub fn remove(&mut self, keys: RamKeys) -> Option<RamEntry> {
        let removed = self.release(keys.fingerprint);
        self.policy.forget(keys.reuse_key);
        removed
    }

    /// Removes an entry in whose place an equal one is about to be inserted.
    pub fn release(&mut self, fingerprint: u64) -> Option<RamEntry> {
        let slot = *self.slots.get(&fingerprint)?;
        let removed = self.forget(slot)?;
        self.policy.release(slot, &removed.entry);
        Some(removed)
    }

    /// Blocks in use, of [`RAM_BLOCK_BYTES`].
    pub const fn used_blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks at most, of [`RAM_BLOCK_BYTES`].
    pub const fn max_blocks(&self) -> usize {
        self.max_blocks
    }

    fn is_out_of_slots(&self) -> bool {
        self.free.is_empty() && self.entries.0.len() >= self.max_entries
    }

    /// Evicts up to `max_entries` entries of classes that fill too much. Returns true if there may be more.
    fn trim(&mut self, max_entries: u32) -> bool {
        (0..max_entries).all(|_| self.policy.has_excess() && self.evict())
    }

    fn evict(&mut self) -> bool {
        let Some(victim) = self.policy.evict(&self.entries) else { return false };
        self.forget(victim);
        self.counters.ram_evictions.increment();
        true
    }

    /// Removes an entry that the policy no longer knows.
    fn forget(&mut self, slot: Slot) -> Option<RamEntry> {
        let removed = self.entries.0.get_mut(slot as usize)?.take()?;
        self.slots.remove(&removed.fingerprint);
        self.free.push(slot);
        self.blocks -= removed.entry.blocks as usize;
        Some(removed)
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
