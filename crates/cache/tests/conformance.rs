//! The conformance suite over the cache on the memory store: for every validation, with caches that hold everything,
//! and with tiny ones, in which nearly every operation evicts.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::testing::{MemoryStore, conformance};
use tradewind_core::{ObjectStore, SystemClock};

const VALIDATIONS: [Validation; 3] =
    [Validation::Owner, Validation::MaxAge(Duration::from_millis(2)), Validation::Always];

/// Sizes of the tiers; no SSD with 0 bytes.
#[derive(Debug, Clone, Copy)]
struct Tiers {
    disk_bytes: u64,
    memory_bytes: usize,
}

/// Runs the suite with fresh caches, each in a directory of its own below `root`.
async fn conforms(validation: Validation, tiers: Tiers) {
    let root = TempDir::new().unwrap();
    let cases = std::sync::atomic::AtomicUsize::new(0);
    conformance::run(|| {
        let case = cases.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = (tiers.disk_bytes > 0).then(|| root.path().join(case.to_string()));
        let options = CachedOptions {
            directory,
            disk_bytes: tiers.disk_bytes,
            memory_bytes: tiers.memory_bytes,
            validation,
            volume_id: "test".to_owned(),
        };
        async move {
            let clock = SystemClock::shared();
            let store = MemoryStore::new(clock.clone());
            Cached::open(store, options, clock).unwrap() as Arc<dyn ObjectStore>
        }
        .boxed()
    })
    .await;
}

macro_rules! suites {
    ($($name:ident: $disk_bytes:expr, $memory_bytes:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() {
            for validation in VALIDATIONS {
                conforms(validation, Tiers { disk_bytes: $disk_bytes, memory_bytes: $memory_bytes }).await;
            }
        }
    )*};
}

suites! {
    a_memory_cache_conforms: 0, 64 << 20;
    a_tiny_memory_cache_conforms: 0, 90 << 10;
    a_cache_without_memory_conforms: 8 << 20, 0;
    a_tiny_cache_on_disk_conforms: 192 << 10, 70 << 10;
    a_cache_of_both_tiers_conforms: 16 << 20, 256 << 10;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cache_over_a_cache_conforms() {
    conformance::run(|| {
        async move {
            let clock = SystemClock::shared();
            let mut store: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
            for memory_bytes in [1 << 20, 128 << 10] {
                let options = CachedOptions {
                    directory: None,
                    disk_bytes: 0,
                    memory_bytes,
                    validation: Validation::Owner,
                    volume_id: "test".to_owned(),
                };
                store = Cached::open(store, options, clock.clone()).unwrap();
            }
            store
        }
        .boxed()
    })
    .await;
}
