//! Compaction frees space and changes nothing else, even during reads and writes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use tradewind_backend::local::LocalOptions;
use tradewind_core::ObjectStore;
use tradewind_core::error::Reason;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;

use test_store::{
    Random, TestStore, address, check, copy_tree, drain, find_offset, invert_byte, pattern, reason,
    segment_bytes, segments, small, stats,
};

fn tiny() -> LocalOptions {
    LocalOptions { segment_bytes: 64 << 10, inline_bytes: 4 << 10, ..small() }
}

#[tokio::test(flavor = "multi_thread")]
async fn space_is_freed() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    for round in 0..4 {
        for n in 0..40 {
            desk.put(&format!("small{n}"), pattern(3000, round * 100 + n)).await;
            desk.put(&format!("large{n}"), pattern(30_000, round * 100 + n)).await;
        }
    }
    for n in 4..40 {
        desk.delete(&format!("small{n}")).await.unwrap();
        desk.delete(&format!("large{n}")).await.unwrap();
    }
    let before = segment_bytes(place.path());
    desk.compact().await;
    let desk = desk.reopen().await;
    desk.compact().await;
    let after = segment_bytes(place.path());
    assert!(after < 4 * 33_000 * 3, "of {before} bytes {after} are left");
    for n in 0..4 {
        desk.assert_holds(&format!("small{n}"), &pattern(3000, 300 + n)).await;
        desk.assert_holds(&format!("large{n}"), &pattern(30_000, 300 + n)).await;
    }
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_continue_during_compaction() {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { compact_interval: Duration::from_millis(5), ..tiny() };
    let desk = Arc::new(TestStore::with_options(place.path(), options).await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6_u64 {
        let (desk, stop) = (desk.clone(), stop.clone());
        tasks.spawn(async move {
            let mut random = Random(task * 31 + 7);
            let mut expected: HashMap<String, (usize, u64)> = HashMap::new();
            let mut step = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                step += 1;
                let key = format!("{task}/{}", random.below(8));
                match random.below(5) {
                    0 => {
                        assert_eq!(desk.delete(&key).await.unwrap(), expected.remove(&key).is_some());
                    }
                    1 | 2 => {
                        let size =
                            if random.below(4) == 0 { random.below(90_000) } else { random.below(6000) };
                        desk.put(&key, pattern(size, task * 100_000 + step)).await;
                        expected.insert(key, (size, task * 100_000 + step));
                    }
                    _ => match expected.get(&key) {
                        Some((size, seed)) => desk.assert_holds(&key, &pattern(*size, *seed)).await,
                        None => assert_eq!(reason(desk.get(&key).await), Reason::NoSuchKey),
                    },
                }
            }
            expected
        });
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = HashMap::new();
    while let Some(expected) = tasks.join_next().await {
        all.extend(expected.unwrap());
    }
    let desk = Arc::into_inner(desk).unwrap().reindex().await;
    for (key, (size, seed)) in &all {
        desk.assert_holds(key, &pattern(*size, *seed)).await;
    }
    assert_eq!(desk.names().await.len(), all.len());
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_are_removed_only_after_older_records() {
    let place = tempfile::tempdir().unwrap();
    let mut desk = TestStore::with_options(place.path(), tiny()).await;
    // Old versions in a segment that is mostly live, and so is not compacted at first.
    for n in 0..10 {
        desk.put(&format!("victim{n}"), pattern(500, n)).await;
        desk.put(&format!("stay{n}"), pattern(4000, n)).await;
    }
    for n in 0..10 {
        desk.put(&format!("victim{n}"), pattern(600, n)).await;
    }
    for n in 0..10 {
        desk.delete(&format!("victim{n}")).await.unwrap();
    }
    for _ in 0..6 {
        desk.compact().await;
        desk = desk.reindex().await;
        assert_eq!(desk.names().await.len(), 10, "nothing reappears");
    }
    for n in 0..10 {
        desk.delete(&format!("stay{n}")).await.unwrap();
    }
    for _ in 0..3 {
        desk = desk.reopen().await;
        desk.compact().await;
    }
    assert_eq!(desk.names().await, Vec::<String>::new());
    let root = desk.close().await;
    assert_eq!(stats(&root).unwrap().tombstones, 0, "tombstones are removed eventually");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_uploads_do_not_reappear() {
    let place = tempfile::tempdir().unwrap();
    let mut desk = TestStore::with_options(place.path(), tiny()).await;
    for n in 0..6_u64 {
        let key = format!("u{n}");
        let upload = desk.create_upload(&key).await;
        desk.part(&key, &upload, 1, pattern(20_000, 1)).await.unwrap();
        desk.part(&key, &upload, 2, pattern(20_000, 2)).await.unwrap();
        desk.part(&key, &upload, 2, pattern(20_000, n)).await.unwrap();
        match n % 3 {
            0 => desk.abort(&key, &upload).await.unwrap(),
            1 => {
                let part = desk.part(&key, &upload, 3, pattern(100_000, n)).await.unwrap();
                drop(desk.complete(&key, &upload, vec![part]).await.unwrap());
            }
            _ => {}
        }
        desk.put(&format!("between{n}"), pattern(3000, n)).await;
        desk.compact().await;
    }
    for _ in 0..4 {
        desk.compact().await;
        desk = desk.reindex().await;
        assert_eq!(desk.uploads().await, 2);
        for n in [1_u64, 4] {
            desk.assert_holds(&format!("u{n}"), &pattern(100_000, n)).await;
        }
    }
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn part_replaced_during_completion_is_not_used() {
    // Compaction takes the replaced part out of the counts in between.
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { compact_interval: Duration::from_millis(1), ..tiny() };
    let desk = Arc::new(TestStore::with_options(place.path(), options).await);
    for round in 0..30_u64 {
        let upload = desk.create_upload("u").await;
        let first = desk.part("u", &upload, 1, pattern(10_000, round)).await.unwrap();
        let replacing = {
            let (desk, upload) = (desk.clone(), upload.clone());
            tokio::spawn(async move { desk.part("u", &upload, 1, pattern(10_001, round)).await })
        };
        let completed = desk.complete("u", &upload, vec![first]).await;
        drop(replacing.await.unwrap());
        match completed {
            Ok(_) => desk.assert_holds("u", &pattern(10_000, round)).await,
            Err(e) => assert_eq!(e.reason(), Reason::InvalidPart),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_read_continues_during_compaction() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    desk.put("slow", pattern(3 << 20, 1)).await;
    let mut body = desk.store.get(&context(), &address("slow"), GetRequest::default()).await.unwrap().body;
    let mut read = body.next().await.unwrap().unwrap().to_vec();
    desk.put("slow", pattern(100, 2)).await;
    desk.put("other", pattern(100_000, 3)).await;
    assert!(desk.compact().await > 0);
    desk.put("more", pattern(3 << 20, 4)).await;
    read.extend_from_slice(&drain(body).await.unwrap());
    assert!(read == pattern(3 << 20, 1));
    desk.assert_holds("slow", &pattern(100, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_extents_are_not_compacted() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    let context = context();
    let mut staged = desk.store.stage(&context, &address("late"), StageRequest::default()).await.unwrap();
    for n in 0..3 {
        staged.write(pattern(1 << 20, n)).await.unwrap();
    }
    // The segments that contain them are sealed and contain nothing else.
    for n in 0..20 {
        desk.put("churn", pattern(50_000, n)).await;
    }
    desk.compact().await;
    staged.commit(Expected::default()).await.unwrap();
    desk.compact().await;
    let bytes = [pattern(1 << 20, 0), pattern(1 << 20, 1), pattern(1 << 20, 2)].concat();
    desk.assert_holds("late", &bytes).await;
    desk.reindex().await.assert_holds("late", &bytes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_writes_are_freed() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    for n in 0..8 {
        let context = context();
        let mut staged =
            desk.store.stage(&context, &address("never"), StageRequest::default()).await.unwrap();
        staged.write(pattern(1 << 20, n)).await.unwrap();
        drop(staged);
    }
    let desk = desk.reopen().await;
    desk.compact().await;
    assert!(segment_bytes(place.path()) < 100_000, "{}", segment_bytes(place.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_retains_only_its_own_segment() {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { inline_bytes: 4 << 10, ..small() };
    let desk = TestStore::with_options(place.path(), options.clone()).await;
    for n in 0..30 {
        desk.put(&format!("small{n}"), pattern(3000, n)).await;
        desk.put(&format!("large{n}"), pattern(30_000, n)).await;
    }
    let root = desk.close().await;
    for (path, needle) in
        [(segments(&root, "log"), pattern(3000, 12)), (segments(&root, "bulk"), pattern(30_000, 12))]
    {
        let (path, offset) =
            path.iter().find_map(|path| Some((path, find_offset(path, &needle[..64])?))).unwrap();
        invert_byte(path, offset + 1000);
    }
    let desk = TestStore::open(&root, options).unwrap();
    for n in 0..30 {
        if n % 4 != 0 {
            desk.delete(&format!("small{n}")).await.unwrap();
            desk.delete(&format!("large{n}")).await.unwrap();
        }
    }
    desk.compact().await;
    let bytes = segment_bytes(&root);
    assert!(bytes < 8 * 33_000 + 3 * (256 << 10), "the other segments are freed: {bytes}");
    // Data is not copied repeatedly because of the damaged segment.
    for _ in 0..5 {
        desk.compact().await;
    }
    assert!(segment_bytes(&root) <= bytes + 2000);
    for n in (0..30).step_by(4) {
        for (key, size) in [(format!("small{n}"), 3000), (format!("large{n}"), 30_000)] {
            if n == 12 {
                assert_eq!(reason(desk.get(&key).await), Reason::CorruptData);
            } else {
                desk.assert_holds(&key, &pattern(size, n)).await;
            }
        }
    }
    let root = desk.close().await;
    let named: Vec<_> = check(&root).unwrap().damage.into_iter().map(|damage| damage.item).collect();
    assert_eq!(named, ["bucket/large12", "bucket/small12"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_manifest_of_deleted_object_blocks_nothing() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(place.path(), tiny()).await;
    desk.put("gone", pattern(30_000, 1)).await;
    for n in 0..40 {
        desk.put("churn", pattern(3000, n)).await;
    }
    let root = desk.close().await;
    let (log, offset) = segments(&root, "log")
        .into_iter()
        .find_map(|path| find_offset(&path, b"gone").map(|at| (path, at)))
        .unwrap();
    invert_byte(&log, offset);
    let desk = TestStore::open(&root, tiny()).unwrap();
    desk.delete("gone").await.unwrap();
    let before = segment_bytes(&root);
    desk.compact().await;
    assert!(segment_bytes(&root) < before - 60_000, "upkeep continues");
    desk.assert_absent("gone").await;
    desk.assert_holds("churn", &pattern(3000, 39)).await;
}

/// Upload records are moved repeatedly, and every lookup still finds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn uploads_are_found_while_their_records_are_moved() {
    const UPLOADS: usize = 300;
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions {
        segment_bytes: 8 << 10,
        compact_below_fraction: 2.0,
        compact_interval: Duration::from_millis(1),
        ..tiny()
    };
    let desk = Arc::new(TestStore::with_options(place.path(), options).await);
    let key = "u";
    let uploads: Vec<_> = futures::future::join_all((0..UPLOADS).map(|_| desk.create_upload(key))).await;
    let started = std::time::Instant::now();
    let is_over = move || started.elapsed() > Duration::from_secs(4);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..3 {
        let desk = desk.clone();
        tasks.spawn(async move {
            // Fills segment after segment, in which only the uploads live long.
            for n in (0..).take_while(|_| !is_over()) {
                desk.put(&format!("churn{task}"), pattern(3000, n)).await;
            }
        });
    }
    let lister = desk.clone();
    tasks.spawn(async move {
        while !is_over() {
            assert_eq!(lister.uploads().await, UPLOADS);
        }
    });
    for upload in uploads.into_iter().take(2) {
        let desk = desk.clone();
        tasks.spawn(async move {
            while !is_over() {
                let parts = desk.store.list_parts(&context(), &address(key), &upload, None, 10).await;
                assert_eq!(parts.unwrap().next, None);
            }
            let part = desk.part(key, &upload, 1, pattern(5000, 2)).await.unwrap();
            drop(desk.complete(key, &upload, vec![part]).await.unwrap());
        });
    }
    tasks.join_all().await;
    desk.assert_holds(key, &pattern(5000, 2)).await;
}

/// Overwrites by many writers create garbage faster than one change each could free it. The space in use must stay
/// bounded nevertheless, even during the writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn overwrites_do_not_starve_compaction() {
    const WRITERS: u64 = 24;
    const KEYS: u64 = 24;
    const OBJECT: usize = 64 << 10;
    const SEGMENT: u32 = 512 << 10;
    /// Overwrites per key.
    const OVERWRITES_PER_KEY: u64 = 8;
    let live = WRITERS * KEYS * OBJECT as u64;
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions {
        segment_bytes: SEGMENT,
        compact_below_fraction: 0.6,
        compact_interval: Duration::from_millis(50),
        ..small()
    };
    let desk = Arc::new(TestStore::with_options(place.path(), options).await);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let desk = desk.clone();
        writers.spawn(async move {
            for n in 0..KEYS * OVERWRITES_PER_KEY {
                desk.put(&format!("{writer}/{}", n % KEYS), pattern(OBJECT, writer << 32 | n)).await;
            }
        });
    }
    let mut peak_bytes = 0;
    while !writers.is_empty() {
        tokio::time::sleep(Duration::from_millis(25)).await;
        peak_bytes = peak_bytes.max(segment_bytes(place.path()));
        while let Some(ended) = writers.try_join_next() {
            ended.unwrap();
        }
    }
    println!("{live} bytes live, {} written, at most {peak_bytes} in segments", live * OVERWRITES_PER_KEY);
    assert!(peak_bytes < 3 * live + 8 * u64::from(SEGMENT), "{peak_bytes} bytes in segments hold {live}");
    let desk = Arc::into_inner(desk).unwrap();
    desk.compact().await;
    let left = segment_bytes(place.path());
    println!("{left} are left when idle");
    assert!(left < 2 * live, "{left} bytes in segments hold {live}");
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

/// The store stops at every stage of a compaction in turn: nothing is lost and nothing reappears, with or without the
/// index.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_can_be_interrupted_anywhere() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    // So slow that the thread is stopped midway.
    let slow = LocalOptions {
        compact_bytes_per_second: 20_000,
        compact_interval: Duration::from_millis(1),
        ..tiny()
    };
    let desk = TestStore::with_options(&root, tiny()).await;
    for n in 0..60 {
        desk.put(&format!("k{n}"), pattern(2000, n)).await;
        desk.put(&format!("large{n}"), pattern(8000, n)).await;
    }
    for n in (0..60).filter(|n| n % 3 != 0) {
        desk.delete(&format!("k{n}")).await.unwrap();
        desk.delete(&format!("large{n}")).await.unwrap();
    }
    desk.close().await;
    for stop in 0..12_u64 {
        let desk = TestStore::open(&root, slow.clone()).unwrap();
        tokio::time::sleep(Duration::from_millis(20 + stop * 17)).await;
        desk.close().await;
        let copied = place.path().join(stop.to_string());
        copy_tree(&root, &copied);
        if stop % 2 == 0 {
            std::fs::remove_dir_all(copied.join("index")).unwrap();
        }
        let mut desk = TestStore::open(&copied, tiny()).unwrap();
        for turn in 0..2 {
            for n in 0..60 {
                if n % 3 == 0 {
                    desk.assert_holds(&format!("k{n}"), &pattern(2000, n)).await;
                    desk.assert_holds(&format!("large{n}"), &pattern(8000, n)).await;
                } else {
                    assert_eq!(reason(desk.get(&format!("k{n}")).await), Reason::NoSuchKey);
                }
            }
            if turn == 0 {
                desk.compact().await;
                desk = desk.reindex().await;
            }
        }
        std::fs::remove_dir_all(copied).unwrap();
    }
}
