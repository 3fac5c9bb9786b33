//! Tradewind's cache in front of a disk, by object: whole objects of up to 4 MiB, and the first 256 KiB of larger ones.
//!
//! The order is [`EarnedOrder`]. An object that does not rank above what it would replace bypasses the cache. Small
//! objects are dirty until they are written back: each at once, the lowest rank first. The head of a large object is a
//! copy of what is on the disk. Metadata is always on the SSD.
//!
//! As a baseline, [`S3Fifo`] orders whole objects without labels and sizes: each one that is read or written enters unless
//! it would fill the small queue. A dirty one enters the queues when it is written back.

use tradewind_model::eviction::{Capacity, Entries, Entry as OrderedEntry, EvictionPolicy, S3Fifo, Slot};
use tradewind_model::slices::{HEAD_BYTES, MAX_UNSLICED_BYTES};

use super::Labels;
use super::classes::{Priority, SMALL_FILE, label_priority};
use super::earned::{CELLS, Cell, EarnedOrder, cell};
use super::lists::RecencyLists;
use super::world::{Object, ObjectIndex, World};

const BLOCK_BYTES: u64 = 4096;
/// Share of dirty blocks at which write-back starts.
const MAX_DIRTY_SHARE: f64 = 0.70;
/// Share of dirty blocks at which it stops.
const MIN_DIRTY_SHARE: f64 = 0.50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Clean,
    Dirty,
    /// It is written to the disk; in no list.
    WritingBack,
    /// Like `WritingBack`, but removed.
    Doomed,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    cell: Cell,
    priority: Priority,
    /// Bytes that would be cached.
    bytes: u64,
    /// Requests so far, saturating.
    requests: u8,
}

impl Entry {
    fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES)
    }
}

/// The rules by which objects are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectRanking {
    /// By label and size, as far as requests confirm that.
    Earned(Labels),
    S3Fifo,
}

/// The cache of one node.
#[derive(Debug)]
pub(super) struct TieredCache {
    entries: Vec<Entry>,
    /// Clean objects by cell, then dirty ones.
    lists: RecencyLists,
    order: EarnedOrder,
    /// The clean objects, if they have no rank. All objects are of one cell then.
    s3_fifo: Option<S3Fifo>,
    capacity_blocks: u64,
    used_blocks: u64,
    /// Those of metadata, one per object.
    metadata_blocks: u64,
    dirty_blocks: u64,
    is_writing_back: bool,
}

impl TieredCache {
    pub fn new(world: &World, capacity_bytes: u64, ranking: ObjectRanking) -> Self {
        let entry = |object: &Object| {
            let is_stream = object.bytes > MAX_UNSLICED_BYTES;
            let (priority, cell, bytes) = match ranking {
                ObjectRanking::S3Fifo => (SMALL_FILE, 0, object.bytes),
                ObjectRanking::Earned(labels) => {
                    let bytes = if is_stream { HEAD_BYTES } else { object.bytes };
                    let priority = if is_stream { SMALL_FILE } else { label_priority(object, labels) };
                    (priority, cell(priority, bytes.div_ceil(BLOCK_BYTES)), bytes)
                }
            };
            Entry { state: State::Absent, cell, priority, bytes, requests: 0 }
        };
        let capacity_blocks = capacity_bytes / BLOCK_BYTES;
        let capacity = Capacity { blocks: capacity_blocks, slots: world.objects.len() as u32 };
        Self {
            entries: world.objects.iter().map(entry).collect(),
            lists: RecencyLists::new(2 * CELLS, world.objects.len()),
            order: EarnedOrder::new(),
            s3_fifo: (ranking == ObjectRanking::S3Fifo).then(|| S3Fifo::new(capacity)),
            capacity_blocks,
            used_blocks: 0,
            metadata_blocks: 0,
            dirty_blocks: 0,
            is_writing_back: false,
        }
    }

    /// Counts a request for an object.
    pub fn record(&mut self, object: ObjectIndex) {
        let entry = &mut self.entries[object];
        entry.requests = entry.requests.saturating_add(1);
        let entry = *entry;
        self.order.record(entry.priority, entry.blocks());
        if entry.state != State::Clean {
            return;
        }
        match &mut self.s3_fifo {
            Some(queues) => queues.hit(object as Slot, &ObjectSlots(&self.entries).entry(object as Slot)),
            None => {
                self.lists.remove(entry.cell, object);
                self.lists.push(entry.cell, object);
            }
        }
    }

    /// The first bytes of an object that the SSD has.
    pub fn cached_bytes(&self, object: ObjectIndex) -> u64 {
        match self.entries[object].state {
            State::Absent | State::Doomed => 0,
            _ => self.entries[object].bytes,
        }
    }

    /// Returns true if a read of these bytes is the last one of those that would be cached.
    pub fn completes(&self, object: ObjectIndex, from: u64, to: u64) -> bool {
        (from + 1..=to).contains(&self.entries[object].bytes)
    }

    /// Reserves space for the metadata of an object, whatever it takes.
    pub fn insert_metadata(&mut self) {
        self.used_blocks += 1;
        self.metadata_blocks += 1;
    }

    /// Blocks of metadata.
    pub const fn metadata_blocks(&self) -> u64 {
        self.metadata_blocks
    }

    /// Adds an object that is written. Returns the bytes that the SSD takes, which are 0 or those of
    /// [`Self::cached_bytes`]. Small objects are then dirty.
    pub fn insert_written(&mut self, world: &World, object: ObjectIndex) -> u64 {
        let is_whole = self.entries[object].bytes == world.objects[object].bytes;
        let state = if is_whole { State::Dirty } else { State::Clean };
        if self.make_space(object, false) { self.insert(object, state) } else { 0 }
    }

    /// Adds an object that was read from the disk, if it is worth it. Returns the bytes that the SSD takes.
    pub fn insert_read(&mut self, object: ObjectIndex) -> u64 {
        if self.make_space(object, true) { self.insert(object, State::Clean) } else { 0 }
    }

    /// Removes an object and its metadata.
    pub fn remove(&mut self, object: ObjectIndex) {
        self.used_blocks -= 1;
        self.metadata_blocks -= 1;
        match self.entries[object].state {
            State::Absent | State::Doomed => {}
            State::WritingBack => self.entries[object].state = State::Doomed,
            State::Clean | State::Dirty => self.evict(object),
        }
    }

    /// The next object to write back, if there is too much dirty data. [`Self::written_back`] must be called.
    pub fn next_to_write_back(&mut self) -> Option<ObjectIndex> {
        let share = if self.is_writing_back { MIN_DIRTY_SHARE } else { MAX_DIRTY_SHARE };
        self.is_writing_back = self.dirty_blocks as f64 > share * self.capacity_blocks as f64;
        if !self.is_writing_back {
            return None;
        }
        let cells = self.order.ascending();
        let object = cells.iter().find_map(|cell| self.lists.oldest(CELLS + cell))?;
        self.unlist(object);
        self.entries[object].state = State::WritingBack;
        Some(object)
    }

    /// The disk has the object.
    pub fn written_back(&mut self, object: ObjectIndex) {
        let entry = self.entries[object];
        if entry.state == State::Doomed {
            self.entries[object].state = State::Absent;
            self.used_blocks -= entry.blocks();
        } else {
            self.list(object, State::Clean);
        }
    }

    /// Objects in the cache.
    pub fn cached(&self) -> impl Iterator<Item = ObjectIndex> {
        (0..self.entries.len()).filter(|object| self.cached_bytes(*object) > 0)
    }

    /// Evicts objects that rank lower until an object fits. Returns false if it is not worth that. With `may_equal`, an
    /// object of the same rank that was requested less often also counts as lower.
    fn make_space(&mut self, object: ObjectIndex, may_equal: bool) -> bool {
        let wanted = self.entries[object];
        let rank = self.order.rank(wanted.cell);
        if wanted.state != State::Absent {
            return false;
        }
        if let Some(queues) = &mut self.s3_fifo {
            let entry = ObjectSlots(&self.entries).entry(object as Slot);
            return queues.admits(&entry) && self.evict_in_order(wanted.blocks());
        }
        while self.used_blocks + wanted.blocks() > self.capacity_blocks {
            let cells = self.order.ascending();
            let Some(victim) = cells.iter().find_map(|cell| self.lists.oldest(*cell)) else { return false };
            let lowest = self.entries[victim];
            let lowest_rank = self.order.rank(lowest.cell);
            let is_equal = may_equal && lowest_rank == rank && lowest.requests < wanted.requests;
            if lowest_rank <= rank && !is_equal {
                return false;
            }
            self.evict(victim);
        }
        true
    }

    /// Evicts clean objects in the order of S3-FIFO until there is space. Returns false if too few are clean.
    fn evict_in_order(&mut self, blocks: u64) -> bool {
        while self.used_blocks + blocks > self.capacity_blocks {
            let victim = self.s3_fifo.as_mut().and_then(|queues| queues.evict(&ObjectSlots(&self.entries)));
            let Some(victim) = victim else { return false };
            let entry = &mut self.entries[victim as usize];
            entry.state = State::Absent;
            self.used_blocks -= entry.blocks();
        }
        true
    }

    fn insert(&mut self, object: ObjectIndex, state: State) -> u64 {
        self.used_blocks += self.entries[object].blocks();
        self.list(object, state);
        self.entries[object].bytes
    }

    fn evict(&mut self, object: ObjectIndex) {
        self.unlist(object);
        self.entries[object].state = State::Absent;
        self.used_blocks -= self.entries[object].blocks();
    }

    fn list(&mut self, object: ObjectIndex, state: State) {
        self.entries[object].state = state;
        let entry = self.entries[object];
        if state == State::Dirty {
            self.dirty_blocks += entry.blocks();
            self.lists.push(CELLS + entry.cell, object);
        } else if let Some(queues) = &mut self.s3_fifo {
            queues.insert(object as Slot, &ObjectSlots(&self.entries).entry(object as Slot));
        } else {
            self.lists.push(entry.cell, object);
        }
    }

    fn unlist(&mut self, object: ObjectIndex) {
        let entry = self.entries[object];
        if entry.state == State::Dirty {
            self.dirty_blocks -= entry.blocks();
            self.lists.remove(CELLS + entry.cell, object);
        } else if let Some(queues) = &mut self.s3_fifo {
            queues.remove(object as Slot, &ObjectSlots(&self.entries).entry(object as Slot));
        } else {
            self.lists.remove(entry.cell, object);
        }
    }
}

/// Objects in the slots of their numbers.
struct ObjectSlots<'a>(&'a [Entry]);

impl Entries for ObjectSlots<'_> {
    fn entry(&self, slot: Slot) -> OrderedEntry {
        // A bijection of the numbers with the bits of a hash.
        let key = u64::from(slot + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        OrderedEntry { key, blocks: self.0[slot as usize].blocks() as u32, class: 0 }
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::class_policy::DataType;

    use super::*;

    fn objects(world: &World, object_type: DataType) -> Vec<ObjectIndex> {
        let is_small = |object: &Object| object.object_type == object_type && object.bytes <= 64 << 10;
        (0..world.objects.len()).filter(|object| is_small(&world.objects[*object])).collect()
    }

    /// A cache that pictures fill, and these pictures.
    fn full_of_pictures(world: &World) -> (TieredCache, Vec<ObjectIndex>) {
        let mut pictures = objects(world, DataType::Pictures);
        let blocks: u64 =
            pictures.iter().map(|object| world.objects[*object].bytes.div_ceil(BLOCK_BYTES)).sum();
        let mut cache = TieredCache::new(world, blocks / 2 * BLOCK_BYTES, ObjectRanking::Earned(Labels::On));
        pictures.retain(|object| cache.insert_written(world, *object) > 0);
        (cache, pictures)
    }

    #[test]
    fn large_objects_have_only_their_head_on_the_ssd() {
        let world = World::new(0.01, 1);
        let mut cache = TieredCache::new(&world, 1 << 30, ObjectRanking::Earned(Labels::On));
        for (object, Object { bytes, .. }) in world.objects.iter().enumerate() {
            let expected = if *bytes > MAX_UNSLICED_BYTES { HEAD_BYTES } else { *bytes };
            assert_eq!(cache.insert_written(&world, object), expected);
            assert_eq!(cache.cached_bytes(object), expected);
        }
    }

    #[test]
    fn dirty_objects_stay_until_they_are_written_back() {
        let world = World::new(0.01, 1);
        let (mut cache, pictures) = full_of_pictures(&world);
        let file = objects(&world, DataType::Files)[0];
        while cache.used_blocks + 16 <= cache.capacity_blocks {
            cache.insert_metadata();
        }
        assert_eq!(cache.insert_written(&world, file), 0, "only dirty objects could make place");
        let mut written_back = Vec::new();
        while let Some(object) = cache.next_to_write_back() {
            written_back.push(object);
            cache.written_back(object);
        }
        assert!(!written_back.is_empty() && written_back.len() < pictures.len());
        while cache.used_blocks < cache.capacity_blocks {
            cache.insert_metadata();
        }
        assert!(cache.insert_written(&world, file) > 0, "files rank above pictures");
        let evicted: Vec<_> =
            pictures.into_iter().filter(|object| cache.cached_bytes(*object) == 0).collect();
        assert!(!evicted.is_empty() && evicted.iter().all(|object| written_back.contains(object)));
        assert!(cache.used_blocks <= cache.capacity_blocks);
    }

    #[test]
    fn object_of_equal_rank_replaces_a_less_requested_one_only() {
        let world = World::new(0.01, 1);
        let (mut cache, _) = full_of_pictures(&world);
        while let Some(object) = cache.next_to_write_back() {
            cache.written_back(object);
        }
        while cache.used_blocks < cache.capacity_blocks {
            cache.insert_metadata();
        }
        let lowest = cache.order.ascending().iter().find_map(|cell| cache.lists.oldest(*cell)).unwrap();
        let cell = cache.entries[lowest].cell;
        let is_alike =
            |object: &ObjectIndex| cache.entries[*object].cell == cell && cache.cached_bytes(*object) == 0;
        let other = (0..world.objects.len()).find(is_alike).unwrap();
        assert_eq!(cache.insert_read(other), 0);
        cache.record(other);
        assert!(cache.insert_read(other) > 0);
        assert_eq!(cache.cached_bytes(lowest), 0);
    }
}
