//! A store with read-ahead behaves like the store itself. Large objects are read in ranges, and slow or vanished
//! readers hold no permits and leave nothing in flight.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt as _, StreamExt as _};
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as At, conformance, context_until,
    stack_layers,
};
use tradewind_core::{
    Address, Body, Budget, ByteRange, Context, ObjectStore, Precondition, Span, SystemClock,
};
use tradewind_layers::read_ahead::ReadAheadOptions;
use tradewind_layers::{Instrumented, ReadAhead};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::store_statistics::Operation;
use tradewind_model::tune::{OperatingPoint, Prior, Sample, Surface};

/// A range size that is not aligned with the pieces of the inner store.
const RANGE: u64 = 250_001;
const LARGE: usize = 4 << 20;
/// The read-ahead budget, and the share that one request may hold.
const MAX_AHEAD: u64 = 4 << 20;
const MAX_AHEAD_PER_REQUEST: u64 = MAX_AHEAD / 2;
const REQUESTS: usize = 6;

fn options() -> ReadAheadOptions {
    let plan = Plan {
        chunk_bytes: 1 << 20,
        stream_bytes: RANGE,
        max_buffered_bytes: MAX_AHEAD_PER_REQUEST,
        initial_concurrency: REQUESTS,
        ..Plan::default()
    };
    let retries = RetryOptions { first_delay: Duration::from_millis(1), ..RetryOptions::default() };
    ReadAheadOptions { plan, max_read_ahead_bytes: MAX_AHEAD, retries, etags_are_md5: false }
}

/// The layer with the default plan.
fn read_ahead(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let plan = Plan::default();
    ReadAhead::new(inner, ReadAheadOptions { plan, ..options() }, SystemClock::shared())
}

/// The layer with a plan that splits all but tiny objects.
fn split(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let plan = Plan { chunk_bytes: 10_000, stream_bytes: 30_001, ..options().plan };
    ReadAhead::new(inner, ReadAheadOptions { plan, ..options() }, SystemClock::shared())
}

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { read_ahead(memory()) }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers_and_in_ranges() {
    // A split read fails if the object changes: see `body_fails_if_the_object_changes`.
    let unsupported = ["are_read_to_the_end_although_overwritten", "are_read_to_the_end_although_deleted"];
    let (skipped, cases): (Vec<_>, Vec<_>) = conformance::cases()
        .into_iter()
        .partition(|case| unsupported.iter().any(|name| case.name.ends_with(name)));
    assert_eq!(skipped.len(), unsupported.len());
    for case in cases {
        let store = stack_layers(split(stack_layers(memory(), 1)), 1);
        if case.suits(store.capabilities()) {
            println!("{}", case.name);
            case.run(store).await;
        }
    }
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { split(memory()) }.boxed(), seed, 100).await;
    }
}

/// A read-ahead layer over an instrumented store with injected faults.
struct Fixture {
    faults: Arc<Faulty<MemoryStore>>,
    observed: Arc<Instrumented>,
    store: Arc<ReadAhead>,
    budget: Budget,
}

fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

/// Bytes that differ at every offset.
fn content(seed: u64, size: usize) -> Bytes {
    let words = (0..size.div_ceil(8) as u64).map(|n| (n + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size);
    bytes.into()
}

impl Fixture {
    async fn new() -> Self {
        Self::with(options()).await
    }

    async fn with(options: ReadAheadOptions) -> Self {
        let clock = SystemClock::shared();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let observed = Instrumented::new(faults.clone(), clock.clone());
        let store = ReadAhead::new(observed.clone(), options, clock);
        let fixture = Self { faults, observed, store, budget: Budget::new(64 << 20) };
        fixture.store.create_bucket(&fixture.context().await, &key("k").bucket).await.unwrap();
        fixture
    }

    /// The context of a request as admitted by the gateway.
    async fn context(&self) -> Context {
        let deadline = Deadline::none(SystemClock::shared());
        let window = self.budget.admit(512 << 10, &deadline).await.unwrap();
        Context::new(deadline, window)
    }

    async fn put(&self, name: &str, bytes: &Bytes) {
        let context = self.context().await;
        let mut staged = self.store.stage(&context, &key(name), StageRequest::default()).await.unwrap();
        staged.write(bytes.clone()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn open(&self, name: &str, select: Select) -> Result<(Span, Body)> {
        let request = GetRequest { select, ..GetRequest::default() };
        let found = self.store.get(&self.context().await, &key(name), request).await?;
        Ok((found.span, found.body))
    }

    async fn read(&self, name: &str) -> Result<Bytes> {
        self.open(name, Select::Whole).await?.1.collect().await
    }

    fn in_flight(&self) -> u64 {
        self.observed.statistics().in_flight(Operation::Get)
    }

    /// Waits until nothing is in flight and no memory is held.
    async fn wait_until_quiet(&self) {
        let is_quiet = || {
            self.in_flight() == 0
                && self.store.held_bytes() == 0
                && self.budget.free() == self.budget.capacity()
        };
        for _ in 0..500 {
            if is_quiet() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} in flight, {} held, {:?}", self.in_flight(), self.store.held_bytes(), self.budget);
    }

    /// Waits until no more requests start without a reader.
    async fn wait_until_idle(&self) {
        let (mut before, mut same) = (None, 0);
        while same < 20 {
            let now = (self.faults.calls(At::Get), self.store.held_bytes());
            same = if before == Some(now) { same + 1 } else { 0 };
            before = Some(now);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_object_is_read_in_ranges() {
    let (fixture, bytes) = (Fixture::new().await, content(1, LARGE + 7));
    fixture.put("large", &bytes).await;
    assert!(fixture.read("large").await.unwrap() == bytes);
    assert_eq!(fixture.faults.calls(At::Get), (LARGE as u64 + 7).div_ceil(RANGE));
    fixture.wait_until_quiet().await;
}

#[tokio::test]
async fn small_object_is_read_in_one_request() {
    let fixture = Fixture::new().await;
    for size in [0, 1, 200_000, 1 << 20] {
        let (bytes, before) = (content(2, size), fixture.faults.calls(At::Get));
        fixture.put("small", &bytes).await;
        assert!(fixture.read("small").await.unwrap() == bytes);
        assert_eq!(fixture.faults.calls(At::Get), before + 1, "{size}");
    }
    fixture.wait_until_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_ranges_are_returned_exactly() {
    let (fixture, bytes) = (Fixture::new().await, content(3, LARGE));
    fixture.put("large", &bytes).await;
    let size = LARGE as u64;
    for range in [
        ByteRange::Suffix(3 << 20),
        ByteRange::Suffix(u64::MAX),
        ByteRange::Suffix(9),
        ByteRange::From(1),
        ByteRange::From(size - 1),
        ByteRange::Inclusive { first: 5, last: 5 },
        ByteRange::Inclusive { first: 1001, last: 3 << 20 },
        ByteRange::Inclusive { first: 0, last: u64::MAX },
        ByteRange::Inclusive { first: size - 10, last: size + (2 << 20) },
        ByteRange::Inclusive { first: size - (3 << 20), last: size + 1 },
    ] {
        let before = fixture.faults.calls(At::Get);
        let (span, body) = fixture.open("large", Select::Range(range)).await.unwrap();
        assert_eq!(span, range.resolve(size).unwrap());
        assert_eq!(body.length(), span.length);
        let slice = bytes.slice(span.offset as usize..span.end() as usize);
        assert!(body.collect().await.unwrap() == slice, "{range:?}");
        let calls = fixture.faults.calls(At::Get) - before;
        let expected = if span.length > 1 << 20 { span.length.div_ceil(RANGE) } else { 1 };
        assert_eq!(calls, expected, "{range:?}");
    }
    for range in [ByteRange::From(size), ByteRange::Inclusive { first: size, last: size + (2 << 20) }] {
        let rejected = fixture.open("large", Select::Range(range)).await.unwrap_err();
        assert_eq!(rejected.reason(), Reason::InvalidRange);
    }
    fixture.wait_until_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_range_is_resumed() {
    let (fixture, bytes) = (Fixture::new().await, content(4, LARGE));
    fixture.put("large", &bytes).await;
    let broken = [1, 2, 9, 14];
    let plan = broken.into_iter().fold(FaultPlan::none(), |plan, nth| {
        plan.with_fault(At::Body, FaultSchedule::Nth(nth), Fault::FailAt(100_001, Reason::Io))
    });
    fixture.faults.set_plan(plan.with_fault(
        At::Get,
        FaultSchedule::Nth(5),
        Fault::FailBefore(Reason::Overloaded),
    ));
    assert!(fixture.read("large").await.unwrap() == bytes);
    assert_eq!(fixture.faults.injected(At::Body), 4);
    assert_eq!(fixture.faults.calls(At::Get), (LARGE as u64).div_ceil(RANGE) + 5);
    // An object that is not split.
    let bytes = content(5, 1 << 20);
    fixture.put("one", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(
        At::Body,
        FaultSchedule::Nth(fixture.faults.calls(At::Body) + 1),
        Fault::FailAt(600_000, Reason::Io),
    ));
    assert!(fixture.read("one").await.unwrap() == bytes);
    fixture.wait_until_quiet().await;
}

#[tokio::test]
async fn permanent_failure_fails_the_body() {
    let (fixture, bytes) = (Fixture::new().await, content(4, LARGE));
    fixture.put("large", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(
        At::Get,
        FaultSchedule::From(6),
        Fault::FailBefore(Reason::Io),
    ));
    let failed = fixture.read("large").await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Io);
    fixture.wait_until_quiet().await;
}

#[tokio::test]
async fn body_fails_if_the_object_changes() {
    let (fixture, old) = (Fixture::new().await, content(6, 2 * LARGE));
    for (name, change) in [("replaced", Some(content(7, 2 * LARGE))), ("removed", None)] {
        fixture.put(name, &old).await;
        let (_, mut body) = fixture.open(name, Select::Whole).await.unwrap();
        let mut read = body.next().await.unwrap().unwrap().to_vec();
        match &change {
            Some(new) => fixture.put(name, new).await,
            None => {
                let context = fixture.context().await;
                fixture.store.delete(&context, &key(name), Precondition::None).await.unwrap();
            }
        }
        let failed: Error = loop {
            match body.next().await.expect("the body must end with an error") {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(failed) => break failed,
            }
        };
        let expected = if change.is_some() { Reason::Conflict } else { Reason::NoSuchKey };
        assert_eq!(failed.reason(), expected, "{failed:?}");
        assert!(read.len() < old.len() && read == old[..read.len()], "{name}");
        drop(body);
        fixture.wait_until_quiet().await;
    }
}

#[tokio::test]
async fn corruption_in_transit_is_detected_before_the_end() {
    let (fixture, bytes) = (Fixture::new().await, content(8, LARGE));
    fixture.put("large", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(
        At::Body,
        FaultSchedule::Nth(4),
        Fault::Corrupt(1000),
    ));
    let (_, mut body) = fixture.open("large", Select::Whole).await.unwrap();
    let mut read = 0;
    let failed = loop {
        match body.next().await.expect("the body must end with an error") {
            Ok(piece) => read += piece.len(),
            Err(failed) => break failed,
        }
    };
    assert_eq!(failed.reason(), Reason::CorruptData);
    assert!(read < LARGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_holds_limited_memory_and_no_permits() {
    let (fixture, bytes) = (Fixture::new().await, content(9, 2 * LARGE));
    fixture.put("large", &bytes).await;
    let (_, mut slow) = fixture.open("large", Select::Whole).await.unwrap();
    let first = slow.next().await.unwrap().unwrap();
    fixture.wait_until_idle().await;
    assert!(fixture.store.held_bytes() <= MAX_AHEAD_PER_REQUEST, "{}", fixture.store.held_bytes());
    let requests = fixture.faults.calls(At::Get);
    assert!(requests <= 2 + MAX_AHEAD_PER_REQUEST / RANGE, "{requests} requests for a reader that stopped");
    // Far more slow readers than permits and memory.
    let more =
        join_all((0..30).map(|_| async { fixture.open("large", Select::Whole).await.unwrap().1 })).await;
    fixture.wait_until_idle().await;
    assert!(fixture.store.held_bytes() <= MAX_AHEAD);
    let quick = async {
        assert!(fixture.read("large").await.unwrap() == bytes);
        fixture.put("one", &content(10, 1 << 20)).await;
        fixture.read("one").await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), quick).await.expect("other readers are not blocked");
    // The slow readers resume.
    let rest = slow.collect().await.unwrap();
    assert!(first.len() + rest.len() == bytes.len() && rest == bytes.slice(first.len()..));
    for body in more {
        assert!(body.collect().await.unwrap() == bytes);
    }
    fixture.wait_until_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_body_leaves_nothing_in_flight() {
    let (fixture, bytes) = (Fixture::new().await, content(11, 2 * LARGE));
    fixture.put("large", &bytes).await;
    for taken in [0, 1, 5] {
        fixture.faults.set_plan(FaultPlan::none().with_fault(
            At::Get,
            FaultSchedule::Always,
            Fault::Delay(Duration::from_millis(20)),
        ));
        let (_, mut body) = fixture.open("large", Select::Whole).await.unwrap();
        for _ in 0..taken {
            body.next().await.unwrap().unwrap();
        }
        let before = fixture.faults.calls(At::Get);
        drop(body);
        fixture.wait_until_quiet().await;
        let requests = fixture.faults.calls(At::Get) - before;
        assert!(requests <= 1 + MAX_AHEAD_PER_REQUEST / RANGE, "{requests} requests for a dropped body");
    }
    // A body dropped before its ranges respond leaves nothing either.
    let hanging = FaultPlan::none().with_fault(
        At::Get,
        FaultSchedule::From(fixture.faults.calls(At::Get) + 3),
        Fault::Hang,
    );
    fixture.faults.set_plan(hanging);
    let (_, body) = fixture.open("large", Select::Whole).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(fixture.in_flight() > 1);
    drop(body);
    fixture.wait_until_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_stay_within_the_plan() {
    const CLIENTS: u64 = 25;
    let (fixture, bytes) = (Fixture::new().await, content(12, 2 * LARGE));
    fixture.put("large", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(
        At::Get,
        FaultSchedule::Always,
        Fault::Delay(Duration::from_millis(5)),
    ));
    let clients = async {
        let read = join_all((0..CLIENTS).map(|_| fixture.read("large"))).await;
        assert!(read.into_iter().all(|read| read.unwrap() == bytes));
    };
    let mut max = 0;
    let mut clients = std::pin::pin!(clients);
    while (&mut clients).now_or_never().is_none() {
        max = max.max(fixture.in_flight());
        assert!(fixture.store.held_bytes() <= MAX_AHEAD);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The first request of each client needs no permit.
    assert!(max > 1 && max <= CLIENTS + REQUESTS as u64, "{max}");
    fixture.wait_until_quiet().await;
}

/// A plan with a low concurrency of large requests and a high one of small requests.
fn tuned() -> Plan {
    let sample = |bytes, parallel, latency| {
        let cell = OperatingPoint { bytes, concurrency: parallel };
        Sample { point: cell, latency, relative_error: 0.02, tail: None, from_transfer: false }
    };
    let samples = vec![
        sample(4 << 10, 256, 0.1),
        sample(256 << 10, 1, 0.1),
        sample(256 << 10, 8, 0.105),
        sample(256 << 10, 64, 0.84),
    ];
    options().plan.tuned(&[Surface::new(Prior::default(), samples)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_ranges_take_more_permits() {
    const CLIENTS: u64 = 5;
    let fixture = Fixture::with(ReadAheadOptions { plan: tuned(), ..options() }).await;
    let (few, many) =
        (fixture.store.plan().concurrency_for(RANGE) as u64, fixture.store.plan().initial_concurrency as u64);
    assert!(few < 20 && many > 100, "{few} and {many}");
    let bytes = content(15, 2 * LARGE);
    fixture.put("large", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(
        At::Get,
        FaultSchedule::Always,
        Fault::Delay(Duration::from_millis(5)),
    ));
    let mut max = 0;
    let mut clients = std::pin::pin!(join_all((0..CLIENTS).map(|_| fixture.read("large"))));
    while (&mut clients).now_or_never().is_none() {
        max = max.max(fixture.in_flight());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(max > 1 && max <= CLIENTS + few, "{max} in flight with permits for {few}");
    fixture.wait_until_quiet().await;
}

#[tokio::test]
async fn without_memory_an_object_is_read_in_one_request() {
    let fixture = Fixture::with(ReadAheadOptions { max_read_ahead_bytes: 0, ..options() }).await;
    let bytes = content(13, LARGE);
    fixture.put("large", &bytes).await;
    assert!(fixture.read("large").await.unwrap() == bytes);
    assert_eq!(fixture.faults.calls(At::Get), 1);
    // The admission budget is exhausted.
    let fixture = Fixture::new().await;
    fixture.put("large", &bytes).await;
    let request = GetRequest::default();
    let context = fixture.context().await;
    let _all = fixture.budget.try_admit_optional(fixture.budget.free()).unwrap();
    let found = fixture.store.get(&context, &key("large"), request).await.unwrap();
    assert!(found.body.collect().await.unwrap() == bytes);
    assert_eq!(fixture.faults.calls(At::Get), 1);
}

#[tokio::test]
async fn deadline_applies_between_pieces() {
    let (fixture, bytes) = (Fixture::new().await, content(14, LARGE));
    fixture.put("large", &bytes).await;
    fixture.faults.set_plan(FaultPlan::none().with_fault(At::Get, FaultSchedule::From(2), Fault::Hang));
    let deadline = Deadline::after(SystemClock::shared(), Duration::from_millis(200));
    let context = context_until(&fixture.budget, deadline);
    let found = fixture.store.get(&context, &key("large"), GetRequest::default()).await.unwrap();
    drop(context);
    let failed = found.body.collect().await.unwrap_err();
    assert_eq!(failed.reason(), Reason::DeadlineExceeded);
    fixture.wait_until_quiet().await;
}
