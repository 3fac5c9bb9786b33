//! Readers and writers of a few keys at once, through caches of all kinds. Each write has a number: no reader finds one
//! older than the last acknowledged before its read began, and none goes back. The seed is printed.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::metadata::Metadata;
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, Select, StageRequest};
use tradewind_core::testing::{FaultPlan, Faulty, MemoryStore, context, drain, pattern, write_all};
use tradewind_core::{
    Address, BucketName, ByteRange, ObjectStore, Precondition, ReadConditions, Reason, SystemClock, Tags,
};

const KEYS: usize = 4;
const WRITES: u64 = 60;

fn address(key: usize) -> Address {
    Address::parse("bucket", &format!("key-{key}")).unwrap()
}

/// Sizes around those of one extent, of small objects and of several extents.
fn size(number: u64) -> usize {
    [0, 4096, 49_000, 65_024, 65_025, 200_001, 1_200_000][(number % 7) as usize]
}

fn content(number: u64) -> Bytes {
    pattern(size(number), number)
}

fn metadata(number: u64) -> Metadata {
    Metadata { user: vec![("number".to_owned(), number.to_string())], ..Metadata::default() }
}

/// The acknowledged state of one key.
#[derive(Default)]
struct Known {
    /// The number of the last acknowledged write.
    acknowledged: AtomicU64,
}

async fn write(store: &dyn ObjectStore, rng: &mut Rng, key: usize, number: u64) {
    let to = address(key);
    let size = Some(size(number) as u64).filter(|_| rng.bool());
    let request = StageRequest { metadata: metadata(number), size, ..StageRequest::default() };
    if rng.u8(..4) == 0 {
        // Through a copy of another object.
        let source = Address::parse("bucket", &format!("source-{key}")).unwrap();
        let mut staged = store.stage(&context(), &source, request).await.unwrap();
        write_all(&mut *staged, content(number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        let copy = CopyRequest {
            source,
            source_conditions: ReadConditions::default(),
            destination: to,
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::Md5,
        };
        store.copy(&context(), copy).await.unwrap();
        return;
    }
    if rng.u8(..4) == 0 {
        store.delete(&context(), &to, Precondition::None).await.unwrap();
    }
    let mut staged = store.stage(&context(), &to, request).await.unwrap();
    write_all(&mut *staged, content(number)).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    if rng.u8(..4) == 0 {
        let tags = Tags::new(vec![("number".to_owned(), number.to_string())]).unwrap();
        store.set_tags(&context(), &to, tags).await.unwrap();
        let found = store.head(&context(), &to, GetRequest::default()).await.unwrap();
        assert!(!found.info.metadata.tags.is_empty(), "tags of write {number} are lost");
    }
}

/// The number of the write that a read finds; `None` if the key is deleted. Panics if the bytes are not of that write.
async fn read(store: &dyn ObjectStore, rng: &mut Rng, key: usize) -> Option<u64> {
    let select = match rng.u8(..3) {
        0 => {
            let first = rng.u64(..70_000);
            Select::Range(ByteRange::Inclusive { first, last: first + rng.u64(..140_000) })
        }
        _ => Select::Whole,
    };
    let request = GetRequest { select, ..GetRequest::default() };
    if rng.u8(..5) == 0 {
        let request = GetRequest::default();
        let found = store.head(&context(), &address(key), request).await;
        return match found {
            Ok(found) => Some(found.info.metadata.user[0].1.parse().unwrap()),
            Err(e) if e.reason() == Reason::NoSuchKey => None,
            Err(e) => panic!("{e:?}"),
        };
    }
    match store.get(&context(), &address(key), request).await {
        Ok(found) => {
            let number: u64 = found.info.metadata.user[0].1.parse().unwrap();
            let span = found.span;
            match drain(found.body).await {
                Ok(bytes) => {
                    let start = span.offset as usize;
                    let expected = content(number).slice(start..start + span.length as usize);
                    assert!(bytes == expected, "the bytes are not those of write {number}");
                }
                // Extents were evicted and the object replaced during the read.
                Err(e) => assert_eq!(e.reason(), Reason::Conflict, "{e:?}"),
            }
            Some(number)
        }
        Err(e) if e.reason() == Reason::NoSuchKey || e.reason() == Reason::InvalidRange => None,
        Err(e) => panic!("{e:?}"),
    }
}

async fn check(store: Arc<dyn ObjectStore>, seed: u64) {
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let known: Arc<Vec<Known>> = Arc::new((0..KEYS).map(|_| Known::default()).collect());
    let mut tasks = tokio::task::JoinSet::new();
    for key in 0..KEYS {
        let (writer_store, writer_known) = (store.clone(), known.clone());
        let mut rng = Rng::with_seed(seed + key as u64);
        tasks.spawn(async move {
            for number in 1..=WRITES {
                write(&*writer_store, &mut rng, key, number).await;
                writer_known[key].acknowledged.store(number, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        });
        for reader in 0..2 {
            let (store, known) = (store.clone(), known.clone());
            let mut rng = Rng::with_seed(seed + 100 + key as u64 * 10 + reader);
            tasks.spawn(async move {
                let mut last = 0;
                while last < WRITES {
                    let acknowledged = known[key].acknowledged.load(Ordering::SeqCst);
                    if let Some(number) = read(&*store, &mut rng, key).await {
                        assert!(number >= acknowledged, "write {number} was read after {acknowledged}");
                        assert!(number >= last, "write {number} was read after {last} was read");
                        last = number;
                    } else if acknowledged == WRITES && size(WRITES) == 0 {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    store.close().await.unwrap();
}

#[expect(clippy::print_stdout, reason = "the test harness prints it with the failed test")]
fn seed() -> u64 {
    let seed = fastrand::u64(..u64::MAX / 2);
    println!("seed {seed}");
    seed
}

fn options(root: &TempDir, disk_bytes: u64, memory_bytes: usize, validation: Validation) -> CachedOptions {
    CachedOptions {
        directory: (disk_bytes > 0).then(|| root.path().to_owned()),
        disk_bytes,
        memory_bytes,
        validation,
        volume_id: "test".to_owned(),
    }
}

async fn reads_follow_writes(disk_bytes: u64, memory_bytes: usize) {
    for validation in [Validation::Owner, Validation::MaxAge(Duration::from_secs(60)), Validation::Always] {
        let root = TempDir::new().unwrap();
        let clock = SystemClock::shared();
        let store = MemoryStore::new(clock.clone());
        let cached =
            Cached::open(store, options(&root, disk_bytes, memory_bytes, validation), clock).unwrap();
        check(cached, seed()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_follow_writes_through_memory() {
    reads_follow_writes(0, 64 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_follow_writes_through_a_tiny_memory() {
    reads_follow_writes(0, 150 << 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_follow_writes_through_the_ssd() {
    reads_follow_writes(32 << 20, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_follow_writes_through_tiny_tiers() {
    reads_follow_writes(512 << 10, 100 << 10).await;
}

/// The suite would not notice a cache that never hits.
#[tokio::test]
async fn second_read_is_a_hit_and_does_not_reach_the_backing_store() {
    for (disk_bytes, memory_bytes) in [(0, 8 << 20), (16 << 20, 0)] {
        let root = TempDir::new().unwrap();
        let clock = SystemClock::shared();
        let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let cached =
            Cached::open(store.clone(), options(&root, disk_bytes, memory_bytes, Validation::Owner), clock)
                .unwrap();
        cached.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        for number in 0..7 {
            let to = address(number as usize);
            let mut staged = store.stage(&context(), &to, StageRequest::default()).await.unwrap();
            write_all(&mut *staged, content(number)).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            for is_hit in [false, true] {
                let calls = store.calls(tradewind_core::testing::Operation::Get);
                let found = cached.get(&context(), &to, GetRequest::default()).await.unwrap();
                let status = found.observation.cache.unwrap().to_string();
                assert_eq!(status.contains("; hit"), is_hit, "{number}: {status}");
                assert!(drain(found.body).await.unwrap() == content(number));
                cached.flush().await;
                let calls_now = store.calls(tradewind_core::testing::Operation::Get);
                assert_eq!(calls_now, calls + u64::from(!is_hit), "{number}");
            }
        }
        let counters = cached.counters();
        let hits = if memory_bytes == 0 { counters.ssd_hits } else { counters.ram_hits };
        assert_eq!((hits, counters.misses, counters.ssd_corrupt), (7, 7, 0), "{counters:?}");
        cached.close().await.unwrap();
    }
}
