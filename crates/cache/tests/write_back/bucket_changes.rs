//! Changes of buckets with much dirty data, concurrently with other requests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tradewind_core::error::Error;
use tradewind_core::store::{Deleted, Staged};
use tradewind_core::testing::SimulatedClock;
use tradewind_core::{Context, Observation};

use super::*;

const KEYS: usize = 200;

/// A backing store whose changes of objects of one bucket wait until they are let through.
#[derive(Debug)]
struct SlowBucket {
    inner: Arc<Faulty<MemoryStore>>,
    permits: Semaphore,
    waiting: AtomicUsize,
}

impl SlowBucket {
    async fn pass(&self, address: &Address) {
        if address.bucket == bucket() && address.key.as_str() != MARKER_KEY {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.permits.acquire().await.unwrap().forget();
        }
    }
}

#[async_trait]
impl ObjectStore for SlowBucket {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.pass(address).await;
        self.inner.stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.pass(address).await;
        self.inner.delete(context, address, precondition).await
    }
}

async fn bucket_with_much_dirty_data_is_changed(is_deleted: bool) {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let (inner, permits) = (stores.backing.clone(), Semaphore::new(0));
    let backing = Arc::new(SlowBucket { inner, permits, waiting: AtomicUsize::new(0) });
    let (journal, policy) = (stores.journal.clone(), Arc::new(AllowAll));
    let options = options(Duration::from_secs(60));
    let concurrency = options.concurrency / 2;
    let layer = WriteBack::open(backing.clone(), journal, policy, options, clock.clone()).await.unwrap();
    let other = Address::parse("other", "k").unwrap();
    layer.create_bucket(&context(), &other.bucket).await.unwrap();
    let mut staged = layer
        .stage(&context(), &other, StageRequest { size: Some(1), ..StageRequest::default() })
        .await
        .unwrap();
    staged.write("x".into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    clock.advance(Duration::from_secs(30));
    for number in 0..KEYS {
        put(&*layer, &format!("k{number:03}"), "dirty").await;
        if is_deleted {
            assert!(delete(&*layer, &format!("k{number:03}")).await);
        }
    }
    let change = tokio::spawn({
        let layer = layer.clone();
        async move {
            match is_deleted {
                true => layer.delete_bucket(&context(), &bucket()).await,
                false => layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await,
            }
        }
    });
    let is_concurrent = async || backing.waiting.load(Ordering::SeqCst) == concurrency;
    wait_until("keys are written back concurrently", is_concurrent).await;
    // Only the key of the other bucket is due.
    clock.advance(Duration::from_secs(31));
    wait_until("the other bucket is drained", async || {
        stores.backing.head(&context(), &other, GetRequest::default()).await.is_ok()
    })
    .await;
    let read = tokio::time::timeout(WAIT, get(&*layer, "k199")).await.expect("the bucket is not blocked");
    assert_eq!(read.ok().is_none(), is_deleted);
    assert_eq!(
        tokio::time::timeout(WAIT, names(&*layer)).await.unwrap().len(),
        if is_deleted { 0 } else { KEYS }
    );
    assert!(!change.is_finished());
    backing.permits.add_permits(KEYS + 1);
    tokio::time::timeout(WAIT, change).await.unwrap().unwrap().unwrap();
    assert_eq!((layer.status().dirty_objects, layer.status().failures), (0, 0));
    if !is_deleted {
        assert_eq!(names(&*stores.backing).await.len(), KEYS);
        assert!(put(&*layer, "k000", "newer").await.version.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_of_a_bucket_with_many_tombstones_blocks_nothing() {
    bucket_with_much_dirty_data_is_changed(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versioning_of_a_bucket_with_much_dirty_data_blocks_nothing() {
    bucket_with_much_dirty_data_is_changed(false).await;
}

/// A backing store whose first write of the key `slow` is applied when it is let through, also if its request was dropped.
/// It rejects the key `fails`.
#[derive(Debug)]
struct LateCommit {
    inner: Arc<Faulty<MemoryStore>>,
    permits: Arc<Semaphore>,
    is_in_flight: Arc<AtomicBool>,
}

struct LateStaged {
    inner: Box<dyn Staged>,
    permits: Arc<Semaphore>,
    is_in_flight: Arc<AtomicBool>,
}

#[async_trait]
impl Staged for LateStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, permits, is_in_flight } = *self;
        if is_in_flight.swap(true, Ordering::SeqCst) {
            return inner.commit(expected).await;
        }
        let late = tokio::spawn(async move {
            permits.acquire().await.unwrap().forget();
            inner.commit(expected).await
        });
        late.await.unwrap()
    }
}

#[async_trait]
impl ObjectStore for LateCommit {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let (permits, is_in_flight) = (self.permits.clone(), self.is_in_flight.clone());
        if address.key.as_str() == "fails" {
            while !is_in_flight.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            return Err(Error::new(Reason::AccessDenied, "a rejection of the test"));
        }
        let inner = self.inner.stage(context, address, request).await?;
        Ok(match address.key.as_str() {
            "slow" => Box::new(LateStaged { inner, permits, is_in_flight }),
            _ => inner,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_change_that_fails_awaits_its_write_backs() {
    let stores = Stores::new().await;
    let (permits, is_in_flight) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let inner = stores.backing.clone();
    let backing = Arc::new(LateCommit { inner, permits: permits.clone(), is_in_flight });
    let (journal, clock) = (stores.journal.clone(), SystemClock::shared());
    let options = WriteBackOptions { uncertain_window: NEVER, ..options(NEVER) };
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options, clock).await.unwrap();
    put(&*layer, "fails", "dirty").await;
    put(&*layer, "slow", "older").await;
    let change = tokio::spawn({
        let layer = layer.clone();
        async move { layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let newer = tokio::spawn({
        let layer = layer.clone();
        async move {
            put(&*layer, "slow", "newer").await;
            layer.set_tags(&context(), &key("slow"), Tags::default()).await
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let was_finished = change.is_finished() || newer.is_finished();
    permits.add_permits(1);
    assert_eq!(reason(tokio::time::timeout(WAIT, change).await.unwrap().unwrap()), Reason::AccessDenied);
    tokio::time::timeout(WAIT, newer).await.unwrap().unwrap().unwrap();
    assert!(!was_finished, "the request in flight is awaited");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(get(&*stores.backing, "slow").await.unwrap(), b"newer");
}
