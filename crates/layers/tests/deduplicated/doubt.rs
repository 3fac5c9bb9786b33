//! Doubts about chunks: they begin with damaged records and reads, and end with writes and collections.

use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::Reason;
use tradewind_core::layer::Method;
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation, reason};

use super::damage::{damage_first_chunk, marks, replace_chunk};
use super::support::{
    CHUNKS, Desk, PausingStore, chunks, deduplicated, get, memory, noise, put, read, try_put,
};

#[tokio::test]
async fn chunk_with_a_damaged_record_is_stored_again_by_a_write() {
    let faulty = Faulty::new(memory(), FaultPlan::none());
    let (desk, bytes) = (Desk::with_store(faulty.clone()).await, noise(300_000, 1));
    put(&*desk.layer, "old", bytes.clone()).await;
    let stored = desk.layer.counts().stored_chunks;
    let damage = Fault::FailBefore(Reason::CorruptData);
    let damaged = FaultPlan::none().with_fault(Operation::Head, FaultSchedule::Always, damage);
    faulty.set_plan(damaged.clone());
    put(&*desk.layer, "new", bytes.clone()).await;
    assert_eq!(desk.layer.counts().stored_chunks, 2 * stored);
    faulty.set_plan(damaged.with_fault(
        Operation::Commit,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::Io),
    ));
    assert_eq!(reason(try_put(&*desk.layer, "new", bytes.clone()).await), Reason::Io);
    faulty.set_plan(FaultPlan::none());
    for expected in [true, false] {
        let before = desk.layer.counts().stored_chunks;
        put(&*desk.layer, "new", bytes.clone()).await;
        assert_eq!(desk.layer.counts().stored_chunks > before, expected, "a doubt ends with a write");
    }
    for key in ["old", "new"] {
        assert!(read(&*desk.layer, key).await == bytes, "{key}");
    }
}

/// The read of the bytes waits for memory of a client that does not read, and another client repairs the chunk.
#[tokio::test]
async fn slow_read_of_a_damaged_chunk_does_not_block_writes() {
    let held = PausingStore::new(memory());
    let (desk, bytes) = (Desk::with_store(held.clone()).await, noise(20_000, 1));
    put(&*desk.layer, "old", bytes.clone()).await;
    damage_first_chunk(&desk).await;
    let mut first = held.hold(Method::Get, CHUNKS);
    let layer = desk.layer.clone();
    let reading = tokio::spawn(async move { reason(get(&*layer, "old", GetRequest::default()).await) });
    first.reached().await;
    let mut second = held.hold(Method::Get, CHUNKS);
    first.release();
    second.reached().await;
    let writing = put(&*desk.layer, "new", bytes.clone());
    tokio::time::timeout(Duration::from_secs(20), writing).await.unwrap();
    second.release();
    assert_eq!(reading.await.unwrap(), Reason::CorruptData);
    // The bytes that the slow read found damaged are not those of the store.
    assert!(marks(&desk).await.is_empty());
    for key in ["old", "new"] {
        assert!(read(&*desk.layer, key).await == bytes, "{key}");
    }
}

/// A crash after the deletion of a chunk leaves its mark.
#[tokio::test]
async fn mark_of_a_missing_chunk_is_removed_by_a_collection() {
    let (desk, bytes) = (Desk::new().await, noise(300_000, 1));
    put(&*desk.layer, "k", bytes.clone()).await;
    let (keys, _) = chunks(&*desk.below).await;
    let needed = format!("doubt-{}", keys[0]);
    for key in [&*needed, &format!("doubt-{}", "7".repeat(64))] {
        replace_chunk(&*desk.below, key, Bytes::new()).await;
    }
    let restarted = deduplicated(desk.below.clone()).await;
    restarted.collect(&tradewind_core::testing::context()).await.unwrap().unwrap();
    assert_eq!(marks(&desk).await, [needed]);
    put(&*restarted, "again", bytes.clone()).await;
    assert!(marks(&desk).await.is_empty());
}
