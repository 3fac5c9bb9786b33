//! The policies of classes of a tier, and how a change of them reaches what is cached. The eviction policy itself is in
//! [`eviction`].

mod eviction;

use tradewind_model::class_policy::{ClassPolicyTable, FIRST_SLICES};
use tradewind_model::eviction::{ClassPolicies, Entries, Entry, Slot};

use crate::counters::Counters;

pub use eviction::Eviction;
pub(crate) use eviction::{Policy, TierCapacity, new_policy};

/// Entries that are visited or evicted under one lock after a change of the policies.
pub(crate) const MAX_STEP_ENTRIES: u32 = 1024;

/// Entries of classes that fill too much which one insertion evicts. It is enough for what the insertion adds, if
/// entries are of a similar size. More is evicted in the background, or by the next insertions.
pub(crate) const MAX_EXCESS_EVICTIONS: u32 = 128;

/// A table of policies in the form that the tiers need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierPolicies {
    pub eviction: ClassPolicies,
    /// A bit for each class that is pinned.
    pub pinned_classes: u32,
    /// True if a class by size is pinned of which the first slices are listed as [`FIRST_SLICES`] while it is not.
    pub pins_first_slices: bool,
}

impl TierPolicies {
    pub fn new(table: &ClassPolicyTable) -> Self {
        let pinned = tradewind_model::class_policy::all_classes().filter(|class| table.is_pinned(*class));
        let pinned_classes = pinned.map(|class| 1 << class.value()).sum();
        let pins_first_slices = table.pins_first_slices();
        Self { eviction: table.eviction_policies(), pinned_classes, pins_first_slices }
    }

    /// The policies of a tier without pins.
    pub fn without_pins(self) -> Self {
        Self { pinned_classes: 0, pins_first_slices: false, ..self }
    }

    /// Returns true if a class is pinned.
    pub const fn is_pinned(&self, class: u8) -> bool {
        self.pinned_classes & 1 << class != 0
    }

    /// The classes of which entries that are cached already may have to be pinned. First slices have not yet the class
    /// that is pinned. Those of other objects are unpinned when they are read.
    const fn classes_to_visit(&self) -> u32 {
        self.pinned_classes | (self.pins_first_slices as u32) << FIRST_SLICES
    }
}

/// The reason to pin an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinReason {
    Class,
    /// A pinned prefix.
    Prefix {
        /// The generation of the pinned prefixes in which it was found.
        generation: u64,
    },
}

/// The entries of a tier by slot.
pub(crate) trait SlotEntries: Entries + Sized {
    /// Slots are below this.
    fn slots(&self) -> Slot;

    /// The entry in a slot; `None` if it is free.
    fn occupied(&self, slot: Slot) -> Option<Entry>;
}

/// The policies of classes of a tier, and how far a change of them has reached its entries: pins that ended first, then
/// new ones.
#[derive(Debug)]
pub(crate) struct AppliedPolicies {
    current: TierPolicies,
    /// A bit for each class of which entries may be pinned that should not be.
    ended_pins: u32,
    /// Entries in slots from here on may have to be pinned.
    next_slot: Option<Slot>,
    /// Pins of prefixes that were found in an earlier generation have ended.
    min_prefix_generation: u64,
}

impl AppliedPolicies {
    /// The default policies.
    pub fn new() -> Self {
        let current = TierPolicies::new(&ClassPolicyTable::default());
        Self { current, ended_pins: 0, next_slot: None, min_prefix_generation: 0 }
    }

    pub const fn current(&self) -> TierPolicies {
        self.current
    }

    /// Replaces the policies. [`Self::apply_some`] brings the change to the entries. Pins of prefixes stay in classes that
    /// were not pinned.
    pub fn replace(&mut self, policies: TierPolicies, policy: &mut Policy) {
        let (before, now) = (self.current.classes_to_visit(), policies.classes_to_visit());
        self.ended_pins = (self.ended_pins | before) & !now;
        self.next_slot = (now != 0).then_some(0);
        self.current = policies;
        policy.set_class_policies(&policies.eviction);
    }

    /// Ends the pins of prefixes that ended before these policies replace `before`.
    pub fn inherit_prefix_generation(&mut self, before: &Self) {
        self.min_prefix_generation = before.min_prefix_generation;
    }

    /// Ends all pins but those of classes, and those of prefixes that are found in `generation` or later.
    pub fn end_prefix_pins(&mut self, generation: u64) {
        self.min_prefix_generation = self.min_prefix_generation.max(generation);
        self.ended_pins = !self.current.pinned_classes;
        if self.current.pins_first_slices {
            self.next_slot = Some(0);
        }
    }

    /// Returns true if an entry that was cached before a change of the policies, or a restart, must be pinned.
    pub const fn is_older_to_pin(&self, class: u8) -> bool {
        self.current.classes_to_visit() & 1 << class != 0
    }

    /// Returns true if an entry of a class must be pinned. A pin of its class or prefix may have ended since `reason` was
    /// found.
    pub const fn is_to_pin(&self, class: u8, reason: Option<PinReason>) -> bool {
        let is_in_prefix = match reason {
            Some(PinReason::Prefix { generation }) => generation >= self.min_prefix_generation,
            Some(PinReason::Class) | None => false,
        };
        is_in_prefix || self.current.is_pinned(class)
    }

    /// Unpins or pins some entries. Returns true if there may be more.
    pub fn apply_some(
        &mut self,
        policy: &mut Policy,
        entries: &impl SlotEntries,
        counters: &Counters,
    ) -> bool {
        let mut left = MAX_STEP_ENTRIES;
        while self.ended_pins != 0 {
            let class = self.ended_pins.trailing_zeros() as u8;
            left -= policy.unpin_class(class, left, entries);
            if left == 0 {
                return true;
            }
            self.ended_pins &= self.ended_pins - 1;
        }
        let Some(first) = self.next_slot else { return false };
        let end = first.saturating_add(left).min(entries.slots());
        for slot in first..end {
            let entry = entries.occupied(slot).filter(|entry| self.is_older_to_pin(entry.class));
            if entry.is_some_and(|entry| !policy.pin(slot, &entry)) {
                counters.pins_ignored.increment();
            }
        }
        self.next_slot = (end < entries.slots()).then_some(end);
        self.next_slot.is_some()
    }
}
