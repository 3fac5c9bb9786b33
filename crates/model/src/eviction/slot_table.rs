//! Doubly linked lists of slots in 8 bytes a slot: two links and the state that policies need.

use super::Slot;
use super::classes::Usage;

/// Maximum number of slots: a link has 27 bits.
pub const MAX_SLOTS: u32 = (1 << LINK_BITS) - 1;

const LINK_BITS: u32 = 27;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
/// The link of the ends of a list.
const NIL: Slot = MAX_SLOTS;

const PREVIOUS_SHIFT: u32 = LINK_BITS;
const QUEUE_SHIFT: u32 = 2 * LINK_BITS;
const QUEUE_MASK: u64 = 0b11;
const FREQUENCY_SHIFT: u32 = QUEUE_SHIFT + 2;
const FREQUENCY_MASK: u64 = 0b11;
const EPOCH_SHIFT: u32 = FREQUENCY_SHIFT + 2;
const EPOCH_MASK: u64 = 0b11_1111;

/// Number of distinct epochs.
pub(super) const EPOCHS: u8 = 64;
/// The highest frequency.
pub(super) const MAX_FREQUENCY: u8 = 3;

/// The kind of list in which a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Window,
    Main,
    Pinned,
}

/// Links and state of every slot.
#[derive(Debug)]
pub(super) struct SlotTable {
    words: Vec<u64>,
}

/// A list of slots, from the most recently pushed one to the oldest, with their number and the sum of their blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotList {
    front: Slot,
    back: Slot,
    blocks: u64,
    slots: u32,
}

impl SlotList {
    pub(super) const EMPTY: Self = Self { front: NIL, back: NIL, blocks: 0, slots: 0 };

    /// The slot that was pushed first.
    pub(super) const fn back(&self) -> Option<Slot> {
        if self.back == NIL { None } else { Some(self.back) }
    }

    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) const fn usage(&self) -> Usage {
        Usage { blocks: self.blocks, slots: self.slots as u64 }
    }
}

impl SlotTable {
    pub(super) fn new(slots: u32) -> Self {
        assert!(slots <= MAX_SLOTS, "a cache has at most {MAX_SLOTS} slots");
        Self { words: vec![0; slots as usize] }
    }

    /// Adds a free slot to a list, with frequency 0.
    pub(super) fn push_front(&mut self, list: &mut SlotList, queue: Queue, slot: Slot, blocks: u32) {
        assert!(self.queue(slot).is_none(), "slot {slot} is occupied");
        let next = list.front;
        self.words[slot as usize] =
            (queue as u64 + 1) << QUEUE_SHIFT | u64::from(NIL) << PREVIOUS_SHIFT | u64::from(next);
        if next == NIL {
            list.back = slot;
        } else {
            self.set_previous(next, slot);
        }
        list.front = slot;
        list.slots += 1;
        list.blocks += u64::from(blocks);
    }

    /// Removes a slot from the list in which it is.
    pub(super) fn unlink(&mut self, list: &mut SlotList, slot: Slot, blocks: u32) {
        assert!(self.queue(slot).is_some(), "slot {slot} is free");
        let (previous, next) = (self.previous(slot), self.next(slot));
        if previous == NIL {
            list.front = next;
        } else {
            self.set_next(previous, next);
        }
        if next == NIL {
            list.back = previous;
        } else {
            self.set_previous(next, previous);
        }
        list.slots -= 1;
        list.blocks -= u64::from(blocks);
        self.words[slot as usize] = 0;
    }

    /// The kind of list in which the slot is; `None` if it is free.
    pub(super) fn queue(&self, slot: Slot) -> Option<Queue> {
        match self.field(slot, QUEUE_SHIFT, QUEUE_MASK) {
            0 => None,
            1 => Some(Queue::Window),
            2 => Some(Queue::Main),
            _ => Some(Queue::Pinned),
        }
    }

    /// Hits since the slot was pushed, up to [`MAX_FREQUENCY`], or what the policy set.
    pub(super) fn frequency(&self, slot: Slot) -> u8 {
        self.field(slot, FREQUENCY_SHIFT, FREQUENCY_MASK) as u8
    }

    pub(super) fn set_frequency(&mut self, slot: Slot, frequency: u8) {
        self.set_field(slot, FREQUENCY_SHIFT, FREQUENCY_MASK, u64::from(frequency.min(MAX_FREQUENCY)));
    }

    /// The epoch in which the slot was pushed, below [`EPOCHS`].
    pub(super) fn epoch(&self, slot: Slot) -> u8 {
        self.field(slot, EPOCH_SHIFT, EPOCH_MASK) as u8
    }

    pub(super) fn set_epoch(&mut self, slot: Slot, epoch: u8) {
        self.set_field(slot, EPOCH_SHIFT, EPOCH_MASK, u64::from(epoch));
    }

    fn next(&self, slot: Slot) -> Slot {
        self.field(slot, 0, LINK_MASK) as Slot
    }

    fn previous(&self, slot: Slot) -> Slot {
        self.field(slot, PREVIOUS_SHIFT, LINK_MASK) as Slot
    }

    fn set_next(&mut self, slot: Slot, next: Slot) {
        self.set_field(slot, 0, LINK_MASK, u64::from(next));
    }

    fn set_previous(&mut self, slot: Slot, previous: Slot) {
        self.set_field(slot, PREVIOUS_SHIFT, LINK_MASK, u64::from(previous));
    }

    fn field(&self, slot: Slot, shift: u32, mask: u64) -> u64 {
        self.words[slot as usize] >> shift & mask
    }

    fn set_field(&mut self, slot: Slot, shift: u32, mask: u64, value: u64) {
        let word = &mut self.words[slot as usize];
        *word = *word & !(mask << shift) | (value & mask) << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_returns_slots_in_the_order_of_pushes() {
        let mut table = SlotTable::new(5);
        let mut list = SlotList::EMPTY;
        for slot in 0..5 {
            table.push_front(&mut list, Queue::Main, slot, slot + 1);
        }
        table.unlink(&mut list, 2, 3);
        table.unlink(&mut list, 4, 5);
        let mut order = Vec::new();
        while let Some(slot) = list.back() {
            order.push(slot);
            table.unlink(&mut list, slot, slot + 1);
        }
        assert_eq!((order, list.blocks()), (vec![0, 1, 3], 0));
    }

    #[test]
    fn state_of_a_slot_is_independent_of_its_links() {
        let mut table = SlotTable::new(3);
        let mut list = SlotList::EMPTY;
        table.push_front(&mut list, Queue::Window, 1, 1);
        table.set_frequency(1, 9);
        table.set_epoch(1, EPOCHS - 1);
        table.push_front(&mut list, Queue::Main, 2, 1);
        assert_eq!((table.frequency(1), table.epoch(1)), (MAX_FREQUENCY, EPOCHS - 1));
        assert_eq!(
            (table.queue(0), table.queue(1), table.queue(2)),
            (None, Some(Queue::Window), Some(Queue::Main))
        );
        assert_eq!(list.back(), Some(1));
    }

    #[test]
    #[should_panic(expected = "slot 0 is occupied")]
    fn push_of_an_occupied_slot_panics() {
        let mut table = SlotTable::new(1);
        let mut list = SlotList::EMPTY;
        table.push_front(&mut list, Queue::Window, 0, 1);
        table.push_front(&mut list, Queue::Window, 0, 1);
    }
}
