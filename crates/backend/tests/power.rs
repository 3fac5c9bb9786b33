//! Power failures, on a file system that loses unsynced data.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/disk.rs"]
mod disk;
#[path = "support/test_store.rs"]
mod test_store;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tradewind_backend::local::{LocalOptions, reindex};
use tradewind_core::error::Reason;
use tradewind_core::multipart::UploadId;
use tradewind_core::store::StageRequest;
use tradewind_core::{ObjectStore, Precondition};
use tradewind_powerloss::{CrashMode, FsyncFailure, PowerLossFs};

use disk::{crash, mount};
use test_store::{Random, TestStore, check, pattern, small};

fn options() -> LocalOptions {
    LocalOptions {
        segment_bytes: 48 << 10,
        inline_bytes: 4 << 10,
        checkpoint_bytes: 64 << 10,
        compact_interval: Duration::from_millis(30),
        ..small()
    }
}

/// The possible contents of a key: the last acknowledged state, and those in flight.
#[derive(Default, Debug, Clone)]
struct Possible {
    acknowledged: Option<(usize, u64)>,
    in_flight: Option<Option<(usize, u64)>>,
}

/// Writes and deletes the worker's own keys until an operation fails.
async fn work(desk: Arc<TestStore>, worker: u64, mut random: Random) -> BTreeMap<String, Possible> {
    let mut keys: BTreeMap<String, Possible> = BTreeMap::new();
    for step in 0.. {
        let key = format!("{worker}/{}", random.below(6));
        let entry = keys.entry(key.clone()).or_default();
        let new_state = match random.below(10) {
            0..2 => None,
            2..8 => Some((random.below(5000), random.next())),
            _ => Some((4097 + random.below(120_000), random.next())),
        };
        entry.in_flight = Some(new_state);
        let done = match new_state {
            None => desk.delete(&key).await.map(|_| ()),
            Some((size, seed)) if step % 5 == 4 => multipart(&desk, &key, size, seed).await,
            Some((size, seed)) => desk.try_put(&key, pattern(size, seed)).await.map(|_| ()),
        };
        if done.is_err() {
            break;
        }
        *entry = Possible { acknowledged: new_state, in_flight: None };
    }
    keys
}

async fn multipart(desk: &TestStore, key: &str, size: usize, seed: u64) -> tradewind_core::Result<()> {
    let context = tradewind_core::testing::context();
    let create = tradewind_core::multipart::CreateUpload::default();
    let upload: UploadId = desk.store.create_upload(&context, &test_store::address(key), create).await?;
    desk.part(key, &upload, 1, pattern(100, seed + 1)).await?;
    let part = desk.part(key, &upload, 2, pattern(size, seed)).await?;
    desk.complete(key, &upload, vec![part]).await.map(|_| ())
}

async fn verify(
    desk: &TestStore,
    keys: &BTreeMap<String, Possible>,
    what: &str,
) -> BTreeMap<String, Possible> {
    let mut settled = BTreeMap::new();
    for (key, possible) in keys {
        let found = match desk.get(key).await {
            Ok(bytes) => Some(bytes),
            Err(e) if e.reason() == Reason::NoSuchKey => None,
            Err(e) => panic!("{what}: {key}: {e:?}; {possible:?}"),
        };
        let is = |state: &Option<(usize, u64)>| match (state, &found) {
            (None, None) => true,
            (Some((size, seed)), Some(bytes)) => *bytes == pattern(*size, *seed),
            _ => false,
        };
        let state = [Some(possible.acknowledged), possible.in_flight].into_iter().flatten().find(is);
        let state = state.unwrap_or_else(|| panic!("{what}: {key} is none of {possible:?}"));
        settled.insert(key.clone(), Possible { acknowledged: state, in_flight: None });
    }
    settled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_acknowledged_write_survives_a_power_failure() {
    survive_power_failures(options()).await;
}

/// Most syncs cover no change of the log's length, as the zeros ahead of the log are never used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn log_written_ahead_survives_a_power_failure() {
    let cut_in_zeros = survive_power_failures(LocalOptions { segment_bytes: 4 << 20, ..options() }).await;
    assert!(
        cut_in_zeros.is_none_or(|cuts| cuts > 7),
        "{cut_in_zeros:?} of 14 logs were longer than their records"
    );
}

/// Returns the number of power failures at which the log was longer than its records, by at least 64 KiB; `None` if no
/// disk can be mounted.
async fn survive_power_failures(options: LocalOptions) -> Option<usize> {
    let (disk, _place) = mount()?;
    let mut cut_in_zeros = 0;
    disk.set_sync_delay(Duration::from_micros(300));
    let root = disk.path().join("store");
    let mut possible_states: BTreeMap<String, Possible> = BTreeMap::new();
    for seed in 0..14_u64 {
        let desk = TestStore::open(&root, options.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        if seed == 0 {
            let bucket = tradewind_core::BucketName::new(test_store::BUCKET).unwrap();
            let context = tradewind_core::testing::context();
            desk.store.create_bucket(&context, &bucket).await.unwrap();
        }
        possible_states = verify(&desk, &possible_states, &format!("seed {seed}")).await;
        let desk = Arc::new(desk);
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..5 {
            workers.spawn(work(desk.clone(), worker + 10 * seed, Random(seed * 977 + worker * 31 + 1)));
        }
        tokio::time::sleep(Duration::from_millis(150 + seed * 23)).await;
        if let Some(log) = test_store::segments(&root, "log").pop() {
            let file_bytes = log.metadata().map_or(0, |file| file.len());
            cut_in_zeros += usize::from(file_bytes > test_store::log_bytes(&log) + (64 << 10));
        }
        crash(&disk, seed);
        while let Some(keys) = workers.join_next().await {
            possible_states.extend(keys.unwrap());
        }
        drop(Arc::into_inner(desk));
        disk.revive();
        if seed % 5 == 3 && root.join("index").exists() {
            std::fs::remove_dir_all(root.join("index")).unwrap();
        }
    }
    let desk = TestStore::open(&root, options.clone()).unwrap();
    possible_states = verify(&desk, &possible_states, "in the end").await;
    let desk = desk.reindex().await;
    verify(&desk, &possible_states, "after a reindex").await;
    assert_eq!(
        desk.names().await.len(),
        possible_states.values().filter(|k| k.acknowledged.is_some()).count()
    );
    assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
    assert!(possible_states.len() > 100, "{} keys were written", possible_states.len());
    Some(cut_in_zeros)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_store_survives_a_power_failure() {
    let Some((disk, _place)) = mount() else { return };
    for seed in 0..6_u64 {
        let root = disk.path().join(format!("deep{seed}/er/store"));
        if seed >= 3 {
            // The directory was created earlier and never synced.
            std::fs::create_dir_all(root.parent().unwrap()).unwrap();
            std::fs::File::open(disk.path()).unwrap().sync_all().unwrap();
            std::fs::File::open(disk.path().join(format!("deep{seed}"))).unwrap().sync_all().unwrap();
            std::fs::create_dir(&root).unwrap();
        }
        let desk = TestStore::with_options(&root, options()).await;
        desk.put_if("a", pattern(100, seed), Precondition::Absent).await.unwrap();
        disk.crash(seed, if seed % 2 == 0 { CrashMode::DropAll } else { CrashMode::Random });
        drop(desk);
        disk.revive();
        let desk = TestStore::open(&root, options()).unwrap();
        desk.assert_holds("a", &pattern(100, seed)).await;
        // The index was only written at the start; nothing is missing from it nevertheless.
        assert_eq!(desk.names().await, ["a"]);
        desk.close().await;
    }
}

/// Nothing else syncs the data written by compaction here.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn compacted_data_survives_without_its_original() {
    let Some((disk, _place)) = mount() else { return };
    let quiet = LocalOptions { compact_interval: Duration::from_secs(3600), ..options() };
    let root = disk.path().join("store");
    let desk = TestStore::with_options(&root, quiet.clone()).await;
    for n in 0..24 {
        desk.put(&format!("small{n}"), pattern(3000, n)).await;
        desk.put(&format!("large{n}"), pattern(9000, n)).await;
    }
    let desk = desk.reopen().await;
    for n in (0..24).filter(|n| n % 3 != 0) {
        desk.delete(&format!("small{n}")).await.unwrap();
        desk.delete(&format!("large{n}")).await.unwrap();
    }
    assert!(desk.compact().await > 4);
    disk.crash(1, CrashMode::DropAll);
    drop(desk);
    disk.revive();
    let mut desk = TestStore::open(&root, quiet).unwrap();
    assert!(!desk.store.recovery().reindexed, "the index was durable before a segment was removed");
    for _ in 0..2 {
        for n in (0..24).step_by(3) {
            desk.assert_holds(&format!("small{n}"), &pattern(3000, n)).await;
            desk.assert_holds(&format!("large{n}"), &pattern(9000, n)).await;
        }
        assert_eq!(desk.names().await.len(), 16);
        desk = desk.reindex().await;
    }
    desk.close().await;
}

/// A segment that reappears after its removal brings back an object whose tombstone is gone as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deleted_object_stays_deleted_after_record_removal() {
    let Some((disk, _place)) = mount() else { return };
    let quiet = LocalOptions { compact_interval: Duration::from_secs(3600), ..options() };
    for seed in 0..12 {
        let root = disk.path().join(format!("store{seed}"));
        let mut desk = TestStore::with_options(&root, quiet.clone()).await;
        desk.put("stays", pattern(3000, seed)).await;
        // Each in a segment of its own: one with an object is removed before the one with its tombstone, and no new
        // one is created in between.
        desk = desk.reopen().await;
        for n in 0..3 {
            desk.put(&format!("k{n}"), pattern(3000, n)).await;
            desk = desk.reopen().await;
        }
        for n in 0..3 {
            assert!(desk.delete(&format!("k{n}")).await.unwrap());
            desk = desk.reopen().await;
        }
        assert_eq!(desk.compact().await, 6);
        disk.crash(seed, CrashMode::Random);
        drop(desk);
        disk.revive();
        // The log alone determines the contents.
        std::fs::remove_dir_all(root.join("index")).unwrap();
        let desk = TestStore::open(&root, quiet.clone()).unwrap();
        assert_eq!(desk.names().await, ["stays"], "seed {seed}");
        desk.close().await;
    }
}

/// The blocks of a new segment may contain one of another store, including its header.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unfinished_segment_is_not_mistaken_for_another_stores() {
    let Some((disk, _place)) = mount() else { return };
    for seed in 0..32_u64 {
        let other = TestStore::new(&disk.path().join("other")).await;
        other.put("small", pattern(3000, seed)).await;
        other.put("large", pattern(60_000, seed)).await;
        std::fs::remove_dir_all(other.close().await).unwrap();
        std::fs::File::open(disk.path()).unwrap().sync_all().unwrap();
        let root = disk.path().join("store");
        let desk = TestStore::new(&root).await;
        desk.put("a", pattern(1000, seed)).await;
        // Starts a segment that is never synced.
        let request = StageRequest { size: Some(60_000), ..StageRequest::default() };
        let context = tradewind_core::testing::context();
        let mut staged = desk.store.stage(&context, &test_store::address("b"), request).await.unwrap();
        tradewind_core::testing::write_all(&mut *staged, pattern(50_000, seed)).await.unwrap();
        disk.crash(seed, CrashMode::Random);
        drop((staged, desk));
        disk.revive();
        let desk = TestStore::open(&root, small()).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        desk.assert_holds("a", &pattern(1000, seed)).await;
        std::fs::remove_dir_all(desk.close().await).unwrap();
    }
}

/// A process was killed before it could sync, and the next one found the record in the page cache: once served, it
/// must not be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replayed_records_are_durable_before_being_served() {
    let Some((disk, _place)) = mount() else { return };
    let root = disk.path().join("store");
    let desk = TestStore::new(&root).await;
    desk.put("a", pattern(1000, 1)).await;
    let log = test_store::segments(&root, "log").pop().unwrap();
    let before = test_store::log_bytes(&log);
    desk.put("b", pattern(1000, 2)).await;
    desk.close().await;
    let tail = std::fs::read(&log).unwrap().split_off(usize::try_from(before).unwrap());
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.set_len(before).unwrap();
    file.sync_all().unwrap();
    std::fs::File::open(&root).unwrap().sync_all().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &tail, before).unwrap();
    drop(file);
    let desk = TestStore::open(&root, small()).unwrap();
    desk.assert_holds("b", &pattern(1000, 2)).await;
    disk.crash(1, CrashMode::DropAll);
    drop(desk);
    disk.revive();
    let desk = TestStore::open(&root, small()).unwrap();
    desk.assert_holds("a", &pattern(1000, 1)).await;
    desk.assert_holds("b", &pattern(1000, 2)).await;
    desk.close().await;
}

/// Part of an index can be mistaken for a complete one: the directory is renamed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn index_removal_is_all_or_nothing() {
    const FILES: usize = 64;
    let Some((disk, _place)) = mount() else { return };
    for seed in 0..16_u64 {
        let root = disk.path().join(format!("store{seed}"));
        let desk = TestStore::new(&root).await;
        desk.put("a", pattern(1000, seed)).await;
        desk.close().await;
        let index = root.join("index");
        for n in 0..FILES {
            std::fs::File::create(index.join(format!("zz{n}"))).unwrap().sync_all().unwrap();
        }
        std::fs::File::open(&index).unwrap().sync_all().unwrap();
        disk.set_sync_delay(Duration::from_millis(40));
        let reindexing = std::thread::spawn({
            let root = root.clone();
            move || reindex(&root, false).map(|_| ())
        });
        std::thread::sleep(Duration::from_millis(seed * 12));
        disk.crash(seed, CrashMode::Random);
        // It fails if the power fails before its end.
        let _ = reindexing.join().unwrap();
        disk.revive();
        disk.set_sync_delay(Duration::ZERO);
        let names = std::fs::read_dir(&index).map(|entries| {
            let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
            entries.map(name).filter(|name| name.to_string_lossy().starts_with("zz")).count()
        });
        let left = names.unwrap_or(0);
        assert!(left == 0 || left == FILES, "seed {seed}: {left} of {FILES} files are left of the index");
        let desk = TestStore::open(&root, small()).unwrap();
        desk.assert_holds("a", &pattern(1000, seed)).await;
        desk.close().await;
    }
}

/// A write rejected for lack of space never happened, even if the power fails before anything else is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_rejected_on_a_full_disk_never_appear() {
    const SIZE: usize = 600 << 10;
    let Some((disk, _place)) = mount() else { return };
    let options = LocalOptions { inline_bytes: 1 << 20, segment_bytes: 64 << 20, ..small() };
    let mut rejected = 0;
    for seed in 0..16_u64 {
        let root = disk.path().join(format!("store{seed}"));
        let desk = TestStore::with_options(&root, options.clone()).await;
        desk.put("before", pattern(1000, seed)).await;
        disk.set_sync_delay(Duration::from_millis(50));
        // While the first one is synced the others queue up and are written as one batch.
        let first = desk.put("first", pattern(1000, seed));
        let others = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            disk.limit_bytes(Some(used_bytes(disk.path()) + (1300 << 10)));
            let puts = (0..4).map(|n| {
                let desk = &desk;
                async move { desk.try_put(&format!("k{n}"), pattern(SIZE, seed * 4 + n)).await }
            });
            futures::future::join_all(puts).await
        };
        let (_, others) = futures::join!(first, others);
        let mut rejected_keys = Vec::new();
        for (n, put) in others.into_iter().enumerate() {
            match put {
                Err(e) if e.reason() == Reason::Full => rejected_keys.push(format!("k{n}")),
                put => drop(put.unwrap()),
            }
        }
        rejected += rejected_keys.len();
        let continues = seed % 2 == 1 && !rejected_keys.is_empty();
        if continues {
            // Nothing is written in the place of the rejected batch.
            disk.limit_bytes(None);
            let first_log = &test_store::segments(&root, "log")[0];
            let before = std::fs::metadata(first_log).unwrap().len();
            desk.put("after", pattern(SIZE, seed)).await;
            assert_eq!(std::fs::metadata(first_log).unwrap().len(), before, "seed {seed}");
            // States that everything before it was durable.
            desk.put("last", pattern(1000, seed)).await;
        }
        disk.crash(seed, CrashMode::Random);
        drop(desk);
        disk.revive();
        disk.limit_bytes(None);
        disk.set_sync_delay(Duration::ZERO);
        let mut desk = TestStore::open(&root, options.clone()).unwrap();
        for _ in 0..2 {
            for key in &rejected_keys {
                desk.assert_absent(key).await;
            }
            desk.assert_holds("first", &pattern(1000, seed)).await;
            if continues {
                desk.assert_holds("after", &pattern(SIZE, seed)).await;
                desk.assert_holds("last", &pattern(1000, seed)).await;
            }
            desk = desk.reindex().await;
        }
        desk.close().await;
        std::fs::remove_dir_all(&root).unwrap();
    }
    assert!(rejected >= 16, "{rejected} writes were rejected");
}

fn used_bytes(directory: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => used_bytes(&entry.path()),
        Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
        Err(_) => 0,
    };
    entries.filter_map(std::io::Result::ok).map(size).sum()
}

/// A start takes in records that a killed process left in the page cache, and its sync fails, or the power fails
/// after it: an index that covered more than the disk has would look like the proof of a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replayed_log_is_durable_before_the_index_covers_it() {
    // More than one replay batch.
    const OBJECTS: u64 = 6000;
    if let Some(reason) = tradewind_powerloss::mount_unavailable() {
        return println!("skipped: {reason}");
    }
    let options = || LocalOptions { segment_bytes: 64 << 20, ..small() };
    let place = tempfile::tempdir().unwrap();
    let (root, tree) = (place.path().join("store"), place.path().join("tree"));
    let desk = TestStore::with_options(&root, options()).await;
    let root = desk.close().await;
    test_store::copy_tree(&root, &tree.join("store"));
    let desk = TestStore::open(&root, options()).unwrap();
    let keys: Vec<String> = (0..OBJECTS).map(|n| format!("k{n}")).collect();
    futures::future::join_all(keys.iter().map(|key| desk.put(key, "x"))).await;
    let root = desk.close().await;
    let log = test_store::segments(&root, "log").pop().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    let log = Path::new("store/segments").join(log.file_name().unwrap());
    std::fs::write(tree.join(&log), &bytes[..32]).unwrap();
    let mut failed = 0;
    for successes in 0.. {
        let mountpoint = place.path().join("disk");
        std::fs::create_dir_all(&mountpoint).unwrap();
        let disk = PowerLossFs::mount(&mountpoint, Some(&tree)).unwrap();
        let (root, log) = (mountpoint.join("store"), mountpoint.join(&log));
        // It was never synced.
        let file = std::fs::OpenOptions::new().write(true).open(log).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[32..], 32).unwrap();
        drop(file);
        disk.fail_fsync_after(successes, FsyncFailure::KeepPending);
        drop(TestStore::open(&root, options()));
        let has_failed = disk.counters().failed_syncs > 0;
        disk.crash(successes, CrashMode::DropAll);
        disk.revive();
        let desk = TestStore::open(&root, options());
        let desk = desk.unwrap_or_else(|e| panic!("sync {successes} failed: {e}"));
        if !has_failed {
            desk.assert_holds("k5999", b"x").await;
            break;
        }
        failed += 1;
        drop(desk);
        disk.unmount().unwrap();
    }
    assert!(failed > 1, "{failed} syncs failed");
}

/// A killed compaction left a copy of an extent only in the page cache, and the index is rebuilt: it must not refer
/// to that copy before it is durable, because the original is then removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rebuilt_index_refers_to_durable_copies_only() {
    if let Some(reason) = tradewind_powerloss::mount_unavailable() {
        return println!("skipped: {reason}");
    }
    let options = || LocalOptions { compact_interval: Duration::from_secs(3600), ..small() };
    let place = tempfile::tempdir().unwrap();
    let (root, tree) = (place.path().join("store"), place.path().join("tree"));
    let desk = TestStore::with_options(&root, options()).await;
    desk.put("large", pattern(100_000, 1)).await;
    desk.put("dead", pattern(200_000, 2)).await;
    let desk = desk.reopen().await;
    desk.delete("dead").await.unwrap();
    let root = desk.close().await;
    test_store::copy_tree(&root, &tree.join("store"));
    let original = test_store::segments(&root, "bulk").pop().unwrap();
    let desk = TestStore::open(&root, options()).unwrap();
    desk.compact().await;
    let root = desk.close().await;
    let copied = test_store::segments(&root, "bulk").pop().unwrap();
    assert!(copied != original && !original.exists());
    let bytes = std::fs::read(&copied).unwrap();
    let in_tree = |path: &Path| Path::new("store/segments").join(path.file_name().unwrap());
    std::fs::write(tree.join(in_tree(&copied)), &bytes[..32]).unwrap();
    std::fs::remove_dir_all(tree.join("store/index")).unwrap();

    let mountpoint = place.path().join("disk");
    std::fs::create_dir_all(&mountpoint).unwrap();
    let disk = PowerLossFs::mount(&mountpoint, Some(&tree)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(mountpoint.join(in_tree(&copied))).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[32..], 32).unwrap();
    drop(file);
    let desk = TestStore::open(&mountpoint.join("store"), options()).unwrap();
    desk.compact().await;
    assert!(!mountpoint.join(in_tree(&original)).exists(), "nothing refers to the original");
    disk.crash(1, CrashMode::DropAll);
    drop(desk);
    disk.revive();
    let desk = TestStore::open(&mountpoint.join("store"), options()).unwrap();
    desk.assert_holds("large", &pattern(100_000, 1)).await;
    drop(desk);
    disk.unmount().unwrap();
}
