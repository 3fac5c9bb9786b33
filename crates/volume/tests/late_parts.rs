//! Parts of an upload that fall behind once all have begun: one that stands still is broken off and sent again, and costs its object
//! little time. Where all are slow none is, and none of which the store may have everything. By a clock that the tests turn.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::testing::{
    Fault, FaultPlan, Faulty, MemoryStore, Operation, SimulatedClock, When, context,
};
use tradewind_core::{Address, Budget, Clock, Metadata, ObjectStore, ReadConditions};
use tradewind_model::plan::{LEAST_PART, Plan};
use tradewind_model::retry::RetryOptions;
use tradewind_volume::buffers::BUFFER_BYTES;
use tradewind_volume::{Carrier, Source, store};

const PARTS: u64 = 24;
const SIZE: u64 = PARTS * LEAST_PART;
/// A part is handed over in so many pieces.
const PIECES: u64 = LEAST_PART.div_ceil(BUFFER_BYTES as u64);
/// How long the store takes to keep a part.
const USUAL: Duration = Duration::from_millis(200);
const AT_A_TIME: usize = 4;
const MEMORY: usize = 64 << 20;

/// Bytes that follow from where they are, and how many of them are told of as sent.
#[derive(Default)]
struct Numbers(AtomicI64);

const fn byte(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

impl Source for Numbers {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.iter_mut().zip(offset..).for_each(|(to, at)| *to = byte(at));
        Ok(())
    }

    fn sent(&self, bytes: i64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<Faulty<dyn ObjectStore>>,
    budget: Budget,
    carrier: Arc<Carrier>,
}

fn address() -> Address {
    Address::parse("bucket", "k").unwrap()
}

impl Scene {
    async fn new(faults: FaultPlan) -> Self {
        let clock = SimulatedClock::new();
        let below: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        below.create_bucket(&context(), &address().bucket).await.unwrap();
        let store = Faulty::new(below, faults.on(Operation::CommitPart, When::Always, Fault::Delay(USUAL)));
        let plan = Plan { requests: AT_A_TIME, ..Plan::default().with_chunks(LEAST_PART) };
        let budget = Budget::new(MEMORY);
        let carrier = Carrier::new(plan, budget.clone(), clock.clone(), RetryOptions::default());
        Self { clock, store, budget, carrier: Arc::new(carrier) }
    }

    /// Stores the object; how long that took, `None` where it does not end.
    async fn upload(&self) -> Option<Duration> {
        let source = Arc::new(Numbers::default());
        let (carrier, to, from) = (self.carrier.clone(), self.store.clone(), source.clone());
        let (begun, really) = (self.clock.now(), Instant::now());
        let work = tokio::spawn(async move {
            let to: Arc<dyn ObjectStore> = to;
            store(&carrier, &to, &address(), from, SIZE, Metadata::default()).await.unwrap();
        });
        while !work.is_finished() {
            if self.clock.now() - begun > Duration::from_secs(30) {
                work.abort();
                return None;
            }
            assert!(really.elapsed() < Duration::from_secs(60), "it does not end");
            // What can go on does: what a processor needs for it meanwhile counts for five times as much by the clock.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if let Some(next) = self.clock.next_wake() {
                self.clock.advance(next.saturating_sub(self.clock.now()).min(Duration::from_millis(10)));
            }
        }
        work.await.unwrap();
        assert_eq!(source.0.load(Ordering::Relaxed), i64::try_from(SIZE).unwrap(), "each byte counts once");
        assert_eq!(self.budget.free(), MEMORY, "all memory is given back");
        let slots = (0..AT_A_TIME).map(|_| self.carrier.slot(1).now_or_never().unwrap().unwrap());
        assert_eq!(slots.collect::<Vec<_>>().len(), AT_A_TIME, "all slots are given back");
        self.check().await;
        Some(self.clock.now() - begun)
    }

    async fn check(&self) {
        let get = GetRequest { select: Select::Whole, conditions: ReadConditions::default() };
        let mut body = self.store.get(&context(), &address(), get).await.unwrap().body;
        let mut at = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.unwrap();
            assert!(piece.iter().zip(at..).all(|(found, at)| *found == byte(at)));
            at += piece.len() as u64;
        }
        assert_eq!(at, SIZE);
    }

    /// Parts that were begun.
    fn begun(&self) -> u64 {
        self.store.calls(Operation::StagePart)
    }
}

/// The piece of a part that is written at some number in all: how they come one after the other is chance, within those under way.
fn on_piece(number: u64, fault: Fault) -> FaultPlan {
    FaultPlan::none().on(Operation::Write, When::Nth(number), fault)
}

/// Waits, by no clock of the scene.
async fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come about");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_parts_begin_within_a_round_trip() {
    let (created, round_trip) = (Duration::from_millis(250), Duration::from_millis(80));
    let slow = FaultPlan::none().on(Operation::CreateUpload, When::Always, Fault::Delay(created));
    for (plan, expected) in [(slow.clone().behind(round_trip), AT_A_TIME as u64), (slow, 2)] {
        let scene = Scene::new(plan).await;
        let (carrier, to) = (scene.carrier.clone(), scene.store.clone());
        let work = tokio::spawn(async move {
            let to: Arc<dyn ObjectStore> = to;
            store(&carrier, &to, &address(), Arc::<Numbers>::default(), SIZE, Metadata::default()).await
        });
        wait_until(|| scene.clock.next_wake() == Some(created)).await;
        scene.clock.advance(created);
        wait_until(|| scene.begun() > 0).await;
        scene.clock.advance(round_trip);
        // Who does not know takes what creating took for one.
        wait_until(|| scene.begun() >= expected).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(scene.begun(), expected);
        work.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_still_is_sent_again() {
    let usual = Scene::new(FaultPlan::none()).await;
    let took = usual.upload().await.unwrap();
    assert_eq!(usual.begun(), PARTS);
    // One of the last, one in the middle.
    for number in [(PARTS - 1) * PIECES, PARTS / 2 * PIECES + 7] {
        let scene = Scene::new(on_piece(number, Fault::Hang)).await;
        let with = scene.upload().await.expect("it was sent again");
        assert_eq!(scene.begun(), PARTS + 1);
        assert!(with < took + 5 * USUAL, "{with:?}, {took:?} without");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_are_slow_none_is_sent_again() {
    let slow = Fault::Delay(Duration::from_millis(10));
    let scene = Scene::new(FaultPlan::none().on(Operation::Write, When::Always, slow)).await;
    assert!(scene.upload().await.is_some());
    assert_eq!(scene.begun(), PARTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_may_have_is_waited_for() {
    let scene =
        Scene::new(FaultPlan::none().on(Operation::CommitPart, When::Nth(PARTS - 1), Fault::Hang)).await;
    assert_eq!(scene.upload().await, None, "nobody knows what becomes of it");
    assert_eq!(scene.begun(), PARTS);
}
