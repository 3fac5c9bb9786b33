use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;
use crate::affinity::hash::hash_pair;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store completes reads one after another, each in this time.
fn train(chooser: &mut ReplicaChooser, store: StoreIndex, service: Duration) {
    let mut now = Duration::ZERO;
    for _ in 0..100 {
        chooser.choose(now, &[store], 0);
        now += service;
        chooser.completed(now, store);
    }
}

/// Reads in 3,000 by which a client tries stores that it does not prefer, whatever their speed.
const MAX_TRIALS: u32 = 30;

/// A client with a constant number of reads in flight, of objects that all stores hold.
struct World {
    chooser: ReplicaChooser,
    /// Time per read; `None` if the store fails at once.
    service: Vec<Option<Duration>>,
    /// When each store has served its queue.
    free_at: Vec<Duration>,
    /// Ends of the reads in flight: time, a number that orders equal times, and the store.
    ends: BinaryHeap<Reverse<End>>,
    started: u32,
    seed: u32,
    received: Vec<u32>,
    now: Duration,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    at: Duration,
    number: u32,
    store: StoreIndex,
    is_error: bool,
}

impl World {
    fn new(service: Vec<Option<Duration>>, in_flight: u32, seed: u32) -> Self {
        let count = service.len();
        let mut world = Self {
            chooser: ReplicaChooser::new(count),
            service,
            free_at: vec![Duration::ZERO; count],
            ends: BinaryHeap::new(),
            started: 0,
            seed,
            received: vec![0; count],
            now: Duration::ZERO,
        };
        (0..in_flight).for_each(|_| world.start());
        world
    }

    fn start(&mut self) {
        let replicas: Vec<StoreIndex> = (0..self.service.len()).collect();
        let random = u64::from(hash_pair(self.seed, self.started));
        let store = self.chooser.choose(self.now, &replicas, random).unwrap();
        let at = match self.service[store] {
            Some(service) => self.free_at[store].max(self.now) + service,
            None => self.now + ms(1),
        };
        self.free_at[store] = at;
        self.started += 1;
        self.received[store] += 1;
        let is_error = self.service[store].is_none();
        self.ends.push(Reverse(End { at, number: self.started, store, is_error }));
    }

    /// Ends this number of reads, and starts as many.
    fn run(&mut self, reads: u32) {
        for _ in 0..reads {
            let Reverse(end) = self.ends.pop().unwrap();
            self.now = end.at;
            if end.is_error {
                self.chooser.failed(end.store);
            } else {
                self.chooser.completed(self.now, end.store);
            }
            self.start();
        }
    }
}

#[test]
fn shortest_expected_wait_is_chosen() {
    let mut chooser = ReplicaChooser::new(2);
    train(&mut chooser, 0, ms(10));
    train(&mut chooser, 1, ms(35));
    let now = Duration::from_secs(10);
    let choices: Vec<_> = (0..5).map(|random| chooser.choose(now, &[0, 1], random).unwrap()).collect();
    assert_eq!(choices, [0, 0, 0, 1, 0], "the fourth read would wait 40 ms at the first store");
    assert_eq!(chooser.choose(now, &[], 3), None);
}

#[test]
fn equal_stores_are_chosen_at_random() {
    let mut firsts = [0; 3];
    for random in 0..30 {
        firsts[ReplicaChooser::new(3).choose(Duration::ZERO, &[0, 1, 2], random).unwrap()] += 1;
    }
    assert_eq!(firsts, [10; 3]);
}

#[test]
fn new_store_counts_as_the_mean_of_its_peers() {
    let mut chooser = ReplicaChooser::new(2);
    train(&mut chooser, 0, ms(10));
    train(&mut chooser, 1, ms(30));
    let new = chooser.add_store();
    let now = Duration::from_secs(10);
    assert!((chooser.expected_seconds(now, new) - 0.020).abs() < 1e-4);
    assert_eq!((chooser.store_count(), chooser.choose(now, &[0, new], 1)), (3, Some(0)));
    chooser.choose(now, &[new], 0);
    chooser.completed(now + ms(100), new);
    assert!((chooser.expected_seconds(now + ms(100), new) - 0.060).abs() < 1e-4, "the first one counts half");
}

#[test]
fn silent_store_counts_as_slower_and_slower() {
    let mut chooser = ReplicaChooser::new(2);
    train(&mut chooser, 0, ms(10));
    train(&mut chooser, 1, ms(25));
    let start = Duration::from_secs(10);
    assert_eq!(chooser.choose(start, &[0, 1], 0), Some(0));
    assert!((chooser.expected_seconds(start + ms(20), 0) - 0.020).abs() < 1e-9);
    assert_eq!(chooser.choose(start + ms(200), &[0, 1], 0), Some(1));
    assert!(chooser.expected_seconds(start + ms(4000), 0) > 1.0);
}

#[test]
fn cancelled_read_leaves_no_trace_but_its_absence() {
    let mut chooser = ReplicaChooser::new(1);
    train(&mut chooser, 0, ms(10));
    let now = Duration::from_secs(10);
    let before = chooser.expected_seconds(now, 0);
    chooser.choose(now, &[0], 0);
    assert!(chooser.expected_seconds(now, 0) > 1.5 * before);
    chooser.cancelled(0);
    assert!((chooser.expected_seconds(now, 0) - before).abs() < 1e-12);
}

#[test]
fn completions_at_one_time_still_count_reads_in_flight() {
    let mut chooser = ReplicaChooser::new(2);
    train(&mut chooser, 0, Duration::ZERO);
    train(&mut chooser, 1, Duration::ZERO);
    let choices: Vec<_> = (0..4).map(|_| chooser.choose(ms(1), &[0, 1], 0).unwrap()).collect();
    assert_eq!(choices.iter().sum::<usize>(), 2, "{choices:?}");
}

#[test]
fn failing_store_receives_half_a_percent_at_most() {
    let mut world = World::new(vec![Some(ms(10)), Some(ms(10)), Some(ms(10))], 4, 1);
    world.run(1000);
    world.service[0] = None;
    let before = world.received[0];
    world.run(20_000);
    let share = f64::from(world.received[0] - before) / 20_000.0;
    assert!((0.001..=0.005).contains(&share), "{share}");
}

#[test]
fn recovered_store_is_found_again() {
    let mut world = World::new(vec![None, Some(ms(10)), Some(ms(10))], 4, 2);
    world.run(5000);
    world.service[0] = Some(ms(10));
    world.run(3000);
    let before = world.received[0];
    world.run(3000);
    let share = f64::from(world.received[0] - before) / 3000.0;
    assert!(share > 0.25, "{share}");
}

#[test]
fn store_that_becomes_fast_is_found_without_queues() {
    let mut world = World::new(vec![Some(ms(400)), Some(ms(20))], 1, 3);
    world.run(2000);
    let slow = world.received[0];
    assert!(slow < 20, "{slow}");
    world.service[0] = Some(ms(5));
    world.run(4000);
    let before = world.received[0];
    world.run(1000);
    assert!(world.received[0] - before > 800, "{}", world.received[0] - before);
}

#[test]
fn only_replicas_that_fail_are_shared() {
    let mut world = World::new(vec![None, None], 2, 4);
    world.run(1000);
    assert!(world.received.iter().all(|received| *received > 300), "{:?}", world.received);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn slower_store_never_receives_more(
        service_ms in prop::collection::vec(2_u64..200, 2..6),
        in_flight in 1_u32..24,
        seed in any::<u32>(),
    ) {
        let mut world = World::new(service_ms.iter().map(|millis| Some(ms(*millis))).collect(), in_flight, seed);
        // Until it has found the fastest store, the client uses the first one that is fast enough.
        world.run(3000);
        let learned = world.received.clone();
        world.run(3000);
        for (received, learned) in world.received.iter_mut().zip(learned) {
            *received -= learned;
        }
        for (a, slow) in service_ms.iter().enumerate() {
            for (b, fast) in service_ms.iter().enumerate() {
                if *slow as f64 > 1.15 * *fast as f64 {
                    prop_assert!(
                        world.received[a] <= world.received[b] + MAX_TRIALS,
                        "{slow} ms received {} and {fast} ms {}", world.received[a], world.received[b]
                    );
                }
            }
        }
    }

    #[test]
    fn failing_store_never_attracts_reads(
        service_ms in prop::collection::vec(2_u64..200, 1..5),
        in_flight in 1_u32..24,
        seed in any::<u32>(),
    ) {
        let mut service: Vec<_> = service_ms.iter().map(|millis| Some(ms(*millis))).collect();
        service.push(None);
        let mut world = World::new(service, in_flight, seed);
        world.run(500);
        let before = world.received[service_ms.len()];
        world.run(10_000);
        let share = f64::from(world.received[service_ms.len()] - before) / 10_000.0;
        prop_assert!(share <= 0.005, "{share}");
    }

    #[test]
    fn any_reports_give_a_choice_among_the_replicas(
        actions in prop::collection::vec((0_u8..4, 0_usize..4, 0_u64..100_000), 1..200),
    ) {
        let mut chooser = ReplicaChooser::new(4);
        let mut now = Duration::ZERO;
        for (action, store, value) in actions {
            now += ms(value % 700);
            match action {
                0 => chooser.completed(now, store),
                1 => chooser.failed(store),
                2 => chooser.cancelled(store),
                _ => {
                    let replicas = [store, (store + 1) % 4];
                    let chosen = chooser.choose(now, &replicas, value).unwrap();
                    prop_assert!(replicas.contains(&chosen));
                    prop_assert!(chooser.expected_seconds(now, chosen).is_finite());
                }
            }
        }
    }
}
