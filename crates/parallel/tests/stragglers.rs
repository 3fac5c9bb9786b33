//! Straggling parts at the end of an upload, on a simulated clock. A stalled part is aborted and sent again, and hardly
//! delays its object. No part is aborted if all are slow, or once the store may have received all of it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use tradewind_core::error::Result;
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context,
};
use tradewind_core::{Address, Budget, Clock, Metadata, ObjectStore};
use tradewind_model::plan::{MIN_PART_BYTES, Plan};
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_parallel::{TransferContext, UploadSource, store_object};

const PARTS: u64 = 24;
const SIZE: u64 = PARTS * MIN_PART_BYTES;
/// Number of pieces in which a part is handed over.
const PIECES: u64 = MIN_PART_BYTES.div_ceil(BUFFER_BYTES as u64);
/// Usual time to commit a part.
const USUAL: Duration = Duration::from_millis(200);
const CONCURRENCY: usize = 4;
const MEMORY: usize = 64 << 20;

/// A source whose bytes depend on their offset, and which counts the bytes sent.
#[derive(Default)]
struct PatternSource(AtomicI64);

const fn byte(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

impl UploadSource for PatternSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.iter_mut().zip(offset..).for_each(|(to, at)| *to = byte(at));
        Ok(())
    }

    fn report_sent(&self, bytes: i64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<Faulty<dyn ObjectStore>>,
    budget: Budget,
    transfers: Arc<TransferContext>,
}

fn address() -> Address {
    Address::parse("bucket", "k").unwrap()
}

impl Scene {
    async fn new(faults: FaultPlan) -> Self {
        let clock = SimulatedClock::new();
        let inner: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        inner.create_bucket(&context(), &address().bucket).await.unwrap();
        let store = Faulty::new(
            inner,
            faults.with_fault(Operation::CommitPart, FaultSchedule::Always, Fault::Delay(USUAL)),
        );
        let plan =
            Plan { initial_concurrency: CONCURRENCY, ..Plan::default().with_chunk_bytes(MIN_PART_BYTES) };
        let budget = Budget::new(MEMORY);
        let transfers = TransferContext::new(plan, budget.clone(), clock.clone(), RetryOptions::default());
        Self { clock, store, budget, transfers: Arc::new(transfers) }
    }

    /// Stores the object and returns the time taken; `None` if it does not end.
    async fn upload(&self) -> Option<Duration> {
        let source = Arc::new(PatternSource::default());
        let (transfers, to, from) = (self.transfers.clone(), self.store.clone(), source.clone());
        let (started, real_start) = (self.clock.now(), Instant::now());
        let work = tokio::spawn(async move {
            let to: Arc<dyn ObjectStore> = to;
            store_object(&transfers, &to, &address(), from, SIZE, Metadata::default()).await.unwrap();
        });
        while !work.is_finished() {
            if self.clock.now() - started > Duration::from_secs(30) {
                work.abort();
                return None;
            }
            assert!(real_start.elapsed() < Duration::from_secs(60), "the upload does not end");
            // Let all tasks run that can. The simulated clock advances up to five times faster than real time.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if let Some(next) = self.clock.next_wake() {
                self.clock.advance(next.saturating_sub(self.clock.now()).min(Duration::from_millis(10)));
            }
        }
        work.await.unwrap();
        assert_eq!(source.0.load(Ordering::Relaxed), i64::try_from(SIZE).unwrap(), "each byte counts once");
        assert_eq!(self.budget.free(), MEMORY, "all memory is released");
        let held = (0..CONCURRENCY)
            .map(|_| self.transfers.acquire_request_permits(1).now_or_never().unwrap().unwrap());
        assert_eq!(held.collect::<Vec<_>>().len(), CONCURRENCY, "all permits are released");
        self.check().await;
        Some(self.clock.now() - started)
    }

    async fn check(&self) {
        let get = GetRequest::default();
        let mut body = self.store.get(&context(), &address(), get).await.unwrap().body;
        let mut at = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.unwrap();
            assert!(piece.iter().zip(at..).all(|(found, at)| *found == byte(at)));
            at += piece.len() as u64;
        }
        assert_eq!(at, SIZE);
    }

    /// Number of parts started, including repeated ones.
    fn parts_started(&self) -> u64 {
        self.store.calls(Operation::StagePart)
    }
}

/// Injects a fault into the n-th piece written overall. Which part that is depends on how the parts in flight
/// interleave.
fn on_piece(number: u64, fault: Fault) -> FaultPlan {
    FaultPlan::none().with_fault(Operation::Write, FaultSchedule::Nth(number), fault)
}

/// Waits in real time.
async fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "the condition is not met in time");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_parts_start_staggered_over_one_rtt() {
    let (created, rtt) = (Duration::from_millis(250), Duration::from_millis(80));
    let slow =
        FaultPlan::none().with_fault(Operation::CreateUpload, FaultSchedule::Always, Fault::Delay(created));
    for (plan, expected) in [(slow.clone().with_rtt(rtt), CONCURRENCY as u64), (slow, 2)] {
        let scene = Scene::new(plan).await;
        let (transfers, to) = (scene.transfers.clone(), scene.store.clone());
        let work = tokio::spawn(async move {
            let to: Arc<dyn ObjectStore> = to;
            store_object(
                &transfers,
                &to,
                &address(),
                Arc::<PatternSource>::default(),
                SIZE,
                Metadata::default(),
            )
            .await
        });
        wait_until(|| scene.clock.next_wake() == Some(created)).await;
        scene.clock.advance(created);
        wait_until(|| scene.parts_started() > 0).await;
        scene.clock.advance(rtt);
        // If the store reports no RTT, the response time of creating the upload stands for it.
        wait_until(|| scene.parts_started() >= expected).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(scene.parts_started(), expected);
        work.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_part_is_sent_again() {
    let usual = Scene::new(FaultPlan::none()).await;
    let took = usual.upload().await.unwrap();
    assert_eq!(usual.parts_started(), PARTS);
    // A piece of one of the last parts, and one in the middle.
    for number in [(PARTS - 1) * PIECES, PARTS / 2 * PIECES + 7] {
        let scene = Scene::new(on_piece(number, Fault::Hang)).await;
        let with = scene.upload().await.expect("the stalled part is sent again");
        assert_eq!(scene.parts_started(), PARTS + 1);
        assert!(with < took + 5 * USUAL, "{with:?}, {took:?} without");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_part_is_sent_again_if_all_are_slow() {
    let slow = Fault::Delay(Duration::from_millis(10));
    let scene = Scene::new(FaultPlan::none().with_fault(Operation::Write, FaultSchedule::Always, slow)).await;
    assert!(scene.upload().await.is_some());
    assert_eq!(scene.parts_started(), PARTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_that_may_be_stored_is_not_aborted() {
    let scene = Scene::new(FaultPlan::none().with_fault(
        Operation::CommitPart,
        FaultSchedule::Nth(PARTS - 1),
        Fault::Hang,
    ))
    .await;
    assert_eq!(scene.upload().await, None, "the store may have the whole part, so it must not be aborted");
    assert_eq!(scene.parts_started(), PARTS);
}
