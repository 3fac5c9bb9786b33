//! Concurrency by request size under a tuned plan.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tradewind_core::Budget;
use tradewind_core::testing::SimulatedClock;
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::tune::{OperatingPoint, Prior, Sample, Surface};
use tradewind_parallel::TransferContext;

const SMALL: u64 = 4 << 10;
const LARGE: u64 = 8 << 20;

/// The plan tuned by samples of bytes, concurrency and latency in seconds.
fn plan_of(samples: &[(u64, usize, f64)]) -> Plan {
    let sample = |&(bytes, parallel, latency): &(u64, usize, f64)| Sample {
        point: OperatingPoint { bytes, concurrency: parallel },
        latency,
        relative_error: 0.02,
        tail: None,
        from_transfer: false,
    };
    let samples = samples.iter().map(sample).collect();
    Plan::default().tuned(&[Surface::new(Prior::default(), samples)])
}

/// The plan of a store at a high RTT: small requests wait for the RTT; the concurrency of large ones is what fills the
/// link on new connections.
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

fn transfers(plan: Plan) -> TransferContext {
    transfers_with_clock(&SimulatedClock::new(), plan)
}

fn transfers_with_clock(clock: &Arc<SimulatedClock>, plan: Plan) -> TransferContext {
    TransferContext::new(plan, Budget::new(1 << 30), clock.clone(), RetryOptions::default())
}

#[test]
fn each_size_has_the_concurrency_of_the_plan() {
    let plan = plan();
    let (small, large) = (plan.concurrency_for(SMALL), plan.concurrency_for(LARGE));
    assert!(small >= 128 && (30..=45).contains(&large), "{plan:?}");
    assert_eq!(plan.initial_concurrency, small);
    for (bytes, max) in [(SMALL, small), (LARGE, large)] {
        let transfers = transfers(plan);
        let held: Vec<_> = (0..max)
            .map(|_| transfers.acquire_request_permits(bytes).now_or_never().unwrap().unwrap())
            .collect();
        assert!(
            transfers.acquire_request_permits(LARGE).now_or_never().is_none(),
            "at most {max} requests of {bytes} bytes"
        );
        drop(held);
        assert!(transfers.acquire_request_permits(bytes).now_or_never().is_some());
    }
}

#[test]
fn sizes_share_the_permits() {
    let plan = plan();
    let transfers = transfers(plan);
    let (mut large, mut small) = (Vec::new(), Vec::new());
    for _ in 0..plan.concurrency_for(LARGE) / 2 {
        large.push(transfers.acquire_request_permits(LARGE).now_or_never().unwrap().unwrap());
    }
    while let Some(permits) = transfers.acquire_request_permits(SMALL).now_or_never() {
        small.push(permits.unwrap());
    }
    // Half of the large requests leave permits for about half of the small ones.
    let part = small.len() as f64 / plan.concurrency_for(SMALL) as f64;
    assert!((0.4..=0.6).contains(&part), "{part} next to {} large requests", large.len());
}

/// At 10 ms RTT and 1 Gbit/s, a concurrency of 64 is best for 64 KiB once the congestion windows have opened.
#[test]
fn concurrency_is_lower_on_new_connections() {
    const MIDDLE: u64 = 64 << 10;
    let plan = plan_of(&[(SMALL, 1, 0.0105), (MIDDLE, 1, 0.011), (MIDDLE, 64, 0.036), (LARGE, 16, 1.14)]);
    let (few, many) = (plan.concurrency_on_new_connections_for(MIDDLE), plan.concurrency_for(MIDDLE));
    assert!((24..=36).contains(&few) && many >= 48, "{few} {many}");
    let clock = SimulatedClock::new();
    let transfers = transfers_with_clock(&clock, plan);
    // Requests without data, such as listings, do not count as use of the connections.
    drop(transfers.acquire_request_permits(0).now_or_never().unwrap());
    clock.advance(Duration::from_secs(10));
    let fill = || -> Vec<_> {
        std::iter::from_fn(|| transfers.acquire_request_permits(MIDDLE).now_or_never()).collect()
    };
    let held = fill();
    // Permits per request are rounded down, so one more request may fit.
    assert!((few..=few + 1).contains(&held.len()), "{} of {few}", held.len());
    clock.advance(Duration::from_secs(1));
    drop(held);
    let held = fill();
    assert!((many..=many + 1).contains(&held.len()), "{} of {many}", held.len());
}

#[test]
fn multi_request_objects_are_limited_to_32() {
    let transfers = transfers(plan());
    let held: Vec<_> =
        (0..32).map(|_| transfers.acquire_large_object().now_or_never().unwrap().unwrap()).collect();
    assert!(transfers.acquire_large_object().now_or_never().is_none(), "at most {}", held.len());
}

#[test]
fn concurrency_setting_and_rate_limit_cap_the_plan() {
    let plan = Plan { initial_concurrency: 16, ..plan() };
    assert_eq!((plan.concurrency_for(SMALL), transfers(plan).plan().initial_concurrency), (16, 16));
    let slow = transfers(self::plan()).with_rate_limit(64 << 10);
    assert_eq!(slow.plan().concurrency_for(SMALL), 4);
    let held: Vec<_> =
        (0..4).map(|_| slow.acquire_request_permits(SMALL).now_or_never().unwrap().unwrap()).collect();
    assert!(slow.acquire_request_permits(SMALL).now_or_never().is_none(), "at most {}", held.len());
}
