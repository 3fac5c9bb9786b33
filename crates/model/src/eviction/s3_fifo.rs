//! S3-FIFO as published: a small queue of 10 %, a main queue, and ghosts of the size of the main queue (Yang et al.,
//! SOSP 2023, section 4).

use super::window_clock::{Shape, WindowClock, WindowOrder};
use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};

/// S3-FIFO. An entry that would fill the small queue is not admitted, as in the authors' implementation. Ignores classes.
#[derive(Debug)]
pub struct S3Fifo {
    clock: WindowClock,
    small_queue_blocks: u64,
}

impl S3Fifo {
    /// An empty cache.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let shape = Shape { window_percent: 10, ghost_percent: 90, order: WindowOrder::Fifo };
        let clock = WindowClock::new(capacity, shape);
        Self { small_queue_blocks: clock.window_share(capacity.blocks), clock }
    }

    /// Returns true if the cache would admit an entry.
    #[must_use]
    pub const fn would_admit(&self, entry: &Entry) -> bool {
        (entry.blocks as u64) < self.small_queue_blocks
    }
}

impl EvictionPolicy for S3Fifo {
    fn admits(&mut self, entry: &Entry) -> bool {
        self.would_admit(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.clock.insert(slot, &unclassified(entry));
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.clock.hit(slot, &unclassified(entry));
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        self.clock.remove(slot, &unclassified(entry));
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        self.clock.evict(entries)
    }
}

const fn unclassified(entry: &Entry) -> Entry {
    Entry { class: 0, ..*entry }
}
