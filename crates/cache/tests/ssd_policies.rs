//! The eviction policies on the SSD, with objects of all sizes: what they keep during a scan, and that they do what their
//! simulation says. `TRADEWIND_CACHE_SCALE` multiplies the size of the cache and the number of requests.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::print_stdout, reason = "the figures of long rounds")]

#[path = "ssd_policies/simulation.rs"]
mod simulation;
#[path = "ssd_policies/wrong_labels.rs"]
mod wrong_labels;

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Eviction, TierOptions, Validation};
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheSource;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, drain, write_all};
use tradewind_core::{Address, BucketName, Class, Classes, Metadata, ObjectStore, Precondition, SystemClock};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The multiplier of sizes and requests.
fn scale() -> usize {
    std::env::var("TRADEWIND_CACHE_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

struct Desk {
    _root: TempDir,
    store: Arc<MemoryStore>,
    cached: Arc<Cached>,
}

/// Objects of one size and class.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    bytes: usize,
    class: Option<u8>,
}

impl Desk {
    async fn open(eviction: Eviction, disk_bytes: usize) -> Self {
        let root = TempDir::new().unwrap();
        let store = MemoryStore::new(SystemClock::shared());
        store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        let options = CachedOptions {
            directory: Some(root.path().join("cache")),
            disk_bytes: disk_bytes as u64,
            // 1 MiB for 64 MiB.
            memory_bytes: disk_bytes / 64,
            validation: Validation::Owner,
            volume_id: "test".to_owned(),
        };
        let tiers = TierOptions { eviction, verify_bytes_per_second: 0, ..TierOptions::default() };
        let cached = Cached::open_with_tiers(store.clone(), options, tiers, SystemClock::shared()).unwrap();
        Self { _root: root, store, cached }
    }

    async fn put(&self, kind: Kind, number: usize) {
        let object = kind.class.map(|class| Class::new(class).unwrap());
        let metadata = Metadata { classes: Classes { object, ..Classes::default() }, ..Metadata::default() };
        let request = StageRequest { metadata, ..StageRequest::default() };
        let mut staged = self.store.stage(&context(), &address(kind, number), request).await.unwrap();
        write_all(&mut *staged, content(kind, number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn put_all(&self, kind: Kind, count: usize) {
        for number in 0..count {
            self.put(kind, number).await;
        }
    }

    /// Reads an object. Returns true if the cache had it.
    async fn read(&self, kind: Kind, number: usize) -> bool {
        let found = self.cached.get(&context(), &address(kind, number), GetRequest::default()).await.unwrap();
        let status = found.observation.cache.unwrap();
        let bytes = drain(found.body).await.unwrap();
        assert!(bytes.len() == kind.bytes && bytes[..8] == content(kind, number)[..8], "{kind:?} {number}");
        self.cached.flush().await;
        matches!(status.source, CacheSource::Ram | CacheSource::Ssd)
    }

    /// Writes an object behind the cache, reads it once and deletes it behind the cache.
    async fn scan(&self, kind: Kind, number: usize) {
        self.put(kind, number).await;
        self.read(kind, number).await;
        self.store.delete(&context(), &address(kind, number), Precondition::None).await.unwrap();
    }
}

fn address(kind: Kind, number: usize) -> Address {
    Address::parse("bucket", &format!("{}-{number}", kind.name)).unwrap()
}

fn content(kind: Kind, number: usize) -> Bytes {
    let mut bytes = vec![kind.name.len() as u8; kind.bytes];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    bytes.into()
}

/// Draws numbers by Zipf's law.
struct Zipf {
    sums: Vec<f64>,
    random: fastrand::Rng,
}

impl Zipf {
    fn new(count: usize, exponent: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self { sums: sums.collect(), random: fastrand::Rng::with_seed(seed) }
    }

    fn draw(&mut self) -> usize {
        let drawn = self.random.f64() * self.sums.last().unwrap();
        self.sums.partition_point(|sum| *sum <= drawn).min(self.sums.len() - 1)
    }
}

/// Hit ratios of a hot set.
#[derive(Debug, Clone, Copy)]
struct HotSetHits {
    alone: f64,
    during_the_scan: f64,
    alone_again: f64,
}

/// A hot set, and the objects of a concurrent scan.
#[derive(Debug, Clone, Copy)]
struct HotSet {
    hot: Kind,
    objects: usize,
    scanned: Kind,
    /// Objects of the scan for one request of the hot set.
    scanned_per_request: usize,
    disk_bytes: usize,
}

/// Reads small objects, the hot set, the hot set during a scan, and the hot set again.
async fn hits_of_a_hot_set(eviction: Eviction, set: HotSet) -> HotSetHits {
    let desk = Desk::open(eviction, set.disk_bytes).await;
    let small = Kind { name: "small", bytes: 64 * KIB, class: None };
    let small_objects = set.disk_bytes / small.bytes * 2;
    desk.put_all(small, small_objects).await;
    desk.put_all(set.hot, set.objects).await;
    let mut popular = Zipf::new(small_objects, 0.9, 1);
    for _ in 0..small_objects * 3 {
        desk.read(small, popular.draw()).await;
    }
    let mut random = Zipf::new(set.objects, 0.6, 2);
    let mut scanned = 0;
    let mut ratio = async |requests: usize, scanned_per_request: usize| {
        let mut hits = 0;
        for _ in 0..requests {
            hits += usize::from(desk.read(set.hot, random.draw()).await);
            for _ in 0..scanned_per_request {
                desk.scan(set.scanned, scanned).await;
                scanned += 1;
            }
        }
        hits as f64 / requests as f64
    };
    let requests = set.objects * 5;
    ratio(requests * 3, 0).await;
    let alone = ratio(requests, 0).await;
    ratio(requests, set.scanned_per_request).await;
    let during_the_scan = ratio(requests, set.scanned_per_request).await;
    ratio(requests * 2, 0).await;
    let alone_again = ratio(requests, 0).await;
    desk.cached.close().await.unwrap();
    let hits = HotSetHits { alone, during_the_scan, alone_again };
    println!("{eviction:?} {set:?}: {hits:.3?}");
    hits
}

/// A hot set of large objects that fits twice.
fn large_hot_set(bytes: usize) -> HotSet {
    let disk_bytes = 16 * MIB * scale();
    HotSet {
        hot: Kind { name: "hot", bytes, class: None },
        objects: disk_bytes * 7 / 16 / bytes,
        scanned: Kind { name: "scanned", bytes, class: None },
        scanned_per_request: 1,
        disk_bytes,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hot_set_of_large_objects_recovers_from_a_scan() {
    for (eviction, least) in
        [(Eviction::AdaptiveWindow, 0.99), (Eviction::S3Fifo, 0.97), (Eviction::Lru, 1.0)]
    {
        let hits = hits_of_a_hot_set(eviction, large_hot_set(140 * KIB)).await;
        assert!(hits.alone_again >= least && hits.alone >= least, "{eviction:?}: {hits:?}");
    }
}

/// 800 objects of 4 KiB in 64 MiB, beside objects of a whole frame.
#[tokio::test(flavor = "multi_thread")]
async fn small_hot_objects_survive_a_scan_of_large_ones() {
    let disk_bytes = 16 * MIB * scale();
    let set = HotSet {
        hot: Kind { name: "hot", bytes: 4 * KIB, class: None },
        objects: 200 * scale(),
        scanned: Kind { name: "scanned", bytes: 64 * KIB, class: None },
        scanned_per_request: 4,
        disk_bytes,
    };
    let hits = hits_of_a_hot_set(Eviction::AdaptiveWindow, set).await;
    assert!(hits.during_the_scan >= 0.98 && hits.alone_again >= 0.99, "{hits:?}");
}
