//! The treatment of data by the cache: policies of classes, which can be replaced at run time, and pinned prefixes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;
use tradewind_core::{Address, Class, ObjectInfo, Span};
use tradewind_model::class_policy::ClassPolicyTable;

use crate::extent::EXTENT_BYTES;
use crate::head::Head;
use crate::pins::PinnedPrefix;
use crate::policy::{PinReason, TierPolicies};
use crate::ram::Placement;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct CachePolicies {
    table: RwLock<Arc<ClassPolicyTable>>,
    prefixes: RwLock<Arc<Vec<PinnedPrefix>>>,
    /// True if a class or a prefix is pinned.
    has_pins: AtomicBool,
    /// A bit for each class without a policy that was reported.
    reported: AtomicU32,
}

impl CachePolicies {
    /// The policies of classes.
    pub fn table(&self) -> Arc<ClassPolicyTable> {
        self.table.read().clone()
    }

    /// The policies in the form of the tiers.
    pub fn for_tiers(&self) -> TierPolicies {
        TierPolicies::new(&self.table())
    }

    /// Replaces the policies of classes.
    pub fn set_table(&self, table: Arc<ClassPolicyTable>) {
        *self.table.write() = table;
        self.update_has_pins();
    }

    /// The pinned prefixes.
    pub fn prefixes(&self) -> Arc<Vec<PinnedPrefix>> {
        self.prefixes.read().clone()
    }

    /// Replaces the pinned prefixes.
    pub fn set_prefixes(&self, prefixes: Vec<PinnedPrefix>) {
        *self.prefixes.write() = Arc::new(prefixes);
        self.update_has_pins();
    }

    fn update_has_pins(&self) {
        let has_pins = !self.prefixes.read().is_empty() || self.for_tiers().pinned_classes != 0;
        self.has_pins.store(has_pins, Ordering::Relaxed);
    }

    /// True if a class or a prefix is pinned: what is read may have to be pinned.
    pub fn has_pins(&self) -> bool {
        self.has_pins.load(Ordering::Relaxed)
    }

    /// The treatment of a head: that of the most important byte of its object, which cannot be found without it.
    pub fn of_head(&self, head: &Head) -> Placement {
        self.of_span(&head.address, &head.info, Span::whole(head.info.size))
    }

    /// The treatment of an extent: that of its most important byte.
    pub fn of_extent(&self, head: &Head, number: u32) -> Placement {
        let size = head.info.size;
        let offset = (u64::from(number) * EXTENT_BYTES as u64).min(size);
        let length = (size - offset).min(EXTENT_BYTES as u64);
        self.of_span(&head.address, &head.info, Span { offset, length })
    }

    fn of_span(&self, address: &Address, info: &ObjectInfo, span: Span) -> Placement {
        let table = self.table.read();
        let class = table.class_of_span(&info.metadata.classes, info.size, &(span.offset..span.end()));
        if table.lacks(class) && self.is_first_report(class) {
            let class = class.value();
            tracing::warn!(class, "objects have a class without a policy; they are treated as unclassified");
        }
        let is_in_prefix =
            self.has_pins() && self.prefixes.read().iter().any(|pinned| pinned.contains(address));
        let pin = if is_in_prefix {
            Some(PinReason::Prefix)
        } else {
            table.is_pinned(class).then_some(PinReason::Class)
        };
        Placement { class: class.value(), pin }
    }

    fn is_first_report(&self, class: Class) -> bool {
        let bit = 1 << class.value();
        self.reported.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// The class of the bytes `span` of an object, and its priority unless it is ranked by reuse.
    pub fn rank_of_span(&self, info: &ObjectInfo, span: Span) -> (Class, Option<u8>) {
        let table = self.table.read();
        let class = table.class_of_span(&info.metadata.classes, info.size, &(span.offset..span.end()));
        let priority = (!table.is_ranked_by_reuse(class)).then(|| table.priority(class).value());
        (class, priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_without_a_policy_is_reported_once() {
        let policies = CachePolicies::default();
        let reports = [5, 5, 23, 5, 23].map(|class| policies.is_first_report(Class::new(class).unwrap()));
        assert_eq!(reports, [true, false, true, false, false]);
    }
}
