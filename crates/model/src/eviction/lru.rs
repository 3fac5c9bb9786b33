//! Least recently used, exactly.

use super::slot_table::{Queue, SlotList, SlotTable};
use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};

/// Evicts the least recently used entry. Admits all.
#[derive(Debug)]
pub struct Lru {
    slots: SlotTable,
    list: SlotList,
}

impl Lru {
    /// An empty cache.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self { slots: SlotTable::new(capacity.slots), list: SlotList::EMPTY }
    }
}

impl EvictionPolicy for Lru {
    fn admits(&mut self, _: &Entry) -> bool {
        true
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.slots.push_front(&mut self.list, Queue::Main, slot, entry.blocks);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.remove(slot, entry);
        self.insert(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        self.slots.unlink(&mut self.list, slot, entry.blocks);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        let victim = self.list.back()?;
        self.remove(victim, &entries.entry(victim));
        Some(victim)
    }
}
