//! The hand of a clock over the class with a reserved share. Nothing but its own class displaces an entry there, so a
//! share whose class gets few requests would stay full of entries that are never read. The hand passes all of them while
//! the rest of the cache is replaced a number of times. One without a hit since the last pass leaves. A new entry counts as
//! hit once, so that it outlives at least one pass of the others.

use super::{CellQueues, WindowClock};
use crate::eviction::classes::{SIZE_GROUPS, Usage};
use crate::eviction::slot_table::Queue;
use crate::eviction::{Entries, Slot};

/// The frequency of a new entry of the class with a reserved share.
pub(super) const NEW_FREQUENCY: u8 = 1;
/// Replacements of the cache in which the hand passes all entries of the share once. An entry without a hit stays for one
/// to two passes.
const PASS_CAPACITIES: f64 = 16.0;

/// The state of the hand in each queue. Each size has a pass of its own, since the order among sizes is coarse.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReserveHand {
    window: [Pass; SIZE_GROUPS],
    main: [Pass; SIZE_GROUPS],
}

impl ReserveHand {
    const fn pass(&mut self, queue: Queue, cell: usize) -> &mut Pass {
        let passes = if matches!(queue, Queue::Main) { &mut self.main } else { &mut self.window };
        &mut passes[cell % SIZE_GROUPS]
    }
}

/// One pass of the hand over a queue.
#[derive(Debug, Clone, Copy, Default)]
struct Pass {
    /// Blocks of the queue when the pass began, or later, if they are more.
    all_blocks: u64,
    passed_blocks: u64,
    /// Blocks over which the hand is yet to go.
    due_blocks: f64,
}

impl Pass {
    fn advance(&mut self, queue_blocks: u64, passes: f64) {
        if self.passed_blocks >= self.all_blocks {
            *self = Self { all_blocks: queue_blocks, passed_blocks: 0, due_blocks: self.due_blocks };
        }
        self.all_blocks = self.all_blocks.max(queue_blocks);
        self.due_blocks += passes * self.all_blocks as f64;
    }

    /// Returns true, and goes over an entry, if that is due.
    fn take(&mut self, blocks: u32) -> bool {
        let is_due = self.due_blocks >= f64::from(blocks);
        if is_due {
            self.due_blocks -= f64::from(blocks);
            self.passed_blocks += u64::from(blocks);
        }
        is_due
    }
}

impl WindowClock {
    /// Moves the hand by the eviction of an entry that does not have the share.
    pub(super) fn advance_reserve_hand(&mut self, evicted: Usage) {
        let capacity = self.capacity();
        let part = |amount: u64, of: u64| amount as f64 / of.max(1) as f64;
        let replaced = part(evicted.blocks, capacity.blocks).max(part(evicted.slots, capacity.slots));
        for cell in self.within_reserve.iter() {
            let CellQueues { window, main, .. } = &self.cells[cell];
            self.reserve_hand.pass(Queue::Window, cell).advance(window.blocks(), replaced / PASS_CAPACITIES);
            self.reserve_hand.pass(Queue::Main, cell).advance(main.blocks(), replaced / PASS_CAPACITIES);
        }
    }

    /// The next entry within the share that the hand has reached and that had no hit since its last pass, if any.
    pub(super) fn evict_from_reserve(&mut self, entries: &dyn Entries) -> Option<Slot> {
        let cells = self.within_reserve;
        if cells.is_empty() {
            self.reserve_hand = ReserveHand::default();
            return None;
        }
        let queues = [Queue::Window, Queue::Main];
        cells.iter().find_map(|cell| queues.iter().find_map(|queue| self.pass_list(*queue, cell, entries)))
    }

    fn pass_list(&mut self, queue: Queue, cell: usize, entries: &dyn Entries) -> Option<Slot> {
        while let Some(slot) = self.cells[cell].list(queue).back() {
            let entry = entries.entry(slot);
            if !self.reserve_hand.pass(queue, cell).take(entry.blocks) {
                return None;
            }
            let frequency = self.slots.frequency(slot);
            self.unlink(queue, cell, slot, entry.blocks);
            if frequency == 0 {
                self.update_sets(cell);
                return Some(slot);
            }
            self.push(queue, cell, slot, entry.blocks);
            self.slots.set_frequency(slot, frequency - 1);
        }
        *self.reserve_hand.pass(queue, cell) = Pass::default();
        None
    }
}
