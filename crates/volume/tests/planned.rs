//! A store that is read under a plan is the same store; what is large comes in ranges, and who reads slowly or goes away leaves
//! nothing behind.

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
    Fault, FaultPlan, Faulty, MemoryStore, Operation as At, When, conformance, context_until, stacked,
};
use tradewind_core::{
    Address, Body, Budget, ByteRange, Context, ObjectStore, Precondition, Span, SystemClock,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::store_model::Operation;
use tradewind_model::tune::{Belief, Cell, Sample, Surface};
use tradewind_volume::planned::PlannedOptions;
use tradewind_volume::{Observed, Planned};

/// None that pieces of the store below end with.
const RANGE: u64 = 250_001;
const LARGE: usize = 4 << 20;
/// What is fetched ahead for all, and what one request may have of it.
const AHEAD: u64 = 4 << 20;
const AHEAD_OF_ONE: u64 = AHEAD / 2;
const REQUESTS: usize = 6;

fn options() -> PlannedOptions {
    let plan = Plan {
        chunk_bytes: 1 << 20,
        stream_bytes: RANGE,
        memory_bytes: AHEAD_OF_ONE,
        requests: REQUESTS,
        ..Plan::default()
    };
    let retries = RetryOptions { first_delay: Duration::from_millis(1), ..RetryOptions::default() };
    PlannedOptions { plan, ahead_bytes: AHEAD, retries, tags_are_md5: false }
}

/// As it is served.
fn planned(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let plan = Plan::default();
    Planned::new(inner, PlannedOptions { plan, ..options() }, SystemClock::shared())
}

/// Whatever is more than a small piece is split.
fn split(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let plan = Plan { chunk_bytes: 10_000, stream_bytes: 30_001, ..options().plan };
    Planned::new(inner, PlannedOptions { plan, ..options() }, SystemClock::shared())
}

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { planned(memory()) }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers_and_in_ranges() {
    // Of what is split the rest fails then: `a_version_is_never_mixed_with_another`.
    let lost = ["are_read_to_the_end_although_overwritten", "are_read_to_the_end_although_deleted"];
    let (left_out, cases): (Vec<_>, Vec<_>) =
        conformance::cases().into_iter().partition(|case| lost.iter().any(|name| case.name.ends_with(name)));
    assert_eq!(left_out.len(), lost.len());
    for case in cases {
        let store = stacked(split(stacked(memory(), 1)), 1);
        if case.suits(store.capabilities()) {
            println!("{}", case.name);
            case.run(store).await;
        }
    }
}

#[tokio::test]
async fn it_answers_as_the_memory_store_does() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { split(memory()) }.boxed(), seed, 100).await;
    }
}

/// A store that is watched, under a plan.
struct House {
    faults: Arc<Faulty<MemoryStore>>,
    observed: Arc<Observed>,
    store: Arc<Planned>,
    budget: Budget,
}

fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

/// Bytes of which none looks like another place's.
fn content(seed: u64, size: usize) -> Bytes {
    let words = (0..size.div_ceil(8) as u64).map(|n| (n + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size);
    bytes.into()
}

impl House {
    async fn new() -> Self {
        Self::with(options()).await
    }

    async fn with(options: PlannedOptions) -> Self {
        let clock = SystemClock::shared();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let observed = Observed::new(faults.clone(), clock.clone());
        let store = Planned::new(observed.clone(), options, clock);
        let house = Self { faults, observed, store, budget: Budget::new(64 << 20) };
        house.store.create_bucket(&house.context().await, &key("k").bucket).await.unwrap();
        house
    }

    /// A request as the gateway admits it.
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
        self.observed.model().in_flight(Operation::Get)
    }

    /// Nothing is under way and nothing is held, now or in a moment.
    async fn is_quiet(&self) {
        let is_quiet = || {
            self.in_flight() == 0
                && self.store.held_ahead() == 0
                && self.budget.free() == self.budget.capacity()
        };
        for _ in 0..500 {
            if is_quiet() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} under way, {} held, {:?}", self.in_flight(), self.store.held_ahead(), self.budget);
    }

    /// What is under way without anybody who reads has come to its end.
    async fn settle(&self) {
        let (mut before, mut same) = (None, 0);
        while same < 20 {
            let now = (self.faults.calls(At::Get), self.store.held_ahead());
            same = if before == Some(now) { same + 1 } else { 0 };
            before = Some(now);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_large_comes_in_ranges() {
    let (house, bytes) = (House::new().await, content(1, LARGE + 7));
    house.put("large", &bytes).await;
    assert!(house.read("large").await.unwrap() == bytes);
    assert_eq!(house.faults.calls(At::Get), (LARGE as u64 + 7).div_ceil(RANGE));
    house.is_quiet().await;
}

#[tokio::test]
async fn what_is_small_is_one_request_as_it_was_asked_for() {
    let house = House::new().await;
    for size in [0, 1, 200_000, 1 << 20] {
        let (bytes, before) = (content(2, size), house.faults.calls(At::Get));
        house.put("small", &bytes).await;
        assert!(house.read("small").await.unwrap() == bytes);
        assert_eq!(house.faults.calls(At::Get), before + 1, "{size}");
    }
    house.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_those_that_were_asked_for() {
    let (house, bytes) = (House::new().await, content(3, LARGE));
    house.put("large", &bytes).await;
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
        let before = house.faults.calls(At::Get);
        let (span, body) = house.open("large", Select::Range(range)).await.unwrap();
        assert_eq!(span, range.resolve(size).unwrap());
        assert_eq!(body.length(), span.length);
        let slice = bytes.slice(span.offset as usize..span.end() as usize);
        assert!(body.collect().await.unwrap() == slice, "{range:?}");
        let calls = house.faults.calls(At::Get) - before;
        let expected = if span.length > 1 << 20 { span.length.div_ceil(RANGE) } else { 1 };
        assert_eq!(calls, expected, "{range:?}");
    }
    for range in [ByteRange::From(size), ByteRange::Inclusive { first: size, last: size + (2 << 20) }] {
        let refused = house.open("large", Select::Range(range)).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::InvalidRange);
    }
    house.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_off_is_asked_for_from_there() {
    let (house, bytes) = (House::new().await, content(4, LARGE));
    house.put("large", &bytes).await;
    let broken = [1, 2, 9, 14];
    let plan = broken.into_iter().fold(FaultPlan::none(), |plan, nth| {
        plan.on(At::Body, When::Nth(nth), Fault::FailAt(100_001, Reason::Io))
    });
    house.faults.follow(plan.on(At::Get, When::Nth(5), Fault::FailBefore(Reason::Overloaded)));
    assert!(house.read("large").await.unwrap() == bytes);
    assert_eq!(house.faults.injected(At::Body), 4);
    assert_eq!(house.faults.calls(At::Get), (LARGE as u64).div_ceil(RANGE) + 5);
    // And one that is not split.
    let bytes = content(5, 1 << 20);
    house.put("one", &bytes).await;
    house.faults.follow(FaultPlan::none().on(
        At::Body,
        When::Nth(house.faults.calls(At::Body) + 1),
        Fault::FailAt(600_000, Reason::Io),
    ));
    assert!(house.read("one").await.unwrap() == bytes);
    house.is_quiet().await;
}

#[tokio::test]
async fn what_fails_for_good_fails() {
    let (house, bytes) = (House::new().await, content(4, LARGE));
    house.put("large", &bytes).await;
    house.faults.follow(FaultPlan::none().on(At::Get, When::From(6), Fault::FailBefore(Reason::Io)));
    let failed = house.read("large").await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Io);
    house.is_quiet().await;
}

#[tokio::test]
async fn a_version_is_never_mixed_with_another() {
    let (house, old) = (House::new().await, content(6, 2 * LARGE));
    for (name, change) in [("replaced", Some(content(7, 2 * LARGE))), ("removed", None)] {
        house.put(name, &old).await;
        let (_, mut body) = house.open(name, Select::Whole).await.unwrap();
        let mut read = body.next().await.unwrap().unwrap().to_vec();
        match &change {
            Some(new) => house.put(name, new).await,
            None => {
                let context = house.context().await;
                house.store.delete(&context, &key(name), Precondition::None).await.unwrap();
            }
        }
        let failed: Error = loop {
            match body.next().await.expect("it does not end well") {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(failed) => break failed,
            }
        };
        let expected = if change.is_some() { Reason::Conflict } else { Reason::NoSuchKey };
        assert_eq!(failed.reason(), expected, "{failed:?}");
        assert!(read.len() < old.len() && read == old[..read.len()], "{name}");
        drop(body);
        house.is_quiet().await;
    }
}

#[tokio::test]
async fn damage_on_the_way_is_found_before_the_end() {
    let (house, bytes) = (House::new().await, content(8, LARGE));
    house.put("large", &bytes).await;
    house.faults.follow(FaultPlan::none().on(At::Body, When::Nth(4), Fault::Corrupt(1000)));
    let (_, mut body) = house.open("large", Select::Whole).await.unwrap();
    let mut read = 0;
    let failed = loop {
        match body.next().await.expect("it does not end well") {
            Ok(piece) => read += piece.len(),
            Err(failed) => break failed,
        }
    };
    assert_eq!(failed.reason(), Reason::CorruptData);
    assert!(read < LARGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_slowly_holds_its_part_of_the_memory_and_no_turn() {
    let (house, bytes) = (House::new().await, content(9, 2 * LARGE));
    house.put("large", &bytes).await;
    let (_, mut slow) = house.open("large", Select::Whole).await.unwrap();
    let first = slow.next().await.unwrap().unwrap();
    house.settle().await;
    assert!(house.store.held_ahead() <= AHEAD_OF_ONE, "{}", house.store.held_ahead());
    let asked = house.faults.calls(At::Get);
    assert!(asked <= 2 + AHEAD_OF_ONE / RANGE, "{asked} requests for a reader who takes nothing");
    // Far more of them than there are turns and memory.
    let more = join_all((0..30).map(|_| async { house.open("large", Select::Whole).await.unwrap().1 })).await;
    house.settle().await;
    assert!(house.store.held_ahead() <= AHEAD);
    let quick = async {
        assert!(house.read("large").await.unwrap() == bytes);
        house.put("one", &content(10, 1 << 20)).await;
        house.read("one").await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), quick).await.expect("those who read are not kept waiting");
    // They go on where they were.
    let rest = slow.collect().await.unwrap();
    assert!(first.len() + rest.len() == bytes.len() && rest == bytes.slice(first.len()..));
    for body in more {
        assert!(body.collect().await.unwrap() == bytes);
    }
    house.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_leaves_nothing_under_way() {
    let (house, bytes) = (House::new().await, content(11, 2 * LARGE));
    house.put("large", &bytes).await;
    for taken in [0, 1, 5] {
        house.faults.follow(FaultPlan::none().on(
            At::Get,
            When::Always,
            Fault::Delay(Duration::from_millis(20)),
        ));
        let (_, mut body) = house.open("large", Select::Whole).await.unwrap();
        for _ in 0..taken {
            body.next().await.unwrap().unwrap();
        }
        let before = house.faults.calls(At::Get);
        drop(body);
        house.is_quiet().await;
        let asked = house.faults.calls(At::Get) - before;
        assert!(asked <= 1 + AHEAD_OF_ONE / RANGE, "{asked} requests for nobody");
    }
    // Nor does one that goes before it is answered.
    let hanging = FaultPlan::none().on(At::Get, When::From(house.faults.calls(At::Get) + 3), Fault::Hang);
    house.faults.follow(hanging);
    let (_, body) = house.open("large", Select::Whole).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(house.in_flight() > 1);
    drop(body);
    house.is_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_keep_to_the_plan() {
    const CLIENTS: u64 = 25;
    let (house, bytes) = (House::new().await, content(12, 2 * LARGE));
    house.put("large", &bytes).await;
    house.faults.follow(FaultPlan::none().on(At::Get, When::Always, Fault::Delay(Duration::from_millis(5))));
    let clients = async {
        let read = join_all((0..CLIENTS).map(|_| house.read("large"))).await;
        assert!(read.into_iter().all(|read| read.unwrap() == bytes));
    };
    let mut most = 0;
    let mut clients = std::pin::pin!(clients);
    while (&mut clients).now_or_never().is_none() {
        most = most.max(house.in_flight());
        assert!(house.store.held_ahead() <= AHEAD);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The first request of each, which is read when it has its turn.
    assert!(most > 1 && most <= CLIENTS + REQUESTS as u64, "{most}");
    house.is_quiet().await;
}

/// A plan that has few of the large requests and many of the small ones.
fn tuned() -> Plan {
    let sample = |bytes, parallel, latency| {
        let cell = Cell { bytes, parallel };
        Sample { cell, latency, error: 0.02, tail: None, is_seen: false }
    };
    let samples = vec![
        sample(4 << 10, 256, 0.1),
        sample(256 << 10, 1, 0.1),
        sample(256 << 10, 8, 0.105),
        sample(256 << 10, 64, 0.84),
    ];
    options().plan.tuned(&[Surface::new(Belief::default(), samples)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_ranges_take_more_turns() {
    const CLIENTS: u64 = 5;
    let house = House::with(PlannedOptions { plan: tuned(), ..options() }).await;
    let (few, many) = (house.store.plan().parallel(RANGE) as u64, house.store.plan().requests as u64);
    assert!(few < 20 && many > 100, "{few} and {many}");
    let bytes = content(15, 2 * LARGE);
    house.put("large", &bytes).await;
    house.faults.follow(FaultPlan::none().on(At::Get, When::Always, Fault::Delay(Duration::from_millis(5))));
    let mut most = 0;
    let mut clients = std::pin::pin!(join_all((0..CLIENTS).map(|_| house.read("large"))));
    while (&mut clients).now_or_never().is_none() {
        most = most.max(house.in_flight());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(most > 1 && most <= CLIENTS + few, "{most} where {few} have a turn");
    house.is_quiet().await;
}

#[tokio::test]
async fn without_memory_it_is_one_request() {
    let house = House::with(PlannedOptions { ahead_bytes: 0, ..options() }).await;
    let bytes = content(13, LARGE);
    house.put("large", &bytes).await;
    assert!(house.read("large").await.unwrap() == bytes);
    assert_eq!(house.faults.calls(At::Get), 1);
    // And where those that are admitted have all of it.
    let house = House::new().await;
    house.put("large", &bytes).await;
    let request = GetRequest::default();
    let context = house.context().await;
    let _all = house.budget.try_admit(house.budget.free()).unwrap();
    let found = house.store.get(&context, &key("large"), request).await.unwrap();
    assert!(found.body.collect().await.unwrap() == bytes);
    assert_eq!(house.faults.calls(At::Get), 1);
}

#[tokio::test]
async fn a_deadline_is_heeded_between_pieces() {
    let (house, bytes) = (House::new().await, content(14, LARGE));
    house.put("large", &bytes).await;
    house.faults.follow(FaultPlan::none().on(At::Get, When::From(2), Fault::Hang));
    let deadline = Deadline::after(SystemClock::shared(), Duration::from_millis(200));
    let context = context_until(&house.budget, deadline);
    let found = house.store.get(&context, &key("large"), GetRequest::default()).await.unwrap();
    drop(context);
    let failed = found.body.collect().await.unwrap_err();
    assert_eq!(failed.reason(), Reason::DeadlineExceeded);
    house.is_quiet().await;
}
