//! Retentions: for some time, data has the rank of a higher class, which decays by reads and by a sweep.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "support/lasting.rs"]
mod lasting;

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::class::ClassUpdate;
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheStatus;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{
    FaultPlan, Faulty, MemoryStore, SimulatedClock, context, drain, pattern, write_all,
};
use tradewind_core::{Address, BucketName, Class, Classes, Clock, Metadata, ObjectStore, Retention};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable};

use lasting::Lasting;

const MIB: usize = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

struct Desk {
    root: TempDir,
    clock: Arc<SimulatedClock>,
    store: Arc<Faulty<MemoryStore>>,
    cached: Arc<Cached>,
}

/// The memory and the SSD of a cache.
#[derive(Debug, Clone, Copy)]
struct Tiers {
    memory_bytes: usize,
    disk_bytes: u64,
}

const BOTH: Tiers = Tiers { memory_bytes: 8 << 20, disk_bytes: 16 << 20 };

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn open(
    root: &TempDir,
    store: &Arc<Faulty<MemoryStore>>,
    tiers: Tiers,
    clock: Arc<dyn Clock>,
) -> Arc<Cached> {
    let options = CachedOptions {
        directory: (tiers.disk_bytes > 0).then(|| root.path().join("cache")),
        disk_bytes: tiers.disk_bytes,
        memory_bytes: tiers.memory_bytes,
        validation: Validation::Owner,
        volume_id: "test".to_owned(),
    };
    Cached::open(Arc::new(Lasting(store.clone())), options, clock).unwrap()
}

impl Desk {
    async fn open(tiers: Tiers) -> Self {
        let root = TempDir::new().unwrap();
        let clock = SimulatedClock::new();
        let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        let cached = open(&root, &store, tiers, clock.clone());
        Self { root, clock, store, cached }
    }

    /// A retention from now on.
    fn retention(&self, period: Duration) -> Option<Retention> {
        Retention::parse_seconds(&period.as_secs().to_string(), self.clock.wall()).unwrap()
    }

    /// Writes an object of class 31 behind the cache.
    async fn put(&self, key: &str, bytes: usize, retention: Option<Retention>) {
        let classes = Classes { object: Some(class(31)), ranges: Vec::new(), retention };
        let metadata = Metadata { classes, ..Metadata::default() };
        let request = StageRequest { metadata, ..StageRequest::default() };
        let mut staged = self.store.stage(&context(), &address(key), request).await.unwrap();
        write_all(&mut *staged, pattern(bytes, bytes as u64)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn read(&self, key: &str) -> CacheStatus {
        let found = self.cached.get(&context(), &address(key), GetRequest::default()).await.unwrap();
        let (status, size) = (found.observation.cache.unwrap(), found.info.size);
        let bytes = drain(found.body).await.unwrap();
        assert!(bytes == pattern(usize::try_from(size).unwrap(), size), "{key}");
        self.cached.flush().await;
        status
    }

    /// The classes that occupy the memory, and those that occupy the SSD.
    fn occupied(&self) -> [Vec<u8>; 2] {
        let all = self.cached.occupancy();
        let classes = |is_there: fn(&tradewind_cache::OccupiedClass) -> bool| {
            all.iter().filter(|occupied| is_there(occupied)).map(|occupied| occupied.class.value()).collect()
        };
        [classes(|occupied| occupied.ram_bytes > 0), classes(|occupied| occupied.ssd_bytes > 0)]
    }

    /// Lets time pass, and the background tasks run, until all is in one class of each tier.
    async fn wait_for(&self, value: u8, step: Duration) {
        for _ in 0..200 {
            if self.occupied() == [vec![value], vec![value]] {
                return;
            }
            self.clock.advance(step);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?} instead of class {value}", self.occupied());
    }
}

fn only(value: u8) -> [Vec<u8>; 2] {
    [vec![value], vec![value]]
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_step_down_from_the_highest_label_to_the_own_class() {
    for bytes in [10_000, MIB] {
        let desk = Desk::open(BOTH).await;
        desk.put("k", bytes, desk.retention(HOUR)).await;
        desk.read("k").await;
        let mut statuses = Vec::new();
        for (wait, expected) in [(0, 24), (1800, 27), (1799, 30), (1, 31)] {
            desk.clock.advance(Duration::from_secs(wait));
            statuses.push(desk.read("k").await.to_string());
            // The read ranked what it found in memory; the SSD follows with it.
            assert_eq!(desk.occupied(), only(expected), "{bytes} bytes after {wait} s");
        }
        let details = statuses.map_details();
        assert_eq!(
            details,
            [
                "class 31, priority 2, retention 3600 s",
                "class 31, priority 5, retention 1800 s",
                "class 31, priority 8, retention 1 s",
                "class 31, priority 9",
            ]
        );
    }
}

trait Details {
    fn map_details(&self) -> Vec<&str>;
}

impl Details for Vec<String> {
    /// The text after the tier.
    fn map_details(&self) -> Vec<&str> {
        self.iter().map(|status| status.split_once("ram, ").unwrap().1.trim_end_matches('"')).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_steps_down_what_is_not_read() {
    for bytes in [10_000, MIB] {
        let desk = Desk::open(BOTH).await;
        desk.put("k", bytes, desk.retention(HOUR)).await;
        desk.read("k").await;
        assert_eq!(desk.occupied(), only(24));
        desk.clock.advance(HOUR / 2);
        desk.wait_for(27, Duration::from_secs(1)).await;
        desk.clock.advance(HOUR);
        desk.wait_for(31, Duration::from_secs(40)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_retention_ranks_the_next_read() {
    let desk = Desk::open(BOTH).await;
    desk.put("k", MIB, None).await;
    desk.read("k").await;
    assert_eq!(desk.occupied(), only(31));
    let update = ClassUpdate { retention: Some(desk.retention(HOUR)), ..ClassUpdate::default() };
    desk.cached.set_classes(&context(), &address("k"), update).await.unwrap();
    desk.read("k").await;
    assert!(desk.read("k").await.to_string().contains("hit; detail=\"ram, class 31, priority 2, retention"));
    let update = ClassUpdate { retention: Some(None), ..ClassUpdate::default() };
    desk.cached.set_classes(&context(), &address("k"), update).await.unwrap();
    desk.read("k").await;
    assert!(desk.read("k").await.to_string().ends_with("class 31, priority 9\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_leaves_an_object_whose_retention_was_ended() {
    for bytes in [10_000, MIB] {
        let desk = Desk::open(BOTH).await;
        desk.put("k", bytes, desk.retention(HOUR)).await;
        // It keeps the sweep running.
        desk.put("other", 100, desk.retention(4 * HOUR)).await;
        desk.read("k").await;
        desk.read("other").await;
        let update = ClassUpdate { retention: Some(None), ..ClassUpdate::default() };
        desk.cached.set_classes(&context(), &address("k"), update).await.unwrap();
        desk.read("k").await;
        desk.read("k").await;
        let before = desk.occupied();
        assert_eq!(before, [[24, 31], [24, 31]]);
        desk.clock.advance(HOUR / 2);
        for _ in 0..100 {
            desk.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let steps = desk.occupied();
        assert!(steps.iter().all(|classes| classes.len() == 2 && classes[1] == 31), "{bytes}: {steps:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_survives_a_restart() {
    let mut desk = Desk::open(Tiers { memory_bytes: 0, ..BOTH }).await;
    desk.put("k", MIB, desk.retention(HOUR)).await;
    desk.read("k").await;
    assert_eq!(desk.occupied()[1], [24]);
    desk.cached.close().await.unwrap();
    desk.clock.advance(HOUR / 2);
    let cached = open(&desk.root, &desk.store, Tiers { memory_bytes: 0, ..BOTH }, desk.clock.clone());
    while !cached.is_loaded() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.cached = cached;
    assert_eq!(desk.occupied()[1], [24], "the index has the rank before the restart");
    desk.read("k").await;
    assert_eq!(desk.occupied()[1], [27]);
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_objects_survive_a_flood_of_their_class() {
    const OBJECTS: usize = 20;
    let hits_of = async |is_retained: bool| {
        let desk = Desk::open(Tiers { memory_bytes: 4 << 20, disk_bytes: 0 }).await;
        for number in 0..OBJECTS {
            let retention = desk.retention(HOUR).filter(|_| is_retained);
            desk.put(&format!("small-{number}"), 16 << 10, retention).await;
        }
        let mut hits = 0;
        for round in 0..8 {
            for number in 0..OBJECTS {
                let status = desk.read(&format!("small-{number}")).await;
                hits += usize::from(round >= 4 && status.to_string().contains("; hit;"));
            }
            for number in 0..12 {
                let key = format!("large-{round}-{number}");
                desk.put(&key, MIB, None).await;
                desk.read(&key).await;
            }
        }
        hits * 100 / (4 * OBJECTS)
    };
    let (retained, own) = (hits_of(true).await, hits_of(false).await);
    assert!(retained >= 90 && own < retained, "{retained} % with a retention, {own} % without");
}

#[tokio::test(flavor = "multi_thread")]
async fn class_that_is_pinned_lends_its_rank_no_longer() {
    let desk = Desk::open(BOTH).await;
    desk.put("k", MIB, desk.retention(HOUR)).await;
    desk.read("k").await;
    let mut table = ClassPolicyTable::default();
    table.set(class(24), ClassChanges { is_pinned: true, ..ClassChanges::default() });
    desk.cached.set_policies(Arc::new(table));
    desk.read("k").await;
    assert_eq!(desk.occupied(), only(25), "a pinned class lends no rank");
}
