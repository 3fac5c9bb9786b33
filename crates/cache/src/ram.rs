//! The memory tier: heads and data extents under a limit of bytes, with an eviction policy. One lock, held briefly.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::Address;
use tradewind_model::eviction::{CLASSES, ClassOccupancy, Entries, Entry, EvictionPolicy, MAX_SLOTS, Slot};

use crate::aligned::BLOCK_BYTES;
use crate::changes::{Changes, Token};
use crate::counters::Counters;
use crate::extent::blocks_for;
use crate::head::{ContentId, Head, Stamp};
use crate::policy::{
    AppliedPolicies, MAX_EXCESS_EVICTIONS, MAX_STEP_ENTRIES, PinReason, Policy, SlotEntries, TierCapacity,
    TierPolicies, new_policy,
};

/// Memory of an entry besides its bytes: table, slot, policy, allocator.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// The unit in which memory is counted.
pub(crate) const RAM_BLOCK_BYTES: usize = 256;

/// The policy has a slot for each of these bytes of the limit: smaller entries fill the slots before the memory.
const BYTES_PER_SLOT: usize = 1024;

/// See the module's head.
pub(crate) struct RamTier {
    state: Mutex<RamState>,
    max_blocks: usize,
    counters: Arc<Counters>,
}

struct RamState {
    slots: HashMap<u64, Slot, BuildHasherDefault<FingerprintHasher>>,
    entries: RamEntries,
    free: Vec<Slot>,
    max_entries: usize,
    policy: Policy,
    class_policies: AppliedPolicies,
    blocks: usize,
}

/// The treatment of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Its class, or that of its most important byte.
    pub class: u8,
    /// It is pinned for this reason, as far as the bound of pins has room.
    pub pin: Option<PinReason>,
}

/// The entries by slot.
#[derive(Default)]
struct RamEntries(Vec<Option<RamEntry>>);

struct RamEntry {
    /// The view of the eviction policy; the key is the fingerprint.
    entry: Entry,
    value: RamValue,
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

enum RamValue {
    Head(Arc<Head>),
    Data { content: ContentId, number: u32, bytes: Bytes },
}

/// The result of inserting a head.
#[derive(Debug)]
pub(crate) enum InsertedHead {
    /// It is cached.
    New,
    /// An equal head with another content is cached already.
    Existing(Arc<Head>),
    /// The object was changed since it was read.
    Outdated,
    /// It is too large, or not worth the memory.
    NotAdmitted,
}

impl RamTier {
    pub fn new(limit: usize, counters: Arc<Counters>) -> Self {
        let max_blocks = limit / RAM_BLOCK_BYTES;
        let max_entries = (limit / BYTES_PER_SLOT).clamp(1, MAX_SLOTS as usize);
        let state = RamState {
            slots: HashMap::default(),
            entries: RamEntries::default(),
            free: Vec::new(),
            max_entries,
            policy: new_policy(TierCapacity { blocks: max_blocks as u64, slots: max_entries, max_entries }),
            class_policies: AppliedPolicies::new(),
            blocks: 0,
        };
        Self { state: Mutex::new(state), max_blocks, counters }
    }

    /// The head of an address.
    pub fn head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let mut state = self.state.lock();
        let slot = *state.slots.get(&fingerprint)?;
        let found = state.entries.get(slot)?;
        match found.value {
            RamValue::Head(ref head) if head.address == *address => {
                let (head, entry) = (head.clone(), found.entry);
                state.policy.hit(slot, &entry);
                Some(head)
            }
            _ => None,
        }
    }

    /// A data extent.
    pub fn data(&self, fingerprint: u64, content: ContentId, number: u32) -> Option<Bytes> {
        let mut state = self.state.lock();
        let slot = *state.slots.get(&fingerprint)?;
        let found = state.entries.get(slot)?;
        match found.value {
            RamValue::Data { content: of, number: at, ref bytes } if of == content && at == number => {
                let (bytes, entry) = (bytes.clone(), found.entry);
                state.policy.hit(slot, &entry);
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Returns true if the tier has an entry with this fingerprint. Not a use of it.
    pub fn contains(&self, fingerprint: u64) -> bool {
        self.state.lock().slots.contains_key(&fingerprint)
    }

    /// Caches a head, unless the token is no longer current or a newer one is there.
    pub fn insert_head(
        &self,
        fingerprint: u64,
        head: &Arc<Head>,
        placement: Placement,
        changes: &Changes,
        token: &Token,
    ) -> InsertedHead {
        let bytes = head.memory_bytes() + ENTRY_OVERHEAD_BYTES;
        let mut state = self.state.lock();
        // Under the lock, under which a change removes the head after it made the token obsolete.
        if !changes.is_current(token) {
            return InsertedHead::Outdated;
        }
        if let Some(existing) = state.find_head(fingerprint, &head.address) {
            let (old, new) = (existing.stamp(), head.stamp());
            let is_newer = old.session == new.session && old.time > new.time;
            if existing.info == head.info && (existing.data.is_some() || head.data.is_none()) {
                if !is_newer && new != Stamp::NEVER {
                    existing.set_stamp(new);
                }
                return InsertedHead::Existing(existing);
            }
            if is_newer {
                return InsertedHead::Outdated;
            }
        }
        let entry = RamEntry::new(fingerprint, bytes, placement.class, RamValue::Head(head.clone()));
        if self.insert(&mut state, entry, placement.pin) {
            InsertedHead::New
        } else {
            InsertedHead::NotAdmitted
        }
    }

    /// Caches a data extent.
    pub fn insert_data(
        &self,
        fingerprint: u64,
        content: ContentId,
        number: u32,
        placement: Placement,
        bytes: Bytes,
    ) {
        let size = data_bytes(bytes.len());
        let value = RamValue::Data { content, number, bytes };
        let mut state = self.state.lock();
        let entry = RamEntry::new(fingerprint, size, placement.class, value);
        self.insert(&mut state, entry, placement.pin);
    }

    /// Pins an entry, if the bound of pins has room.
    pub fn pin(&self, fingerprint: u64, reason: PinReason) {
        let state = &mut *self.state.lock();
        let Some(slot) = state.slots.get(&fingerprint).copied() else { return };
        let Some(found) = state.entries.get(slot) else { return };
        let is_to_pin = state.class_policies.is_to_pin(found.entry.class, Some(reason));
        if is_to_pin && !state.policy.pin(slot, &found.entry) {
            self.counters.pins_ignored.increment();
        }
    }

    /// Returns true if an entry with a payload of this size would be cached.
    pub fn would_admit(&self, candidate: Candidate) -> bool {
        let entry = candidate.ram_entry();
        let state = self.state.lock();
        entry.blocks as usize <= self.max_blocks
            && (state.policy.would_admit(&entry)
                || candidate.placement.pin.is_some() && state.policy.may_pin(&entry))
    }

    /// Records a request for an entry that is not cached: its class is to earn its rank.
    pub fn record_bypass(&self, candidate: Candidate) {
        self.state.lock().policy.admits(&candidate.ram_entry());
    }

    /// Replaces the policies of classes, which apply to what is cached, too.
    pub fn set_policies(&self, policies: &TierPolicies) {
        {
            let state = &mut *self.state.lock();
            state.class_policies.replace(*policies, &mut state.policy);
        }
        while self.apply_some_policies() {}
    }

    /// Unpins the entries of all classes that are not pinned.
    pub fn end_prefix_pins(&self) {
        self.state.lock().class_policies.end_prefix_pins();
        while self.apply_some_policies() {}
    }

    /// Brings a change of the policies to some entries. Returns true if there may be more.
    fn apply_some_policies(&self) -> bool {
        let state = &mut *self.state.lock();
        state.class_policies.apply_some(&mut state.policy, &state.entries, &self.counters)
            || self.trim(state, MAX_STEP_ENTRIES)
    }

    /// Evicts up to `max_entries` entries of classes that fill too much. Returns true if there may be more.
    fn trim(&self, state: &mut RamState, max_entries: u32) -> bool {
        (0..max_entries).all(|_| state.policy.has_excess() && self.evict(state))
    }

    /// The occupancy by class, in blocks of [`RAM_BLOCK_BYTES`].
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        self.state.lock().policy.occupancy()
    }

    /// Removes an entry, and returns the head if it was one.
    pub fn remove(&self, fingerprint: u64) -> Option<Arc<Head>> {
        let mut state = self.state.lock();
        let slot = *state.slots.get(&fingerprint)?;
        match state.take(slot)?.value {
            RamValue::Head(head) => Some(head),
            RamValue::Data { .. } => None,
        }
    }

    /// The size of the tier in bytes.
    pub const fn limit_bytes(&self) -> usize {
        self.max_blocks * RAM_BLOCK_BYTES
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.state.lock().blocks * RAM_BLOCK_BYTES
    }

    fn insert(&self, state: &mut RamState, value: RamEntry, pin: Option<PinReason>) -> bool {
        let entry = value.entry;
        if let Some(slot) = state.slots.get(&entry.key).copied() {
            state.take(slot);
        }
        let blocks = entry.blocks as usize;
        let is_pinned = state.class_policies.is_to_pin(entry.class, pin);
        let is_admitted = state.policy.admits(&entry) || is_pinned && state.policy.may_pin(&entry);
        if blocks > self.max_blocks || !is_admitted {
            return false;
        }
        while state.blocks + blocks > self.max_blocks || state.is_out_of_slots() {
            if !self.evict(state) {
                return false;
            }
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.entries.0.push(None);
            Slot::try_from(state.entries.0.len() - 1).unwrap_or(Slot::MAX)
        });
        state.policy.insert(slot, &entry);
        if is_pinned && !state.policy.pin(slot, &entry) {
            self.counters.pins_ignored.increment();
        }
        state.slots.insert(entry.key, slot);
        state.blocks += blocks;
        state.entries.0[slot as usize] = Some(value);
        self.trim(state, MAX_EXCESS_EVICTIONS);
        true
    }

    fn evict(&self, state: &mut RamState) -> bool {
        let Some(victim) = state.policy.evict(&state.entries) else { return false };
        state.forget(victim);
        self.counters.ram_evictions.increment();
        true
    }
}

/// An entry that may be cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub fingerprint: u64,
    pub payload_bytes: usize,
    pub placement: Placement,
}

impl Candidate {
    fn ram_entry(self) -> Entry {
        let blocks = ram_blocks(data_bytes(self.payload_bytes));
        Entry { key: self.fingerprint, blocks, class: self.placement.class }
    }
}

/// Memory of a data extent: its bytes are a slice of a whole extent.
const fn data_bytes(payload_bytes: usize) -> usize {
    blocks_for(payload_bytes) * BLOCK_BYTES + ENTRY_OVERHEAD_BYTES
}

fn ram_blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(RAM_BLOCK_BYTES)).unwrap_or(u32::MAX)
}

impl RamEntry {
    fn new(fingerprint: u64, bytes: usize, class: u8, value: RamValue) -> Self {
        let blocks = ram_blocks(bytes);
        Self { entry: Entry { key: fingerprint, blocks, class }, value }
    }
}

impl RamState {
    fn find_head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let slot = *self.slots.get(&fingerprint)?;
        match &self.entries.get(slot)?.value {
            RamValue::Head(head) if head.address == *address => Some(head.clone()),
            _ => None,
        }
    }

    fn is_out_of_slots(&self) -> bool {
        self.free.is_empty() && self.entries.0.len() >= self.max_entries
    }

    /// Removes an entry that the policy knows.
    fn take(&mut self, slot: Slot) -> Option<RamEntry> {
        let removed = self.forget(slot)?;
        self.policy.remove(slot, &removed.entry);
        Some(removed)
    }

    /// Removes an entry that the policy no longer knows.
    fn forget(&mut self, slot: Slot) -> Option<RamEntry> {
        let removed = self.entries.0.get_mut(slot as usize)?.take()?;
        self.slots.remove(&removed.entry.key);
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
