//! Conformance of layers to the port, on the leaves that they serve in production, and of volumes over them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "layers/stacks.rs"]
mod stacks;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_cache::{AllowAll, Cached, CachedOptions, Validation, WriteBack, WriteBackOptions};
use tradewind_core::testing::{MemoryStore, conformance};
use tradewind_core::{BucketName, ObjectStore, SystemClock};
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::{Instrumented, Scheduled, Volume, Volumes};
use tradewind_model::lanes::LanesOptions;

/// A new local store.
fn local(directory: &Path) -> Arc<dyn ObjectStore> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let path = directory.join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
    LocalStore::open(&path, LocalOptions::default(), SystemClock::shared()).unwrap()
}

/// A new local store with instrumentation.
fn observed_local(directory: &Path) -> Arc<dyn ObjectStore> {
    Instrumented::new(local(directory), SystemClock::shared())
}

/// A new local store with instrumentation and lanes, as served if the settings enable lanes.
fn scheduled_local(directory: &Path) -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    let (options, none) = (LanesOptions::default(), Priorities::default());
    Instrumented::new(Scheduled::new(local(directory), options, none, clock.clone()), clock)
}

/// A new local store and a memory store as volumes, each with one bucket of the suite.
fn mixed_volumes(directory: &Path) -> Arc<dyn ObjectStore> {
    let volume = |name: &str, store, bucket| Volume {
        name: name.to_owned(),
        store,
        leaf: name.to_owned(),
        tiers: Vec::new(),
        layers: 0,
        buckets: vec![BucketName::new(bucket).unwrap()],
    };
    let [one, two] = conformance::BUCKETS;
    let memory = volume("memory", MemoryStore::new(SystemClock::shared()), two);
    Volumes::new(volume("local", observed_local(directory), one), vec![memory])
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_over_memory_and_local_stores_conform() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { mixed_volumes(directory.path()) }.boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instrumented_local_store_conforms() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { observed_local(directory.path()) }.boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_store_with_lanes_conforms() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { scheduled_local(directory.path()) }.boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_over_tiers_of_local_stores_conforms() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move {
            let tiers = stacks::routed(local(directory.path()), observed_local(directory.path()));
            stacks::cached(tiers, directory.path())
        }
        .boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_of_a_local_and_a_memory_store_conform() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { stacks::routed(local(directory.path()), MemoryStore::new(SystemClock::shared())) }
            .boxed()
    };
    conformance::run(make).await;
}

/// A cache over write-back to a new memory store, or a new local store, with a new local store as the journal.
async fn cached_write_back(directory: &Path, is_local: bool) -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    let backing = if is_local { observed_local(directory) } else { MemoryStore::new(clock.clone()) };
    let options = WriteBackOptions {
        delay: Duration::from_millis(10),
        close_timeout: Duration::from_secs(60),
        ..WriteBackOptions::default()
    };
    let journal = local(directory);
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options, clock.clone()).await.unwrap();
    let cache = CachedOptions {
        directory: None,
        disk_bytes: 0,
        memory_bytes: 1 << 20,
        validation: Validation::Owner,
        volume_id: "test".to_owned(),
    };
    Cached::open(layer, cache, clock).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_write_back_with_a_local_journal_conforms() {
    for is_local in [false, true] {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let make = move || {
            let directory = directory.clone();
            async move { cached_write_back(directory.path(), is_local).await }.boxed()
        };
        conformance::run(make).await;
    }
}
