use hdrhistogram::Histogram;
use proptest::prelude::*;
use tradewind_core::Timestamp;
use tradewind_core::traffic::TrafficCounts;

use super::*;
use crate::drive::Outcome;
use crate::load::{Load, Pace, Until};
use crate::record::{Record, Timing, Window, histogram, record};
use crate::survey::Step;
use crate::usage::Usage;

const TIME: Duration = Duration::from_secs(3);

fn step() -> Step {
    let load = Load {
        mix: "get=1,put=1".parse().unwrap(),
        parallel: 4,
        pace: Pace::Closed,
        until: Until { requests: None, time: TIME, stable: None },
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    };
    Step { load, sizes: "1KiB".parse().unwrap(), objects: 9, repeat: 1 }
}

fn outcome(record: Record, lag: Histogram<u64>) -> Outcome {
    let tenths = record.tenths(TIME);
    Outcome {
        began: Timestamp::from_millis(7),
        time: TIME,
        record,
        usage: Usage::default(),
        carried: TrafficCounts { sent_bytes: 3, received_bytes: 5, connections: 1 },
        lag,
        tenths,
        repeats: 1,
        abandoned: 2,
        refused: 0,
        waiting: 0,
        ending: Ending::Time,
    }
}

fn part(agent: &str, record: Record) -> Part {
    let outcome = outcome(record, histogram());
    Part { agent: agent.to_owned(), cores: 2, cell: Cell::of(&step(), Vec::new(), &outcome, 2) }
}

/// A request: true for a put, start in milliseconds, duration in microseconds, and true if it failed.
type Request = (bool, u64, u64, bool);

fn recorded<'a>(requests: impl Iterator<Item = &'a Request>) -> Record {
    let mut all = Record::default();
    let window = Window { begin: Duration::from_secs(1), end: Duration::from_secs(1) + TIME };
    for (is_put, begun, took, fails) in requests {
        let operation = if *is_put { Operation::Put } else { Operation::Get };
        let (begun, took) = (Duration::from_millis(*begun), Duration::from_micros(*took));
        let ended = begun + took;
        if *fails {
            all.failure(window, operation, ended, "busy", "is busy");
        } else {
            let timing = Timing { intended: begun, begun, first: begun + took / 2, ended };
            all.success(window, operation, timing, 1000);
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
        let whole = part("all", recorded(requests.iter())).cell;
        let record_of = |machine: usize| recorded(requests.iter().skip(machine).step_by(machines));
        let parts = (0..machines).map(|machine| part(&machine.to_string(), record_of(machine))).collect();
        let merged = merge(parts, Duration::ZERO).unwrap();
        prop_assert_eq!(merged.parallel, 4 * machines);
        prop_assert_eq!(merged.agents.len(), machines);
        prop_assert_eq!(merged.operations.len(), whole.operations.len());
        prop_assert!(is_near(merged.operations_per_second.mean, whole.operations_per_second.mean));
        prop_assert!(is_near(merged.bytes_per_second.mean, whole.bytes_per_second.mean));
        prop_assert_eq!(merged.tenths.len(), whole.tenths.len());
        for (mine, others) in merged.tenths.iter().zip(&whole.tenths) {
            prop_assert!((mine.0 - others.0).abs() < 0.01 && (mine.1 - others.1).abs() < 0.01);
        }
        let within = |cell: &Cell| cell.operations_per_second.within.unwrap_or(-1.0);
        prop_assert!((within(&merged) - within(&whole)).abs() < 0.1, "{} {}", within(&merged), within(&whole));
        for (operation, one) in &whole.operations {
            let all = &merged.operations[operation];
            prop_assert_eq!((all.operations, all.bytes, all.cut), (one.operations, one.bytes, one.cut));
            prop_assert_eq!(&all.failures, &one.failures);
            prop_assert_eq!(&all.latency_us, &one.latency_us);
            prop_assert_eq!(&all.first_byte_us, &one.first_byte_us);
            prop_assert_eq!(all.samples.len(), one.samples.len());
            prop_assert_eq!(all.seconds.len(), one.seconds.len());
            for (mine, others) in all.seconds.iter().zip(&one.seconds) {
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
        part.cell.notes = vec!["slow".to_owned()];
        part.cell.cpu_threads = [("tradewind".to_owned(), 0.5)].into();
        part.cell.machine_busy = [0.9, 0.2][n];
        part.cell.rate = Some(50.0);
        part.cell.lag_us = Some(Latency::of(&{
            let mut lag = histogram();
            record(&mut lag, 10 + 990 * n as u64, 1);
            lag
        }));
    }
    parts[1].cell.ending = Ending::Stopped;
    let merged = merge(parts.into(), Duration::from_millis(200)).unwrap();
    assert_eq!(merged.notes[..2], ["a:1: slow", "b:2: slow"]);
    assert!(merged.notes[2].contains("started 200.0 ms apart"), "{:?}", merged.notes);
    let threads: Vec<&str> = merged.cpu_threads.keys().map(String::as_str).collect();
    assert_eq!(threads, ["a:1:tradewind", "b:2:tradewind"]);
    assert_eq!((merged.machine_busy, merged.rate, merged.apart), (0.9, Some(100.0), Some(0.2)));
    assert_eq!(merged.carried, (6, 10, 2));
    assert_eq!(merged.operations[&Operation::Get].samples, ["a:1: is busy", "b:2: is busy"]);
    assert!(merged.is_partial(), "one of them was stopped");
    let lag = merged.lag_us.unwrap();
    assert_eq!((lag.count, lag.p50, lag.max), (2, 10, 1000));
    assert!(merge(Vec::new(), Duration::ZERO).is_none());
}

#[test]
fn rate_of_an_agent_that_ended_early_is_scaled_down() {
    let requests: Vec<Request> = (0..30).map(|n| (false, 1000 + 100 * n, 1000, false)).collect();
    let [mut fast, slow] = ["fast", "slow"].map(|name| part(name, recorded(requests.iter())));
    // One agent made 30 requests in one second, the other in three.
    fast.cell.seconds = 1.0;
    fast.cell.operations_per_second.mean *= 3.0;
    fast.cell.operations.values_mut().for_each(|figures| figures.per_second *= 3.0);
    let mut counted = [fast, slow];
    counted.iter_mut().for_each(|part| part.cell.ending = Ending::Exhausted);
    let merged = merge(counted.into(), Duration::ZERO).unwrap();
    assert!(is_near(merged.operations_per_second.mean, 20.0), "{:?}", merged.operations_per_second);
    assert!(is_near(merged.agents[0].operations_per_second, 30.0), "{:?}", merged.agents);
}
