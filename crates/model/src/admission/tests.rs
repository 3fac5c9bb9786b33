use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::class_policy::ClassChanges;

fn rank(label: Option<u8>, size: u64) -> WriteRank {
    let classes = Classes { object: label.map(|value| Class::new(value).unwrap()), ..Classes::default() };
    WriteRank::for_object(&ClassPolicyTable::default(), &classes, size)
}

#[test]
fn labels_are_ranked_by_priority_and_other_objects_by_size() {
    assert_eq!([25, 29, 31, 0].map(|label| rank(Some(label), 1 << 20).0), [3, 7, 9, 11]);
    let sizes = [0, 256 << 10, 1 << 20, 4 << 20, 1 << 30];
    assert_eq!(sizes.map(|size| rank(None, size).0), [1, 1, 4, 7, 10]);
}

#[test]
fn object_ranks_as_its_highest_range() {
    let ranges = Classes::parse_ranges("0-10-25").unwrap();
    let classes = Classes { object: Some(Class::new(31).unwrap()), ranges, ..Classes::default() };
    assert_eq!(WriteRank::for_object(&ClassPolicyTable::default(), &classes, 1 << 20).0, 3);
}

#[test]
fn priority_of_the_settings_replaces_the_rank_by_size() {
    let mut policies = ClassPolicyTable::default();
    let changes = ClassChanges { priority: ClassPriority::new(0), ..ClassChanges::default() };
    policies.set(Class::new(17).unwrap(), changes);
    assert_eq!(WriteRank::for_object(&policies, &Classes::default(), 10 << 20), WriteRank::HIGHEST);
}

#[test]
fn writes_of_one_rank_may_fill_the_whole_journal() {
    for value in 0..=11 {
        let mut admission = WriteAdmission::default();
        for _ in 0..10_000 {
            admission.record(WriteRank(value));
            assert_eq!(admission.allowed_bytes(WriteRank(value), 1000), 1000);
        }
    }
}

#[test]
fn low_rank_gets_its_room_back_when_higher_ranks_stop() {
    let mut admission = WriteAdmission::default();
    (0..1000).for_each(|_| admission.record(WriteRank(3)));
    assert_eq!(admission.allowed_bytes(WriteRank(9), 1000), 500);
    assert_eq!(admission.allowed_entries(WriteRank(9), 10), 5);
    (0..20 * WINDOW_WRITES).for_each(|_| admission.record(WriteRank(9)));
    assert_eq!(admission.allowed_bytes(WriteRank(9), 1000), 1000);
}

proptest! {
    #[test]
    fn a_higher_rank_may_fill_at_least_as_much(
        writes in prop::collection::vec(0_u8..=11, 0..3000),
        limit in 0_u64..=u64::MAX,
    ) {
        let mut admission = WriteAdmission::default();
        writes.iter().for_each(|value| admission.record(WriteRank(*value)));
        let allowed: Vec<u64> =
            (0..=11).map(|value| admission.allowed_bytes(WriteRank(value), limit)).collect();
        prop_assert!(allowed.is_sorted_by(|one, next| one >= next));
        prop_assert_eq!(allowed[0], limit);
        prop_assert!(allowed[11] >= limit / 2);
    }
}

const DELAY: Duration = Duration::from_secs(2);

fn load(bytes_percent: u32, writes_through: usize) -> DirtyLoad {
    DirtyLoad { bytes_percent, writes_through, ..DirtyLoad::default() }
}

#[test]
fn writing_back_yields_to_clients_below_the_low_watermark_only() {
    assert_eq!(load(50, 1).pace(16, DELAY).min_age, Duration::from_secs(30));
    assert_eq!(load(51, 1).pace(16, DELAY).min_age, DELAY);
    assert_eq!(load(50, 0).pace(16, DELAY).min_age, DELAY);
    let entries = DirtyLoad { entries_percent: 60, ..load(10, 1) };
    assert_eq!(entries.pace(16, DELAY).min_age, DELAY);
}

#[test]
fn small_objects_are_written_back_with_more_concurrency() {
    let pace = load(50, 0).pace(16, DELAY);
    assert!(pace.may_begin(3, 1 << 30) && !pace.may_begin(4, 1 << 30));
    assert!(pace.may_begin(15, 16 << 10) && !pace.may_begin(16, 16 << 10));
    assert!(load(76, 0).pace(16, DELAY).may_begin(15, 1 << 30));
    assert!(load(0, 0).pace(0, DELAY).may_begin(0, 0) && load(76, 0).pace(0, DELAY).may_begin(0, 0));
}

#[test]
fn pressure_of_bytes_takes_the_largest_within_an_age_bound() {
    let pace = load(76, 1).pace(16, DELAY);
    let order = DrainOrder::LargestUnlessAged { max_age: Duration::from_secs(30) };
    assert_eq!(pace, DrainPace { concurrency: 16, large_concurrency: 16, min_age: Duration::ZERO, order });
    for other in
        [DirtyLoad { entries_percent: 76, ..load(76, 0) }, DirtyLoad { is_closing: true, ..load(76, 1) }]
    {
        assert_eq!(other.pace(16, DELAY).order, DrainOrder::Oldest);
        assert_eq!(other.pace(16, DELAY).min_age, Duration::ZERO);
    }
}
