mod faults;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::ObjectStore;
use tradewind_core::error::{ErrorKind, Reason};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation as Call};
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::Goal;
use tradewind_model::tune::goal;

use super::*;
use crate::drive::BenchEnv;
use crate::drive::tests::env;
use crate::workspace::Workspace;

fn target(env: &BenchEnv) -> Arc<ProbeTarget> {
    let store = env.store.clone();
    let open = Box::new(move || Ok(store.clone() as Arc<dyn ObjectStore>));
    Arc::new(ProbeTarget::new(env.clone(), open, "probes/".to_owned()))
}

fn config(probes: usize) -> SamplingConfig {
    let points = OperatingPoint::grid(&[1 << 10, 64 << 10, 1 << 20], &[1, 4, 16]);
    SamplingConfig { points, budget: SamplingBudget { bytes: 64e6, seconds: 10.0, probes }, cpus: 2 }
}

const LIMITS: ProbeLimits = ProbeLimits {
    max_time: Duration::from_secs(2),
    max_bytes: 16 << 20,
    max_time_with_losses: Duration::from_secs(9),
    max_bytes_with_losses: 16 << 20,
};

#[tokio::test]
async fn sample_stays_in_budget_and_clean_removes_all_objects() {
    let env = env().await;
    let (target, stop) = (target(&env), StopSignal::default());
    assert!(measure_min_rtt(&target).await.unwrap().is_some());
    for direction in [Direction::Write, Direction::Read] {
        let mut reported = 0;
        let count =
            |event: SamplingEvent<'_>| reported += u32::from(matches!(event, SamplingEvent::Probed(..)));
        let sampled = sample(&target, direction, (&config(4), Prior::default()), &stop, count).await.unwrap();
        assert!((1..=4).contains(&sampled.probes.len()), "{:?}", sampled.probes);
        assert_eq!(reported as usize, sampled.probes.len());
        assert!(sampled.probes.iter().all(|probed| probed.failures == 0), "{:?}", sampled.probes);
        let bytes: u64 = sampled.probes.iter().map(|probed| probed.bytes).sum();
        assert!(bytes > 0 && (bytes as f64 - (64e6 - sampled.remaining_budget.bytes)).abs() < 1.0, "{bytes}");
        assert!(goal::choose(&sampled.surface, &config(1).points, Goal::Throughput).is_some());
    }
    assert!(target.clean().await.unwrap() > 0);
    assert!(target.add_existing_objects("").await.unwrap().is_empty(), "nothing is left");
}

#[test]
fn probe_limits_are_bounded_by_a_part_of_the_remaining_budget() {
    // About 0.6 MB if it is precise after 32 rounds, 7.7 MB if it runs for the full time.
    let quick =
        Prediction { point: OperatingPoint { bytes: 1 << 10, concurrency: 1 }, latency: 1e-4, std_dev: 0.5 };
    let bytes = |left| {
        probe_limits(&quick, &SamplingBudget { bytes: left, seconds: 1.0, probes: 8 }).max_bytes as f64 / 1e6
    };
    for (left, expected) in [(1e9, 7.7), (20e6, 2.0), (2e6, 0.6), (0.3e6, 0.3)] {
        assert!((bytes(left) - expected).abs() < 0.1, "{} of {left}", bytes(left));
    }
    let time = probe_limits(&quick, &SamplingBudget { bytes: 1e9, seconds: 1.0, probes: 8 }).max_time;
    assert_eq!(time, Duration::from_secs(1), "at most the remaining time");
}

#[tokio::test]
async fn clean_removes_by_name_if_listing_is_denied() {
    let open = env().await;
    let denied = FaultPlan::none().with_fault(
        Call::List,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), denied), ..open.clone() };
    let (target, stop) = (target(&env), StopSignal::default());
    let point = OperatingPoint { bytes: 1 << 10, concurrency: 3 };
    probe::run_probe(&target, (Direction::Write, point), LIMITS, (2, &stop)).await.unwrap();
    assert_eq!(target.clean().await.unwrap(), 3);
    assert_eq!(super::tests::target(&open).clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn packet_loss_extends_probes() {
    let env = env().await;
    let (target, stop) = (target(&env), StopSignal::default());
    let limits = ProbeLimits {
        max_time: Duration::from_secs(2),
        max_bytes: 1 << 20,
        max_time_with_losses: Duration::from_secs(9),
        max_bytes_with_losses: 8 << 20,
    };
    let point = |concurrency| OperatingPoint { bytes: 64 << 10, concurrency };
    let bytes = async |direction, concurrency| {
        let probed =
            probe::run_probe(&target, (direction, point(concurrency)), limits, (2, &stop)).await.unwrap();
        assert!(probed.sample.is_some() && probed.failures == 0, "{probed:?}");
        probed.bytes
    };
    assert_eq!(bytes(Direction::Write, 16).await, 1 << 20);
    assert_eq!(bytes(Direction::Read, 1).await, 1 << 20);
    target.mark_lossy();
    assert_eq!(
        bytes(Direction::Read, 1).await,
        8 << 20,
        "download losses are unknown here, so the full limit is used"
    );
    assert_eq!(
        bytes(Direction::Read, 16).await,
        2 << 20,
        "many connections may use a quarter of the remaining budget"
    );
    assert!(target.clean().await.unwrap() > 0);
}

#[tokio::test]
async fn packet_loss_is_ignored_on_local_paths() {
    let open = env().await;
    let local = target(&open);
    // At least one of the round trips is not delayed by other work.
    for _ in 0..50 {
        local.measure_rtt().await.unwrap();
    }
    let delay = Fault::Delay(Duration::from_millis(2));
    let slow = Faulty::new(
        open.store.clone(),
        FaultPlan::none().with_fault(Call::HeadBucket, FaultSchedule::Always, delay),
    );
    let far = target(&BenchEnv { store: slow, ..open.clone() });
    far.measure_rtt().await.unwrap();
    assert_eq!([2, 3, 9].map(|lost| far.is_loss_significant(lost)), [false, true, true]);
    assert!(!local.is_loss_significant(1 << 20));
}

#[tokio::test]
async fn read_probes_use_existing_objects_if_writes_are_denied() {
    let open = env().await;
    let mut workspace = Workspace::new(open.clone(), "theirs/".to_owned());
    let step = crate::test_plan::Step {
        load: crate::Load {
            mix: "get".parse().unwrap(),
            concurrency: 4,
            arrival_mode: crate::load::ArrivalMode::Closed,
            stop_condition: crate::load::StopCondition {
                max_requests: Some(1),
                duration: Duration::from_secs(9),
                max_ci_fraction: None,
            },
            warm_up: Duration::ZERO,
            seed: 1,
            phase: 0.0,
        },
        sizes: "100KiB".parse().unwrap(),
        objects: 5,
        round: 1,
    };
    assert!(workspace.prepare(&step, &StopSignal::default(), &Arc::default()).await.unwrap());
    let denied = FaultPlan::none().with_fault(
        Call::Stage,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), denied), ..open };
    let (target, stop) = (target(&env), StopSignal::default());
    let point = OperatingPoint { bytes: 1 << 10, concurrency: 4 };
    let error = probe::run_probe(&target, (Direction::Write, point), LIMITS, (2, &stop)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(target.max_read_bytes(), 0);
    assert_eq!(target.add_existing_objects("theirs/").await.unwrap(), [100 << 10; 5]);
    let sampled =
        sample(&target, Direction::Read, (&config(3), Prior::default()), &stop, |_| ()).await.unwrap();
    // Probes read ranges of existing objects, which are smaller than the largest sizes to sample.
    assert!(sampled.probes.iter().all(|probed| probed.failures == 0 && probed.point.bytes <= 100 << 10));
    assert!(!sampled.probes.is_empty());
}

#[tokio::test]
async fn failed_requests_raise_the_measured_latency() {
    let open = env().await;
    let every_other = FaultPlan::none().with_fault(
        Call::Stage,
        FaultSchedule::Probability(0.5),
        Fault::FailBefore(Reason::Overloaded),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), every_other), ..open.clone() };
    let (point, stop) = (OperatingPoint { bytes: 1 << 10, concurrency: 2 }, StopSignal::default());
    let write = (Direction::Write, point);
    let healthy = probe::run_probe(&target(&open), write, LIMITS, (2, &stop)).await.unwrap();
    let failing = probe::run_probe(&target(&env), write, LIMITS, (2, &stop)).await.unwrap();
    assert!(failing.failures > 0 && failing.failure.is_some(), "{failing:?}");
    let latency = |probed: &ProbeResult| probed.sample.unwrap().latency;
    assert!(latency(&failing) > 2.0 * latency(&healthy), "{failing:?} {healthy:?}");
}

#[tokio::test]
async fn probe_without_any_success_yields_no_sample() {
    let open = env().await;
    let never = FaultPlan::none().with_fault(
        Call::Stage,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::Overloaded),
    );
    let env = BenchEnv { store: Faulty::new(open.store.clone(), never), ..open };
    let (point, stop) = (OperatingPoint { bytes: 1 << 10, concurrency: 2 }, StopSignal::default());
    let probed =
        probe::run_probe(&target(&env), (Direction::Write, point), LIMITS, (2, &stop)).await.unwrap();
    assert_eq!((probed.sample, probed.requests), (None, 0));
    assert!(probed.failures > 0);
}

#[tokio::test]
async fn stopped_sampling_makes_no_probes() {
    let env = env().await;
    let stop = StopSignal::default();
    stop.trigger();
    let sampled =
        sample(&target(&env), Direction::Write, (&config(8), Prior::default()), &stop, |_| ()).await.unwrap();
    assert!(sampled.probes.is_empty());
}
