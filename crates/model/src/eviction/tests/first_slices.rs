//! The reserved share: first slices of large objects among their tails.

use super::*;

/// The class with a reserved share.
const FIRST: u8 = 2;
/// The class of the rest of large objects, and of all other data.
const OTHERS: u8 = 3;
const CAPACITY: u64 = 1000;
const RESERVED_PERCENT: u8 = 10;
/// Entries of one object.
const ENTRIES: u64 = 50;

fn cache() -> KeyedCache<AdaptiveWindow> {
    let mut policies = ClassPolicies::default();
    for class in [FIRST, OTHERS] {
        policies.set(class, ClassPolicy { priority: 9, max_occupancy_percent: 100 });
        policies.rank_by_reuse(class);
    }
    policies.set(1, ClassPolicy { priority: 1, max_occupancy_percent: 100 });
    policies.reserve(FIRST, RESERVED_PERCENT);
    let capacity = Capacity::of_unit_entries(CAPACITY);
    KeyedCache::new(capacity, AdaptiveWindow::class_aware(capacity, &policies, MissCost::default()))
}

/// Reads an object. Its first entry has the class with the share.
fn read(cache: &mut KeyedCache<AdaptiveWindow>, object: u64) {
    for number in 0..ENTRIES {
        request(cache, object, number);
    }
}

fn request(cache: &mut KeyedCache<AdaptiveWindow>, object: u64, number: u64) -> Lookup {
    let class = if number == 0 { FIRST } else { OTHERS };
    cache.request(&entry(key(object * ENTRIES + number), 1, class))
}

fn occupied(cache: &KeyedCache<AdaptiveWindow>, class: u8) -> u64 {
    cache.policy().occupancy()[usize::from(class)].blocks
}

#[test]
fn first_slices_stay_in_their_share_while_tails_pass() {
    let mut cache = cache();
    // Four times the cache.
    let objects = 0..80;
    objects.clone().for_each(|object| read(&mut cache, object));
    let hits = objects.clone().filter(|&object| request(&mut cache, object, 0) == Lookup::Hit).count();
    assert_eq!(hits, 80);
    let tails = objects.filter(|&object| cache.contains(key(object * ENTRIES + ENTRIES / 2))).count();
    assert!(tails <= 20, "{tails} tails fit");
}

#[test]
fn flood_of_first_slices_takes_no_more_than_their_share() {
    let mut cache = cache();
    let hot = |cache: &mut KeyedCache<AdaptiveWindow>| {
        let requests = (0..850).map(|number| entry(key(1_000_000 + number), 1, OTHERS));
        requests.filter(|request| cache.request(request) == Lookup::Hit).count()
    };
    for _ in 0..4 {
        hot(&mut cache);
    }
    for object in 0..20_000 {
        request(&mut cache, object, 0);
        if object % 1000 == 999 {
            assert!(hot(&mut cache) >= 800, "{object}");
        }
    }
    assert!(occupied(&cache, FIRST) <= 200, "{}", occupied(&cache, FIRST));
}

#[test]
fn share_ends_without_reuse_and_returns_with_it() {
    let mut cache = cache();
    // Each is requested three times, so that all but the share is replaced.
    let fill = |cache: &mut KeyedCache<AdaptiveWindow>, from: u64| {
        for number in (0..5000).flat_map(|number| [number; 3]) {
            cache.request(&entry(key(2_000_000 + from + number), 1, OTHERS));
        }
    };
    for object in 0..1000 {
        request(&mut cache, object, 0);
    }
    fill(&mut cache, 0);
    assert_eq!(occupied(&cache, FIRST), 0, "the share has ended");
    for _ in 0..40 {
        for object in 5000..5020 {
            request(&mut cache, object, 0);
            request(&mut cache, object, 0);
        }
        fill(&mut cache, 20_000);
    }
    for object in 5000..5020 {
        request(&mut cache, object, 0);
    }
    fill(&mut cache, 40_000);
    assert!((5000..5020).all(|object| cache.contains(key(object * ENTRIES))), "the share is back");
}

#[test]
fn share_is_free_for_others_until_it_is_used() {
    let mut cache = cache();
    for number in 0..2 * CAPACITY {
        cache.request(&entry(key(number), 1, OTHERS));
    }
    assert_eq!(occupied(&cache, OTHERS), CAPACITY);
}

/// Data of a higher priority does not keep first slices out of the share, and they take one entry more at most.
#[test]
fn first_slices_displace_labelled_data_within_their_share() {
    let capacity = Capacity::of_unit_entries(CAPACITY);
    let mut policies = policies();
    policies.reserve(3, RESERVED_PERCENT);
    policies.set(3, ClassPolicy { priority: 9, max_occupancy_percent: 100 });
    let policy = AdaptiveWindow::class_aware(capacity, &policies, MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..CAPACITY {
        cache.request(&entry(key(9_000_000 + number), 1, 1));
    }
    for number in 0..150 {
        let lookup = cache.request(&entry(key(number), 1, 3));
        assert!(number >= 100 || lookup == Lookup::Inserted, "{number}");
    }
    let occupied = occupied(&cache, 3);
    assert!((100..=101).contains(&occupied), "{occupied}");
    for number in 200..400 {
        cache.request(&entry(key(number), 1, 2));
    }
    let [.., second, third] = [1, 2, 3].map(|class| cache.policy().occupancy()[class].blocks);
    assert!(second <= 1 && third >= 100, "{second} blocks without a share, {third} with one");
}

/// Requests others, all of which are hits, so that they displace nothing.
fn request_hot(cache: &mut KeyedCache<AdaptiveWindow>, count: u64) {
    for number in 0..count {
        cache.request(&entry(key(1_000_000 + number % 850), 1, OTHERS));
    }
}

#[test]
fn share_ends_without_reuse_at_one_request_in_a_thousand() {
    let mut cache = cache();
    request_hot(&mut cache, 2000);
    let read_first = |cache: &mut KeyedCache<AdaptiveWindow>, objects: std::ops::Range<u64>| {
        for object in objects {
            request(cache, object, 0);
            request_hot(cache, 999);
        }
    };
    read_first(&mut cache, 0..150);
    assert!(occupied(&cache, FIRST) >= 100, "the share is full");
    read_first(&mut cache, 150..230);
    // Without further requests for the class, its share does not return.
    request_hot(&mut cache, 100_000);
    for number in (0..3000).flat_map(|number| [number; 3]) {
        cache.request(&entry(key(2_000_000 + number), 1, OTHERS));
    }
    assert_eq!(occupied(&cache, FIRST), 0, "the share has ended");
}

#[test]
fn small_entries_end_the_share_by_their_number() {
    let mut policies = ClassPolicies::default();
    policies.rank_by_reuse(FIRST);
    policies.rank_by_reuse(OTHERS);
    policies.reserve(FIRST, RESERVED_PERCENT);
    // Slots for entries of 10 blocks: the share has 100 slots and 1000 blocks.
    let capacity = Capacity { blocks: 10 * CAPACITY, slots: CAPACITY as u32 };
    let policy = AdaptiveWindow::class_aware(capacity, &policies, MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    let flood = |cache: &mut KeyedCache<AdaptiveWindow>, from: u64| {
        for number in (from..from + 3000).flat_map(|number| [number; 3]) {
            cache.request(&entry(key(2_000_000 + number), 10, OTHERS));
        }
    };
    flood(&mut cache, 0);
    for object in 0..230 {
        request(&mut cache, object, 0);
    }
    flood(&mut cache, 10_000);
    assert_eq!(occupied(&cache, FIRST), 0, "the share has ended");
}

#[test]
fn entries_of_the_share_without_a_hit_leave_after_some_capacities() {
    let mut cache = cache();
    for object in 0..100 {
        request(&mut cache, object, 0);
    }
    let read_again = 0..10;
    for number in 0..40 * CAPACITY {
        cache.request(&entry(key(2_000_000 + number), 1, OTHERS));
        if number == 2 * CAPACITY {
            assert_eq!(occupied(&cache, FIRST), 100, "they are not displaced by others");
        }
        if number % (8 * CAPACITY) == 0 {
            for object in read_again.clone() {
                assert_eq!(request(&mut cache, object, 0), Lookup::Hit, "{object} after {number}");
            }
        }
    }
    assert_eq!(occupied(&cache, FIRST), 10, "what is read stays");
}
