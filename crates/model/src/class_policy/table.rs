//! The policies of a store for classes: the default policy, with the changes of the settings. Plain data, replaced as a
//! whole at run time.

use std::num::NonZeroU16;
use std::ops::Range;

use tradewind_core::{Class, Classes};

use super::{
    ClassPriority, ClassSource, FIRST_SLICES, FIRST_SLICES_RESERVED_PERCENT, LARGEST_FILES, SMALLEST_FILES,
    class, class_by_name, class_for_size,
};
use crate::eviction::{CLASSES, ClassPolicies, ClassPolicy};
use crate::slices::{HEAD_BYTES, MAX_UNSLICED_BYTES, StreamShare};

/// The event that completes a write to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassWrite {
    /// The write to the backing store.
    Through,
    /// The write to the journal of the cache.
    Back,
}

/// The changes of one class: what is `None` is as in the default policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassChanges {
    /// The name in output and on the command line.
    pub name: Option<String>,
    /// The priority.
    pub priority: Option<ClassPriority>,
    /// The most of each tier of a cache that the class may fill, up to 100.
    pub max_occupancy_percent: Option<u8>,
    /// The event that completes a write; by default, that of the volume.
    pub write: Option<ClassWrite>,
    /// True if a cache keeps the class within its bound for pins.
    pub is_pinned: bool,
    /// The store of the class, for layers that choose one.
    pub tier: Option<String>,
    /// The weight in the scheduler of a disk; classes without one are together one group of weight 1.
    pub share: Option<NonZeroU16>,
    /// True to compress new objects, where a layer can; by default, that layer decides.
    pub compress: Option<bool>,
    /// True to encrypt new objects, where a layer can; by default, that layer decides.
    pub encrypt: Option<bool>,
}

/// The policies of all classes: Table II of the paper with the changes of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassPolicyTable {
    changes: Vec<Option<ClassChanges>>,
}

impl Default for ClassPolicyTable {
    /// The default policy.
    fn default() -> Self {
        Self { changes: vec![None; CLASSES] }
    }
}

/// The class that Table II assigns to nothing.
const UNASSIGNED: u8 = 23;

impl ClassPolicyTable {
    /// Replaces the changes of a class.
    pub fn set(&mut self, class: Class, changes: ClassChanges) {
        self.changes[usize::from(class.value())] = Some(changes);
    }

    fn changes(&self, class: Class) -> Option<&ClassChanges> {
        self.changes[usize::from(class.value())].as_ref()
    }

    /// The priority of a class that a client or the size of an object gives. A label 1 to 10 has that of class 0: these
    /// are the store's own metadata.
    #[must_use]
    pub fn priority(&self, of: Class) -> ClassPriority {
        let of = if is_store_metadata(of) { class(0) } else { of };
        let changed = self.changes(of).and_then(|changes| changes.priority);
        changed.unwrap_or_else(|| super::priority(of, ClassSource::Client))
    }

    /// True if a cache ranks the class by its observed reuse: objects without a label have it, and the settings give it
    /// no priority.
    #[must_use]
    pub fn is_ranked_by_reuse(&self, class: Class) -> bool {
        let is_by_size = (SMALLEST_FILES..=LARGEST_FILES).contains(&class.value());
        is_by_size && self.changes(class).is_none_or(|changes| changes.priority.is_none())
    }

    /// True if neither Table II nor the settings say what to do with a class.
    #[must_use]
    pub fn lacks(&self, class: Class) -> bool {
        (is_store_metadata(class) || class.value() == UNASSIGNED) && self.changes(class).is_none()
    }

    /// The event that completes a write of a class; `None` if that of the volume applies.
    #[must_use]
    pub fn write(&self, class: Class) -> Option<ClassWrite> {
        self.changes(class)?.write
    }

    /// True if a cache keeps the class.
    #[must_use]
    pub fn is_pinned(&self, class: Class) -> bool {
        self.changes(class).is_some_and(|changes| changes.is_pinned)
    }

    /// The most of each tier of a cache that a class may fill, in percent.
    #[must_use]
    pub fn max_occupancy_percent(&self, class: Class) -> u8 {
        self.changes(class).and_then(|changes| changes.max_occupancy_percent).unwrap_or(100)
    }

    /// The name of the store of a class.
    #[must_use]
    pub fn tier(&self, class: Class) -> Option<&str> {
        self.changes(class)?.tier.as_deref()
    }

    /// The group of streams of a class in the scheduler of a disk.
    #[must_use]
    pub fn stream_share(&self, class: Class) -> StreamShare {
        let share = self.changes(class).and_then(|changes| changes.share);
        share.map_or_else(StreamShare::default, |weight| StreamShare { class: Some(class.value()), weight })
    }

    /// True if layers that compress do so for new objects of the class; `None` if the layer decides.
    #[must_use]
    pub fn compress(&self, class: Class) -> Option<bool> {
        self.changes(class)?.compress
    }

    /// True if layers that encrypt do so for new objects of the class; `None` if the layer decides.
    #[must_use]
    pub fn encrypt(&self, class: Class) -> Option<bool> {
        self.changes(class)?.encrypt
    }

    /// The name of a class: that of the settings, else that of the default policy.
    #[must_use]
    pub fn name(&self, class: Class) -> Option<&str> {
        let changed = self.changes(class).and_then(|changes| changes.name.as_deref());
        changed.or_else(|| super::name(class))
    }

    /// The class of a name of the settings or of the default policy. Names are case-insensitive.
    #[must_use]
    pub fn class_by_name(&self, text: &str) -> Option<Class> {
        let named = |class: &Class| {
            let name = self.changes(*class).and_then(|changes| changes.name.as_deref());
            name.is_some_and(|name| name.eq_ignore_ascii_case(text))
        };
        all_classes().find(named).or_else(|| class_by_name(text))
    }

    /// The names of the settings.
    pub fn own_names(&self) -> impl Iterator<Item = &str> {
        self.changes.iter().flatten().filter_map(|changes| changes.name.as_deref())
    }

    /// The class of an object as a whole: its label, else the class of its size.
    #[must_use]
    pub fn class_of_object(&self, classes: &Classes, size: u64) -> Class {
        classes.object.unwrap_or_else(|| class_for_size(size))
    }

    /// The class of the bytes `span` of an object of `size` bytes. If they have several classes, it is the one with the
    /// highest priority, so that no byte is treated worse than its class.
    #[must_use]
    pub fn class_of_span(&self, classes: &Classes, size: u64, span: &Range<u64>) -> Class {
        let whole = self.class_of_object(classes, size);
        let sector = |offset: u64| offset / Classes::SECTOR_BYTES;
        let (first, end) = (sector(span.start), sector(span.end.max(1) - 1) + 1);
        let start = classes.ranges.partition_point(|range| range.end() <= first);
        let within = classes.ranges[start..].iter().take_while(|range| u64::from(range.first_sector) < end);
        let (mut covered, mut best) = (0, None);
        for range in within {
            covered += range.end().min(end) - u64::from(range.first_sector).max(first);
            best = Some(self.higher(best, range.class));
        }
        if covered < end - first { self.higher(best, whole) } else { best.unwrap_or(whole) }
    }

    /// The class as which a cache lists bytes of the class `own`. That is `own`, except for
    /// - the first [`HEAD_BYTES`] of an object of more than [`MAX_UNSLICED_BYTES`] that has neither a label there nor a
    ///   priority, limit or pin of the settings: they are the store's own class 10, which has a reserved share;
    /// - a client's label 10, which is listed as 9. Both have the priority of class 0.
    #[must_use]
    pub fn listed_class(&self, own: Class, classes: &Classes, size: u64, span: &Range<u64>) -> Class {
        if own.value() == FIRST_SLICES {
            return class(FIRST_SLICES - 1);
        }
        let is_first_slice = classes.object.is_none()
            && size > MAX_UNSLICED_BYTES
            && span.start < HEAD_BYTES
            && own == class_for_size(size)
            && self.is_ranked_by_reuse(own)
            && self.max_occupancy_percent(own) == 100
            && !self.is_pinned(own);
        if is_first_slice { class(FIRST_SLICES) } else { own }
    }

    /// The most of each tier that a class as a cache lists it may fill. A client's label 10 is listed as 9: the stricter of
    /// both limits holds for both together.
    fn listed_occupancy_percent(&self, listed: Class) -> u8 {
        let own = self.max_occupancy_percent(listed);
        if listed.value() == FIRST_SLICES - 1 {
            own.min(self.max_occupancy_percent(class(FIRST_SLICES)))
        } else {
            own
        }
    }

    /// True if the settings treat a class by size whose objects have a first slice unlike the others: entries of class
    /// [`FIRST_SLICES`] may then be those of this class, from before.
    #[must_use]
    pub fn relists_first_slices(&self) -> bool {
        sliced_classes().any(|class| {
            !self.is_ranked_by_reuse(class)
                || self.max_occupancy_percent(class) < 100
                || self.is_pinned(class)
        })
    }

    /// True if a class by size whose objects have a first slice is pinned.
    #[must_use]
    pub fn pins_first_slices(&self) -> bool {
        sliced_classes().any(|class| self.is_pinned(class))
    }

    fn higher(&self, one: Option<Class>, other: Class) -> Class {
        one.filter(|one| self.priority(*one) <= self.priority(other)).unwrap_or(other)
    }

    /// The policies in the form of eviction.
    #[must_use]
    pub fn eviction_policies(&self) -> ClassPolicies {
        let mut policies = ClassPolicies::default();
        for class in all_classes() {
            let priority = self.priority(class).value();
            let policy =
                ClassPolicy { priority, max_occupancy_percent: self.listed_occupancy_percent(class) };
            policies.set(class.value(), policy);
            if self.is_ranked_by_reuse(class) {
                policies.rank_by_reuse(class.value());
            }
        }
        policies.rank_by_reuse(FIRST_SLICES);
        policies.reserve(FIRST_SLICES, FIRST_SLICES_RESERVED_PERCENT);
        policies
    }
}

/// True for the classes of the store's own metadata.
#[must_use]
pub const fn is_store_metadata(class: Class) -> bool {
    matches!(class.value(), 1..=10)
}

/// The classes by size of objects of more than [`MAX_UNSLICED_BYTES`].
fn sliced_classes() -> impl Iterator<Item = Class> {
    (class_for_size(MAX_UNSLICED_BYTES + 1).value()..=LARGEST_FILES).map(class)
}

/// All classes in ascending order.
pub fn all_classes() -> impl Iterator<Item = Class> {
    (0..=Class::MAX).map(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(value: u8, changes: ClassChanges) -> ClassPolicyTable {
        let mut table = ClassPolicyTable::default();
        table.set(class(value), changes);
        table
    }

    fn with_priority(value: u8, priority: u8) -> ClassPolicyTable {
        table(value, ClassChanges { priority: ClassPriority::new(priority), ..ClassChanges::default() })
    }

    fn classes(object: Option<u8>, ranges: &str) -> Classes {
        let ranges = if ranges.is_empty() { Vec::new() } else { Classes::parse_ranges(ranges).unwrap() };
        Classes { object: object.map(class), ranges, retention: None }
    }

    #[test]
    fn default_table_is_table_two() {
        let table = ClassPolicyTable::default();
        for class in all_classes() {
            assert_eq!(table.priority(class), super::super::priority(class, ClassSource::Client));
        }
        assert!(table.lacks(class(5)) && table.lacks(class(23)) && !table.lacks(class(25)));
        assert_eq!(table.name(class(25)), Some("files"));
    }

    #[test]
    fn label_of_store_metadata_has_the_priority_of_class_zero() {
        let table = with_priority(0, 4);
        assert!((1..=10).all(|value| table.priority(class(value)).value() == 4));
        assert_eq!(with_priority(5, 0).priority(class(5)), ClassPriority::LOWEST);
    }

    #[test]
    fn classes_by_size_are_ranked_by_reuse_unless_the_settings_rank_them() {
        let table = with_priority(12, 3);
        let by_reuse: Vec<u8> =
            all_classes().filter(|class| table.is_ranked_by_reuse(*class)).map(Class::value).collect();
        assert_eq!(by_reuse, [11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]);
    }

    #[test]
    fn names_of_the_settings_are_found_first() {
        let named = ClassChanges { name: Some("mail".to_owned()), ..ClassChanges::default() };
        let table = table(25, named);
        assert_eq!((table.class_by_name("MAIL"), table.name(class(25))), (Some(class(25)), Some("mail")));
        assert_eq!(table.class_by_name("files"), Some(class(25)), "the name of the paper stays known");
        assert_eq!(table.class_by_name("post"), None);
        assert_eq!(table.own_names().collect::<Vec<_>>(), ["mail"]);
    }

    #[test]
    fn span_has_the_class_of_highest_priority() {
        let table = ClassPolicyTable::default();
        let sectors = |range: Range<u64>| range.start * 512..range.end * 512;
        let size = 100 * 512;
        let labelled = classes(Some(31), "0-10-25,20-10-28");
        for (span, expected) in
            [(0..10, 25), (0..30, 25), (5..12, 25), (10..20, 31), (15..25, 28), (20..30, 28), (30..100, 31)]
        {
            assert_eq!(
                table.class_of_span(&labelled, size, &sectors(span.clone())),
                class(expected),
                "{span:?}"
            );
        }
        let low_range = classes(Some(25), "0-10-31");
        assert_eq!(table.class_of_span(&low_range, size, &sectors(0..10)), class(31));
        assert_eq!(table.class_of_span(&low_range, size, &sectors(0..11)), class(25));
        assert_eq!(table.class_of_span(&classes(None, ""), size, &(0..size)), class(13));
        assert_eq!(table.class_of_span(&classes(None, ""), 0, &(0..0)), class(11));
    }

    #[test]
    fn first_slice_without_a_label_has_a_class_of_the_store() {
        let size = MAX_UNSLICED_BYTES + 1;
        let listed = |table: &ClassPolicyTable, classes: &Classes, size: u64, span: Range<u64>| {
            table.listed_class(table.class_of_span(classes, size, &span), classes, size, &span).value()
        };
        let default = ClassPolicyTable::default();
        let unlabelled = classes(None, "");
        assert_eq!(listed(&default, &unlabelled, size, 0..HEAD_BYTES), 10);
        assert_eq!(listed(&default, &unlabelled, size, HEAD_BYTES - 1..size), 10);
        assert_eq!(listed(&default, &unlabelled, size, HEAD_BYTES..size), 17);
        assert_eq!(listed(&default, &unlabelled, size - 1, 0..HEAD_BYTES), 16);
        assert_eq!(listed(&default, &classes(Some(31), ""), size, 0..HEAD_BYTES), 31);
        assert_eq!(listed(&default, &classes(None, "0-512-25"), size, 0..HEAD_BYTES), 25);
        assert_eq!(listed(&default, &classes(Some(10), ""), size, 0..HEAD_BYTES), 9);
        let limit = ClassChanges { max_occupancy_percent: Some(20), ..ClassChanges::default() };
        let pin = ClassChanges { is_pinned: true, ..ClassChanges::default() };
        for table in [with_priority(17, 3), table(17, limit), table(17, pin.clone())] {
            assert_eq!(listed(&table, &unlabelled, size, 0..HEAD_BYTES), 17);
            assert!(table.relists_first_slices());
        }
        assert!(table(22, pin.clone()).pins_first_slices() && !with_priority(22, 3).pins_first_slices());
        let below = table(16, pin);
        assert!(!below.pins_first_slices() && !below.relists_first_slices());
    }

    #[test]
    fn classes_with_a_share_are_groups_of_their_own() {
        let share = NonZeroU16::new(4);
        let table = table(25, ClassChanges { share, ..ClassChanges::default() });
        assert_eq!(table.stream_share(class(25)), StreamShare { class: Some(25), weight: share.unwrap() });
        assert_eq!(table.stream_share(class(26)), StreamShare::default());
    }

    #[test]
    fn eviction_gets_priorities_and_limits() {
        let changes = ClassChanges { max_occupancy_percent: Some(20), ..ClassChanges::default() };
        let policies = table(25, changes).eviction_policies();
        assert_eq!(policies.get(25), ClassPolicy { priority: 3, max_occupancy_percent: 20 });
        assert_eq!(policies.get(31), ClassPolicy { priority: 9, max_occupancy_percent: 100 });
    }

    #[test]
    fn limit_of_label_ten_holds_for_the_class_as_which_it_is_listed() {
        let limit =
            |percent| ClassChanges { max_occupancy_percent: Some(percent), ..ClassChanges::default() };
        let mut table = table(10, limit(20));
        let occupancy =
            |table: &ClassPolicyTable, class: u8| table.eviction_policies().get(class).max_occupancy_percent;
        assert_eq!((occupancy(&table, 9), occupancy(&table, 10)), (20, 20));
        table.set(class(9), limit(5));
        assert_eq!((occupancy(&table, 9), occupancy(&table, 10)), (5, 20));
    }
}
