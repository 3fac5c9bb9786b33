//! Properties of all policies, and reference values of single ones.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;

use super::*;

mod first_slices;
mod scan_of_the_best_class;
mod wrong_labels;

/// A hash of a small number with uniformly distributed bits.
fn key(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

const fn entry(key: u64, blocks: u32, class: u8) -> Entry {
    Entry { key, blocks, class }
}

/// Uniformly distributed numbers below 2^16, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        key(self.0) >> 48
    }
}

/// Priorities of classes 0 to 3: their numbers. Class 3 may fill a quarter of the cache.
fn policies() -> ClassPolicies {
    let mut policies = ClassPolicies::default();
    for class in 0..4 {
        let max_occupancy_percent = if class == 3 { 25 } else { 100 };
        policies.set(class, ClassPolicy { priority: class, max_occupancy_percent });
    }
    policies
}

type AnyCache = KeyedCache<Box<dyn EvictionPolicy>>;

fn all_policies(capacity: Capacity) -> Vec<AnyCache> {
    let policies: [Box<dyn EvictionPolicy>; 5] = [
        Box::new(Lru::new(capacity)),
        Box::new(S3Fifo::new(capacity)),
        Box::new(AdaptiveWindow::new(capacity)),
        Box::new(AdaptiveWindow::class_aware(
            capacity,
            &policies(),
            MissCost { per_request: 4, per_block: 1 },
        )),
        Box::new(StaticDss::new(capacity, &policies())),
    ];
    policies.map(|policy| KeyedCache::new(capacity, policy)).into()
}

/// A synthetic trace with skewed popularity, a loop and a scan.
fn synthetic_requests() -> Vec<u64> {
    let mut numbers = Numbers(7);
    (0..40_000_u64)
        .map(|request| match request % 4 {
            0 => 1_000_000 + request,
            1 => 100_000 + request / 4 % 500,
            _ => 65_536 / (numbers.next() + 16),
        })
        .collect()
}

fn misses(cache: &mut KeyedCache<impl EvictionPolicy>, requests: &[u64]) -> usize {
    let request = |&number: &u64| cache.request(&entry(key(number), 1, 0));
    requests.iter().map(request).filter(|&lookup| lookup != Lookup::Hit).count()
}

/// LRU as a list of keys.
fn naive_lru_misses(blocks: usize, requests: &[u64]) -> usize {
    let mut list = VecDeque::new();
    let mut misses = 0;
    for &number in requests {
        match list.iter().position(|&other| other == number) {
            Some(position) => drop(list.remove(position)),
            None => misses += 1,
        }
        list.push_front(number);
        list.truncate(blocks);
    }
    misses
}

/// S3-FIFO as in the paper's algorithm 1, with lists of keys. A ghost hit is found before the eviction.
#[derive(Default)]
struct NaiveS3Fifo {
    small: VecDeque<(u64, u8)>,
    main: VecDeque<(u64, u8)>,
    ghosts: VecDeque<u64>,
    has_evicted: bool,
}

impl NaiveS3Fifo {
    fn misses(mut self, blocks: usize, requests: &[u64]) -> usize {
        requests.iter().filter(|&&number| !self.request(blocks, number)).count()
    }

    fn request(&mut self, blocks: usize, number: u64) -> bool {
        let queued = self.small.iter_mut().chain(&mut self.main).find(|queued| queued.0 == number);
        if let Some(queued) = queued {
            queued.1 = (queued.1 + 1).min(3);
            return true;
        }
        let ghost = self.ghosts.iter().position(|&ghost| ghost == number);
        if let Some(position) = ghost {
            self.ghosts.remove(position);
        }
        let max_small = blocks / 10;
        while self.small.len() + self.main.len() >= blocks {
            self.evict(blocks, max_small);
        }
        if ghost.is_some() || (!self.has_evicted && self.small.len() >= max_small) {
            self.main.push_front((number, 0));
        } else {
            self.small.push_front((number, 0));
        }
        false
    }

    fn evict(&mut self, blocks: usize, max_small: usize) {
        self.has_evicted = true;
        if self.main.len() <= blocks - max_small {
            while let Some((number, hits)) = self.small.pop_back() {
                if hits < 2 {
                    self.ghosts.push_front(number);
                    self.ghosts.truncate(blocks * 9 / 10);
                    return;
                }
                self.main.push_front((number, 0));
            }
        }
        while let Some((number, hits)) = self.main.pop_back() {
            if hits == 0 {
                return;
            }
            self.main.push_front((number, hits - 1));
        }
    }
}

#[test]
fn lru_misses_as_often_as_a_naive_list() {
    let requests = synthetic_requests();
    for blocks in [1, 10, 100, 700] {
        let capacity = Capacity::of_unit_entries(blocks as u64);
        let mut cache = KeyedCache::new(capacity, Lru::new(capacity));
        assert_eq!(misses(&mut cache, &requests), naive_lru_misses(blocks, &requests), "{blocks} blocks");
    }
}

#[test]
fn s3_fifo_misses_as_often_as_the_published_algorithm() {
    let requests = synthetic_requests();
    for blocks in [20, 100, 700] {
        let capacity = Capacity::of_unit_entries(blocks as u64);
        let mut cache = KeyedCache::new(capacity, S3Fifo::new(capacity));
        let (found, expected) =
            (misses(&mut cache, &requests), NaiveS3Fifo::default().misses(blocks, &requests));
        let difference = found.abs_diff(expected) as f64 / requests.len() as f64;
        assert!(difference < 0.0005, "{blocks} blocks: {found} misses, {expected} expected");
    }
}

/// The expected values are those of libCacheSim 0.3.5.
#[test]
fn miss_ratios_of_the_synthetic_trace_are_those_of_the_reference() {
    let requests = synthetic_requests();
    let capacity = Capacity::of_unit_entries(200);
    let ratio = |misses: usize| format!("{:.4}", misses as f64 / requests.len() as f64);
    let lru = misses(&mut KeyedCache::new(capacity, Lru::new(capacity)), &requests);
    let s3_fifo = misses(&mut KeyedCache::new(capacity, S3Fifo::new(capacity)), &requests);
    assert_eq!((ratio(lru).as_str(), ratio(s3_fifo).as_str()), ("0.5341", "0.4773"));
}

#[test]
fn entry_of_the_size_of_the_small_queue_bypasses_s3_fifo() {
    let capacity = Capacity::of_unit_entries(50);
    let mut cache = KeyedCache::new(capacity, S3Fifo::new(capacity));
    assert_eq!(cache.request(&entry(1, 5, 0)), Lookup::Bypassed);
    assert_eq!(cache.request(&entry(1, 4, 0)), Lookup::Inserted);
}

#[test]
fn adaptive_window_becomes_lru_if_all_reuse_is_recent() {
    let capacity = Capacity::of_unit_entries(100);
    let mut cache = KeyedCache::new(capacity, AdaptiveWindow::new(capacity));
    // Each block is requested again three times, the last time just before LRU evicts it, and never after that.
    let requests: Vec<u64> = (300..40_000).flat_map(|now| [now, now - 40, now - 23, now - 24]).collect();
    let lru = naive_lru_misses(100, &requests);
    let found = misses(&mut cache, &requests);
    assert_eq!(cache.policy().window_percent(), 100);
    assert!(found < lru * 103 / 100, "{found} misses, {lru} of LRU");
}

#[test]
fn adaptive_window_shrinks_if_a_loop_exceeds_the_cache() {
    let capacity = Capacity::of_unit_entries(1000);
    let mut cache = KeyedCache::new(capacity, AdaptiveWindow::new(capacity));
    let requests: Vec<u64> = (0..200_000).map(|request| request % 1500).collect();
    let found = misses(&mut cache, &requests);
    assert_eq!(naive_lru_misses(1000, &requests[..10_000]), 10_000);
    assert!(cache.policy().window_percent() <= 10);
    assert!(found < requests.len() * 2 / 3, "{found}");
}

#[test]
fn sampled_adaptive_window_chooses_as_the_unsampled_one() {
    let capacity = Capacity::of_unit_entries(20_000);
    let mut cache = KeyedCache::new(capacity, AdaptiveWindow::new(capacity));
    let requests: Vec<u64> = (0..600_000).map(|request| request % 30_000).collect();
    let found = misses(&mut cache, &requests);
    assert!(found < requests.len() * 2 / 3, "{found}");
}

/// Requests for small and large entries of equal popularity; only the small ones are worth their blocks.
fn mixed_requests(class_of_small: u8, class_of_large: u8) -> Vec<Entry> {
    let mut numbers = Numbers(3);
    (0..120_000)
        .map(|_| {
            let number = numbers.next() % 2000;
            let is_small = number < 1000;
            let class = if is_small { class_of_small } else { class_of_large };
            entry(key(number), if is_small { 1 } else { 20 }, class)
        })
        .collect()
}

fn misses_of_entries(policy: impl EvictionPolicy, capacity: Capacity, requests: &[Entry]) -> usize {
    let mut cache = KeyedCache::new(capacity, policy);
    requests.iter().filter(|request| cache.request(request) != Lookup::Hit).count()
}

const MIXED_CAPACITY: Capacity = Capacity { blocks: 1500, slots: 1500 };

#[test]
fn correct_labels_save_misses() {
    let requests = mixed_requests(1, 2);
    let labelled = AdaptiveWindow::class_aware(MIXED_CAPACITY, &policies(), MissCost::default());
    let labelled = misses_of_entries(labelled, MIXED_CAPACITY, &requests);
    let unlabelled = misses_of_entries(S3Fifo::new(MIXED_CAPACITY), MIXED_CAPACITY, &requests);
    assert!(labelled * 10 < unlabelled * 8, "{labelled} misses, {unlabelled} without labels");
}

#[test]
fn inverted_labels_cost_no_more_than_none() {
    let requests = mixed_requests(2, 1);
    let labelled = AdaptiveWindow::class_aware(MIXED_CAPACITY, &policies(), MissCost::default());
    let labelled = misses_of_entries(labelled, MIXED_CAPACITY, &requests);
    let unlabelled = misses_of_entries(S3Fifo::new(MIXED_CAPACITY), MIXED_CAPACITY, &requests);
    assert!(labelled * 100 < unlabelled * 102, "{labelled} misses, {unlabelled} without labels");
}

#[test]
fn shuffled_labels_cost_no_more_than_none() {
    let mut requests = mixed_requests(0, 0);
    for request in &mut requests {
        request.class = (request.key % 3) as u8;
    }
    let labelled = AdaptiveWindow::class_aware(MIXED_CAPACITY, &policies(), MissCost::default());
    let labelled = misses_of_entries(labelled, MIXED_CAPACITY, &requests);
    let unlabelled = misses_of_entries(S3Fifo::new(MIXED_CAPACITY), MIXED_CAPACITY, &requests);
    assert!(labelled * 100 < unlabelled * 102, "{labelled} misses, {unlabelled} without labels");
}

#[test]
fn one_label_for_everything_costs_no_more_than_none() {
    let requests = mixed_requests(1, 1);
    let labelled = AdaptiveWindow::class_aware(MIXED_CAPACITY, &policies(), MissCost::default());
    let labelled = misses_of_entries(labelled, MIXED_CAPACITY, &requests);
    let unlabelled = misses_of_entries(S3Fifo::new(MIXED_CAPACITY), MIXED_CAPACITY, &requests);
    assert!(labelled * 100 < unlabelled * 102, "{labelled} misses, {unlabelled} without labels");
}

#[test]
fn entries_of_the_lowest_priority_leave_first() {
    let capacity = Capacity::of_unit_entries(100);
    let aware = AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default());
    let caches: [AnyCache; 2] = [
        KeyedCache::new(capacity, Box::new(aware)),
        KeyedCache::new(capacity, Box::new(StaticDss::new(capacity, &policies()))),
    ];
    for mut cache in caches {
        for number in 0..100 {
            cache.request(&entry(key(number), 1, if number < 50 { 2 } else { 1 }));
        }
        for number in 100..140 {
            cache.request(&entry(key(number), 1, 0));
        }
        let count = |class| cache.entries().filter(|entry| entry.class == class).count();
        assert_eq!([count(0), count(1), count(2)], [40, 50, 10]);
    }
}

#[test]
fn entry_of_the_lowest_priority_bypasses_a_full_cache() {
    let capacity = Capacity::of_unit_entries(50);
    let policy = AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..50 {
        assert_eq!(cache.request(&entry(key(number), 1, 1)), Lookup::Inserted);
    }
    assert_eq!(cache.request(&entry(key(50), 1, 2)), Lookup::Bypassed);
    assert_eq!(cache.request(&entry(key(51), 1, 0)), Lookup::Inserted);
}

#[test]
fn entry_does_not_replace_more_than_its_class_has() {
    let capacity = Capacity::of_unit_entries(50);
    let policy = AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..49 {
        cache.request(&entry(key(number), 1, 1));
    }
    assert_eq!(cache.request(&entry(key(49), 1, 2)), Lookup::Inserted);
    assert_eq!(cache.request(&entry(key(50), 2, 2)), Lookup::Bypassed);
    assert_eq!(cache.request(&entry(key(51), 1, 2)), Lookup::Inserted);
}

#[test]
fn class_never_fills_more_than_its_occupancy() {
    let capacity = Capacity::of_unit_entries(100);
    let policy = AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..1000 {
        cache.request(&entry(key(number % 60), 1, 3));
        assert!(cache.blocks() <= 25);
    }
    assert_eq!(cache.blocks(), 25);
}

#[test]
fn changed_policies_apply_to_entries_in_the_cache() {
    let capacity = Capacity::of_unit_entries(100);
    let policy = AdaptiveWindow::class_aware(capacity, &ClassPolicies::default(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..100 {
        cache.request(&entry(key(number), 1, 3));
    }
    cache.policy_mut().set_class_policies(&policies());
    cache.request(&entry(key(100), 1, 0));
    assert_eq!(cache.entries().filter(|entry| entry.class == 3).count(), 25);
}

#[test]
fn static_dss_bypasses_the_lowest_priority_while_it_cleans() {
    let capacity = Capacity::of_unit_entries(1000);
    let mut policy = StaticDss::new(capacity, &policies());
    let lowest = entry(key(1), 1, 3);
    assert!(policy.admits(&lowest));
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..1001 {
        cache.request(&entry(key(number), 1, 1));
    }
    assert_eq!(cache.request(&entry(key(5000), 1, 3)), Lookup::Bypassed);
    assert_eq!(cache.request(&entry(key(5000), 1, 1)), Lookup::Inserted);
}

#[derive(Debug, Clone)]
enum Operation {
    Request { number: u64, blocks: u32, class: u8 },
    Remove { number: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        9 => (0..60_u64, 1..4_u32, 0..4_u8)
            .prop_map(|(number, blocks, class)| Operation::Request { number, blocks, class }),
        1 => (0..60_u64).prop_map(|number| Operation::Remove { number }),
    ]
}

proptest! {
    /// An eviction of a free slot, and a slot evicted twice, panic in `KeyedCache`.
    #[test]
    fn every_policy_keeps_within_the_capacity(
        operations in prop::collection::vec(operation(), 1..400),
        blocks in 1..40_u64,
        slots in 1..40_u32,
    ) {
        for mut cache in all_policies(Capacity { blocks, slots }) {
            let mut removed = HashSet::new();
            for operation in &operations {
                match *operation {
                    Operation::Request { number, blocks: size, class } => {
                        let lookup = cache.request(&entry(key(number), size, class));
                        prop_assert!(lookup != Lookup::Hit || !removed.contains(&number), "hit of a removed entry");
                        prop_assert!(lookup != Lookup::Bypassed || !cache.contains(key(number)));
                        removed.remove(&number);
                    }
                    Operation::Remove { number } => {
                        cache.remove(key(number));
                        prop_assert!(!cache.contains(key(number)));
                        removed.insert(number);
                    }
                }
                let sum: u64 = cache.entries().map(|entry| u64::from(entry.blocks)).sum();
                prop_assert!(sum == cache.blocks() && sum <= blocks);
                prop_assert!(cache.entries().count() <= slots as usize);
            }
        }
    }

    #[test]
    fn evictions_return_every_inserted_slot_once(sizes in prop::collection::vec((1..4_u32, 0..4_u8), 1..60)) {
        struct Table(Vec<Entry>);
        impl Entries for Table {
            fn entry(&self, slot: Slot) -> Entry {
                self.0[slot as usize]
            }
        }
        let table = Table((0..).zip(&sizes).map(|(number, &(blocks, class))| entry(key(number), blocks, class)).collect());
        let capacity = Capacity { blocks: 1000, slots: 60 };
        let policies: [Box<dyn EvictionPolicy>; 4] = [
            Box::new(Lru::new(capacity)),
            Box::new(S3Fifo::new(capacity)),
            Box::new(AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default())),
            Box::new(StaticDss::new(capacity, &policies())),
        ];
        for mut policy in policies {
            for (slot, entry) in (0..).zip(&table.0) {
                policy.insert(slot, entry);
                policy.hit(slot / 2, &table.entry(slot / 2));
            }
            let evicted: Vec<Slot> = std::iter::from_fn(|| policy.evict(&table)).collect();
            let distinct: HashSet<Slot> = evicted.iter().copied().collect();
            prop_assert_eq!((evicted.len(), distinct.len()), (table.0.len(), table.0.len()));
        }
    }
}

/// The cache and its policy, driven like a tier of the real cache: entries of these classes are pinned.
fn request_pinned(cache: &mut KeyedCache<AdaptiveWindow>, number: u64, class: u8) {
    cache.request(&entry(key(number), 1, class));
    cache.pin(key(number));
}

#[test]
fn pinned_entries_survive_a_flood_and_take_half_of_the_cache() {
    let capacity = Capacity::of_unit_entries(100);
    let mut cache = KeyedCache::new(capacity, AdaptiveWindow::new(capacity));
    for number in 0..60 {
        request_pinned(&mut cache, number, 1);
    }
    let flood = |cache: &mut KeyedCache<AdaptiveWindow>, numbers: std::ops::Range<u64>| {
        for number in numbers.flat_map(|number| [number; 4]) {
            cache.request(&entry(key(number), 1, 2));
        }
    };
    flood(&mut cache, 1000..3000);
    assert!((0..50).all(|number| cache.contains(key(number))));
    assert!(!(50..60).any(|number| cache.contains(key(number))), "the bound is half of the cache");
    assert_eq!(cache.policy().occupancy()[1], ClassOccupancy { blocks: 50, entries: 50 });
    assert_eq!(cache.blocks(), 100);
    assert_eq!(cache.unpin_class(1), 50);
    flood(&mut cache, 3000..5000);
    assert_eq!(cache.policy().occupancy()[1], ClassOccupancy::default());
}

#[test]
fn pinned_entries_count_for_the_occupancy_of_their_class() {
    let capacity = Capacity::of_unit_entries(100);
    let policy = AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    for number in 0..40 {
        request_pinned(&mut cache, number, 3);
    }
    for number in 100..200 {
        cache.request(&entry(key(number), 1, 3));
    }
    let occupancy = cache.policy().occupancy()[3];
    assert!(occupancy.blocks <= 40, "{occupancy:?}");
}

/// A cache whose slots are full when an eighth of its blocks are.
const SLOT_CAPACITY: Capacity = Capacity { blocks: 800, slots: 100 };

fn class_aware(capacity: Capacity) -> KeyedCache<AdaptiveWindow> {
    KeyedCache::new(capacity, AdaptiveWindow::class_aware(capacity, &policies(), MissCost::default()))
}

#[test]
fn pinned_small_entries_take_half_of_the_slots() {
    let mut cache = class_aware(SLOT_CAPACITY);
    for number in 0..200 {
        request_pinned(&mut cache, number, 1);
    }
    for number in 1000..1200 {
        assert_eq!(cache.request(&entry(key(number), 1, 0)), Lookup::Inserted);
    }
    let [others, pinned, ..] = cache.policy().occupancy();
    assert_eq!([others.entries, pinned.entries], [50, 50]);
}

#[test]
fn class_of_small_entries_takes_its_share_of_the_slots() {
    let mut cache = class_aware(SLOT_CAPACITY);
    for number in 0..1000 {
        cache.request(&entry(key(number % 60), 1, 3));
        assert!(cache.entries().count() <= 25);
    }
    assert_eq!(cache.policy().occupancy()[3], ClassOccupancy { blocks: 25, entries: 25 });
}

#[test]
fn entry_of_the_lowest_priority_bypasses_full_slots() {
    let mut cache = class_aware(SLOT_CAPACITY);
    for number in 0..100 {
        assert_eq!(cache.request(&entry(key(number), 1, 1)), Lookup::Inserted);
    }
    assert_eq!(cache.request(&entry(key(100), 1, 2)), Lookup::Bypassed);
    assert_eq!(cache.request(&entry(key(101), 1, 0)), Lookup::Inserted);
}

#[test]
fn limit_of_entries_replaces_that_of_slots() {
    let mut policy = AdaptiveWindow::class_aware(SLOT_CAPACITY, &policies(), MissCost::default());
    policy.set_max_entries(40);
    policy.set_class_policies(&policies());
    for slot in 0..40 {
        assert!(policy.would_admit(&entry(key(99), 1, 2)), "{slot}");
        let inserted = entry(key(u64::from(slot)), 1, if slot < 25 { 1 } else { 3 });
        policy.insert(slot, &inserted);
        assert_eq!(slot < 25 && policy.pin(slot, &inserted), slot < 20, "{slot}: half of 40 are pinned");
        assert_eq!(policy.has_excess(), slot >= 25 + 10, "{slot}: a quarter of 40 are of class 3");
    }
    assert!(policy.would_admit(&entry(key(99), 1, 3)), "an entry of class 3 makes way");
    for slot in 25..40 {
        policy.remove(slot, &entry(key(u64::from(slot)), 1, 3));
        policy.insert(slot, &entry(key(u64::from(slot)), 1, 0));
    }
    assert!(!policy.would_admit(&entry(key(99), 1, 2)), "all others have a higher priority");
}

/// Classes 0 to 2 have the priorities of their numbers; class 3 is ranked by reuse.
fn policies_by_reuse() -> ClassPolicies {
    let mut policies = policies();
    policies.set(3, ClassPolicy { priority: 9, max_occupancy_percent: 100 });
    policies.rank_by_reuse(3);
    policies
}

#[test]
fn class_by_reuse_is_not_below_labels_of_the_same_reuse() {
    let capacity = Capacity::of_unit_entries(1000);
    let policy = AdaptiveWindow::class_aware(capacity, &policies_by_reuse(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    let mut numbers = Numbers(11);
    let (mut hits, mut requests) = ([0; 4], [0; 4]);
    for _ in 0..60_000 {
        let number = numbers.next() % 3000;
        let class = if number.is_multiple_of(2) { 1 } else { 3 };
        requests[class] += 1;
        hits[class] += usize::from(cache.request(&entry(key(number), 1, class as u8)) == Lookup::Hit);
    }
    let ratio = |class: usize| hits[class] as f64 / requests[class] as f64;
    assert!(ratio(3) > ratio(1) * 0.8, "{} without a label, {} with one", ratio(3), ratio(1));
}

#[test]
fn class_by_reuse_without_reuse_makes_way_for_labels() {
    let capacity = Capacity::of_unit_entries(1000);
    let policy = AdaptiveWindow::class_aware(capacity, &policies_by_reuse(), MissCost::default());
    let mut cache = KeyedCache::new(capacity, policy);
    let mut numbers = Numbers(5);
    let mut hits = 0;
    for request in 0..60_000_u64 {
        // Each is requested again after 1600 others: too late for a policy without labels.
        let labelled = entry(key(request % 800), 1, 1);
        hits += usize::from(cache.request(&labelled) == Lookup::Hit);
        cache.request(&entry(key(1_000_000 + request * 8 + numbers.next() % 8), 1, 3));
    }
    assert!(hits > 55_000, "{hits}");
}

#[test]
fn cache_without_labels_behaves_as_without_policies() {
    let capacity = Capacity::of_unit_entries(500);
    let mut policies = ClassPolicies::default();
    for class in 1..4 {
        policies.set(class, ClassPolicy { priority: class, max_occupancy_percent: 100 });
        policies.rank_by_reuse(class);
    }
    let requests: Vec<Entry> =
        synthetic_requests().iter().map(|&number| entry(key(number), 1, 1 + (number % 3) as u8)).collect();
    let aware = AdaptiveWindow::class_aware(capacity, &policies, MissCost::default());
    let aware = misses_of_entries(aware, capacity, &requests);
    let plain = misses_of_entries(AdaptiveWindow::new(capacity), capacity, &requests);
    assert!(aware * 100 <= plain * 101, "{aware} misses, {plain} without policies");
}

#[test]
fn reclassified_entry_counts_in_its_new_class_and_may_keep_its_pin() {
    for keeps_pin in [false, true] {
        let mut policy = AdaptiveWindow::class_aware(SLOT_CAPACITY, &policies(), MissCost::default());
        let (old, new) = (entry(key(1), 2, 1), entry(key(1), 2, 3));
        policy.insert(0, &old);
        assert!(policy.pin(0, &old));
        policy.reclassify(0, &old, new.class, keeps_pin);
        assert_eq!(policy.is_pinned(0), keeps_pin);
        let blocks = |class: usize| policy.occupancy()[class].blocks;
        assert_eq!((blocks(1), blocks(3)), (0, 2));
        if !keeps_pin {
            policy.hit(0, &new);
            policy.remove(0, &new);
            assert!(policy.occupancy().iter().all(|occupancy| occupancy.blocks == 0));
        }
    }
}
