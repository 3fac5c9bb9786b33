use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{MemoryStore, SimulatedClock, context, write_all};
use tradewind_core::{Address, BucketName, ObjectStore, Precondition, SystemClock};
use tradewind_layers::Deduplicated;
use tradewind_layers::deduplicated::{DeduplicationPolicy, MIN_MIN_OBJECT_BYTES};
use tradewind_layers::transformed::ClassSet;

use super::*;

const POLICY: DeduplicationPolicy =
    DeduplicationPolicy { classes: ClassSet::ALL, min_bytes: MIN_MIN_OBJECT_BYTES };
const DAY: Duration = Duration::from_hours(24);

/// One run of a server, from a start to a stop.
struct Run {
    layer: Arc<Deduplicated>,
    clock: Arc<SimulatedClock>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Run {
    async fn start(store: &Arc<MemoryStore>, clock: &Arc<SimulatedClock>) -> Self {
        let layer = Deduplicated::open(&context(), store.clone(), POLICY).await.unwrap();
        let served = ServedDeduplicated { volume: "v".to_owned(), layer: layer.clone(), collect_every: DAY };
        let collector = ChunkCollector::new(&served, Budget::new(64 << 20), clock.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(collector.run(stop.clone()));
        let run = Self { layer, clock: clock.clone(), stop, task };
        run.run_until_asleep().await;
        run
    }

    /// Lets the task go on until it sleeps.
    async fn run_until_asleep(&self) {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }

    /// The number of collections of this run after that time.
    async fn collections_after(&self, time: Duration) -> u64 {
        self.clock.advance(time);
        self.run_until_asleep().await;
        self.layer.collections().completed
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

async fn put_and_delete(layer: &Deduplicated) {
    let address = Address::parse("bucket", "k").unwrap();
    let mut staged = layer.stage(&context(), &address, StageRequest::default()).await.unwrap();
    write_all(&mut *staged, vec![7; 300_000].into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    layer.delete(&context(), &address, Precondition::None).await.unwrap();
}

#[tokio::test]
async fn collection_is_due_a_day_after_the_last_one_also_with_restarts() {
    let store = MemoryStore::new(SystemClock::shared());
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let clock = SimulatedClock::new();
    let run = Run::start(&store, &clock).await;
    // There was none: it begins soon after the start.
    assert_eq!(run.collections_after(START_DELAY).await, 1);
    put_and_delete(&run.layer).await;
    assert_eq!(run.layer.counts().deleted_chunks, 0);
    run.end().await;
    // Two runs of 10 hours.
    for _ in 0..2 {
        let run = Run::start(&store, &clock).await;
        assert_eq!(run.collections_after(Duration::from_hours(10)).await, 0);
        run.end().await;
    }
    let run = Run::start(&store, &clock).await;
    assert_eq!(run.collections_after(Duration::from_hours(4)).await, 1);
    assert!(run.layer.counts().deleted_chunks > 0);
    assert_eq!(run.collections_after(DAY - START_DELAY).await, 1);
    assert_eq!(run.collections_after(START_DELAY).await, 2);
    run.end().await;
    // It is overdue.
    clock.advance(DAY * 3);
    let run = Run::start(&store, &clock).await;
    assert_eq!(run.collections_after(START_DELAY - Duration::from_secs(1)).await, 0);
    assert_eq!(run.collections_after(Duration::from_secs(1)).await, 1);
    run.end().await;
}

/// The clock was set back, and restarts are more frequent than collections.
#[tokio::test]
async fn collection_is_due_soon_if_the_last_one_is_in_the_future() {
    let store = MemoryStore::new(SystemClock::shared());
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let clock = SimulatedClock::new();
    let run = Run::start(&store, &clock).await;
    assert_eq!(run.collections_after(START_DELAY).await, 1);
    run.end().await;
    let future = (clock.wall().millis() + 3_600_000).to_string();
    let address = Address::parse("tradewind-deduplicated-chunks", "last-collection").unwrap();
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    write_all(&mut *staged, future.into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let run = Run::start(&store, &clock).await;
    assert_eq!(run.collections_after(START_DELAY).await, 1);
    run.end().await;
}
