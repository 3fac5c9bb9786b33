use futures::FutureExt;
use tradewind_core::object::Expected;
use tradewind_core::testing::{MemoryStore, SimulatedClock, context};

use super::*;

const WAIT: Duration = Duration::from_secs(60);

/// A layer over memory stores, with a clock that stands still.
pub(super) struct Fixture {
    backing: Arc<MemoryStore>,
    clock: Arc<SimulatedClock>,
    pub(super) layer: Arc<WriteBack>,
}

impl Fixture {
    pub(super) async fn open(delay: Duration) -> Self {
        let clock = SimulatedClock::new();
        let (backing, journal) = (MemoryStore::new(clock.clone()), MemoryStore::new(clock.clone()));
        let options = WriteBackOptions { delay, uncertain_window: WAIT, ..WriteBackOptions::default() };
        let policy = Arc::new(AllowAll);
        let layer = WriteBack::open(backing.clone(), journal, policy, options, clock.clone()).await.unwrap();
        for name in ["first", "second"] {
            layer.create_bucket(&context(), &bucket(name)).await.unwrap();
        }
        Self { backing, clock, layer }
    }

    pub(super) async fn put(&self, address: &Address) {
        let mut staged = self.layer.stage(&context(), address, one_byte()).await.unwrap();
        staged.write("x".into()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Advances the clock until a condition holds.
    async fn advance_until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let ended = tokio::time::timeout(WAIT, async {
            while !is_so().await {
                self.clock.advance(Duration::from_millis(50));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(ended.await.is_ok(), "{what}");
    }

    pub(super) async fn has(&self, address: &Address) -> bool {
        self.backing.head(&context(), address, GetRequest::default()).await.is_ok()
    }
}

pub(super) fn bucket(name: &str) -> BucketName {
    BucketName::new(name).unwrap()
}

pub(super) fn key(bucket: &str) -> Address {
    Address::parse(bucket, "k").unwrap()
}

fn one_byte() -> StageRequest {
    StageRequest { size: Some(1), ..StageRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_bucket_leaves_nothing_in_memory() {
    let fixture = Fixture::open(WAIT).await;
    let buckets = &fixture.layer.shared.buckets;
    fixture.put(&key("first")).await;
    fixture.layer.delete(&context(), &key("first"), Precondition::None).await.unwrap();
    assert!(buckets.is_in_memory(&bucket("first")));
    fixture.layer.delete_bucket(&context(), &bucket("first")).await.unwrap();
    assert!(!buckets.is_in_memory(&bucket("first")) && buckets.record(&bucket("first")).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_whose_gate_is_held_is_no_outage() {
    let fixture = Fixture::open(Duration::ZERO).await;
    let shared = &fixture.layer.shared;
    let gated = shared.bucket(&context(), &bucket("first")).await.unwrap();
    // A write that is in the journal, and is not written back, when a change of the bucket begins.
    let transfer = shared.transfer_locks.lock(&key("first")).await;
    fixture.put(&key("first")).await;
    let exclusive = gated.gate.clone().write_owned().await;
    drop(transfer);
    shared.bucket(&context(), &bucket("second")).await.unwrap();
    fixture.put(&key("second")).await;
    fixture.clock.advance(2 * REQUEST_TIMEOUT);
    fixture.advance_until("the other bucket is drained", async || fixture.has(&key("second")).await).await;
    fixture.clock.advance(2 * REQUEST_TIMEOUT);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(fixture.layer.status().failures, 0);
    assert!(!shared.is_backing_away.load(Ordering::Relaxed));
    drop(exclusive);
    fixture.advance_until("the bucket is drained", async || fixture.has(&key("first")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_a_window_takes_no_time_of_the_transfer() {
    let fixture = Fixture::open(WAIT).await;
    let shared = &fixture.layer.shared;
    let never = Deadline::none(fixture.clock.clone());
    let mut windows = Vec::new();
    while let Some(window) = shared.budget.admit(DRAIN_WINDOW_BYTES, &never).now_or_never() {
        windows.push(window.unwrap());
    }
    let mut waiting = Box::pin(shared.own_context(0));
    assert!((&mut waiting).now_or_never().is_none());
    fixture.clock.advance(REQUEST_TIMEOUT * 3 / 4);
    drop(windows);
    let context = waiting.await.unwrap();
    fixture.clock.advance(REQUEST_TIMEOUT * 3 / 4);
    context.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_a_request_that_is_dropped_is_uncertain() {
    let fixture = Fixture::open(WAIT).await;
    let (shared, key) = (&fixture.layer.shared, key("first"));
    assert!(shared.request(&key, async { Ok(()) }).now_or_never().is_some());
    assert!(shared.uncertain_until(&key).is_none());
    assert!(shared.request(&key, std::future::pending::<Result<()>>()).now_or_never().is_none());
    assert!(shared.uncertain_until(&key).is_some());
}
