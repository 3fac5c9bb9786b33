//! The eviction policy of both tiers.

use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_model::eviction::{
    AdaptiveWindow, CLASSES, Capacity, ClassPolicies, Entries, MAX_SLOTS, MissCost,
};

/// The policy of one tier.
pub(crate) type Policy = AdaptiveWindow;

/// Entries that are unpinned or evicted under one lock after a change of the policies.
pub(crate) const MAX_STEP_ENTRIES: u32 = 1024;

/// The default policy for entries of at most `blocks` in sum and slots below `slots`, with the default priorities of
/// classes.
pub(crate) fn new_policy(blocks: u64, slots: usize) -> Policy {
    let slots = u32::try_from(slots).unwrap_or(MAX_SLOTS).min(MAX_SLOTS);
    let capacity = Capacity { blocks: blocks.max(1), slots };
    let policies = ClassPolicyTable::default().eviction_policies();
    AdaptiveWindow::class_aware(capacity, &policies, MissCost::default())
}

/// A table of policies in the form that the tiers need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierPolicies {
    pub eviction: ClassPolicies,
    /// A bit for each class that is pinned.
    pub pinned_classes: u32,
}

impl TierPolicies {
    pub fn new(table: &ClassPolicyTable) -> Self {
        let pinned = tradewind_model::class_policy::all_classes().filter(|class| table.is_pinned(*class));
        let pinned_classes = pinned.map(|class| 1 << class.value()).sum();
        Self { eviction: table.eviction_policies(), pinned_classes }
    }

    /// Returns true if a class is pinned.
    pub const fn is_pinned(&self, class: u8) -> bool {
        self.pinned_classes & 1 << class != 0
    }
}

/// Unpins some entries of the classes that are not pinned. Returns true if there may be more.
pub(crate) fn unpin_some(policy: &mut Policy, policies: &TierPolicies, entries: &dyn Entries) -> bool {
    let mut left = MAX_STEP_ENTRIES;
    for class in (0..CLASSES as u8).filter(|class| !policies.is_pinned(*class)) {
        left -= policy.unpin_class(class, left, entries);
    }
    left == 0
}
