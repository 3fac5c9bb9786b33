//! An instrumented store behaves like the store itself, and its statistics record all requests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::multipart::{CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as At, SimulatedClock, conformance,
    context_until, stack_layers,
};
use tradewind_core::{
    Address, Body, Budget, Clock, Context, ObjectStore, Precondition, ReadConditions, Staged, SystemClock,
};
use tradewind_layers::Instrumented;
use tradewind_model::store_statistics::{Direction, Failure, Operation, OutcomeCounts, StoreStatistics};

/// An object of more than one buffer of the memory store.
const LARGE: usize = 300_000;

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn instrumented_memory() -> Arc<dyn ObjectStore> {
    Instrumented::new(MemoryStore::new(SystemClock::shared()), SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { instrumented_memory() }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers() {
    conformance::run(|| async { stack_layers(instrumented_memory(), 1) }.boxed()).await;
    let over = || {
        let inner = stack_layers(instrumented_memory(), 1);
        async { Instrumented::new(inner, SystemClock::shared()) as Arc<dyn ObjectStore> }.boxed()
    };
    conformance::run(over).await;
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { instrumented_memory() }.boxed(), seed, 100).await;
    }
}

/// An instrumented store with injected faults below, on a simulated clock.
struct Fixture {
    clock: Arc<SimulatedClock>,
    faults: Arc<Faulty<MemoryStore>>,
    store: Arc<Instrumented>,
}

fn key() -> Address {
    Address::parse("bucket", "key").unwrap()
}

impl Fixture {
    async fn new() -> Self {
        let clock = SimulatedClock::new();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let store = Instrumented::new(faults.clone(), clock.clone());
        let fixture = Self { clock, faults, store };
        fixture.store.create_bucket(&fixture.context(), &key().bucket).await.unwrap();
        fixture
    }

    fn context(&self) -> Context {
        context_until(&Budget::new(1 << 20), Deadline::none(self.clock.clone()))
    }

    fn fault(&self, at: At, fault: Fault) {
        self.faults.set_plan(FaultPlan::none().with_fault(at, FaultSchedule::Always, fault));
    }

    async fn stage(&self) -> Result<Box<dyn Staged>> {
        self.store.stage(&self.context(), &key(), StageRequest::default()).await
    }

    async fn put(&self, size: usize) -> Result<()> {
        let mut staged = self.stage().await?;
        staged.write(vec![7; size].into()).await?;
        staged.commit(Expected::default()).await.map(drop)
    }

    async fn get(&self) -> Result<Body> {
        Ok(self.store.get(&self.context(), &key(), Default::default()).await?.body)
    }

    fn statistics(&self) -> &StoreStatistics {
        self.store.statistics()
    }

    fn outcomes(&self, operation: Operation) -> OutcomeCounts {
        self.statistics().outcomes(self.clock.now(), operation)
    }

    /// Number of completed requests, and the medians of response time and time to first byte, in milliseconds.
    fn times(&self, operation: Operation) -> (u64, u64, u64) {
        let times = self.statistics().latencies(self.clock.now(), operation);
        let Some(stats) = times.classes().first() else { return (0, 0, 0) };
        let millis =
            |time: Option<Duration>| (time.unwrap_or_default().as_secs_f64() * 1000.0).round() as u64;
        (stats.response_time.count(), millis(stats.response_time.median()), millis(stats.first_byte.median()))
    }
}

fn is_near(found: u64, exact: u64) -> bool {
    found.abs_diff(exact) <= exact / 16
}

#[tokio::test]
async fn read_in_one_buffer_completes_with_its_response() {
    let fixture = Fixture::new().await;
    fixture.put(1000).await.unwrap();
    fixture.fault(At::Get, Fault::Delay(millis(40)));
    let mut get = pin!(fixture.get());
    assert!(get.as_mut().now_or_never().is_none());
    assert_eq!(fixture.statistics().in_flight(Operation::Get), 1);
    fixture.clock.advance(millis(40));
    let body = get.await.unwrap();
    assert_eq!(fixture.statistics().total_in_flight(), 0);
    let (count, response_time, first) = fixture.times(Operation::Get);
    assert!(count == 1 && is_near(response_time, 40) && is_near(first, 40), "{response_time} {first}");
    assert_eq!(fixture.statistics().total_bytes(Direction::Read), 1000);
    assert_eq!(body.into_bytes().unwrap().len(), 1000, "it remains one buffer");
    assert_eq!(fixture.outcomes(Operation::Get), OutcomeCounts { done: 1, ..OutcomeCounts::default() });
}

#[tokio::test]
async fn slow_reader_does_not_count_as_store_latency() {
    let fixture = Fixture::new().await;
    fixture.put(LARGE).await.unwrap();
    fixture.fault(At::Body, Fault::Delay(millis(30)));
    let mut body = fixture.get().await.unwrap();
    assert_eq!(fixture.times(Operation::Get), (0, 0, 0));
    fixture.clock.advance(millis(500));
    assert!(body.next().now_or_never().is_none());
    fixture.clock.advance(millis(30));
    let mut length = 0;
    while length < LARGE {
        assert_eq!(fixture.statistics().in_flight(Operation::Get), 1);
        length += body.next().await.unwrap().unwrap().len();
        fixture.clock.advance(millis(700));
    }
    // The request is complete with the last byte, although the end was not polled.
    assert_eq!(fixture.statistics().total_in_flight(), 0);
    let (count, response_time, _) = fixture.times(Operation::Get);
    assert!(count == 1 && is_near(response_time, 30), "{response_time}");
    assert_eq!(fixture.statistics().total_bytes(Direction::Read), LARGE as u64);
    drop(body);
    assert_eq!(fixture.outcomes(Operation::Get), OutcomeCounts { done: 1, ..OutcomeCounts::default() });
}

#[tokio::test]
async fn abandoned_request_is_neither_failure_nor_sample() {
    let fixture = Fixture::new().await;
    fixture.put(LARGE).await.unwrap();
    // A body that was partly read.
    let mut body = fixture.get().await.unwrap();
    body.next().await.unwrap().unwrap();
    drop(body);
    // A body that was never polled.
    drop(fixture.get().await.unwrap());
    // A call.
    fixture.fault(At::Get, Fault::Hang);
    {
        let mut get = pin!(fixture.get());
        assert!(get.as_mut().now_or_never().is_none());
        fixture.clock.advance(millis(20));
        assert_eq!(fixture.statistics().in_flight(Operation::Get), 1);
    }
    let abandoned = OutcomeCounts { cancelled: 3, cancelled_after: millis(20), ..OutcomeCounts::default() };
    assert_eq!(fixture.outcomes(Operation::Get), abandoned);
    assert_eq!(fixture.times(Operation::Get).0, 0, "abandoned requests are no latency samples");
    // A call that is cancelled.
    let token = CancellationToken::new();
    let deadline = Deadline::none(fixture.clock.clone()).with_cancellation(token.clone());
    let context = context_until(&Budget::new(1 << 20), deadline);
    token.cancel();
    fixture.store.get(&context, &key(), Default::default()).await.unwrap_err();
    assert_eq!(fixture.outcomes(Operation::Get).cancelled, 4);
    assert_eq!(fixture.statistics().total_in_flight(), 0);
}

#[tokio::test]
async fn write_latency_excludes_the_time_of_the_writer() {
    let fixture = Fixture::new().await;
    let mut staged = fixture.stage().await.unwrap();
    fixture.clock.advance(millis(1000));
    fixture.fault(At::Write, Fault::Delay(millis(20)));
    {
        let mut write = pin!(staged.write(Bytes::from_static(&[1; 5000])));
        assert!(write.as_mut().now_or_never().is_none());
        fixture.clock.advance(millis(20));
        write.await.unwrap();
    }
    fixture.clock.advance(millis(1000));
    fixture.fault(At::Commit, Fault::Delay(millis(80)));
    let mut commit = staged.commit(Expected::default());
    assert!((&mut commit).now_or_never().is_none());
    fixture.clock.advance(millis(80));
    assert_eq!(fixture.statistics().in_flight(Operation::Put), 1);
    commit.await.unwrap();
    assert_eq!(fixture.statistics().total_in_flight(), 0);
    let (count, response_time, first_byte) = fixture.times(Operation::Put);
    assert!(
        count == 1 && is_near(response_time, 100) && is_near(first_byte, 80),
        "{response_time} {first_byte}"
    );
    assert_eq!(fixture.statistics().total_bytes(Direction::Write), 5000);
    let latencies = fixture.statistics().latencies(fixture.clock.now(), Operation::Put);
    assert_eq!(latencies.classes()[0].mean_bytes, 5000);
}

#[tokio::test]
async fn failed_or_dropped_write_ends_exactly_once() {
    let fixture = Fixture::new().await;
    let failed = |kind: Failure, count: u64| {
        let mut outcomes = OutcomeCounts::default();
        outcomes.failed[kind as usize] = count;
        outcomes
    };
    fixture.fault(At::Stage, Fault::FailBefore(Reason::Full));
    fixture.put(10).await.unwrap_err();
    assert_eq!(fixture.outcomes(Operation::Put), failed(Failure::Unavailable, 1));
    fixture.fault(At::Write, Fault::FailBefore(Reason::Io));
    fixture.put(10).await.unwrap_err();
    fixture.fault(At::Commit, Fault::FailAfter(Reason::Io));
    fixture.put(10).await.unwrap_err();
    assert_eq!(fixture.outcomes(Operation::Put), failed(Failure::Unavailable, 3));
    // Dropped before, during and after a write, and during the commit.
    fixture.fault(At::Commit, Fault::Hang);
    drop(fixture.stage().await.unwrap());
    let mut staged = fixture.stage().await.unwrap();
    staged.write(Bytes::from_static(b"x")).await.unwrap();
    drop(staged);
    assert!(fixture.put(10).now_or_never().is_none());
    fixture.fault(At::Write, Fault::Hang);
    assert!(fixture.put(10).now_or_never().is_none());
    fixture.fault(At::Stage, Fault::Hang);
    assert!(fixture.put(10).now_or_never().is_none());
    assert_eq!(
        fixture.outcomes(Operation::Put),
        OutcomeCounts { cancelled: 5, ..failed(Failure::Unavailable, 3) }
    );
    assert_eq!((fixture.times(Operation::Put).0, fixture.statistics().total_in_flight()), (0, 0));
}

#[tokio::test]
async fn failures_and_rejections_are_counted_separately() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.get().await.unwrap_err().reason(), Reason::NoSuchKey);
    fixture.put(LARGE).await.unwrap();
    assert_eq!(fixture.outcomes(Operation::Get), OutcomeCounts { rejected: 1, ..OutcomeCounts::default() });
    for (at, reason) in [
        (At::Get, Reason::Overloaded),
        (At::Body, Reason::Io),
        (At::Body, Reason::CorruptData),
        (At::Get, Reason::Defect),
        (At::Get, Reason::DeadlineExceeded),
        (At::Get, Reason::PreconditionFailed),
    ] {
        fixture.fault(at, Fault::FailBefore(reason));
        let read = async { fixture.get().await?.collect().await };
        assert_eq!(read.await.unwrap_err().reason(), reason);
    }
    fixture.fault(At::Body, Fault::Truncate(5));
    assert_eq!(fixture.get().await.unwrap().collect().await.unwrap().len(), 5);
    let outcomes = fixture.outcomes(Operation::Get);
    // In the order of `Failure::ALL`. The truncated body counts as unavailable.
    assert_eq!((outcomes.rejected, outcomes.failed, outcomes.cancelled), (2, [1, 2, 1, 1, 1], 0));
    assert_eq!(fixture.times(Operation::Get).0, 0);
}

#[tokio::test]
async fn deadline_exhausted_by_the_reader_is_no_store_failure() {
    for (reading, failed, given_up) in [(millis(100), 1, 0), (millis(1900), 0, 1)] {
        let fixture = Fixture::new().await;
        fixture.put(LARGE).await.unwrap();
        fixture.fault(At::Body, Fault::Hang);
        let deadline = Deadline::after(fixture.clock.clone(), millis(2000));
        let context = context_until(&Budget::new(1 << 20), deadline);
        let mut body = fixture.store.get(&context, &key(), Default::default()).await.unwrap().body;
        fixture.clock.advance(reading);
        assert!(body.next().now_or_never().is_none());
        fixture.clock.advance(millis(2000) - reading);
        assert_eq!(body.next().await.unwrap().unwrap_err().reason(), Reason::DeadlineExceeded);
        drop(body);
        let outcomes = fixture.outcomes(Operation::Get);
        assert_eq!((outcomes.failed[Failure::TimedOut as usize], outcomes.cancelled), (failed, given_up));
    }
}

#[tokio::test]
async fn each_operation_is_counted_under_its_name() {
    let fixture = Fixture::new().await;
    let (store, context, address) = (&fixture.store, &fixture.context(), key());
    fixture.put(10).await.unwrap();
    store.head(context, &address, Default::default()).await.unwrap();
    store.head_bucket(context, &address.bucket).await.unwrap();
    store.list_buckets(context).await.unwrap();
    store.list(context, &address.bucket, &ListRequest::default()).await.unwrap();
    store.object_parts(context, &address, None, 10).await.unwrap();
    store.set_tags(context, &address, Default::default()).await.unwrap();
    let copy = CopyRequest {
        source: address.clone(),
        source_conditions: ReadConditions::default(),
        destination: Address::parse("bucket", "copy").unwrap(),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    };
    store.copy(context, copy).await.unwrap();
    let upload = store.create_upload(context, &address, CreateUpload::default()).await.unwrap();
    let number = PartNumber::new(1).unwrap();
    let mut part =
        store.stage_part(context, &address, &upload, number, StageRequest::default()).await.unwrap();
    part.write(Bytes::from_static(b"part")).await.unwrap();
    part.commit(Expected::default()).await.unwrap();
    store.list_parts(context, &address, &upload, None, 10).await.unwrap();
    store.complete_upload(context, &address, &upload, CompleteUpload::default()).await.unwrap_err();
    store.abort_upload(context, &address, &upload).await.unwrap();
    store.list_uploads(context, &address.bucket, &Default::default()).await.unwrap();
    store.delete(context, &address, Precondition::None).await.unwrap();
    let done = Operation::ALL.map(|operation| (operation.name(), fixture.outcomes(operation).done));
    assert_eq!(
        done,
        [
            ("get", 0),
            ("put", 1),
            ("part", 1),
            ("head", 1),
            ("list", 5),
            ("delete", 1),
            ("copy", 1),
            ("tag", 1),
            ("upload", 2),
            ("bucket", 2)
        ]
    );
    assert_eq!(fixture.outcomes(Operation::Upload).rejected, 1);
    assert_eq!(fixture.statistics().total_bytes(Direction::Write), 14);
    assert_eq!(fixture.statistics().total_in_flight(), 0);
}

#[tokio::test]
async fn bodies_are_forwarded_without_copying() {
    let fixture = Fixture::new().await;
    for size in [100, LARGE] {
        fixture.put(size).await.unwrap();
        let inner = fixture.faults.get(&fixture.context(), &key(), Default::default()).await.unwrap().body;
        let addresses = async |mut body: Body| {
            let mut addresses = Vec::new();
            while let Some(piece) = body.next().await {
                addresses.push(piece.unwrap().as_ptr() as usize);
            }
            addresses
        };
        assert_eq!(addresses(fixture.get().await.unwrap()).await, addresses(inner).await);
    }
    assert_eq!(
        format!("{:?}", fixture.store),
        format!("{:?}", fixture.faults),
        "the layer formats as its inner store"
    );
}

/// Run with optimization: `cargo test -p tradewind-layers --test instrumented --config profile.test.opt-level=3 --
/// --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let inner: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
        let instrumented: Arc<dyn ObjectStore> = Instrumented::new(inner.clone(), SystemClock::shared());
        let context = tradewind_core::testing::context();
        inner.create_bucket(&context, &key().bucket).await.unwrap();
        for (size, times) in [(4096, 20_000), (1 << 20, 500)] {
            let mut staged = inner.stage(&context, &key(), StageRequest::default()).await.unwrap();
            staged.write(vec![1; size].into()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            // The best of ten alternating rounds each, because the machine is shared.
            let mut best = [u128::MAX; 2];
            for round in 0..20 {
                let store = [&inner, &instrumented][round % 2];
                let started = std::time::Instant::now();
                for _ in 0..times {
                    let mut body = store.get(&context, &key(), Default::default()).await.unwrap().body;
                    while let Some(piece) = body.next().await {
                        std::hint::black_box(piece.unwrap());
                    }
                }
                best[round % 2] = best[round % 2].min(started.elapsed().as_nanos() / times);
            }
            println!("{size} bytes: {} ns, instrumented {} ns", best[0], best[1]);
        }
    });
}
