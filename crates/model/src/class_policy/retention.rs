//! The decay of a retention: at first, data has the highest priority of labelled data, and at the end its own.
//!
//! Caches rank classes, so that data of a decayed priority takes the rank of a class that has it. No class above that of
//! the store's own metadata, no class by size, which is ranked by reuse, and no pinned class lends its rank.

use tradewind_core::{Class, Retention, Timestamp};

use super::table::{ClassPolicyTable, all_classes, is_store_metadata};
use super::{ClassPriority, class};

/// The priority within a retention: `highest` at first, one step lower after each equal part of the period,
/// and `own` at the end. `own` if it is the higher one.
#[must_use]
pub fn decayed_priority(own: ClassPriority, highest: ClassPriority, elapsed: Elapsed) -> ClassPriority {
    let Some(steps) = own.value().checked_sub(highest.value()) else { return own };
    let (elapsed_seconds, period) = (u64::from(elapsed.seconds), u64::from(elapsed.period_seconds.max(1)));
    let step = u64::from(steps) * elapsed_seconds.min(period) / period;
    ClassPriority(highest.value() + u8::try_from(step).unwrap_or(steps))
}

/// The part of a period that has elapsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    /// Seconds since the beginning.
    pub seconds: u32,
    /// Seconds from the beginning to the end.
    pub period_seconds: u32,
}

impl Elapsed {
    /// The part of a retention that has elapsed at `now`.
    #[must_use]
    pub fn of_retention(retention: Retention, now: Timestamp) -> Self {
        let period_seconds = retention.period_seconds();
        Self { seconds: period_seconds - retention.remaining_seconds(now), period_seconds }
    }
}

impl ClassPolicyTable {
    /// The class whose rank data of the class `own` takes at `now`: that of the decayed priority, or `own` after the end,
    /// if `own` is pinned, and if no class lends a higher rank.
    ///
    /// Data without a label decays to [`ClassPriority::FIRST_BYPASSING`], and then has the rank that its reuse earns.
    #[must_use]
    pub fn ranked_class(&self, own: Class, retention: Option<Retention>, now: Timestamp) -> Class {
        let Some(retention) = retention.filter(|retention| retention.remaining_seconds(now) > 0) else {
            return own;
        };
        if self.is_pinned(own) {
            return own;
        }
        let own_priority =
            if self.is_ranked_by_reuse(own) { ClassPriority::FIRST_BYPASSING } else { self.priority(own) };
        let lenders = || all_classes().filter(|lender| self.lends_its_rank(*lender));
        let Some(highest) = lenders().map(|lender| self.priority(lender)).min() else { return own };
        let decayed = decayed_priority(own_priority, highest, Elapsed::of_retention(retention, now));
        let is_between = |lender: &Class| (decayed..own_priority).contains(&self.priority(*lender));
        // The nearest priority; of several classes, one that may fill the whole cache.
        lenders()
            .filter(is_between)
            .min_by_key(|lender| (self.priority(*lender), self.max_occupancy_percent(*lender) < 100, *lender))
            .unwrap_or(own)
    }

    fn lends_its_rank(&self, lender: Class) -> bool {
        lender != class(0)
            && !is_store_metadata(lender)
            && !self.is_ranked_by_reuse(lender)
            && !self.is_pinned(lender)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClassChanges, class_by_name};
    use super::*;
    use proptest::prelude::*;

    const PERIOD_SECONDS: u32 = 1000;

    fn timestamp(seconds: u32) -> Timestamp {
        Timestamp::from_millis(i64::from(1_000_000 + seconds) * 1000)
    }

    fn ranked(table: &ClassPolicyTable, own: u8, seconds: u32) -> u8 {
        let retention = Retention::new(u64::from(1_000_000 + PERIOD_SECONDS), PERIOD_SECONDS).ok();
        table.ranked_class(class(own), retention, timestamp(seconds)).value()
    }

    fn table(value: u8, changes: ClassChanges) -> ClassPolicyTable {
        let mut table = ClassPolicyTable::default();
        table.set(class(value), changes);
        table
    }

    #[test]
    fn priority_steps_down_to_its_own_at_the_end() {
        let (own, highest) = (ClassPriority(6), ClassPriority(2));
        let decayed =
            |seconds| decayed_priority(own, highest, Elapsed { seconds, period_seconds: 100 }).value();
        assert_eq!([0, 24, 25, 49, 50, 75, 99, 100, 200].map(decayed), [2, 2, 3, 3, 4, 5, 5, 6, 6]);
    }

    #[test]
    fn retained_data_takes_the_ranks_of_labels_one_after_another() {
        let default = ClassPolicyTable::default();
        let large = [0, 200, 500, 999, 1000, 5000].map(|seconds| ranked(&default, 31, seconds));
        assert_eq!(large, [24, 25, 27, 30, 31, 31]);
        let unlabelled = [0, 500, 999, 1000].map(|seconds| ranked(&default, 17, seconds));
        assert_eq!(unlabelled, [24, 27, 30, 17]);
        assert_eq!(ranked(&default, 24, 0), 24, "there is no higher label");
        assert_eq!(class_by_name("user0"), Some(class(24)));
        assert_eq!(default.ranked_class(class(31), None, timestamp(0)), class(31));
    }

    #[test]
    fn pinned_classes_neither_lend_nor_change_their_rank() {
        let pinned = ClassChanges { is_pinned: true, ..ClassChanges::default() };
        assert_eq!(ranked(&table(24, pinned.clone()), 31, 0), 25);
        assert_eq!(ranked(&table(31, pinned), 31, 0), 31);
    }

    #[test]
    fn class_without_a_limit_lends_its_rank_first() {
        let mut table = table(24, ClassChanges { max_occupancy_percent: Some(5), ..ClassChanges::default() });
        table.set(class(28), ClassChanges { priority: ClassPriority::new(2), ..ClassChanges::default() });
        assert_eq!(ranked(&table, 31, 0), 28);
    }

    proptest! {
        #[test]
        fn decay_is_monotonic_and_within_both_priorities(
            own in 0_u8..12, highest in 0_u8..12, period in 1_u32..1_000_000, times in prop::array::uniform2(any::<u32>()),
        ) {
            let decayed = |seconds| {
                decayed_priority(ClassPriority(own), ClassPriority(highest), Elapsed { seconds, period_seconds: period })
            };
            let (first, second) = (decayed(times[0].min(times[1])), decayed(times[0].max(times[1])));
            prop_assert!(first <= second && second <= ClassPriority(own));
            prop_assert!(first >= ClassPriority(highest.min(own)));
        }

        #[test]
        fn retention_never_ranks_below_the_own_class(own in 0_u8..32, seconds in 0_u32..2000) {
            let table = ClassPolicyTable::default();
            let rank = class(ranked(&table, own, seconds));
            prop_assert!(rank == class(own) || table.is_ranked_by_reuse(class(own)) || table.priority(rank) < table.priority(class(own)));
        }
    }
}
