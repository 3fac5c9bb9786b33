//! Concurrent operations: one winner, no mixture, nothing lost. Each case starts its tasks at the same moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;

use crate::condition::Precondition;
use crate::error::{Reason, Result};
use crate::metadata::Metadata;
use crate::multipart::{CompleteUpload, CreateUpload};
use crate::object::Committed;
use crate::object::Expected;
use crate::store::{CopyRequest, Deleted, GetRequest, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, copy_request, key_address, md5_etag, named_parts, pattern};

super::theme! { "concurrency":
    of_absent_commits_one_wins needs Conditions,
    of_absent_completions_one_wins needs ConditionsAndMultipart,
    of_absent_writes_of_all_kinds_one_wins needs ConditionsAndMultipart,
    an_upload_is_completed_once needs EndOfUploads,
    an_upload_is_completed_or_aborted needs EndOfUploads,
    a_part_replaced_at_completion_is_old_or_new needs Multipart,
    counters_lose_no_increment needs Conditions,
    a_key_is_a_lock needs Conditions,
    of_deletes_one_finds_the_object needs TellsDeleted,
    readers_never_see_a_mixture,
    reads_follow_acknowledgements,
}

/// Runs `work` for 0..count in tasks that start at the same moment; returns the results in order.
async fn together<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    work: impl Fn(usize, Arc<tokio::sync::Barrier>) -> F,
) -> Vec<T> {
    let go = Arc::new(tokio::sync::Barrier::new(count));
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(work(n, go.clone()))).collect();
    join_all(tasks).await.into_iter().map(|task| task.expect("no task panics")).collect()
}

/// The index of the only success. Panics if there is another success, or a failure for another reason.
fn only_winner<T>(results: Vec<Result<T>>, lost: Reason) -> usize {
    let (mut winners, mut others) = (Vec::new(), Vec::new());
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(_) => winners.push(n),
            Err(e) if e.reason() == lost => {}
            Err(e) => others.push(e),
        }
    }
    assert!(others.is_empty(), "lost for other reasons than {lost:?}: {others:?}");
    assert_eq!(winners.len(), 1, "winners: {winners:?}");
    winners[0]
}

async fn of_absent_commits_one_wins(desk: Fixture) {
    for round in 0..5 {
        let key = format!("round-{round}");
        let results = together(100, |n, go| {
            let (desk, key) = (desk.clone(), key.clone());
            async move {
                let context = context();
                let request = StageRequest { precondition: Precondition::Absent, ..StageRequest::default() };
                let staged = desk.store.stage(&context, &key_address(&key), request).await;
                let written = match staged {
                    Ok(mut staged) => staged.write(n.to_string().into()).await.map(|()| staged),
                    Err(e) => Err(e),
                };
                go.wait().await;
                written?.commit(Expected::default()).await
            }
        });
        let winner = only_winner(results.await, Reason::PreconditionFailed);
        assert_eq!(desk.read(&key).await, winner.to_string(), "the winner's bytes are there");
    }
}

async fn of_absent_completions_one_wins(desk: Fixture) {
    let results = together(100, |n, go| {
        let desk = desk.clone();
        async move {
            let upload = desk.create_upload("k", CreateUpload::default()).await;
            let part = desk.part("k", &upload, 1, n.to_string().into()).await;
            go.wait().await;
            let precondition = Precondition::Absent;
            let request = CompleteUpload { precondition, ..named_parts(vec![part]) };
            desk.complete("k", &upload, request).await
        }
    });
    let winner = only_winner(results.await, Reason::PreconditionFailed);
    assert_eq!(desk.read("k").await, winner.to_string());
}

async fn of_absent_writes_of_all_kinds_one_wins(desk: Fixture) {
    desk.put("from", "copied").await;
    for round in 0..5 {
        let key = format!("round-{round}");
        let results: Vec<Result<Committed>> = together(60, |n, go| {
            let (desk, key) = (desk.clone(), key.clone());
            async move {
                let precondition = Precondition::Absent;
                match n % 3 {
                    0 => {
                        go.wait().await;
                        desk.put_if(&key, "put", precondition).await
                    }
                    1 => {
                        go.wait().await;
                        let request = CopyRequest {
                            precondition,
                            ..copy_request(key_address("from"), key_address(&key))
                        };
                        desk.store.copy(&context(), request).await
                    }
                    _ => {
                        let upload = desk.create_upload(&key, CreateUpload::default()).await;
                        let part = desk.part(&key, &upload, 1, "completed".into()).await;
                        go.wait().await;
                        let request = CompleteUpload { precondition, ..named_parts(vec![part]) };
                        desk.complete(&key, &upload, request).await
                    }
                }
            }
        })
        .await;
        let winner = only_winner(results, Reason::PreconditionFailed);
        assert_eq!(desk.read(&key).await, ["put", "copied", "completed"][winner % 3]);
    }
}

async fn an_upload_is_completed_once(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(70_000, 1)).await;
    let results = together(100, |_, go| {
        let (desk, upload, part) = (desk.clone(), upload.clone(), part.clone());
        async move {
            go.wait().await;
            desk.complete("k", &upload, named_parts(vec![part])).await
        }
    });
    only_winner(results.await, Reason::NoSuchUpload);
    assert!(desk.read("k").await == pattern(70_000, 1));
}

async fn an_upload_is_completed_or_aborted(desk: Fixture) {
    for round in 0..30 {
        let key = format!("round-{round}");
        let upload = desk.create_upload(&key, CreateUpload::default()).await;
        let part = desk.part(&key, &upload, 1, "bytes".into()).await;
        let results = together(2, |n, go| {
            let (desk, key, upload, part) = (desk.clone(), key.clone(), upload.clone(), part.clone());
            async move {
                go.wait().await;
                match n {
                    0 => desk.complete(&key, &upload, named_parts(vec![part])).await.map(drop),
                    _ => desk.store.abort_upload(&context(), &key_address(&key), &upload).await,
                }
            }
        });
        match only_winner(results.await, Reason::NoSuchUpload) {
            0 => assert_eq!(desk.read(&key).await, "bytes"),
            _ => desk.assert_absent(&key).await,
        }
    }
}

/// A completion names the tag of the part it wants, so it gets this part or fails.
async fn a_part_replaced_at_completion_is_old_or_new(desk: Fixture) {
    for round in 0..20 {
        let key = format!("round-{round}");
        let upload = desk.create_upload(&key, CreateUpload::default()).await;
        let part = desk.part(&key, &upload, 1, pattern(70_000, 1)).await;
        let results = together(2, |n, go| {
            let (desk, key, upload, part) = (desk.clone(), key.clone(), upload.clone(), part.clone());
            async move {
                go.wait().await;
                match n {
                    0 => desk.complete(&key, &upload, named_parts(vec![part])).await.map(drop),
                    _ => desk
                        .try_part(&key, &upload, 1, pattern(300, 2), StageRequest::default())
                        .await
                        .map(drop),
                }
            }
        });
        match &results.await[0] {
            Ok(()) => assert!(desk.read(&key).await == pattern(70_000, 1)),
            Err(e) => {
                assert_eq!(e.reason(), Reason::InvalidPart, "{e}");
                desk.assert_absent(&key).await;
            }
        }
    }
}

/// Reads, adds one, and writes if the object is unchanged; by tag and by generation.
async fn counters_lose_no_increment(desk: Fixture) {
    desk.put("by-tag", "0").await;
    desk.put("by-generation", "0").await;
    together(16, |n, go| {
        let desk = desk.clone();
        async move {
            go.wait().await;
            let is_by_tag = n % 2 == 0 || !desk.capabilities().generations;
            let key = if is_by_tag { "by-tag" } else { "by-generation" };
            for _ in 0..5 {
                loop {
                    let (info, _, bytes) =
                        desk.get(key, GetRequest::default()).await.expect("a GET succeeds");
                    let value: u64 = std::str::from_utf8(&bytes).expect("text").parse().expect("a number");
                    let precondition = if is_by_tag {
                        Precondition::Matches(info.etag)
                    } else {
                        Precondition::MatchesGeneration(info.generation)
                    };
                    match desk.put_if(key, (value + 1).to_string(), precondition).await {
                        Ok(_) => break,
                        Err(e) => assert!(
                            matches!(e.reason(), Reason::PreconditionFailed | Reason::Conflict),
                            "{e:?}"
                        ),
                    }
                }
            }
        }
    })
    .await;
    let by_generation = if desk.capabilities().generations { 40 } else { 0 };
    assert_eq!(desk.read("by-generation").await, by_generation.to_string());
    assert_eq!(desk.read("by-tag").await, (80 - by_generation).to_string());
}

/// The task that creates the key holds the lock until it deletes the key.
async fn a_key_is_a_lock(desk: Fixture) {
    let inside = Arc::new(AtomicUsize::new(0));
    together(8, |n, go| {
        let (desk, inside) = (desk.clone(), inside.clone());
        async move {
            go.wait().await;
            for _ in 0..6 {
                while let Err(e) = desk.put_if("lock", n.to_string(), Precondition::Absent).await {
                    assert_eq!(e.reason(), Reason::PreconditionFailed);
                    tokio::task::yield_now().await;
                }
                assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two hold the lock");
                tokio::task::yield_now().await;
                assert_eq!(desk.read("lock").await, n.to_string());
                inside.fetch_sub(1, Ordering::AcqRel);
                assert!(desk.delete("lock").await, "the holder's key is there");
            }
        }
    })
    .await;
    desk.assert_absent("lock").await;
}

async fn of_deletes_one_finds_the_object(desk: Fixture) {
    for round in 0..10 {
        let key = format!("round-{round}");
        desk.put(&key, "bytes").await;
        let deleted: Vec<Result<Deleted>> = together(20, |_, go| {
            let (desk, key) = (desk.clone(), key.clone());
            async move {
                go.wait().await;
                desk.store.delete(&context(), &key_address(&key), Precondition::None).await
            }
        })
        .await;
        let found = deleted.into_iter().filter(|d| d.as_ref().expect("a DELETE succeeds").existed).count();
        assert_eq!(found, 1);
        desk.assert_absent(&key).await;
    }
}

/// The bytes of a version: its number decides size and content.
fn version(n: usize) -> bytes::Bytes {
    pattern([1, 200_000, 65_536, 0, 70_001, 4096][n % 6] + n, n as u64)
}

async fn put_version(desk: &Fixture, key: &str, n: usize) {
    let metadata = Metadata { user: vec![("version".to_owned(), n.to_string())], ..Metadata::default() };
    desk.put_as(key, version(n), StageRequest { metadata, ..StageRequest::default() }).await;
}

/// The version that a GET finds. Panics unless bytes, tag, size and metadata all belong to it.
async fn get_version(desk: &Fixture, key: &str) -> usize {
    let (info, _, bytes) = desk.get(key, GetRequest::default()).await.expect("a GET succeeds");
    let n: usize = info.metadata.user[0].1.parse().expect("a number");
    assert!(bytes == version(n), "the bytes are not those of version {n}");
    assert_eq!((info.size, info.etag), (bytes.len() as u64, md5_etag(&bytes)), "version {n}");
    n
}

async fn readers_never_see_a_mixture(desk: Fixture) {
    put_version(&desk, "k", 0).await;
    together(10, |n, go| {
        let desk = desk.clone();
        async move {
            go.wait().await;
            for round in 0..15 {
                if n < 4 {
                    put_version(&desk, "k", round * 4 + n).await;
                } else {
                    get_version(&desk, "k").await;
                }
            }
        }
    })
    .await;
    get_version(&desk, "k").await;
}

/// One writer increments the version and publishes each after its acknowledgement: no reader finds an
/// older version than the one published before its read began, and no reader's version decreases.
async fn reads_follow_acknowledgements(desk: Fixture) {
    put_version(&desk, "k", 0).await;
    let acknowledged = Arc::new(AtomicUsize::new(0));
    together(6, |n, go| {
        let (desk, acknowledged) = (desk.clone(), acknowledged.clone());
        async move {
            go.wait().await;
            let mut last = 0;
            for round in 1..40 {
                if n == 0 {
                    put_version(&desk, "k", round).await;
                    acknowledged.store(round, Ordering::Release);
                } else {
                    let min_version = acknowledged.load(Ordering::Acquire).max(last);
                    last = get_version(&desk, "k").await;
                    assert!(last >= min_version, "version {last} was read after version {min_version}");
                }
            }
        }
    })
    .await;
    assert_eq!(get_version(&desk, "k").await, 39);
}
