//! Policies of classes: what stays in the cache, what bypasses it, and how much of it a class fills.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use tempfile::TempDir;
use tradewind_cache::{Cached, CachedOptions, OccupiedClass, Validation};
use tradewind_core::object::Expected;
use tradewind_core::observation::{CacheSource, CacheStatus, ForwardReason};
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{
    FaultPlan, Faulty, MemoryStore, Operation, context, drain, pattern, reason, write_all,
};
use tradewind_core::{
    Address, BucketName, ByteRange, Class, Classes, Metadata, ObjectStore, Reason, SystemClock,
};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable, ClassPriority};

#[path = "class_policies/first_slices.rs"]
mod first_slices;
#[path = "class_policies/rest_of_streams.rs"]
mod rest_of_streams;
#[path = "class_policies/wrong_labels.rs"]
mod wrong_labels;

/// Size of the objects whose number is small.
const SMALL_BYTES: usize = 16 << 10;
const LARGE_BYTES: usize = 1 << 20;

struct Desk {
    root: TempDir,
    store: Arc<Faulty<MemoryStore>>,
    cached: Arc<Cached>,
}

/// The tiers of a cache.
#[derive(Debug, Clone, Copy)]
struct Tiers {
    memory_bytes: usize,
    disk_bytes: u64,
}

const MEMORY_ONLY: Tiers = Tiers { memory_bytes: 8 << 20, disk_bytes: 0 };
const SSD_ONLY: Tiers = Tiers { memory_bytes: 0, disk_bytes: 16 << 20 };

fn open(root: &TempDir, store: &Arc<Faulty<MemoryStore>>, tiers: Tiers) -> Arc<Cached> {
    let options = CachedOptions {
        directory: (tiers.disk_bytes > 0).then(|| root.path().join("cache")),
        disk_bytes: tiers.disk_bytes,
        memory_bytes: tiers.memory_bytes,
        validation: Validation::Owner,
        volume_id: "test".to_owned(),
    };
    Cached::open(store.clone(), options, SystemClock::shared()).unwrap()
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

fn of_class(value: u8) -> Classes {
    Classes { object: Some(class(value)), ..Classes::default() }
}

fn policies(changes: impl IntoIterator<Item = (u8, ClassChanges)>) -> Arc<ClassPolicyTable> {
    let mut table = ClassPolicyTable::default();
    for (value, changes) in changes {
        table.set(class(value), changes);
    }
    Arc::new(table)
}

fn priority(value: u8) -> ClassChanges {
    ClassChanges { priority: ClassPriority::new(value), ..ClassChanges::default() }
}

fn pinned() -> ClassChanges {
    ClassChanges { is_pinned: true, ..ClassChanges::default() }
}

impl Desk {
    async fn open(tiers: Tiers) -> Self {
        let root = TempDir::new().unwrap();
        let store = Faulty::new(MemoryStore::new(SystemClock::shared()), FaultPlan::none());
        store.create_bucket(&context(), &bucket()).await.unwrap();
        let cached = open(&root, &store, tiers);
        Self { root, store, cached }
    }

    /// Writes an object behind the cache.
    async fn put(&self, key: &str, bytes: usize, classes: Classes) {
        let metadata = Metadata { classes, ..Metadata::default() };
        let request = StageRequest { metadata, ..StageRequest::default() };
        let mut staged = self.store.stage(&context(), &address(key), request).await.unwrap();
        write_all(&mut *staged, content(key, bytes)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn put_all(&self, prefix: &str, count: usize, bytes: usize, classes: &Classes) {
        for number in 0..count {
            self.put(&format!("{prefix}{number}"), bytes, classes.clone()).await;
        }
    }

    /// Reads an object, waits until it is cached, and returns the cache's report.
    async fn read(&self, key: &str) -> CacheStatus {
        let found = self.cached.get(&context(), &address(key), GetRequest::default()).await.unwrap();
        let status = found.observation.cache.unwrap();
        let size = usize::try_from(found.info.size).unwrap();
        assert!(drain(found.body).await.unwrap() == content(key, size), "{key}");
        self.cached.flush().await;
        status
    }

    /// Reads objects and returns how many of them the cache had.
    async fn hits(&self, prefix: &str, count: usize) -> usize {
        let mut hits = 0;
        for number in 0..count {
            let status = self.read(&format!("{prefix}{number}")).await;
            hits += usize::from(matches!(status.source, CacheSource::Ram | CacheSource::Ssd));
        }
        hits
    }

    fn occupied(&self, value: u8) -> OccupiedClass {
        let none = OccupiedClass { class: class(value), ram_bytes: 0, ssd_bytes: 0, ssd_extents: 0 };
        self.cached.occupancy().into_iter().find(|occupied| occupied.class == class(value)).unwrap_or(none)
    }
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn content(key: &str, bytes: usize) -> Bytes {
    pattern(bytes, key.bytes().map(u64::from).sum())
}

/// Reads small objects in rounds, and between the rounds more new large ones than the cache holds. Returns the hits of
/// the small ones in the last rounds, in percent.
async fn hits_in_a_flood(tiers: Tiers, small: &Classes) -> usize {
    const ROUNDS: usize = 8;
    const LAST_ROUNDS: usize = 4;
    const SMALL: usize = 40;
    const FLOOD: usize = 12;
    let desk = Desk::open(tiers).await;
    desk.put_all("small-", SMALL, SMALL_BYTES, small).await;
    let mut hits = 0;
    for round in 0..ROUNDS {
        let found = desk.hits("small-", SMALL).await;
        hits += if round >= ROUNDS - LAST_ROUNDS { found } else { 0 };
        for number in 0..FLOOD {
            let key = format!("large-{round}-{number}");
            desk.put(&key, LARGE_BYTES, Classes::default()).await;
            desk.read(&key).await;
        }
    }
    hits * 100 / (SMALL * LAST_ROUNDS)
}

#[tokio::test(flavor = "multi_thread")]
async fn labelled_small_files_survive_a_flood_without_labels() {
    let tiers = Tiers { memory_bytes: 4 << 20, disk_bytes: 0 };
    let (labelled, unlabelled) =
        (hits_in_a_flood(tiers, &of_class(25)).await, hits_in_a_flood(tiers, &Classes::default()).await);
    assert!(labelled >= 90 && unlabelled < labelled, "{labelled} % with labels, {unlabelled} % without");
    let labelled = hits_in_a_flood(Tiers { memory_bytes: 0, disk_bytes: 8 << 20 }, &of_class(25)).await;
    assert!(labelled >= 90, "{labelled} % on the SSD");
}

#[tokio::test(flavor = "multi_thread")]
async fn class_fills_at_most_its_occupancy() {
    let desk = Desk::open(Tiers { memory_bytes: 8 << 20, disk_bytes: 16 << 20 }).await;
    let limit = ClassChanges { max_occupancy_percent: Some(20), ..ClassChanges::default() };
    desk.cached.set_policies(policies([(26, limit)]));
    desk.put_all("picture-", 20, LARGE_BYTES, &of_class(26)).await;
    desk.hits("picture-", 20).await;
    let occupied = desk.occupied(26);
    let (ram, ssd) = ((8 << 20) / 5, (16 << 20) / 5);
    assert!((1..=ram).contains(&occupied.ram_bytes), "{occupied:?}");
    assert!((1..=ssd).contains(&occupied.ssd_bytes), "{occupied:?}");
    assert!(occupied.ssd_extents > 0 && desk.cached.occupancy().len() == 1, "{:?}", desk.cached.occupancy());
}

#[tokio::test(flavor = "multi_thread")]
async fn lower_occupancy_evicts_what_is_too_much() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.put_all("picture-", 10, LARGE_BYTES / 2, &of_class(26)).await;
        desk.hits("picture-", 10).await;
        let filled = |occupied: OccupiedClass| occupied.ram_bytes + occupied.ssd_bytes;
        assert!(filled(desk.occupied(26)) > 4 << 20);
        let limit = ClassChanges { max_occupancy_percent: Some(10), ..ClassChanges::default() };
        desk.cached.set_policies(policies([(26, limit)]));
        while filled(desk.occupied(26)) > 2 << 20 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

const MAILS: usize = 750;

/// Fills a cache in memory with objects of class 25, so small that nothing else fits in what they leave free.
async fn full_of_mail() -> Desk {
    let desk = Desk::open(MEMORY_ONLY).await;
    desk.put_all("mail-", MAILS, SMALL_BYTES * 3 / 4, &of_class(25)).await;
    desk.hits("mail-", MAILS).await;
    desk
}

#[tokio::test(flavor = "multi_thread")]
async fn low_class_bypasses_a_full_cache_until_the_policy_changes() {
    let desk = full_of_mail().await;
    for (key, bytes, reads) in [("little", SMALL_BYTES, 2), ("large", LARGE_BYTES, 1)] {
        desk.put(key, bytes, of_class(31)).await;
        for _ in 0..reads {
            assert_eq!(desk.read(key).await.to_string(), BYPASSED, "{key}");
        }
    }
    assert!(desk.cached.counters().fills_bypassed > 0);
    assert!(desk.occupied(31).ram_bytes < 8 << 10, "only heads: {:?}", desk.occupied(31));
    desk.cached.set_policies(policies([(31, priority(0)), (25, priority(11))]));
    for key in ["large", "little"] {
        desk.read(key).await;
        let status = desk.read(key).await;
        assert_eq!(status.to_string(), "tradewind; hit; detail=\"ram, class 31, priority 0\"");
    }
}

/// The report on an object of class 31 that does not enter.
const BYPASSED: &str = "tradewind; fwd=bypass; detail=\"class 31 under pressure\"";

/// The order of labels is dropped if the low class is reused and the high one is not.
#[tokio::test(flavor = "multi_thread")]
async fn low_class_that_is_read_often_displaces_a_high_class_out_of_use() {
    const READS: usize = 60;
    let desk = full_of_mail().await;
    desk.put("large", LARGE_BYTES, of_class(31)).await;
    assert_eq!(desk.read("large").await.to_string(), BYPASSED);
    let mut reads = 1;
    while desk.read("large").await.source != CacheSource::Ram {
        reads += 1;
        assert!(reads < READS, "the order of the labels is dropped");
    }
    assert!(desk.hits("mail-", MAILS).await < MAILS);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_an_object_are_ranked_by_their_own_classes() {
    let desk = full_of_mail().await;
    let ranges = Classes::parse_ranges("0-512-24").unwrap();
    desk.put("image", LARGE_BYTES, Classes { object: Some(class(31)), ranges, retention: None }).await;
    desk.read("image").await;
    let (first, rest) = (desk.occupied(24).ram_bytes, desk.occupied(31).ram_bytes);
    assert!((256 << 10..400 << 10).contains(&first), "{first} bytes of the first 256 KiB");
    assert_eq!(rest, 0, "the rest bypasses the cache");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_class_and_priority() {
    let desk = Desk::open(MEMORY_ONLY).await;
    for (key, classes, expected) in [
        ("a", of_class(25), "class 25, priority 3"),
        ("b", of_class(3), "class 3, priority 11"),
        ("c", Classes::default(), "class 12, by reuse"),
    ] {
        desk.put(key, SMALL_BYTES, classes).await;
        let cold = desk.read(key).await.to_string();
        assert_eq!(cold, format!("tradewind; fwd=uri-miss; detail=\"backing, {expected}\""));
        assert_eq!(desk.read(key).await.to_string(), format!("tradewind; hit; detail=\"ram, {expected}\""));
    }
}

/// Reads new objects, each several times, until the cache is replaced.
async fn replace_all(desk: &Desk, name: &str) {
    desk.put_all(name, 40, LARGE_BYTES / 2, &of_class(24)).await;
    for _ in 0..3 {
        for number in 0..40 {
            for _ in 0..3 {
                desk.read(&format!("{name}{number}")).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_class_stays_until_it_is_unpinned() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.cached.set_policies(policies([(30, pinned())]));
        desk.put_all("kept-", 4, LARGE_BYTES / 4, &of_class(30)).await;
        desk.hits("kept-", 4).await;
        replace_all(&desk, "a-").await;
        assert_eq!(desk.hits("kept-", 4).await, 4, "{tiers:?}");
        desk.cached.set_policies(policies([]));
        replace_all(&desk, "b-").await;
        assert!(desk.hits("kept-", 4).await < 4, "{tiers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_fill_at_most_half_of_the_cache() {
    let desk = Desk::open(MEMORY_ONLY).await;
    desk.cached.set_policies(policies([(30, pinned())]));
    desk.put_all("kept-", 20, LARGE_BYTES / 2, &of_class(30)).await;
    desk.hits("kept-", 20).await;
    assert!(desk.cached.counters().pins_ignored > 0);
    replace_all(&desk, "a-").await;
    let kept = desk.occupied(30).ram_bytes;
    assert!((3 << 20..=5 << 20).contains(&kept), "{kept} bytes are pinned");
}

/// The SSD has one entry of its index for 32 KiB, and a tiny object takes one and 4 KiB.
const SSD_ENTRIES: usize = (16 << 20) / (32 << 10);
const TINY_BYTES: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn pinned_tiny_objects_leave_entries_of_the_ssd_to_others() {
    let desk = Desk::open(SSD_ONLY).await;
    desk.cached.set_policies(policies([(30, pinned())]));
    desk.put_all("kept-", SSD_ENTRIES + 20, TINY_BYTES, &of_class(30)).await;
    desk.hits("kept-", SSD_ENTRIES + 20).await;
    assert!(desk.cached.counters().pins_ignored > 0);
    desk.put_all("other-", 20, TINY_BYTES, &of_class(24)).await;
    desk.hits("other-", 20).await;
    assert_eq!(desk.hits("other-", 20).await, 20);
    assert_eq!(desk.cached.ssd_extents(), SSD_ENTRIES);
}

#[tokio::test(flavor = "multi_thread")]
async fn occupancy_limits_a_class_of_tiny_objects() {
    let desk = Desk::open(SSD_ONLY).await;
    let limit = ClassChanges { max_occupancy_percent: Some(20), ..ClassChanges::default() };
    desk.cached.set_policies(policies([(26, limit)]));
    desk.put_all("icon-", SSD_ENTRIES / 2, TINY_BYTES, &of_class(26)).await;
    desk.hits("icon-", SSD_ENTRIES / 2).await;
    assert_eq!(desk.occupied(26).ssd_extents as usize, SSD_ENTRIES / 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn low_class_bypasses_an_ssd_without_free_entries() {
    let desk = Desk::open(SSD_ONLY).await;
    desk.put_all("mail-", SSD_ENTRIES, TINY_BYTES, &of_class(25)).await;
    desk.hits("mail-", SSD_ENTRIES).await;
    assert_eq!(desk.cached.ssd_extents(), SSD_ENTRIES);
    let written = desk.cached.counters().ssd_written_bytes;
    desk.put("low", TINY_BYTES, of_class(31)).await;
    let status = desk.read("low").await;
    assert_eq!(status.source, CacheSource::Backing(ForwardReason::Pressure));
    assert_eq!(desk.cached.counters().ssd_written_bytes, written, "it is not written");
}

#[tokio::test(flavor = "multi_thread")]
async fn class_that_is_pinned_later_stays_without_a_read() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.put_all("kept-", 4, LARGE_BYTES / 4, &of_class(30)).await;
        desk.hits("kept-", 4).await;
        desk.cached.set_policies(policies([(30, pinned())]));
        replace_all(&desk, "a-").await;
        assert_eq!(desk.hits("kept-", 4).await, 4, "{tiers:?}");
    }
    for tiers in [Tiers { memory_bytes: 16 << 20, ..MEMORY_ONLY }, SSD_ONLY] {
        first_slices::pin_of_a_class_by_size_includes_what_is_cached(tiers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_of_prefixes_survive_a_change_of_policies() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.cached.pin(&bucket(), "keep/").await.unwrap();
        desk.put_all("keep/it-", 4, LARGE_BYTES / 4, &of_class(29)).await;
        desk.hits("keep/it-", 4).await;
        desk.cached.set_policies(policies([(30, pinned())]));
        replace_all(&desk, "a-").await;
        assert_eq!(desk.hits("keep/it-", 4).await, 4, "{tiers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_prefix_stays_and_survives_a_restart() {
    let desk = Desk::open(SSD_ONLY).await;
    desk.put_all("keep/it-", 4, LARGE_BYTES / 4, &Classes::default()).await;
    desk.hits("keep/it-", 4).await;
    desk.cached.pin(&bucket(), "keep/").await.unwrap();
    desk.cached.pin(&bucket(), "keep/").await.unwrap();
    // Objects that are cached already are pinned when they are read.
    assert_eq!(desk.hits("keep/it-", 4).await, 4);
    replace_all(&desk, "a-").await;
    assert_eq!(desk.hits("keep/it-", 4).await, 4);
    desk.cached.close().await.unwrap();
    let again = open(&desk.root, &desk.store, SSD_ONLY);
    assert_eq!(again.pins().len(), 1);
    assert!(again.pins()[0].contains(&address("keep/x")) && !again.pins()[0].contains(&address("kept")));
    again.unpin(&bucket(), "keep/").await.unwrap();
    again.close().await.unwrap();
    assert!(open(&desk.root, &desk.store, SSD_ONLY).pins().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_pinned_prefixes_are_rejected() {
    let desk = Desk::open(MEMORY_ONLY).await;
    for number in 0..64 {
        desk.cached.pin(&bucket(), &format!("{number}/")).await.unwrap();
    }
    assert_eq!(reason(desk.cached.pin(&bucket(), "more/").await), Reason::InvalidArgument);
    assert_eq!(desk.cached.pins().len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn unpin_of_a_prefix_that_is_not_pinned_ends_no_pin() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.cached.pin(&bucket(), "keep/").await.unwrap();
        desk.put_all("keep/it-", 4, LARGE_BYTES / 4, &Classes::default()).await;
        desk.hits("keep/it-", 4).await;
        desk.cached.unpin(&bucket(), "keep/typo/").await.unwrap();
        replace_all(&desk, "a-").await;
        assert_eq!(desk.hits("keep/it-", 4).await, 4, "{tiers:?}");
    }
}

/// The file has a pin more if an `unpin` failed before.
#[tokio::test(flavor = "multi_thread")]
async fn unpin_of_a_prefix_that_is_not_pinned_writes_the_file() {
    let desk = Desk::open(SSD_ONLY).await;
    let path = desk.root.path().join("cache/pins");
    std::fs::write(&path, "bucket keep/\n").unwrap();
    desk.cached.unpin(&bucket(), "keep/").await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("# checksum ") && text.lines().count() == 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unpin_whose_future_is_dropped_unpins_what_is_cached() {
    for tiers in [MEMORY_ONLY, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.cached.pin(&bucket(), "keep/").await.unwrap();
        desk.put_all("keep/it-", 4, LARGE_BYTES / 4, &Classes::default()).await;
        desk.hits("keep/it-", 4).await;
        let _dropped = desk.cached.unpin(&bucket(), "keep/").now_or_never();
        while !desk.cached.pins().is_empty() {
            tokio::task::yield_now().await;
        }
        replace_all(&desk, "a-").await;
        assert!(desk.hits("keep/it-", 4).await < 4, "{tiers:?}");
    }
}
