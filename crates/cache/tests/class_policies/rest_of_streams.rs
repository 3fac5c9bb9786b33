//! Streams of which the first slice is cached and the rest is not: errors of the backing store, changes of the object
//! while the slice is read, and readers of one stream.

use futures::StreamExt;
use std::time::Duration;

use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::store::GetResponse;
use tradewind_core::testing::{Fault, FaultSchedule, SimulatedClock, context_until, unbounded_context};
use tradewind_core::{Body, Budget, Context, Precondition};

use super::*;

const KEY: &str = "stream";
const STREAM_BYTES: usize = 5 << 20;
/// The payload of a whole extent.
const EXTENT_BYTES: usize = 143 * 512;
/// The extents of the first slice: the fewest with 256 KiB.
const SLICE_EXTENTS: usize = 4;
const SLICE_BYTES: usize = SLICE_EXTENTS * EXTENT_BYTES;
const WINDOW_BYTES: usize = 1 << 20;
const LARGE_SSD: Tiers = Tiers { memory_bytes: 0, disk_bytes: 48 << 20 };
const LARGE_MEMORY: Tiers = Tiers { memory_bytes: 48 << 20, disk_bytes: 0 };
const MAX_WAIT: Duration = Duration::from_secs(20);

/// A cache that has the first slice of [`KEY`], and nothing of the rest.
async fn desk_with_slice(tiers: Tiers) -> Desk {
    let desk = Desk::open(tiers).await;
    desk.put(KEY, STREAM_BYTES, Classes::default()).await;
    let select = Select::Range(ByteRange::Inclusive { first: 0, last: SLICE_BYTES as u64 - 1 });
    let request = GetRequest { select, ..GetRequest::default() };
    let found = desk.cached.get(&context(), &address(KEY), request).await.unwrap();
    assert!(drain(found.body).await.unwrap() == old_content().slice(..SLICE_BYTES));
    desk.cached.flush().await;
    desk
}

async fn get(desk: &Desk, context: &Context) -> Result<GetResponse<Body>> {
    let address = address(KEY);
    let found = desk.cached.get(context, &address, GetRequest::default());
    tokio::time::timeout(MAX_WAIT, found).await.expect("the response waits for a slow store")
}

fn old_content() -> Bytes {
    content(KEY, STREAM_BYTES)
}

fn new_content() -> Bytes {
    pattern(STREAM_BYTES, 99)
}

/// Replaces the object, in a store or through the cache.
async fn replace(store: &dyn ObjectStore) {
    let request = StageRequest::default();
    let mut staged = store.stage(&context(), &address(KEY), request).await.unwrap();
    write_all(&mut *staged, new_content()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

fn is_partial(found: &GetResponse<Body>) -> bool {
    let source = found.observation.cache.as_ref().unwrap().source;
    matches!(source, CacheSource::Backing(ForwardReason::Partial))
}

/// Takes bytes of a body until it has the first slice.
async fn take_slice(body: &mut Body) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < SLICE_BYTES {
        let piece = tokio::time::timeout(MAX_WAIT, body.next()).await.expect("the slice waits for the store");
        taken.extend_from_slice(&piece.unwrap().unwrap());
    }
    taken
}

fn every_get(fault: Fault) -> FaultPlan {
    FaultPlan::none().with_fault(Operation::Get, FaultSchedule::Always, fault)
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_replaced_before_its_slice_is_read_is_the_new_one() {
    let desk = desk_with_slice(LARGE_SSD).await;
    replace(&*desk.store).await;
    let found = get(&desk, &context()).await.unwrap();
    assert!(drain(found.body).await.unwrap() == new_content());
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_deleted_before_its_slice_is_read_is_not_found() {
    let desk = desk_with_slice(LARGE_SSD).await;
    desk.store.delete(&context(), &address(KEY), Precondition::None).await.unwrap();
    assert_eq!(reason(get(&desk, &context()).await), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_replaced_while_its_slice_is_read_stays_whole() {
    for is_through_the_cache in [true, false] {
        let desk = desk_with_slice(LARGE_SSD).await;
        let mut found = get(&desk, &context()).await.unwrap();
        assert!(is_partial(&found));
        let mut taken = take_slice(&mut found.body).await;
        if is_through_the_cache {
            replace(&*desk.cached).await;
        } else {
            replace(&*desk.store).await;
        }
        taken.extend_from_slice(&drain_rest(found.body).await.unwrap());
        assert!(taken == old_content(), "through the cache: {is_through_the_cache}");
        if is_through_the_cache {
            let again = get(&desk, &context()).await.unwrap();
            assert!(drain(again.body).await.unwrap() == new_content());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn close_gaps_are_one_request_and_distant_ones_two() {
    for tiers in [LARGE_SSD, LARGE_MEMORY] {
        let desk = Desk::open(tiers).await;
        desk.put(KEY, STREAM_BYTES, Classes::default()).await;
        // Missing are 4, 7 and 40: there are two extents in the first gap's way, and 32 in the other one's.
        for extents in [0..4, 5..7, 8..40, 41..STREAM_BYTES.div_ceil(EXTENT_BYTES)] {
            let (first, end) = (extents.start * EXTENT_BYTES, extents.end * EXTENT_BYTES);
            let last = end.min(STREAM_BYTES) - 1;
            let range = ByteRange::Inclusive { first: first as u64, last: last as u64 };
            let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
            let found = desk.cached.get(&context(), &address(KEY), request).await.unwrap();
            drain(found.body).await.unwrap();
            desk.cached.flush().await;
        }
        for (calls, extents) in [(2, 5), (0, 0)] {
            let (calls_before, before) = (desk.store.calls(Operation::Get), desk.cached.counters());
            desk.read(KEY).await;
            assert_eq!(desk.store.calls(Operation::Get) - calls_before, calls, "{tiers:?}");
            let backing_bytes = desk.cached.counters().backing_bytes - before.backing_bytes;
            assert_eq!(backing_bytes, extents * EXTENT_BYTES as u64, "{tiers:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_the_store_is_that_of_a_stream_with_a_cached_slice() {
    let desk = desk_with_slice(LARGE_SSD).await;
    for failure in [Reason::Overloaded, Reason::Io] {
        desk.store.set_plan(every_get(Fault::FailBefore(failure)));
        assert_eq!(reason(get(&desk, &context()).await), failure);
    }
    desk.store.set_plan(FaultPlan::none());
    let found = get(&desk, &context()).await.unwrap();
    assert!(is_partial(&found), "an error drops nothing");
    assert!(drain(found.body).await.unwrap() == old_content());
}

#[tokio::test(flavor = "multi_thread")]
async fn slice_arrives_before_a_slow_store_responds() {
    let desk = desk_with_slice(LARGE_SSD).await;
    let calls = desk.store.calls(Operation::Get);
    let gate = SimulatedClock::new();
    desk.store.set_plan(every_get(Fault::Delay(Duration::from_secs(1))));
    let context = context_until(&Budget::new(WINDOW_BYTES), Deadline::none(gate.clone()));
    let mut found = get(&desk, &context).await.unwrap();
    let mut taken = take_slice(&mut found.body).await;
    assert_eq!(gate.sleepers(), 1, "the store was asked before the slice was read");
    gate.advance(Duration::from_secs(1));
    taken.extend_from_slice(&drain_rest(found.body).await.unwrap());
    assert!(taken == old_content());
    assert_eq!(desk.store.calls(Operation::Get) - calls, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_replaced_before_a_slow_store_responds_fails() {
    let desk = desk_with_slice(LARGE_SSD).await;
    let gate = SimulatedClock::new();
    desk.store.set_plan(every_get(Fault::Delay(Duration::from_secs(1))));
    let slow = context_until(&Budget::new(WINDOW_BYTES), Deadline::none(gate.clone()));
    let mut found = get(&desk, &slow).await.unwrap();
    let taken = take_slice(&mut found.body).await;
    assert!(taken == old_content().slice(..SLICE_BYTES));
    replace(&*desk.store).await;
    gate.advance(Duration::from_secs(1));
    assert_eq!(reason(drain_rest(found.body).await), Reason::Conflict);
    desk.store.set_plan(FaultPlan::none());
    let again = get(&desk, &context()).await.unwrap();
    assert!(drain(again.body).await.unwrap() == new_content());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_stream_ends_its_request_for_the_rest() {
    let desk = desk_with_slice(LARGE_SSD).await;
    desk.store.set_plan(every_get(Fault::Hang));
    let budget = Budget::new(WINDOW_BYTES);
    let context = unbounded_context(&budget);
    let mut found = get(&desk, &context).await.unwrap();
    take_slice(&mut found.body).await;
    drop((found, context));
    // The request holds the memory of the window.
    let deadline = Deadline::none(SystemClock::shared());
    let window = tokio::time::timeout(MAX_WAIT, budget.admit(WINDOW_BYTES, &deadline)).await;
    window.expect("the request goes on").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_readers_of_a_stream_fill_each_extent_once() {
    const READERS: usize = 8;
    for tiers in [LARGE_MEMORY, LARGE_SSD] {
        let desk = desk_with_slice(tiers).await;
        let before = desk.cached.counters();
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let found = get(&desk, &context()).await.unwrap();
            assert!(is_partial(&found));
            readers.push((found.body, Vec::new()));
        }
        // In turn, so that all of them are within the same extent.
        while readers.iter().any(|(_, taken)| taken.len() < STREAM_BYTES) {
            for (body, taken) in &mut readers {
                if let Some(piece) = body.next().await {
                    taken.extend_from_slice(&piece.unwrap());
                }
            }
        }
        for (body, taken) in readers {
            assert!(taken == old_content());
            drop(body);
        }
        desk.cached.flush().await;
        let after = desk.cached.counters();
        let missing = (STREAM_BYTES.div_ceil(EXTENT_BYTES) - SLICE_EXTENTS) as u64;
        assert_eq!(after.fills - before.fills, missing, "{tiers:?}");
        assert_eq!(after.fills_queue_full, before.fills_queue_full, "{tiers:?}");
        let gets = desk.store.calls(Operation::Get);
        desk.read(KEY).await;
        assert_eq!(desk.store.calls(Operation::Get), gets, "all of it is cached: {tiers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_reader_leaves_its_extent_to_later_ones() {
    for tiers in [LARGE_MEMORY, LARGE_SSD] {
        let desk = desk_with_slice(tiers).await;
        let mut first = get(&desk, &context()).await.unwrap().body;
        let mut second = get(&desk, &context()).await.unwrap().body;
        let mut taken = Vec::new();
        while taken.len() < STREAM_BYTES / 2 {
            first.next().await.unwrap().unwrap();
            taken.extend_from_slice(&second.next().await.unwrap().unwrap());
        }
        drop(first);
        taken.extend_from_slice(&drain_rest(second).await.unwrap());
        assert!(taken == old_content());
        desk.cached.flush().await;
        desk.read(KEY).await;
        let gets = desk.store.calls(Operation::Get);
        desk.read(KEY).await;
        assert_eq!(desk.store.calls(Operation::Get), gets, "all of it is cached: {tiers:?}");
    }
}

/// The bytes of a body of which a part was taken.
async fn drain_rest(mut body: Body) -> Result<Vec<u8>> {
    let mut rest = Vec::new();
    while let Some(piece) = tokio::time::timeout(MAX_WAIT, body.next()).await.expect("the body ends") {
        rest.extend_from_slice(&piece?);
    }
    Ok(rest)
}
