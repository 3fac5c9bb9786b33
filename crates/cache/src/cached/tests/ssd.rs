//! Costs of reads on the SSD, and data that does not enter it.

use tradewind_core::observation::{CacheSource, ForwardReason};
use tradewind_core::store::Select;
use tradewind_core::{ByteRange, Span};

use super::*;
use crate::reader::{CachedReader, Origin};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The size of an object whose first slice is a class of its own.
const STREAM_BYTES: usize = 5 << 20;

fn without_verification() -> TierOptions {
    TierOptions { verify_bytes_per_second: 0, ..TierOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn hit_of_an_object_up_to_64_kib_is_one_device_read() {
    let desk = Desk::open(0, 64 << 20).await;
    for (number, size) in (100..).zip([1, 4 * KIB, 16 * KIB, 48 * KIB, 64 * KIB]) {
        desk.write(number, size).await;
        desk.read(number, size).await;
        desk.cached.flush().await;
        assert_eq!(desk.read(number, size).await, 1, "{size} bytes");
    }
    assert_eq!(desk.cached.counters().misses, 5);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hit_of_a_mib_is_two_device_reads() {
    let desk = Desk::open(0, 64 << 20).await;
    for number in 100..110 {
        desk.write(number, MIB).await;
        desk.read(number, MIB).await;
    }
    desk.cached.flush().await;
    for number in 100..110 {
        let calls = desk.read(number, MIB).await;
        assert_eq!(calls, 2, "its head and its data: {:?}", desk.cached.counters());
    }
    desk.cached.close().await.unwrap();
}

/// Objects of several sizes leave free space of all kinds.
#[tokio::test(flavor = "multi_thread")]
async fn neighbours_stay_together_in_a_full_cache() {
    const OBJECTS: u64 = 150;
    let size = |number: u64| [MIB, 3 * MIB / 2, 20 * KIB, 300 * KIB][number as usize % 4];
    let desk = Desk::open(0, 32 << 20).await;
    for number in 100..100 + OBJECTS {
        desk.write(number, size(number)).await;
        desk.read(number, size(number)).await;
        desk.cached.flush().await;
    }
    let counters = desk.cached.counters();
    assert!(counters.ssd_evictions > 500, "{counters:?}");
    let (mut hits, mut calls) = (0, 0);
    for number in (100..100 + OBJECTS).filter(|number| size(*number) == MIB) {
        let before = desk.cached.counters().ssd_hits;
        let cost = desk.read(number, MIB).await;
        if desk.cached.counters().ssd_hits > before {
            (hits, calls) = (hits + 1, calls + cost);
        }
        desk.cached.flush().await;
    }
    println!("{calls} reads of the device for {hits} hits of 1 MiB");
    assert!(hits >= 3 && calls <= 3 * hits, "{calls} reads for {hits} hits");
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn read_of_neighbours_without_memory_is_in_parts() {
    let desk = Desk::open(0, 64 << 20).await;
    desk.write(100, 3 * MIB).await;
    desk.read(100, 3 * MIB).await;
    desk.cached.flush().await;
    let budget = Budget::new(MIB);
    let window = budget.admit(MIB / 4, &context().deadline).await.unwrap();
    let narrow = Context { window, ..context() };
    let gets = desk.store.calls(Operation::Get);
    let found = desk.cached.get(&narrow, &address(100), GetRequest::default()).await.unwrap();
    assert!(drain(found.body).await.unwrap() == pattern(3 * MIB, 100));
    assert_eq!(desk.store.calls(Operation::Get), gets);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_extents_are_found_in_the_background() {
    let tiers = TierOptions { verify_bytes_per_second: 1 << 40, ..TierOptions::default() };
    let desk = Desk::open_with(0, 64 << 20, tiers).await;
    desk.read_all().await;
    desk.cached.flush().await;
    let verify = async |desk: &Desk, is_done: &dyn Fn(&CacheCounters) -> bool| {
        for _ in 0..2000 {
            desk.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(2)).await;
            if is_done(&desk.cached.counters()) {
                return;
            }
        }
        panic!("{:?}", desk.cached.counters());
    };
    let extents = desk.cached.ssd_extents();
    verify(&desk, &|counters| counters.ssd_verified_bytes > 10 << 20).await;
    assert_eq!((desk.cached.ssd_extents(), desk.cached.counters().ssd_corrupt), (extents, 0));
    desk.set(Mode::Lies);
    verify(&desk, &|counters| counters.ssd_corrupt >= extents as u64).await;
    assert_eq!(desk.cached.ssd_extents(), 0);
    desk.set(Mode::Works);
    assert_eq!(desk.read_all().await, OBJECTS, "they are read from the store again");
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_pauses_while_the_ssd_is_busy() {
    let tiers = TierOptions { verify_bytes_per_second: 1 << 40, ..TierOptions::default() };
    let desk = Desk::open_with(0, 64 << 20, tiers).await;
    desk.read_all().await;
    desk.cached.flush().await;
    let disk = desk.cached.tiers.disk.clone().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    disk.run_in_background(move || released.recv().unwrap());
    // One verification may have begun before.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = desk.cached.counters().ssd_verified_bytes;
    for _ in 0..20 {
        desk.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(desk.cached.counters().ssd_verified_bytes, before);
    release.send(()).unwrap();
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fills_over_the_write_budget_stay_in_memory() {
    const COUNT: u64 = 64;
    let tiers = TierOptions { max_write_bytes_per_second: Some(1), ..without_verification() };
    let desk = Desk::open_with(32 << 20, 64 << 20, tiers).await;
    for number in 100..100 + COUNT {
        desk.write(number, 64 * KIB).await;
        desk.read(number, 64 * KIB).await;
    }
    desk.cached.flush().await;
    let counters = desk.cached.counters();
    assert!(counters.ssd_written_bytes <= 1 << 20, "{counters:?}");
    assert_eq!(counters.fills_over_budget + counters.fills, COUNT, "{counters:?}");
    for number in 100..100 + COUNT {
        assert_eq!(desk.read(number, 64 * KIB).await, 0, "it is in memory");
    }
    assert_eq!(desk.cached.counters().misses, COUNT);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn second_miss_is_stored_beyond_the_write_budget() {
    let tiers = TierOptions { max_write_bytes_per_second: Some(1), ..without_verification() };
    let desk = Desk::open_with(0, 64 << 20, tiers).await;
    for number in 100..120 {
        desk.write(number, 2 * EXTENT_BYTES).await;
        desk.read(number, 2 * EXTENT_BYTES).await;
        desk.cached.flush().await;
    }
    assert!(desk.cached.counters().fills_over_budget > 0);
    // The burst is spent; a second miss of these is admitted.
    for _ in 0..2 {
        desk.read(119, 2 * EXTENT_BYTES).await;
        desk.cached.flush().await;
    }
    let gets = desk.store.calls(Operation::Get);
    desk.read(119, 2 * EXTENT_BYTES).await;
    assert_eq!(desk.store.calls(Operation::Get), gets, "{:?}", desk.cached.counters());
    let written = desk.cached.counters().ssd_written_bytes;
    assert!(written <= 2 << 20, "{written} bytes: two bursts");
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_counts_skipped_fills_only() {
    let desk = Desk::open(0, 64 << 20).await;
    let tiers = &desk.cached.tiers;
    let permits: Vec<_> = std::iter::from_fn(|| tiers.try_head_permit()).collect();
    assert_eq!(desk.cached.counters().fills_queue_full, 0);
    assert!(tiers.try_fill_bytes(EXTENT_BYTES).is_none());
    assert_eq!(desk.cached.counters().fills_queue_full, 1);
    drop(permits);
    desk.cached.close().await.unwrap();
}

/// An error of the device is a miss of one extent, and the rest comes from the SSD.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_block_of_a_large_object_is_one_miss() {
    let desk = Desk::open(0, 64 << 20).await;
    desk.write(100, MIB).await;
    desk.read(100, MIB).await;
    desk.cached.flush().await;
    let extents = desk.cached.ssd_extents();
    *desk.unreadable.lock() = Some(5 * EXTENT_BYTES as u64);
    desk.read(100, MIB).await;
    let counters = desk.cached.counters();
    assert_eq!((counters.ssd_errors, counters.ssd_corrupt), (1, 1), "{counters:?}");
    desk.cached.flush().await;
    assert!(desk.cached.ssd_extents() >= extents - 1);
    // Other space, or the same block after the SSD has replaced it.
    *desk.unreadable.lock() = None;
    desk.read(100, MIB).await;
    desk.cached.flush().await;
    let gets = desk.store.calls(Operation::Get);
    desk.read(100, MIB).await;
    assert_eq!(desk.store.calls(Operation::Get), gets, "{:?}", desk.cached.counters());
    desk.cached.close().await.unwrap();
}

/// The rest of the stream was requested by then.
#[tokio::test(flavor = "multi_thread")]
async fn slice_evicted_before_it_is_read_comes_from_the_store() {
    let desk = Desk::open(0, 64 << 20).await;
    desk.write(100, STREAM_BYTES).await;
    let select = Select::Range(ByteRange::Inclusive { first: 0, last: 4 * EXTENT_BYTES as u64 - 1 });
    let request = GetRequest { select, ..GetRequest::default() };
    let found = desk.cached.get(&context(), &address(100), request).await.unwrap();
    drain(found.body).await.unwrap();
    desk.cached.flush().await;
    let gets = desk.store.calls(Operation::Get);
    let found = desk.cached.get(&context(), &address(100), GetRequest::default()).await.unwrap();
    let tiers = &desk.cached.tiers;
    let hash = tiers.fingerprints.key(&address(100));
    let token = tiers.changes.token(hash).unwrap();
    let (head, _) = tiers.head(&address(100), &token).await.unwrap();
    tiers.remove_from_ssd(&head, 2);
    assert!(drain(found.body).await.unwrap() == pattern(STREAM_BYTES, 100));
    assert_eq!(desk.store.calls(Operation::Get), gets + 2);
    assert_eq!(desk.cached.counters().ssd_bytes, 2 * EXTENT_BYTES as u64);
    desk.cached.close().await.unwrap();
}

impl Desk {
    /// Reads an object, whose data is then on the SSD only, and its head in memory.
    async fn read_to_ssd(&self) {
        self.read(100, STREAM_BYTES).await;
        self.cached.flush().await;
        self.release_data().await;
    }

    /// Drops the data of the object from memory.
    async fn release_data(&self) {
        let tiers = &self.cached.tiers;
        let hash = tiers.fingerprints.key(&address(100));
        let head = tiers.peek_head(&address(100), hash).await.unwrap();
        assert!(tiers.ram.contains(hash.key));
        for number in 0..STREAM_BYTES.div_ceil(EXTENT_BYTES) as u32 {
            tiers.ram.release_data(tiers.fingerprints.data(head.content, number));
        }
    }

    /// Reads the object, and returns the number of GETs that reached the store and the reported source.
    async fn read_source(&self) -> (u64, CacheSource) {
        let gets = self.store.calls(Operation::Get);
        let found = self.cached.get(&context(), &address(100), GetRequest::default()).await.unwrap();
        let source = found.observation.cache.unwrap().source;
        assert!(drain(found.body).await.unwrap() == pattern(STREAM_BYTES, 100));
        (self.store.calls(Operation::Get) - gets, source)
    }
}

/// Not one for each extent. The SSD is tried again by reads of what its index has.
#[tokio::test(flavor = "multi_thread")]
async fn large_read_from_an_ssd_that_fails_is_one_request() {
    let desk = Desk::open(16 * MIB, 64 << 20).await;
    desk.write(100, STREAM_BYTES).await;
    desk.read_to_ssd().await;
    desk.set(Mode::Fails);
    assert_eq!(desk.read_source().await, (1, CacheSource::Ssd), "the first error");
    desk.read_all().await;
    desk.cached.flush().await;
    assert_eq!(desk.cached.counters().ssd_switched_off, 1);
    desk.set(Mode::Works);
    desk.release_data().await;
    desk.clock.advance(Duration::from_secs(60));
    assert_eq!(desk.read_source().await, (0, CacheSource::Ssd), "a trial");
    desk.cached.flush().await;
    desk.release_data().await;
    desk.set(Mode::Fails);
    for number in 200..204 {
        desk.write(number, 4 * KIB).await;
        desk.read(number, 4 * KIB).await;
        desk.cached.flush().await;
    }
    assert_eq!(desk.cached.counters().ssd_switched_off, 2);
    assert_eq!(desk.read_source().await, (1, CacheSource::Backing(ForwardReason::Miss)), "it is off");
    desk.release_data().await;
    let hash = desk.cached.tiers.fingerprints.key(&address(100));
    desk.cached.tiers.ram.release(hash.key);
    assert_eq!(desk.read_source().await, (1, CacheSource::Backing(ForwardReason::Miss)), "without a head");
    desk.cached.flush().await;
    desk.cached.finish_evictions().await;
    desk.set(Mode::Works);
    desk.clock.advance(Duration::from_secs(60));
    assert_eq!(desk.read_source().await, (0, CacheSource::Ssd), "the outage has removed nothing");
    desk.cached.close().await.unwrap();
}

/// The errors before the SSD is switched off are of the same outage.
#[tokio::test(flavor = "multi_thread")]
async fn short_object_stays_on_an_ssd_that_fails() {
    let desk = Desk::open(16 * MIB, 64 << 20).await;
    desk.write(100, MIB / 2).await;
    desk.read(100, MIB / 2).await;
    desk.cached.flush().await;
    let extents = desk.cached.ssd_extents();
    let tiers = &desk.cached.tiers;
    let hash = tiers.fingerprints.key(&address(100));
    let head = tiers.peek_head(&address(100), hash).await.unwrap();
    let gets = desk.store.calls(Operation::Get);
    let release = || {
        for number in 0..extents as u32 {
            tiers.ram.release_data(tiers.fingerprints.data(head.content, number));
        }
    };
    desk.set(Mode::Fails);
    for _ in 0..6 {
        release();
        desk.read(100, MIB / 2).await;
        desk.cached.flush().await;
    }
    assert_eq!(desk.cached.counters().ssd_switched_off, 1);
    assert_eq!(desk.store.calls(Operation::Get), gets + 6);
    desk.set(Mode::Works);
    desk.clock.advance(Duration::from_secs(60));
    release();
    desk.read(100, MIB / 2).await;
    assert_eq!(desk.store.calls(Operation::Get), gets + 6, "the outage has removed nothing");
    assert_eq!(desk.cached.ssd_extents(), extents);
    desk.cached.close().await.unwrap();
}

/// Errors that do not follow one another switch nothing off.
#[tokio::test(flavor = "multi_thread")]
async fn large_read_after_one_error_of_the_ssd_is_one_request() {
    let desk = Desk::open(16 * MIB, 64 << 20).await;
    desk.write(100, STREAM_BYTES).await;
    desk.read_to_ssd().await;
    let tiers = desk.cached.tiers.clone();
    let head = tiers.peek_head(&address(100), tiers.fingerprints.key(&address(100))).await.unwrap();
    let token = tiers.changes.token(tiers.fingerprints.key(&address(100))).unwrap();
    let content_use = tiers.use_content(&head, &token);
    let origin = Origin {
        store: desk.store.clone(),
        context: context(),
        address: address(100),
        hash: tiers.fingerprints.key(&address(100)),
        head,
        tiers,
        content_use,
        fills: None,
    };
    let extents = STREAM_BYTES.div_ceil(EXTENT_BYTES) as u32;
    let reader = CachedReader::new(origin, Span::whole(STREAM_BYTES as u64));
    assert_eq!(reader.end_of_run(3), extents, "the SSD has extent 3, and did not read it");
    desk.cached.close().await.unwrap();
}

/// Heads of data that is gone take no place of data, and no data is left without its head.
#[tokio::test(flavor = "multi_thread")]
async fn ssd_is_full_of_data_that_has_its_head() {
    const DISK_BYTES: u64 = 16 << 20;
    for size in [66 << 10, 140 << 10, 1 << 20] {
        for eviction in [Eviction::AdaptiveWindow, Eviction::S3Fifo, Eviction::Lru] {
            let tiers = TierOptions { eviction, verify_bytes_per_second: 0, ..TierOptions::default() };
            let desk = Desk::open_with(0, DISK_BYTES, tiers).await;
            let capacity = DISK_BYTES / size as u64;
            for number in 0..capacity * 4 {
                desk.write(1000 + number, size).await;
                desk.read(1000 + number, size).await;
                desk.cached.flush().await;
                // Some objects are used again.
                if number % 3 == 0 {
                    desk.read(1000 + number / 2, size).await;
                    desk.cached.flush().await;
                }
            }
            let disk = desk.cached.tiers.disk.as_ref().unwrap();
            let percent = disk.headed_bytes() * 100 / DISK_BYTES;
            assert!(percent >= 90, "{eviction:?}, {size} bytes: {percent} %");
            desk.cached.close().await.unwrap();
        }
    }
}
