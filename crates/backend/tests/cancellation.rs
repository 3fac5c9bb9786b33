//! Requests that are given up at any point leave nothing behind: no memory, no place in a segment, no
//! half of a change.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/desk.rs"]
mod desk;

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

use desk::{Desk, Random, at, check, pattern, segment_bytes, small};

fn tiny() -> LocalOptions {
    LocalOptions { segment_bytes: 64 << 10, inline_bytes: 4 << 10, io_threads: 2, ..small() }
}

/// One request, with its memory in `budget`.
async fn request(desk: &Desk, budget: &Budget, kind: usize, size: usize, key: String) {
    // What a request left to be written when it was dropped keeps its window until it is.
    let deadline = Deadline::none(SystemClock::shared());
    let context = Context::new(deadline.clone(), budget.admit(1 << 20, &deadline).await.unwrap());
    match kind {
        0 | 1 => {
            let request = StageRequest { algorithms: vec![Algorithm::Sha256], ..StageRequest::default() };
            let mut staged = desk.store.stage(&context, &at(&key), request).await.unwrap();
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
                desk.store.create_upload(&context, &at(&key), CreateUpload::default()).await.unwrap();
            let part = desk.part(&key, &upload, 1, pattern(size, 2)).await.unwrap();
            desk.complete(&key, &upload, vec![part]).await.unwrap();
        }
        3 => {
            if let Ok(found) = desk.store.get(&context, &at("read"), GetRequest::default()).await {
                let mut body = found.body;
                while let Some(piece) = body.next().await {
                    drop(piece.unwrap());
                    tokio::task::yield_now().await;
                }
            }
        }
        _ => drop(desk.store.delete(&context, &at(&key), Precondition::None).await.unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_requests_are_dropped() {
    let place = tempfile::tempdir().unwrap();
    let desk = Arc::new(Desk::with(place.path(), tiny()).await);
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
                // Dropped wherever it is by then.
                let _ = tokio::time::timeout(Duration::from_micros(patience as u64), request).await;
            });
        }
        while let Some(done) = requests.join_next().await {
            done.unwrap();
        }
    }
    // Work handed to other threads ends by itself, and gives back what it holds.
    for _ in 0..200 {
        if budget.free() == budget.capacity() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(budget.free(), budget.capacity(), "all memory came back");
    desk.assert_holds("read", &pattern(2 << 20, 5)).await;
    for name in desk.names().await {
        desk.delete(&name).await.unwrap();
    }
    let context = unbounded_context(&budget);
    let listed = tradewind_core::multipart::ListUploads { limit: 1000, ..Default::default() };
    let uploads = desk.store.list_uploads(&context, &at("x").bucket, &listed).await.unwrap();
    for entry in uploads.entries {
        if let tradewind_core::listing::ListEntry::Key(_, upload) = entry {
            desk.store.abort_upload(&context, &at(&upload.key), &upload.id).await.unwrap();
        }
    }
    // No pin is left behind: every segment but the last two can go.
    desk.compact().await;
    let left = segment_bytes(place.path());
    assert!(left < 4 << 20, "{left} bytes are left of nothing");
    let desk = Arc::into_inner(desk).unwrap().reindex().await;
    assert_eq!(desk.names().await, Vec::<String>::new());
    desk.compact().await;
    assert!(segment_bytes(place.path()) < 100_000, "{}", segment_bytes(place.path()));
    assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_that_want_to_be_first_one_is() {
    let place = tempfile::tempdir().unwrap();
    let desk = Arc::new(Desk::with(place.path(), tiny()).await);
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
                (1000, desk.store.complete_upload(&context, &at(&key), &upload, order).await)
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
async fn a_store_with_one_file_thread_closes_while_upkeep_works() {
    for _ in 0..5 {
        let place = tempfile::tempdir().unwrap();
        let options = LocalOptions { io_threads: 1, compact_interval: Duration::from_millis(1), ..tiny() };
        let desk = Desk::with(place.path(), options).await;
        for n in 0..30 {
            desk.put("churn", pattern(40_000, n)).await;
            desk.put(&format!("stay{n}"), pattern(10_000, n)).await;
        }
        tokio::time::timeout(Duration::from_secs(20), desk.close()).await.expect("the store closes");
    }
}

/// A write that was given up half way may have lost bytes: what it was part of cannot be committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_write_is_never_committed() {
    use futures::FutureExt;

    let place = tempfile::tempdir().unwrap();
    let desk = Desk::with(place.path(), tiny()).await;
    let budget = Budget::new(8 << 20);
    let context = unbounded_context(&budget);
    let mut staged = desk.store.stage(&context, &at("torn"), StageRequest::default()).await.unwrap();
    // Three extents: the first poll cannot finish it, since extents are written on another thread.
    assert!(
        staged.write(pattern(3 << 20, 1)).now_or_never().is_none(),
        "the write must be given up half way"
    );
    let more = staged.write(pattern(5000, 2)).await.unwrap_err();
    assert_eq!(more.reason(), Reason::InvalidRequest, "nothing can be added behind what is missing");
    let refused = staged.commit(Expected::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::InvalidRequest);
    let gone = desk.store.head(&context, &at("torn"), GetRequest::default()).await.unwrap_err();
    assert_eq!(gone.reason(), Reason::NoSuchKey);
}
