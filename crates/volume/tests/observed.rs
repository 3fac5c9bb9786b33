//! A store that is watched is the same store, and its model knows what happened.

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
    Fault, FaultPlan, Faulty, MemoryStore, Operation as At, SimulatedClock, When, conformance, context_until,
    stacked,
};
use tradewind_core::{
    Address, Body, Budget, Clock, Context, ObjectStore, Precondition, ReadConditions, Staged, SystemClock,
};
use tradewind_model::store_model::{Direction, Failure, Operation, Outcomes, StoreModel};
use tradewind_volume::Observed;

/// More than one buffer of the memory store's.
const LARGE: usize = 300_000;

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn observed_memory() -> Arc<dyn ObjectStore> {
    Observed::new(MemoryStore::new(SystemClock::shared()), SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { observed_memory() }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers() {
    conformance::run(|| async { stacked(observed_memory(), 1) }.boxed()).await;
    let over = || {
        let below = stacked(observed_memory(), 1);
        async { Observed::new(below, SystemClock::shared()) as Arc<dyn ObjectStore> }.boxed()
    };
    conformance::run(over).await;
}

#[tokio::test]
async fn it_answers_as_the_memory_store_does() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { observed_memory() }.boxed(), seed, 100).await;
    }
}

/// A watched store with faults below, at a clock that stands still.
struct House {
    clock: Arc<SimulatedClock>,
    faults: Arc<Faulty<MemoryStore>>,
    store: Arc<Observed>,
}

fn key() -> Address {
    Address::parse("bucket", "key").unwrap()
}

impl House {
    async fn new() -> Self {
        let clock = SimulatedClock::new();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let store = Observed::new(faults.clone(), clock.clone());
        let house = Self { clock, faults, store };
        house.store.create_bucket(&house.context(), &key().bucket).await.unwrap();
        house
    }

    fn context(&self) -> Context {
        context_until(&Budget::new(1 << 20), Deadline::none(self.clock.clone()))
    }

    fn fault(&self, at: At, fault: Fault) {
        self.faults.follow(FaultPlan::none().on(at, When::Always, fault));
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

    fn model(&self) -> &StoreModel {
        self.store.model()
    }

    fn outcomes(&self, operation: Operation) -> Outcomes {
        self.model().outcomes(self.clock.now(), operation)
    }

    /// How many were done, and the median of service and of first byte, to a millisecond.
    fn times(&self, operation: Operation) -> (u64, u64, u64) {
        let times = self.model().times(self.clock.now(), operation);
        let Some(alike) = times.classes().first() else { return (0, 0, 0) };
        let millis =
            |time: Option<Duration>| (time.unwrap_or_default().as_secs_f64() * 1000.0).round() as u64;
        (alike.service.count(), millis(alike.service.median()), millis(alike.first_byte.median()))
    }
}

fn is_near(found: u64, exact: u64) -> bool {
    found.abs_diff(exact) <= exact / 16
}

#[tokio::test]
async fn a_read_in_one_buffer_is_done_with_its_answer() {
    let house = House::new().await;
    house.put(1000).await.unwrap();
    house.fault(At::Get, Fault::Delay(millis(40)));
    let mut get = pin!(house.get());
    assert!(get.as_mut().now_or_never().is_none());
    assert_eq!(house.model().in_flight(Operation::Get), 1);
    house.clock.advance(millis(40));
    let body = get.await.unwrap();
    assert_eq!(house.model().all_in_flight(), 0);
    let (count, service, first) = house.times(Operation::Get);
    assert!(count == 1 && is_near(service, 40) && is_near(first, 40), "{service} {first}");
    assert_eq!(house.model().all_moved(Direction::Read), 1000);
    assert_eq!(body.into_bytes().unwrap().len(), 1000, "it stays one buffer");
    assert_eq!(house.outcomes(Operation::Get), Outcomes { done: 1, ..Outcomes::default() });
}

#[tokio::test]
async fn who_reads_slowly_does_not_make_the_store_slow() {
    let house = House::new().await;
    house.put(LARGE).await.unwrap();
    house.fault(At::Body, Fault::Delay(millis(30)));
    let mut body = house.get().await.unwrap();
    assert_eq!(house.times(Operation::Get), (0, 0, 0));
    house.clock.advance(millis(500));
    assert!(body.next().now_or_never().is_none());
    house.clock.advance(millis(30));
    let mut length = 0;
    while length < LARGE {
        assert_eq!(house.model().in_flight(Operation::Get), 1);
        length += body.next().await.unwrap().unwrap().len();
        house.clock.advance(millis(700));
    }
    // It is over with the last byte, though nobody asked for the end.
    assert_eq!(house.model().all_in_flight(), 0);
    let (count, service, _) = house.times(Operation::Get);
    assert!(count == 1 && is_near(service, 30), "{service}");
    assert_eq!(house.model().all_moved(Direction::Read), LARGE as u64);
    drop(body);
    assert_eq!(house.outcomes(Operation::Get), Outcomes { done: 1, ..Outcomes::default() });
}

#[tokio::test]
async fn what_is_let_go_is_given_up_and_no_failure() {
    let house = House::new().await;
    house.put(LARGE).await.unwrap();
    // A body that was begun.
    let mut body = house.get().await.unwrap();
    body.next().await.unwrap().unwrap();
    drop(body);
    // One for which nobody asked.
    drop(house.get().await.unwrap());
    // A call.
    house.fault(At::Get, Fault::Hang);
    {
        let mut get = pin!(house.get());
        assert!(get.as_mut().now_or_never().is_none());
        house.clock.advance(millis(20));
        assert_eq!(house.model().in_flight(Operation::Get), 1);
    }
    let given_up = Outcomes { given_up: 3, given_up_after: millis(20), ..Outcomes::default() };
    assert_eq!(house.outcomes(Operation::Get), given_up);
    assert_eq!(house.times(Operation::Get).0, 0, "nor does it say how long it takes");
    // A call that is cancelled.
    let token = CancellationToken::new();
    let deadline = Deadline::none(house.clock.clone()).with_cancellation(token.clone());
    let context = context_until(&Budget::new(1 << 20), deadline);
    token.cancel();
    house.store.get(&context, &key(), Default::default()).await.unwrap_err();
    assert_eq!(house.outcomes(Operation::Get).given_up, 4);
    assert_eq!(house.model().all_in_flight(), 0);
}

#[tokio::test]
async fn a_write_is_what_the_store_took_and_not_what_the_writer_did() {
    let house = House::new().await;
    let mut staged = house.stage().await.unwrap();
    house.clock.advance(millis(1000));
    house.fault(At::Write, Fault::Delay(millis(20)));
    {
        let mut write = pin!(staged.write(Bytes::from_static(&[1; 5000])));
        assert!(write.as_mut().now_or_never().is_none());
        house.clock.advance(millis(20));
        write.await.unwrap();
    }
    house.clock.advance(millis(1000));
    house.fault(At::Commit, Fault::Delay(millis(80)));
    let mut commit = staged.commit(Expected::default());
    assert!((&mut commit).now_or_never().is_none());
    house.clock.advance(millis(80));
    assert_eq!(house.model().in_flight(Operation::Put), 1);
    commit.await.unwrap();
    assert_eq!(house.model().all_in_flight(), 0);
    let (count, service, answer) = house.times(Operation::Put);
    assert!(count == 1 && is_near(service, 100) && is_near(answer, 80), "{service} {answer}");
    assert_eq!(house.model().all_moved(Direction::Write), 5000);
    assert_eq!(house.model().times(house.clock.now(), Operation::Put).classes()[0].mean_bytes, 5000);
}

#[tokio::test]
async fn writes_end_once_wherever_they_break() {
    let house = House::new().await;
    let failed = |kind: Failure, count: u64| {
        let mut outcomes = Outcomes::default();
        outcomes.failed[kind as usize] = count;
        outcomes
    };
    house.fault(At::Stage, Fault::FailBefore(Reason::Full));
    house.put(10).await.unwrap_err();
    assert_eq!(house.outcomes(Operation::Put), failed(Failure::Unavailable, 1));
    house.fault(At::Write, Fault::FailBefore(Reason::Io));
    house.put(10).await.unwrap_err();
    house.fault(At::Commit, Fault::FailAfter(Reason::Io));
    house.put(10).await.unwrap_err();
    assert_eq!(house.outcomes(Operation::Put), failed(Failure::Unavailable, 3));
    // Dropped before, within and behind a write, and in the commit.
    house.fault(At::Commit, Fault::Hang);
    drop(house.stage().await.unwrap());
    let mut staged = house.stage().await.unwrap();
    staged.write(Bytes::from_static(b"x")).await.unwrap();
    drop(staged);
    assert!(house.put(10).now_or_never().is_none());
    house.fault(At::Write, Fault::Hang);
    assert!(house.put(10).now_or_never().is_none());
    house.fault(At::Stage, Fault::Hang);
    assert!(house.put(10).now_or_never().is_none());
    assert_eq!(house.outcomes(Operation::Put), Outcomes { given_up: 5, ..failed(Failure::Unavailable, 3) });
    assert_eq!((house.times(Operation::Put).0, house.model().all_in_flight()), (0, 0));
}

#[tokio::test]
async fn errors_are_told_from_refusals() {
    let house = House::new().await;
    assert_eq!(house.get().await.unwrap_err().reason(), Reason::NoSuchKey);
    house.put(LARGE).await.unwrap();
    assert_eq!(house.outcomes(Operation::Get), Outcomes { refused: 1, ..Outcomes::default() });
    for (at, reason) in [
        (At::Get, Reason::Overloaded),
        (At::Body, Reason::Io),
        (At::Body, Reason::CorruptData),
        (At::Get, Reason::Defect),
        (At::Get, Reason::DeadlineExceeded),
        (At::Get, Reason::PreconditionFailed),
    ] {
        house.fault(at, Fault::FailBefore(reason));
        let read = async { house.get().await?.collect().await };
        assert_eq!(read.await.unwrap_err().reason(), reason);
    }
    house.fault(At::Body, Fault::Truncate(5));
    assert_eq!(house.get().await.unwrap().collect().await.unwrap().len(), 5);
    let outcomes = house.outcomes(Operation::Get);
    // In the order of `Failure::ALL`; the body that ended early counts as out of reach.
    assert_eq!((outcomes.refused, outcomes.failed, outcomes.given_up), (2, [1, 2, 1, 1, 1], 0));
    assert_eq!(house.times(Operation::Get).0, 0);
}

#[tokio::test]
async fn a_deadline_that_the_reader_used_up_is_not_the_stores() {
    for (reading, failed, given_up) in [(millis(100), 1, 0), (millis(1900), 0, 1)] {
        let house = House::new().await;
        house.put(LARGE).await.unwrap();
        house.fault(At::Body, Fault::Hang);
        let deadline = Deadline::after(house.clock.clone(), millis(2000));
        let context = context_until(&Budget::new(1 << 20), deadline);
        let mut body = house.store.get(&context, &key(), Default::default()).await.unwrap().body;
        house.clock.advance(reading);
        assert!(body.next().now_or_never().is_none());
        house.clock.advance(millis(2000) - reading);
        assert_eq!(body.next().await.unwrap().unwrap_err().reason(), Reason::DeadlineExceeded);
        drop(body);
        let outcomes = house.outcomes(Operation::Get);
        assert_eq!((outcomes.failed[Failure::Late as usize], outcomes.given_up), (failed, given_up));
    }
}

#[tokio::test]
async fn every_kind_is_told_by_its_name() {
    let house = House::new().await;
    let (store, context, address) = (&house.store, &house.context(), key());
    house.put(10).await.unwrap();
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
    let done = Operation::ALL.map(|operation| (operation.name(), house.outcomes(operation).done));
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
    assert_eq!(house.outcomes(Operation::Upload).refused, 1);
    assert_eq!(house.model().all_moved(Direction::Write), 14);
    assert_eq!(house.model().all_in_flight(), 0);
}

#[tokio::test]
async fn bytes_are_handed_on_and_not_copied() {
    let house = House::new().await;
    for size in [100, LARGE] {
        house.put(size).await.unwrap();
        let below = house.faults.get(&house.context(), &key(), Default::default()).await.unwrap().body;
        let places = async |mut body: Body| {
            let mut places = Vec::new();
            while let Some(piece) = body.next().await {
                places.push(piece.unwrap().as_ptr() as usize);
            }
            places
        };
        assert_eq!(places(house.get().await.unwrap()).await, places(below).await);
    }
    assert_eq!(format!("{:?}", house.store), format!("{:?}", house.faults), "it is the same store");
}

/// Run with optimisation: `cargo test -p tradewind-volume --test observed --config profile.test.opt-level=3 --
/// --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let below: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
        let above: Arc<dyn ObjectStore> = Observed::new(below.clone(), SystemClock::shared());
        let context = tradewind_core::testing::context();
        below.create_bucket(&context, &key().bucket).await.unwrap();
        for (size, times) in [(4096, 20_000), (1 << 20, 500)] {
            let mut staged = below.stage(&context, &key(), StageRequest::default()).await.unwrap();
            staged.write(vec![1; size].into()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            // The best of ten rounds each, by turns: others use the machine too.
            let mut best = [u128::MAX; 2];
            for round in 0..20 {
                let store = [&below, &above][round % 2];
                let begun = std::time::Instant::now();
                for _ in 0..times {
                    let mut body = store.get(&context, &key(), Default::default()).await.unwrap().body;
                    while let Some(piece) = body.next().await {
                        std::hint::black_box(piece.unwrap());
                    }
                }
                best[round % 2] = best[round % 2].min(begun.elapsed().as_nanos() / times);
            }
            println!("{size} bytes: {} ns, watched {} ns", best[0], best[1]);
        }
    });
}
