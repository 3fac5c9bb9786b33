//! A store with lanes behaves like the store itself, and cancelled requests leave nothing queued or in flight.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as At, SimulatedClock, conformance,
    context_until, stack_layers,
};
use tradewind_core::{Address, Budget, Clock as _, Context, ObjectStore, SystemClock};
use tradewind_layers::Scheduled;
use tradewind_layers::scheduled::Priorities;
use tradewind_model::lanes::LanesOptions;

const MILLI: Duration = Duration::from_millis(1);
const LARGE: usize = 1 << 20;

fn scheduled(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    Scheduled::new(inner, LanesOptions::default(), Priorities::default(), SystemClock::shared())
}

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_over_memory() {
    conformance::run(|| async { scheduled(memory()) }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_conforms_under_and_over_other_layers() {
    conformance::run(|| async { stack_layers(scheduled(stack_layers(memory(), 1)), 1) }.boxed()).await;
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { scheduled(memory()) }.boxed(), seed, 100).await;
    }
}

/// A lanes layer over a store with injected delays, on a simulated clock.
struct Fixture {
    clock: Arc<SimulatedClock>,
    faults: Arc<Faulty<MemoryStore>>,
    store: Arc<Scheduled>,
    budget: Budget,
}

fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

impl Fixture {
    async fn new() -> Self {
        let clock = SimulatedClock::new();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let first = Priorities::new(vec!["bucket/first".to_owned()], ["shop".to_owned()].into());
        let options = LanesOptions { max_queue_depth: 3 };
        let store = Scheduled::new(faults.clone(), options, first, clock.clone());
        let fixture = Self { clock, faults, store, budget: Budget::new(1 << 30) };
        fixture.store.create_bucket(&fixture.context(), &key("k").bucket).await.unwrap();
        fixture
    }

    fn context(&self) -> Context {
        context_until(&self.budget, Deadline::none(self.clock.clone()))
    }

    async fn put(&self, name: &str, size: usize) -> Result<()> {
        self.put_as(None, name, size).await
    }

    async fn put_as(&self, client: Option<&str>, name: &str, size: usize) -> Result<()> {
        let context = self.context().with_client(client.map(Into::into));
        let request = StageRequest { size: Some(size as u64), ..StageRequest::default() };
        let mut staged = self.store.stage(&context, &key(name), request).await?;
        staged.write(vec![7; size].into()).await?;
        staged.commit(Expected::default()).await.map(drop)
    }

    /// Advances the clock until `work` is done. Returns its output and the time taken.
    async fn advance_until<T>(&self, work: impl Future<Output = T>) -> (T, Duration) {
        let (started, mut work) = (self.clock.now(), pin!(work));
        loop {
            for _ in 0..4 {
                if let Some(done) = work.as_mut().now_or_never() {
                    return (done, self.clock.now() - started);
                }
                tokio::task::yield_now().await;
            }
            assert!(self.clock.now() < started + Duration::from_secs(60), "the work does not end");
            self.clock.advance(MILLI);
        }
    }

    /// Runs requests until the lanes have measured 5 ms for small requests and a capacity for large ones.
    async fn warm_up(&self) {
        self.faults.set_plan(FaultPlan::none().with_fault(
            At::Commit,
            FaultSchedule::Always,
            Fault::Delay(5 * MILLI),
        ));
        for _ in 0..150 {
            self.advance_until(self.put("small", 4096)).await.0.unwrap();
            let both = async { futures::try_join!(self.put("a", LARGE / 2), self.put("b", LARGE / 2)) };
            self.advance_until(both).await.0.unwrap();
        }
    }
}

#[tokio::test]
async fn large_requests_queue_while_small_ones_pass() {
    let fixture = Fixture::new().await;
    fixture.warm_up().await;
    // Far more than the measured capacity.
    let (done, took) = fixture.advance_until(fixture.put("large", 32 * LARGE)).await;
    done.unwrap();
    assert!(took > 100 * MILLI, "{took:?}");
    let many = async {
        futures::join!(
            fixture.put("large", 32 * LARGE),
            fixture.put("small", 4096),
            fixture.put("first", 4096)
        )
    };
    let mut many = pin!(many);
    assert!(many.as_mut().now_or_never().is_none());
    assert_eq!(fixture.store.queued(), 1, "the large request is queued");
    assert_eq!(fixture.store.entered_count(), 3);
    fixture.advance_until(many).await.0.0.unwrap();
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (0, 0));
}

#[tokio::test]
async fn high_priority_client_overtakes_normal_ones() {
    let fixture = Fixture::new().await;
    fixture.warm_up().await;
    let mut batch = pin!(fixture.put_as(Some("batch"), "a", 32 * LARGE));
    assert!(batch.as_mut().now_or_never().is_none());
    // Two large requests of normal priority are queued. A client of high priority overtakes them, whatever its key.
    let mut other = pin!(fixture.put_as(Some("other"), "b", 32 * LARGE));
    assert!(other.as_mut().now_or_never().is_none());
    assert_eq!(fixture.store.queued(), 2);
    let mut shop = pin!(fixture.put_as(Some("shop"), "c", 32 * LARGE));
    assert!(shop.as_mut().now_or_never().is_none(), "the request is waiting for the store");
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (2, 3));
    fixture.advance_until(shop).await.0.unwrap();
    assert_eq!(fixture.store.queued(), 2, "the requests of normal priority are still queued");
    fixture.advance_until(async { futures::try_join!(batch, other) }).await.0.unwrap();
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (0, 0));
}

#[tokio::test]
async fn dropped_requests_leave_the_queue() {
    let fixture = Fixture::new().await;
    fixture.warm_up().await;
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(fixture.put("large", 32 * LARGE))).collect();
    for put in &mut waiting {
        assert!(put.now_or_never().is_none());
    }
    assert_eq!(fixture.store.queued(), 3);
    let rejected = fixture.put("large", LARGE).now_or_never().unwrap().unwrap_err();
    assert!(rejected.reason() == Reason::Overloaded && rejected.kind().is_retryable(), "{rejected:?}");
    // The timekeeper is among the dropped requests.
    waiting.drain(..2).for_each(drop);
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (1, 1));
    fixture.advance_until(waiting.remove(0)).await.0.unwrap();
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (0, 0));
}

#[tokio::test]
async fn request_that_is_not_polled_delays_no_other() {
    let fixture = Fixture::new().await;
    fixture.warm_up().await;
    let mut stuck = Box::pin(fixture.put("large", 32 * LARGE));
    assert!(stuck.as_mut().now_or_never().is_none());
    let (done, took) = fixture.advance_until(fixture.put("large", 4 * LARGE)).await;
    done.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    fixture.advance_until(stuck).await.0.unwrap();
}

#[tokio::test]
async fn deadline_applies_while_a_request_is_queued() {
    let fixture = Fixture::new().await;
    fixture.warm_up().await;
    let deadline = Deadline::after(fixture.clock.clone(), 20 * MILLI);
    let context = context_until(&fixture.budget, deadline);
    let late = async {
        let request = StageRequest { size: Some(64 * LARGE as u64), ..StageRequest::default() };
        let mut staged = fixture.store.stage(&context, &key("late"), request).await?;
        staged.write(vec![7; 64 * LARGE].into()).await
    };
    let (late, took) = fixture.advance_until(late).await;
    assert_eq!(late.unwrap_err().reason(), Reason::DeadlineExceeded);
    assert!(took <= 25 * MILLI, "{took:?}");
    assert_eq!((fixture.store.queued(), fixture.store.entered_count()), (0, 0));
}

#[tokio::test]
async fn slow_reader_holds_no_place_in_its_lane() {
    let fixture = Fixture::new().await;
    fixture.advance_until(fixture.put("large", 8 * LARGE)).await.0.unwrap();
    fixture.warm_up().await;
    let context = fixture.context();
    let found = fixture
        .advance_until(fixture.store.get(&context, &key("large"), Default::default()))
        .await
        .0
        .unwrap();
    let mut body = found.body;
    fixture.advance_until(body.next()).await.0.unwrap().unwrap();
    fixture.clock.advance(Duration::from_secs(5));
    assert_eq!(fixture.store.queued(), 0, "a reader that does not poll is not queued");
    let (done, took) = fixture.advance_until(fixture.put("small", 4096)).await;
    done.unwrap();
    assert!(took <= 6 * MILLI, "{took:?}");
    drop(body);
    assert_eq!(fixture.store.entered_count(), 0);
}
