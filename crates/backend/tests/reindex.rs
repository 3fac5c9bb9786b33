//! A rebuilt index equals the one maintained while the log was written, regardless of compaction: random sequences,
//! compared with the memory store at every step.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "support/restarting_store.rs"]
mod restarting_store;
#[path = "support/test_store.rs"]
mod test_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tradewind_backend::local::{LocalOptions, reindex};
use tradewind_core::testing::conformance;
use tradewind_core::{ObjectStore, Versioning};

use restarting_store::{RestartAction, RestartingStore};
use test_store::{Random, TestStore, check, pattern, small, stats};

fn tiny() -> LocalOptions {
    LocalOptions { segment_bytes: 16 << 10, inline_bytes: 4 << 10, checkpoint_bytes: 16 << 10, ..small() }
}

async fn play(seeds: std::ops::Range<u64>, every: usize, turns: &[RestartAction]) {
    let place = Box::leak(Box::new(tempfile::tempdir().unwrap()));
    let number = AtomicUsize::new(0);
    let make = || {
        let root = place.path().join(number.fetch_add(1, Ordering::Relaxed).to_string());
        let store = RestartingStore::open(root, tiny(), every, turns.to_vec());
        async move { store as Arc<dyn ObjectStore> }.boxed()
    };
    for seed in seeds {
        println!("seed {seed}");
        conformance::model(make, seed, 150).await;
    }
    std::fs::remove_dir_all(place.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_reappears_between_starts() {
    play(100..102, 9, &[RestartAction::Reopen, RestartAction::Reindex]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_reappears_after_compaction() {
    play(
        200..204,
        6,
        &[
            RestartAction::Compact,
            RestartAction::Compact,
            RestartAction::Reindex,
            RestartAction::Compact,
            RestartAction::Reopen,
        ],
    )
    .await;
}

/// Counts agree as well, not only visible contents: otherwise tombstones would stay forever or be removed too early,
/// and segments would be compacted needlessly or never.
#[tokio::test(flavor = "multi_thread")]
async fn counts_are_equal_after_a_reindex() {
    for (seed, has_versions) in (1..5).flat_map(|seed| [(seed, false), (seed, true)]) {
        println!("seed {seed}, versions {has_versions}");
        let place = tempfile::tempdir().unwrap();
        let mut desk = TestStore::with_options(place.path(), tiny()).await;
        let mut random = Random(seed * 7919);
        let mut uploads = Vec::new();
        for step in 0..400_u64 {
            let key = format!("k{}", random.below(12));
            match random.below(20) {
                0..8 => drop(desk.put(&key, pattern(random.below(9000), step)).await),
                8..12 => drop(desk.delete(&key).await.unwrap()),
                12 => {
                    uploads.push((key.clone(), desk.create_upload(&key).await));
                }
                13..16 if !uploads.is_empty() => {
                    let (key, upload) = &uploads[random.below(uploads.len())];
                    let number = 1 + i64::try_from(random.below(3)).unwrap();
                    desk.part(key, upload, number, pattern(random.below(5000), step)).await.unwrap();
                }
                16 if !uploads.is_empty() => {
                    let (key, upload) = uploads.swap_remove(random.below(uploads.len()));
                    let part = desk.part(&key, &upload, 4, pattern(random.below(9000), step)).await.unwrap();
                    desk.complete(&key, &upload, vec![part]).await.unwrap();
                }
                17 if !uploads.is_empty() => {
                    let (key, upload) = uploads.swap_remove(random.below(uploads.len()));
                    desk.abort(&key, &upload).await.unwrap();
                }
                18 => drop(desk.compact().await),
                19 if has_versions => match random.below(3) {
                    0 => desk.set_versioning(Versioning::Suspended).await,
                    1 => desk.set_versioning(Versioning::Enabled).await,
                    _ => desk.delete_some_versions(&key, &mut random).await,
                },
                19 if step % 3 == 0 => desk = desk.reopen().await,
                _ => {}
            }
        }
        // Nothing is pending to be freed when the two are compared.
        desk.compact().await;
        let root = desk.close().await;
        let (mut live, report) = (stats(&root).unwrap(), check(&root).unwrap());
        assert_eq!(report.damage, vec![]);
        reindex(&root, false).unwrap();
        let mut rebuilt = stats(&root).unwrap();
        (live.free_bytes, live.index_bytes) = (0, 0);
        (rebuilt.free_bytes, rebuilt.index_bytes) = (0, 0);
        assert_eq!(format!("{live:?}"), format!("{rebuilt:?}"));
        assert_eq!(check(&root).unwrap().damage, vec![]);
    }
}
