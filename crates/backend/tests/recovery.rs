//! A store reopens after any kind of end, with everything that was acknowledged.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::io::Write;
use std::path::Path;

use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::SystemClock;
use tradewind_core::error::Reason;

use test_store::{TestStore, check, copy_tree, find_offset, invert_byte, pattern, reason, segments, small};

fn options() -> LocalOptions {
    LocalOptions { segment_bytes: 64 << 10, ..small() }
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_of_a_running_store_has_all_acknowledged_data() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    for round in 0..3_u64 {
        for n in 0..40_u64 {
            desk.put(&format!("k{n}"), pattern((n * 997 % 40_000) as usize, round * 100 + n)).await;
        }
        let upload = desk.create_upload("u").await;
        desk.part("u", &upload, 1, pattern(100_000, round)).await.unwrap();
        desk.delete(&format!("k{round}")).await.unwrap();
        // The power fails here: the copy has the disk's contents, without the store's knowledge. The store keeps
        // running, so that index and log are written while they are copied.
        let copied = place.path().join(format!("copy{round}"));
        let running = tokio::spawn({
            let store = desk.store.clone();
            async move {
                let desk = TestStore::from_store(store, options());
                for n in 0..20 {
                    desk.put(&format!("later{n}"), pattern(3000, n)).await;
                }
            }
        });
        copy_tree(&desk.root.join("index"), &copied.join("index"));
        copy_tree(&desk.root, &copied);
        if round == 1 {
            std::fs::remove_dir_all(copied.join("index")).unwrap();
        }
        running.await.unwrap();
        let found = TestStore::open(&copied, options()).unwrap();
        for n in 0..40_u64 {
            let key = format!("k{n}");
            if n == round {
                found.assert_absent(&key).await;
            } else {
                found.assert_holds(&key, &pattern((n * 997 % 40_000) as usize, round * 100 + n)).await;
            }
        }
        assert_eq!(found.uploads().await, round as usize + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_tail_of_any_kind_is_skipped() {
    let tails: [&[u8]; 4] = [&[0; 5000], &[0xaa; 333], b"TWr1", &[]];
    for (number, tail) in tails.into_iter().enumerate() {
        for keep_index in [true, false] {
            let place = tempfile::tempdir().unwrap();
            let desk = TestStore::new(place.path()).await;
            desk.put("a", pattern(1000, 1)).await;
            let root = desk.close().await;
            let last = segments(&root, "log").pop().unwrap();
            let mut bytes = std::fs::read(&last).unwrap();
            if tail.is_empty() {
                // A truncated record head.
                bytes.extend_from_within(32..32 + 60);
            }
            bytes.extend_from_slice(tail);
            std::fs::write(&last, bytes).unwrap();
            if !keep_index {
                std::fs::remove_dir_all(root.join("index")).unwrap();
            }
            let desk = TestStore::open(&root, small()).unwrap();
            assert_eq!(desk.store.recovery().damaged_bytes, 0, "tail {number}: a tail is no damage");
            desk.assert_holds("a", &pattern(1000, 1)).await;
            desk.put("b", pattern(1000, 2)).await;
            let desk = desk.reindex().await;
            assert_eq!(desk.store.recovery().damaged_bytes, 0, "tail {number}: nor on a later start");
            desk.assert_holds("b", &pattern(1000, 2)).await;
            let root = desk.close().await;
            assert_eq!(check(&root).unwrap().damage, vec![], "tail {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_log_hides_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(place.path()).await;
    for n in 0..20 {
        desk.put(&format!("key-{n:02}"), pattern(500, n)).await;
    }
    let root = desk.close().await;
    let log = segments(&root, "log").pop().unwrap();
    // The head of one record and parts of the next two: one gap.
    let at = find_offset(&log, b"key-07").unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[at..at + 700].fill(0x55);
    std::fs::write(&log, bytes).unwrap();
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(desk.store.recovery().damaged_bytes > 0);
    for n in (0..20).filter(|n| ![7, 8].contains(n)) {
        desk.assert_holds(&format!("key-{n:02}"), &pattern(500, n)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_commit_is_voided_permanently() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.put("a", pattern(3000, 1)).await;
    let root = desk.close().await;
    copy_tree(&root, &place.path().join("before"));
    let desk = TestStore::open(&root, small()).unwrap();
    desk.put("a", pattern(3000, 2)).await;
    let root = desk.close().await;
    // Its payload never reached the disk, nor did the index: as if it had been in flight.
    let log = segments(&root, "log").pop().unwrap();
    invert_byte(&log, find_offset(&log, &pattern(3000, 2)[..64]).unwrap() + 100);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("before/index"), &root.join("index"));
    let desk = TestStore::open(&root, small()).unwrap();
    assert_eq!(desk.store.recovery().voided_records, 1);
    desk.assert_holds("a", &pattern(3000, 1)).await;
    desk.put("b", pattern(10, 3)).await;
    // Later records state that everything before them was durable; the void marks this one as an exception.
    let desk = desk.reindex().await;
    assert_eq!(desk.store.recovery().voided_records, 0);
    desk.assert_holds("a", &pattern(3000, 1)).await;
    // The voided record is not counted among those that a tombstone hides.
    desk.delete("a").await.unwrap();
    desk.compact().await;
    let desk = desk.reindex().await;
    desk.assert_absent("a").await;
    desk.compact().await;
    let desk = desk.reindex().await;
    desk.assert_absent("a").await;
    desk.assert_holds("b", &pattern(10, 3)).await;
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

/// The start offsets of the records in a log segment.
fn records(log: &Path) -> Vec<usize> {
    let bytes = std::fs::read(log).unwrap();
    (32..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(b"TWr1")).collect()
}

/// The effect of a power failure on one of the last records.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// Its head is lost, while the data after it exists.
    Head(usize),
    /// It is the first missing record.
    From(usize),
}

/// Cuts the last `count` records of the log, and restores the index from before them, or removes it.
fn cut(root: &Path, count: usize, cut: Cut, index: Option<&Path>) {
    let log = segments(root, "log").pop().unwrap();
    let records = records(&log);
    let last = &records[records.len() - count..];
    match cut {
        Cut::Head(number) => invert_byte(&log, last[number] + 44),
        Cut::From(number) => {
            let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
            file.set_len(last[number] as u64).unwrap();
        }
    }
    std::fs::remove_dir_all(root.join("index")).unwrap();
    if let Some(index) = index {
        copy_tree(index, &root.join("index"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_completion_leaves_the_upload() {
    let place = tempfile::tempdir().unwrap();
    let whole = place.path().join("whole");
    let desk = TestStore::new(&whole).await;
    desk.put("u", pattern(1000, 1)).await;
    let upload = desk.create_upload("u").await;
    let part = desk.part("u", &upload, 1, pattern(100_000, 2)).await.unwrap();
    let desk = desk.reopen().await;
    copy_tree(&whole.join("index"), &place.path().join("before"));
    desk.complete("u", &upload, vec![part.clone()]).await.unwrap();
    desk.close().await;
    for (number, how) in [Cut::Head(0), Cut::Head(1), Cut::From(1), Cut::From(0)].into_iter().enumerate() {
        for keep_index in [true, false] {
            let what = format!("{how:?} with the index {keep_index}");
            let root = place.path().join(format!("{number}-{keep_index}"));
            copy_tree(&whole, &root);
            cut(&root, 2, how, keep_index.then_some(&place.path().join("before")));
            let mut desk = TestStore::open(&root, small()).unwrap();
            assert_eq!(desk.store.recovery().damaged_bytes, 0, "{what}");
            for _ in 0..2 {
                assert_eq!(desk.uploads().await, 1, "{what}: an unacknowledged change did not happen");
                desk.assert_holds("u", &pattern(1000, 1)).await;
                desk.put("other", pattern(10, 1)).await;
                desk.compact().await;
                desk = desk.reindex().await;
                assert_eq!(desk.store.recovery().damaged_bytes, 0, "{what}");
            }
            desk.complete("u", &upload, vec![part.clone()]).await.unwrap();
            desk.compact().await;
            let desk = desk.reindex().await;
            desk.assert_holds("u", &pattern(100_000, 2)).await;
            assert_eq!(desk.uploads().await, 0, "{what}");
            assert_eq!(check(&desk.close().await).unwrap().damage, vec![], "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_bucket_deletion_leaves_its_uploads() {
    let place = tempfile::tempdir().unwrap();
    let whole = place.path().join("whole");
    let desk = TestStore::new(&whole).await;
    let uploads = [desk.create_upload("u").await, desk.create_upload("v").await];
    let part = desk.part("u", &uploads[0], 1, pattern(100_000, 2)).await.unwrap();
    let desk = desk.reopen().await;
    copy_tree(&whole.join("index"), &place.path().join("before"));
    let bucket = tradewind_core::BucketName::new(test_store::BUCKET).unwrap();
    let context = tradewind_core::testing::context();
    tradewind_core::ObjectStore::delete_bucket(&*desk.store, &context, &bucket).await.unwrap();
    desk.close().await;
    // Two ends of uploads and the end of the bucket.
    for (number, how) in [Cut::Head(0), Cut::Head(2), Cut::From(2), Cut::From(1)].into_iter().enumerate() {
        for keep_index in [true, false] {
            let root = place.path().join(format!("{number}-{keep_index}"));
            copy_tree(&whole, &root);
            cut(&root, 3, how, keep_index.then_some(&place.path().join("before")));
            let mut desk = TestStore::open(&root, small()).unwrap();
            for _ in 0..2 {
                assert_eq!(desk.uploads().await, 2, "{how:?} with the index {keep_index}");
                desk.put("other", pattern(10, 1)).await;
                desk = desk.reindex().await;
            }
            desk.complete("u", &uploads[0], vec![part.clone()]).await.unwrap();
            let desk = desk.reindex().await;
            desk.assert_holds("u", &pattern(100_000, 2)).await;
            assert_eq!(desk.uploads().await, 1, "{how:?} with the index {keep_index}");
            assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_durable_records_is_not_a_torn_tail() {
    // An older index, and a record after its coverage that was corrupted after later ones were written.
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.put("a", pattern(3000, 1)).await;
    let root = desk.close().await;
    copy_tree(&root, &place.path().join("before"));
    let desk = TestStore::open(&root, small()).unwrap();
    desk.put("a", pattern(3000, 2)).await;
    desk.put("b", pattern(3000, 3)).await;
    let root = desk.close().await;
    let log = segments(&root, "log").pop().unwrap();
    invert_byte(&log, find_offset(&log, &pattern(3000, 2)[..64]).unwrap() + 100);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("before/index"), &root.join("index"));
    let desk = TestStore::open(&root, small()).unwrap();
    assert_eq!(desk.store.recovery().voided_records, 0);
    assert_eq!(reason(desk.get("a").await), Reason::CorruptData, "the older version must not reappear");
    desk.assert_holds("b", &pattern(3000, 3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_segments_are_removed_and_damaged_ones_are_read() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(place.path()).await;
    desk.put("a", pattern(1000, 1)).await;
    desk.put("large", pattern(40_000, 2)).await;
    let root = desk.close().await;
    let unfinished =
        ["000000f0.log", "000000f1.bulk", "000000f2.log"].map(|name| root.join("segments").join(name));
    std::fs::write(&unfinished[0], b"").unwrap();
    std::fs::write(&unfinished[1], [0; 32]).unwrap();
    std::fs::write(&unfinished[2], [7; 100]).unwrap();
    // A corrupted header is no reason to discard the records.
    for path in [segments(&root, "log")[0].clone(), segments(&root, "bulk")[0].clone()] {
        invert_byte(&path, 3);
        invert_byte(&path, 17);
    }
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(unfinished.iter().all(|path| !path.exists()));
    desk.assert_holds("a", &pattern(1000, 1)).await;
    desk.assert_holds("large", &pattern(40_000, 2)).await;
    let desk = desk.reindex().await;
    desk.assert_holds("a", &pattern(1000, 1)).await;
    desk.assert_holds("large", &pattern(40_000, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_index_is_rebuilt() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    for n in 0..50 {
        desk.put(&format!("k{n}"), pattern(300, n)).await;
    }
    desk.delete("k7").await.unwrap();
    let root = desk.close().await;
    let mut files = Vec::new();
    let mut directories = vec![root.join("index")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    assert!(files.len() >= 3, "{files:?}");
    for (number, file) in files.iter().enumerate() {
        for damage in ["gone", "empty", "cut", "garbled"] {
            let copied = place.path().join(format!("{number}-{damage}"));
            copy_tree(&root, &copied);
            let file = copied.join(file.strip_prefix(&root).unwrap());
            let length = std::fs::metadata(&file).unwrap().len();
            match damage {
                "gone" => std::fs::remove_file(&file).unwrap(),
                "empty" => std::fs::write(&file, b"").unwrap(),
                "cut" => {
                    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap()
                }
                _ => {
                    let garble = vec![0x5a; usize::try_from(length.min(8192)).unwrap()];
                    let mut open = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
                    open.write_all(&garble).unwrap();
                }
            }
            let desk = TestStore::open(&copied, small())
                .unwrap_or_else(|e| panic!("{}: {damage}: {e:?}", file.display()));
            for n in (0..50).filter(|n| *n != 7) {
                desk.assert_holds(&format!("k{n}"), &pattern(300, n)).await;
            }
            desk.assert_absent("k7").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_older_than_a_compaction_is_detected() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("store"), options()).await;
    for n in 0..60 {
        desk.put(&format!("k{n}"), pattern(4000, n)).await;
        desk.put(&format!("large{n}"), pattern(40_000, n)).await;
    }
    let root = desk.close().await;
    copy_tree(&root.join("index"), &place.path().join("old"));
    let desk = TestStore::open(&root, options()).unwrap();
    for n in 0..60 {
        if n % 3 == 0 {
            desk.delete(&format!("k{n}")).await.unwrap();
            desk.delete(&format!("large{n}")).await.unwrap();
        } else {
            desk.put(&format!("k{n}"), pattern(4000, n + 1000)).await;
        }
    }
    assert!(desk.compact().await > 0);
    let root = desk.close().await;
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("old"), &root.join("index"));
    let desk = TestStore::open(&root, options()).unwrap();
    assert!(desk.store.recovery().reindexed);
    for n in 0..60 {
        if n % 3 == 0 {
            desk.assert_absent(&format!("k{n}")).await;
            desk.assert_absent(&format!("large{n}")).await;
        } else {
            desk.assert_holds(&format!("k{n}"), &pattern(4000, n + 1000)).await;
            desk.assert_holds(&format!("large{n}"), &pattern(40_000, n)).await;
        }
    }
}

/// The old index never contained the bulk segment, yet its number was already used.
#[tokio::test(flavor = "multi_thread")]
async fn index_without_a_removed_segment_is_detected() {
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("store"), options()).await;
    let context = tradewind_core::testing::context();
    let request = StageRequest::default();
    let address = test_store::address("large");
    let mut staged =
        tradewind_core::ObjectStore::stage(&*desk.store, &context, &address, request).await.unwrap();
    let bytes = pattern(2 << 20, 1);
    staged.write(bytes.clone()).await.unwrap();
    while segments(&desk.root, "bulk").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    desk.put("a", pattern(1000, 1)).await;
    copy_tree(&desk.root.join("index"), &place.path().join("old"));
    staged.commit(Expected::default()).await.unwrap();
    let first = segments(&desk.root, "bulk").remove(0);
    let desk = desk.reopen().await;
    // All bulk segments are emptied: half of their data dies.
    for n in 0..20 {
        desk.put(&format!("large{n}"), pattern(100_000, n)).await;
    }
    let desk = desk.reopen().await;
    for n in 0..20 {
        desk.delete(&format!("large{n}")).await.unwrap();
    }
    let compacting = LocalOptions { compact_below_fraction: 2.0, ..options() };
    let root = desk.close().await;
    let desk = TestStore::open(&root, compacting).unwrap();
    desk.compact().await;
    assert!(!first.exists());
    let root = desk.close().await;
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("old"), &root.join("index"));
    let desk = TestStore::open(&root, options()).unwrap();
    assert!(desk.store.recovery().reindexed);
    desk.assert_holds("large", &bytes).await;
    desk.assert_holds("a", &pattern(1000, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn index_that_crashes_the_process_is_abandoned() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.put("a", pattern(1000, 1)).await;
    let mut root = desk.close().await;
    let mark = root.join("index.doubts");
    assert!(!mark.exists());
    for attempts in [1, 2] {
        std::fs::write(&mark, vec![b'.'; attempts]).unwrap();
        let desk = TestStore::open(&root, small()).unwrap();
        assert_eq!(desk.store.recovery().reindexed, attempts == 2);
        desk.assert_holds("a", &pattern(1000, 1)).await;
        root = desk.close().await;
        assert!(!mark.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remains_of_an_old_index_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    let root = desk.close().await;
    std::fs::create_dir(root.join("index.old")).unwrap();
    std::fs::write(root.join("index.old/0.jnl"), b"old").unwrap();
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(!desk.root.join("index.old").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("above/store")).await;
    desk.put("a", pattern(1000, 1)).await;
    desk.put("large", pattern(100_000, 1)).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&desk.root), mode(&desk.root.join("segments"))], [0o700; 2]);
    assert_eq!(mode(&desk.root.join("FORMAT")), 0o600);
    for path in [segments(&desk.root, "log"), segments(&desk.root, "bulk")].concat() {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    assert_ne!(mode(&place.path().join("above")), 0o700, "parent directories are not private");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_index_without_compaction_is_caught_up() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("store"), options()).await;
    desk.put("a", pattern(40_000, 1)).await;
    let root = desk.close().await;
    copy_tree(&root.join("index"), &place.path().join("old"));
    let desk = TestStore::open(&root, options()).unwrap();
    for n in 0..60 {
        desk.put(&format!("k{n}"), pattern(4000, n)).await;
    }
    desk.put("a", pattern(50_000, 2)).await;
    let root = desk.close().await;
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("old"), &root.join("index"));
    let desk = TestStore::open(&root, options()).unwrap();
    assert!(!desk.store.recovery().reindexed);
    assert!(desk.store.recovery().replayed_records >= 61);
    desk.assert_holds("a", &pattern(50_000, 2)).await;
    desk.assert_holds("k59", &pattern(4000, 59)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn index_newer_than_the_log_is_rebuilt_if_accepted() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("store"), options()).await;
    desk.put("a", pattern(1000, 1)).await;
    let root = desk.close().await;
    copy_tree(&root, &place.path().join("old"));
    for (case, fill) in [("one more", 1), ("several segments more", 60)] {
        let newer = place.path().join(case);
        copy_tree(&root, &newer);
        let desk = TestStore::open(&newer, options()).unwrap();
        for n in 0..fill {
            desk.put(&format!("k{n}"), pattern(4000, n)).await;
        }
        let newer = desk.close().await;
        std::fs::remove_dir_all(newer.join("segments")).unwrap();
        copy_tree(&place.path().join("old/segments"), &newer.join("segments"));
        assert_eq!(
            TestStore::open(&newer, options()).map(drop).unwrap_err().reason(),
            Reason::CorruptData,
            "{case}"
        );
        let accepting = LocalOptions { accept_loss: true, ..options() };
        let desk = TestStore::open(&newer, accepting).unwrap();
        assert!(desk.store.recovery().reindexed, "{case}");
        assert_eq!(desk.names().await, ["a"], "{case}");
        desk.assert_holds("a", &pattern(1000, 1)).await;
        desk.put("b", pattern(1000, 2)).await;
        let newer = desk.close().await;
        let desk = TestStore::open(&newer, options()).unwrap();
        desk.assert_holds("b", &pattern(1000, 2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_removed_segments_are_not_reused() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("store"), options()).await;
    desk.put("a", pattern(1000, 1)).await;
    let desk = desk.reopen().await;
    // The last segment: all of it dies, and it is removed after the next start.
    desk.put("b", pattern(1000, 2)).await;
    desk.delete("b").await.unwrap();
    let root = desk.close().await;
    let last = segments(&root, "log").pop().unwrap();
    let desk = TestStore::open(&root, options()).unwrap();
    desk.compact().await;
    assert!(!last.exists(), "the empty segment is removed");
    let root = desk.close().await;
    copy_tree(&root.join("index"), &place.path().join("old"));
    let desk = TestStore::open(&root, options()).unwrap();
    for n in 0..10 {
        desk.put(&format!("k{n}"), pattern(100, n)).await;
    }
    assert!(!last.exists(), "a position is never reused");
    let root = desk.close().await;
    // A power loss: the index returns to its last durable state.
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("old"), &root.join("index"));
    let desk = TestStore::open(&root, options()).unwrap();
    for n in 0..10 {
        desk.assert_holds(&format!("k{n}"), &pattern(100, n)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_open_fails_and_names_the_first_process() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(place.path()).await;
    let error = LocalStore::open(place.path(), small(), SystemClock::shared()).unwrap_err();
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    assert!(check(place.path()).is_err());
    desk.reopen().await.put("a", "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_store_is_rejected_unchanged() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.put("a", pattern(1000, 1)).await;
    let root = desk.close().await;
    let good = std::fs::read_to_string(root.join("FORMAT")).unwrap();
    let before = segments(&root, "log");
    let salt = good.lines().find_map(|line| line.strip_prefix("salt ")).unwrap();
    let bad = [
        good.replace("format 4", "format 5"),
        good.replace("format 4", "format 0"),
        good.replace("salt", "pepper"),
        good.replace(salt, "0123456789abcdef"),
        String::new(),
    ];
    for text in bad {
        std::fs::write(root.join("FORMAT"), &text).unwrap();
        let error = LocalStore::open(&root, small(), SystemClock::shared()).unwrap_err();
        assert!(!error.message().is_empty());
        assert_eq!(segments(&root, "log"), before, "nothing was removed with {text:?}");
    }
    std::fs::remove_file(root.join("FORMAT")).unwrap();
    assert!(LocalStore::open(&root, small(), SystemClock::shared()).is_err());
    std::fs::write(root.join("FORMAT"), good).unwrap();
    TestStore::open(&root, small()).unwrap().assert_holds("a", &pattern(1000, 1)).await;
}
