use proptest::prelude::*;
use tradewind_core::listing::{ListPosition, ListRequest, common_prefix};
use tradewind_core::{ETag, Timestamp};

use tradewind_model::admission::DrainOrder;
use tradewind_model::class_policy::ClassPolicyTable;

use super::*;

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn object(size: u64) -> DirtyState {
    DirtyState::Object(ObjectSummary {
        size,
        etag: ETag::from_text("a"),
        modified: Timestamp::default(),
        generation: Generation(1),
        checksum: None,
        storage_class: None,
    })
}

/// Takes the next key that is due by then.
fn take(index: &DirtyIndex, order: DrainOrder, now: Duration) -> Option<Address> {
    let pace = DrainPace { concurrency: 1, large_concurrency: 1, min_age: Duration::ZERO, order };
    index.take(&pace, now).map(|taken| taken.address)
}

fn take_oldest(index: &DirtyIndex, now: Duration) -> Option<Address> {
    take(index, DrainOrder::Oldest, now)
}

const LIMITS: DirtyTotals = DirtyTotals { bytes: 100, entries: 3 };

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn totals_follow_changes() {
    let index = DirtyIndex::default();
    index.insert(&address("a"), object(10), Generation(1), seconds(1));
    index.insert(&address("b"), object(5), Generation(2), seconds(2));
    index.insert(&address("a"), object(7), Generation(3), seconds(3));
    assert_eq!(index.totals(), DirtyTotals { bytes: 12, entries: 2 });
    index.insert(&address("b"), DirtyState::Tombstone, Generation(4), seconds(4));
    assert_eq!(index.totals(), DirtyTotals { bytes: 7, entries: 2 });
    index.remove(&address("a"));
    index.remove(&address("b"));
    assert_eq!(index.totals(), DirtyTotals::default());
    assert!(!index.has_bucket(&address("a").bucket) && index.oldest().is_none());
}

#[test]
fn tombstones_of_a_bucket_follow_changes() {
    let index = DirtyIndex::default();
    let (key, bucket) = (address("a"), address("a").bucket);
    let known = || (index.has_tombstone_after(&bucket, "", ""), index.has_object(&bucket));
    index.insert(&key, object(1), Generation(1), seconds(1));
    assert_eq!(known(), (false, true));
    index.insert(&key, DirtyState::Tombstone, Generation(2), seconds(1));
    assert_eq!(known(), (true, false));
    index.insert(&key, object(1), Generation(3), seconds(1));
    assert_eq!(known(), (false, true));
    index.insert(&key, DirtyState::Tombstone, Generation(4), seconds(1));
    index.remove(&key);
    assert_eq!((known(), index.removed_tombstones()), ((false, false), 1));
}

#[test]
fn a_rewritten_key_keeps_its_age() {
    let index = DirtyIndex::default();
    index.insert(&address("a"), object(1), Generation(1), seconds(1));
    index.insert(&address("b"), object(1), Generation(2), seconds(2));
    index.insert(&address("a"), object(1), Generation(3), seconds(3));
    assert_eq!(take_oldest(&index, seconds(1)), Some(address("a")));
    assert_eq!(take_oldest(&index, seconds(1)), None, "the next one is younger");
    // Written again while it is being written back, it is as young as that write.
    index.insert(&address("a"), object(1), Generation(4), seconds(4));
    index.requeue(&address("a"));
    assert_eq!(index.oldest(), Some(seconds(2)));
    assert_eq!(take_oldest(&index, seconds(9)), Some(address("b")));
    assert_eq!(take_oldest(&index, seconds(9)), Some(address("a")));
    assert_eq!((take_oldest(&index, seconds(9)), index.oldest()), (None, Some(seconds(2))));
}

#[test]
fn the_largest_key_is_taken_first_unless_one_is_aged() {
    let index = DirtyIndex::default();
    for (generation, size) in [(1, 10), (2, 1 << 20), (3, 1 << 22), (4, 1 << 22), (5, 20)] {
        let name = generation.to_string();
        index.insert(&address(&name), object(size), Generation(generation), seconds(generation));
    }
    // A key that is written again keeps its age, and moves to the class of its new size.
    index.insert(&address("2"), object(1 << 30), Generation(6), seconds(6));
    let order = DrainOrder::LargestUnlessAged { max_age: seconds(10) };
    let expected = [(6, "2"), (6, "3"), (11, "1"), (11, "4"), (11, "5")];
    for (now, name) in expected {
        assert_eq!(take(&index, order, seconds(now)), Some(address(name)), "{name} at {now}");
    }
    assert_eq!(take(&index, order, seconds(99)), None);
}

#[test]
fn room_above_the_watermark_is_kept_for_higher_ranks() {
    let index = DirtyIndex::default();
    let [small, large] = [1 << 10, 1 << 30].map(|size| {
        WriteRank::for_object(&ClassPolicyTable::default(), &tradewind_core::Classes::default(), size)
    });
    let limits = DirtyTotals { bytes: 1000, entries: 1000 };
    let admit = |rank, bytes| index.admit(&address("k"), rank, bytes, limits);
    for _ in 0..99 {
        assert!(matches!(admit(small, 0), Admission::Reserved(_)));
    }
    assert_eq!(admit(large, 600), Admission::Kept);
    assert_eq!(admit(large, 1001), Admission::Full);
    assert!(matches!(admit(large, 400), Admission::Reserved(_)));
    assert!(matches!(admit(small, 600), Admission::Reserved(_)));
    assert_eq!(admit(small, 1), Admission::Full);
}

#[test]
fn entries_above_the_watermark_are_kept_for_higher_ranks() {
    let index = DirtyIndex::default();
    let [small, large] = [1 << 10, 1 << 30].map(|size| {
        WriteRank::for_object(&ClassPolicyTable::default(), &tradewind_core::Classes::default(), size)
    });
    let limits = DirtyTotals { bytes: 1000, entries: 100 };
    for number in 0..60 {
        let admitted = index.admit(&address(&number.to_string()), small, 1, limits);
        assert!(matches!(admitted, Admission::Reserved(_)));
    }
    assert_eq!(index.admit(&address("k"), large, 1, limits), Admission::Kept);
    assert!(index.reserve(&address("k"), 1, limits).is_some());
}

#[test]
fn overwrite_of_a_dirty_key_needs_room_for_its_growth_only() {
    let index = DirtyIndex::default();
    let (key, limits) = (address("a"), DirtyTotals { bytes: 100, entries: 1 });
    index.insert(&key, object(90), Generation(1), seconds(1));
    assert!(index.reserve(&key, 101, limits).is_none() && index.reserve(&address("b"), 0, limits).is_none());
    let smaller = index.reserve(&key, 80, limits).unwrap();
    let larger = index.reserve(&key, 100, limits).unwrap();
    assert!(index.reserve(&key, 91, limits).is_none(), "the growth of the other one is reserved");
    index.insert(&key, object(80), Generation(2), seconds(2));
    index.release(&key, smaller);
    assert!(index.reserve(&key, 81, limits).is_none(), "the charge follows the smaller entry");
    // Written back before the overwrite ends, the key leaves no room to others.
    index.remove(&key);
    assert!(index.reserve(&address("b"), 0, limits).is_none());
    assert_eq!(index.content.lock().reservations.totals, limits);
    index.insert(&key, object(100), Generation(3), seconds(3));
    index.release(&key, larger);
    let content = index.content.lock();
    assert_eq!((content.totals, content.reservations.totals), (limits, DirtyTotals::default()));
}

#[test]
fn reservations_count_towards_the_limits() {
    let index = DirtyIndex::default();
    index.insert(&address("a"), object(40), Generation(1), seconds(1));
    let reserve = |bytes| index.reserve(&address("b"), bytes, LIMITS);
    let first = reserve(50).unwrap();
    assert!(reserve(11).is_none());
    assert!(reserve(10).is_some() && reserve(0).is_none(), "there are three entries");
    index.release(&address("b"), first);
    assert!(reserve(50).is_some());
}

/// The names by definition.
fn expected_names(keys: &[(String, bool)], request: &ListRequest) -> Vec<DirtyName> {
    let mut names: Vec<DirtyName> = Vec::new();
    for (key, is_object) in keys.iter().filter(|(key, _)| key.starts_with(&request.prefix)) {
        let common = common_prefix(key, request);
        let name = common.unwrap_or(key);
        if request.after_name().is_some_and(|after| name <= after) {
            continue;
        }
        match (common, names.last_mut()) {
            (Some(common), Some(DirtyName::CommonPrefix { name, has_object })) if name == common => {
                *has_object |= *is_object;
            }
            (Some(common), _) => {
                names.push(DirtyName::CommonPrefix { name: common.to_owned(), has_object: *is_object });
            }
            (None, _) => names.push(DirtyName::Key(key.clone(), None)),
        }
    }
    names
}

fn without_objects(names: Vec<DirtyName>) -> Vec<DirtyName> {
    let strip = |name| match name {
        DirtyName::Key(key, _) => DirtyName::Key(key, None),
        common @ DirtyName::CommonPrefix { .. } => common,
    };
    names.into_iter().map(strip).collect()
}

proptest! {
    #[test]
    fn names_match_the_definition(
        keys in prop::collection::btree_map("[ab/\u{7f}\u{10ffff}]{1,5}", any::<bool>(), 0..30),
        prefix in "[ab/]{0,2}", delimiter in prop::option::of("[/a\u{7f}]{1,2}"),
        after in prop::option::of("[ab/\u{7f}]{0,4}"),
    ) {
        let index = DirtyIndex::default();
        let keys: Vec<(String, bool)> = keys.into_iter().collect();
        for (number, (key, is_object)) in (1..).zip(&keys) {
            let state = if *is_object { object(1) } else { DirtyState::Tombstone };
            index.insert(&address(key), state, Generation(number), seconds(1));
        }
        let bucket = address("a").bucket;
        let request = ListRequest { prefix, delimiter, after: after.map(ListPosition::after), limit: 10 };
        let expected = expected_names(&keys, &request);
        let found = index.names(&bucket, &request, 1000);
        prop_assert!(!found.is_truncated);
        prop_assert_eq!(without_objects(found.names), expected.clone());
        // Truncated after a name, the rest follows from there.
        let mut all = Vec::new();
        let mut rest = request.clone();
        loop {
            let part = index.names(&bucket, &rest, 2);
            let last = part.names.last().map(|name| ListPosition::after(name.name()));
            all.extend(part.names);
            if !part.is_truncated {
                break;
            }
            rest.after = last;
        }
        let names = |names: &[DirtyName]| names.iter().map(|name| name.name().to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(names(&all), names(&expected));
        let after = request.after_name().unwrap_or("");
        let is_later = |key: &str| request.after.is_none() || key > after;
        let has_tombstone = keys.iter().any(|(key, is_object)| {
            !is_object && key.starts_with(&request.prefix) && is_later(key)
        });
        prop_assert_eq!(index.has_tombstone_after(&bucket, &request.prefix, after), has_tombstone);
        prop_assert_eq!(index.has_object(&bucket), keys.iter().any(|(_, is_object)| *is_object));
    }
}
