//! Interruptions while a store is being opened.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::{ETag, SystemClock, Timestamp};

use super::super::apply::NO_LOCATION;
use super::super::check::{self, CheckReport, reindex_store};
use super::super::commit::{Batch, CreateBucket, MaintenanceChange};
use super::super::index::entries::{Coverage, ObjectEntry};
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

/// A replay applies its entries in groups, which end in the middle of a batch.
#[test]
fn replay_that_ended_within_the_last_batch_loses_none_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (store, _) = open(root);
    put(&store, &[("a", 1), ("b", 2), ("c", 3)]);
    let index = &store.state.index;
    let end_of = |key: &str| {
        let entry = index.get(&keys::object(BUCKET, key)).unwrap().unwrap();
        let location = ObjectEntry::decode(&entry).unwrap().location;
        Position::new(location.position.segment, location.end())
    };
    let coverage = Coverage::decode(&index.get(&keys::META).unwrap().unwrap()).unwrap();
    let (after_a, end) = (end_of("a"), coverage.covered_end);
    assert!(after_a < end && end_of("c") == end, "the objects are in one batch");
    let mut changes = index.changes();
    changes.put(keys::META, Coverage { covered_end: after_a, ..coverage }.encode());
    ["b", "c"].into_iter().for_each(|key| changes.remove(keys::object(BUCKET, key)));
    changes.apply().unwrap();
    index.checkpoint().unwrap();
    drop(store);
    let (store, recovery) = open(root);
    assert_eq!((recovery.replayed_records, recovery.damaged_bytes), (2, 0));
    for key in ["a", "b", "c"] {
        assert!(store.state.index.get(&keys::object(BUCKET, key)).unwrap().is_some(), "{key} is lost");
    }
    drop(store);
    assert_eq!(reindex_store(root, false).unwrap().loss, None);
    assert!(check(root).unwrap().is_sound());
    assert!(open(root).0.state.index.get(&keys::object(BUCKET, "c")).unwrap().is_some());
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

/// A record whose head is intact but whose payload ends with zeros. With a void, it was torn. Without, the index says that
/// it was durable: it is damaged, also after a rebuild, and hides the older version.
#[test]
fn record_that_lost_its_end_is_damage_unless_voided() {
    for (is_voided, is_later_segment) in [(true, false), (true, true), (false, false), (false, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let (store, _) = open(root);
        put(&store, &[("b", 1)]);
        let newest = put(&store, &[("b", 2)])[0];
        let key = keys::object(BUCKET, "b");
        let location = ObjectEntry::decode(&store.state.index.get(&key).unwrap().unwrap()).unwrap().location;
        let mut changes = store.state.index.changes();
        if is_voided {
            changes.put(keys::void(location.position), NO_LOCATION.encode());
            changes.remove(key);
        }
        changes.apply().unwrap();
        store.state.index.checkpoint().unwrap();
        drop(store);
        if is_later_segment {
            let (store, _) = open(root);
            put(&store, &[("c", 3)]);
        }
        let log = logs(root).remove(0);
        truncate(&log, (location.position.offset + 1000).into());
        truncate(&log, location.end().into());
        assert_eq!(check(root).unwrap().is_sound(), is_voided, "{is_later_segment}");
        let (store, recovery) = open(root);
        assert!(recovery.loss.is_none() && !recovery.reindexed, "{is_later_segment}");
        assert_eq!(recovery.damaged_bytes, 0);
        drop(store);
        assert_eq!(reindex_store(root, false).unwrap().loss, None);
        assert_eq!(check(root).unwrap().is_sound(), is_voided, "{is_later_segment}");
        if !is_voided {
            assert_eq!(seq_of(&open(root).0, "b"), Some(newest), "the older version does not come back");
        }
    }
}

/// The log after a power failure: the head of a batch's second record is durable, and the rest of it is zero.
/// An earlier version takes the length of the file for the end of the log.
#[test]
fn record_torn_in_zeros_is_void_for_earlier_versions() {
    for keep_index in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (root, before) = (directory.path().join("store"), directory.path().join("before"));
        let (store, _) = open(&root);
        let bucket = CreateBucket { name: "bucket".to_owned(), created: Timestamp::from_millis(1) };
        store.committer.submit_blocking(bucket).unwrap();
        let old = put(&store, &[("a", 1), ("b", 2)]);
        drop(store);
        std::fs::rename(root.join("index"), &before).unwrap();
        let (store, _) = open(&root);
        put(&store, &[("a", 3), ("b", 4)]);
        let torn = ["a", "b"].map(|key| {
            let value = store.state.index.get(&keys::object(BUCKET, key)).unwrap().unwrap();
            ObjectEntry::decode(&value).unwrap().location
        });
        drop(store);
        std::fs::remove_dir_all(root.join("index")).unwrap();
        if keep_index {
            std::fs::rename(&before, root.join("index")).unwrap();
        }
        let log = logs(&root).pop().unwrap();
        truncate(&log, (torn[1].position.offset + 512).into());
        truncate(&log, (torn[1].end() + 4096).into());
        for contents in [("c", 5), ("d", 6)] {
            let (store, recovery) = open(&root);
            assert_eq!((recovery.damaged_bytes, recovery.loss), (0, None));
            put(&store, &[contents]);
        }
        let layout = Layout::open(&root).unwrap();
        let files = SegmentFiles::open(&layout.segments(), layout.salt, OpenPurpose::Inspection).unwrap();
        for segment in files.segments.all().values() {
            let file_bytes = u32::try_from(segment.file.metadata().unwrap().len()).unwrap();
            segment.end.store(file_bytes, Ordering::Release);
        }
        let survey = LogSurvey::scan(&files, Coverage::EMPTY).unwrap();
        assert_eq!(torn.map(|location| survey.is_valid(location.position)), [false; 2], "{keep_index}");
        drop((files, layout));
        for _ in 0..2 {
            assert!(check(&root).unwrap().is_sound());
            assert_eq!(["a", "b"].map(|key| seq_of(&open(&root).0, key)), [Some(old[0]), Some(old[1])]);
            assert_eq!(reindex_store(&root, false).unwrap().damaged_bytes, 0);
        }
    }
}

/// The index says that the last batch was durable, and no later record does yet.
#[test]
fn head_damaged_in_the_last_durable_batch_is_not_voided() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (store, _) = open(root);
    put(&store, &[("a", 1), ("b", 2), ("b", 3)]);
    let value = store.state.index.get(&keys::object(BUCKET, "a")).unwrap().unwrap();
    // The older record of `b`, whose damage loses nothing.
    let head = ObjectEntry::decode(&value).unwrap().location.end() as usize;
    drop(store);
    let log = logs(root).remove(0);
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[head + 4] ^= 0xff;
    std::fs::write(&log, bytes).unwrap();
    assert_eq!(reindex_store(root, false).unwrap().loss, None);
    let (store, recovery) = open(root);
    assert_eq!(recovery.voided_records, 0);
    put(&store, &[("d", 4)]);
    drop(store);
    assert!(reindex_store(root, false).unwrap().damaged_bytes > SIZE as u64);
    assert!(!check(root).unwrap().is_sound());
}

/// An earlier version recorded the length of a file as the end of its records. After them, the file has zeros.
#[test]
fn file_length_recorded_by_an_earlier_version_is_no_loss() {
    // The end that is recorded, whether records were lost, and whether the store opens.
    for (is_length, is_lost) in [(true, false), (false, false), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        create_earlier_version(root);
        let log = logs(root).remove(0);
        let records_end = u32::try_from(log.metadata().unwrap().len()).unwrap();
        let file_bytes = records_end + 4096;
        truncate(&log, file_bytes.into());
        let index = Index::open(&root.join("index")).unwrap();
        let key = keys::segment(1);
        let entry = SegmentEntry::decode(&index.get(&key).unwrap().unwrap()).unwrap();
        let end = if is_length { file_bytes } else { file_bytes - 8 };
        let mut changes = index.changes();
        changes.put(key, SegmentEntry { end, ..entry }.encode());
        changes.apply().unwrap();
        index.checkpoint().unwrap();
        drop(index);
        if is_lost {
            truncate(&log, 32);
            truncate(&log, file_bytes.into());
        }
        let opens = is_length && !is_lost;
        assert_eq!(check(root).unwrap().loss.is_none(), opens, "{is_length} {is_lost}");
        let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
        match OpenStore::open(root, options, SystemClock::shared()) {
            Ok((store, recovery)) => {
                assert!(opens && recovery.loss.is_none() && !recovery.reindexed, "{is_length} {is_lost}");
                let value = store.state.index.get(&key).unwrap().unwrap();
                assert_eq!(SegmentEntry::decode(&value).unwrap().end, records_end);
                assert!(["a", "b", "e"].iter().all(|key| seq_of(&store, key).is_some()));
            }
            Err(e) => assert!(!opens, "{is_length} {is_lost}: {e}"),
        }
    }
}

/// Earlier versions marked an accepted end by the length of the file, zeros included.
#[test]
fn accepted_end_by_the_file_length_stays_accepted() {
    for accepted_by_length in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for contents in [("a", 1), ("zeros", 0)] {
            put(&open(root).0, &[contents]);
        }
        put(&open(root).0, &[("b", 2)]);
        let log = logs(root).remove(1);
        let length = u32::try_from(log.metadata().unwrap().len()).unwrap() - 1000;
        truncate(&log, length.into());
        let layout = Layout::open(root).unwrap();
        let files = SegmentFiles::open(&layout.segments(), layout.salt, OpenPurpose::Serving).unwrap();
        let old = Index::open(&layout.index()).unwrap();
        let numbers = old.coverage().unwrap().unwrap();
        let mut inherited = InheritedFacts::read_from(&old, &files).unwrap();
        if accepted_by_length {
            inherited.accept([Position::accepted_end(2, length)]);
        }
        drop(old);
        layout.remove_index().unwrap();
        inherited.write_to(&Index::open(&layout.index()).unwrap(), numbers).unwrap();
        drop((files, layout));
        assert_eq!(check(root).unwrap().is_sound(), accepted_by_length);
        assert_eq!(reindex_store(root, !accepted_by_length).unwrap().loss.is_none(), accepted_by_length);
        assert!(check(root).unwrap().is_sound());
    }
}
