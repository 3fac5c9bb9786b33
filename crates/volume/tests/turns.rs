//! How many requests of which size are under way where that is known of a store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tradewind_core::Budget;
use tradewind_core::testing::SimulatedClock;
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::tune::{Belief, Cell, Sample, Surface};
use tradewind_volume::Carrier;

const SMALL: u64 = 4 << 10;
const LARGE: u64 = 8 << 20;

/// What follows from bytes, parallelisms and seconds.
fn plan_of(samples: &[(u64, usize, f64)]) -> Plan {
    let sample = |&(bytes, parallel, latency): &(u64, usize, f64)| Sample {
        cell: Cell { bytes, parallel },
        latency,
        error: 0.02,
        tail: None,
        is_seen: false,
    };
    let samples = samples.iter().map(sample).collect();
    Plan::default().tuned(&[Surface::new(Belief::default(), samples)])
}

/// A store far away: small requests wait for the round trip, and of large ones there are as many as fill the line on new connections.
fn plan() -> Plan {
    plan_of(&[
        (SMALL, 1, 0.1),
        (SMALL, 64, 0.1),
        (SMALL, 256, 0.11),
        (LARGE, 1, 0.3),
        (LARGE, 4, 0.35),
        (LARGE, 16, 1.4),
    ])
}

fn carrier(plan: Plan) -> Carrier {
    carrier_by(&SimulatedClock::new(), plan)
}

fn carrier_by(clock: &Arc<SimulatedClock>, plan: Plan) -> Carrier {
    Carrier::new(plan, Budget::new(1 << 30), clock.clone(), RetryOptions::default())
}

#[test]
fn each_size_has_the_number_that_is_known() {
    let plan = plan();
    let (small, large) = (plan.parallel(SMALL), plan.parallel(LARGE));
    assert!(small >= 128 && (30..=45).contains(&large), "{plan:?}");
    assert_eq!(plan.requests, small);
    for (bytes, most) in [(SMALL, small), (LARGE, large)] {
        let carrier = carrier(plan);
        let held: Vec<_> = (0..most).map(|_| carrier.slot(bytes).now_or_never().unwrap().unwrap()).collect();
        assert!(carrier.slot(LARGE).now_or_never().is_none(), "{most} of {bytes} bytes are all");
        drop(held);
        assert!(carrier.slot(bytes).now_or_never().is_some());
    }
}

#[test]
fn sizes_share_what_there_is() {
    let plan = plan();
    let carrier = carrier(plan);
    let (mut large, mut small) = (Vec::new(), Vec::new());
    for _ in 0..plan.parallel(LARGE) / 2 {
        large.push(carrier.slot(LARGE).now_or_never().unwrap().unwrap());
    }
    while let Some(slot) = carrier.slot(SMALL).now_or_never() {
        small.push(slot.unwrap());
    }
    // What half of the large ones leave: half of the small ones, as near as whole requests come to it.
    let part = small.len() as f64 / plan.parallel(SMALL) as f64;
    assert!((0.4..=0.6).contains(&part), "{part} beside {} large ones", large.len());
}

/// Behind 10 ms and 1 Gbit/s 64 of 64 KiB carry the most, as soon as windows have opened.
#[test]
fn fewer_are_under_way_over_new_connections() {
    const MIDDLE: u64 = 64 << 10;
    let plan = plan_of(&[(SMALL, 1, 0.0105), (MIDDLE, 1, 0.011), (MIDDLE, 64, 0.036), (LARGE, 16, 1.14)]);
    let (few, many) = (plan.parallel_at_first(MIDDLE), plan.parallel(MIDDLE));
    assert!((24..=36).contains(&few) && many >= 48, "{few} {many}");
    let clock = SimulatedClock::new();
    let carrier = carrier_by(&clock, plan);
    // Connections are as new when a command has listed for a while.
    drop(carrier.slot(0).now_or_never().unwrap());
    clock.advance(Duration::from_secs(10));
    let fill = || -> Vec<_> { std::iter::from_fn(|| carrier.slot(MIDDLE).now_or_never()).collect() };
    let held = fill();
    // Turns of one are whole, so that there may be room for one more.
    assert!((few..=few + 1).contains(&held.len()), "{} of {few}", held.len());
    clock.advance(Duration::from_secs(1));
    drop(held);
    let held = fill();
    assert!((many..=many + 1).contains(&held.len()), "{} of {many}", held.len());
}

#[test]
fn no_more_large_objects_are_begun_than_before() {
    let carrier = carrier(plan());
    let held: Vec<_> = (0..32).map(|_| carrier.large().now_or_never().unwrap().unwrap()).collect();
    assert!(carrier.large().now_or_never().is_none(), "{} are all", held.len());
}

#[test]
fn a_flag_or_a_limit_is_the_most() {
    let plan = Plan { requests: 16, ..plan() };
    assert_eq!((plan.parallel(SMALL), carrier(plan).plan().requests), (16, 16));
    let slow = carrier(self::plan()).limited(64 << 10);
    assert_eq!(slow.plan().parallel(SMALL), 4);
    let held: Vec<_> = (0..4).map(|_| slow.slot(SMALL).now_or_never().unwrap().unwrap()).collect();
    assert!(slow.slot(SMALL).now_or_never().is_none(), "{} are all", held.len());
}
