//! The default policy: an LRU window and a clock, in the mode that miniature simulations find best.

use super::classes::{CLASSES, ClassOccupancy, ClassPolicies, SizeUnit, Usage};
use super::miniature::{GHOST_PERCENT, MiniatureSimulations, MissCost};

use super::window_clock::{Shape, WindowClock, WindowOrder};
use super::{Capacity, Entries, Entry, EvictionPolicy, Slot};

/// The structure of S3-FIFO with an LRU window whose size adapts to the requests.
///
/// The window takes 1, 10, 20, 40 or 100 % of the cache. At 100 % the policy is LRU. Small windows resist scans and
/// loops, large ones suit recency.
///
/// With policies for classes, the order in which classes lose entries is chosen in the same way: that of the declared
/// priorities, that of the observed reuse of classes and sizes, that of sizes alone, or none. Labels that predict nothing,
/// or the contrary, are obeyed only until their misses have cost more than misses without labels. A class without reuse has no
/// precedence over a labelled one that is reused. Classes that are ranked by reuse
/// ([`ClassPolicies::rank_by_reuse`]) have no declared priority: among the declared ones they take the rank that they earn.
#[derive(Debug)]
pub struct AdaptiveWindow {
    live: WindowClock,
    simulations: MiniatureSimulations,
}

impl AdaptiveWindow {
    /// An empty cache that treats all classes as one.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self::with_simulations(capacity, MiniatureSimulations::new(capacity, MissCost::default(), None))
    }

    /// An empty cache that obeys the priorities of classes as far as this makes misses cheaper, and always their
    /// limits of occupancy.
    #[must_use]
    pub fn class_aware(capacity: Capacity, policies: &ClassPolicies, miss_cost: MissCost) -> Self {
        let mut policy =
            Self::with_simulations(capacity, MiniatureSimulations::new(capacity, miss_cost, Some(policies)));
        policy.live.set_class_policies(policies);
        policy.apply_mode();
        policy
    }

    /// Changes the policies of classes. The next evictions obey them. A cache from [`new`](Self::new) obeys only the limits
    /// of occupancy.
    pub fn set_class_policies(&mut self, policies: &ClassPolicies) {
        self.live.set_class_policies(policies);
        self.simulations.set_class_policies(policies);
        self.apply_mode();
    }

    /// The present size of the window in percent of the cache.
    #[must_use]
    pub fn window_percent(&self) -> u64 {
        self.simulations.mode().window_percent
    }

    /// Returns true if the cache would admit an entry. Unlike [`admits`](EvictionPolicy::admits), it records no request.
    #[must_use]
    pub fn would_admit(&self, entry: &Entry) -> bool {
        self.live.would_admit(entry)
    }

    /// Limits the number of entries below that of slots, for a caller whose slots are positions in a table that is never
    /// full. Must be called before any entry is inserted. The next call of
    /// [`set_class_policies`](Self::set_class_policies) applies limits of occupancy to it.
    pub fn set_max_entries(&mut self, max_entries: u32) {
        self.live.set_max_entries(max_entries);
        self.simulations.set_max_entries(max_entries);
    }

    /// Sets the blocks and entries of the cache that are used by entries which the policy does not rank: they were never
    /// inserted, and the caller removes them.
    pub fn set_unranked(&mut self, blocks: u64, entries: u32) {
        self.live.set_unranked(Usage { blocks, slots: u64::from(entries) });
    }

    /// Changes the blocks of a size unit, 1 by default, up to 2^24. Entries of a class that differ in size may differ in
    /// rank: up to 2, 6 and 9 units, and above. Must be called before any entry is inserted.
    ///
    /// # Panics
    ///
    /// If it is out of range.
    pub fn set_size_unit(&mut self, blocks: u32) {
        assert!((1..=1 << 24).contains(&blocks), "a size unit of {blocks} blocks is out of range");
        self.live.set_size_unit(SizeUnit(blocks));
        self.simulations.set_size_unit(SizeUnit(blocks));
    }

    /// Returns true if the bound of pinned entries, half of the blocks and of the entries, has room for an entry.
    #[must_use]
    pub const fn may_pin(&self, entry: &Entry) -> bool {
        self.live.may_pin(entry)
    }

    /// Pins the entry in a slot: it is not evicted until it is unpinned. Returns false, and pins nothing, if pinned entries
    /// would fill more than half of the blocks or entries of the cache.
    ///
    /// # Panics
    ///
    /// If the slot is not occupied.
    pub fn pin(&mut self, slot: Slot, entry: &Entry) -> bool {
        self.live.pin(slot, entry)
    }

    /// Returns true if the entry in a slot is pinned.
    #[must_use]
    pub fn is_pinned(&self, slot: Slot) -> bool {
        self.live.is_pinned(slot)
    }

    /// Moves the entry in a slot to another class, in which it is the most recent one. It is unpinned unless
    /// `keeps_pin`. The caller's table must have the new class from now on.
    ///
    /// # Panics
    ///
    /// If the slot is not occupied, or if the class is not below [`CLASSES`].
    pub fn reclassify(&mut self, slot: Slot, entry: &Entry, class: u8, keeps_pin: bool) {
        self.live.reclassify(slot, entry, class, keeps_pin);
    }

    /// Unpins up to `max_entries` entries of a class. Returns their number.
    ///
    /// # Panics
    ///
    /// If the class is not below [`CLASSES`].
    pub fn unpin_class(&mut self, class: u8, max_entries: u32, entries: &dyn Entries) -> u32 {
        self.live.unpin_class(usize::from(class), max_entries, entries)
    }

    /// The occupancy of the cache by class.
    #[must_use]
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        self.live.occupancy()
    }

    /// Removes the entry in a slot in whose place an equal one is about to be inserted. Unlike
    /// [`remove`](EvictionPolicy::remove), the simulations keep it: another mode may not have evicted it.
    ///
    /// # Panics
    ///
    /// If the slot is not occupied.
    pub fn release(&mut self, slot: Slot, entry: &Entry) {
        self.live.remove(slot, entry);
    }

    /// Removes what the simulations have of a key whose data has changed. The next request for it is then a miss in all
    /// modes.
    pub fn forget(&mut self, key: u64) {
        self.simulations.remove(key);
    }

    fn with_simulations(capacity: Capacity, simulations: MiniatureSimulations) -> Self {
        let window_percent = simulations.mode().window_percent;
        let shape = Shape { window_percent, ghost_percent: GHOST_PERCENT, order: WindowOrder::Lru };
        Self { live: WindowClock::new(capacity, shape), simulations }
    }

    fn record_request(&mut self, entry: &Entry) {
        if self.simulations.request(entry) {
            self.apply_mode();
        }
    }

    fn apply_mode(&mut self) {
        self.live.set_window_percent(self.simulations.mode().window_percent);
        self.live.set_ranking(self.simulations.ranking());
        self.live.set_reserve_active(self.simulations.is_reserve_earned());
    }
}

impl EvictionPolicy for AdaptiveWindow {
    fn admits(&mut self, entry: &Entry) -> bool {
        self.record_request(entry);
        self.live.admits(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.live.insert(slot, entry);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.record_request(entry);
        self.live.hit(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        self.simulations.remove(entry.key);
        self.live.remove(slot, entry);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        self.live.evict(entries)
    }

    fn has_excess(&self) -> bool {
        self.live.has_excess()
    }
}
