//! Acknowledged data that is missing is reported, not dropped silently: segments that were removed or truncated while
//! the index, or the rest of the log, proves it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::path::{Path, PathBuf};
use std::process::Command;

use tradewind_backend::local::{self, IndexState, LocalOptions, Loss, LossProof, reindex};
use tradewind_core::error::Reason;
use tradewind_core::testing::context;
use tradewind_core::{ObjectStore as _, Precondition, Versioning};

use test_store::{
    TestStore, address, check, copy_tree, pattern, reason, segments, small, state_of_files, stats,
};

fn accepting() -> LocalOptions {
    LocalOptions { accept_loss: true, ..small() }
}

fn cut(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// A way to lose part of a store.
type Spoil = fn(&Path);

/// The effect on a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentDamage {
    Remove,
    /// Truncated to its header, which is at the end of a record.
    Cut,
    /// Truncated to zero: it looks like an unfinished segment.
    Empty,
}

impl SegmentDamage {
    const ALL: [Self; 3] = [Self::Remove, Self::Cut, Self::Empty];

    fn apply(self, segment: &Path) {
        match self {
            Self::Remove => std::fs::remove_file(segment).unwrap(),
            Self::Cut => cut(segment, 32),
            Self::Empty => cut(segment, 0),
        }
    }
}

fn last_log(root: &Path) -> PathBuf {
    segments(root, "log").pop().unwrap()
}

/// A segment's number.
fn number(segment: &Path) -> u32 {
    u32::from_str_radix(segment.file_stem().unwrap().to_str().unwrap(), 16).unwrap()
}

fn lost(root: &Path) -> Loss {
    check(root).unwrap().loss.expect("something is lost")
}

/// Every way of opening fails, and the proof of the loss remains.
fn assert_refused(root: &Path, what: &str) {
    let before = check(root).unwrap();
    assert!(before.loss.is_some() && !before.is_sound(), "{what}");
    for _ in 0..2 {
        let error = TestStore::open(root, small()).map(drop).unwrap_err();
        assert_eq!(error.reason(), Reason::CorruptData, "{what}");
        assert!(error.message().contains("--accept-loss"), "{what}: {error}");
        assert_eq!(reindex(root, false).unwrap_err().reason(), Reason::CorruptData, "{what}");
    }
    assert_eq!(check(root).unwrap().loss, before.loss, "{what}: the proof is retained");
    assert_eq!(stats(root).unwrap().loss, before.loss, "{what}");
}

/// Writes an object with an older version, one without, and one that is deleted; the end of the log has the last of
/// each.
async fn changed(root: &Path) {
    let desk = TestStore::new(root).await;
    desk.put("k", "old").await;
    desk.put("gone", "old").await;
    desk.put("kept", "old").await;
    let desk = desk.reopen().await;
    desk.put("k", "new").await;
    desk.put("new", "new").await;
    desk.delete("gone").await.unwrap();
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_versions_are_named_with_their_ids() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::new(&root).await;
    desk.set_versioning(Versioning::Enabled).await;
    desk.put("k", "old").await;
    let gone = desk.put("gone", "old").await.version;
    let desk = desk.reopen().await;
    let versions = [desk.put("k", "new").await.version, desk.put("k", "newest").await.version];
    desk.store
        .delete(&context(), &address("gone").with_version(gone.clone()), Precondition::None)
        .await
        .unwrap();
    desk.close().await;
    SegmentDamage::Cut.apply(&last_log(&root));
    let loss = lost(&root);
    let [first, second] = versions.map(|version| format!("bucket/k (version {})", version.unwrap()));
    let mut names = loss.objects.first_names;
    names.sort();
    let mut expected = [first, second];
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(loss.deletions.first_names, [format!("bucket/gone (version {})", gone.unwrap())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_end_of_log_is_named_and_must_be_accepted() {
    for damage_kind in SegmentDamage::ALL {
        let what = &format!("{damage_kind:?}");
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        changed(&root).await;
        assert!(check(&root).unwrap().is_sound());
        let last = number(&last_log(&root));
        damage_kind.apply(&last_log(&root));
        assert_refused(&root, what);
        let loss = lost(&root);
        assert_eq!(loss.proof, LossProof::Index);
        assert_eq!(loss.ranges.len(), 1, "{what}: {loss}");
        assert_eq!(loss.ranges[0].segment, last, "{what}");
        assert_eq!(loss.ranges[0].existing_bytes, if damage_kind == SegmentDamage::Cut { 32 } else { 0 });
        assert!(loss.ranges[0].recorded_end > Some(32), "{what}");
        assert_eq!(loss.objects.first_names, ["bucket/k", "bucket/new"], "{what}");
        assert_eq!(loss.objects_with_older_records, 1, "{what}");
        assert_eq!(loss.deletions.first_names, ["bucket/gone"], "{what}");
        let bad: Vec<_> = check(&root).unwrap().damage.into_iter().map(|damage| damage.item).collect();
        assert_eq!(bad, ["bucket/k", "bucket/new"], "{what}");

        let desk = TestStore::open(&root, accepting()).unwrap();
        assert_eq!(desk.store.recovery().loss.as_ref(), Some(&loss), "{what}");
        desk.assert_holds("k", b"old").await;
        desk.assert_holds("gone", b"old").await;
        desk.assert_absent("new").await;
        desk.put("after", "after").await;
        assert!(number(&last_log(&root)) > last, "{what}: the lost file may be found again");
        // A loss is accepted only once.
        let root = desk.close().await;
        let desk = TestStore::open(&root, small()).unwrap();
        assert_eq!((desk.store.recovery().loss.as_ref(), desk.store.recovery().reindexed), (None, false));
        desk.assert_holds("after", b"after").await;
        assert!(check(&desk.close().await).unwrap().is_sound(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reindex_drops_lost_data_only_if_accepted() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    std::fs::remove_file(last_log(&root)).unwrap();
    let loss = lost(&root);
    assert_eq!(reindex(&root, true).unwrap().loss, Some(loss));
    assert!(check(&root).unwrap().is_sound());
    TestStore::open(&root, small()).unwrap().assert_holds("k", b"old").await;
}

/// The file has its length but no contents: a start serves objects from the index that a rebuilt one would lack.
#[tokio::test(flavor = "multi_thread")]
async fn reindex_of_a_damaged_log_keeps_the_index_by_default() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    let log = last_log(&root);
    let length = usize::try_from(log.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[32..].fill(0xff);
    std::fs::write(&log, &bytes).unwrap();
    assert_eq!(bytes.len(), length);
    let error = reindex(&root, false).unwrap_err();
    assert!(error.message().contains("bucket/gone"), "{error}");
    let desk = TestStore::open(&root, small()).unwrap();
    assert_eq!(reason(desk.get("k").await), Reason::CorruptData);
    desk.assert_absent("gone").await;
    let root = desk.close().await;
    assert!(!check(&root).unwrap().is_sound());
    let loss = reindex(&root, true).unwrap().loss.unwrap();
    assert_eq!((loss.objects.count, loss.deletions.count), (2, 1), "{loss}");
    TestStore::open(&root, small()).unwrap().assert_holds("k", b"old").await;
}

/// The log continues after the index's coverage: the index is older, and the loss is proven nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn lost_middle_of_log_is_proven_by_an_older_index() {
    for damage_kind in SegmentDamage::ALL {
        for is_index_older in [false, true] {
            let what = format!("{damage_kind:?}, the index is older: {is_index_older}");
            let place = tempfile::tempdir().unwrap();
            let root = place.path().join("store");
            changed(&root).await;
            let desk = TestStore::open(&root, small()).unwrap();
            desk.put("third", "third").await;
            desk.close().await;
            copy_tree(&root.join("index"), &place.path().join("index"));
            let desk = TestStore::open(&root, small()).unwrap();
            // One of the lost objects is written again, and so is not lost.
            desk.put("new", "newer").await;
            desk.close().await;
            if is_index_older {
                std::fs::remove_dir_all(root.join("index")).unwrap();
                copy_tree(&place.path().join("index"), &root.join("index"));
            }
            damage_kind.apply(&segments(&root, "log")[1]);
            assert_refused(&root, &what);
            let loss = lost(&root);
            assert_eq!(loss.objects.first_names, ["bucket/k"], "{what}");
            assert_eq!(loss.deletions.first_names, ["bucket/gone"], "{what}");
            let desk = TestStore::open(&root, accepting()).unwrap();
            desk.assert_holds("k", b"old").await;
            desk.assert_holds("new", b"newer").await;
            desk.assert_holds("third", b"third").await;
            desk.reopen().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_bulk_segment_is_named_and_must_be_accepted() {
    for damage_kind in SegmentDamage::ALL {
        let what = &format!("{damage_kind:?}");
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        let desk = TestStore::new(&root).await;
        desk.put("large", pattern(100_000, 1)).await;
        desk.put("replaced", pattern(100_000, 2)).await;
        let upload = desk.create_upload("upload").await;
        desk.part("upload", &upload, 1, pattern(50_000, 3)).await.unwrap();
        let desk = desk.reopen().await;
        desk.put("replaced", pattern(100_000, 4)).await;
        desk.put("other", pattern(100_000, 5)).await;
        desk.close().await;
        damage_kind.apply(&segments(&root, "bulk")[0]);
        assert_refused(&root, what);
        let loss = lost(&root);
        assert_eq!(
            (loss.objects.count, loss.deletions.count, loss.other_records),
            (0, 0, 0),
            "{what}: {loss}"
        );
        assert_eq!(loss.unreadable.count, 2, "{what}: {loss}");
        assert_eq!(loss.unreadable.first_names[0], "bucket/large", "{what}");
        assert!(loss.unreadable.first_names[1].starts_with("part 1 of upload"), "{what}: {loss}");

        let desk = TestStore::open(&root, accepting()).unwrap();
        assert_eq!(desk.store.recovery().unreadable, loss.unreadable, "{what}");
        assert_eq!(reason(desk.get("large").await), Reason::CorruptData, "{what}");
        desk.assert_holds("replaced", &pattern(100_000, 4)).await;
        let desk = desk.reopen().await;
        desk.delete("large").await.unwrap();
        desk.assert_holds("other", &pattern(100_000, 5)).await;
    }
}

/// The segment had no live records: that is no loss, and the index is rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn lost_segment_without_live_records_is_no_loss() {
    for extension in ["log", "bulk"] {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        let desk = TestStore::new(&root).await;
        let desk = desk.reopen().await;
        desk.put("a", pattern(100_000, 1)).await;
        let dead = segments(&root, extension).pop().unwrap();
        let desk = desk.reopen().await;
        desk.put("a", pattern(100_000, 2)).await;
        desk.close().await;
        std::fs::remove_file(dead).unwrap();
        let report = check(&root).unwrap();
        assert!(
            report.is_sound() && matches!(report.index, IndexState::Outdated(_)),
            "{extension}: {report:?}"
        );
        let desk = TestStore::open(&root, small()).unwrap();
        assert!(desk.store.recovery().reindexed && desk.store.recovery().loss.is_none(), "{extension}");
        desk.assert_holds("a", &pattern(100_000, 2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_later_records_prove_a_cut_segment() {
    let spoil_index: [(&str, Spoil); 2] = [
        ("missing", |root| std::fs::remove_dir_all(root.join("index")).unwrap()),
        ("unreadable", |root| std::fs::remove_file(root.join("index/keyspaces/1/current")).unwrap()),
    ];
    for (what, spoil) in spoil_index {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        changed(&root).await;
        let desk = TestStore::open(&root, small()).unwrap();
        desk.put("third", "third").await;
        desk.close().await;
        let cut_segment = segments(&root, "log").remove(1);
        cut(&cut_segment, 32);
        spoil(&root);
        let is_index_there = root.join("index").exists();
        let loss = lost(&root);
        assert_eq!(
            (loss.proof, loss.ranges.len(), loss.ranges[0].existing_bytes),
            (LossProof::Log, 1, 32),
            "{what}"
        );
        assert_refused(&root, what);
        assert_eq!(root.join("index").exists(), is_index_there, "{what}: a rejected opening removes nothing");
        let desk = TestStore::open(&root, accepting()).unwrap();
        assert_eq!(
            desk.store.recovery().loss.as_ref().map(|loss| loss.proof),
            Some(LossProof::Log),
            "{what}"
        );
        desk.assert_holds("third", b"third").await;
        desk.assert_holds("k", b"old").await;
        // A loss is accepted only once, even for a rebuilt index.
        let root = desk.close().await;
        let report = check(&root).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        assert_eq!(reindex(&root, false).unwrap().loss, None, "{what}");
        std::fs::remove_dir_all(root.join("index")).unwrap();
        let report = check(&root).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        let desk = TestStore::open(&root, small()).unwrap();
        assert!(desk.store.recovery().reindexed && desk.store.recovery().loss.is_none(), "{what}");
    }
}

/// The rest of a record cut by the truncation was lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_cut_through_a_record_leaves_a_sound_store() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    let desk = TestStore::open(&root, small()).unwrap();
    desk.put("third", "third").await;
    desk.close().await;
    let cut_segment = segments(&root, "log").remove(1);
    cut(&cut_segment, cut_segment.metadata().unwrap().len() - 60);
    assert_refused(&root, "through a record");
    let root = TestStore::open(&root, accepting()).unwrap().close().await;
    assert!(check(&root).unwrap().is_sound());
    assert_eq!(reindex(&root, false).unwrap().loss, None);
    assert!(check(&root).unwrap().is_sound());
    // A further truncation is another loss.
    cut(&cut_segment, 32);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    assert_refused(&root, "a shorter one");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_without_an_index_reports_unprovable_end() {
    let spoil_index: [(&str, Spoil); 3] = [
        ("missing", |root| std::fs::remove_dir_all(root.join("index")).unwrap()),
        ("unreadable", |root| std::fs::remove_file(root.join("index/keyspaces/1/current")).unwrap()),
        ("given up", |root| std::fs::write(root.join("index.doubts"), b"..").unwrap()),
    ];
    for (what, spoil) in spoil_index {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        changed(&root).await;
        spoil(&root);
        std::fs::remove_file(last_log(&root)).unwrap();
        let report = check(&root).unwrap();
        assert_eq!((report.objects, report.is_sound()), (3, true), "{what}: no loss is known");
        match report.index {
            IndexState::Missing => assert_eq!(what, "missing"),
            IndexState::Unreadable(_) => assert_ne!(what, "missing"),
            other => panic!("{what}: {other:?}"),
        }
        TestStore::open(&root, small()).unwrap().assert_holds("k", b"old").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_a_rebuild_misses_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::new(&root).await;
    desk.put("large", pattern(100_000, 1)).await;
    desk.put("small", pattern(100, 1)).await;
    desk.close().await;
    std::fs::remove_file(&segments(&root, "bulk")[0]).unwrap();
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let bad: Vec<_> = check(&root).unwrap().damage.into_iter().map(|damage| damage.item).collect();
    assert_eq!(bad, ["bucket/large"]);
    let desk = TestStore::open(&root, small()).unwrap();
    assert_eq!(desk.store.recovery().unreadable.first_names, ["bucket/large"]);
    assert_eq!(reason(desk.get("large").await), Reason::CorruptData);
    desk.assert_holds("small", &pattern(100, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_without_segments_or_format_is_not_taken_for_empty() {
    let remove_segments: [(&str, Spoil); 2] = [
        ("directory", |root| std::fs::remove_dir_all(root.join("segments")).unwrap()),
        ("files", |root| segments(root, "log").iter().for_each(|path| std::fs::remove_file(path).unwrap())),
    ];
    for (what, damage_kind) in remove_segments {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("store");
        changed(&root).await;
        damage_kind(&root);
        assert_refused(&root, what);
        assert_eq!(lost(&root).objects.count, 3, "{what}");
        assert_eq!(lost(&root).buckets.first_names, ["bucket"], "{what}");
        std::fs::remove_file(root.join("FORMAT")).unwrap();
        // Only the index proves that there was a store.
        let error = TestStore::open(&root, small()).map(drop).unwrap_err();
        assert!(error.message().contains("FORMAT"), "{what}: {error}");
        assert!(check(&root).unwrap_err().message().contains("FORMAT"), "{what}");
        assert!(!root.join("FORMAT").exists(), "{what}");
    }
}

/// The index is an older copy. Later an object was deleted, and compaction removed every trace of that: the log alone
/// cannot tell whether the object, or the deletion, was lost. That is no proof.
#[tokio::test(flavor = "multi_thread")]
async fn older_index_with_compacted_deletion_is_no_proof() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::new(&root).await;
    let desk = desk.reopen().await;
    desk.put("a", pattern(1000, 1)).await;
    let desk = desk.reopen().await;
    desk.put("b", pattern(1000, 2)).await;
    desk.close().await;
    copy_tree(&root.join("index"), &place.path().join("index"));
    let desk = TestStore::open(&root, small()).unwrap();
    desk.delete("a").await.unwrap();
    let desk = desk.reopen().await;
    desk.put("c", pattern(1000, 3)).await;
    let logs = segments(&root, "log").len();
    desk.compact().await;
    assert!(segments(&root, "log").len() + 2 <= logs, "the object and its deletion are both removed");
    desk.close().await;
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("index"), &root.join("index"));
    let report = check(&root).unwrap();
    assert!(report.loss.is_none() && !report.is_sound(), "{report:?}");
    assert_eq!(report.possible_loss.map(|loss| loss.objects.first_names), Some(vec!["bucket/a".to_owned()]));
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(desk.store.recovery().reindexed);
    assert!(root.join("index.ambiguous/keyspaces").is_dir());
    desk.assert_absent("a").await;
    desk.assert_holds("b", &pattern(1000, 2)).await;
    desk.assert_holds("c", &pattern(1000, 3)).await;
}

/// A process was killed long after the index was last written, and then a segment was lost. An older copy of the
/// index looks the same if compaction removed that segment, so the store opens; but the proof is retained.
#[tokio::test(flavor = "multi_thread")]
async fn segment_lost_after_the_coverage_is_no_proof() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    copy_tree(&root.join("index"), &place.path().join("index"));
    let mut desk = TestStore::open(&root, small()).unwrap();
    for key in ["lost", "second", "third"] {
        desk.put(key, "x").await;
        desk = desk.reopen().await;
    }
    desk.close().await;
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("index"), &root.join("index"));
    let logs = segments(&root, "log");
    let lost = &logs[logs.len() - 3];
    std::fs::remove_file(lost).unwrap();
    let report = check(&root).unwrap();
    assert!(!report.is_sound() && report.loss.is_none(), "{report:?}");
    assert_eq!(report.damage, []);
    let ranges: Vec<_> = report.possible_loss.unwrap().ranges.iter().map(|range| range.segment).collect();
    assert_eq!(ranges, [number(lost)]);
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(desk.store.recovery().reindexed);
    desk.assert_absent("lost").await;
    desk.assert_holds("third", b"x").await;
    let root = desk.close().await;
    assert!(check(&root).unwrap().is_sound(), "a loss is reported only once");
    assert!(root.join("index.ambiguous/keyspaces").is_dir());
}

/// Records unknown to an index of an earlier version are no gap, and those known to it still prove a loss.
#[tokio::test(flavor = "multi_thread")]
async fn torn_tail_and_older_index_open_without_being_accepted() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    copy_tree(&root.join("index"), &place.path().join("index"));
    let desk = TestStore::open(&root, small()).unwrap();
    desk.put("last", pattern(3000, 1)).await;
    desk.close().await;
    // As after a power loss: neither the end of the log nor the index reached the disk.
    let last = last_log(&root);
    cut(&last, last.metadata().unwrap().len() - 8);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    copy_tree(&place.path().join("index"), &root.join("index"));
    assert!(check(&root).unwrap().is_sound());
    let desk = TestStore::open(&root, small()).unwrap();
    assert!(!desk.store.recovery().reindexed);
    desk.assert_absent("last").await;
    desk.assert_holds("k", b"new").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_of_a_store_in_use_fails_without_a_lock_file() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::new(&root).await;
    desk.put("a", "a").await;
    assert_eq!(check(&root).unwrap_err().reason(), Reason::Overloaded);
    assert_eq!(stats(&root).unwrap_err().reason(), Reason::Overloaded);
    desk.close().await;
    // A copy has no lock file.
    std::fs::remove_file(root.join("LOCK")).unwrap();
    assert!(check(&root).unwrap().is_sound());
    assert!(!root.join("LOCK").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_index_is_rejected_inside_the_store() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    let before = state_of_files(&root);
    assert_eq!(local::check(&root, &root).unwrap_err().reason(), Reason::InvalidArgument);
    let missing = local::check(&root, &place.path().join("nowhere")).unwrap_err();
    assert!(missing.message().contains("nowhere"), "{missing}");
    let temporary = place.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    assert!(local::check(&root, &temporary).unwrap().is_sound());
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(state_of_files(&root), before);
}

/// Journals are copied, whatever the directory is called; the inspected store never changes.
#[tokio::test(flavor = "multi_thread")]
async fn check_of_a_symlinked_index_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    let elsewhere = place.path().join("tables");
    std::fs::rename(root.join("index"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, root.join("index")).unwrap();
    let before = state_of_files(&elsewhere);
    assert!(check(&root).unwrap().is_sound());
    assert_eq!(state_of_files(&elsewhere), before);
    let keyspaces = place.path().join("keyspaces");
    std::fs::rename(elsewhere.join("keyspaces"), &keyspaces).unwrap();
    std::os::unix::fs::symlink(&keyspaces, elsewhere.join("keyspaces")).unwrap();
    let before = (state_of_files(&elsewhere), state_of_files(&keyspaces));
    let report = check(&root).unwrap();
    assert!(report.is_sound() && report.index == IndexState::Good, "{report:?}");
    assert_eq!((state_of_files(&elsewhere), state_of_files(&keyspaces)), before);
}

/// A mount that is unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &[&str], at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(arguments).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            other => {
                println!("skipped: nothing can be mounted: {other:?}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_on_a_read_only_file_system_is_checked() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    changed(&root).await;
    let view = place.path().join("view");
    let Some(_mount) = Mount::new(&["--bind", root.to_str().unwrap()], &view) else { return };
    let remounted = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&view).output().unwrap();
    assert!(remounted.status.success(), "{remounted:?}");
    assert!(std::fs::write(view.join("x"), b"x").is_err(), "the mount is read-only");
    assert!(check(&view).unwrap().is_sound());
    // A store in use cannot be inspected here either.
    let desk = TestStore::open(&root, small()).unwrap();
    assert_eq!(check(&view).unwrap_err().reason(), Reason::Overloaded);
    let root = desk.close().await;
    std::fs::remove_file(last_log(&root)).unwrap();
    assert_eq!(lost(&view).objects.count, 2);
    std::fs::remove_dir_all(root.join("index")).unwrap();
    assert_eq!(check(&view).unwrap().index, IndexState::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_temporary_directory_is_named() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let desk = TestStore::new(&root).await;
    for n in 0..2000 {
        desk.put(&format!("{n:05}{}", "k".repeat(200)), "x").await;
    }
    desk.close().await;
    let temporary = place.path().join("temporary");
    let Some(_mount) = Mount::new(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"], &temporary) else { return };
    let full = local::check(&root, &temporary).unwrap_err();
    assert_eq!(full.reason(), Reason::Full);
    assert!(full.message().contains("temporary"), "{full}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}
