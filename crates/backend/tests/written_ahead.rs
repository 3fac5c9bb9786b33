//! The log is written ahead: zeros follow its records until they are overwritten or dropped. They are neither data nor
//! damage, and they hide no loss.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/disk.rs"]
#[allow(dead_code, reason = "no power is cut here")]
mod disk;
#[path = "support/test_store.rs"]
mod test_store;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tradewind_backend::local::{LocalOptions, Loss, LossProof, reindex};
use tradewind_core::error::Reason;

use test_store::{TestStore, check, copy_tree, invert_byte, pattern, segments, small, stats};

/// The index is durable after each batch.
fn options() -> LocalOptions {
    LocalOptions { segment_bytes: 4 << 20, checkpoint_bytes: 1, ..small() }
}

fn last_log(root: &Path) -> PathBuf {
    segments(root, "log").pop().unwrap()
}

/// The start offsets of the records in a log segment.
fn records(log: &Path) -> Vec<usize> {
    let bytes = std::fs::read(log).unwrap();
    (32..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(b"TWr1")).collect()
}

/// The offset after the last byte of a file that is not zero.
fn nonzero_end(path: &Path) -> usize {
    std::fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn file_bytes(path: &Path) -> usize {
    usize::try_from(path.metadata().unwrap().len()).unwrap()
}

/// Overwrites a file with zeros from an offset on, without changing its length.
fn zero_from(path: &Path, offset: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; file_bytes(path) - offset], offset as u64).unwrap();
}

/// Adds zeros to a file, as if it had not been closed.
fn extend(path: &Path, bytes: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((file_bytes(path) + bytes) as u64).unwrap();
}

/// Copies an idle store as a kill or a power loss would leave it.
fn crashed(desk: &TestStore, to: &Path) -> PathBuf {
    copy_tree(&desk.root, to);
    assert!(file_bytes(&last_log(to)) > nonzero_end(&last_log(to)) + 100_000, "zeros are written ahead");
    to.to_owned()
}

fn lost(root: &Path) -> Loss {
    check(root).unwrap().loss.expect("something is lost")
}

/// Every way of opening fails, and the proof of the loss remains.
fn assert_refused(root: &Path, what: &str) {
    let before = lost(root);
    for _ in 0..2 {
        let error = TestStore::open(root, options()).map(drop).unwrap_err();
        assert_eq!(error.reason(), Reason::CorruptData, "{what}");
        assert!(error.message().contains("--accept-loss"), "{what}: {error}");
        assert_eq!(reindex(root, false).unwrap_err().reason(), Reason::CorruptData, "{what}");
    }
    assert_eq!(lost(root), before, "{what}: the proof is retained");
    assert_eq!(stats(root).unwrap().loss, Some(before), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_with_a_zero_tail_loses_nothing() {
    for (number, (checkpoint_bytes, keep_index)) in
        [(1, true), (1, false), (64 << 20, true), (64 << 20, false)].into_iter().enumerate()
    {
        let place = tempfile::tempdir().unwrap();
        let options = LocalOptions { checkpoint_bytes, ..options() };
        let desk = TestStore::with_options(&place.path().join("live"), options.clone()).await;
        for n in 0..30 {
            desk.put(&format!("k{n}"), pattern(2000, n)).await;
        }
        desk.put("zeros", vec![0; 5000]).await;
        if number % 2 == 0 {
            desk.delete("k7").await.unwrap();
        }
        let root = crashed(&desk, &place.path().join("crashed"));
        let log = last_log(&root);
        let length = file_bytes(&log);
        let report = check(&root).unwrap();
        assert!(report.is_sound(), "{number}: {report:?}");
        assert!(stats(&root).unwrap().segment_bytes < 100_000, "{number}: zeros are not counted");
        if !keep_index {
            std::fs::remove_dir_all(root.join("index")).unwrap();
            assert!(check(&root).unwrap().is_sound(), "{number}");
        }
        let mut desk = TestStore::open(&root, options).unwrap();
        for _ in 0..2 {
            let recovery = desk.store.recovery();
            assert_eq!((recovery.voided_records, recovery.damaged_bytes), (0, 0), "{number}");
            assert_eq!(recovery.loss, None, "{number}");
            for n in 0..30 {
                if number % 2 == 0 && n == 7 {
                    desk.assert_absent("k7").await;
                } else {
                    desk.assert_holds(&format!("k{n}"), &pattern(2000, n)).await;
                }
            }
            desk.assert_holds("zeros", &[0; 5000]).await;
            desk.put("later", "later").await;
            desk = desk.reindex().await;
        }
        let root = desk.close().await;
        assert_eq!(file_bytes(&log), length, "{number}: an existing segment is not changed");
        let report = check(&root).unwrap();
        assert!(report.is_sound(), "{number}: {report:?}");
    }
}

/// The disk confirmed syncs and lost the last batches nevertheless; the length was durable before.
#[tokio::test(flavor = "multi_thread")]
async fn batches_lost_within_the_file_length_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    desk.put("k", "old").await;
    desk.put("gone", "old").await;
    // Its record ends with zeros.
    desk.put("kept", vec![0; 3000]).await;
    desk.put("k", "new").await;
    desk.delete("gone").await.unwrap();
    desk.put("new", pattern(9000, 1)).await;
    let whole = crashed(&desk, &place.path().join("whole"));
    let log = last_log(&whole);
    let starts = records(&log);
    let [.., newer, _, last] = starts[..] else { panic!("{starts:?}") };
    // The first lost byte, and whether only the last record is affected.
    for (at, is_only_last) in [(newer, false), (last, true), (last + 8, true)] {
        let what = format!("from {at}");
        let root = place.path().join(at.to_string());
        copy_tree(&whole, &root);
        zero_from(&last_log(&root), at);
        assert_refused(&root, &what);
        let loss = lost(&root);
        assert_eq!((loss.proof, loss.ranges.len()), (LossProof::Index, 1), "{what}: {loss}");
        let range = &loss.ranges[0];
        assert_eq!(range.existing_bytes, at.next_multiple_of(8) as u64, "{what}");
        assert!(range.recorded_end > Some(range.existing_bytes), "{what}");
        let deletions: &[&str] = if is_only_last { &[] } else { &["bucket/gone"] };
        let objects: &[&str] = if is_only_last { &["bucket/new"] } else { &["bucket/k", "bucket/new"] };
        assert_eq!(loss.objects.first_names, objects, "{what}");
        assert_eq!(loss.deletions.first_names, deletions, "{what}");

        let accepting = LocalOptions { accept_loss: true, ..options() };
        let desk = TestStore::open(&root, accepting).unwrap();
        assert_eq!(desk.store.recovery().loss.as_ref(), Some(&loss), "{what}");
        desk.assert_holds("k", if is_only_last { b"new" } else { b"old" }).await;
        desk.assert_absent("new").await;
        desk.assert_holds("kept", &[0; 3000]).await;
        desk.put("after", "after").await;
        // A loss is accepted only once.
        let root = desk.close().await;
        let desk = TestStore::open(&root, options()).unwrap();
        assert_eq!((desk.store.recovery().loss.as_ref(), desk.store.recovery().reindexed), (None, false));
        desk.assert_holds("after", b"after").await;
        let desk = desk.reindex().await;
        assert_eq!(desk.store.recovery().loss, None, "{what}");
        let report = check(&desk.close().await).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
    }
}

/// The last record has an intact head, a damaged payload, and zeros at its end. It is damaged, not lost.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_last_record_is_reported_and_never_served() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    desk.put("k", "old").await;
    desk.put("k", [vec![1; 5000], vec![0; 1000]].concat()).await;
    let crashed = crashed(&desk, &place.path().join("crashed"));
    let closed = desk.close().await;
    let last = records(&last_log(&closed)).pop().unwrap();
    for (state, whole) in [("crashed", &crashed), ("closed", &closed)] {
        for is_lost in [false, true] {
            let what = format!("{state}, lost: {is_lost}");
            let root = place.path().join(&what);
            copy_tree(whole, &root);
            if is_lost {
                zero_from(&last_log(&root), last + 2000);
            } else {
                invert_byte(&last_log(&root), last + 2000);
            }
            let assert_reported = || {
                let report = check(&root).unwrap();
                assert_eq!((report.damage.len(), report.loss), (1, None), "{what}");
                assert_eq!(report.damage[0].item, "bucket/k", "{what}");
            };
            assert_reported();
            let desk = TestStore::open(&root, options()).unwrap();
            assert_eq!((desk.store.recovery().loss.as_ref(), desk.store.recovery().reindexed), (None, false));
            assert_eq!(desk.get("k").await.unwrap_err().reason(), Reason::CorruptData, "{what}");
            desk.close().await;
            // The index says that the record was durable. So a rebuild does not take it for torn.
            assert_eq!(reindex(&root, false).unwrap().loss, None, "{what}");
            let desk = TestStore::open(&root, options()).unwrap();
            assert_eq!(desk.get("k").await.unwrap_err().reason(), Reason::CorruptData, "{what}");
            desk.put("later", "later").await;
            desk.close().await;
            assert_reported();
        }
    }
}

/// The batch after a damaged last record is known to be lost; the record still hides what it replaced.
#[tokio::test(flavor = "multi_thread")]
async fn batch_lost_after_a_damaged_record_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    desk.put("k", "old").await;
    desk.put("k", pattern(6000, 1)).await;
    desk.put("gone", "gone").await;
    let root = crashed(&desk, &place.path().join("crashed"));
    let log = last_log(&root);
    let [.., damaged, lost_record] = records(&log)[..] else { panic!("two records") };
    zero_from(&log, damaged + 2000);
    assert_refused(&root, "the last record");
    let loss = lost(&root);
    assert_eq!(loss.ranges[0].existing_bytes, lost_record as u64);
    assert_eq!(loss.objects.first_names, ["bucket/gone"]);
    let desk = TestStore::open(&root, LocalOptions { accept_loss: true, ..options() }).unwrap();
    assert_eq!(desk.get("k").await.unwrap_err().reason(), Reason::CorruptData);
    desk.assert_absent("gone").await;
    desk.close().await;
    assert_eq!(check(&root).unwrap().damage.len(), 1);
}

/// A block of the spare zeros cannot be read. Only if a record may be in it, the store is not opened.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_zeros_do_not_keep_the_store_closed() {
    let Some((disk, place)) = disk::mount() else { return };
    let live = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&live.path().join("live"), options()).await;
    for n in 0..5 {
        desk.put(&format!("k{n}"), pattern(3000, n)).await;
    }
    let whole = crashed(&desk, &live.path().join("crashed"));
    let (end, file_end) = (nonzero_end(&last_log(&whole)).next_multiple_of(8), file_bytes(&last_log(&whole)));
    let block = end.next_multiple_of(4096);
    let blocks = [block..block + 4096, file_end - 4096..file_end, block + 8192..file_end, end..end + 512];
    for (number, unreadable) in blocks.into_iter().enumerate() {
        for keep_index in [true, false] {
            let what = format!("{unreadable:?} after {end}, with an index: {keep_index}");
            let root = place.path().join(format!("{number}-{keep_index}"));
            copy_tree(&whole, &root);
            if !keep_index {
                std::fs::remove_dir_all(root.join("index")).unwrap();
            }
            let log = last_log(&root).metadata().unwrap().ino();
            disk.fail_reads(log, unreadable.start as u64..unreadable.end as u64);
            let opened = TestStore::open(&root, options());
            if unreadable.start == end {
                // The next record would begin there.
                assert!(opened.is_err(), "{what}");
                disk.fail_reads(log, 0..0);
            }
            let desk = opened.or_else(|_| TestStore::open(&root, options())).unwrap();
            assert_eq!((desk.store.recovery().loss.as_ref(), desk.store.recovery().damaged_bytes), (None, 0));
            for n in 0..5 {
                desk.assert_holds(&format!("k{n}"), &pattern(3000, n)).await;
            }
            desk.put("later", "later").await;
            desk.close().await;
            let desk = TestStore::open(&root, options()).unwrap();
            desk.assert_holds("later", b"later").await;
            desk.close().await;
            disk.fail_reads(log, 0..0);
            assert!(check(&root).unwrap().is_sound(), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_records_prove_a_loss_within_the_file_length() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::with_options(&root, options()).await;
    desk.put("k", "old").await;
    desk.put("k", pattern(3000, 1)).await;
    let log = last_log(&root);
    let desk = desk.reopen().await;
    desk.put("third", "third").await;
    desk.close().await;
    extend(&log, 1 << 20);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    assert!(check(&root).unwrap().is_sound());
    let last = records(&log).pop().unwrap();
    zero_from(&log, last);
    assert_refused(&root, "without an index");
    let loss = lost(&root);
    assert_eq!((loss.proof, loss.ranges.len()), (LossProof::Log, 1), "{loss}");
    assert_eq!(loss.ranges[0].existing_bytes, last as u64);
    let desk = TestStore::open(&root, LocalOptions { accept_loss: true, ..options() }).unwrap();
    desk.assert_holds("k", b"old").await;
    desk.assert_holds("third", b"third").await;
    let root = desk.close().await;
    assert_eq!(reindex(&root, false).unwrap().loss, None);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let report = check(&root).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(TestStore::open(&root, options()).unwrap().store.recovery().loss, None);
    // A further loss is another one.
    zero_from(&log, records(&log).pop().unwrap());
    std::fs::remove_dir_all(root.join("index")).unwrap();
    assert_refused(&root, "a further loss");
}

/// Whatever the last record is, and whether or not the store was closed.
#[tokio::test(flavor = "multi_thread")]
async fn record_that_ends_with_zeros_is_not_lost() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    desk.put("deleted", "x").await;
    let payloads =
        [vec![0; 1], vec![0; 8], vec![0; 4096], [vec![1; 5000], vec![0; 9000]].concat(), vec![0; 16_000]];
    for (number, payload) in payloads.iter().enumerate() {
        desk.put(&format!("k{number}"), payload.clone()).await;
        let root = crashed(&desk, &place.path().join(format!("crashed{number}")));
        let report = check(&root).unwrap();
        assert!(report.is_sound(), "{number}: {report:?}");
        let found = TestStore::open(&root, options()).unwrap();
        assert_eq!((found.store.recovery().loss.as_ref(), found.store.recovery().reindexed), (None, false));
        found.assert_holds(&format!("k{number}"), payload).await;
    }
    // A tombstone ends with zeros, too.
    desk.delete("deleted").await.unwrap();
    assert!(check(&crashed(&desk, &place.path().join("deleted"))).unwrap().is_sound());
    let root = desk.close().await;
    assert!(check(&root).unwrap().is_sound());
    let desk = TestStore::open(&root, options()).unwrap().reindex().await;
    desk.assert_absent("deleted").await;
    for (number, payload) in payloads.iter().enumerate() {
        desk.assert_holds(&format!("k{number}"), payload).await;
    }
}

/// Torn bytes among the zeros are no loss: the batch was never acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn torn_batch_in_zeros_is_skipped() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::with_options(&place.path().join("live"), options()).await;
    desk.put("k", "old").await;
    copy_tree(&desk.root.join("index"), &place.path().join("index"));
    desk.put("k", pattern(9000, 1)).await;
    let whole = crashed(&desk, &place.path().join("whole"));
    let last = records(&last_log(&whole)).pop().unwrap();
    // How many bytes of the record reached the disk.
    for bytes in [8, 100, 512, 9000] {
        for keep_index in [true, false] {
            let what = format!("{bytes} bytes, with an index: {keep_index}");
            let root = place.path().join(format!("{bytes}-{keep_index}"));
            copy_tree(&whole, &root);
            zero_from(&last_log(&root), last + bytes);
            std::fs::remove_dir_all(root.join("index")).unwrap();
            if keep_index {
                copy_tree(&place.path().join("index"), &root.join("index"));
            }
            assert!(check(&root).unwrap().is_sound(), "{what}");
            let mut desk = TestStore::open(&root, options()).unwrap();
            for _ in 0..3 {
                let recovery = desk.store.recovery();
                assert_eq!((recovery.damaged_bytes, recovery.loss.as_ref()), (0, None), "{what}");
                desk.assert_holds("k", b"old").await;
                desk.put("later", "later").await;
                desk = desk.reindex().await;
            }
            let report = check(&desk.close().await).unwrap();
            assert!(report.is_sound(), "{what}: {report:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_and_closed_segments_have_no_zeros() {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { segment_bytes: 128 << 10, ..options() };
    let desk = TestStore::with_options(place.path(), options).await;
    for n in 0..100 {
        desk.put(&format!("k{n}"), pattern(5000, n)).await;
    }
    let active = last_log(place.path());
    assert_eq!(file_bytes(&active), 128 << 10, "zeros end with the segment");
    let root = desk.close().await;
    let logs = segments(&root, "log");
    assert!(logs.len() > 3);
    for log in logs {
        assert!(file_bytes(&log) < nonzero_end(&log) + 8, "{}", log.display());
    }
}

/// The live fraction is that of the records, not of the file.
#[tokio::test(flavor = "multi_thread")]
async fn zero_tail_does_not_make_compaction_worthwhile() {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { segment_bytes: 256 << 10, compact_below_fraction: 0.5, ..options() };
    let desk = TestStore::with_options(&place.path().join("live"), options.clone()).await;
    for n in 0..10 {
        desk.put(&format!("k{n}"), pattern(5000, n)).await;
    }
    let root = crashed(&desk, &place.path().join("crashed"));
    let log = last_log(&root);
    let desk = TestStore::open(&root, options).unwrap();
    assert_eq!(desk.compact().await, 0);
    assert!(log.exists(), "all of it is live");
    for n in 0..8 {
        desk.delete(&format!("k{n}")).await.unwrap();
    }
    assert!(desk.compact().await > 0);
    assert!(!log.exists());
    desk.assert_holds("k9", &pattern(5000, 9)).await;
}
