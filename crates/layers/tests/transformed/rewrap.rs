//! Keys are rotated without the bytes: the data keys of objects are wrapped again.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Reason;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, MIN_PART_BYTES, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{context, pattern, reason, write_all};
use tradewind_core::{Generation, ObjectInfo, ObjectStore};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{Keyring, Rewrapped};
use tradewind_model::class_policy::{ClassChanges, ClassPolicyTable, all_classes};

use super::support::{
    Desk, ENCRYPT, POLICIES, address, compressible, get, key, keyring, memory, put, read, segments, select,
    stored_bytes,
};

fn layer(below: &Arc<dyn ObjectStore>, names: &[&str]) -> Arc<Transformed> {
    Transformed::new(below.clone(), POLICIES[2], keyring(names)).unwrap()
}

async fn rewrap(layer: &Transformed, name: &str) -> Rewrapped {
    layer.rewrap(&context(), &address(name)).await.unwrap()
}

fn needed(rewrapped: &Rewrapped) -> Vec<&str> {
    rewrapped.needed_keys.iter().map(String::as_str).collect()
}

async fn info(store: &dyn ObjectStore, name: &str) -> ObjectInfo {
    let found = store.head(&context(), &address(name), GetRequest::default()).await.unwrap().info;
    ObjectInfo { generation: Generation(0), ..found }
}

/// Writes a part and returns its name.
async fn put_part(
    store: &dyn ObjectStore,
    upload: &tradewind_core::multipart::UploadId,
    number: i64,
    bytes: Bytes,
) -> CompletePart {
    let number = PartNumber::new(number).unwrap();
    let (context, address) = (context(), address("parts"));
    let staged = store.stage_part(&context, &address, upload, number, StageRequest::default()).await;
    let mut staged = staged.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    let (committed, _) = staged.commit(Expected::default()).await.unwrap();
    CompletePart { number, etag: committed.etag, checksum: None }
}

#[tokio::test]
async fn rewrapped_objects_need_only_the_current_key() {
    let desk = Desk::with_store(memory(), POLICIES[2], keyring(&["old"])).await;
    let contents = [
        ("text", compressible(300_000)),
        ("noise", pattern(200_000, 1)),
        ("small", "x".into()),
        ("empty", "".into()),
    ];
    for (name, bytes) in &contents {
        put(&*desk.layered, name, bytes.clone()).await;
    }
    let (both, new) = (layer(&desk.below, &["new", "old"]), layer(&desk.below, &["new"]));
    for (name, bytes) in &contents {
        let (before, stored) = (info(&*both, name).await, stored_bytes(&*desk.below, name).await);
        assert!(
            bytes.is_empty() || reason(get(&*new, name, GetRequest::default()).await) == Reason::AccessDenied
        );
        let first = rewrap(&both, name).await;
        assert_eq!((first.rewrapped, needed(&first)), (1, vec!["new"]), "{:?}", first.failure);
        assert!(first.failure.is_none());
        assert_eq!(info(&*both, name).await, before);
        assert!(stored_bytes(&*desk.below, name).await == stored, "{name}: the bytes stay");
        assert!(read(&*new, name).await == *bytes, "{name}");
        let again = rewrap(&both, name).await;
        assert_eq!((again.rewrapped, needed(&again)), (0, vec!["new"]));
    }
    // And back.
    let back = rewrap(&layer(&desk.below, &["old", "new"]), "text").await;
    assert_eq!((back.rewrapped, needed(&back)), (1, vec!["old"]));
    assert!(read(&*desk.layered, "text").await == contents[0].1);
}

#[tokio::test]
async fn objects_without_encryption_stay_as_they_are() {
    let desk = Desk::with_store(memory(), POLICIES[0], keyring(&["old"])).await;
    for (name, bytes) in [("compressed", compressible(100_000)), ("plain", pattern(10_000, 1))] {
        put(&*desk.layered, name, bytes).await;
        let before = desk.below.head(&context(), &address(name), GetRequest::default()).await.unwrap().info;
        let rewrapped = rewrap(&layer(&desk.below, &["new"]), name).await;
        assert_eq!((rewrapped.rewrapped, needed(&rewrapped).len()), (0, 0));
        assert!(rewrapped.failure.is_none());
        let after = desk.below.head(&context(), &address(name), GetRequest::default()).await.unwrap().info;
        assert_eq!(after, before);
    }
}

#[tokio::test]
async fn missing_and_wrong_keys_are_reported_and_change_nothing() {
    let desk = Desk::with_store(memory(), ENCRYPT, keyring(&["old"])).await;
    put(&*desk.layered, "k", compressible(100_000)).await;
    let before = segments(&*desk.below, "k").await;
    let with = |name: &str, secret: u8| {
        let mut keys = keyring(&["new"]);
        keys.keys.insert(name.to_owned(), key(secret));
        Transformed::new(desk.below.clone(), ENCRYPT, keys).unwrap()
    };
    let wrong_current = Keyring { current: Some("old".into()), keys: [("old".into(), key(7))].into() };
    for (layer, expected, message) in [
        (layer(&desk.below, &["new"]), Reason::AccessDenied, "is encrypted with the key \"old\""),
        (with("old", 7), Reason::CorruptData, "the key \"old\" is not the one that encrypted it"),
        // The name alone does not say that it is the key.
        (
            Transformed::new(desk.below.clone(), ENCRYPT, wrong_current).unwrap(),
            Reason::CorruptData,
            "the key \"old\" is not the one",
        ),
    ] {
        let rewrapped = rewrap(&layer, "k").await;
        assert_eq!((rewrapped.rewrapped, needed(&rewrapped)), (0, vec!["old"]));
        let failure = rewrapped.failure.unwrap();
        assert_eq!(failure.reason(), expected);
        assert!(failure.message().contains(message), "{failure}");
        assert_eq!(segments(&*desk.below, "k").await, before);
    }
    assert!(read(&*desk.layered, "k").await == compressible(100_000));
    let without = Transformed::new(desk.below.clone(), POLICIES[0], Keyring::default()).unwrap();
    assert_eq!(reason(without.rewrap(&context(), &address("k")).await.map(drop)), Reason::InvalidArgument);
}

#[tokio::test]
async fn parts_of_open_uploads_are_rewrapped() {
    let desk = Desk::with_store(memory(), ENCRYPT, keyring(&["old"])).await;
    let upload =
        desk.layered.create_upload(&context(), &address("parts"), CreateUpload::default()).await.unwrap();
    let minimum = usize::try_from(MIN_PART_BYTES).unwrap();
    let first = put_part(&*desk.layered, &upload, 1, pattern(minimum, 1)).await;
    let both = layer(&desk.below, &["new", "old"]);
    let rewrapped = both.rewrap_upload(&context(), &address("parts"), &upload).await.unwrap();
    assert_eq!((rewrapped.rewrapped, needed(&rewrapped)), (1, vec!["new"]));
    // A part under the old key replaces nothing of the first, and the completed object has both keys.
    let second = put_part(&*desk.layered, &upload, 2, pattern(1000, 2)).await;
    let request = CompleteUpload { parts: vec![first, second], ..CompleteUpload::default() };
    both.complete_upload(&context(), &address("parts"), &upload, request).await.unwrap();
    let rewrapped = rewrap(&both, "parts").await;
    assert_eq!((rewrapped.rewrapped, needed(&rewrapped)), (1, vec!["new"]));
    let new = layer(&desk.below, &["new"]);
    assert!(read(&*new, "parts").await == [pattern(minimum, 1), pattern(1000, 2)].concat());
    let part = select(&*new, "parts", Select::Part(PartNumber::new(2).unwrap())).await.unwrap().1;
    assert!(part == pattern(1000, 2));
    let ended = both.rewrap_upload(&context(), &address("parts"), &upload).await;
    assert_eq!(reason(ended.map(drop)), Reason::NoSuchUpload);
}

#[tokio::test]
async fn policies_of_classes_apply_to_later_writes_and_need_a_key() {
    let desk = Desk::with_store(memory(), POLICIES[0], keyring(&["main"])).await;
    let layer = Transformed::new(desk.below.clone(), POLICIES[0], keyring(&["main"])).unwrap();
    let mut classes = ClassPolicyTable::default();
    for class in all_classes() {
        let changes = ClassChanges { compress: Some(false), encrypt: Some(true), ..ClassChanges::default() };
        classes.set(class, changes);
    }
    put(&*layer, "before", compressible(100_000)).await;
    layer.set_class_policies(&classes).unwrap();
    put(&*layer, "after", compressible(100_000)).await;
    assert!(stored_bytes(&*desk.below, "before").await.len() < 50_000);
    assert!(stored_bytes(&*desk.below, "after").await.len() > 100_000);
    assert_eq!(needed(&rewrap(&layer, "before").await).len(), 0);
    assert_eq!(needed(&rewrap(&layer, "after").await), ["main"]);
    for name in ["before", "after"] {
        assert!(read(&*layer, name).await == compressible(100_000));
    }
    let without = Transformed::new(desk.below.clone(), POLICIES[0], Keyring::default()).unwrap();
    assert_eq!(reason(without.set_class_policies(&classes)), Reason::InvalidArgument);
    put(&*without, "compressed", compressible(100_000)).await;
    assert!(stored_bytes(&*desk.below, "compressed").await.len() < 50_000, "the old policy stays");
}
