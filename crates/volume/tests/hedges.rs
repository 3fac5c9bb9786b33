//! Chunks that are long in coming, by a clock that the tests turn: one that stalls or crawls is asked for a second time and
//! costs its object no time; where all are slow none is. Whatever becomes of either request, bytes count once and
//! everything that was held is given back.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::stream::{StreamExt as _, iter};
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{
    Fault, FaultPlan, Faulty, MemoryStore, Operation, SimulatedClock, When, context,
};
use tradewind_core::{Address, Budget, Clock, ObjectStore};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_volume::{Carrier, Fetch, Sink};

const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = 40;
/// How long a chunk takes.
const USUAL: Duration = Duration::from_millis(200);
const AT_A_TIME: usize = 8;
const MEMORY: usize = 64 << 20;

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<dyn ObjectStore>,
    budget: Budget,
    carrier: Arc<Carrier>,
}

/// A sink that counts what it gets.
#[derive(Default)]
struct Memory(Mutex<(Vec<u8>, u64)>);

impl Sink for Memory {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (all, count) = &mut *self.0.lock().unwrap();
        let end = offset as usize + bytes.len();
        all.resize(all.len().max(end), 0);
        all[offset as usize..end].copy_from_slice(bytes);
        *count += bytes.len() as u64;
        Ok(())
    }
}

fn content(length: u64) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>().into()
}

fn at(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

impl Scene {
    /// A store with the object `k`, each of whose bodies takes as long as is usual unless a fault befalls it before.
    async fn new(faults: FaultPlan) -> Self {
        let clock = SimulatedClock::new();
        let below: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        below.create_bucket(&context(), &at("k").bucket).await.unwrap();
        for (key, size) in [("k", CHUNKS * CHUNK), ("small", 5000)] {
            let mut staged = below.stage(&context(), &at(key), StageRequest::default()).await.unwrap();
            staged.write(content(size)).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        let store = Faulty::new(below, faults.on(Operation::Body, When::Always, Fault::Delay(USUAL)));
        let plan = Plan {
            requests: AT_A_TIME,
            stream_bytes: CHUNK,
            memory_bytes: AT_A_TIME as u64 * CHUNK,
            ..Plan::default().with_chunks(CHUNK)
        };
        let budget = Budget::new(MEMORY);
        let carrier = Carrier::new(plan, budget.clone(), clock.clone(), RetryOptions::default());
        Self { clock, store, budget, carrier: Arc::new(carrier) }
    }

    /// Fetches all of the object; answers how long that took.
    async fn fetch(&self) -> Duration {
        self.run(self.fetching()).await
    }

    fn fetching(&self) -> impl Future<Output = ()> + Send + 'static {
        let (carrier, store) = (self.carrier.clone(), self.store.clone());
        async move {
            let sink = Arc::new(Memory::default());
            Fetch::open(&carrier, &store, &at("k"), None)
                .await
                .unwrap()
                .write_to(sink.clone())
                .await
                .unwrap();
            let came = sink.0.lock().unwrap();
            assert!(came.0 == content(CHUNKS * CHUNK));
            assert_eq!(came.1, CHUNKS * CHUNK, "each byte counts once");
        }
    }

    /// Turns the clock, by little, while this goes on; answers how long it took.
    async fn run(&self, work: impl Future<Output = ()> + Send + 'static) -> Duration {
        let (begun, really) = (self.clock.now(), Instant::now());
        let work = tokio::spawn(work);
        while !work.is_finished() {
            // Where nobody sleeps, the clock stands still.
            let is_long = self.clock.now() - begun > Duration::from_secs(60);
            assert!(!is_long && really.elapsed() < Duration::from_secs(60), "it does not end");
            self.turn().await;
        }
        work.await.unwrap();
        assert_eq!(self.budget.free(), MEMORY, "all memory is given back");
        let slots = (0..AT_A_TIME).map(|_| self.carrier.slot(1).now_or_never().unwrap().unwrap());
        assert_eq!(slots.collect::<Vec<_>>().len(), AT_A_TIME, "all slots are given back");
        self.clock.now() - begun
    }

    async fn turn(&self) {
        // What can go on does.
        tokio::time::sleep(Duration::from_micros(500)).await;
        if let Some(next) = self.clock.next_wake() {
            self.clock.advance((next.saturating_sub(self.clock.now())).min(millis(10)));
        }
    }
}

fn on_body(number: u64, fault: Fault) -> FaultPlan {
    FaultPlan::none().on(Operation::Body, When::Nth(number), fault)
}

/// Five rounds of eight; or as long as it takes to notice that the last one is late, and to ask again.
const NORMAL: Duration = millis(1000);
const LATE: Duration = millis(4 * 200 + 200);

#[tokio::test]
async fn where_nothing_is_late_nothing_is_asked_for_twice() {
    let scene = Scene::new(FaultPlan::none()).await;
    let took = scene.fetch().await;
    assert!(took >= NORMAL && took < NORMAL + millis(400), "{took:?}");
    assert_eq!(scene.carrier.hedged(), 0);
}

#[tokio::test]
async fn one_that_stalls_is_asked_for_a_second_time() {
    // In the middle, and the last.
    for (number, normal) in [(15, NORMAL + USUAL), (CHUNKS, NORMAL - USUAL + LATE)] {
        let scene = Scene::new(on_body(number, Fault::Hang)).await;
        let took = scene.fetch().await;
        assert!(took < normal + millis(500), "{took:?}");
        assert_eq!(scene.carrier.hedged(), 1, "{number}");
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_is_asked_for_a_second_time() {
    let scene = Scene::new(FaultPlan::none().on(Operation::Get, When::Nth(CHUNKS), Fault::Hang)).await;
    let took = scene.fetch().await;
    assert!(took < NORMAL + LATE + millis(300), "{took:?}");
    assert_eq!(scene.carrier.hedged(), 1);
}

#[tokio::test]
async fn where_all_are_slow_nothing_is_asked_for_twice() {
    let slow = Fault::Delay(Duration::from_secs(2));
    for from in [1, 20] {
        let scene = Scene::new(FaultPlan::none().on(Operation::Body, When::From(from), slow)).await;
        let took = scene.fetch().await;
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert_eq!(scene.carrier.hedged(), 0, "from {from}");
    }
}

#[tokio::test]
async fn a_second_request_that_fails_costs_nothing() {
    let slow = on_body(CHUNKS, Fault::Delay(Duration::from_secs(5)));
    let faults = [
        (Operation::Get, Fault::FailBefore(Reason::Io)),
        (Operation::Get, Fault::FailBefore(Reason::NoSuchKey)),
        (Operation::Body, Fault::FailAt(0, Reason::CorruptData)),
        (Operation::Body, Fault::Hang),
    ];
    for (operation, fault) in faults {
        let scene = Scene::new(slow.clone().on(operation, When::Nth(CHUNKS + 1), fault)).await;
        let took = scene.fetch().await;
        assert!((5500..6500).contains(&took.as_millis()), "{fault:?}: {took:?}");
        assert_eq!(scene.carrier.hedged(), 1);
    }
}

#[tokio::test]
async fn nobody_waits_for_a_second_request() {
    let scene = Scene::new(on_body(CHUNKS, Fault::Hang)).await;
    let (others, carrier) = (AT_A_TIME - 1, scene.carrier.clone());
    let fetching = tokio::spawn(scene.fetching());
    while scene.clock.now() < NORMAL + millis(100) {
        scene.turn().await;
    }
    // Others have what the stalled one does not.
    let held: Vec<_> = (0..others).map(|_| carrier.slot(1).now_or_never().unwrap().unwrap()).collect();
    while scene.clock.now() < Duration::from_secs(10) {
        scene.turn().await;
    }
    assert_eq!(scene.carrier.hedged(), 0);
    drop(held);
    scene.run(async { fetching.await.unwrap() }).await;
    assert_eq!(scene.carrier.hedged(), 1);
}

#[tokio::test]
async fn under_a_limit_nothing_is_asked_for_twice() {
    let mut scene = Scene::new(on_body(CHUNKS, Fault::Delay(Duration::from_secs(5)))).await;
    let (plan, clock) = (*scene.carrier.plan(), scene.clock.clone());
    let carrier = Carrier::new(plan, scene.budget.clone(), clock, RetryOptions::default()).limited(1 << 30);
    scene.carrier = Arc::new(carrier);
    let took = scene.fetch().await;
    assert!(took > Duration::from_secs(5), "{took:?}");
    assert_eq!(scene.carrier.hedged(), 0);
}

#[tokio::test]
async fn who_reads_in_order_does_not_wait_for_one_that_stalls() {
    let scene = Scene::new(on_body(20, Fault::Hang)).await;
    let (carrier, store) = (scene.carrier.clone(), scene.store.clone());
    let took = scene.run(async move {
        let mut all = Vec::new();
        let take = |piece: Bytes| {
            all.extend_from_slice(&piece);
            std::future::ready(Ok(()))
        };
        Fetch::open(&carrier, &store, &at("k"), None).await.unwrap().write_in_order(take).await.unwrap();
        assert!(all == content(CHUNKS * CHUNK));
    });
    let took = took.await;
    assert!(took < 2 * NORMAL + LATE, "{took:?}");
    assert_eq!(scene.carrier.hedged(), 1);
}

#[tokio::test]
async fn small_objects_are_asked_for_a_second_time_too() {
    for operation in [Operation::Get, Operation::Body] {
        let scene = Scene::new(FaultPlan::none().on(operation, When::Nth(25), Fault::Hang)).await;
        let (carrier, store) = (scene.carrier.clone(), scene.store.clone());
        let took = scene.run(async move {
            let each = |_| async {
                let sink = Arc::new(Memory::default());
                let fetch = Fetch::open(&carrier, &store, &at("small"), Some(5000)).await.unwrap();
                fetch.write_to(sink.clone()).await.unwrap();
                assert!(sink.0.lock().unwrap().0 == content(5000));
            };
            iter(0..CHUNKS).map(each).buffer_unordered(AT_A_TIME).collect::<()>().await;
        });
        let took = took.await;
        assert!(took < NORMAL + LATE + millis(500), "{took:?}");
        assert_eq!(scene.carrier.hedged(), 1);
    }
}
