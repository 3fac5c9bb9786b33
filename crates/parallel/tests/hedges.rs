//! Hedged chunks, on a simulated clock. A chunk that stalls is hedged and hardly delays its object; if all chunks are
//! slow, none is hedged. However the two requests end, each byte counts once, and all memory and permits are released.

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
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context,
};
use tradewind_core::{Address, Budget, Clock, ObjectStore};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::{Fetch, Sink, TransferContext};

const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = 40;
/// Usual duration of a chunk.
const USUAL: Duration = Duration::from_millis(200);
const CONCURRENCY: usize = 8;
const MEMORY: usize = 64 << 20;

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<dyn ObjectStore>,
    budget: Budget,
    transfers: Arc<TransferContext>,
}

/// A sink that counts the bytes written.
#[derive(Default)]
struct CountingSink(Mutex<(Vec<u8>, u64)>);

impl Sink for CountingSink {
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

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

impl Scene {
    /// A store with the object `k`. Each body takes the usual time, unless a fault is injected first.
    async fn new(faults: FaultPlan) -> Self {
        let clock = SimulatedClock::new();
        let inner: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        inner.create_bucket(&context(), &address("k").bucket).await.unwrap();
        for (key, size) in [("k", CHUNKS * CHUNK), ("small", 5000)] {
            let mut staged = inner.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
            staged.write(content(size)).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        let store = Faulty::new(
            inner,
            faults.with_fault(Operation::Body, FaultSchedule::Always, Fault::Delay(USUAL)),
        );
        let plan = Plan {
            initial_concurrency: CONCURRENCY,
            stream_bytes: CHUNK,
            max_buffered_bytes: CONCURRENCY as u64 * CHUNK,
            ..Plan::default().with_chunk_bytes(CHUNK)
        };
        let budget = Budget::new(MEMORY);
        let transfers = TransferContext::new(plan, budget.clone(), clock.clone(), RetryOptions::default());
        Self { clock, store, budget, transfers: Arc::new(transfers) }
    }

    /// Fetches the whole object and returns the time taken.
    async fn fetch(&self) -> Duration {
        self.run(self.fetching()).await
    }

    fn fetching(&self) -> impl Future<Output = ()> + Send + 'static {
        let (transfers, store) = (self.transfers.clone(), self.store.clone());
        async move {
            let sink = Arc::new(CountingSink::default());
            Fetch::open(&transfers, &store, &address("k"), None)
                .await
                .unwrap()
                .write_to(sink.clone())
                .await
                .unwrap();
            let received = sink.0.lock().unwrap();
            assert!(received.0 == content(CHUNKS * CHUNK));
            assert_eq!(received.1, CHUNKS * CHUNK, "each byte counts once");
        }
    }

    /// Advances the clock in small steps until `work` is done. Returns the time taken.
    async fn run(&self, work: impl Future<Output = ()> + Send + 'static) -> Duration {
        let (started, real_start) = (self.clock.now(), Instant::now());
        let work = tokio::spawn(work);
        while !work.is_finished() {
            // The clock stands still while no task sleeps, so real time is limited, too.
            let is_long = self.clock.now() - started > Duration::from_secs(60);
            assert!(!is_long && real_start.elapsed() < Duration::from_secs(60), "the fetch does not end");
            self.step().await;
        }
        work.await.unwrap();
        assert_eq!(self.budget.free(), MEMORY, "all memory is released");
        let held = (0..CONCURRENCY)
            .map(|_| self.transfers.acquire_request_permits(1).now_or_never().unwrap().unwrap());
        assert_eq!(held.collect::<Vec<_>>().len(), CONCURRENCY, "all permits are released");
        self.clock.now() - started
    }

    async fn step(&self) {
        // Let all tasks run that can.
        tokio::time::sleep(Duration::from_micros(500)).await;
        if let Some(next) = self.clock.next_wake() {
            self.clock.advance((next.saturating_sub(self.clock.now())).min(millis(10)));
        }
    }
}

fn on_body(number: u64, fault: Fault) -> FaultPlan {
    FaultPlan::none().with_fault(Operation::Body, FaultSchedule::Nth(number), fault)
}

/// Five rounds of eight chunks, and the time to detect and hedge a late last chunk.
const NORMAL: Duration = millis(1000);
const LATE: Duration = millis(4 * 200 + 200);

#[tokio::test]
async fn no_chunk_is_hedged_if_none_is_late() {
    let scene = Scene::new(FaultPlan::none()).await;
    let took = scene.fetch().await;
    assert!(took >= NORMAL && took < NORMAL + millis(400), "{took:?}");
    assert_eq!(scene.transfers.hedged_ranges(), 0);
}

#[tokio::test]
async fn stalled_chunk_is_hedged() {
    // A chunk in the middle, and the last one.
    for (number, normal) in [(15, NORMAL + USUAL), (CHUNKS, NORMAL - USUAL + LATE)] {
        let scene = Scene::new(on_body(number, Fault::Hang)).await;
        let took = scene.fetch().await;
        assert!(took < normal + millis(500), "{took:?}");
        assert_eq!(scene.transfers.hedged_ranges(), 1, "{number}");
    }
}

#[tokio::test]
async fn request_without_response_is_hedged() {
    let scene =
        Scene::new(FaultPlan::none().with_fault(Operation::Get, FaultSchedule::Nth(CHUNKS), Fault::Hang))
            .await;
    let took = scene.fetch().await;
    assert!(took < NORMAL + LATE + millis(300), "{took:?}");
    assert_eq!(scene.transfers.hedged_ranges(), 1);
}

#[tokio::test]
async fn no_chunk_is_hedged_if_all_are_slow() {
    let slow = Fault::Delay(Duration::from_secs(2));
    for from in [1, 20] {
        let scene =
            Scene::new(FaultPlan::none().with_fault(Operation::Body, FaultSchedule::From(from), slow)).await;
        let took = scene.fetch().await;
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert_eq!(scene.transfers.hedged_ranges(), 0, "from {from}");
    }
}

#[tokio::test]
async fn failed_hedge_does_not_delay_the_chunk() {
    let slow = on_body(CHUNKS, Fault::Delay(Duration::from_secs(5)));
    let faults = [
        (Operation::Get, Fault::FailBefore(Reason::Io)),
        (Operation::Get, Fault::FailBefore(Reason::NoSuchKey)),
        (Operation::Body, Fault::FailAt(0, Reason::CorruptData)),
        (Operation::Body, Fault::Hang),
    ];
    for (operation, fault) in faults {
        let scene =
            Scene::new(slow.clone().with_fault(operation, FaultSchedule::Nth(CHUNKS + 1), fault)).await;
        let took = scene.fetch().await;
        assert!((5500..6500).contains(&took.as_millis()), "{fault:?}: {took:?}");
        assert_eq!(scene.transfers.hedged_ranges(), 1);
    }
}

#[tokio::test]
async fn hedge_needs_a_free_permit() {
    let scene = Scene::new(on_body(CHUNKS, Fault::Hang)).await;
    let (others, transfers) = (CONCURRENCY - 1, scene.transfers.clone());
    let fetching = tokio::spawn(scene.fetching());
    while scene.clock.now() < NORMAL + millis(100) {
        scene.step().await;
    }
    // Other requests take all permits that the stalled one does not hold.
    let held: Vec<_> =
        (0..others).map(|_| transfers.acquire_request_permits(1).now_or_never().unwrap().unwrap()).collect();
    while scene.clock.now() < Duration::from_secs(10) {
        scene.step().await;
    }
    assert_eq!(scene.transfers.hedged_ranges(), 0);
    drop(held);
    scene.run(async { fetching.await.unwrap() }).await;
    assert_eq!(scene.transfers.hedged_ranges(), 1);
}

#[tokio::test]
async fn no_chunk_is_hedged_under_a_rate_limit() {
    let mut scene = Scene::new(on_body(CHUNKS, Fault::Delay(Duration::from_secs(5)))).await;
    let (plan, clock) = (*scene.transfers.plan(), scene.clock.clone());
    let transfers = TransferContext::new(plan, scene.budget.clone(), clock, RetryOptions::default())
        .with_rate_limit(1 << 30);
    scene.transfers = Arc::new(transfers);
    let took = scene.fetch().await;
    assert!(took > Duration::from_secs(5), "{took:?}");
    assert_eq!(scene.transfers.hedged_ranges(), 0);
}

#[tokio::test]
async fn stalled_chunk_of_an_ordered_read_is_hedged() {
    let scene = Scene::new(on_body(20, Fault::Hang)).await;
    let (transfers, store) = (scene.transfers.clone(), scene.store.clone());
    let took = scene.run(async move {
        let mut all = Vec::new();
        let take = |piece: Bytes| {
            all.extend_from_slice(&piece);
            std::future::ready(Ok(()))
        };
        Fetch::open(&transfers, &store, &address("k"), None)
            .await
            .unwrap()
            .write_in_order(take)
            .await
            .unwrap();
        assert!(all == content(CHUNKS * CHUNK));
    });
    let took = took.await;
    assert!(took < 2 * NORMAL + LATE, "{took:?}");
    assert_eq!(scene.transfers.hedged_ranges(), 1);
}

#[tokio::test]
async fn stalled_small_object_is_hedged() {
    for operation in [Operation::Get, Operation::Body] {
        let scene =
            Scene::new(FaultPlan::none().with_fault(operation, FaultSchedule::Nth(25), Fault::Hang)).await;
        let (transfers, store) = (scene.transfers.clone(), scene.store.clone());
        let took = scene.run(async move {
            let each = |_| async {
                let sink = Arc::new(CountingSink::default());
                let fetch = Fetch::open(&transfers, &store, &address("small"), Some(5000)).await.unwrap();
                fetch.write_to(sink.clone()).await.unwrap();
                assert!(sink.0.lock().unwrap().0 == content(5000));
            };
            iter(0..CHUNKS).map(each).buffer_unordered(CONCURRENCY).collect::<()>().await;
        });
        let took = took.await;
        assert!(took < NORMAL + LATE + millis(500), "{took:?}");
        assert_eq!(scene.transfers.hedged_ranges(), 1);
    }
}
