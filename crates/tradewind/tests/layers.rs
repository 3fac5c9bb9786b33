//! Conformance of layers to the port, on the leaves that they serve in production, and of volumes over them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "layers/answers.rs"]
mod answers;
#[path = "layers/progress.rs"]
mod progress;
#[path = "layers/rewrap.rs"]
mod rewrap;
#[path = "layers/slices.rs"]
mod slices;
#[path = "layers/stacks.rs"]
mod stacks;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use tradewind_backend::local::{LocalOptions, LocalStore, check, reindex};
use tradewind_cache::{AllowAll, Cached, CachedOptions, Validation, WriteBack, WriteBackOptions};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, conformance, context, drain, write_all};
use tradewind_core::{Address, BucketName, ObjectInfo, ObjectStore, SystemClock};
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::transformed::{ClassSet, Keyring, MasterKey, TransformPolicy};
use tradewind_layers::{DiskQueue, Instrumented, Scheduled, Sliced, Transformed, Volume, Volumes};
use tradewind_model::lanes::LanesOptions;
use tradewind_model::slices::DiskSpeed;

/// Runs the suite over the stores that `make` opens in a directory. Each case has its own: local stores allocate space ahead.
async fn conforms<F>(make: impl Fn(PathBuf) -> F)
where
    F: Future<Output = Arc<dyn ObjectStore>> + Send + 'static,
{
    let last = Mutex::new(None);
    conformance::run(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        // Removes that of the case before, which closed its store.
        *last.lock().unwrap() = Some(directory);
        make(path).boxed()
    })
    .await;
}

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

/// A new local store with instrumentation and the scheduler of a rotating disk.
fn sliced_local(directory: &Path) -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    let speed = DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
    let disk = DiskQueue::new(speed, clock.clone());
    Instrumented::new(Sliced::new(local(directory), disk), clock)
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
    conforms(|directory| async move { mixed_volumes(&directory) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instrumented_local_store_conforms() {
    conforms(|directory| async move { observed_local(&directory) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_store_with_lanes_conforms() {
    conforms(|directory| async move { scheduled_local(&directory) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sliced_local_store_conforms() {
    conforms(|directory| async move { sliced_local(&directory) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_over_tiers_of_local_stores_conforms() {
    conforms(|directory| async move {
        let tiers = stacks::routed(local(&directory), observed_local(&directory));
        stacks::cached(tiers, &directory)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_of_a_local_and_a_memory_store_conform() {
    let memory = || MemoryStore::new(SystemClock::shared());
    conforms(|directory| async move { stacks::routed(local(&directory), memory()) }).await;
}

/// Compression, encryption, and both.
const POLICIES: [TransformPolicy; 3] = [
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::NONE },
    TransformPolicy { compress: ClassSet::NONE, encrypt: ClassSet::ALL },
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::ALL },
];

fn transformed(below: Arc<dyn ObjectStore>, policy: TransformPolicy) -> Arc<dyn ObjectStore> {
    let keys = [("main".to_owned(), MasterKey::new([7; 32]))].into();
    Transformed::new(below, policy, Keyring { current: Some("main".to_owned()), keys }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transformed_local_store_conforms() {
    for policy in POLICIES {
        conforms(|directory| async move { transformed(scheduled_local(&directory), policy) }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deduplicated_local_store_conforms() {
    conforms(|directory| async move { stacks::deduplicated(scheduled_local(&directory)).await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_over_a_transformed_local_store_conforms() {
    conforms(|directory| async move {
        let options = CachedOptions {
            directory: None,
            disk_bytes: 0,
            memory_bytes: 4 << 20,
            validation: Validation::Owner,
            volume_id: "v".to_owned(),
        };
        let below = transformed(observed_local(&directory), POLICIES[2]);
        Cached::open(below, options, SystemClock::shared()).unwrap() as Arc<dyn ObjectStore>
    })
    .await;
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
        conforms(|directory| async move { cached_write_back(&directory, is_local).await }).await;
    }
}

#[tokio::test]
async fn a_transformed_store_over_a_cache_is_rejected() {
    let options = CachedOptions {
        directory: None,
        disk_bytes: 0,
        memory_bytes: 4 << 20,
        validation: Validation::Owner,
        volume_id: "v".to_owned(),
    };
    let clock = SystemClock::shared();
    let cached = Cached::open(MemoryStore::new(clock.clone()), options, clock).unwrap();
    let error = Transformed::new(cached, POLICIES[0], Keyring::default()).unwrap_err();
    assert!(error.message().contains("must be directly over a local store"), "{error}");
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

async fn put(store: &dyn ObjectStore, key: &str, bytes: &[u8]) {
    let mut staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, bytes.to_vec().into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

async fn get(store: &dyn ObjectStore, key: &str) -> (ObjectInfo, Vec<u8>) {
    let found = store.get(&context(), &address(key), GetRequest::default()).await.unwrap();
    (found.info, drain(found.body).await.unwrap().to_vec())
}

/// Compaction, a restart and a rebuild of the index keep the plain attributes and the bytes.
#[tokio::test(flavor = "multi_thread")]
async fn transformed_objects_survive_restart_and_rebuild() {
    let directory = tempfile::tempdir().unwrap();
    let open = || LocalStore::open(directory.path(), LocalOptions::default(), SystemClock::shared()).unwrap();
    let text = b"a line of text that repeats itself\n".repeat(20_000);
    let sizes = [100, 5_000, 150_000, 700_000];
    let local = open();
    local.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let mut written = Vec::new();
    for (number, policy) in POLICIES.into_iter().enumerate() {
        let store = transformed(local.clone(), policy);
        for size in sizes {
            let key = format!("{number}/{size}");
            put(&*store, &key, &text[..size]).await;
            written.push((key.clone(), get(&*store, &key).await.0, size));
        }
    }
    local.close().await.unwrap();
    drop(local);
    for is_rebuilt in [false, true] {
        if is_rebuilt {
            reindex(directory.path(), false).unwrap();
        }
        assert!(check(directory.path(), directory.path().parent().unwrap()).unwrap().is_sound());
        let local = open();
        let store = transformed(local.clone(), POLICIES[0]);
        for (key, info, size) in &written {
            let (found, bytes) = get(&*store, key).await;
            assert_eq!(found, *info);
            assert!(bytes == text[..*size], "{key}");
        }
        local.close().await.unwrap();
    }
}
