//! The first 256 KiB of large objects without a label have a share of the cache of their own.

use super::*;

const SLICE_BYTES: usize = 256 << 10;
const STREAM_BYTES: usize = 5 << 20;
/// Their first slices are within 10 % of the SSD, and their bytes more than all of it.
const STREAMS: usize = 15;
const LARGE_SSD: Tiers = Tiers { memory_bytes: 0, disk_bytes: 48 << 20 };

/// Reads the beginning of an object, or another part of the same length, and returns the cache's report.
async fn read_part(desk: &Desk, key: &str, offset: usize) -> CacheStatus {
    let last = (offset + SLICE_BYTES - 1) as u64;
    let select = Select::Range(ByteRange::Inclusive { first: offset as u64, last });
    let request = GetRequest { select, ..GetRequest::default() };
    let found = desk.cached.get(&context(), &address(key), request).await.unwrap();
    let status = found.observation.cache.unwrap();
    let whole = content(key, STREAM_BYTES);
    assert!(drain(found.body).await.unwrap() == whole.slice(offset..offset + SLICE_BYTES), "{key}");
    desk.cached.flush().await;
    status
}

/// The number of streams of which the cache has a part.
async fn parts_in_cache(desk: &Desk, prefix: &str, offset: usize) -> usize {
    let mut hits = 0;
    for number in 0..STREAMS {
        let status = read_part(desk, &format!("{prefix}{number}"), offset).await;
        hits += usize::from(status.source == CacheSource::Ssd);
    }
    hits
}

/// A cache that large objects of these classes passed through, more than it holds.
async fn desk_after_streams(classes: &Classes) -> Desk {
    let desk = Desk::open(LARGE_SSD).await;
    desk.put_all("stream-", STREAMS, STREAM_BYTES, classes).await;
    desk.hits("stream-", STREAMS).await;
    desk
}

#[tokio::test(flavor = "multi_thread")]
async fn first_slices_stay_cached_while_their_tails_pass() {
    let desk = desk_after_streams(&Classes::default()).await;
    assert_eq!(parts_in_cache(&desk, "stream-", 0).await, STREAMS, "all starts are hits");
    let tails = parts_in_cache(&desk, "stream-", STREAM_BYTES - SLICE_BYTES).await;
    assert!(tails <= STREAMS * 3 / 4, "{tails} tails are hits, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn label_decides_for_first_slices_as_for_the_rest() {
    let desk = desk_after_streams(&of_class(31)).await;
    let starts = parts_in_cache(&desk, "stream-", 0).await;
    assert!(starts <= STREAMS * 3 / 4, "{starts} starts are hits");
    assert_eq!(desk.occupied(10).ssd_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_begins_with_its_cached_slice_and_goes_on_from_the_store() {
    let desk = desk_after_streams(&Classes::default()).await;
    let (mut partial_hits, mut rests) = (0, 0);
    for number in 0..STREAMS {
        let (calls, before) = (desk.store.calls(Operation::Get), desk.cached.counters());
        let status = desk.read(&format!("stream-{number}")).await;
        let (calls, after) = (desk.store.calls(Operation::Get) - calls, desk.cached.counters());
        let ssd_bytes = after.ssd_bytes - before.ssd_bytes;
        let backing_bytes = after.backing_bytes - before.backing_bytes;
        match status.source {
            CacheSource::Ssd => assert_eq!((calls, backing_bytes), (0, 0)),
            CacheSource::Backing(ForwardReason::Partial) => {
                partial_hits += 1;
                // Each gap is a request if few bytes are missing: fills that find no permit leave gaps.
                let is_much_missing = backing_bytes * 2 > STREAM_BYTES as u64;
                assert!(calls == 1 || !is_much_missing, "{calls} requests for {backing_bytes} bytes");
                rests += u64::from(calls == 1 && is_much_missing);
                assert!(ssd_bytes >= SLICE_BYTES as u64, "{ssd_bytes} bytes from the SSD");
                let rest_bytes = (STREAM_BYTES - SLICE_BYTES) as u64;
                assert!((1..=rest_bytes).contains(&backing_bytes), "{backing_bytes} bytes from the store");
            }
            _ => panic!("{status}"),
        }
        assert_eq!(ssd_bytes + backing_bytes, STREAM_BYTES as u64, "{status}");
    }
    assert!(rests > 0, "no stream of {partial_hits} partial hits lacks its tail");
}

/// Replaces what is in the share of first slices: by those of objects of the next class by size.
async fn replace_first_slices(desk: &Desk) {
    for number in 0..8 {
        let key = format!("other-{number}");
        desk.put(&key, (16 << 20) + 1, Classes::default()).await;
        for _ in 0..2 {
            let select = Select::Range(ByteRange::Inclusive { first: 0, last: SLICE_BYTES as u64 - 1 });
            let request = GetRequest { select, ..GetRequest::default() };
            let found = desk.cached.get(&context(), &address(&key), request).await.unwrap();
            drain(found.body).await.unwrap();
            desk.cached.flush().await;
        }
    }
}

pub async fn pin_of_a_class_by_size_includes_what_is_cached(tiers: Tiers) {
    let desk = Desk::open(tiers).await;
    desk.put("stream", STREAM_BYTES, Classes::default()).await;
    desk.read("stream").await;
    let slice = |desk: &Desk| desk.occupied(10).ram_bytes + desk.occupied(10).ssd_bytes;
    assert!(slice(&desk) >= SLICE_BYTES as u64, "{tiers:?}");
    desk.cached.set_policies(policies([(17, pinned())]));
    replace_first_slices(&desk).await;
    replace_all(&desk, "a-").await;
    let calls = desk.store.calls(Operation::Get);
    desk.read("stream").await;
    assert_eq!(desk.store.calls(Operation::Get), calls, "{tiers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_of_a_class_by_size_reaches_cached_first_slices() {
    for tiers in [Tiers { memory_bytes: 16 << 20, ..MEMORY_ONLY }, SSD_ONLY] {
        let desk = Desk::open(tiers).await;
        desk.put("stream", STREAM_BYTES, Classes::default()).await;
        desk.read("stream").await;
        for (policy, class) in [(policies([(17, priority(3))]), 17), (policies([]), 10)] {
            desk.cached.set_policies(policy);
            desk.read("stream").await;
            let bytes = desk.occupied(class).ram_bytes + desk.occupied(class).ssd_bytes;
            assert!(bytes >= SLICE_BYTES as u64, "{tiers:?}: class {class}");
            let others = desk.occupied(27 - class);
            let is_moved = class == 10 || others.ram_bytes + others.ssd_bytes == 0;
            assert!(is_moved, "{tiers:?}: {others:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_of_another_size_ends_for_a_first_slice_that_is_read() {
    let desk = Desk::open(SSD_ONLY).await;
    desk.put("stream", STREAM_BYTES, Classes::default()).await;
    desk.read("stream").await;
    desk.cached.set_policies(policies([(18, pinned())]));
    read_part(&desk, "stream", 0).await;
    // Objects of the next class by size are pinned.
    desk.cached.set_policies(policies([(18, pinned()), (17, priority(11))]));
    read_part(&desk, "stream", 0).await;
    replace_all(&desk, "a-").await;
    let calls = desk.store.calls(Operation::Get);
    read_part(&desk, "stream", 0).await;
    assert!(desk.store.calls(Operation::Get) > calls);
}

/// Popular small objects keep the cache but for the share, and that only until it was turned over without reuse.
#[tokio::test(flavor = "multi_thread")]
async fn flood_of_large_objects_takes_no_more_than_the_share() {
    const SMALL: usize = 600;
    let desk = Desk::open(LARGE_SSD).await;
    desk.put_all("small-", SMALL, SMALL_BYTES, &of_class(25)).await;
    for _ in 0..3 {
        desk.hits("small-", SMALL).await;
    }
    for number in 0..30 {
        let key = format!("flood-{number}");
        desk.put(&key, STREAM_BYTES, Classes::default()).await;
        desk.read(&key).await;
    }
    let hits = desk.hits("small-", SMALL).await;
    assert!(hits * 100 >= SMALL * 90, "{hits} of {SMALL}");
    let share = LARGE_SSD.disk_bytes / 10 + (1 << 20);
    assert!(desk.occupied(10).ssd_bytes <= share, "{:?}", desk.occupied(10));
}
