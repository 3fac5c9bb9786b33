use std::future::Future;
use std::pin::pin;

use futures::FutureExt as _;
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context, write_all,
};
use tradewind_core::{Address, BucketName, ObjectStore, Precondition, SystemClock};
use tradewind_layers::Deduplicated;
use tradewind_layers::deduplicated::{DeduplicationPolicy, MIN_MIN_OBJECT_BYTES};
use tradewind_layers::transformed::ClassSet;

use super::*;

const POLICY: DeduplicationPolicy =
    DeduplicationPolicy { classes: ClassSet::ALL, min_bytes: MIN_MIN_OBJECT_BYTES };
const CHUNKS: &str = "tradewind-deduplicated-chunks";

async fn put(store: &dyn ObjectStore, key: &str, size: usize) {
    let address = Address::parse("bucket", key).unwrap();
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    write_all(&mut *staged, vec![7; size].into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

/// A store with five objects.
async fn store() -> Arc<MemoryStore> {
    let store = MemoryStore::new(SystemClock::shared());
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    for key in ["a", "b", "c", "d", "e"] {
        put(&*store, key, 1_000).await;
    }
    store
}

/// A store with a deduplicated object whose chunks are lost.
async fn store_without_chunks() -> Arc<MemoryStore> {
    let store = store().await;
    let layer = Deduplicated::open(&context(), store.clone(), POLICY).await.unwrap();
    put(&*layer, "large", 300_000).await;
    let bucket = BucketName::new(CHUNKS).unwrap();
    let request = ListRequest { limit: 1_000, ..ListRequest::default() };
    for entry in store.list(&context(), &bucket, &request).await.unwrap().entries {
        let address = Address::parse(CHUNKS, entry.name()).unwrap();
        store.delete(&context(), &address, Precondition::None).await.unwrap();
    }
    store.delete_bucket(&context(), &bucket).await.unwrap();
    store
}

/// A layer whose HEADs have faults.
struct FaultyVolume {
    store: Arc<Faulty<MemoryStore>>,
    served: ServedDeduplicated,
}

async fn volume(name: &str, store: Arc<MemoryStore>, when: FaultSchedule, fault: Fault) -> FaultyVolume {
    let store = Faulty::new(store, FaultPlan::none().with_fault(Operation::Head, when, fault));
    let layer = Deduplicated::open_unprepared(&context(), store.clone(), POLICY).await.unwrap();
    let served = ServedDeduplicated { volume: name.to_owned(), layer, collect_every: Duration::ZERO };
    FaultyVolume { store, served }
}

fn preparation(
    volumes: &[&FaultyVolume],
    clock: &Arc<SimulatedClock>,
) -> impl Future<Output = anyhow::Error> + use<> {
    let layers = volumes.iter().map(|volume| volume.served.clone()).collect();
    let (budget, clock, stop) = (Budget::new(64 << 20), clock.clone(), CancellationToken::new());
    ChunkPreparation { layers, budget, clock, stop }.failure()
}

#[tokio::test]
async fn preparation_goes_on_with_the_object_whose_head_failed() {
    let clock = SimulatedClock::new();
    let fault = Fault::FailBefore(Reason::Overloaded);
    let volume = volume("one", store().await, FaultSchedule::Nth(3), fault).await;
    let mut failure = pin!(preparation(&[&volume], &clock));
    assert!(failure.as_mut().now_or_never().is_none());
    assert_eq!((volume.store.calls(Operation::Head), volume.served.layer.examined_objects()), (3, 2));
    clock.advance(RETRY_INTERVAL);
    assert!(failure.as_mut().now_or_never().is_none());
    assert_eq!((volume.store.calls(Operation::Head), volume.served.layer.examined_objects()), (6, 5));
    assert!(volume.served.layer.is_ready());
}

#[tokio::test]
async fn layer_that_hangs_or_fails_does_not_block_another_one() {
    let clock = SimulatedClock::new();
    for fault in [Fault::Hang, Fault::FailBefore(Reason::Io), Fault::FailBefore(Reason::CorruptData)] {
        let faulty = volume("faulty", store().await, FaultSchedule::Always, fault).await;
        let good = volume("good", store().await, FaultSchedule::Nth(0), Fault::Hang).await;
        assert!(preparation(&[&faulty, &good], &clock).now_or_never().is_none());
        assert_eq!(
            (faulty.served.layer.is_ready(), good.served.layer.is_ready()),
            (false, true),
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn first_layer_that_must_not_be_served_ends_the_preparation() {
    let clock = SimulatedClock::new();
    let hanging = volume("hanging", store().await, FaultSchedule::Always, Fault::Hang).await;
    let lost = volume("lost", store_without_chunks().await, FaultSchedule::Nth(0), Fault::Hang).await;
    let error = preparation(&[&hanging, &lost], &clock).now_or_never().expect("the chunks are lost");
    let message = format!("{error:#}");
    assert!(message.contains("volume \"lost\"") && message.contains("\"large\""), "{message}");
    let fault = Fault::FailBefore(Reason::Unsupported);
    let newer = volume("newer", store().await, FaultSchedule::Nth(2), fault).await;
    let error = preparation(&[&hanging, &newer], &clock).now_or_never().expect("it is not retried");
    assert!(format!("{error:#}").contains("volume \"newer\""), "{error:#}");
}
