//! Static DSS, as a baseline: the cache of Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST 2014, III.D.1.
//!
//! New entries enter the list of their class. A syncer keeps a reserve of entries that can be reused at once, the *free
//! list*, which is an LRU list and can still be hit. If the reserve falls to the low watermark, the syncer moves entries
//! to it until the high watermark: those of the lowest priority first, and of these the least recently used. Meanwhile,
//! entries of the lowest priority bypass the cache. The paper gives no watermarks.

use super::classes::{CLASSES, ClassPolicies, ClassSet, Ranking, class_index};
use super::slot_table::{Queue, SlotList, SlotTable};
use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};

/// Watermarks of the reserve, in percent of the cache.
const LOW_WATERMARK_PERCENT: u64 = 5;
const HIGH_WATERMARK_PERCENT: u64 = 10;
/// Entries that the syncer moves for each one that leaves.
const MOVED_PER_EVICTION: u32 = 2;

/// The cache of the paper. It always obeys the labels.
#[derive(Debug)]
pub struct StaticDss {
    slots: SlotTable,
    classes: [SlotList; CLASSES],
    occupied: ClassSet,
    free: SlotList,
    ranking: Ranking<CLASSES>,
    lowest_rank: u8,
    capacity_blocks: u64,
    class_blocks: u64,
    is_cleaning: bool,
}

impl StaticDss {
    /// An empty cache with the priorities of `policies`.
    #[must_use]
    pub fn new(capacity: Capacity, policies: &ClassPolicies) -> Self {
        let ranking = policies.ranking();
        Self {
            slots: SlotTable::new(capacity.slots),
            classes: [SlotList::EMPTY; CLASSES],
            occupied: ClassSet::EMPTY,
            free: SlotList::EMPTY,
            lowest_rank: (0..CLASSES).map(|class| ranking.rank(class)).max().unwrap_or(0),
            ranking,
            capacity_blocks: capacity.blocks,
            class_blocks: 0,
            is_cleaning: false,
        }
    }

    fn push_to_class(&mut self, slot: Slot, entry: &Entry) {
        let class = class_index(entry);
        self.slots.push_front(&mut self.classes[class], Queue::Main, slot, entry.blocks);
        self.class_blocks += u64::from(entry.blocks);
        self.occupied.set(class, true);
    }

    /// The syncer.
    fn clean(&mut self, entries: &dyn Entries) {
        for _ in 0..MOVED_PER_EVICTION {
            let reserve = self.capacity_blocks.saturating_sub(self.class_blocks);
            if reserve <= self.capacity_blocks * LOW_WATERMARK_PERCENT / 100 {
                self.is_cleaning = true;
            } else if reserve >= self.capacity_blocks * HIGH_WATERMARK_PERCENT / 100 {
                self.is_cleaning = false;
            }
            let Some(slot) = self.lowest().filter(|_| self.is_cleaning) else { break };
            let entry = entries.entry(slot);
            self.remove(slot, &entry);
            self.slots.push_front(&mut self.free, Queue::Window, slot, entry.blocks);
        }
    }

    /// The least recently used entry of the lowest priority, outside the free list.
    fn lowest(&self) -> Option<Slot> {
        let class = self.occupied.lowest_priority(&self.ranking).iter().next()?;
        self.classes[class].back()
    }
}

impl EvictionPolicy for StaticDss {
    fn admits(&mut self, entry: &Entry) -> bool {
        let rank = self.ranking.rank(class_index(entry));
        !self.is_cleaning || self.lowest_rank == 0 || rank < self.lowest_rank
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.push_to_class(slot, entry);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.remove(slot, entry);
        self.push_to_class(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        match self.slots.queue(slot).expect("a removed slot is occupied") {
            Queue::Window => self.slots.unlink(&mut self.free, slot, entry.blocks),
            Queue::Main | Queue::Pinned => {
                let class = class_index(entry);
                self.slots.unlink(&mut self.classes[class], slot, entry.blocks);
                self.class_blocks -= u64::from(entry.blocks);
                self.occupied.set(class, self.classes[class].blocks() > 0);
            }
        }
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        self.clean(entries);
        let victim = self.free.back().or_else(|| self.lowest())?;
        self.remove(victim, &entries.entry(victim));
        Some(victim)
    }
}
