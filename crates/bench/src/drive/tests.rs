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

pub(crate) async fn bed() -> BenchEnv {
    let clock = SystemClock::shared();
    let store: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
    let bucket = BucketName::new("bench").unwrap();
    let (content, budget, traffic) = (Arc::new(Content::new()), Budget::new(64 << 20), Arc::default());
    let bed = BenchEnv {
        store,
        bucket,
        content,
        clock,
        budget,
        traffic,
        files: None,
        worker_pool: WorkerPool::default(),
    };
    bed.store.create_bucket(&context(&bed).await, &bed.bucket).await.unwrap();
    bed
}

async fn context(bed: &BenchEnv) -> Context {
    let window = bed.budget.admit(0, &Deadline::none(bed.clock.clone())).await.unwrap();
    Context::new(Deadline::none(bed.clock.clone()), window)
}

fn load(mix: &str, requests: Option<u64>, time: Duration) -> Load {
    Load {
        mix: mix.parse().unwrap(),
        concurrency: 4,
        arrival_mode: ArrivalMode::Closed,
        stop_condition: StopCondition { max_requests: requests, duration: time, max_ci_fraction: None },
        warm_up: Duration::ZERO,
        seed: 1,
        phase: 0.0,
    }
}

const LONG: Duration = Duration::from_secs(60);

fn stock(sizes: &str) -> Arc<ObjectSet> {
    Arc::new(ObjectSet::new("run/".to_owned(), sizes.parse().unwrap()))
}

async fn run(bed: &BenchEnv, stock: &Arc<ObjectSet>, load: &Load) -> LoadOutcome {
    run_load(bed, stock, load, &StopSignal::default(), &Arc::default()).await.unwrap()
}

#[tokio::test]
async fn load_writes_reads_and_deletes_its_objects() {
    let (bed, stock) = (bed().await, stock("0B-600KiB"));
    let put = run(&bed, &stock, &load("put", Some(40), LONG)).await;
    let tally = &put.record.tallies()[&Operation::Put];
    assert_eq!(
        (tally.operations, tally.failure_count(), put.ending, stock.len()),
        (40, 0, EndReason::Exhausted, 40)
    );
    assert_eq!(tally.bytes, (0..40).map(|number| stock.size(number)).sum::<u64>());
    assert_eq!(tally.latency.len(), 40);
    let read = run(&bed, &stock, &load("get=6,head=2,list=1", Some(90), LONG)).await;
    let ended: u64 = read.record.tallies().values().map(|tally| tally.operations).sum();
    assert_eq!((ended, read.record.tallies().len()), (90, 3));
    assert!(read.record.tallies().values().all(|tally| tally.failure_count() == 0), "{:?}", read.record);
    assert!(read.repeated_reads > 0, "about 80 reads of 40 objects");
    let removed = run(&bed, &stock, &load("delete", Some(40), LONG)).await;
    assert_eq!(removed.record.tallies()[&Operation::Delete].operations, 40, "every request had an object");
    assert!(removed.duration < Duration::from_secs(1), "{:?}", removed.duration);
    assert_eq!((removed.ending, stock.len()), (EndReason::Exhausted, 0));
}

#[tokio::test]
async fn get_of_wrong_content_counts_as_failure() {
    let (bed, stock) = (bed().await, stock("10KiB"));
    run(&bed, &stock, &load("put", Some(8), LONG)).await;
    // Object 5 gets the content of object 1, which has the same size.
    let address = |number| Address::parse("bench", &stock.key(number)).unwrap();
    let context = context(&bed).await;
    let found = bed.store.get(&context, &address(1), GetRequest::default()).await.unwrap();
    let mut staged = bed.store.stage(&context, &address(5), StageRequest::default()).await.unwrap();
    staged.write(found.body.collect().await.unwrap()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let read = run(&bed, &stock, &Load { concurrency: 1, ..load("get", Some(8), LONG) }).await;
    let tally = &read.record.tallies()[&Operation::Get];
    assert_eq!((tally.operations, tally.failures["WrongAnswer"]), (7, 1));
    assert!(
        tally.failure_samples[0].contains("differs from what was written at byte"),
        "{}",
        tally.failure_samples[0]
    );
}

#[tokio::test]
async fn listing_with_a_missing_object_counts_as_failure() {
    let (bed, stock) = (bed().await, stock("1KiB"));
    run(&bed, &stock, &load("put", Some(8), LONG)).await;
    let whole = run(&bed, &stock, &load("list", Some(50), LONG)).await;
    assert_eq!(whole.record.tallies()[&Operation::List].failure_count(), 0);
    let address = Address::parse("bench", &stock.key(7)).unwrap();
    let nothing = tradewind_core::condition::Precondition::None;
    bed.store.delete(&context(&bed).await, &address, nothing).await.unwrap();
    let short = run(&bed, &stock, &load("list", Some(50), LONG)).await;
    let tally = &short.record.tallies()[&Operation::List];
    assert!(tally.failures["WrongAnswer"] > 20, "{:?}", tally.failures);
    assert!(tally.failure_samples[0].contains("some are missing"), "{}", tally.failure_samples[0]);
}

#[tokio::test]
async fn open_loop_starts_requests_at_the_requested_rate() {
    let (bed, stock) = (bed().await, stock("1KiB"));
    let pace = ArrivalMode::Open { requests_per_second: 500.0, spacing: Spacing::Poisson };
    let open = Load { arrival_mode: pace, ..load("put", None, Duration::from_millis(600)) };
    let outcome = run(&bed, &stock, &open).await;
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert!((200..400).contains(&tally.latency.len()), "{}", tally.latency.len());
    assert_eq!((outcome.ending, outcome.never_started), (EndReason::TimeLimit, 0));
    assert!(outcome.schedule_lag.len() >= tally.latency.len());
}

#[tokio::test]
async fn stopped_load_keeps_its_measurements() {
    let (bed, stock) = (bed().await, stock("1KiB"));
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stopping.trigger();
    });
    let outcome = run_load(&bed, &stock, &load("put", None, LONG), &stop, &Arc::default()).await.unwrap();
    assert_eq!(outcome.ending, EndReason::Stopped);
    assert!(outcome.duration < LONG && outcome.record.tallies()[&Operation::Put].operations > 0);
}

#[tokio::test]
async fn failures_during_warm_up_are_reported() {
    let (mut bed, stock) = (bed().await, stock("1KiB"));
    bed.bucket = BucketName::new("not-there").unwrap();
    // It is stopped during the warm-up, so nothing is in the measurement window.
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stopping.trigger();
    });
    let load = Load { warm_up: LONG, ..load("put", None, LONG) };
    let outcome = run_load(&bed, &stock, &load, &stop, &Arc::default()).await.unwrap();
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert!(tally.failures["NoSuchBucket"] > 0 && tally.operations == 0, "{tally:?}");
}

#[tokio::test]
async fn open_loop_releases_exactly_the_request_limit() {
    let (bed, stock) = (bed().await, stock("1KiB"));
    let pace = ArrivalMode::Open { requests_per_second: 20_000.0, spacing: Spacing::Fixed };
    let outcome = run(&bed, &stock, &Load { arrival_mode: pace, ..load("put", Some(100), LONG) }).await;
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert_eq!((tally.latency.len(), outcome.never_started, outcome.ending), (100, 0, EndReason::Exhausted));
}

#[tokio::test]
async fn uploads_read_files_and_downloads_write_files() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("own");
    let bed = BenchEnv {
        files: Some(Arc::new(crate::files::LocalFiles::new(inside.clone()).unwrap())),
        ..bed().await
    };
    let stock = stock("1B-600KiB");
    create_source_files(&bed, &stock, 5, &StopSignal::default()).await.unwrap();
    let alone = |mix, requests| Load { concurrency: 1, ..load(mix, Some(requests), LONG) };
    // Uploads must read the files: corrupted bytes have to be detected.
    let corrupted = std::fs::read_dir(&inside).unwrap().map(|file| file.unwrap().path()).max().unwrap();
    let put = run(&bed, &stock, &alone("put", 12)).await;
    assert_eq!(put.record.tallies()[&Operation::Put].failure_count(), 0, "{:?}", put.record);
    let get = run(&bed, &stock, &alone("get", 12)).await;
    assert_eq!(get.record.tallies()[&Operation::Get].failure_count(), 0, "{:?}", get.record);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 5 + 12);
    std::fs::write(&corrupted, vec![1; std::fs::metadata(&corrupted).unwrap().len() as usize]).unwrap();
    run(&bed, &stock, &alone("put", 5)).await;
    let get = run(&bed, &stock, &alone("get", 17)).await;
    assert_eq!(get.record.tallies()[&Operation::Get].failures["WrongAnswer"], 1, "{:?}", get.record);
    std::fs::remove_file(&corrupted).unwrap();
    let put = run(&bed, &stock, &alone("put", 5)).await;
    let tally = &put.record.tallies()[&Operation::Put];
    assert_eq!(tally.failures["File"], 1, "{tally:?}");
    assert!(tally.failure_samples[0].contains("cannot open"), "{tally:?}");
    drop((bed, stock));
    assert!(!inside.exists());
}

/// A benchmark environment whose store injects `fault` into every commit.
async fn faulty_bed(fault: Fault) -> BenchEnv {
    let bed = bed().await;
    let plan = FaultPlan::none().with_fault(Call::Commit, FaultSchedule::Always, fault);
    BenchEnv { store: Faulty::new(bed.store.clone(), plan), ..bed }
}

#[tokio::test(start_paused = true)]
async fn request_limit_without_time_limit_waits_for_slow_requests() {
    let (bed, stock) = (faulty_bed(Fault::Delay(3 * DRAIN_TIMEOUT)).await, stock("1KiB"));
    let outcome = run(&bed, &stock, &load("put", Some(4), Duration::MAX / 4)).await;
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert_eq!((tally.operations, tally.failure_count(), stock.len()), (4, 0, 4));
    assert_eq!(outcome.ending, EndReason::Exhausted);
}

#[tokio::test]
async fn open_loop_does_not_pause_after_failures() {
    let (bed, stock) = (faulty_bed(Fault::FailBefore(Reason::Io)).await, stock("1KiB"));
    let pace = ArrivalMode::Open { requests_per_second: 1000.0, spacing: Spacing::Fixed };
    let failed = async |pace| {
        let load =
            Load { arrival_mode: pace, concurrency: 1, ..load("put", None, Duration::from_millis(300)) };
        run(&bed, &stock, &load).await.record.tallies()[&Operation::Put].failure_count()
    };
    // A pause of 10 ms after each failure limits the closed loop to 30.
    let closed = failed(ArrivalMode::Closed).await;
    assert!((1..=30).contains(&closed), "{closed}");
    let open = failed(pace).await;
    assert!(open > 100, "{open} of 300");
}

#[tokio::test(start_paused = true)]
async fn request_limit_with_time_limit_ends_at_the_time_limit() {
    let (bed, stock) = (faulty_bed(Fault::Delay(LONG + DRAIN_TIMEOUT / 2)).await, stock("1KiB"));
    let late = run(&bed, &stock, &load("put", Some(4), LONG)).await;
    assert_eq!(
        (late.record.tallies()[&Operation::Put].failure_count(), late.ending),
        (0, EndReason::TimeLimit)
    );
    let (bed, begun) = (faulty_bed(Fault::Hang).await, tokio::time::Instant::now());
    let lost = run(&bed, &stock, &load("put", Some(4), LONG)).await;
    assert_eq!(lost.record.tallies()[&Operation::Put].failures["Unanswered"], 4);
    assert!(begun.elapsed() < LONG + 2 * DRAIN_TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unanswered_requests_are_cancelled_and_counted() {
    let (bed, stock) = (faulty_bed(Fault::Hang).await, stock("1KiB"));
    let outcome = run(&bed, &stock, &load("put", None, Duration::from_millis(50))).await;
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert_eq!(
        (tally.operations, tally.failures["Unanswered"], outcome.ending),
        (0, 4, EndReason::TimeLimit)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_a_hanging_store() {
    let (bed, stock) = (faulty_bed(Fault::Hang).await, stock("1KiB"));
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stopping.trigger();
    });
    let begun = tokio::time::Instant::now();
    let outcome = run_load(&bed, &stock, &load("put", Some(4), LONG), &stop, &Arc::default()).await.unwrap();
    assert_eq!(outcome.record.tallies()[&Operation::Put].failures["Unanswered"], 4);
    assert!(begun.elapsed() < 2 * STOPPED_DRAIN_TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!(outcome.ending, EndReason::Stopped);
}

#[tokio::test]
async fn verification_time_is_not_part_of_the_latency() {
    let (bed, stock) = (bed().await, stock("1KiB"));
    let shared: LoadState<()> = LoadState::new(bed.clock.clone(), (1, None), Arc::default(), stock);
    let (begin, mut record) = (shared.begin(), shared.new_record());
    let asked = async {
        let answered = Completion::without_body(shared.now(), 0);
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(answered)
    };
    let handled = execute_recorded(&shared, &mut record, (Operation::List, begin), asked).await;
    assert!(shared.now() - handled.ended >= Duration::from_millis(300), "{handled:?}");
    let latency = record.tallies()[&Operation::List].latency.max();
    assert!(Duration::from_micros(latency) <= handled.ended - begin + Duration::from_millis(1), "{latency}");
    assert_eq!(shared.close_window_at_last_completion(), handled.ended);
}

#[tokio::test]
async fn outcome_covers_every_second_of_the_load() {
    let (bed, stock) = (faulty_bed(Fault::Delay(Duration::from_millis(5))).await, stock("1KiB"));
    let outcome = run(&bed, &stock, &load("put", None, Duration::from_millis(1400))).await;
    let tally = &outcome.record.tallies()[&Operation::Put];
    assert!(tally.seconds.len() >= 2 && tally.seconds[0].operations > 0, "{:?}", tally.seconds);
    assert_eq!(tally.seconds.iter().map(|second| second.operations).sum::<u64>(), tally.operations);
    let tenths: f64 = outcome.series_100ms[..10].iter().map(|tenth| tenth.operations).sum();
    let first = tally.seconds[0].operations as f64;
    // The series also has the parts of requests that were in flight at the end of the first second.
    assert!((first..=first + 4.0).contains(&(tenths + 1e-6)), "{tenths}, {first} ended");
}

#[tokio::test]
async fn workers_share_one_timeline() {
    let (bed, stock) = (faulty_bed(Fault::Delay(Duration::from_millis(5))).await, stock("1KiB"));
    let load = load("put", None, Duration::from_millis(1400));
    let shared =
        Arc::new(LoadState::new(bed.clock.clone(), (load.concurrency, None), Arc::default(), stock.clone()));
    let mut workers = Vec::new();
    for hand in stock.distribute(load.concurrency, load.seed) {
        let worker =
            Worker::new(bed.clone(), stock.clone(), hand, (shared.clone(), false), context(&bed).await);
        workers.push(worker.run(load.mix.clone(), load.seed, None).boxed());
    }
    let (starts, stop) = (None::<std::iter::Empty<(Duration, ())>>, StopSignal::default());
    let subject = |_, ()| RequestSubject { operation: Operation::Put, key: SubjectKey::Unknown, size: None };
    let driven = run_workers(&bed, &shared, (starts, workers), &load, &stop, subject);
    let taking = async {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        shared.timeline.take()
    };
    let (driven, taken) = tokio::join!(driven, taking);
    let (left, taken) = (&driven.unwrap().0.record, &taken);
    let seconds = |record: &LoadRecord| record.tallies()[&Operation::Put].seconds.clone();
    assert!(seconds(taken)[0].operations > 0 && seconds(left)[0].operations == 0, "{left:?}");
    assert!(seconds(left)[1].operations > 0, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn full_queue_ends_the_load_as_overrun() {
    const QUEUE_CAPACITY: usize = 1000;
    let bed = faulty_bed(Fault::Hang).await;
    for warm_up in [Duration::ZERO, LONG] {
        let stock = stock("1KiB");
        let pace = ArrivalMode::Open { requests_per_second: 1e5, spacing: Spacing::Poisson };
        let load = Load { arrival_mode: pace, warm_up, ..load("put", None, LONG) };
        let shared =
            LoadState::new(bed.clock.clone(), (load.concurrency, None), Arc::default(), stock.clone());
        let shared = Arc::new(shared.with_queue_capacity(QUEUE_CAPACITY));
        let hands = stock.distribute(load.concurrency, load.seed).into_iter();
        let mut workers = Vec::new();
        for hand in hands {
            let share = (shared.clone(), true);
            let worker = Worker::new(bed.clone(), stock.clone(), hand, share, context(&bed).await);
            workers.push(worker.run(load.mix.clone(), load.seed, None).boxed());
        }
        let starts = Arrivals::new(Spacing::Poisson, 1e5, load.seed).map(|start| (start, ()));
        let (work, stop) = ((Some(starts), workers), StopSignal::default());
        let subject =
            |_, ()| RequestSubject { operation: Operation::Put, key: SubjectKey::Unknown, size: None };
        let driven = run_workers(&bed, &shared, work, &load, &stop, subject);
        let (outcome, _) = driven.await.unwrap();
        assert_eq!((outcome.ending, outcome.queued), (EndReason::Overrun, QUEUE_CAPACITY as u64));
        assert!(outcome.dropped > 0, "{outcome:?}");
        assert_eq!(outcome.never_started, outcome.dropped + QUEUE_CAPACITY as u64);
        let tally = &outcome.record.tallies()[&Operation::Put];
        // Requests in flight were awaited; queued ones are not reported as failures of the store.
        assert_eq!((tally.operations, tally.failures["Unanswered"]), (0, 4));
        let expected = if warm_up.is_zero() { 4 + QUEUE_CAPACITY as u64 } else { 0 };
        assert_eq!(tally.truncated, expected, "queued requests of the window are in the latencies");
    }
}
