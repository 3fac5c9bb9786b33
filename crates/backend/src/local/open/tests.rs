//! Interruptions while a store is being opened.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::{ETag, SystemClock, Timestamp};

use super::super::check::{self, CheckReport, reindex_store};
use super::super::commit::{Batch, CreateBucket, MaintenanceChange};
use super::super::index::entries::ObjectEntry;
use super::super::index::trust::IndexTrust;
use super::super::position::Position;
use super::super::record::{Object, Record};
use super::*;

const BUCKET: u32 = 1;
const SIZE: usize = 3000;

fn open(root: &Path) -> (Arc<OpenStore>, Recovery) {
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    OpenStore::open(root, options, SystemClock::shared()).unwrap()
}

/// Writes objects in one batch. Returns their numbers.
fn put(store: &OpenStore, contents: &[(&str, u8)]) -> Vec<u64> {
    let contents: Vec<_> = contents.iter().map(|(key, byte)| ((*key).to_owned(), *byte)).collect();
    let write = move |batch: &mut Batch<'_>| {
        let mut numbers = Vec::new();
        for (key, byte) in &contents {
            let payload = Bytes::from(vec![*byte; SIZE]);
            let record = Record::Object(Box::new(Object {
                bucket: BUCKET,
                key: key.clone(),
                size: SIZE as u64,
                etag: ETag::from_md5(&[*byte; 16]),
                ..Object::default()
            }));
            let seq = batch.next_id();
            batch.append_with_payload(
                &record,
                seq,
                std::slice::from_ref(&payload),
                &[crc64nvme(&payload)],
            )?;
            numbers.push(seq);
        }
        Ok(numbers)
    };
    store.committer.submit_blocking(MaintenanceChange(write)).unwrap()
}

fn seq_of(store: &OpenStore, key: &str) -> Option<u64> {
    let value = store.state.index.get(&keys::object(BUCKET, key)).unwrap()?;
    Some(ObjectEntry::decode(&value).unwrap().seq)
}

/// Damages the payload that is all `byte`.
fn tear(root: &Path, byte: u8) {
    for entry in std::fs::read_dir(root.join("segments")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(64).position(|window| *window == [byte; 64]) {
            bytes[at + 100] ^= 0xff;
            return std::fs::write(path, bytes).unwrap();
        }
    }
    panic!("no segment holds such a payload");
}

/// Opens the index and stops: an open of the store that is interrupted before the voids are written.
fn open_index_only(root: &Path) {
    let layout = Layout::open(root).unwrap();
    let files = SegmentFiles::open(&layout.segments(), layout.salt, OpenPurpose::Serving).unwrap();
    let opener =
        IndexOpener { layout: &layout, files: &files, accept_loss: false, index_use: IndexUse::Reuse };
    opener.ready_index(&mut Recovery::default()).unwrap();
}

fn check(root: &Path) -> Result<CheckReport> {
    check::check(root, &std::env::temp_dir())
}

#[test]
fn interruption_before_voids_are_written_loses_none() {
    for keep_index in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (root, before) = (directory.path().join("store"), directory.path().join("before"));
        let (store, _) = open(&root);
        let bucket = CreateBucket { name: "bucket".to_owned(), created: Timestamp::from_millis(1) };
        store.committer.submit_blocking(bucket).unwrap();
        let old = put(&store, &[("a", 1)])[0];
        drop(store);
        std::fs::rename(root.join("index"), &before).unwrap();
        let (store, _) = open(&root);
        put(&store, &[("b", 2), ("a", 3), ("c", 4)]);
        drop(store);
        // As after a power loss in the middle of the last write.
        tear(&root, 3);
        std::fs::remove_dir_all(root.join("index")).unwrap();
        if keep_index {
            std::fs::rename(&before, root.join("index")).unwrap();
        }
        open_index_only(&root);
        open_index_only(&root);
        let (mut store, recovery) = open(&root);
        assert!(recovery.voided_records > 0, "the torn records are already known");
        assert_eq!(seq_of(&store, "a"), Some(old));
        put(&store, &[("d", 5)]);
        for _ in 0..2 {
            drop(store);
            assert_eq!(check(&root).unwrap().damage, vec![]);
            assert_eq!(reindex_store(&root, false).unwrap().damaged_bytes, 0);
            store = open(&root).0;
            assert_eq!(seq_of(&store, "a"), Some(old), "torn records must not come back");
            assert!(seq_of(&store, "d").is_some());
        }
    }
}

/// The batch of voids is torn, too. The void that remains must not turn what the lost one named into damage.
#[test]
fn torn_voids_are_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    let (store, _) = open(&root);
    let bucket = CreateBucket { name: "bucket".to_owned(), created: Timestamp::from_millis(1) };
    store.committer.submit_blocking(bucket).unwrap();
    let old = put(&store, &[("a", 1), ("b", 2)]);
    put(&store, &[("b", 3), ("a", 4)]);
    drop(store);
    tear(&root, 3);
    tear(&root, 4);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let (store, recovery) = open(&root);
    assert_eq!(recovery.voided_records, 2);
    let last = store.state.segments.all().values().max_by_key(|segment| segment.number).unwrap().clone();
    drop(store);
    // The first of the two voids is lost, and the index with it.
    let mut bytes = std::fs::read(&last.path).unwrap();
    bytes[40] ^= 0xff;
    std::fs::write(&last.path, bytes).unwrap();
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let (store, recovery) = open(&root);
    assert_eq!(recovery.damaged_bytes, 0);
    assert_eq!([seq_of(&store, "a"), seq_of(&store, "b")], [Some(old[0]), Some(old[1])]);
    put(&store, &[("d", 5)]);
    drop(store);
    assert_eq!(reindex_store(&root, false).unwrap().damaged_bytes, 0);
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

#[test]
fn committer_panic_makes_the_store_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let panicking = |_: &mut Batch<'_>| -> Result<()> { panic!("a broken invariant") };
    assert!(store.committer.submit_blocking(MaintenanceChange(panicking)).is_err());
    // The thread ends shortly after its response.
    while !store.committer.is_read_only() {
        std::thread::yield_now();
    }
    assert_eq!(store.committer.check_writable().unwrap_err().reason(), Reason::ReadOnly);
}

/// A void of a removed segment may remain in the log for long: it must never match a record again.
#[test]
fn segment_numbers_in_voids_are_not_reused() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let at = Position::new(41, 32);
    let write_void = move |batch: &mut Batch<'_>| {
        let seq = batch.next_id();
        batch.append(&Record::Void { at }, seq)
    };
    store.committer.submit_blocking(MaintenanceChange(write_void)).unwrap();
    drop(store);
    reindex_store(directory.path(), false).unwrap();
    let (store, _) = open(directory.path());
    assert!(store.state.next_segment.load(Ordering::Acquire) > 41);
}

#[test]
fn index_broken_in_use_is_rebuilt_once() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    put(&store, &[("a", 1)]);
    let fail = |e: fjall::Error| store.state.index.trust.classify_and_record("a test", e).reason();
    // EIO and EMFILE: another index would fail, too.
    for code in [5, 24] {
        assert_eq!(fail(std::io::Error::from_raw_os_error(code).into()), Reason::Io);
    }
    assert!(!IndexTrust::doubts_path(&store.state.layout.index()).exists());
    assert_eq!(fail(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()), Reason::CorruptData);
    drop(store);
    for is_rebuilt in [true, false] {
        let (store, recovery) = open(directory.path());
        assert_eq!(recovery.reindexed, is_rebuilt);
        assert!(seq_of(&store, "a").is_some());
    }
}

/// Marks a segment as compaction does before it removes the file.
fn retire(root: &Path, number: u32) {
    let index = Index::open(&root.join("index")).unwrap();
    let value = index.get(&keys::segment(number)).unwrap().unwrap();
    let mut changes = index.changes();
    let entry = SegmentEntry { is_retired: true, ..SegmentEntry::decode(&value).unwrap() };
    changes.put(keys::segment(number), entry.encode());
    changes.apply().unwrap();
    index.checkpoint().unwrap();
}

/// An interruption left files that compaction had emptied. Replaying them would bring back what was deleted.
#[test]
fn accepted_rebuild_removes_segments_that_were_emptied() {
    let cases = [("copies may be lost", 1, 3, true), ("copies are there", 3, 2, false)];
    for (what, emptied, lost, stays) in cases {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for contents in [[("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)]] {
            let (store, _) = open(root);
            put(&store, &contents);
        }
        let files = logs(root);
        retire(root, emptied);
        std::fs::remove_file(&files[lost - 1]).unwrap();
        assert!(reindex_store(root, true).unwrap().loss.is_some(), "{what}");
        assert_eq!(files[emptied as usize - 1].exists(), stays, "{what}");
    }
}

/// A store of two log segments as left by an earlier version: the index does not record their ends.
fn create_earlier_version(root: &Path) {
    for contents in [[("a", 1), ("b", 2)], [("c", 3), ("d", 4)], [("e", 5), ("f", 6)]] {
        let (store, _) = open(root);
        put(&store, &contents);
    }
    let index = Index::open(&root.join("index")).unwrap();
    let mut changes = index.changes();
    for entry in index.snapshot().prefix(&[keys::prefix::SEGMENT]) {
        let (key, value) = entry.unwrap();
        let entry = SegmentEntry::decode(&value).unwrap();
        changes.put(key.to_vec(), SegmentEntry { end: 0, ..entry }.encode());
    }
    changes.apply().unwrap();
    index.checkpoint().unwrap();
}

fn logs(root: &Path) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(root.join("segments")).unwrap();
    let mut logs: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    logs.sort();
    logs
}

fn truncate(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn rejected_reindex_keeps_a_good_index() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    create_earlier_version(root);
    truncate(&logs(root)[0], 32);
    let error = reindex_store(root, false).unwrap_err();
    assert!(error.message().contains("--accept-loss"), "{error}");
    let (store, recovery) = open(root);
    assert!(!recovery.reindexed);
    assert!(seq_of(&store, "a").is_some(), "the remaining index still records what was lost");
    drop(store);
    assert!(reindex_store(root, true).unwrap().loss.is_some());
    assert_eq!(reindex_store(root, false).unwrap().loss, None);
}

/// The open of the store is interrupted when the old index is removed and the new one is not complete.
#[test]
fn interrupted_accepted_rebuild_forgets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    create_earlier_version(root);
    let first = logs(root).remove(0);
    truncate(&first, 32);
    let layout = Layout::open(root).unwrap();
    let files = SegmentFiles::open(&layout.segments(), layout.salt, OpenPurpose::Serving).unwrap();
    let old = Index::open(&layout.index()).unwrap();
    let numbers = old.coverage().unwrap().unwrap();
    let mut inherited = InheritedFacts::read_from(&old, &files).unwrap();
    inherited.accept([Position::accepted_end(1, 32)]);
    drop(old);
    layout.remove_index().unwrap();
    inherited.write_to(&Index::open(&layout.index()).unwrap(), numbers).unwrap();
    drop((files, layout));
    assert!(check(root).unwrap().is_sound());
    let (store, recovery) = open(root);
    assert!(recovery.reindexed && recovery.loss.is_none());
    assert!(store.state.next_id.load(Ordering::Acquire) >= numbers.next_id);
    assert_eq!(seq_of(&store, "a"), None);
    drop(store);
    assert_eq!(reindex_store(root, false).unwrap().loss, None);
}

/// Each open of the store reserves numbers far ahead, so the numbers of the lost data are far above the remaining ones.
#[test]
fn numbers_of_lost_records_are_not_reused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut lost = 0;
    for contents in [[("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)], [("e", 5)]] {
        let (store, _) = open(root);
        lost = put(&store, &contents)[0];
    }
    logs(root)[1..].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert!(reindex_store(root, true).unwrap().loss.is_some());
    let (store, _) = open(root);
    assert!(put(&store, &[("f", 6)])[0] > lost);
}

#[test]
fn index_of_an_earlier_version_proves_later_losses() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    create_earlier_version(root);
    drop(open(root));
    truncate(&logs(root)[0], 32);
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let error = OpenStore::open(root, options, SystemClock::shared()).map(drop).unwrap_err();
    assert!(error.message().contains("bucket 1"), "{error}");
}
