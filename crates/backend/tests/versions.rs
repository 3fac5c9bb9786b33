//! Versions in the local store beyond the conformance suite: listings that continue behind deleted versions, compaction
//! while versions move between their places in the index, and many versions of one key.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_core::listing::ListEntry;
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{context, drain};
use tradewind_core::version::{ListVersions, ListedVersion};
use tradewind_core::{ObjectStore, Precondition, Versioning};

use test_store::{TestStore, address, check, pattern, small};

async fn page(desk: &TestStore, request: &ListVersions) -> (Vec<ListedVersion>, ListVersions) {
    let page = desk.store.list_versions(&context(), &address("x").bucket, request).await.unwrap();
    let versions = page.entries.into_iter().filter_map(|entry| match entry {
        ListEntry::Key(_, version) => Some(version),
        ListEntry::CommonPrefix(_) => None,
    });
    (versions.collect(), ListVersions { after: page.next, ..request.clone() })
}

async fn delete_version(desk: &TestStore, key: &str, version: &ListedVersion) {
    let address = address(key).with_version(Some(version.version.clone()));
    desk.store.delete(&context(), &address, Precondition::None).await.unwrap();
}

/// The time is part of the response to a client that names the marker.
#[tokio::test(flavor = "multi_thread")]
async fn named_delete_marker_has_its_time() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.set_versioning(Versioning::Enabled).await;
    desk.store.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    let (listed, _) = page(&desk, &ListVersions { limit: 4, ..ListVersions::default() }).await;
    let marker = address("k").with_version(Some(listed[0].version.clone()));
    let error = desk.store.head(&context(), &marker, GetRequest::default()).await.unwrap_err();
    assert_eq!(error.delete_marker_time(), Some(listed[0].modified));
}

/// A client that keeps the newest versions of each key counts while it lists, and deletes from each page.
#[tokio::test(flavor = "multi_thread")]
async fn listing_continues_behind_a_deleted_version() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.put("k", pattern(10, 0)).await;
    desk.set_versioning(Versioning::Enabled).await;
    for seed in 1..10 {
        desk.put("k", pattern(10, seed)).await;
    }
    desk.put("l", pattern(10, 1)).await;
    let (first, next) = page(&desk, &ListVersions { limit: 4, ..ListVersions::default() }).await;
    assert_eq!(first.len(), 4);
    for version in &first[2..] {
        delete_version(&desk, "k", version).await;
    }
    let (second, next) = page(&desk, &next).await;
    assert!(second.iter().all(|version| !version.is_latest && !first.contains(version)));
    // Also where the current version and all before the position are gone.
    for version in first[..2].iter().chain(&second) {
        delete_version(&desk, "k", version).await;
    }
    let (third, next) = page(&desk, &next).await;
    assert_eq!(third.iter().map(|version| version.is_latest).collect::<Vec<_>>(), [true, false, true]);
    assert!(next.after.is_none());
}

/// Segments are compacted while the only live record in them moves between the two places of the index.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_keeps_versions_that_move_within_the_index() {
    let place = tempfile::tempdir().unwrap();
    let desk = Arc::new(TestStore::with_options(&place.path().join("store"), small()).await);
    desk.set_versioning(Versioning::Enabled).await;
    let kept = desk.put("k", pattern(900, 7)).await.version;
    let stop = Arc::new(AtomicBool::new(false));
    let compaction = tokio::spawn({
        let (desk, stop) = (desk.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                desk.compact().await;
            }
        }
    });
    for round in 0..150_u64 {
        // The version is hidden, restored, superseded and current again.
        let marker = desk.store.delete(&context(), &address("k"), Precondition::None).await.unwrap().version;
        let marker = address("k").with_version(marker);
        desk.store.delete(&context(), &marker, Precondition::None).await.unwrap();
        let newer = desk.put("k", pattern(50, round)).await.version;
        desk.put(&format!("filler-{}", round % 3), pattern(3000, round)).await;
        let newer = address("k").with_version(newer);
        desk.store.delete(&context(), &newer, Precondition::None).await.unwrap();
        let found = desk.store.get(&context(), &address("k"), GetRequest::default()).await.unwrap();
        assert_eq!(found.info.version, kept);
        assert!(drain(found.body).await.unwrap() == pattern(900, 7), "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    compaction.await.unwrap();
    let desk = Arc::into_inner(desk).unwrap();
    let root = desk.close().await;
    assert_eq!(check(&root).unwrap().damage, vec![]);
}

/// Purging a key from its newest version on takes a time proportional to the number of versions.
#[tokio::test(flavor = "multi_thread")]
async fn key_with_many_versions_is_purged_page_by_page() {
    let place = tempfile::tempdir().unwrap();
    let desk = TestStore::new(&place.path().join("store")).await;
    desk.set_versioning(Versioning::Enabled).await;
    for seed in 0..2000 {
        desk.put("k", pattern(10, seed)).await;
    }
    let mut request = ListVersions { limit: 500, ..ListVersions::default() };
    let mut removed = 0;
    loop {
        let (versions, next) = page(&desk, &request).await;
        removed += versions.len();
        for version in &versions {
            delete_version(&desk, "k", version).await;
        }
        if next.after.is_none() {
            break;
        }
        request = next;
    }
    assert_eq!(removed, 2000);
    assert!(page(&desk, &ListVersions { limit: 5, ..ListVersions::default() }).await.0.is_empty());
}
