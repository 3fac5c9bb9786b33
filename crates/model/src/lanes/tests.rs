//! Guarantees of the lanes, tested in a simulation.

#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "measured values")]

mod simulation;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store_statistics::Operation;
use simulation::{Load, LoadResult, Simulation};

const LARGE: Load = Load {
    priority: Priority::Normal,
    bytes: 4 << 20,
    workers: 4,
    start: Duration::ZERO,
    pause: Duration::ZERO,
    is_answered: true,
};
const SMALL: Load = Load { bytes: 4 << 10, ..LARGE };

const fn high(load: Load) -> Load {
    Load { priority: Priority::High, ..load }
}

/// A link with the given Mbit/s and RTT in ms, and a warm-up in seconds for the lanes to learn its capacity.
fn link(mbit: u32, rtt_ms: u64, warm_up_seconds: u64, seed: u64) -> Simulation {
    Simulation {
        bytes_per_second: f64::from(mbit) * 125_000.0,
        round_trip: Duration::from_millis(rtt_ms),
        overhead: Duration::ZERO,
        intrinsic_latency: Duration::ZERO,
        scheduled: true,
        warm_up: Duration::from_secs(warm_up_seconds),
        length: Duration::from_secs(20),
        seed,
    }
}

/// The p99 of the first load next to the other as a multiple of its p99 alone, and the total throughput as a fraction
/// of the larger load alone.
fn run_both(world: Simulation, first: Load, other: Load) -> (f64, f64) {
    // Runs without lanes learn nothing, so a short warm-up suffices.
    let short = Simulation { warm_up: world.warm_up.min(Duration::from_secs(20)), ..world };
    let alone = [first, other].map(|load| short.run(&[load])[0]);
    let (with, without) =
        (world.run(&[first, other]), Simulation { scheduled: false, ..short }.run(&[first, other]));
    let longer = |found: &[LoadResult]| found[0].p99.as_secs_f64() / alone[0].p99.as_secs_f64();
    let best = alone.iter().map(|found| found.bytes_per_second).fold(0.0, f64::max);
    let total = |found: &[LoadResult]| found.iter().map(|found| found.bytes_per_second).sum::<f64>() / best;
    println!(
        "{:.0} Mbit/s, {:?}, seed {}: p99 x {:.2} (without lanes {:.2}), total {:.3} ({:.3})",
        world.bytes_per_second / 125_000.0,
        world.round_trip,
        world.seed,
        longer(&with),
        longer(&without),
        total(&with),
        total(&without),
    );
    (longer(&with), total(&with))
}

#[test]
fn small_requests_stay_fast_next_to_large_ones() {
    for (mbit, rtt_ms, warm_up_seconds) in
        [(20, 20, 50), (100, 20, 20), (100, 60, 20), (500, 20, 20), (1000, 4, 20)]
    {
        for seed in 0..3 {
            let (longer, total) = run_both(link(mbit, rtt_ms, warm_up_seconds, seed), SMALL, LARGE);
            assert!(longer <= 2.0 && total >= 0.9, "{longer} {total}");
        }
    }
}

#[test]
fn lane_speeds_up_after_a_time_of_low_demand() {
    // Only one large request in flight at first, then as many as the link can take.
    let few = Load { workers: 1, bytes: 128 << 10, ..LARGE };
    let many = Load { start: Duration::from_secs(8), ..LARGE };
    for seed in 0..3 {
        let world = link(100, 20, 20, seed);
        let alone = world.run(&[many])[0].bytes_per_second;
        let found = world.run(&[SMALL, few, many]);
        let total = found.iter().map(|found| found.bytes_per_second).sum::<f64>() / alone;
        let longer = found[0].p99.as_secs_f64() / world.run(&[SMALL])[0].p99.as_secs_f64();
        println!("seed {seed}: p99 x {longer:.2}, total {total:.3}");
        assert!(longer <= 2.0 && total >= 0.9, "{longer} {total}");
    }
}

/// Measures in the fourth minute, when gradual losses have accumulated.
fn late(world: Simulation) -> Simulation {
    Simulation { warm_up: Duration::from_secs(180), length: Duration::from_secs(30), ..world }
}

#[test]
fn intrinsically_slow_requests_barely_throttle_large_ones() {
    for seed in 0..3 {
        for (workers, millis) in [(1, 100), (4, 20), (4, 200)] {
            println!("{workers} workers with {millis} ms of intrinsic latency (exponential)");
            let world = Simulation { intrinsic_latency: millis * MILLI, ..late(link(100, 20, 0, seed)) };
            let (longer, total) = run_both(world, Load { workers, ..SMALL }, LARGE);
            assert!(longer <= 2.0 && total >= 0.9, "{longer} {total}");
        }
    }
}

#[test]
fn unanswered_requests_barely_throttle_large_ones() {
    for seed in 0..3 {
        let (_, total) = run_both(late(link(100, 20, 0, seed)), Load { is_answered: false, ..SMALL }, LARGE);
        assert!(total >= 0.9, "{total}");
    }
}

#[test]
fn high_priority_costs_others_of_its_lane_little() {
    for seed in 0..3 {
        println!("occasional large request next to large ones");
        let few = Load { workers: 1, bytes: 128 << 10, pause: 100 * MILLI, ..high(LARGE) };
        let (longer, total) = run_both(late(link(100, 20, 0, seed)), few, LARGE);
        assert!(longer <= 1.5 && total >= 0.9, "{longer} {total}");
        println!("small request next to small ones that overload the store");
        let store = Simulation { overhead: MILLI, ..late(link(1000, 4, 0, seed)) };
        let (longer, total) =
            run_both(store, Load { workers: 1, ..high(SMALL) }, Load { workers: 32, ..SMALL });
        assert!(longer <= 1.5 && total >= 0.85, "{longer} {total}");
    }
}

#[test]
fn high_priority_p99_is_within_1_5_times_of_alone() {
    let many = |load: Load| Load { workers: 8 * load.workers, ..load };
    for seed in 0..3 {
        println!("small requests next to large ones");
        let (longer, _) = run_both(link(100, 20, 30, seed), high(SMALL), many(LARGE));
        assert!(longer <= 1.5, "{longer}");
        println!("large requests next to large ones");
        let (longer, total) = run_both(link(100, 20, 20, seed), high(LARGE), LARGE);
        assert!(longer <= 1.5 && total >= 0.9, "{longer} {total}");
        println!("small requests next to small ones");
        let store = Simulation { overhead: Duration::from_millis(1), ..link(1000, 4, 20, seed) };
        let (longer, _) = run_both(store, Load { workers: 1, ..high(SMALL) }, many(SMALL));
        assert!(longer <= 1.5, "{longer}");
    }
}

const MILLI: Duration = Duration::from_millis(1);

const fn put(priority: Priority, bytes: u64) -> LaneKind {
    LaneKind::new(Operation::Put, priority, bytes)
}

/// Lanes that know their capacity: small requests took 5 ms each, large ones reached 10 MB/s in total.
fn learned() -> (Lanes, Duration) {
    let mut lanes = Lanes::new(LanesOptions { max_queue_depth: 4 });
    let mut now = Duration::ZERO;
    for _ in 0..500 {
        let small = lanes.enter(put(Priority::Normal, 4096), now).unwrap();
        let mut large = lanes.enter(put(Priority::Normal, 100_000), now).unwrap();
        now += 5 * MILLI;
        lanes.end(small, now, Some(5 * MILLI));
        lanes.record_bytes(&mut large, 100_000, now);
        now += 5 * MILLI;
        lanes.end(large, now, Some(10 * MILLI));
    }
    (lanes, now)
}

#[test]
fn single_active_rank_never_waits() {
    let mut lanes = Lanes::new(LanesOptions::default());
    let mut now = Duration::ZERO;
    for _ in 0..2000 {
        let mut entered = lanes.enter(put(Priority::Normal, 4 << 20), now).unwrap();
        assert_eq!(lanes.quantum_bytes(&entered, now), None);
        assert_eq!(lanes.request_dispatch(&entered, 4 << 20, now), Dispatch::Now);
        now += 10 * MILLI;
        lanes.record_bytes(&mut entered, 4 << 20, now);
        lanes.end(entered, now, Some(10 * MILLI));
    }
    assert_eq!((lanes.entered_count(), lanes.queued(), lanes.next_wake(now)), (0, 0, None));
}

#[test]
fn full_queue_rejects_until_the_next_dispatch() {
    let (mut lanes, mut now) = learned();
    let (kind, start) = (put(Priority::Normal, 1 << 20), now);
    let mut entered = Vec::new();
    let full = loop {
        match lanes.enter(kind, now) {
            Ok(request) => {
                lanes.request_dispatch(&request, 64 << 10, now);
                entered.push(request);
            }
            Err(full) => break full,
        }
    };
    assert_eq!(full, LaneFull { queued: 4 });
    // Small requests have a queue of their own.
    let small = lanes.enter(put(Priority::Normal, 1), now).unwrap();
    assert_eq!(lanes.request_dispatch(&small, 1, now), Dispatch::Now);
    while lanes.next_dispatched(now).is_none() {
        now = lanes.next_wake(now).unwrap() + MILLI;
    }
    assert!(now < start + 200 * MILLI && lanes.queued() == 3, "{:?}", now - start);
    assert!(lanes.enter(kind, now).is_ok());
}

#[test]
fn head_of_queue_is_dispatched_despite_higher_priority() {
    let (mut lanes, mut now) = learned();
    let patient = lanes.enter(put(Priority::Normal, 1 << 20), now).unwrap();
    lanes.request_dispatch(&patient, 1 << 20, now);
    let Dispatch::Queued(ticket) = lanes.request_dispatch(&patient, 64 << 10, now) else {
        panic!("expected to be queued")
    };
    let since = now;
    while lanes.next_dispatched(now) != Some(ticket) {
        // More than the capacity.
        let first = lanes.enter(put(Priority::High, 1 << 20), now).unwrap();
        assert_eq!(lanes.request_dispatch(&first, 1 << 20, now), Dispatch::Now);
        now += MILLI;
        assert!(
            now < since + 300 * MILLI,
            "16 quanta of 64 KiB take 105 ms at 10 MB/s, and 210 ms at half of that"
        );
    }
    assert!(now > since + 50 * MILLI);
}

/// Order of dispatch of small normal requests of these clients, queued behind a small one of high priority.
fn order(lanes: &mut Lanes, mut now: Duration, clients: &[u64]) -> Vec<u64> {
    let first = lanes.enter(put(Priority::High, 1), now).unwrap();
    lanes.request_dispatch(&first, 1, now);
    let mut waiting = BTreeMap::new();
    for client in clients {
        let request = lanes.enter_as(ClientId(*client), put(Priority::Normal, 1), now).unwrap();
        match lanes.request_dispatch(&request, 1, now) {
            Dispatch::Queued(ticket) => drop(waiting.insert(ticket, *client)),
            Dispatch::Now => panic!("expected to be queued"),
        }
    }
    let mut passed = Vec::new();
    while !waiting.is_empty() {
        now = lanes.next_wake(now).unwrap() + MILLI;
        passed.extend(lanes.next_dispatched(now).map(|ticket| waiting.remove(&ticket).unwrap()));
    }
    passed
}

#[test]
fn clients_are_served_round_robin() {
    let (mut lanes, now) = learned();
    lanes.options.max_queue_depth = 100;
    let passed = order(&mut lanes, now, &[1, 1, 1, 1, 2, 1, 2, 3]);
    assert_eq!(passed, [1, 2, 3, 1, 2, 1, 1, 1]);
    assert_eq!(order(&mut lanes, now, &[1, 1, 1]), [1, 1, 1]);
}

#[test]
fn clients_that_return_immediately_share_evenly() {
    let (mut lanes, mut now) = learned();
    let first = lanes.enter(put(Priority::High, 1), now).unwrap();
    lanes.request_dispatch(&first, 1, now);
    lanes.options.max_queue_depth = 100;
    let mut waiting = BTreeMap::new();
    let ask = |lanes: &mut Lanes, waiting: &mut BTreeMap<_, _>, client: u64, now| {
        let request = lanes.enter_as(ClientId(client), put(Priority::Normal, 1), now).unwrap();
        match lanes.request_dispatch(&request, 1, now) {
            Dispatch::Queued(ticket) => drop(waiting.insert(ticket, (client, request))),
            Dispatch::Now => panic!("expected to be queued"),
        }
    };
    for client in [1, 2, 3, 3, 3, 3] {
        ask(&mut lanes, &mut waiting, client, now);
    }
    let mut passed = BTreeMap::<u64, usize>::new();
    for _ in 0..300 {
        // A high-priority request keeps the lane contended.
        assert_eq!(lanes.request_dispatch(&first, 1, now), Dispatch::Now);
        let ticket = loop {
            now = now.max(lanes.next_wake(now).unwrap()) + Duration::from_micros(1);
            if let Some(ticket) = lanes.next_dispatched(now) {
                break ticket;
            }
        };
        let (client, request) = waiting.remove(&ticket).unwrap();
        *passed.entry(client).or_default() += 1;
        lanes.end(request, now, None);
        ask(&mut lanes, &mut waiting, client, now);
    }
    assert!([1, 2, 3].iter().all(|client| (90..=110).contains(&passed[client])), "{passed:?}");
}

#[test]
fn busy_client_leaves_queue_space_for_others() {
    let (mut lanes, now) = learned();
    lanes.options.max_queue_depth = 16;
    let kind = put(Priority::Normal, 1 << 20);
    let mut waits_for = |client| {
        let mut waiting = 0;
        while let Ok(request) = lanes.enter_as(ClientId(client), kind, now) {
            waiting += usize::from(lanes.request_dispatch(&request, 64 << 10, now) != Dispatch::Now);
        }
        waiting
    };
    assert_eq!(
        [waits_for(1), waits_for(2), waits_for(3)],
        [14, 2, 0],
        "the queue is full for a third client"
    );
}

/// An event of the property test.
#[derive(Debug, Clone)]
enum Event {
    Enter { client: u64, is_high: bool, is_write: bool, bytes: u64 },
    Turn(usize, u64),
    Carried(usize, u64),
    Leave(usize),
    End(usize, bool),
    Time(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u64..3, any::<bool>(), any::<bool>(), 0_u64..1 << 21)
            .prop_map(|(client, is_high, is_write, bytes)| Event::Enter { client, is_high, is_write, bytes }),
        (0_usize..8, 0_u64..1 << 20).prop_map(|(which, bytes)| Event::Turn(which, bytes)),
        (0_usize..8, 0_u64..1 << 20).prop_map(|(which, bytes)| Event::Carried(which, bytes)),
        (0_usize..8).prop_map(Event::Leave),
        (0_usize..8, any::<bool>()).prop_map(|(which, is_done)| Event::End(which, is_done)),
        (0_u64..200).prop_map(Event::Time),
    ]
}

proptest! {
    /// For any order of requests, cancellations and drops: a queued request is dispatched once, and nothing remains at
    /// the end.
    #[test]
    fn no_queue_place_leaks_for_any_sequence_of_events(
        events in prop::collection::vec(event(), 1..200),
        is_learned in any::<bool>(),
    ) {
        let (mut lanes, mut now) = learned();
        if !is_learned {
            (lanes, now) = (Lanes::new(LanesOptions::default()), Duration::ZERO);
        }
        let mut requests: Vec<LaneRequest> = Vec::new();
        let mut waiting: BTreeMap<Ticket, ()> = BTreeMap::new();
        for event in events {
            let nth = |which: usize| which % requests.len().max(1);
            match event {
                Event::Enter { client, is_high, is_write, bytes } => {
                    let operation = if is_write { Operation::Put } else { Operation::Get };
                    let priority = if is_high { Priority::High } else { Priority::Normal };
                    let kind = LaneKind::new(operation, priority, bytes);
                    requests.extend(lanes.enter_as(ClientId(client), kind, now));
                }
                Event::Turn(which, bytes) => {
                    let request = requests.get(nth(which));
                    if let Some(Dispatch::Queued(ticket)) = request.map(|request| lanes.request_dispatch(request, bytes, now)) {
                        prop_assert!(waiting.insert(ticket, ()).is_none());
                    }
                }
                Event::Carried(which, bytes) => {
                    let which = nth(which);
                    if let Some(request) = requests.get_mut(which) {
                        lanes.record_bytes(request, bytes, now);
                    }
                }
                Event::Leave(which) => {
                    let ticket = waiting.keys().nth(which % waiting.len().max(1)).copied();
                    if let Some(ticket) = ticket {
                        waiting.remove(&ticket);
                        lanes.cancel(ticket);
                    }
                }
                Event::End(which, is_done) => {
                    if !requests.is_empty() {
                        let request = requests.remove(which % requests.len());
                        lanes.end(request, now, is_done.then_some(MILLI));
                    }
                }
                Event::Time(millis) => now += Duration::from_millis(millis),
            }
            while let Some(ticket) = lanes.next_dispatched(now) {
                prop_assert!(waiting.remove(&ticket).is_some(), "dispatched more than once");
            }
            prop_assert_eq!((lanes.queued(), lanes.entered_count()), (waiting.len(), requests.len()));
        }
        let mut rounds = 0;
        while let Some(due) = lanes.next_wake(now) {
            now = now.max(due) + Duration::from_micros(1);
            while let Some(ticket) = lanes.next_dispatched(now) {
                prop_assert!(waiting.remove(&ticket).is_some(), "dispatched more than once");
            }
            rounds += 1;
            prop_assert!(rounds < 2000, "{} are still queued", waiting.len());
        }
        requests.into_iter().for_each(|request| lanes.end(request, now, None));
        prop_assert_eq!((lanes.queued(), lanes.entered_count(), waiting.len()), (0, 0, 0));
    }
}
