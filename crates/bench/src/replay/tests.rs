use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation as Call};

use super::objects::CHUNK_KEYS;
use super::worker::TraceRequest;
use super::*;
use crate::drive::EndReason;
use crate::drive::tests::env;
use crate::operation::Operation;
use crate::result::Measurement;
use crate::runner::{RunEvent, Runner};

fn replay_of(texts: &'static [&'static str], how: (usize, Option<f64>)) -> Replay {
    let opened = AtomicUsize::new(0);
    let open = move || {
        let n = opened.fetch_add(1, Ordering::Relaxed).min(texts.len() - 1);
        let text = format!("time,op,key,offset,length\n{}", texts[n]);
        Ok(Box::new(Cursor::new(text.into_bytes())) as Box<dyn BufRead + Send>)
    };
    Replay::from_trace("t.csv", Arc::new(open), 900, how).unwrap().unwrap()
}

fn replay(text: String, how: (usize, Option<f64>)) -> Replay {
    replay_of(Box::leak(Box::new([&*Box::leak(text.into_boxed_str())])), how)
}

async fn run(env: &BenchEnv, replay: &Replay) -> (LoadOutcome, Vec<String>) {
    let objects = Arc::new(ReplayObjects::new("run/".to_owned(), replay.trace_summary()));
    let (stop, progress) = (StopSignal::default(), Arc::default());
    assert!(replay.prepare(env, &objects, &stop, &progress).await.unwrap());
    replay.run(env, &objects, &stop, &progress).await.unwrap()
}

fn failures(outcome: &LoadOutcome) -> Vec<String> {
    outcome.record.stats_by_operation().values().flat_map(|tally| tally.failure_samples.clone()).collect()
}

/// A copy of the environment whose store injects a fault.
fn with(env: &BenchEnv, call: Call, when: FaultSchedule, fault: Fault) -> BenchEnv {
    BenchEnv {
        store: Faulty::new(env.store.clone(), FaultPlan::none().with_fault(call, when, fault)),
        ..env.clone()
    }
}

const EVERYTHING: &str = "0,get,read,,\n0,get,read,100,28\n0,get,read,100,1000\n0.01,get,read,7,\n0,head,read,,\n\
    0.01,list,,,\n0.02,put,written,,300000\n0.05,get,written,299999,10\n0.05,get,written,,\n0.06,put,written,,0\n\
    0.08,get,written,,\n0.08,get,written,0,5\n0.08,head,written,,\n0.1,delete,read,,\n0.12,get,read,,\n0.12,head,read,,\n\
    0.12,delete,read,,\n0.12,list,re,,\n0.13,put,read,,10\n0.15,get,read,5000,1\n0.16,list,,,\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_sends_and_checks_all_requests() {
    for speed in [Some(1.0), Some(4.0), None] {
        let replay = replay_of(&[EVERYTHING], (16, speed));
        let (outcome, notes) = run(&env().await, &replay).await;
        assert_eq!(failures(&outcome), [""; 0]);
        let counts =
            outcome.record.stats_by_operation().iter().map(|(kind, tally)| (*kind, tally.operations));
        assert_eq!(counts.collect::<BTreeMap<_, _>>(), replay.trace_summary().requests);
        assert_eq!((outcome.end_reason, outcome.never_started), (EndReason::Exhausted, 0));
        if speed.is_none() {
            // Two find nothing, one reads beyond an empty object, and one beyond a short one.
            assert!(
                notes.iter().any(|note| note.starts_with("4 requests correctly found nothing")),
                "{notes:?}"
            );
            assert_eq!(
                outcome.record.stats_by_operation()[&Operation::Get].bytes,
                1100 + 28 + 1000 + 1093 + 1 + 300_000
            );
        }
    }
}

#[tokio::test]
async fn replay_detects_a_stale_version() {
    for (text, size, why) in [
        (
            "0,get,k,0,1000\n0.05,put,k,,1000\n0.6,get,k,17,900\n",
            1000,
            "differs at byte 17 from every version",
        ),
        (
            "0,get,k,0,1000\n0.05,put,k,,900\n0.6,get,k,,\n",
            1000,
            "reported with 1000 bytes, a size it did not have",
        ),
        (
            "0,get,k,0,1000\n0.05,put,k,,900\n0.6,head,k,,\n",
            1000,
            "reported with 1000 bytes, a size it did not have",
        ),
        ("0,get,k,0,1000\n0.05,put,k,,900\n0.6,list,,,\n", 1000, "is listed with 1000 bytes"),
        ("0,get,k,0,1000\n0.05,delete,k,,\n0.6,list,,,\n", 1000, "is listed with 1000 bytes"),
        ("0,get,k,0,1000\n0.05,delete,k,,\n0.6,get,k,,\n", 1000, "reported with 1000 bytes"),
    ] {
        let (env, replay) = (env().await, replay(text.to_owned(), (4, Some(1.0))));
        let tampering = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let (address, context) =
                (Address::parse("bench", "run/k").unwrap(), request_context(&env).await.unwrap());
            put_object(&env, &context, &address, (ReplayObjects::content("run/k", 0, size), size), None)
                .await
                .unwrap();
        };
        let ((outcome, _), ()) = tokio::join!(run(&env, &replay), tampering);
        let failures = failures(&outcome);
        assert!(failures.len() == 1 && failures[0].contains(why), "{text}: {failures:?}");
    }
}

#[tokio::test]
async fn replay_detects_a_lost_object() {
    for (op, why) in [("get,k,,", "NoSuchKey"), ("head,k,,", "NoSuchKey"), ("list,,,", "WrongAnswer")] {
        let text = format!("0,put,k,,10\n0.5,{op}\n");
        let (env, replay) = (env().await, replay(text, (4, Some(1.0))));
        let losing = async {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let (address, context) =
                (Address::parse("bench", "run/k").unwrap(), request_context(&env).await.unwrap());
            env.store.delete(&context, &address, tradewind_core::Precondition::None).await.unwrap();
        };
        let ((outcome, _), ()) = tokio::join!(run(&env, &replay), losing);
        let kinds: Vec<String> = outcome
            .record
            .stats_by_operation()
            .values()
            .flat_map(|tally| tally.failures.keys().cloned())
            .collect();
        assert_eq!(kinds, [why], "{op}");
    }
}

#[tokio::test]
async fn failed_write_may_or_may_not_take_effect() {
    let text = "0,get,k,0,1000\n0.02,put,k,,1000\n0.04,get,k,,\n0.04,head,k,,\n0.04,list,,,\n";
    for fault in [Fault::FailBefore(Reason::Io), Fault::FailAfter(Reason::Io)] {
        // The first commit creates the initial object.
        let env = with(&env().await, Call::Commit, FaultSchedule::Nth(2), fault);
        let (outcome, _) = run(&env, &replay(text.to_owned(), (4, None))).await;
        let failed: Vec<Operation> = outcome
            .record
            .stats_by_operation()
            .iter()
            .filter(|(_, tally)| tally.failure_count() > 0)
            .map(|(kind, _)| *kind)
            .collect();
        assert_eq!(failed, [Operation::Put], "{fault:?}: {:?}", failures(&outcome));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_requests_accept_every_possible_version() {
    let line = |n: u64| match n % 5 {
        0 => format!("{},put,k,,{}\n", n as f64 / 2000.0, 1000 + n % 3),
        3 if n % 15 == 3 => format!("{},delete,k,,\n", n as f64 / 2000.0),
        4 => format!("{},list,,,\n", n as f64 / 2000.0),
        _ => format!("{},get,k,{},200\n", n as f64 / 2000.0, n % 700),
    };
    let text: String = (0..1000).map(line).collect();
    for call in [Call::Commit, Call::Get] {
        for speed in [Some(1.0), None] {
            let env = with(&env().await, call, FaultSchedule::Always, Fault::Delay(Duration::from_millis(4)));
            let (outcome, _) = run(&env, &replay(text.clone(), (32, speed))).await;
            assert_eq!(failures(&outcome), [""; 0], "{call:?} {speed:?}");
            assert_eq!(
                outcome.record.stats_by_operation().values().map(|tally| tally.operations).sum::<u64>(),
                1000
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_pace_starts_requests_on_time_at_a_slow_store() {
    let burst = |at: &str| format!("{at},put,k,,10\n").repeat(10);
    let text = burst("1000.0") + &burst("1000.45") + &burst("1001.05");
    for (speed, busy_intervals) in [(1.0, [0, 4, 10]), (2.0, [0, 2, 5])] {
        let (outcome, notes) = run(&env().await, &replay(text.clone(), (64, Some(speed)))).await;
        let late = Duration::from_micros(outcome.schedule_lag.value_at_quantile(0.99));
        for (n, interval) in outcome.series_100ms.iter().enumerate() {
            let expected = if busy_intervals.contains(&n) { 10 } else { 0 };
            let is_right = interval.operations == expected;
            assert!(
                is_right || late > Duration::from_millis(40),
                "{speed}: {n} has {interval:?}, {late:?} late"
            );
        }
        assert_eq!((outcome.schedule_lag.len(), notes.len()), (30, 0), "{notes:?}");
    }
    // With a concurrency of 1, ten requests take ten times as long as one. Latency counts from the scheduled start.
    let slow =
        with(&env().await, Call::Commit, FaultSchedule::Always, Fault::Delay(Duration::from_millis(30)));
    let (outcome, notes) = run(&slow, &replay(burst("0"), (1, Some(1.0)))).await;
    let latency = &outcome.record.stats_by_operation()[&Operation::Put].latency;
    assert!(latency.max() >= 300_000 && latency.min() < 200_000, "{} to {}", latency.min(), latency.max());
    assert!(notes[0].starts_with("9 requests waited because all 1 workers"), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_pace_keeps_the_order_of_each_key() {
    let env =
        with(&env().await, Call::Commit, FaultSchedule::Always, Fault::Delay(Duration::from_millis(20)));
    let time = async |text: String| {
        let started = Instant::now();
        let (outcome, _) = run(&env, &replay(text, (16, None))).await;
        assert_eq!(failures(&outcome), [""; 0]);
        started.elapsed()
    };
    let same = time((0..16).map(|n| format!("{},put,k,,10\n", n * 1000)).collect()).await;
    let others = time((0..16).map(|n| format!("{},put,{n},,10\n", n * 1000)).collect()).await;
    assert!(same >= Duration::from_millis(320) && others < same, "{same:?} and {others:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_replay_returns_what_was_measured() {
    for speed in [Some(1.0), None] {
        let text: String = (0..6000).map(|n| format!("{},put,k,,10\n", n as f64 / 100.0)).collect();
        let slow =
            with(&env().await, Call::Commit, FaultSchedule::Always, Fault::Delay(Duration::from_millis(5)));
        let replay = replay(text, (4, speed));
        let objects = Arc::new(ReplayObjects::new("run/".to_owned(), replay.trace_summary()));
        let (stop, started) = (StopSignal::default(), Instant::now());
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.trigger();
        };
        let progress = Arc::default();
        let (driven, ()) = tokio::join!(replay.run(&slow, &objects, &stop, &progress), stopping);
        let (outcome, _) = driven.unwrap();
        assert_eq!((outcome.end_reason, outcome.never_started), (EndReason::Stopped, 0));
        assert!(outcome.record.stats_by_operation()[&Operation::Put].operations > 0);
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn stop_during_preparation_does_not_wait_for_a_hung_store() {
    let open = env().await;
    let hanging = with(&open, Call::Commit, FaultSchedule::From(4), Fault::Hang);
    let replay = replay((0..100).map(|n| format!("0,get,{n},,\n")).collect(), (4, None));
    let mut runner = Runner::new(&hanging, "there/", 1, (2, false));
    let (stop, started) = (StopSignal::default(), tokio::time::Instant::now());
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.trigger();
    };
    let replayed = tokio::time::timeout(20 * STOPPED_DRAIN_TIMEOUT, runner.replay(&replay, 1, &stop, |_| ()));
    let (replayed, ()) = tokio::join!(replayed, stopping);
    assert!(!replayed.unwrap().unwrap());
    assert!(started.elapsed() < 2 * STOPPED_DRAIN_TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(runner.clean().await.unwrap(), 3, "those that were created");
    assert_eq!(Runner::new(&open, "", 1, (2, false)).clean().await.unwrap(), 0, "nothing is left");
}

#[tokio::test]
async fn prepare_retries_failed_creations() {
    let failing = async |times: u64| {
        let open = env().await;
        let plan = (1..=times).fold(FaultPlan::none(), |plan, n| {
            plan.with_fault(Call::Commit, FaultSchedule::Nth(n), Fault::FailBefore(Reason::Io))
        });
        let env = BenchEnv { store: Faulty::new(open.store.clone(), plan), ..open };
        let replay = replay("0,get,k,,\n".to_owned(), (4, None));
        let objects = Arc::new(ReplayObjects::new("run/".to_owned(), replay.trace_summary()));
        let progress = Arc::default();
        (
            replay.prepare(&env, &objects, &StopSignal::default(), &progress).await,
            progress.snapshot().0,
            objects,
        )
    };
    for times in 0..u64::from(MAX_PREPARE_ATTEMPTS) {
        let (made, count, objects) = failing(times).await;
        assert!(made.unwrap() && count == 1);
        let removed = objects.begin_write(0, None);
        objects.end_write(0, removed);
        // A failed attempt may still take effect.
        let possible = objects.possible_versions(0, objects.begin_read(0));
        assert_eq!(possible.len(), if times == 0 { 1 } else { 2 }, "{possible:?}");
    }
    let (failed, count, _) = failing(MAX_PREPARE_ATTEMPTS.into()).await;
    let error = failed.unwrap_err().to_string();
    assert!(
        error.contains("cannot create one of the 1 objects that the trace reads") && count == 0,
        "{error}"
    );
}

/// A single worker and its shared state.
async fn single_worker(env: &BenchEnv, replay: &Replay) -> (ReplayWorker, Arc<LoadState<TraceRequest>>) {
    let objects = Arc::new(ReplayObjects::new("run/".to_owned(), replay.trace_summary()));
    let shared = Arc::new(LoadState::new(env.clock.clone(), (1, None), Arc::default(), objects.clone()));
    shared.open_window();
    let player = ReplayWorker {
        env: env.clone(),
        objects,
        shared: shared.clone(),
        ordering: None,
        context: request_context(env).await.unwrap(),
        counts: ReplayCounts::default(),
        samples: None,
    };
    (player, shared)
}

#[tokio::test]
async fn checking_a_long_listing_yields_to_other_tasks() {
    const KEYS: usize = 20_000;
    let keys = replay((0..KEYS).map(|n| format!("0,put,{n},,1\n")).collect(), (1, Some(1.0)));
    // The second time, requests are aborted during the check. This one was answered before.
    for aborted_after in [usize::MAX, 5] {
        let (player, shared) = single_worker(&env().await, &keys).await;
        shared.release(shared.now(), TraceRequest::List { prefix: "".into() });
        shared.finish_releases();
        let (yields, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let others = async {
            while !is_over.load(Ordering::Relaxed) {
                if yields.fetch_add(1, Ordering::Relaxed) == aborted_after {
                    shared.cancel_all();
                }
                tokio::task::yield_now().await;
            }
        };
        let judging = async {
            let (record, _) = player.run().await;
            is_over.store(true, Ordering::Relaxed);
            record
        };
        let (record, ()) = tokio::join!(judging, others);
        let (tally, yields) = (&record.stats_by_operation()[&Operation::List], yields.into_inner());
        assert_eq!((tally.operations, tally.failure_count(), tally.truncated), (1, 0, 0));
        assert!(yields >= (KEYS / CHUNK_KEYS).min(aborted_after), "{yields}");
    }
}

#[tokio::test]
async fn worker_moves_finished_intervals_to_the_timeline() {
    let (player, shared) =
        single_worker(&env().await, &replay("0,put,k,,1\n".to_owned(), (1, Some(1.0)))).await;
    let asking = async {
        for _ in 0..2 {
            shared.release(shared.now(), TraceRequest::Put { object: 0, size: 1 });
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        shared.finish_releases();
    };
    let ((mut record, _), ()) = tokio::join!(player.run(), asking);
    let counted =
        record.series(Duration::from_secs(1)).iter().map(|interval| interval.operations).sum::<u64>();
    assert_eq!(counted, 0);
    record.add(&shared.timeline.take());
    assert_eq!(record.stats_by_operation()[&Operation::Put].seconds[0].operations, 1);
}

#[tokio::test]
async fn drive_fails_if_the_trace_changed_between_passes() {
    for (second, why) in [
        ("0,put,a,,1\n", "it has 1 requests, the first pass found 2"),
        ("0,put,a,,1\n0,put,b,,1\n", "line 3 is new"),
    ] {
        for speed in [Some(1.0), None] {
            let replay = replay_of(Box::leak(Box::new(["0,put,a,,1\n0,get,a,,\n", second])), (2, speed));
            let objects = Arc::new(ReplayObjects::new("run/".to_owned(), replay.trace_summary()));
            let driven = replay.run(&env().await, &objects, &StopSignal::default(), &Arc::default()).await;
            let error = driven.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

#[tokio::test]
async fn each_round_starts_fresh_and_leaves_nothing() {
    let (env, replay) = (env().await, replay_of(&[EVERYTHING], (8, Some(10.0))));
    let mut runner = Runner::new(&env, "there/", 1, (2, false));
    let (mut measurements, stop) = (Vec::<Measurement>::new(), StopSignal::default());
    let all = runner.replay(&replay, 2, &stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    assert!(all.await.unwrap());
    assert!(
        measurements.iter().all(|measurement| measurement.failure_count() == 0 && !measurement.is_partial()),
        "{measurements:?}"
    );
    let json = serde_json::to_string(&measurements[1]).unwrap();
    assert_eq!(serde_json::from_str::<Measurement>(&json).unwrap().name(), "t.csv x 8 at 10x trace pace");
    assert_eq!(
        (measurements[0].round, measurements[1].round, measurements[1].trace.as_ref().unwrap().requests),
        (1, 2, 21)
    );
    assert!(
        measurements[0].requests_per_second.is_some_and(|rate| (rate - 21.0 / 0.016).abs() < 1.0)
            && measurements[0].schedule_lag_us.is_some()
    );
    assert_eq!(runner.clean().await.unwrap(), 2);
    assert_eq!(
        Runner::new(&env, "", 1, (2, false)).clean().await.unwrap(),
        0,
        "nothing was created elsewhere"
    );
}
