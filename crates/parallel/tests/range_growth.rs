//! The sizes of the ranges that a download requests.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::MemoryStore;
use tradewind_core::{Address, Body, Budget, Clock, Context, ObjectStore, Timestamp};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::{Fetch, Sink, TransferContext};

const OBJECT_BYTES: u64 = 192 << 20;

/// The time of the runtime.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.0 + until))
    }
}

/// A store that responds after a delay, and records the largest body.
#[derive(Debug)]
struct DelayedStore {
    inner: Arc<MemoryStore>,
    response_time: Duration,
    max_body_bytes: AtomicU64,
}

#[async_trait]
impl ObjectStore for DelayedStore {
    tradewind_core::forward_methods! {
        to: |store| &store.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning,
        head, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, copy_part, list_parts,
        list_uploads, complete_upload, abort_upload, close, stage, stage_part,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        tokio::time::sleep(self.response_time).await;
        let found = self.inner.get(context, address, request).await?;
        self.max_body_bytes.fetch_max(found.body.length(), Ordering::Relaxed);
        Ok(found)
    }
}

struct Discard;

impl Sink for Discard {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// The size of the largest range of a download from a store that responds after the given time.
async fn largest_range(response_time: Duration) -> u64 {
    let clock: Arc<dyn Clock> = Arc::new(Paused(Instant::now()));
    let inner = MemoryStore::new(clock.clone());
    let budget = Budget::new(64 << 20);
    let window = budget.admit(0, &Deadline::none(clock.clone())).await.unwrap();
    let context = Context::new(Deadline::none(clock.clone()), window);
    let address = Address::parse("bucket", "k").unwrap();
    inner.create_bucket(&context, &address.bucket).await.unwrap();
    let mut staged = inner.stage(&context, &address, StageRequest::default()).await.unwrap();
    staged.write(Bytes::from(vec![0; usize::try_from(OBJECT_BYTES).unwrap()])).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let delayed = Arc::new(DelayedStore { inner, response_time, max_body_bytes: AtomicU64::new(0) });
    let store: Arc<dyn ObjectStore> = delayed.clone();
    let plan = Plan { initial_concurrency: 4, ..Plan::default() };
    let transfers = Arc::new(TransferContext::new(plan, budget, clock, RetryOptions::default()));
    let fetch = Fetch::open(&transfers, &store, &address, Some(OBJECT_BYTES)).await.unwrap();
    fetch.write_to(Arc::new(Discard)).await.unwrap();
    delayed.max_body_bytes.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn ranges_grow_only_if_responses_are_fast() {
    assert_eq!(largest_range(Duration::from_millis(20)).await, 4 << 20);
    assert!(largest_range(Duration::from_millis(1)).await > 4 << 20);
}
