//! Requests cancelled at any point leave nothing behind: no memory, no range in a segment, no partial change.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tradewind_backend::local::LocalOptions;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Reason;
use tradewind_core::multipart::CreateUpload;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::unbounded_context;
use tradewind_core::{Algorithm, Budget, Context, ObjectStore, Precondition, SystemClock};

use test_store::{Random, TestStore, address, check, pattern, segment_bytes, small};

fn tiny() -> LocalOptions {
    LocalOptions { segment_bytes: 64 << 10, inline_bytes: 4 << 10, io_threads: 2, ..small() }
}

/// Runs one request with its memory in `budget`.
async fn request(desk: &TestStore, budget: &Budget, kind: usize, size: usize, key: String) {
    // Pending writes of a dropped request hold its window until they are done.
    let deadline = Deadline::none(SystemClock::shared());
    let context = Context::new(deadline.clone(), budget.admit(1 << 20, &deadline).await.unwrap());
    match kind {
        0 | 1 => {
            let request = StageRequest { algorithms: vec![Algorithm::Sha256], ..StageRequest::default() };
            let mut staged = desk.store.stage(&context, &address(&key), request).await.unwrap();
            let mut bytes = pattern(size, 1);
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(100_000));
                let held = context.window.reserve_own(piece.len()).await;
                staged.write(held.attach(piece)).await.unwrap();
            }
            staged.commit(Expected::default()).await.unwrap();
        }
        2 => {
            let upload =
                desk.store.create_upload(&context, &address(&key), CreateUpload::default()).await.unwrap();
            let part = desk.part(&key, &upload, 1, pattern(size, 2)).await.unwrap();
            desk.complete(&key, &upload, vec![part]).await.unwrap();
        }
        3 => {
            if let Ok(found) = desk.store.get(&context, &address("read"), GetRequest::default()).await {
                let mut body = found.body;
                while let Some(piece) = body.next().await {
                    drop(piece.unwrap());
                    tokio::task::yield_now().await;
                }
            }
        }
        _ => drop(desk.store.delete(&context, &address(&key), Precondition::None).await.unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_requests_are_dropped() {
    let place = tempfile::tempdir().unwrap();
    let desk = Arc::new(TestStore::with_options(place.path(), tiny()).await);
    desk.put("read", pattern(2 << 20, 5)).await;
    let budget = Budget::new(16 << 20);
    let mut random = Random(20_301);
    for _ in 0..40 {
        let mut requests = tokio::task::JoinSet::new();
        for n in 0..12 {
            let (desk, budget) = (desk.clone(), budget.clone());
            let (kind, size, patience) = (random.below(5), random.below(1_500_000), random.below(8_000));
            requests.spawn(async move {
                let request = request(&desk, &budget, kind, size, format!("k{}", n % 5));
                // Dropped at whatever point it has reached.
                let _ = tokio::time::timeout(Duration::from_micros(patience as u64), request).await;
            });
        }
        while let Some(done) = requests.join_next().await {
            done.unwrap();
        }
    }
    // Work on other threads finishes and releases its resources.
    for _ in 0..200 {
        if budget.free() == budget.capacity() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(budget.free(), budget.capacity(), "all memory is released");
    desk.assert_holds("read", &pattern(2 << 20, 5)).await;
    for name in desk.names().await {
        desk.delete(&name).await.unwrap();
    }
    let context = unbounded_context(&budget);
    let listed = tradewind_core::multipart::ListUploads { limit: 1000, ..Default::default() };
    let uploads = desk.store.list_uploads(&context, &address("x").bucket, &listed).await.unwrap();
    for entry in uploads.entries {
        if let tradewind_core::listing::ListEntry::Key(_, upload) = entry {
            desk.store.abort_upload(&context, &address(&upload.key), &upload.id).await.unwrap();
        }
    }
    // No pin is left behind: all segments except the last two can be removed.
    desk.compact().await;
    let left = segment_bytes(place.path());
    assert!(left < 4 << 20, "{left} bytes remain without live data");
    let desk = Arc::into_inner(desk).unwrap().reindex().await;
    assert_eq!(desk.names().await, Vec::<String>::new());
    desk.compact().await;
    assert!(segment_bytes(place.path()) < 100_000, "{}", segment_bytes(place.path()));
    assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_hundred_create_only_puts_succeeds() {
    let place = tempfile::tempdir().unwrap();
    let desk = Arc::new(TestStore::with_options(place.path(), tiny()).await);
    for size in [10, 50_000] {
        let key = format!("first{size}");
        let mut uploads = Vec::new();
        for _ in 0..20 {
            let upload = desk.create_upload(&key).await;
            let part = desk.part(&key, &upload, 1, pattern(size, 1000)).await.unwrap();
            uploads.push((upload, part));
        }
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..100_u64 {
            let (desk, key, upload) = (desk.clone(), key.clone(), uploads.pop());
            tasks.spawn(async move {
                let Some((upload, part)) = upload else {
                    return (n, desk.put_if(&key, pattern(size, n), Precondition::Absent).await);
                };
                let order = tradewind_core::multipart::CompleteUpload {
                    parts: vec![part],
                    precondition: Precondition::Absent,
                    ..Default::default()
                };
                let context = tradewind_core::testing::context();
                (1000, desk.store.complete_upload(&context, &address(&key), &upload, order).await)
            });
        }
        let mut winners = Vec::new();
        while let Some(done) = tasks.join_next().await {
            match done.unwrap() {
                (seed, Ok(_)) => winners.push(seed),
                (_, Err(e)) => assert_eq!(e.reason(), Reason::PreconditionFailed),
            }
        }
        assert_eq!(winners.len(), 1);
        desk.assert_holds(&key, &pattern(size, winners[0])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_with_one_io_thread_closes_during_upkeep() {
    for _ in 0..5 {
        let place = tempfile::tempdir().unwrap();
        let options = LocalOptions { io_threads: 1, compact_interval: Duration::from_millis(1), ..tiny() };
        let desk = TestStore::with_options(place.path(), options).await;
        for n in 0..30 {
            desk.put("churn", pattern(40_000, n)).await;
            desk.put(&format!("stay{n}"), pattern(10_000, n)).await;
        }
        tokio::time::timeout(Duration::from_secs(20), desk.close()).await.expect("the store closes");
    }
}

/// A write cancelled midway may have lost bytes: its object or part cannot be committed.
#[tokio::test(flavor = "multi_thread")]
async fn partially_cancelled_write_is_never_committed() {
    use futures::FutureExt;

    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    let budget = Budget::new(8 << 20);
    let context = unbounded_context(&budget);
    let mut staged = desk.store.stage(&context, &address("torn"), StageRequest::default()).await.unwrap();
    // Three extents: the first poll cannot finish it, because extents are written on another thread.
    assert!(staged.write(pattern(3 << 20, 1)).now_or_never().is_none(), "the write must be cancelled midway");
    let more = staged.write(pattern(5000, 2)).await.unwrap_err();
    assert_eq!(more.reason(), Reason::InvalidRequest, "nothing can be appended after missing bytes");
    let error = staged.commit(Expected::default()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::InvalidRequest);
    let gone = desk.store.head(&context, &address("torn"), GetRequest::default()).await.unwrap_err();
    assert_eq!(gone.reason(), Reason::NoSuchKey);
}
