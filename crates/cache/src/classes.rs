//! The treatment of data by the cache: policies of classes, which can be replaced at run time, pinned prefixes, and
//! retentions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;
use tradewind_core::{Address, Class, Clock, ObjectInfo, Retention, Span, Timestamp};
use tradewind_model::class_policy::ClassPolicyTable;

use crate::fingerprint::Fingerprints;
use crate::head::Head;
use crate::pins::PinnedPrefix;
use crate::policy::{Eviction, PinReason, TierPolicies};
use crate::ram::Placement;
use crate::reader::extents_span;
use crate::retained::{MAX_RETAINED_BYTES, RetainedObject, RetainedObjects};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct CachePolicies {
    eviction: Eviction,
    table: RwLock<Arc<ClassPolicyTable>>,
    prefixes: RwLock<PinnedPrefixSet>,
    /// True if a class or a prefix is pinned.
    has_pins: AtomicBool,
    /// True once the settings listed first slices otherwise than by default: what is cached may have another class than
    /// it would get now.
    may_relist: AtomicBool,
    /// A bit for each class without a policy that was reported.
    reported: AtomicU32,
    retained: Arc<RetainedObjects>,
    fingerprints: Fingerprints,
    clock: Arc<dyn Clock>,
}

/// The pinned prefixes.
#[derive(Debug, Default)]
struct PinnedPrefixSet {
    prefixes: Arc<Vec<PinnedPrefix>>,
    /// Higher after each change.
    generation: u64,
}

/// The rank of data in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The class of the data.
    pub class: Class,
    /// The present priority; `None` if the class is ranked by reuse.
    pub priority: Option<u8>,
    /// The seconds that remain of a retention.
    pub retention_seconds: Option<u32>,
}

impl CachePolicies {
    /// The default policies, without pins, for tiers with an eviction policy.
    pub fn new(eviction: Eviction, fingerprints: Fingerprints, clock: Arc<dyn Clock>) -> Self {
        Self {
            eviction,
            table: RwLock::default(),
            prefixes: RwLock::default(),
            has_pins: AtomicBool::default(),
            may_relist: AtomicBool::default(),
            reported: AtomicU32::default(),
            retained: Arc::default(),
            fingerprints,
            clock,
        }
    }

    /// The objects that a retention ranks.
    pub const fn retained(&self) -> &Arc<RetainedObjects> {
        &self.retained
    }

    /// Wall time, by which retentions decay.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// Returns true if the eviction policy has no pins.
    pub const fn ignores_pins(&self) -> bool {
        !self.eviction.obeys_classes()
    }

    /// The policies of classes.
    pub fn table(&self) -> Arc<ClassPolicyTable> {
        self.table.read().clone()
    }

    /// The policies in the form of the tiers.
    pub fn for_tiers(&self) -> TierPolicies {
        let policies = TierPolicies::new(&self.table());
        if self.ignores_pins() { policies.without_pins() } else { policies }
    }

    /// Replaces the policies of classes.
    pub fn set_table(&self, table: Arc<ClassPolicyTable>) {
        if table.relists_first_slices() {
            self.may_relist.store(true, Ordering::Relaxed);
        }
        *self.table.write() = table;
        self.update_has_pins();
    }

    /// The pinned prefixes.
    pub fn prefixes(&self) -> Arc<Vec<PinnedPrefix>> {
        self.prefixes.read().prefixes.clone()
    }

    /// The generation of the pinned prefixes.
    pub fn prefix_generation(&self) -> u64 {
        self.prefixes.read().generation
    }

    /// Replaces the pinned prefixes.
    pub fn set_prefixes(&self, prefixes: Vec<PinnedPrefix>) {
        {
            let mut pinned = self.prefixes.write();
            *pinned = PinnedPrefixSet { prefixes: Arc::new(prefixes), generation: pinned.generation + 1 };
        }
        self.update_has_pins();
    }

    fn update_has_pins(&self) {
        let has_prefixes = !self.ignores_pins() && !self.prefixes.read().prefixes.is_empty();
        let has_pins = has_prefixes || self.for_tiers().pinned_classes != 0;
        self.has_pins.store(has_pins, Ordering::Relaxed);
    }

    /// True if a class or a prefix is pinned and the eviction policy has pins: what is read may have to be pinned.
    pub fn has_pins(&self) -> bool {
        self.has_pins.load(Ordering::Relaxed)
    }

    /// True if a read in memory must compare the class of what is cached with the present one.
    pub fn may_change_class(&self, head: &Head) -> bool {
        let has_retention = head.info.metadata.classes.retention.is_some();
        has_retention || self.has_pins() || self.may_relist.load(Ordering::Relaxed)
    }

    /// The treatment of a head: that of the most important byte of its object, which cannot be found without it.
    pub fn of_head(&self, head: &Head) -> Placement {
        self.of_span(&head.address, &head.info, Span::whole(head.info.size))
    }

    /// The treatment of an extent: that of its most important byte.
    pub fn of_extent(&self, head: &Head, number: u32) -> Placement {
        self.of_span(&head.address, &head.info, extents_span(&(number..number + 1), head.info.size))
    }

    /// The present treatment of an extent of a retained object, or of its head.
    pub fn of_retained(&self, object: &RetainedObject, number: Option<u32>, now: Timestamp) -> Placement {
        let span = number
            .map_or(Span::whole(object.size), |number| extents_span(&(number..number + 1), object.size));
        let table = self.table.read();
        let bytes = span.offset..span.end();
        let own = table.class_of_span(&object.classes, object.size, &bytes);
        let ranked = table.ranked_class(own, object.classes.retention, now);
        let is_own = ranked == own;
        let class =
            if is_own { table.listed_class(own, &object.classes, object.size, &bytes) } else { ranked };
        let pin = object.pin.or_else(|| table.is_pinned(own).then_some(PinReason::Class));
        Placement { class: class.value(), pin }
    }

    /// Remembers a cached object that is ranked by its retention.
    pub fn track(&self, head: &Head, key: u64) {
        let now = self.now();
        if self.active_retention(&head.address, &head.info, now).is_some() {
            let pin = self.prefix_pin(&head.address);
            self.retained.track(key, head, pin, now);
        }
    }

    /// The retention that ranks an object, if its time has not ended and there is room for it.
    fn active_retention(&self, address: &Address, info: &ObjectInfo, now: Timestamp) -> Option<Retention> {
        let retention = info.metadata.classes.retention?;
        let is_ranked = self.eviction.obeys_classes()
            && retention.remaining_seconds(now) > 0
            && info.size <= MAX_RETAINED_BYTES
            && self.retained.may_rank(self.fingerprints.key(address).key);
        is_ranked.then_some(retention)
    }

    /// The pin of a prefix of an object, if there is one.
    fn prefix_pin(&self, address: &Address) -> Option<PinReason> {
        if !self.has_pins() {
            return None;
        }
        let pinned = self.prefixes.read();
        let reason = PinReason::Prefix { generation: pinned.generation };
        pinned.prefixes.iter().any(|prefix| prefix.contains(address)).then_some(reason)
    }

    fn of_span(&self, address: &Address, info: &ObjectInfo, span: Span) -> Placement {
        let table = self.table.read();
        let bytes = span.offset..span.end();
        let classes = &info.metadata.classes;
        let class = table.class_of_span(classes, info.size, &bytes);
        if table.lacks(class) && self.is_first_report(class) {
            let class = class.value();
            tracing::warn!(class, "objects have a class without a policy; they are treated as unclassified");
        }
        let class_pin = || (self.has_pins() && table.is_pinned(class)).then_some(PinReason::Class);
        let pin = self.prefix_pin(address).or_else(class_pin);
        let now = self.now();
        let retention = self.active_retention(address, info, now);
        let ranked = table.ranked_class(class, retention, now);
        let listed =
            if ranked == class { table.listed_class(class, classes, info.size, &bytes) } else { ranked };
        Placement { class: listed.value(), pin }
    }

    fn is_first_report(&self, class: Class) -> bool {
        let bit = 1 << class.value();
        self.reported.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// The rank of the bytes `span` of an object.
    pub fn rank_of_span(&self, address: &Address, info: &ObjectInfo, span: Span) -> Rank {
        let table = self.table.read();
        let classes = &info.metadata.classes;
        let class = table.class_of_span(classes, info.size, &(span.offset..span.end()));
        let now = self.now();
        let retention = self.active_retention(address, info, now);
        let ranked = table.ranked_class(class, retention, now);
        let priority = (!table.is_ranked_by_reuse(ranked)).then(|| table.priority(ranked).value());
        let retention_seconds = retention.map(|retention| retention.remaining_seconds(now));
        Rank { class, priority, retention_seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::SystemClock;

    #[test]
    fn class_without_a_policy_is_reported_once() {
        let policies = CachePolicies::new(Eviction::default(), Fingerprints::new(1), SystemClock::shared());
        let reports = [5, 5, 23, 5, 23].map(|class| policies.is_first_report(Class::new(class).unwrap()));
        assert_eq!(reports, [true, false, true, false, false]);
    }
}
