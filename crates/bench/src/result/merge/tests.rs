use hdrhistogram::Histogram;
use proptest::prelude::*;
use tradewind_core::Timestamp;
use tradewind_core::traffic::TrafficCounts;

use super::super::NetworkUsage;
use super::*;
use crate::cpu_usage::CpuUsage;
use crate::drive::LoadOutcome;
use crate::load::{ArrivalMode, Load, StopCondition};
use crate::record::{LoadRecord, MeasurementWindow, Payload, RequestTiming, new_histogram, record_value};
use crate::test_plan::Step;

const TIME: Duration = Duration::from_secs(3);

fn step() -> Step {
    let load = Load {
        mix: "get=1,put=1".parse().unwrap(),
        concurrency: 4,
        arrival_mode: ArrivalMode::Closed,
        stop_condition: StopCondition { max_requests: None, duration: TIME, max_ci_fraction: None },
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    };
    Step { load, sizes: "1KiB".parse().unwrap(), objects: 9, round: 1 }
}

fn outcome(record: LoadRecord, schedule_lag: Histogram<u64>) -> LoadOutcome {
    let series_100ms = record.series(TIME);
    LoadOutcome {
        started: Timestamp::from_millis(7),
        duration: TIME,
        record,
        usage: CpuUsage::default(),
        traffic: TrafficCounts { sent_bytes: 3, received_bytes: 5, connections: 1 },
        schedule_lag,
        series_100ms,
        repeated_reads: 1,
        never_started: 2,
        dropped: 0,
        queued: 0,
        end_reason: EndReason::TimeLimit,
    }
}

fn part(agent: &str, record: LoadRecord) -> AgentMeasurement {
    let outcome = outcome(record, new_histogram());
    AgentMeasurement {
        address: agent.to_owned(),
        cores: 2,
        measurement: Measurement::new(&step(), Vec::new(), &outcome, 2),
    }
}

/// A request: true for a put, start in milliseconds, duration in microseconds, and true if it failed.
type Request = (bool, u64, u64, bool);

fn recorded<'a>(requests: impl Iterator<Item = &'a Request>) -> LoadRecord {
    let mut all = LoadRecord::default();
    let window = MeasurementWindow { begin: Duration::from_secs(1), end: Duration::from_secs(1) + TIME };
    for (is_put, start, duration, fails) in requests {
        let operation = if *is_put { Operation::Put } else { Operation::Get };
        let (start, duration) = (Duration::from_millis(*start), Duration::from_micros(*duration));
        let ended = start + duration;
        if *fails {
            all.record_failure(window, operation, ended, "busy", "is busy");
        } else {
            let timing = RequestTiming { scheduled: start, first_byte: start + duration / 2, ended };
            let mut payload = Payload::passed_at(window, start + duration / 2, 400);
            payload.add(window, ended, 600);
            all.record_success(window, operation, timing, &payload);
        }
    }
    all
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-3 * one.abs().max(1.0)
}

proptest! {
    /// The merged records of several machines equal the record of one machine with all requests.
    #[test]
    fn merged_parts_equal_the_undivided_measurement(
        requests in proptest::collection::vec((any::<bool>(), 0_u64..5000, 1_u64..3_000_000, proptest::bool::weighted(0.1)), 0..150),
        machines in 1_usize..5,
    ) {
        let whole = part("all", recorded(requests.iter())).measurement;
        let record_of = |machine: usize| recorded(requests.iter().skip(machine).step_by(machines));
        let parts = (0..machines).map(|machine| part(&machine.to_string(), record_of(machine))).collect();
        let merged = merge_agents(parts, Duration::ZERO).unwrap();
        prop_assert_eq!(merged.concurrency, 4 * machines);
        prop_assert_eq!(merged.agents.len(), machines);
        prop_assert_eq!(merged.operations.len(), whole.operations.len());
        prop_assert!(is_near(merged.operations_per_second.mean, whole.operations_per_second.mean));
        prop_assert!(is_near(merged.bytes_per_second.mean, whole.bytes_per_second.mean));
        prop_assert_eq!(merged.series_100ms.len(), whole.series_100ms.len());
        for (mine, others) in merged.series_100ms.iter().zip(&whole.series_100ms) {
            prop_assert!((mine.0 - others.0).abs() < 0.01 && (mine.1 - others.1).abs() < 0.01);
        }
        let within = |measurement: &Measurement| measurement.operations_per_second.ci95_half_width.unwrap_or(-1.0);
        prop_assert!((within(&merged) - within(&whole)).abs() < 0.1, "{} {}", within(&merged), within(&whole));
        for (operation, one) in &whole.operations {
            let all = &merged.operations[operation];
            prop_assert_eq!((all.operations, all.bytes, all.truncated), (one.operations, one.bytes, one.truncated));
            prop_assert_eq!(&all.failures, &one.failures);
            prop_assert_eq!(&all.latency_us, &one.latency_us);
            prop_assert_eq!(&all.first_byte_us, &one.first_byte_us);
            prop_assert_eq!(all.failure_samples.len(), one.failure_samples.len());
            prop_assert_eq!(all.series_1s.len(), one.series_1s.len());
            for (mine, others) in all.series_1s.iter().zip(&one.series_1s) {
                prop_assert_eq!((&mine[..3], mine[4]), (&others[..3], others[4]));
                // Means are rounded down on each machine.
                prop_assert!(mine[3] <= others[3] && others[3] - mine[3] <= 2, "{:?} {:?}", mine, others);
            }
        }
    }
}

#[test]
fn merge_labels_texts_and_threads_with_their_agent() {
    let mut parts = ["a:1", "b:2"].map(|name| part(name, recorded([(false, 1500, 9, true)].iter())));
    for (n, part) in parts.iter_mut().enumerate() {
        part.measurement.notes = vec!["slow".to_owned()];
        part.measurement.cpu_threads = [("tradewind".to_owned(), 0.5)].into();
        part.measurement.machine_cpu_utilization = [0.9, 0.2][n];
        part.measurement.requests_per_second = Some(50.0);
        part.measurement.schedule_lag_us = Some(LatencySummary::from_histogram(&{
            let mut schedule_lag = new_histogram();
            record_value(&mut schedule_lag, 10 + 990 * n as u64, 1);
            schedule_lag
        }));
    }
    parts[1].measurement.end_reason = EndReason::Stopped;
    let merged = merge_agents(parts.into(), Duration::from_millis(200)).unwrap();
    assert_eq!(merged.notes[..2], ["a:1: slow", "b:2: slow"]);
    assert!(merged.notes[2].contains("started 200.0 ms apart"), "{:?}", merged.notes);
    let threads: Vec<&str> = merged.cpu_threads.keys().map(String::as_str).collect();
    assert_eq!(threads, ["a:1:tradewind", "b:2:tradewind"]);
    assert_eq!(
        (merged.machine_cpu_utilization, merged.requests_per_second, merged.start_skew_seconds),
        (0.9, Some(100.0), Some(0.2))
    );
    let network = NetworkUsage { bytes_sent: 6, bytes_received: 10, connections: 2 };
    assert_eq!(merged.network, network);
    assert_eq!(merged.operations[&Operation::Get].failure_samples, ["a:1: is busy", "b:2: is busy"]);
    assert!(merged.is_partial(), "one of them was stopped");
    let schedule_lag = merged.schedule_lag_us.unwrap();
    assert_eq!((schedule_lag.count, schedule_lag.p50, schedule_lag.max), (2, 10, 1000));
    assert!(merge_agents(Vec::new(), Duration::ZERO).is_none());
}

#[test]
fn rate_of_an_agent_that_ended_early_is_scaled_down() {
    let requests: Vec<Request> = (0..30).map(|n| (false, 1000 + 100 * n, 1000, false)).collect();
    let [mut fast, slow] = ["fast", "slow"].map(|name| part(name, recorded(requests.iter())));
    // One agent made 30 requests in one second, the other in three.
    fast.measurement.measured_seconds = 1.0;
    fast.measurement.operations_per_second.mean *= 3.0;
    fast.measurement.operations.values_mut().for_each(|figures| figures.requests_per_second *= 3.0);
    let mut counted = [fast, slow];
    counted.iter_mut().for_each(|part| part.measurement.end_reason = EndReason::Exhausted);
    let merged = merge_agents(counted.into(), Duration::ZERO).unwrap();
    assert!(is_near(merged.operations_per_second.mean, 20.0), "{:?}", merged.operations_per_second);
    assert!(is_near(merged.agents[0].operations_per_second, 30.0), "{:?}", merged.agents);
}
