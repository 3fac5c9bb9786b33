//! The memory tier: heads and data extents under a limit of bytes. One lock, held briefly.
//!
//! Heads of large objects have a share of their own. They are small and each saves a read of the SSD, but a read of a large
//! object uses one head and many extents: in one queue, the extents of a scan would displace the heads of everything.
//! A small object is one entry, with its data, and shares the rest with the extents. So does its head without data, as a
//! HEAD leaves it: clients that HEAD many small objects would displace the heads of the large ones.

mod partition;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::Address;
use tradewind_model::eviction::{CLASSES, ClassOccupancy, Entry};

use crate::aligned::BLOCK_BYTES;
use crate::changes::{Changes, Token};
use crate::counters::Counters;
use crate::extent::buffer_blocks_for;
use crate::head::{ContentId, Head, Stamp};
use crate::policy::{Eviction, PinReason, TierPolicies};
use crate::tiers::MAX_SMALL_BYTES;
use partition::{Partition, PartitionLimits, RamEntry, RamKeys, RamValue};

/// Memory of an entry besides its bytes: table, slot, policy, allocator.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// The unit in which memory is counted.
pub(crate) const RAM_BLOCK_BYTES: usize = 256;

/// Bytes of data and small objects for each slot of their policy.
const DATA_BYTES_PER_SLOT: usize = 1024;

/// Bytes of heads of large objects for each slot of their policy: about the size of a head.
const HEAD_BYTES_PER_SLOT: usize = 512;

/// The tier divided by the share of heads of large objects.
const HEAD_SHARE_DIVISOR: usize = 16;

/// A head that takes more than this part of the share of heads is stored with the data.
const MAX_HEAD_DIVISOR: usize = 8;

/// See the module's head.
pub(crate) struct RamTier {
    state: Mutex<RamState>,
    limit_blocks: usize,
    max_head_bytes: usize,
    eviction: Eviction,
}

struct RamState {
    /// Heads of large objects.
    heads: Partition,
    /// Data extents, small objects and their heads, and large heads.
    data: Partition,
}

/// The treatment of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Its class, or that of its most important byte.
    pub class: u8,
    /// It is pinned for this reason, as far as the bound of pins has room.
    pub pin: Option<PinReason>,
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
    /// An empty tier of `limit` bytes.
    pub fn new(limit: usize, eviction: Eviction, counters: Arc<Counters>) -> Self {
        let head_bytes = limit / HEAD_SHARE_DIVISOR;
        let limits = PartitionLimits { bytes: head_bytes, bytes_per_slot: HEAD_BYTES_PER_SLOT, eviction };
        let heads = Partition::new(limits, counters.clone());
        let (bytes, bytes_per_slot) = (limit - head_bytes, DATA_BYTES_PER_SLOT);
        let data = Partition::new(PartitionLimits { bytes, bytes_per_slot, eviction }, counters);
        let limit_blocks = heads.max_blocks() + data.max_blocks();
        let state = Mutex::new(RamState { heads, data });
        Self { state, limit_blocks, max_head_bytes: head_bytes / MAX_HEAD_DIVISOR, eviction }
    }

    /// The head of an address.
    pub fn head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let RamState { heads, data } = &mut *self.state.lock();
        heads.use_head(fingerprint, address).or_else(|| data.use_head(fingerprint, address))
    }

    /// The content of the head of an address. Not a use of it.
    pub fn head_content(&self, fingerprint: u64, address: &Address) -> Option<ContentId> {
        self.state.lock().find_head(fingerprint, address).map(|head| head.content)
    }

    /// The head of an address. Not a use of it.
    pub fn peek_head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        self.state.lock().find_head(fingerprint, address)
    }

    /// The eviction policy.
    pub const fn eviction(&self) -> Eviction {
        self.eviction
    }

    /// A data extent.
    pub fn data(&self, fingerprint: u64, content: ContentId, number: u32) -> Option<Bytes> {
        self.state.lock().data.use_data(fingerprint, content, number)
    }

    /// Returns true if the tier has an entry with this fingerprint. Not a use of it.
    pub fn contains(&self, fingerprint: u64) -> bool {
        let state = self.state.lock();
        state.data.contains(fingerprint) || state.heads.contains(fingerprint)
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
        let bytes = head_bytes(head.memory_bytes());
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
        // The old one may be in the other share.
        state.release(fingerprint);
        let keys = RamKeys::of_head(fingerprint);
        let entry = RamEntry::new(keys, bytes, placement.class, RamValue::Head(head.clone()));
        let is_of_small_object = head.data.is_some() || head.info.size <= MAX_SMALL_BYTES;
        let is_with_data = is_of_small_object || bytes > self.max_head_bytes;
        let partition = if is_with_data { &mut state.data } else { &mut state.heads };
        if partition.insert(entry, placement.pin) { InsertedHead::New } else { InsertedHead::NotAdmitted }
    }

    /// Caches a data extent.
    pub fn insert_data(&self, extent: RamExtent, placement: Placement) {
        let RamExtent { fingerprint, reuse_key, content, number, bytes } = extent;
        let size = data_bytes(bytes.len());
        let value = RamValue::Data { content, number, bytes };
        let entry = RamEntry::new(RamKeys { fingerprint, reuse_key }, size, placement.class, value);
        // An extent that does not fit is read from the SSD again.
        let _is_cached = self.state.lock().data.insert(entry, placement.pin);
    }

    /// Pins an entry, if the bound of pins has room.
    pub fn pin(&self, fingerprint: u64, reason: PinReason) {
        self.for_each_partition(|partition| partition.pin(fingerprint, reason));
    }

    /// Moves an entry to the class of its present placement, and unpins it if only its former class was pinned.
    pub fn reclassify(&self, fingerprint: u64, placement: Placement) {
        self.for_each_partition(|partition| partition.reclassify(fingerprint, placement));
    }

    /// Returns true if an extent or a small object with a payload of this size would be cached.
    pub fn would_admit(&self, candidate: Candidate) -> bool {
        let is_pinned = candidate.placement.pin.is_some();
        self.state.lock().data.would_admit(&candidate.ram_entry(), is_pinned)
    }

    /// Records a request for an extent or a small object that is not cached: its class is to earn its rank.
    pub fn record_bypass(&self, candidate: Candidate) {
        self.state.lock().data.record_bypass(&candidate.ram_entry());
    }

    /// Replaces the policies of classes, which apply to what is cached, too.
    pub fn set_policies(&self, policies: &TierPolicies) {
        self.for_each_partition(|partition| partition.set_policies(policies));
        self.apply_policies();
    }

    /// Unpins the entries of all classes that are not pinned. Pins of prefixes have no effect any longer if they were
    /// found before `generation`.
    pub fn end_prefix_pins(&self, generation: u64) {
        self.for_each_partition(|partition| partition.end_prefix_pins(generation));
        self.apply_policies();
    }

    /// Brings a change of the policies to all entries, in steps.
    fn apply_policies(&self) {
        while self.state.lock().heads.apply_some_policies() {}
        while self.state.lock().data.apply_some_policies() {}
    }

    fn for_each_partition(&self, apply: impl Fn(&mut Partition)) {
        let RamState { heads, data } = &mut *self.state.lock();
        apply(heads);
        apply(data);
    }

    /// The occupancy by class, in blocks of [`RAM_BLOCK_BYTES`].
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        let state = self.state.lock();
        let (heads, mut sum) = (state.heads.occupancy(), state.data.occupancy());
        for (sum, heads) in sum.iter_mut().zip(heads) {
            sum.blocks += heads.blocks;
            sum.entries += heads.entries;
        }
        sum
    }

    /// Removes the head of a changed object, and returns it.
    pub fn remove(&self, fingerprint: u64) -> Option<Arc<Head>> {
        self.state.lock().remove(RamKeys::of_head(fingerprint))
    }

    /// Removes a data extent of a changed object.
    pub fn remove_data(&self, fingerprint: u64, reuse_key: u64) {
        self.state.lock().data.remove(RamKeys { fingerprint, reuse_key });
    }

    /// Removes a data extent that is cached again.
    pub fn release_data(&self, fingerprint: u64) {
        self.state.lock().data.release(fingerprint);
    }

    /// Removes a head that is cached again, and returns it.
    pub fn release(&self, fingerprint: u64) -> Option<Arc<Head>> {
        self.state.lock().release(fingerprint)
    }

    /// The size of the tier in bytes.
    pub const fn limit_bytes(&self) -> usize {
        self.limit_blocks * RAM_BLOCK_BYTES
    }

    /// The part of it for data and small objects.
    pub fn data_limit_bytes(&self) -> usize {
        self.state.lock().data.max_blocks() * RAM_BLOCK_BYTES
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        let state = self.state.lock();
        (state.heads.used_blocks() + state.data.used_blocks()) * RAM_BLOCK_BYTES
    }
}

impl RamState {
    fn find_head(&self, fingerprint: u64, address: &Address) -> Option<Arc<Head>> {
        let found = self.heads.find_head(fingerprint, address);
        found.or_else(|| self.data.find_head(fingerprint, address))
    }

    /// Removes a head, from both shares: its object may have been small, and large before.
    fn remove(&mut self, keys: RamKeys) -> Option<Arc<Head>> {
        head_of([self.heads.remove(keys), self.data.remove(keys)])
    }

    /// Like [`Self::remove`], for a head that is cached again.
    fn release(&mut self, fingerprint: u64) -> Option<Arc<Head>> {
        head_of([self.heads.release(fingerprint), self.data.release(fingerprint)])
    }
}

fn head_of(removed: [Option<RamEntry>; 2]) -> Option<Arc<Head>> {
    removed.into_iter().flatten().find_map(|entry| match entry.value {
        RamValue::Head(head) => Some(head),
        RamValue::Data { .. } => None,
    })
}

/// A data extent and its names.
pub(crate) struct RamExtent {
    pub fingerprint: u64,
    /// Equal for the same part of the same address, whatever its content.
    pub reuse_key: u64,
    pub content: ContentId,
    pub number: u32,
    pub bytes: Bytes,
}

/// An entry that may be cached. The sizes must be those with which it is inserted: simulations take another size for
/// another entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Identifies it for the eviction policies of the tiers.
    pub reuse_key: u64,
    /// Bytes of memory.
    pub ram_bytes: usize,
    /// Payload on the SSD.
    pub payload_bytes: usize,
    pub placement: Placement,
}

impl Candidate {
    const fn ram_entry(self) -> Entry {
        let blocks = ram_blocks(self.ram_bytes);
        Entry { key: self.reuse_key, blocks, class: self.placement.class }
    }
}

/// Memory of a head with its data.
pub(crate) const fn head_bytes(memory_bytes: usize) -> usize {
    memory_bytes + ENTRY_OVERHEAD_BYTES
}

/// Memory of a data extent: its bytes are a slice of a whole extent.
pub(crate) const fn data_bytes(payload_bytes: usize) -> usize {
    buffer_blocks_for(payload_bytes) * BLOCK_BYTES + ENTRY_OVERHEAD_BYTES
}

const fn ram_blocks(bytes: usize) -> u32 {
    let blocks = bytes.div_ceil(RAM_BLOCK_BYTES);
    if blocks > u32::MAX as usize { u32::MAX } else { blocks as u32 }
}
