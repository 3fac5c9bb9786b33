//! The cache of the paper (section III.D.1): an SSD in front of a disk, in LRU order or by class.
//!
//! An entry is one read or write of the server: a chunk of an object, or its metadata. The 4 KiB
//! entries of the paper would be allocated, used and cleaned together, so that the result is the same. An entry is in
//! the list of its class, or clean in the free list. Allocation takes the least recently used entry of the free list.
//! When less than the low watermark is free, the syncer cleans until the high watermark: the lowest class first, and
//! in it the least recently used entry. Meanwhile the lowest classes bypass the cache.

use super::classes::{METADATA, PRIORITIES, Priority};
use super::lists::RecencyLists;
use super::world::{ObjectIndex, World};

const BLOCK_BYTES: u64 = 4096;
/// Free share of the cache at which the syncer starts.
const LOW_WATERMARK: f64 = 0.05;
/// Free share of the cache at which it stops.
const HIGH_WATERMARK: f64 = 0.10;
/// Classes of this priority and below bypass the cache while the syncer cleans: large and unclassified data.
const BYPASS_PRIORITY: Priority = super::classes::LARGE;
/// The number of the list of free entries; those below are of the priorities.
const FREE_LIST: usize = PRIORITIES;

/// The number of an entry: see [`HybridCache::metadata`] and [`HybridCache::chunk`].
pub(super) type EntryNumber = usize;

/// The rules by which entries are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranking {
    /// All entries are of one class, which never bypasses.
    Lru,
    /// By priority.
    Classes,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// On the SSD.
    Cached,
    /// Directly to the disk.
    Bypassed,
    /// The SSD has no free entry: the write waits for the syncer.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    /// In the list of its class.
    Listed,
    /// In the free list, clean.
    Free,
    /// The syncer writes it to the disk; in no list.
    Cleaning,
    /// Like `Cleaning`, but removed.
    Doomed,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    is_dirty: bool,
    priority: Priority,
}

/// The cache of one node.
#[derive(Debug)]
pub(super) struct HybridCache {
    ranking: Ranking,
    chunk_bytes: u64,
    /// The first entry of each object, and one more.
    first_entry: Vec<u32>,
    entries: Vec<Entry>,
    lists: RecencyLists,
    capacity_blocks: u64,
    /// Blocks in no entry.
    unused_blocks: u64,
    /// Blocks in the free list.
    clean_blocks: u64,
    is_cleaning: bool,
}

impl HybridCache {
    pub fn new(world: &World, capacity_bytes: u64, chunk_bytes: u64, ranking: Ranking) -> Self {
        let mut first_entry = vec![0];
        let mut next = 0;
        for object in &world.objects {
            next += 1 + object.bytes.div_ceil(chunk_bytes) as u32;
            first_entry.push(next);
        }
        let capacity_blocks = capacity_bytes / BLOCK_BYTES;
        Self {
            ranking,
            chunk_bytes,
            entries: vec![Entry { state: State::Absent, is_dirty: false, priority: 0 }; next as usize],
            first_entry,
            lists: RecencyLists::new(PRIORITIES + 1, next as usize),
            capacity_blocks,
            unused_blocks: capacity_blocks,
            clean_blocks: 0,
            is_cleaning: false,
        }
    }

    /// The entry of an object's metadata.
    pub fn metadata(&self, object: ObjectIndex) -> EntryNumber {
        self.first_entry[object] as usize
    }

    /// The entry of an object's chunk.
    pub fn chunk(&self, object: ObjectIndex, chunk: u64) -> EntryNumber {
        self.first_entry[object] as usize + 1 + chunk as usize
    }

    /// The object of an entry.
    pub fn object(&self, entry: EntryNumber) -> ObjectIndex {
        self.first_entry.partition_point(|first| *first as usize <= entry) - 1
    }

    /// The offset of an entry in its object; `None` for metadata.
    pub fn offset(&self, entry: EntryNumber) -> Option<u64> {
        let place = entry - self.first_entry[self.object(entry)] as usize;
        Some(self.chunk_bytes * (place.checked_sub(1)? as u64))
    }

    /// Bytes of an entry.
    pub fn bytes(&self, world: &World, entry: EntryNumber) -> u64 {
        let size = world.objects[self.object(entry)].bytes;
        self.offset(entry).map_or(BLOCK_BYTES, |offset| self.chunk_bytes.min(size - offset))
    }

    /// Looks an entry up for a read. Returns true if the cache has it.
    pub fn read(&mut self, world: &World, entry: EntryNumber) -> bool {
        let state = self.entries[entry].state;
        match state {
            State::Absent | State::Doomed => return false,
            State::Cleaning => return true,
            State::Listed => {}
            State::Free => self.clean_blocks -= self.blocks(world, entry),
        }
        self.unlist(entry);
        self.list(entry);
        true
    }

    /// Adds an entry that was read from the disk, if there is space.
    pub fn fill(&mut self, world: &World, entry: EntryNumber, priority: Priority) -> bool {
        let is_new = self.entries[entry].state == State::Absent;
        is_new && !self.bypasses(priority) && self.allocate(world, entry, priority, false)
    }

    /// Writes an entry.
    pub fn write(&mut self, world: &World, entry: EntryNumber, priority: Priority) -> Placement {
        if self.bypasses(priority) {
            self.remove(world, entry);
            return Placement::Bypassed;
        }
        self.remove(world, entry);
        let is_allocated =
            self.entries[entry].state == State::Absent && self.allocate(world, entry, priority, true);
        if is_allocated { Placement::Cached } else { Placement::Full }
    }

    /// Removes all entries of an object.
    pub fn remove_object(&mut self, world: &World, object: ObjectIndex) {
        let entries = self.first_entry[object]..self.first_entry[object + 1];
        entries.for_each(|entry| self.remove(world, entry as usize));
    }

    /// The next dirty entry to write to the disk, if the syncer cleans. [`Self::cleaned`] must be called.
    pub fn next_to_clean(&mut self, world: &World) -> Option<EntryNumber> {
        let free = (self.unused_blocks + self.clean_blocks) as f64;
        let watermark = if self.is_cleaning { HIGH_WATERMARK } else { LOW_WATERMARK };
        self.is_cleaning = free < watermark * self.capacity_blocks as f64;
        while self.is_cleaning {
            let entry = (0..PRIORITIES).rev().find_map(|priority| self.lists.oldest(priority))?;
            self.unlist(entry);
            if self.entries[entry].is_dirty {
                self.entries[entry].state = State::Cleaning;
                return Some(entry);
            }
            self.free(world, entry);
            let free = (self.unused_blocks + self.clean_blocks) as f64;
            self.is_cleaning = free < HIGH_WATERMARK * self.capacity_blocks as f64;
        }
        None
    }

    /// The disk has the entry.
    pub fn cleaned(&mut self, world: &World, entry: EntryNumber) {
        if self.entries[entry].state == State::Doomed {
            self.release(world, entry);
        } else {
            self.free(world, entry);
        }
    }

    /// Entries in the cache.
    pub fn cached(&self) -> impl Iterator<Item = EntryNumber> {
        let is_cached = |entry: &Entry| !matches!(entry.state, State::Absent | State::Doomed);
        let entries = self.entries.iter().enumerate();
        entries.filter(move |(_, entry)| is_cached(entry)).map(|(number, _)| number)
    }

    fn bypasses(&self, priority: Priority) -> bool {
        self.ranking == Ranking::Classes && self.is_cleaning && priority >= BYPASS_PRIORITY
    }

    fn blocks(&self, world: &World, entry: EntryNumber) -> u64 {
        self.bytes(world, entry).div_ceil(BLOCK_BYTES)
    }

    fn allocate(&mut self, world: &World, entry: EntryNumber, priority: Priority, is_dirty: bool) -> bool {
        let blocks = self.blocks(world, entry);
        while self.unused_blocks < blocks {
            let Some(victim) = self.lists.oldest(FREE_LIST) else { return false };
            self.remove(world, victim);
        }
        self.unused_blocks -= blocks;
        let priority = if self.ranking == Ranking::Lru { METADATA } else { priority };
        self.entries[entry] = Entry { state: State::Listed, is_dirty, priority };
        self.list(entry);
        true
    }

    fn remove(&mut self, world: &World, entry: EntryNumber) {
        match self.entries[entry].state {
            State::Absent | State::Doomed => return,
            State::Cleaning => {
                self.entries[entry].state = State::Doomed;
                return;
            }
            State::Listed => {}
            State::Free => self.clean_blocks -= self.blocks(world, entry),
        }
        self.unlist(entry);
        self.release(world, entry);
    }

    fn release(&mut self, world: &World, entry: EntryNumber) {
        self.unused_blocks += self.blocks(world, entry);
        self.entries[entry].state = State::Absent;
    }

    /// Moves an entry that is in no list to the free list.
    fn free(&mut self, world: &World, entry: EntryNumber) {
        self.clean_blocks += self.blocks(world, entry);
        self.entries[entry].state = State::Free;
        self.entries[entry].is_dirty = false;
        self.lists.push(FREE_LIST, entry);
    }

    fn list(&mut self, entry: EntryNumber) {
        self.entries[entry].state = State::Listed;
        self.lists.push(self.entries[entry].priority.into(), entry);
    }

    fn unlist(&mut self, entry: EntryNumber) {
        let is_free = self.entries[entry].state == State::Free;
        let list = if is_free { FREE_LIST } else { self.entries[entry].priority.into() };
        self.lists.remove(list, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::LARGE;
    use super::*;

    const CHUNK_BYTES: u64 = 64 << 10;
    const MEDIUM: Priority = 4;

    /// A cache of 20 chunks, and as many chunks of one object as are needed.
    struct Setup {
        world: World,
        cache: HybridCache,
        object: ObjectIndex,
    }

    fn setup(ranking: Ranking) -> Setup {
        let world = World::new(0.01, 1);
        let cache = HybridCache::new(&world, 20 * CHUNK_BYTES, CHUNK_BYTES, ranking);
        let object = world.objects.iter().position(|object| object.bytes > 100 * CHUNK_BYTES).unwrap();
        Setup { world, cache, object }
    }

    impl Setup {
        fn write(&mut self, chunk: u64, priority: Priority) -> Placement {
            let entry = self.cache.chunk(self.object, chunk);
            self.cache.write(&self.world, entry, priority)
        }

        fn has(&mut self, chunk: u64) -> bool {
            let entry = self.cache.chunk(self.object, chunk);
            self.cache.read(&self.world, entry)
        }

        /// The chunks that the syncer cleans, in order.
        fn clean(&mut self) -> Vec<u64> {
            let mut chunks = Vec::new();
            while let Some(entry) = self.cache.next_to_clean(&self.world) {
                chunks.push(self.cache.offset(entry).unwrap() / CHUNK_BYTES);
                self.cache.cleaned(&self.world, entry);
            }
            chunks
        }
    }

    #[test]
    fn syncer_cleans_between_the_watermarks_in_order_of_use() {
        let mut setup = setup(Ranking::Lru);
        (0..19).for_each(|chunk| assert_eq!(setup.write(chunk, MEDIUM), Placement::Cached));
        assert!(setup.clean().is_empty(), "one of 20 entries is free");
        assert_eq!(setup.write(19, LARGE), Placement::Cached);
        assert_eq!(setup.write(20, METADATA), Placement::Full);
        assert!(setup.has(0), "a used entry is the last to be cleaned");
        assert_eq!(setup.clean(), [1, 2]);
        assert!(setup.has(2), "a cleaned entry is still cached, and is used again");
        assert_eq!(setup.write(20, METADATA), Placement::Cached);
        assert!(!setup.has(1), "it took the place of the least recently used clean entry");
    }

    #[test]
    fn lowest_class_is_cleaned_first_and_bypasses_the_cache() {
        let mut setup = setup(Ranking::Classes);
        (0..10).for_each(|chunk| _ = setup.write(chunk, LARGE));
        (10..20).for_each(|chunk| _ = setup.write(chunk, MEDIUM));
        let entry = setup.cache.next_to_clean(&setup.world).unwrap();
        assert_eq!(entry, setup.cache.chunk(setup.object, 0));
        assert_eq!(setup.write(20, LARGE), Placement::Bypassed);
        assert_eq!(setup.write(5, LARGE), Placement::Bypassed);
        assert!(!setup.has(5), "a write that bypasses the cache evicts what it had there");
        assert_eq!(setup.write(21, MEDIUM), Placement::Cached);
    }

    #[test]
    fn removed_entry_leaves_when_its_cleaning_ends() {
        let mut setup = setup(Ranking::Lru);
        (0..20).for_each(|chunk| _ = setup.write(chunk, MEDIUM));
        let entry = setup.cache.next_to_clean(&setup.world).unwrap();
        setup.cache.remove_object(&setup.world, setup.object);
        assert_eq!((setup.cache.cached().count(), setup.cache.unused_blocks), (0, 19 * 16));
        setup.cache.cleaned(&setup.world, entry);
        assert_eq!(setup.cache.unused_blocks, setup.cache.capacity_blocks);
    }
}
