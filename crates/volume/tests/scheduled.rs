//! A store whose requests take turns is the same store, and who lets go of a turn leaves nothing behind.

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
    Fault, FaultPlan, Faulty, MemoryStore, Operation as At, SimulatedClock, When, conformance, context_until,
    stacked,
};
use tradewind_core::{Address, Budget, Clock as _, Context, ObjectStore, SystemClock};
use tradewind_model::lanes::LanesOptions;
use tradewind_volume::Scheduled;
use tradewind_volume::scheduled::Priorities;

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
    conformance::run(|| async { stacked(scheduled(stacked(memory(), 1)), 1) }.boxed()).await;
}

#[tokio::test]
async fn it_answers_as_the_memory_store_does() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { scheduled(memory()) }.boxed(), seed, 100).await;
    }
}

/// A store in which every write takes 5 ms for each piece, at a clock turned by hand.
struct House {
    clock: Arc<SimulatedClock>,
    faults: Arc<Faulty<MemoryStore>>,
    store: Arc<Scheduled>,
    budget: Budget,
}

fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

impl House {
    async fn new() -> Self {
        let clock = SimulatedClock::new();
        let faults = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let first = Priorities::new(vec!["bucket/first".to_owned()], ["shop".to_owned()].into());
        let options = LanesOptions { most_waiting: 3 };
        let store = Scheduled::new(faults.clone(), options, first, clock.clone());
        let house = Self { clock, faults, store, budget: Budget::new(1 << 30) };
        house.store.create_bucket(&house.context(), &key("k").bucket).await.unwrap();
        house
    }

    fn context(&self) -> Context {
        context_until(&self.budget, Deadline::none(self.clock.clone()))
    }

    async fn put(&self, name: &str, size: usize) -> Result<()> {
        self.put_as(None, name, size).await
    }

    async fn put_as(&self, client: Option<&str>, name: &str, size: usize) -> Result<()> {
        let context = self.context().of_client(client.map(Into::into));
        let request = StageRequest { size: Some(size as u64), ..StageRequest::default() };
        let mut staged = self.store.stage(&context, &key(name), request).await?;
        staged.write(vec![7; size].into()).await?;
        staged.commit(Expected::default()).await.map(drop)
    }

    /// Time goes on until this has come, and how long it took.
    async fn pass<T>(&self, work: impl Future<Output = T>) -> (T, Duration) {
        let (begun, mut work) = (self.clock.now(), pin!(work));
        loop {
            for _ in 0..4 {
                if let Some(done) = work.as_mut().now_or_never() {
                    return (done, self.clock.now() - begun);
                }
                tokio::task::yield_now().await;
            }
            assert!(self.clock.now() < begun + Duration::from_secs(60), "it never comes");
            self.clock.advance(MILLI);
        }
    }

    /// Lanes learn that small requests take 5 ms and that large ones carry 100 MB a second.
    async fn learn(&self) {
        self.faults.follow(FaultPlan::none().on(At::Commit, When::Always, Fault::Delay(5 * MILLI)));
        for _ in 0..150 {
            self.pass(self.put("small", 4096)).await.0.unwrap();
            let both = async { futures::try_join!(self.put("a", LARGE / 2), self.put("b", LARGE / 2)) };
            self.pass(both).await.0.unwrap();
        }
    }
}

#[tokio::test]
async fn large_ones_wait_while_small_ones_do_not() {
    let house = House::new().await;
    house.learn().await;
    // Far more than was ever carried.
    let (done, took) = house.pass(house.put("large", 32 * LARGE)).await;
    done.unwrap();
    assert!(took > 100 * MILLI, "{took:?}");
    let many = async {
        futures::join!(house.put("large", 32 * LARGE), house.put("small", 4096), house.put("first", 4096))
    };
    let mut many = pin!(many);
    assert!(many.as_mut().now_or_never().is_none());
    assert_eq!(house.store.waiting(), 1, "the large one");
    assert_eq!(house.store.under_way(), 3);
    house.pass(many).await.0.0.unwrap();
    assert_eq!((house.store.waiting(), house.store.under_way()), (0, 0));
}

#[tokio::test]
async fn who_goes_first_does_not_wait_behind_those_who_do_not() {
    let house = House::new().await;
    house.learn().await;
    let mut batch = pin!(house.put_as(Some("batch"), "a", 32 * LARGE));
    assert!(batch.as_mut().now_or_never().is_none());
    // As large, and all that may be under way beside it: the client goes first, whatever its key.
    let mut other = pin!(house.put_as(Some("other"), "b", 32 * LARGE));
    assert!(other.as_mut().now_or_never().is_none());
    assert_eq!(house.store.waiting(), 2);
    let mut shop = pin!(house.put_as(Some("shop"), "c", 32 * LARGE));
    assert!(shop.as_mut().now_or_never().is_none(), "the store takes its time");
    assert_eq!((house.store.waiting(), house.store.under_way()), (2, 3));
    house.pass(shop).await.0.unwrap();
    assert_eq!(house.store.waiting(), 2, "the others are not done");
    house.pass(async { futures::try_join!(batch, other) }).await.0.unwrap();
    assert_eq!((house.store.waiting(), house.store.under_way()), (0, 0));
}

#[tokio::test]
async fn who_is_dropped_gives_its_place_back() {
    let house = House::new().await;
    house.learn().await;
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(house.put("large", 32 * LARGE))).collect();
    for put in &mut waiting {
        assert!(put.now_or_never().is_none());
    }
    assert_eq!(house.store.waiting(), 3);
    let refused = house.put("large", LARGE).now_or_never().unwrap().unwrap_err();
    assert!(refused.reason() == Reason::Overloaded && refused.kind().is_retryable(), "{refused:?}");
    // The one that watches the clock is among those that go.
    waiting.drain(..2).for_each(drop);
    assert_eq!((house.store.waiting(), house.store.under_way()), (1, 1));
    house.pass(waiting.remove(0)).await.0.unwrap();
    assert_eq!((house.store.waiting(), house.store.under_way()), (0, 0));
}

#[tokio::test]
async fn who_is_not_polled_any_more_keeps_nobody() {
    let house = House::new().await;
    house.learn().await;
    let mut stuck = Box::pin(house.put("large", 32 * LARGE));
    assert!(stuck.as_mut().now_or_never().is_none());
    let (done, took) = house.pass(house.put("large", 4 * LARGE)).await;
    done.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    house.pass(stuck).await.0.unwrap();
}

#[tokio::test]
async fn a_deadline_is_heeded_while_a_turn_is_waited_for() {
    let house = House::new().await;
    house.learn().await;
    let deadline = Deadline::after(house.clock.clone(), 20 * MILLI);
    let context = context_until(&house.budget, deadline);
    let late = async {
        let request = StageRequest { size: Some(64 * LARGE as u64), ..StageRequest::default() };
        let mut staged = house.store.stage(&context, &key("late"), request).await?;
        staged.write(vec![7; 64 * LARGE].into()).await
    };
    let (late, took) = house.pass(late).await;
    assert_eq!(late.unwrap_err().reason(), Reason::DeadlineExceeded);
    assert!(took <= 25 * MILLI, "{took:?}");
    assert_eq!((house.store.waiting(), house.store.under_way()), (0, 0));
}

#[tokio::test]
async fn who_reads_slowly_holds_nothing() {
    let house = House::new().await;
    house.pass(house.put("large", 8 * LARGE)).await.0.unwrap();
    house.learn().await;
    let context = house.context();
    let found = house.pass(house.store.get(&context, &key("large"), Default::default())).await.0.unwrap();
    let mut body = found.body;
    house.pass(body.next()).await.0.unwrap().unwrap();
    house.clock.advance(Duration::from_secs(5));
    assert_eq!(house.store.waiting(), 0, "it asks for nothing");
    let (done, took) = house.pass(house.put("small", 4096)).await;
    done.unwrap();
    assert!(took <= 6 * MILLI, "{took:?}");
    drop(body);
    assert_eq!(house.store.under_way(), 0);
}
