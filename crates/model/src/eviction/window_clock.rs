//! A window, a clock and ghosts: the structure of S3-FIFO, with a window of any size and order, and lists per class and
//! size.
//!
//! New entries enter the *window*. One that was hit twice when it reaches the end of the window moves to the *main*
//! queue; another one leaves the cache, and its key becomes a ghost. An entry whose ghost is found enters the main queue
//! at once. The main queue is a clock: an entry with hits gets another round for each of up to three. The main queue
//! loses entries while it is larger than what the window leaves.
//!
//! Each *cell*, a class and a group of sizes, has both queues of its own. Cells of equal rank are treated as one: their
//! oldest entry leaves first, to the precision of an *epoch*, of which a queue has at least 24.
//!
//! A *pinned* entry is in neither queue and never leaves by eviction. Pins take a bounded share of the cache; the queues
//! have the rest. Admission, pins and limits of occupancy count slots as well as blocks: small entries fill the slots
//! first. The window is a share of the blocks.
//!
//! One class may have a *reserved* share: while it is within it, only its own entries displace it, and its age.

mod reserve_hand;

use super::classes::{
    CELLS, CLASSES, CellSet, ClassOccupancy, ClassPolicies, Ranking, ReservedShare, SizeUnit, Usage,
    cells_of_class, class_of_cell,
};
use super::ghosts::Ghosts;
use super::slot_table::{EPOCHS, MAX_FREQUENCY, Queue, SlotList, SlotTable};
use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};
use reserve_hand::{NEW_FREQUENCY, ReserveHand};

/// Hits in the window after which an entry moves to the main queue.
const MIN_WINDOW_HITS: u8 = 2;
/// Epochs in a full window, and in a main queue of the size of the cache. Fewer than [`EPOCHS`], so that entries that
/// stay longer are not mistaken for new ones.
const WINDOW_EPOCHS: u64 = 24;
const MAIN_EPOCHS: u64 = 48;

/// The most of the cache that pinned entries may fill, in percent.
const MAX_PINNED_PERCENT: u64 = 50;

/// The order of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowOrder {
    /// By insertion.
    Fifo,
    /// By the last request.
    Lru,
}

/// Sizes relative to the capacity of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Size of the window, 1 to 100. At 100, the cache has no main queue.
    pub(super) window_percent: u64,
    /// Size of evicted entries whose keys are kept.
    pub(super) ghost_percent: u64,
    pub(super) order: WindowOrder,
}

#[derive(Debug)]
pub(super) struct WindowClock {
    slots: SlotTable,
    cells: [CellQueues; CELLS],
    occupied: CellSet,
    over_occupancy: CellSet,
    /// The class with a reserved share while it is within that.
    within_reserve: CellSet,
    max_usages: [Usage; CLASSES],
    reserved: Option<ReservedShare>,
    is_reserve_active: bool,
    reserve_hand: ReserveHand,
    ranking: Ranking,
    ghosts: Ghosts,
    size_unit: SizeUnit,
    order: WindowOrder,
    capacity_blocks: u64,
    /// Entries at most: the slots, or fewer.
    max_entries: u32,
    window_percent: u64,
    window_blocks: u64,
    main_blocks: u64,
    pinned_blocks: u64,
    pinned_slots: u64,
    queued_slots: u64,
    /// The part of the cache of entries in no queue and not pinned, which the caller removes.
    unranked: Usage,
    window_epoch: Epoch,
    main_epoch: Epoch,
    /// True once an entry was evicted. Until then, a full window overflows into the main queue.
    is_warm: bool,
}

#[derive(Debug, Clone, Copy)]
struct CellQueues {
    window: SlotList,
    main: SlotList,
    pinned: SlotList,
}

impl CellQueues {
    const EMPTY: Self = Self { window: SlotList::EMPTY, main: SlotList::EMPTY, pinned: SlotList::EMPTY };

    /// The usage by entries that may be evicted.
    const fn queued(&self) -> Usage {
        self.window.usage().plus(self.main.usage())
    }

    const fn occupancy(&self) -> ClassOccupancy {
        ClassOccupancy {
            blocks: self.queued().blocks + self.pinned.blocks(),
            entries: self.window.slots() + self.main.slots() + self.pinned.slots(),
        }
    }

    const fn list(&mut self, queue: Queue) -> &mut SlotList {
        match queue {
            Queue::Window => &mut self.window,
            Queue::Main => &mut self.main,
            Queue::Pinned => &mut self.pinned,
        }
    }
}

/// A coarse clock of insertions into a queue.
#[derive(Debug)]
struct Epoch {
    now: u8,
    blocks: u64,
    length_blocks: u64,
}

impl Epoch {
    fn new(length_blocks: u64) -> Self {
        Self { now: 0, blocks: 0, length_blocks: length_blocks.max(1) }
    }

    /// Returns the epoch of an insertion.
    fn advance(&mut self, blocks: u32) -> u8 {
        let epoch = self.now;
        self.blocks += u64::from(blocks);
        if self.blocks >= self.length_blocks {
            self.blocks = 0;
            self.now = (self.now + 1) % EPOCHS;
        }
        epoch
    }

    const fn age(&self, epoch: u8) -> u8 {
        (self.now + EPOCHS - epoch) % EPOCHS
    }
}

impl WindowClock {
    pub(super) fn new(capacity: Capacity, shape: Shape) -> Self {
        let ghost_share = |amount: u64| (amount * shape.ghost_percent / 100).max(1);
        let mut clock = Self {
            slots: SlotTable::new(capacity.slots),
            cells: [CellQueues::EMPTY; CELLS],
            occupied: CellSet::EMPTY,
            over_occupancy: CellSet::EMPTY,
            within_reserve: CellSet::EMPTY,
            reserved: None,
            is_reserve_active: true,
            reserve_hand: ReserveHand::default(),
            max_usages: [Usage::UNLIMITED; CLASSES],
            ranking: Ranking::NONE,
            ghosts: Ghosts::new(ghost_share(capacity.blocks), ghost_share(u64::from(capacity.slots))),
            size_unit: SizeUnit(1),
            order: shape.order,
            capacity_blocks: capacity.blocks,
            max_entries: capacity.slots,
            window_percent: shape.window_percent,
            window_blocks: 0,
            main_blocks: 0,
            pinned_blocks: 0,
            pinned_slots: 0,
            queued_slots: 0,
            unranked: Usage::NONE,
            window_epoch: Epoch::new(1),
            main_epoch: Epoch::new(capacity.blocks / MAIN_EPOCHS),
            is_warm: false,
        };
        clock.set_window_percent(shape.window_percent);
        clock
    }

    /// Changes the size of the window. Entries move when the next ones are evicted.
    pub(super) fn set_window_percent(&mut self, percent: u64) {
        self.window_percent = percent;
        self.window_epoch.length_blocks = (self.window_share(self.capacity_blocks) / WINDOW_EPOCHS).max(1);
    }

    pub(super) const fn set_ranking(&mut self, ranking: Ranking) {
        self.ranking = ranking;
    }

    /// Limits the number of entries, if the caller cannot fill all slots. Must precede other limits and entries.
    pub(super) fn set_max_entries(&mut self, max_entries: u32) {
        self.max_entries = max_entries.min(self.max_entries);
    }

    /// Sets the part of the cache that entries have which are in no queue and not pinned.
    pub(super) const fn set_unranked(&mut self, unranked: Usage) {
        self.unranked = unranked;
    }

    /// Changes the blocks of a size unit. Must precede entries.
    pub(super) const fn set_size_unit(&mut self, size_unit: SizeUnit) {
        self.size_unit = size_unit;
    }

    const fn capacity(&self) -> Usage {
        Usage { blocks: self.capacity_blocks, slots: self.max_entries as u64 }
    }

    pub(super) fn set_class_policies(&mut self, policies: &ClassPolicies) {
        self.max_usages = policies.max_usages(self.capacity());
        self.reserved = policies.reserved();
        self.within_reserve = CellSet::EMPTY;
        for class in 0..CLASSES {
            self.update_class(class);
        }
    }

    /// Ends the reserved share, or begins it again.
    pub(super) fn set_reserve_active(&mut self, is_active: bool) {
        self.is_reserve_active = is_active;
        if let Some(reserved) = self.reserved {
            self.update_class(reserved.class);
        }
    }

    /// The frequency of a new entry.
    fn new_frequency(&self, cell: usize) -> u8 {
        let is_reserved = self.reserved.is_some_and(|reserved| reserved.class == class_of_cell(cell));
        if is_reserved { NEW_FREQUENCY } else { 0 }
    }

    /// Hits of an entry that give it another round.
    fn hits(&self, cell: usize, slot: Slot) -> u8 {
        self.slots.frequency(slot).saturating_sub(self.new_frequency(cell))
    }

    /// The reserved part of the cache for a class.
    fn reserved_usage(&self, class: usize) -> Usage {
        let reserved = self.reserved.filter(|reserved| self.is_reserve_active && reserved.class == class);
        reserved.map_or(Usage::NONE, |reserved| reserved.of_capacity(self.capacity()))
    }

    /// The size of the window in a cache of the given size.
    pub(super) fn window_share(&self, blocks: u64) -> u64 {
        (blocks * self.window_percent / 100).max(1).min(blocks)
    }

    fn has_main_queue(&self) -> bool {
        self.window_share(self.capacity_blocks) < self.capacity_blocks
    }

    fn push(&mut self, queue: Queue, cell: usize, slot: Slot, blocks: u32) {
        self.slots.push_front(self.cells[cell].list(queue), queue, slot, blocks);
        *self.queue_blocks(queue) += u64::from(blocks);
        *self.queue_slots(queue) += 1;
        let epoch = match queue {
            Queue::Window => self.window_epoch.advance(blocks),
            Queue::Main => self.main_epoch.advance(blocks),
            Queue::Pinned => 0,
        };
        self.slots.set_epoch(slot, epoch);
    }

    fn unlink(&mut self, queue: Queue, cell: usize, slot: Slot, blocks: u32) {
        self.slots.unlink(self.cells[cell].list(queue), slot, blocks);
        *self.queue_blocks(queue) -= u64::from(blocks);
        *self.queue_slots(queue) -= 1;
    }

    const fn queue_blocks(&mut self, queue: Queue) -> &mut u64 {
        match queue {
            Queue::Window => &mut self.window_blocks,
            Queue::Main => &mut self.main_blocks,
            Queue::Pinned => &mut self.pinned_blocks,
        }
    }

    const fn queue_slots(&mut self, queue: Queue) -> &mut u64 {
        match queue {
            Queue::Window | Queue::Main => &mut self.queued_slots,
            Queue::Pinned => &mut self.pinned_slots,
        }
    }

    /// Updates what the sets say of a cell, and of the others of its class if that has a limit or a share.
    fn update_sets(&mut self, cell: usize) {
        self.occupied.set(cell, self.cells[cell].queued().slots > 0);
        let class = class_of_cell(cell);
        let is_reserved = self.reserved.is_some_and(|reserved| reserved.class == class);
        if is_reserved || self.max_usages[class] != Usage::UNLIMITED {
            self.update_class(class);
        }
    }

    fn update_class(&mut self, class: usize) {
        let (queued, pinned) = self.usage_of_class(class);
        let is_over = !queued.plus(pinned).is_within(self.max_usages[class]);
        let is_within_reserve = queued.is_within(self.reserved_usage(class));
        for cell in cells_of_class(class) {
            let is_occupied = self.cells[cell].queued().slots > 0;
            self.over_occupancy.set(cell, is_occupied && is_over);
            self.within_reserve.set(cell, is_occupied && is_within_reserve);
        }
    }

    /// The usage by entries of a class that may be evicted, and by pinned ones.
    fn usage_of_class(&self, class: usize) -> (Usage, Usage) {
        cells_of_class(class).fold((Usage::NONE, Usage::NONE), |(queued, pinned), cell| {
            let queues = &self.cells[cell];
            (queued.plus(queues.queued()), pinned.plus(queues.pinned.usage()))
        })
    }

    /// The blocks that the queues share.
    const fn queue_capacity(&self) -> u64 {
        self.capacity_blocks.saturating_sub(self.pinned_blocks + self.unranked.blocks)
    }

    /// Returns true if an entry would be admitted. Unlike [`EvictionPolicy::admits`], it records nothing.
    pub(super) fn would_admit(&self, entry: &Entry) -> bool {
        let used = self.queued().plus(self.pinned()).plus(self.unranked);
        let missing = Usage::of_entry(entry).saturating_minus(self.capacity().saturating_minus(used));
        let cell = self.size_unit.cell(entry);
        let (class, rank) = (class_of_cell(cell), self.ranking.rank(cell));
        let is_in_reserve =
            self.usage_of_class(class).0.plus(Usage::of_entry(entry)).is_within(self.reserved_usage(class));
        let is_below = |other: &usize| {
            let is_lower = self.ranking.rank(*other) >= rank;
            is_in_reserve
                || is_lower && (class_of_cell(*other) == class || !self.within_reserve.contains(*other))
        };
        let replaceable = || self.occupied.iter().filter(is_below).map(|cell| self.cells[cell].queued());
        missing == Usage::NONE || missing.is_within(replaceable().fold(Usage::NONE, Usage::plus))
    }

    const fn queued(&self) -> Usage {
        Usage { blocks: self.window_blocks + self.main_blocks, slots: self.queued_slots }
    }

    const fn pinned(&self) -> Usage {
        Usage { blocks: self.pinned_blocks, slots: self.pinned_slots }
    }

    /// Returns true if the bound of pins has room for an entry.
    pub(super) const fn may_pin(&self, entry: &Entry) -> bool {
        self.pinned().plus(Usage::of_entry(entry)).is_within(self.capacity().percent(MAX_PINNED_PERCENT))
    }

    /// Pins an entry. Returns false if the bound of pins has no room for it.
    pub(super) fn pin(&mut self, slot: Slot, entry: &Entry) -> bool {
        let queue = self.slots.queue(slot).expect("a pinned slot is occupied");
        if queue == Queue::Pinned {
            return true;
        }
        if !self.may_pin(entry) {
            return false;
        }
        self.move_to(Queue::Pinned, slot, entry);
        true
    }

    fn move_to(&mut self, queue: Queue, slot: Slot, entry: &Entry) {
        let (cell, from) =
            (self.size_unit.cell(entry), self.slots.queue(slot).expect("a moved slot is occupied"));
        self.unlink(from, cell, slot, entry.blocks);
        self.push(queue, cell, slot, entry.blocks);
        self.update_sets(cell);
    }

    /// Moves an entry to the same queue of another class. It is unpinned unless `keeps_pin`.
    pub(super) fn reclassify(&mut self, slot: Slot, entry: &Entry, class: u8, keeps_pin: bool) {
        let queue = self.slots.queue(slot).expect("a reclassified slot is occupied");
        let changed = Entry { class, ..*entry };
        let (from, to) = (self.size_unit.cell(entry), self.size_unit.cell(&changed));
        self.unlink(queue, from, slot, entry.blocks);
        let queue = match queue {
            Queue::Pinned if !keeps_pin => self.queue_after_unpinning(),
            queue => queue,
        };
        self.push(queue, to, slot, entry.blocks);
        self.slots.set_frequency(slot, self.new_frequency(to));
        self.update_sets(from);
        self.update_sets(to);
    }

    pub(super) fn is_pinned(&self, slot: Slot) -> bool {
        self.slots.queue(slot) == Some(Queue::Pinned)
    }

    fn queue_after_unpinning(&self) -> Queue {
        if self.has_main_queue() { Queue::Main } else { Queue::Window }
    }

    /// Moves up to `max_entries` pinned entries of a class to the main queue. Returns their number.
    pub(super) fn unpin_class(&mut self, class: usize, max_entries: u32, entries: &dyn Entries) -> u32 {
        let queue = self.queue_after_unpinning();
        for moved in 0..max_entries {
            let pinned = cells_of_class(class).find_map(|cell| self.cells[cell].pinned.back());
            let Some(slot) = pinned else { return moved };
            self.move_to(queue, slot, &entries.entry(slot));
        }
        max_entries
    }

    pub(super) fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        std::array::from_fn(|class| {
            cells_of_class(class).map(|cell| self.cells[cell].occupancy()).fold(
                ClassOccupancy::default(),
                |sum, cell| ClassOccupancy {
                    blocks: sum.blocks + cell.blocks,
                    entries: sum.entries + cell.entries,
                },
            )
        })
    }

    /// The cells of which one loses an entry next.
    fn victim_cells(&self) -> CellSet {
        if !self.over_occupancy.is_empty() {
            return self.over_occupancy;
        }
        let unreserved = self.occupied.without(self.within_reserve);
        if unreserved.is_empty() { self.occupied } else { unreserved.lowest_priority(&self.ranking) }
    }

    /// Returns true if the queue of these cells that loses an entry is the main one.
    fn is_main_next(&self, cells: CellSet) -> bool {
        let (mut window, mut main) = (0, 0);
        for cell in cells.iter() {
            window += self.cells[cell].window.blocks();
            main += self.cells[cell].main.blocks();
        }
        let total = if cells == self.occupied { self.queue_capacity() } else { window + main };
        main > total - self.window_share(total)
    }

    /// The cell with the oldest entry at the end of a queue.
    fn oldest(&self, queue: Queue, cells: CellSet) -> Option<(usize, Slot)> {
        let ends = cells.iter().filter_map(|cell| {
            let queues = &self.cells[cell];
            let (list, epoch) = match queue {
                Queue::Window => (&queues.window, &self.window_epoch),
                Queue::Main => (&queues.main, &self.main_epoch),
                Queue::Pinned => return None,
            };
            list.back().map(|slot| (epoch.age(self.slots.epoch(slot)), cell, slot))
        });
        ends.max_by_key(|&(age, ..)| age).map(|(_, cell, slot)| (cell, slot))
    }

    fn evict_from_window(&mut self, cells: CellSet, entries: &dyn Entries) -> Option<Slot> {
        while let Some((cell, slot)) = self.oldest(Queue::Window, cells) {
            let entry = entries.entry(slot);
            let is_promoted = self.has_main_queue() && self.hits(cell, slot) >= MIN_WINDOW_HITS;
            self.unlink(Queue::Window, cell, slot, entry.blocks);
            if is_promoted {
                self.push(Queue::Main, cell, slot, entry.blocks);
            } else {
                self.ghosts.push(entry.key, entry.blocks);
                self.update_sets(cell);
                return Some(slot);
            }
        }
        None
    }

    fn evict_from_main(&mut self, cells: CellSet, entries: &dyn Entries) -> Option<Slot> {
        while let Some((cell, slot)) = self.oldest(Queue::Main, cells) {
            let entry = entries.entry(slot);
            let (frequency, hits) = (self.slots.frequency(slot), self.hits(cell, slot));
            self.unlink(Queue::Main, cell, slot, entry.blocks);
            if hits == 0 {
                self.update_sets(cell);
                return Some(slot);
            }
            self.push(Queue::Main, cell, slot, entry.blocks);
            self.slots.set_frequency(slot, frequency - 1);
        }
        None
    }
}

impl EvictionPolicy for WindowClock {
    /// Rejects an entry for which others of a higher priority would have to leave.
    fn admits(&mut self, entry: &Entry) -> bool {
        self.would_admit(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        let cell = self.size_unit.cell(entry);
        let has_ghost = self.ghosts.take(entry.key, entry.blocks) && self.has_main_queue();
        let is_window_full = self.window_blocks >= self.window_share(self.queue_capacity());
        let queue = if has_ghost || (!self.is_warm && is_window_full) { Queue::Main } else { Queue::Window };
        self.push(queue, cell, slot, entry.blocks);
        self.slots.set_frequency(slot, self.new_frequency(cell));
        self.update_sets(cell);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        let frequency = (self.slots.frequency(slot) + 1).min(MAX_FREQUENCY);
        let queue = self.slots.queue(slot).expect("a hit slot is occupied");
        if queue == Queue::Window && self.order == WindowOrder::Lru {
            let cell = self.size_unit.cell(entry);
            let list = self.cells[cell].list(queue);
            self.slots.unlink(list, slot, entry.blocks);
            self.slots.push_front(list, queue, slot, entry.blocks);
            self.slots.set_epoch(slot, self.window_epoch.now);
        }
        self.slots.set_frequency(slot, frequency);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        let queue = self.slots.queue(slot).expect("a removed slot is occupied");
        let cell = self.size_unit.cell(entry);
        self.unlink(queue, cell, slot, entry.blocks);
        self.update_sets(cell);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        self.is_warm = true;
        if let Some(aged) = self.evict_from_reserve(entries) {
            return Some(aged);
        }
        let cells = self.victim_cells();
        let from_window =
            if self.is_main_next(cells) { None } else { self.evict_from_window(cells, entries) };
        let victim = from_window.or_else(|| self.evict_from_main(cells, entries))?;
        if !self.within_reserve.is_empty() {
            self.advance_reserve_hand(Usage::of_entry(&entries.entry(victim)));
        }
        Some(victim)
    }

    fn has_excess(&self) -> bool {
        !self.over_occupancy.is_empty()
    }
}
