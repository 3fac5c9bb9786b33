//! Eviction policies for comparison: their order, and that they ignore classes.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Eviction, TierOptions, Validation};
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheSource;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, drain, pattern, write_all};
use tradewind_core::{Address, BucketName, Class, Classes, Metadata, ObjectStore, Reason, SystemClock};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable};

const ALL: [Eviction; 3] = [Eviction::AdaptiveWindow, Eviction::Lru, Eviction::S3Fifo];
const OBJECT_BYTES: usize = 16 << 10;
/// Objects that fill the tier of 4 MiB.
const CAPACITY_OBJECTS: u64 = 170;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Memory,
    Ssd,
}

struct Desk {
    _root: TempDir,
    store: Arc<MemoryStore>,
    cached: Arc<Cached>,
}

impl Desk {
    async fn open(eviction: Eviction, tier: Tier) -> Self {
        let root = TempDir::new().unwrap();
        let store = MemoryStore::new(SystemClock::shared());
        store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        let is_ssd = tier == Tier::Ssd;
        let options = CachedOptions {
            directory: is_ssd.then(|| root.path().join("cache")),
            disk_bytes: if is_ssd { 4 << 20 } else { 0 },
            memory_bytes: if is_ssd { 0 } else { 4 << 20 },
            validation: Validation::Owner,
            volume_id: "test".to_owned(),
        };
        let tiers = TierOptions { eviction, ..TierOptions::default() };
        let cached = Cached::open_with_tiers(store.clone(), options, tiers, SystemClock::shared()).unwrap();
        Self { _root: root, store, cached }
    }

    async fn put(&self, number: u64, class: Option<u8>) {
        let object = class.map(|class| Class::new(class).unwrap());
        let metadata = Metadata { classes: Classes { object, ..Classes::default() }, ..Metadata::default() };
        let request = StageRequest { metadata, ..StageRequest::default() };
        let mut staged = self.store.stage(&context(), &address(number), request).await.unwrap();
        write_all(&mut *staged, pattern(OBJECT_BYTES, number)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Reads an object and compares it. Returns true if the cache had it.
    async fn read(&self, number: u64) -> bool {
        let found = self.cached.get(&context(), &address(number), GetRequest::default()).await.unwrap();
        let status = found.observation.cache.unwrap();
        assert!(drain(found.body).await.unwrap() == pattern(OBJECT_BYTES, number), "object {number}");
        self.cached.flush().await;
        matches!(status.source, CacheSource::Ram | CacheSource::Ssd)
    }

    async fn hits(&self, numbers: impl Iterator<Item = u64>) -> u64 {
        let mut hits = 0;
        for number in numbers {
            hits += u64::from(self.read(number).await);
        }
        hits
    }
}

fn address(number: u64) -> Address {
    Address::parse("bucket", &format!("key-{number}")).unwrap()
}

/// LRU loses an object of a loop just before it is requested again; the others keep a part.
#[tokio::test(flavor = "multi_thread")]
async fn loop_beyond_the_capacity_separates_lru_from_the_others() {
    for tier in [Tier::Memory, Tier::Ssd] {
        for eviction in ALL {
            let desk = Desk::open(eviction, tier).await;
            let count = CAPACITY_OBJECTS * 2;
            for number in 0..count {
                desk.put(number, None).await;
            }
            desk.hits(0..count).await;
            let hits = desk.hits((0..6).flat_map(|_| 0..count)).await;
            assert_eq!(hits == 0, eviction == Eviction::Lru, "{eviction:?} in {tier:?}: {hits} hits");
            desk.cached.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn baselines_ignore_classes_and_pins() {
    for tier in [Tier::Memory, Tier::Ssd] {
        for eviction in ALL {
            let desk = Desk::open(eviction, tier).await;
            let mut table = ClassPolicyTable::default();
            let pinned = ClassChanges { is_pinned: true, ..ClassChanges::default() };
            table.set(Class::new(25).unwrap(), pinned);
            desk.cached.set_policies(Arc::new(table));
            let labelled = 20;
            for number in 0..labelled {
                desk.put(number, Some(25)).await;
            }
            desk.hits(0..labelled).await;
            let occupied = desk.cached.occupancy();
            let class = occupied.iter().find(|occupied| occupied.class.value() == 25).unwrap();
            assert!(class.ram_bytes + class.ssd_bytes >= 20 * OBJECT_BYTES as u64, "{class:?}");
            for number in labelled..CAPACITY_OBJECTS * 3 {
                desk.put(number, None).await;
                desk.read(number).await;
            }
            let occupied = desk.cached.occupancy();
            let is_kept = occupied.iter().any(|occupied| occupied.class.value() == 25);
            // S3-FIFO keeps what it had before a scan, whatever its class.
            if eviction != Eviction::S3Fifo {
                assert_eq!(is_kept, eviction.obeys_classes(), "{eviction:?} in {tier:?}: {occupied:?}");
            }
            // A baseline tries no pins, and its pin pass visits nothing.
            assert_eq!(desk.cached.counters().pins_ignored, 0, "{eviction:?} in {tier:?}");
            let bucket = BucketName::new("bucket").unwrap();
            match desk.cached.pin(&bucket, "key-").await {
                Ok(()) => assert!(eviction.obeys_classes()),
                Err(error) => {
                    assert_eq!(error.reason(), Reason::InvalidArgument);
                    assert!(!eviction.obeys_classes());
                }
            }
            desk.cached.close().await.unwrap();
        }
    }
}
