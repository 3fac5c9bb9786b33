//! The eviction policies of a tier: the class-aware default, and baselines for comparison, which ignore classes.

use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_model::eviction::{
    AdaptiveWindow, CLASSES, Capacity, ClassOccupancy, ClassPolicies, Entries, Entry, EvictionPolicy, Lru,
    MAX_SLOTS, MissCost, S3Fifo, Slot,
};

/// The unit by which the policy groups sizes, in both tiers alike: up to 8, 24, 36 and 72 KiB.
const SIZE_UNIT_BYTES: usize = 4 << 10;

/// The eviction policy of a cache, for both of its tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Eviction {
    /// S3-FIFO behind an LRU window of adaptive size, which obeys the policies of classes.
    #[default]
    AdaptiveWindow,
    /// Least recently used. Ignores classes and pins.
    Lru,
    /// S3-FIFO as published. Ignores classes and pins, and rejects entries above 10 % of the tier.
    S3Fifo,
}

impl Eviction {
    /// Returns true if the policy obeys priorities, limits of occupancy and pins.
    #[must_use]
    pub const fn obeys_classes(self) -> bool {
        matches!(self, Self::AdaptiveWindow)
    }
}

/// The limits of a tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierCapacity {
    pub blocks: u64,
    /// Slots are below this.
    pub slots: usize,
    pub max_entries: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
}

/// An empty policy, with the default priorities of classes.
pub(crate) fn new_policy(eviction: Eviction, tier: TierCapacity) -> Policy {
    let limit = |count: usize| u32::try_from(count).unwrap_or(MAX_SLOTS).min(MAX_SLOTS);
    let capacity = Capacity { blocks: tier.blocks.max(1), slots: limit(tier.slots) };
    match eviction {
        Eviction::AdaptiveWindow => {
            let policies = ClassPolicyTable::default().eviction_policies();
            let mut policy = AdaptiveWindow::class_aware(capacity, &policies, MissCost::default());
            policy.set_max_entries(limit(tier.max_entries));
            policy.set_size_unit(limit(SIZE_UNIT_BYTES.div_ceil(tier.block_bytes)));
            policy.set_class_policies(&policies);
            Policy::ClassAware(Box::new(policy))
        }
        Eviction::Lru => Policy::baseline(BaselineKind::Lru(Lru::new(capacity))),
        Eviction::S3Fifo => Policy::baseline(BaselineKind::S3Fifo(Box::new(S3Fifo::new(capacity)))),
    }
}

/// The policy of one tier.
#[derive(Debug)]
pub(crate) enum Policy {
    ClassAware(Box<AdaptiveWindow>),
    Baseline(Box<Baseline>),
}

/// A policy that ignores classes, and the occupancy by class.
#[derive(Debug)]
pub(crate) struct Baseline {
    kind: BaselineKind,
    occupancy: [ClassOccupancy; CLASSES],
}

#[derive(Debug)]
enum BaselineKind {
    Lru(Lru),
    S3Fifo(Box<S3Fifo>),
}

impl Policy {
    fn baseline(kind: BaselineKind) -> Self {
        let occupancy = [ClassOccupancy::default(); CLASSES];
        Self::Baseline(Box::new(Baseline { kind, occupancy }))
    }

    /// Changes the policies of classes. Baselines ignore them.
    pub fn set_class_policies(&mut self, policies: &ClassPolicies) {
        if let Self::ClassAware(policy) = self {
            policy.set_class_policies(policies);
        }
    }

    /// Sets the part of the tier that entries have which the policy does not rank. Baselines need not know it.
    pub fn set_unranked(&mut self, blocks: u64, entries: u32) {
        if let Self::ClassAware(policy) = self {
            policy.set_unranked(blocks, entries);
        }
    }

    /// Returns true if the tier would admit an entry. Unlike [`admits`](EvictionPolicy::admits), it records no request.
    pub fn would_admit(&self, entry: &Entry) -> bool {
        match self {
            Self::ClassAware(policy) => policy.would_admit(entry),
            Self::Baseline(policy) => match &policy.kind {
                BaselineKind::Lru(_) => true,
                BaselineKind::S3Fifo(policy) => policy.would_admit(entry),
            },
        }
    }

    /// Returns true if the bound of pins has room for an entry. Baselines pin nothing.
    pub const fn may_pin(&self, entry: &Entry) -> bool {
        match self {
            Self::ClassAware(policy) => policy.may_pin(entry),
            Self::Baseline(_) => false,
        }
    }

    /// Pins an entry. Returns false if the bound of pins has no room for it.
    pub fn pin(&mut self, slot: Slot, entry: &Entry) -> bool {
        match self {
            Self::ClassAware(policy) => policy.pin(slot, entry),
            Self::Baseline(_) => false,
        }
    }

    /// Returns true if the entry in a slot is pinned.
    pub fn is_pinned(&self, slot: Slot) -> bool {
        match self {
            Self::ClassAware(policy) => policy.is_pinned(slot),
            Self::Baseline(_) => false,
        }
    }

    /// Moves an entry from its class to another one, and unpins it unless `keeps_pin`.
    pub fn reclassify(&mut self, slot: Slot, entry: &Entry, class: u8, keeps_pin: bool) {
        match self {
            Self::ClassAware(policy) => policy.reclassify(slot, entry, class, keeps_pin),
            Self::Baseline(policy) => {
                policy.leaves(entry);
                policy.enters(&Entry { class, ..*entry });
            }
        }
    }

    /// Unpins up to `max_entries` entries of a class. Returns their number.
    pub fn unpin_class(&mut self, class: u8, max_entries: u32, entries: &dyn Entries) -> u32 {
        match self {
            Self::ClassAware(policy) => policy.unpin_class(class, max_entries, entries),
            Self::Baseline(_) => 0,
        }
    }

    /// The occupancy by class.
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        match self {
            Self::ClassAware(policy) => policy.occupancy(),
            Self::Baseline(policy) => policy.occupancy,
        }
    }

    /// Removes an entry in whose place an equal one is about to be inserted: simulations keep it.
    pub fn release(&mut self, slot: Slot, entry: &Entry) {
        match self {
            Self::ClassAware(policy) => policy.release(slot, entry),
            Self::Baseline(policy) => policy.remove(slot, entry),
        }
    }

    /// Removes what simulations have of a key whose data has changed.
    pub fn forget(&mut self, key: u64) {
        if let Self::ClassAware(policy) = self {
            policy.forget(key);
        }
    }

    fn policy(&mut self) -> &mut dyn EvictionPolicy {
        match self {
            Self::ClassAware(policy) => &mut **policy,
            Self::Baseline(policy) => &mut **policy,
        }
    }
}

impl EvictionPolicy for Policy {
    fn admits(&mut self, entry: &Entry) -> bool {
        self.policy().admits(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.policy().insert(slot, entry);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.policy().hit(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        self.policy().remove(slot, entry);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        self.policy().evict(entries)
    }

    fn has_excess(&self) -> bool {
        match self {
            Self::ClassAware(policy) => policy.has_excess(),
            Self::Baseline(_) => false,
        }
    }
}

impl Baseline {
    fn policy(&mut self) -> &mut dyn EvictionPolicy {
        match &mut self.kind {
            BaselineKind::Lru(policy) => policy,
            BaselineKind::S3Fifo(policy) => policy,
        }
    }

    fn enters(&mut self, entry: &Entry) {
        let occupancy = &mut self.occupancy[class_index(entry)];
        occupancy.blocks += u64::from(entry.blocks);
        occupancy.entries += 1;
    }

    fn leaves(&mut self, entry: &Entry) {
        let occupancy = &mut self.occupancy[class_index(entry)];
        occupancy.blocks -= u64::from(entry.blocks);
        occupancy.entries -= 1;
    }
}

impl EvictionPolicy for Baseline {
    fn admits(&mut self, entry: &Entry) -> bool {
        self.policy().admits(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        self.policy().insert(slot, entry);
        self.enters(entry);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        self.policy().hit(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        self.policy().remove(slot, entry);
        self.leaves(entry);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        let victim = self.policy().evict(entries)?;
        self.leaves(&entries.entry(victim));
        Some(victim)
    }
}

fn class_index(entry: &Entry) -> usize {
    usize::from(entry.class) % CLASSES
}
