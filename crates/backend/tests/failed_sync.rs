//! A failed sync ends all writing: nothing that waited for it is acknowledged, and it is not retried.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/disk.rs"]
mod disk;
#[path = "support/test_store.rs"]
mod test_store;

use std::collections::BTreeMap;

use tradewind_backend::local::LocalOptions;
use tradewind_core::error::Reason;
use tradewind_powerloss::FsyncFailure;

use disk::{crash, mount};
use test_store::{TestStore, pattern, reason, small};

fn options() -> LocalOptions {
    LocalOptions { segment_bytes: 48 << 10, inline_bytes: 4 << 10, checkpoint_bytes: 64 << 10, ..small() }
}

/// Every sync in turn fails once: of the log, of extents, of directories, of the index.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_sync_is_not_acknowledged_or_retried() {
    let Some((disk, _place)) = mount() else { return };
    let mut failures = 0;
    for number in 0..36_u64 {
        let root = disk.path().join(format!("store{number}"));
        let desk = TestStore::with_options(&root, options()).await;
        desk.put("first", pattern(3000, number)).await;
        let failure = if number % 2 == 0 { FsyncFailure::DropPending } else { FsyncFailure::KeepPending };
        disk.fail_fsync_after(number / 2, failure);
        let before = disk.counters().failed_syncs;
        let mut stored: BTreeMap<String, (usize, u64)> =
            BTreeMap::from([("first".to_owned(), (3000, number))]);
        let mut rejected = Vec::new();
        for n in 0..40 {
            let size = if n % 3 == 0 { 60_000 } else { 2000 };
            // Two concurrent writes: both wait for the same sync.
            let keys = [format!("a{n}"), format!("b{n}")];
            let puts = keys.iter().zip(0..).map(|(key, m)| desk.try_put(key, pattern(size, n * 2 + m)));
            for ((put, key), m) in futures::future::join_all(puts).await.into_iter().zip(&keys).zip(0..) {
                match put {
                    Ok(_) => drop(stored.insert(key.clone(), (size, n * 2 + m))),
                    Err(e) => rejected.push((key.clone(), (size, n * 2 + m), e.reason())),
                }
            }
            if desk.store.is_read_only() {
                break;
            }
        }
        if disk.counters().failed_syncs == before {
            continue;
        }
        failures += 1;
        assert!(desk.store.is_read_only(), "failure {number}: {rejected:?}");
        // Reads continue, writes fail, and a file with a failed sync is never synced again.
        let syncs = disk.counters();
        for (key, (size, seed)) in &stored {
            desk.assert_holds(key, &pattern(*size, *seed)).await;
        }
        for (key, size) in [("more", 100), ("more", 60_000)] {
            assert_eq!(reason(desk.try_put(key, pattern(size, 1)).await), Reason::ReadOnly);
        }
        assert_eq!(reason(desk.delete("first").await), Reason::ReadOnly);
        assert_eq!(disk.counters().fdatasyncs, syncs.fdatasyncs, "failure {number}");
        // The process restarts with the page cache intact, and then the power fails; or the power fails immediately.
        let fails_immediately = number % 3 == 2;
        if fails_immediately {
            crash(&disk, number);
        }
        drop(desk);
        if fails_immediately {
            disk.revive();
        }
        rejected.retain(|(_, _, reason)| *reason == Reason::ReadOnly);
        for turn in 0..2 {
            let desk = TestStore::open(&root, options());
            let desk = desk.unwrap_or_else(|e| panic!("failure {number}: {e:?}"));
            if fails_immediately && turn == 0 {
                // The on-disk state was unknown: the write exists completely or not at all, and stays so.
                let mut absent = Vec::new();
                for (key, content, reason) in rejected.drain(..) {
                    match desk.get(&key).await {
                        Ok(_) => drop(stored.insert(key, content)),
                        Err(_) => absent.push((key, content, reason)),
                    }
                }
                rejected = absent;
            }
            for (key, (size, seed)) in &stored {
                desk.assert_holds(key, &pattern(*size, *seed)).await;
            }
            for (key, ..) in &rejected {
                desk.assert_absent(key).await;
            }
            let key = format!("again{turn}");
            desk.put(&key, pattern(500, turn)).await;
            stored.insert(key, (500, turn));
            crash(&disk, number);
            drop(desk);
            disk.revive();
        }
    }
    assert!(failures >= 20, "{failures} syncs failed");
}
