use tradewind_core::object::Expected;
use tradewind_core::testing::{MemoryStore, SimulatedClock, context};

use super::*;

const WAIT: Duration = Duration::from_secs(60);

/// A layer over memory stores, with a clock that stands still.
struct Fixture {
    backing: Arc<MemoryStore>,
    clock: Arc<SimulatedClock>,
    layer: Arc<WriteBack>,
}

impl Fixture {
    async fn open(delay: Duration) -> Self {
        let clock = SimulatedClock::new();
        let (backing, journal) = (MemoryStore::new(clock.clone()), MemoryStore::new(clock.clone()));
        let options = WriteBackOptions { delay, ..WriteBackOptions::default() };
        let policy = Arc::new(AllowAll);
        let layer = WriteBack::open(backing.clone(), journal, policy, options, clock.clone()).await.unwrap();
        for name in ["first", "second"] {
            layer.create_bucket(&context(), &bucket(name)).await.unwrap();
        }
        Self { backing, clock, layer }
    }

    async fn put(&self, address: &Address) {
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

    async fn has(&self, address: &Address) -> bool {
        self.backing.head(&context(), address, GetRequest::default()).await.is_ok()
    }
}

fn bucket(name: &str) -> BucketName {
    BucketName::new(name).unwrap()
}

fn key(bucket: &str) -> Address {
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
