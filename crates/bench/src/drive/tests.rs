mod slow_link;

use tradewind_core::error::Reason;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as Call};
use tradewind_core::{Address, SystemClock};

use super::request::{Completion, execute_recorded};
use super::*;
use crate::arrivals::Spacing;
use crate::load::StopCondition;
use crate::operation::Operation;
use crate::workspace::create_source_files;

pub(crate) async fn env() -> BenchEnv {
    let clock = SystemClock::shared();
    let store: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
    let bucket = BucketName::new("bench").unwrap();
    let (content, budget, traffic) = (Arc::new(Content::new()), Budget::new(64 << 20), Arc::default());
    let env = BenchEnv {
        store,
        bucket,
        content,
        clock,
        budget,
        traffic,
        files: None,
        worker_pool: WorkerPool::default(),
    };
    env.store.create_bucket(&context(&env).await, &env.bucket).await.unwrap();
    env
}

async fn context(env: &BenchEnv) -> Context {
    let window = env.budget.admit(0, &Deadline::none(env.clock.clone())).await.unwrap();
    Context::new(Deadline::none(env.clock.clone()), window)
}

fn load(mix: &str, max_requests: Option<u64>, duration: Duration) -> Load {
    Load {
        mix: mix.parse().unwrap(),
        concurrency: 4,
        arrival_mode: ArrivalMode::Closed,
        stop_condition: StopCondition { max_requests, duration, max_ci_fraction: None },
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    }
}

const LONG: Duration = Duration::from_secs(60);

fn object_set(sizes: &str) -> Arc<ObjectSet> {
    Arc::new(ObjectSet::new("run/".to_owned(), sizes.parse().unwrap()))
}

async fn run(env: &BenchEnv, object_set: &Arc<ObjectSet>, load: &Load) -> LoadOutcome {
    run_load(env, object_set, load, &StopSignal::default(), &Arc::default()).await.unwrap()
}

#[tokio::test]
async fn load_writes_reads_and_deletes_its_objects() {
    let (env, object_set) = (env().await, object_set("0B-600KiB"));
    let put = run(&env, &object_set, &load("put", Some(40), LONG)).await;
    let tally = &put.record.stats_by_operation()[&Operation::Put];
    assert_eq!(
        (tally.operations, tally.failure_count(), put.end_reason, object_set.len()),
        (40, 0, EndReason::Exhausted, 40)
    );
    assert_eq!(tally.bytes, (0..40).map(|number| object_set.size(number)).sum::<u64>());
    assert_eq!(tally.latency.len(), 40);
    let read = run(&env, &object_set, &load("get=6,head=2,list=1", Some(90), LONG)).await;
    let ended: u64 = read.record.stats_by_operation().values().map(|tally| tally.operations).sum();
    assert_eq!((ended, read.record.stats_by_operation().len()), (90, 3));
    assert!(
        read.record.stats_by_operation().values().all(|tally| tally.failure_count() == 0),
        "{:?}",
        read.record
    );
    assert!(read.repeated_reads > 0, "about 80 reads of 40 objects");
    let removed = run(&env, &object_set, &load("delete", Some(40), LONG)).await;
    assert_eq!(
        removed.record.stats_by_operation()[&Operation::Delete].operations,
        40,
        "every request had an object"
    );
    assert!(removed.duration < Duration::from_secs(1), "{:?}", removed.duration);
    assert_eq!((removed.end_reason, object_set.len()), (EndReason::Exhausted, 0));
}

#[tokio::test]
async fn get_of_wrong_content_counts_as_failure() {
    let (env, object_set) = (env().await, object_set("10KiB"));
    run(&env, &object_set, &load("put", Some(8), LONG)).await;
    // Object 5 gets the content of object 1, which has the same size.
    let address = |number| Address::parse("bench", &object_set.key(number)).unwrap();
    let context = context(&env).await;
    let found = env.store.get(&context, &address(1), GetRequest::default()).await.unwrap();
    let mut staged = env.store.stage(&context, &address(5), StageRequest::default()).await.unwrap();
    staged.write(found.body.collect().await.unwrap()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let read = run(&env, &object_set, &Load { concurrency: 1, ..load("get", Some(8), LONG) }).await;
    let tally = &read.record.stats_by_operation()[&Operation::Get];
    assert_eq!((tally.operations, tally.failures["WrongAnswer"]), (7, 1));
    assert!(
        tally.failure_samples[0].contains("differs from what was written at byte"),
        "{}",
        tally.failure_samples[0]
    );
}

#[tokio::test]
async fn listing_with_a_missing_object_counts_as_failure() {
    let (env, object_set) = (env().await, object_set("1KiB"));
    run(&env, &object_set, &load("put", Some(8), LONG)).await;
    let whole = run(&env, &object_set, &load("list", Some(50), LONG)).await;
    assert_eq!(whole.record.stats_by_operation()[&Operation::List].failure_count(), 0);
    let address = Address::parse("bench", &object_set.key(7)).unwrap();
    let nothing = tradewind_core::condition::Precondition::None;
    env.store.delete(&context(&env).await, &address, nothing).await.unwrap();
    let short = run(&env, &object_set, &load("list", Some(50), LONG)).await;
    let tally = &short.record.stats_by_operation()[&Operation::List];
    assert!(tally.failures["WrongAnswer"] > 20, "{:?}", tally.failures);
    assert!(tally.failure_samples[0].contains("some are missing"), "{}", tally.failure_samples[0]);
}

#[tokio::test]
async fn open_loop_starts_requests_at_the_requested_rate() {
    let (env, object_set) = (env().await, object_set("1KiB"));
    let arrival_mode = ArrivalMode::Open { requests_per_second: 500.0, spacing: Spacing::Poisson };
    let open = Load { arrival_mode, ..load("put", None, Duration::from_millis(600)) };
    let outcome = run(&env, &object_set, &open).await;
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert!((200..400).contains(&tally.latency.len()), "{}", tally.latency.len());
    assert_eq!((outcome.end_reason, outcome.never_started), (EndReason::TimeLimit, 0));
    assert!(outcome.schedule_lag.len() >= tally.latency.len());
}

#[tokio::test]
async fn stopped_load_keeps_its_measurements() {
    let (env, object_set) = (env().await, object_set("1KiB"));
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stopping.trigger();
    });
    let outcome =
        run_load(&env, &object_set, &load("put", None, LONG), &stop, &Arc::default()).await.unwrap();
    assert_eq!(outcome.end_reason, EndReason::Stopped);
    assert!(outcome.duration < LONG && outcome.record.stats_by_operation()[&Operation::Put].operations > 0);
}

#[tokio::test]
async fn failures_during_warm_up_are_reported() {
    let (env, object_set) = (faulty_env(Fault::FailBefore(Reason::Io)).await, object_set("1KiB"));
    // It is stopped during the warm-up, so nothing is in the measurement window.
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stopping.trigger();
    });
    let load = Load { warm_up: LONG, ..load("put", None, LONG) };
    let outcome = run_load(&env, &object_set, &load, &stop, &Arc::default()).await.unwrap();
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert!(tally.failures["Io"] > 0 && tally.operations == 0, "{tally:?}");
}

#[tokio::test]
async fn open_loop_releases_exactly_the_request_limit() {
    let (env, object_set) = (env().await, object_set("1KiB"));
    let arrival_mode = ArrivalMode::Open { requests_per_second: 20_000.0, spacing: Spacing::Fixed };
    let outcome = run(&env, &object_set, &Load { arrival_mode, ..load("put", Some(100), LONG) }).await;
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert_eq!(
        (tally.latency.len(), outcome.never_started, outcome.end_reason),
        (100, 0, EndReason::Exhausted)
    );
}

#[tokio::test]
async fn uploads_read_files_and_downloads_write_files() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("own");
    let env = BenchEnv {
        files: Some(Arc::new(crate::files::LocalFiles::new(inside.clone()).unwrap())),
        ..env().await
    };
    let object_set = object_set("1B-600KiB");
    create_source_files(&env, &object_set, 5, &StopSignal::default()).await.unwrap();
    let alone = |mix, requests| Load { concurrency: 1, ..load(mix, Some(requests), LONG) };
    // Uploads must read the files: corrupted bytes have to be detected.
    let corrupted = std::fs::read_dir(&inside).unwrap().map(|file| file.unwrap().path()).max().unwrap();
    let put = run(&env, &object_set, &alone("put", 12)).await;
    assert_eq!(put.record.stats_by_operation()[&Operation::Put].failure_count(), 0, "{:?}", put.record);
    let get = run(&env, &object_set, &alone("get", 12)).await;
    assert_eq!(get.record.stats_by_operation()[&Operation::Get].failure_count(), 0, "{:?}", get.record);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 5 + 12);
    std::fs::write(&corrupted, vec![1; std::fs::metadata(&corrupted).unwrap().len() as usize]).unwrap();
    run(&env, &object_set, &alone("put", 5)).await;
    let get = run(&env, &object_set, &alone("get", 17)).await;
    assert_eq!(
        get.record.stats_by_operation()[&Operation::Get].failures["WrongAnswer"],
        1,
        "{:?}",
        get.record
    );
    std::fs::remove_file(&corrupted).unwrap();
    let put = run(&env, &object_set, &alone("put", 5)).await;
    let tally = &put.record.stats_by_operation()[&Operation::Put];
    assert_eq!(tally.failures["File"], 1, "{tally:?}");
    assert!(tally.failure_samples[0].contains("cannot open"), "{tally:?}");
    drop((env, object_set));
    assert!(!inside.exists());
}

/// A benchmark environment whose store injects `fault` into every commit.
async fn faulty_env(fault: Fault) -> BenchEnv {
    let env = env().await;
    let plan = FaultPlan::none().with_fault(Call::Commit, FaultSchedule::Always, fault);
    BenchEnv { store: Faulty::new(env.store.clone(), plan), ..env }
}

#[tokio::test(start_paused = true)]
async fn request_limit_without_time_limit_waits_for_slow_requests() {
    let (env, object_set) = (faulty_env(Fault::Delay(3 * DRAIN_TIMEOUT)).await, object_set("1KiB"));
    let outcome = run(&env, &object_set, &load("put", Some(4), Duration::MAX / 4)).await;
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert_eq!((tally.operations, tally.failure_count(), object_set.len()), (4, 0, 4));
    assert_eq!(outcome.end_reason, EndReason::Exhausted);
}

#[tokio::test]
async fn open_loop_does_not_pause_after_failures() {
    let (env, object_set) = (faulty_env(Fault::FailBefore(Reason::Io)).await, object_set("1KiB"));
    let arrival_mode = ArrivalMode::Open { requests_per_second: 1000.0, spacing: Spacing::Fixed };
    let failed = async |arrival_mode| {
        let load = Load { arrival_mode, concurrency: 1, ..load("put", None, Duration::from_millis(300)) };
        run(&env, &object_set, &load).await.record.stats_by_operation()[&Operation::Put].failure_count()
    };
    // A pause of 10 ms after each failure limits the closed loop to 30.
    let closed = failed(ArrivalMode::Closed).await;
    assert!((1..=30).contains(&closed), "{closed}");
    let open = failed(arrival_mode).await;
    assert!(open > 100, "{open} of 300");
}

#[tokio::test(start_paused = true)]
async fn request_limit_with_time_limit_ends_at_the_time_limit() {
    let (env, object_set) = (faulty_env(Fault::Delay(LONG + DRAIN_TIMEOUT / 2)).await, object_set("1KiB"));
    let late = run(&env, &object_set, &load("put", Some(4), LONG)).await;
    assert_eq!(
        (late.record.stats_by_operation()[&Operation::Put].failure_count(), late.end_reason),
        (0, EndReason::TimeLimit)
    );
    let (env, started) = (faulty_env(Fault::Hang).await, tokio::time::Instant::now());
    let lost = run(&env, &object_set, &load("put", Some(4), LONG)).await;
    assert_eq!(lost.record.stats_by_operation()[&Operation::Put].failures["Unanswered"], 4);
    assert!(started.elapsed() < LONG + 2 * DRAIN_TIMEOUT, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unanswered_requests_are_cancelled_and_counted() {
    let (env, object_set) = (faulty_env(Fault::Hang).await, object_set("1KiB"));
    let outcome = run(&env, &object_set, &load("put", None, Duration::from_millis(50))).await;
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert_eq!(
        (tally.operations, tally.failures["Unanswered"], outcome.end_reason),
        (0, 4, EndReason::TimeLimit)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_a_hanging_store() {
    let (env, object_set) = (faulty_env(Fault::Hang).await, object_set("1KiB"));
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stopping.trigger();
    });
    let started = tokio::time::Instant::now();
    let outcome =
        run_load(&env, &object_set, &load("put", Some(4), LONG), &stop, &Arc::default()).await.unwrap();
    assert_eq!(outcome.record.stats_by_operation()[&Operation::Put].failures["Unanswered"], 4);
    assert!(started.elapsed() < 2 * STOPPED_DRAIN_TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(outcome.end_reason, EndReason::Stopped);
}

#[tokio::test]
async fn verification_time_is_not_part_of_the_latency() {
    let (env, object_set) = (env().await, object_set("1KiB"));
    let shared: LoadState<()> = LoadState::new(env.clock.clone(), (1, None), Arc::default(), object_set);
    let (begin, mut record) = (shared.open_window(), shared.new_record());
    let request = async {
        let answered = Completion::without_body(shared.now());
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(answered)
    };
    let finished = execute_recorded(&shared, &mut record, (Operation::List, begin), request).await;
    assert!(shared.now() - finished.ended >= Duration::from_millis(300), "{finished:?}");
    let latency = record.stats_by_operation()[&Operation::List].latency.max();
    assert!(Duration::from_micros(latency) <= finished.ended - begin + Duration::from_millis(1), "{latency}");
    assert_eq!(shared.close_window_at_last_completion(), finished.ended);
}

#[tokio::test]
async fn outcome_covers_every_second_of_the_load() {
    let (env, object_set) = (faulty_env(Fault::Delay(Duration::from_millis(5))).await, object_set("1KiB"));
    let outcome = run(&env, &object_set, &load("put", None, Duration::from_millis(1400))).await;
    let tally = &outcome.record.stats_by_operation()[&Operation::Put];
    assert!(tally.seconds.len() >= 2 && tally.seconds[0].operations > 0, "{:?}", tally.seconds);
    assert_eq!(tally.seconds.iter().map(|second| second.operations).sum::<u64>(), tally.operations);
    let series: u64 = outcome.series_100ms[..10].iter().map(|interval| interval.operations).sum();
    assert_eq!(series, tally.seconds[0].operations);
}

#[tokio::test]
async fn workers_share_one_timeline() {
    let (env, object_set) = (faulty_env(Fault::Delay(Duration::from_millis(5))).await, object_set("1KiB"));
    let load = load("put", None, Duration::from_millis(1400));
    let shared = Arc::new(LoadState::new(
        env.clock.clone(),
        (load.concurrency, None),
        Arc::default(),
        object_set.clone(),
    ));
    let mut workers = Vec::new();
    for share in object_set.distribute(load.concurrency, load.seed) {
        let worker =
            Worker::new(env.clone(), object_set.clone(), share, (shared.clone(), false), context(&env).await);
        workers.push(worker.run(load.mix.clone(), load.seed, None).boxed());
    }
    let (starts, stop) = (None::<std::iter::Empty<(Duration, ())>>, StopSignal::default());
    let subject = |_, ()| RequestSubject { operation: Operation::Put, key: SubjectKey::Unknown, size: None };
    let driven = run_workers(&env, &shared, (starts, workers), &load, &stop, subject);
    let taking = async {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        shared.timeline.take()
    };
    let (driven, taken) = tokio::join!(driven, taking);
    let (left, taken) = (&driven.unwrap().0.record, &taken);
    let seconds = |record: &LoadRecord| record.stats_by_operation()[&Operation::Put].seconds.clone();
    assert!(seconds(taken)[0].operations > 0 && seconds(left)[0].operations == 0, "{left:?}");
    assert!(seconds(left)[1].operations > 0, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn full_queue_ends_the_load_as_overrun() {
    const QUEUE_CAPACITY: usize = 1000;
    let env = faulty_env(Fault::Hang).await;
    for warm_up in [Duration::ZERO, LONG] {
        let object_set = object_set("1KiB");
        let arrival_mode = ArrivalMode::Open { requests_per_second: 1e5, spacing: Spacing::Poisson };
        let load = Load { arrival_mode, warm_up, ..load("put", None, LONG) };
        let shared =
            LoadState::new(env.clock.clone(), (load.concurrency, None), Arc::default(), object_set.clone());
        let shared = Arc::new(shared.with_queue_capacity(QUEUE_CAPACITY));
        let shares = object_set.distribute(load.concurrency, load.seed).into_iter();
        let mut workers = Vec::new();
        for objects in shares {
            let share = (shared.clone(), true);
            let worker = Worker::new(env.clone(), object_set.clone(), objects, share, context(&env).await);
            workers.push(worker.run(load.mix.clone(), load.seed, None).boxed());
        }
        let starts = Arrivals::new(Spacing::Poisson, 1e5, load.seed).map(|start| (start, ()));
        let (work, stop) = ((Some(starts), workers), StopSignal::default());
        let subject =
            |_, ()| RequestSubject { operation: Operation::Put, key: SubjectKey::Unknown, size: None };
        let driven = run_workers(&env, &shared, work, &load, &stop, subject);
        let (outcome, _) = driven.await.unwrap();
        assert_eq!((outcome.end_reason, outcome.queued), (EndReason::Overrun, QUEUE_CAPACITY as u64));
        assert!(outcome.dropped > 0, "{outcome:?}");
        assert_eq!(outcome.never_started, outcome.dropped + QUEUE_CAPACITY as u64);
        let tally = &outcome.record.stats_by_operation()[&Operation::Put];
        // Requests in flight were awaited; queued ones are not reported as failures of the store.
        assert_eq!((tally.operations, tally.failures["Unanswered"]), (0, 4));
        let expected = if warm_up.is_zero() { 4 + QUEUE_CAPACITY as u64 } else { 0 };
        assert_eq!(tally.truncated, expected, "queued requests of the window are in the latencies");
    }
}
