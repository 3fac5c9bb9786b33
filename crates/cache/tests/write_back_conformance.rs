//! The conformance suite over write-back on the memory store: with a drain that is immediate, slow or never runs, with
//! and without room, and below a cache.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tradewind_cache::{AllowAll, AllowNone, Cached, CachedOptions, Validation};
use tradewind_cache::{WriteBack, WriteBackOptions, WriteBackPolicy};
use tradewind_core::testing::{MemoryStore, conformance};
use tradewind_core::{ObjectStore, SystemClock};

const NEVER: Duration = Duration::from_secs(100_000);

fn options(delay: Duration, max_dirty_bytes: u64) -> WriteBackOptions {
    let close_timeout = Duration::from_secs(60);
    WriteBackOptions { delay, max_dirty_bytes, close_timeout, ..WriteBackOptions::default() }
}

async fn open(options: WriteBackOptions, policy: Arc<dyn WriteBackPolicy>) -> Arc<WriteBack> {
    let clock = SystemClock::shared();
    let (backing, journal) = (MemoryStore::new(clock.clone()), MemoryStore::new(clock.clone()));
    WriteBack::open(backing, journal, policy, options, clock).await.unwrap()
}

async fn conforms(options: WriteBackOptions) {
    conformance::run(|| {
        let options = options.clone();
        async move { open(options, Arc::new(AllowAll)).await as Arc<dyn ObjectStore> }.boxed()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn write_back_with_an_immediate_drain_conforms() {
    conforms(options(Duration::ZERO, 1 << 30)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn write_back_with_a_slow_drain_conforms() {
    conforms(options(Duration::from_millis(3), 1 << 30)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn write_back_without_a_drain_conforms() {
    conforms(options(NEVER, 1 << 40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn write_back_with_little_room_conforms() {
    let little = WriteBackOptions { max_dirty_objects: 5, ..options(Duration::from_millis(1), 600_000) };
    conforms(little).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_layer_that_writes_all_through_conforms() {
    let make = || {
        async { open(options(Duration::ZERO, 1 << 30), Arc::new(AllowNone)).await as Arc<dyn ObjectStore> }
            .boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cache_over_write_back_conforms() {
    for delay in [Duration::ZERO, NEVER] {
        conformance::run(|| {
            async move {
                let below = open(options(delay, 1 << 30), Arc::new(AllowAll)).await;
                let cache = CachedOptions {
                    directory: None,
                    disk_bytes: 0,
                    memory_bytes: 4 << 20,
                    validation: Validation::Owner,
                    volume_id: "test".to_owned(),
                };
                Cached::open(below, cache, SystemClock::shared()).unwrap() as Arc<dyn ObjectStore>
            }
            .boxed()
        })
        .await;
    }
}
