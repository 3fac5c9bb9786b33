//! Requests that are dropped or slow, and write-backs that panic.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tradewind_core::Context;
use tradewind_core::store::Staged;
use tradewind_core::testing::SimulatedClock;

use super::outcomes::SlowCommits;
use super::*;

/// Less than the time for which writing back yields to clients, and for which a rejected object waits.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_dropped_during_its_commit_leaves_its_key_readable_and_unlocked() {
    let stores = Stores::new().await;
    let permits = Arc::new(Semaphore::new(100));
    let journal = Arc::new(SlowCommits { inner: stores.journal.clone(), permits: permits.clone() });
    let (backing, clock) = (stores.backing.clone(), SystemClock::shared());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock).await.unwrap();
    put(&*layer, "k", "old").await;
    permits.forget_permits(Semaphore::MAX_PERMITS);
    {
        let mut request = Box::pin(put(&*layer, "k", "newer"));
        while get(&*stores.journal, "k").await.unwrap() != b"newer" {
            let polled = tokio::time::timeout(Duration::from_millis(2), &mut request).await;
            assert!(polled.is_err(), "the commit is held");
        }
    }
    let readable = tokio::time::timeout(SOON, get(&*layer, "k")).await.expect("the commit is not awaited");
    assert_eq!(readable.unwrap(), b"newer");
    permits.add_permits(100);
    wait_until("the rest of the change is done", async || layer.status().dirty_bytes == 5).await;
    tokio::time::timeout(SOON, put(&*layer, "k", "newest")).await.expect("the key is not locked");
    lose(layer, &stores).await;
    let layer = stores.open(NEVER).await;
    assert_eq!((layer.status().dirty_objects, layer.status().dirty_bytes), (1, 6));
    assert_eq!(get(&*layer, "k").await.unwrap(), b"newest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_whose_client_sends_nothing_delays_no_write_back() {
    let stores = Stores::new().await;
    let delay = Duration::from_millis(20);
    let layer = stores.open_with(WriteBackOptions { max_dirty_bytes: 80, ..options(delay) }).await;
    let request = StageRequest { size: Some(19), ..StageRequest::default() };
    let mut upload = layer.stage(&context(), &key("large"), request).await.unwrap();
    upload.write("more than".into()).await.unwrap();
    put(&*layer, "k", "dirty").await;
    tokio::time::timeout(SOON, wait_until_clean(&layer)).await.expect("the upload is idle");
    upload.write(" an eighth".into()).await.unwrap();
    upload.commit(Expected::default()).await.unwrap();
    assert_eq!(get(&*layer, "large").await.unwrap(), b"more than an eighth");
}

/// A backing store that panics at the first write of a key.
#[derive(Debug)]
struct PanicsOnce {
    inner: Arc<Faulty<MemoryStore>>,
    has_panicked: AtomicBool,
}

#[async_trait]
impl ObjectStore for PanicsOnce {
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
        let panics = address.key.as_str() == "panics" && !self.has_panicked.swap(true, Ordering::SeqCst);
        assert!(!panics, "a panic of the test");
        self.inner.stage(context, address, request).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_back_that_panics_is_counted_and_tried_again_later() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let backing =
        Arc::new(PanicsOnce { inner: stores.backing.clone(), has_panicked: AtomicBool::new(false) });
    let (journal, options) = (stores.journal.clone(), options(Duration::ZERO));
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options, clock.clone()).await.unwrap();
    put(&*layer, "panics", "dirty").await;
    wait_until("the panic is counted", async || layer.status().rejected == 1).await;
    assert_eq!(get(&*layer, "panics").await.unwrap(), b"dirty");
    put(&*layer, "other", "x").await;
    wait_until("others are written back", async || get(&*stores.backing, "other").await.is_ok()).await;
    wait_until("the key stays", async || layer.status().dirty_objects == 1).await;
    clock.advance(Duration::from_secs(60));
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "panics").await.unwrap(), b"dirty");
}
