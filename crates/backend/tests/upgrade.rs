//! A store of an earlier format is opened and upgraded in place. `data/store-format-1.tar.gz` was written by a program of that
//! format: objects in the log and in extents, a replaced and a deleted key, tags, an object of parts and an unfinished
//! upload.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/test_store.rs"]
mod test_store;

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use tradewind_backend::local::{LocalStore, reindex};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::{ListUploads, UploadId};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{context, drain, write_all};
use tradewind_core::version::ListVersions;
use tradewind_core::{
    Address, Algorithm, BucketName, Checksum, ObjectStore, SystemClock, VersionId, Versioning,
};

use test_store::{check, small};

const OBJECTS: [(&str, usize); 6] =
    [("a b", 33), ("empty", 0), ("inline", 65_537), ("large", 2_500_000), ("replaced", 200), ("small", 100)];

fn unpack(into: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/store-format-1.tar.gz");
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status().unwrap();
    assert!(status.success());
    into.join("data")
}

/// The bytes of a key in the archive: the SHA-256 of a name, repeated.
fn body(name: &str, length: usize) -> Bytes {
    let digest = Checksum::compute(Algorithm::Sha256, name.as_bytes());
    digest.bytes().iter().copied().cycle().take(length).collect()
}

fn docs() -> BucketName {
    BucketName::new("docs").unwrap()
}

fn address(key: &str) -> Address {
    Address::parse("docs", key).unwrap()
}

async fn read(store: &LocalStore, address: &Address) -> Bytes {
    let found = store.get(&context(), address, GetRequest::default()).await.unwrap();
    drain(found.body).await.unwrap()
}

async fn assert_complete(store: &LocalStore) {
    for (key, length) in OBJECTS {
        assert!(read(store, &address(key)).await == body(key, length), "{key}");
    }
    let parts = [body("parts1", 5 << 20), body("parts2", 1000)].concat();
    assert!(read(store, &address("parts")).await == parts);
    let large = store.head(&context(), &address("large"), GetRequest::default()).await.unwrap().info;
    assert_eq!(large.metadata.tags.pairs(), [("color".to_owned(), "blue".to_owned())]);
    let request = ListRequest { limit: 100, ..ListRequest::default() };
    let page = store.list(&context(), &docs(), &request).await.unwrap();
    let names: Vec<&str> = page.entries.iter().map(ListEntry::name).collect();
    assert_eq!(names, ["a b", "empty", "inline", "large", "parts", "replaced", "small"]);
    // The id that the earlier program gave out is still known.
    let upload = UploadId("000000000000001b".to_owned());
    let parts = store.list_parts(&context(), &address("unfinished"), &upload, None, 10).await.unwrap();
    assert_eq!(parts.parts.len(), 1);
    let request = ListUploads { limit: 10, ..ListUploads::default() };
    assert_eq!(store.list_uploads(&context(), &docs(), &request).await.unwrap().entries.len(), 1);
    let buckets = store.list_buckets(&context()).await.unwrap();
    assert_eq!(buckets.iter().map(|bucket| bucket.name.as_str()).collect::<Vec<_>>(), ["docs", "empty"]);
}

fn format_line(root: &Path) -> String {
    let text = std::fs::read_to_string(root.join("FORMAT")).unwrap();
    text.lines().nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn store_of_format_1_opens_complete_and_keeps_versions_from_then_on() {
    let place = tempfile::tempdir().unwrap();
    let root = unpack(place.path());
    assert_eq!(format_line(&root), "format 1");
    assert!(check(&root).unwrap().is_sound(), "an inspection reads both formats");
    assert_eq!(format_line(&root), "format 1", "an inspection upgrades nothing");
    let store = LocalStore::open(&root, small(), SystemClock::shared()).unwrap();
    assert_eq!(format_line(&root), "format 4");
    assert_complete(&store).await;

    store.set_versioning(&context(), &docs(), Versioning::Enabled).await.unwrap();
    let context = context();
    let mut staged = store.stage(&context, &address("large"), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, Bytes::from_static(b"new")).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    let old = address("large").with_version(Some(VersionId::Null));
    assert!(read(&store, &old).await == body("large", 2_500_000));
    assert_eq!(&read(&store, &address("large")).await[..], b"new");
    store.close().await.unwrap();
    drop(store);

    // Without the index, all of it follows from the log of both formats.
    reindex(&root, false).unwrap();
    assert!(check(&root).unwrap().is_sound());
    let store = LocalStore::open(&root, small(), SystemClock::shared()).unwrap();
    assert_eq!(store.versioning(&context, &docs()).await.unwrap(), Versioning::Enabled);
    assert!(read(&store, &old).await == body("large", 2_500_000));
    let request = ListVersions { prefix: "large".to_owned(), limit: 10, ..ListVersions::default() };
    assert_eq!(store.list_versions(&context, &docs(), &request).await.unwrap().entries.len(), 2);
    store.close().await.unwrap();
}

/// The upgrade writes one digit of one file, so a crash leaves the old format file or the new one.
#[tokio::test(flavor = "multi_thread")]
async fn store_opens_on_both_sides_of_an_interrupted_upgrade() {
    // Formats 2 and 3 only add fields, which this store does not use.
    for format in [1, 2, 3] {
        let place = tempfile::tempdir().unwrap();
        let root = unpack(place.path());
        let text = std::fs::read_to_string(root.join("FORMAT")).unwrap();
        std::fs::write(root.join("FORMAT"), text.replace("format 1", &format!("format {format}"))).unwrap();
        for _ in 0..2 {
            let store = LocalStore::open(&root, small(), SystemClock::shared()).unwrap();
            assert_complete(&store).await;
            store.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_of_format_1_is_rebuilt_from_its_log() {
    let place = tempfile::tempdir().unwrap();
    let root = unpack(place.path());
    std::fs::remove_dir_all(root.join("index")).unwrap();
    let store = LocalStore::open(&root, small(), SystemClock::shared()).unwrap();
    assert_complete(&store).await;
    store.close().await.unwrap();
}
