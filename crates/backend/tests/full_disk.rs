//! On a full disk writes are refused, reads go on, and what frees space works.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tradewind_backend::local::LocalOptions;
use tradewind_core::error::Reason;
use tradewind_core::multipart::PartNumber;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{ObjectStore, Precondition, Versioning};

use test_store::{TestStore, address, check, drain, pattern, reason, small};

/// A small file system of its own, gone when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None`, with a line that says why, where nothing can be mounted.
    fn mount(mebibytes: u32) -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(place.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(place)),
            Ok(output) => {
                println!(
                    "skipped: no tmpfs can be mounted: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                );
                None
            }
            Err(e) => {
                println!("skipped: mount cannot be run: {e}");
                None
            }
        }
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Another program takes all that is left, to the last byte.
    fn eat(&self) -> PathBuf {
        let path = self.0.path().join("eaten");
        let mut file = std::fs::File::create(&path).unwrap();
        while std::io::Write::write(&mut file, &[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

fn options() -> LocalOptions {
    LocalOptions { segment_bytes: 1 << 20, reserve_bytes: 8 << 20, ..small() }
}

/// Writes until something is refused. Answers the error and what is stored.
async fn fill(
    desk: &TestStore,
    size: usize,
    from: u64,
) -> (tradewind_core::Error, BTreeMap<String, (usize, u64)>) {
    let mut stored = BTreeMap::new();
    for n in from.. {
        let (key, size) = (format!("k{n:05}"), size + (n % 7) as usize);
        match desk.try_put(&key, pattern(size, n)).await {
            Ok(_) => stored.insert(key, (size, n)),
            Err(e) => return (e, stored),
        };
    }
    unreachable!("no disk is without end")
}

async fn assert_all(desk: &TestStore, stored: &BTreeMap<String, (usize, u64)>) {
    for (key, (size, seed)) in stored {
        desk.assert_holds(key, &pattern(*size, *seed)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn space_can_be_freed_and_used_again() {
    for size in [8_000, 100_000] {
        let Some(disk) = Disk::mount(32) else { return };
        let desk = TestStore::with_options(&disk.root(), options()).await;
        let (refused, mut stored) = fill(&desk, size, 0).await;
        assert_eq!(refused.reason(), Reason::Full, "{refused:?}");
        assert!(!desk.store.is_read_only());
        assert_all(&desk, &stored).await;
        // Every other object goes: no segment is empty then, so compaction has to copy.
        let gone: Vec<_> = stored.keys().step_by(2).cloned().collect();
        for key in &gone {
            assert!(desk.delete(key).await.unwrap());
            stored.remove(key);
        }
        desk.compact().await;
        let again = fill(&desk, size, 50_000).await.1;
        assert!(
            again.len() * 3 > gone.len(),
            "after {} were deleted there is room for {}",
            gone.len(),
            again.len()
        );
        stored.extend(again);
        assert_all(&desk, &stored).await;
        // A store on a full disk opens, from the log alone as well.
        let desk = desk.reopen().await;
        assert_all(&desk, &stored).await;
        let desk = desk.reindex().await;
        assert_all(&desk, &stored).await;
        assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
    }
}

/// Segments that are mostly alive are left alone as long as there is space; but no write is refused for the sake
/// of what is dead in them, and compaction of segments as large as they may be never takes the last block, however
/// much is written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_in_full_segments_is_freed_where_space_is_short() {
    for (size, segment_bytes) in
        [(8_000, 1 << 20), (100_000, 1 << 20), (8_000, 64 << 20), (100_000, 64 << 20)]
    {
        let Some(disk) = Disk::mount(96) else { return };
        let options =
            LocalOptions { segment_bytes, reserve_bytes: 64 << 20, compact_below_fraction: 0.5, ..options() };
        let desk = TestStore::with_options(&disk.root(), options).await;
        let mut stored = fill(&desk, size, 0).await.1;
        let gone: Vec<_> = stored.keys().step_by(5).cloned().collect();
        for key in &gone {
            assert!(desk.delete(key).await.unwrap());
            stored.remove(key);
        }
        let (removed, (_, meanwhile)) = tokio::join!(desk.compact(), fill(&desk, size, 20_000));
        assert!(removed > 0, "{size} {segment_bytes}");
        stored.extend(meanwhile);
        let mut again = 0;
        for round in 1..10 {
            desk.compact().await;
            let more = fill(&desk, size, 20_000 + round * 10_000).await.1;
            again += more.len();
            stored.extend(more);
        }
        assert!(!desk.store.is_read_only());
        assert!(
            again * 2 > gone.len(),
            "{size} {segment_bytes}: after {} of {} were deleted there is room for {again}",
            gone.len(),
            gone.len() + stored.len(),
        );
        assert_all(&desk, &stored).await;
        for key in stored.keys() {
            assert!(desk.delete(key).await.unwrap());
        }
        assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
    }
}

/// A write that cannot fit would take the free space from other writes until it fails.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_cannot_fit_is_refused_before_it_begins() {
    const LARGE: usize = 9 << 20;
    let Some(disk) = Disk::mount(96) else { return };
    let desk = TestStore::with_options(&disk.root(), options()).await;
    desk.put("large", pattern(LARGE, 1)).await;
    let upload = desk.create_upload("upload").await;
    let context = tradewind_core::testing::context();
    let (from, to) = (test_store::address("large"), test_store::address("copy"));
    let number = PartNumber::new(1).unwrap();
    let free = || desk.store.free_bytes().unwrap();
    // More than is free, and more than is free beside the reserve, of which a quarter is a file.
    let kept = options().reserve_bytes / 4 * 3;
    for size in [100 << 20, free() + 1, free() - kept / 2] {
        let request = || StageRequest { size: Some(size), ..StageRequest::default() };
        let staged = desk.store.stage(&context, &to, request()).await.map(drop);
        assert_eq!(reason(staged), Reason::Full, "{size}");
        let part =
            desk.store.stage_part(&context, &test_store::address("upload"), &upload, number, request()).await;
        assert_eq!(reason(part.map(drop)), Reason::Full, "{size}");
    }
    // Three quarters of the large object are left beside that.
    let file = std::fs::File::create(disk.0.path().join("taken")).unwrap();
    let taken = free() - kept - u64::try_from(LARGE).unwrap() * 3 / 4;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    let (before, bytes) = (free(), test_store::segment_bytes(&disk.root()));
    let copy = CopyRequest {
        source: from.clone(),
        source_conditions: Default::default(),
        destination: to,
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Default::default(),
        etag: Default::default(),
    };
    assert_eq!(reason(desk.store.copy(&context, copy).await), Reason::Full);
    let copy_part = CopyPartRequest {
        source: from,
        range: None,
        source_conditions: Default::default(),
        destination: test_store::address("upload"),
        upload: upload.clone(),
        number,
        etag: Default::default(),
    };
    assert_eq!(reason(desk.store.copy_part(&context, copy_part).await), Reason::Full);
    assert_eq!(reason(desk.try_put("put", pattern(LARGE, 2)).await), Reason::Full);
    assert_eq!((free(), test_store::segment_bytes(&disk.root())), (before, bytes), "nothing was written");
    desk.put("fits", pattern(LARGE / 2, 3)).await;
    desk.assert_holds("fits", &pattern(LARGE / 2, 3)).await;
}

/// Removing the dead data makes room for the write, but is not worthwhile while space is ample.
#[tokio::test(flavor = "multi_thread")]
async fn refused_write_fits_after_compaction_made_room() {
    let Some(disk) = Disk::mount(96) else { return };
    let options = LocalOptions { compact_below_fraction: 0.1, ..options() };
    let desk = TestStore::with_options(&disk.root(), options).await;
    let mut gone = 0;
    for n in 0..600 {
        desk.put(&format!("k{n}"), pattern(100_000, n)).await;
    }
    let desk = desk.reopen().await;
    for n in (0..600).step_by(3) {
        desk.delete(&format!("k{n}")).await.unwrap();
        gone += 100_000;
    }
    let free = usize::try_from(desk.store.free_bytes().unwrap()).unwrap();
    desk.compact().await;
    let large = || pattern(free.saturating_sub(gone / 4), 1);
    assert_eq!(reason(desk.try_put("large", large()).await), Reason::Full);
    assert!(desk.compact().await > 0);
    desk.put("large", large()).await;
    desk.assert_holds("large", &large()).await;
    desk.assert_holds("k1", &pattern(100_000, 1)).await;
}

/// No round is requested, and the next one is due in half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_shortage_is_noticed_between_rounds() {
    let Some(disk) = Disk::mount(32) else { return };
    let interval = Duration::from_secs(32);
    let desk =
        TestStore::with_options(&disk.root(), LocalOptions { compact_interval: interval, ..options() }).await;
    let started = Instant::now();
    // The first round, which comes after a sixteenth of the interval, finds nothing.
    tokio::time::sleep(interval / 16 + Duration::from_millis(500)).await;
    for key in fill(&desk, 100_000, 0).await.1.keys() {
        assert!(desk.delete(key).await.unwrap());
    }
    while desk.try_put("again", pattern(100_000, 1)).await.is_err() {
        assert!(started.elapsed() < interval, "nothing was freed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_work_when_another_program_took_everything() {
    let Some(disk) = Disk::mount(32) else { return };
    let desk = TestStore::with_options(&disk.root(), options()).await;
    let mut stored = BTreeMap::new();
    for n in 0..60_u64 {
        desk.put(&format!("k{n}"), pattern(100_000, n)).await;
        stored.insert(format!("k{n}"), (100_000, n));
    }
    let held =
        |root: &Path| std::os::unix::fs::MetadataExt::blocks(&root.join("RESERVE").metadata().unwrap());
    assert!(held(&disk.root()) > 0, "the reserve has blocks of its own");
    let eaten = disk.eat();
    assert_eq!(reason(desk.try_put("x", pattern(12_000, 1)).await), Reason::Full);
    assert_eq!(reason(desk.try_put("x", pattern(300_000, 1)).await), Reason::Full);
    assert_all(&desk, &stored).await;
    for n in 0..40 {
        assert!(desk.delete(&format!("k{n}")).await.unwrap());
        stored.remove(&format!("k{n}"));
    }
    assert!(!desk.store.is_read_only());
    assert!(desk.compact().await > 0, "segments without live data are removed without a copy");
    assert_all(&desk, &stored).await;
    // And it takes that, too; the store stops and starts in the middle of it.
    std::fs::rename(&eaten, disk.0.path().join("eaten before")).unwrap();
    disk.eat();
    let desk = desk.reopen().await;
    assert_all(&desk, &stored).await;
    std::fs::remove_file(disk.0.path().join("eaten before")).unwrap();
    std::fs::remove_file(eaten).unwrap();
    desk.compact().await;
    assert!(held(&disk.root()) > 0, "the reserve is taken again");
    desk.put("x", pattern(300_000, 1)).await;
    let desk = desk.reindex().await;
    assert_all(&desk, &stored).await;
    desk.assert_holds("x", &pattern(300_000, 1)).await;
    assert_eq!(desk.names().await.len(), stored.len() + 1);
}

/// A delete marker frees nothing, so it may not use the space that is reserved for deletes.
#[tokio::test(flavor = "multi_thread")]
async fn versions_can_be_deleted_when_the_disk_is_full() {
    let Some(disk) = Disk::mount(32) else { return };
    let desk = TestStore::with_options(&disk.root(), options()).await;
    desk.set_versioning(Versioning::Enabled).await;
    let mut versions = Vec::new();
    for n in 0..60_u64 {
        versions.push(desk.put("k", pattern(100_000, n)).await.version);
    }
    disk.eat();
    assert_eq!(reason(desk.try_put("x", pattern(12_000, 1)).await), Reason::Full);
    assert_eq!(reason(desk.delete("k").await), Reason::Full);
    desk.assert_holds("k", &pattern(100_000, 59)).await;
    for version in versions.iter().take(40) {
        let address = address("k").with_version(version.clone());
        let deleted = desk.store.delete(&context(), &address, Precondition::None).await.unwrap();
        assert!(deleted.existed);
    }
    assert!(desk.compact().await > 0);
    let desk = desk.reopen().await;
    desk.assert_holds("k", &pattern(100_000, 59)).await;
    let oldest = address("k").with_version(versions[40].clone());
    let found = desk.store.get(&context(), &oldest, GetRequest::default()).await.unwrap();
    assert!(drain(found.body).await.unwrap() == pattern(100_000, 40));
}

/// Without a reserve the device itself refuses: in the middle of log writes, of extents or of the index.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_the_device_refuses_leaves_nothing() {
    for (size, left) in [(1_000, 300_000), (9_000, 50_000), (9_000, 500_000), (100_000, 1_000_000)] {
        let Some(disk) = Disk::mount(32) else { return };
        let options = LocalOptions { reserve_bytes: 0, ..options() };
        let desk = TestStore::with_options(&disk.root(), options.clone()).await;
        desk.put("before", pattern(5000, 1)).await;
        let eaten = disk.eat();
        let length = eaten.metadata().unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&eaten).unwrap().set_len(length - left).unwrap();
        let mut stored = BTreeMap::new();
        let mut refused = Vec::new();
        for n in 0..2000_u64 {
            // Concurrent puts, so that a batch holds several changes.
            let puts = (0..4).map(|m| {
                let key = format!("k{n}-{m}");
                let desk = &desk;
                async move { (desk.try_put(&key, pattern(size, n * 4 + m)).await, key, n * 4 + m) }
            });
            for (put, key, seed) in futures::future::join_all(puts).await {
                match put {
                    Ok(_) => drop(stored.insert(key, (size, seed))),
                    Err(e) => refused.push((key, e.reason())),
                }
            }
            if refused.len() > 12 {
                break;
            }
        }
        assert_eq!(refused[0].1, Reason::Full, "{size} {left}: {refused:?}");
        assert_all(&desk, &stored).await;
        drop(desk);
        std::fs::remove_file(eaten).unwrap();
        let mut desk = TestStore::open(&disk.root(), options).unwrap();
        for _ in 0..2 {
            assert_all(&desk, &stored).await;
            desk.assert_holds("before", &pattern(5000, 1)).await;
            for (key, why) in &refused {
                // If the index cannot be written either, changes that are already in the log may become visible.
                if *why == Reason::Full {
                    desk.assert_absent(key).await;
                }
            }
            desk = desk.reindex().await;
        }
        desk.put("after", pattern(100_000, 2)).await;
        assert_eq!(check(&desk.close().await).unwrap().damage, vec![]);
    }
}

/// The last space is for data. Zeros ahead of the log need 16 MiB besides the reserve.
#[tokio::test(flavor = "multi_thread")]
async fn log_is_written_ahead_only_while_space_is_ample() {
    for (mebibytes, is_ample) in [(64, true), (16, false)] {
        let Some(disk) = Disk::mount(mebibytes) else { return };
        let options = LocalOptions { segment_bytes: 8 << 20, reserve_bytes: 4 << 20, ..options() };
        let desk = TestStore::with_options(&disk.root(), options).await;
        desk.put("k", pattern(5000, 1)).await;
        let log = test_store::segments(&disk.root(), "log").pop().unwrap();
        let zero_bytes = log.metadata().unwrap().len() - test_store::log_bytes(&log);
        assert_eq!(zero_bytes > 0, is_ample, "{zero_bytes} bytes on {mebibytes} MiB");
        desk.assert_holds("k", &pattern(5000, 1)).await;
        let root = desk.close().await;
        assert_eq!(log.metadata().unwrap().len(), test_store::log_bytes(&log));
        assert!(check(&root).unwrap().is_sound());
    }
}
