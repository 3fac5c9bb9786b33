//! A store with compression and encryption behaves as one without, and never returns bytes that are not the written ones.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "transformed/damage.rs"]
mod damage;
#[path = "transformed/requests.rs"]
mod requests;
#[path = "transformed/rewrap.rs"]
mod rewrap;
#[path = "support/side_by_side.rs"]
mod side_by_side;
#[path = "transformed/support.rs"]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use proptest::prelude::*;
use tradewind_core::checksum::Algorithm;
use tradewind_core::error::Reason;
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, MIN_PART_BYTES, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyPartRequest, CopyRequest, ETagForm, GetRequest, Select, StageRequest};
use tradewind_core::testing::{MemoryStore, conformance, context, pattern, reason, write_all};
use tradewind_core::{
    BucketName, ByteRange, Checksum, Class, ObjectInfo, ObjectStore, Precondition, ReadConditions,
    SystemClock,
};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{ClassSet, Keyring, TransformPolicy};

use support::{
    Desk, ENCRYPT, POLICIES, address, classified, compressible, get, key, keyring, memory, put, read,
    segments, select, stored_bytes, transformed,
};

fn conforming(policy: TransformPolicy) -> Arc<dyn ObjectStore> {
    transformed(memory(), policy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transformed_stores_conform() {
    for policy in POLICIES {
        conformance::run(move || async move { conforming(policy) }.boxed()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_operations_match_the_memory_store() {
    for seed in 0..8 {
        for policy in POLICIES {
            conformance::model(move || async move { conforming(policy) }.boxed(), seed, 60).await;
        }
    }
}

#[test]
fn stores_that_cannot_report_plain_attributes_are_rejected() {
    let policy = POLICIES[0];
    let lacking = transformed(memory(), policy);
    let error = Transformed::new(lacking, policy, Keyring::default()).unwrap_err();
    assert_eq!(error.reason(), Reason::Unsupported);
    assert!(error.message().contains("must be directly over a local store"), "{error}");
}

#[test]
fn encryption_without_a_key_is_rejected() {
    for keys in [Keyring::default(), Keyring { current: Some("none".to_owned()), ..keyring(&["a"]) }] {
        assert_eq!(reason(Transformed::new(memory(), ENCRYPT, keys)), Reason::InvalidArgument);
    }
}

/// Bytes of the kinds that are treated differently.
fn contents() -> impl Strategy<Value = Bytes> {
    let sizes = prop_oneof![
        Just(0_usize),
        1..10_000_usize,
        Just(65_535),
        Just(65_536),
        Just(65_537),
        65_538..400_000_usize,
        Just(131_072),
    ];
    (sizes, 0..3_u8).prop_map(|(size, kind)| match kind {
        0 => compressible(size),
        1 => pattern(size, 7),
        _ => [compressible(size / 2), pattern(size - size / 2, 3)].concat().into(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn reads_are_those_of_a_plain_store(
        bytes in contents(),
        policy in prop::sample::select(POLICIES.to_vec()),
        algorithms in prop::sample::subsequence(vec![Algorithm::Sha256, Algorithm::XxHash64], 0..=2),
        ranges in prop::collection::vec((0_u64..410_000, 0_u64..410_000), 6),
        write_bytes in prop::sample::select(vec![1_000_usize, 65_536, 100_000, 1 << 20]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let desk = Desk::new(policy).await;
            let request = StageRequest { algorithms, verify_md5: true, ..StageRequest::default() };
            for store in desk.both() {
                let mut staged = store.stage(&context(), &address("k"), request.clone()).await.unwrap();
                for piece in bytes.chunks(write_bytes) {
                    staged.write(Bytes::copy_from_slice(piece)).await.unwrap();
                }
                staged.commit(Expected { size: Some(bytes.len() as u64), ..Expected::default() }).await.unwrap();
            }
            desk.assert_same("k").await;
            for (a, b) in ranges {
                for range in [
                    ByteRange::Inclusive { first: a.min(b), last: a.max(b) },
                    ByteRange::From(a),
                    ByteRange::Suffix(a),
                ] {
                    desk.assert_same_select("k", Select::Range(range)).await;
                }
            }
        });
    }
}

#[tokio::test]
async fn sizes_and_checksums_in_listings_are_those_of_a_plain_store() {
    for policy in POLICIES {
        let desk = Desk::new(policy).await;
        for (name, bytes) in [("a", compressible(300_000)), ("b", pattern(300_000, 1)), ("c", "x".into())] {
            for store in desk.both() {
                put(&*store, name, bytes.clone()).await;
            }
        }
        let list = |store: Arc<dyn ObjectStore>| async move {
            let request = ListRequest { limit: 10, ..ListRequest::default() };
            let page = store.list(&context(), &BucketName::new("bucket").unwrap(), &request).await.unwrap();
            let entries = page.entries.into_iter();
            entries
                .map(|entry| match entry {
                    ListEntry::Key(key, info) => (key, info.size, info.etag, info.checksum),
                    ListEntry::CommonPrefix(prefix) => panic!("{prefix}"),
                })
                .collect::<Vec<_>>()
        };
        let [plain, layered] = desk.both();
        assert_eq!(list(layered).await, list(plain).await);
    }
}

#[tokio::test]
async fn bytes_that_shrink_are_stored_compressed_and_others_as_they_are() {
    let desk = Desk::new(POLICIES[0]).await;
    put(&*desk.layered, "text", compressible(1 << 20)).await;
    assert!(stored_bytes(&*desk.below, "text").await.len() < 1 << 18);
    for (name, bytes) in
        [("noise", pattern(65_000, 1)), ("small", compressible(4_000)), ("empty", Bytes::new())]
    {
        put(&*desk.layered, name, bytes.clone()).await;
        assert!(segments(&*desk.below, name).await.is_none(), "{name} is transformed");
        assert!(read(&*desk.below, name).await == bytes);
    }
}

#[tokio::test]
async fn encrypted_bytes_are_not_stored_in_plain() {
    let secret = b"0123456789 the secret text 0123456789";
    let bytes = Bytes::from(secret.repeat(10_000));
    let policy = TransformPolicy {
        compress: ClassSet::NONE,
        encrypt: [Class::new(25).unwrap()].into_iter().collect(),
    };
    let desk = Desk::new(policy).await;
    for (name, class, is_hidden) in
        [("mail", Some(25), true), ("other", Some(24), false), ("none", None, false)]
    {
        let mut staged = desk.layered.stage(&context(), &address(name), classified(class)).await.unwrap();
        write_all(&mut *staged, bytes.clone()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        let stored = stored_bytes(&*desk.below, name).await;
        assert_eq!(stored.windows(16).any(|window| window == &secret[..16]), !is_hidden, "{name}");
        assert!(read(&*desk.layered, name).await == bytes);
    }
    // Equal bytes are encrypted differently.
    put_as(&*desk.layered, "again", bytes, classified(Some(25))).await;
    let [first, second] =
        [stored_bytes(&*desk.below, "mail").await, stored_bytes(&*desk.below, "again").await];
    assert!(first[8..40] != second[8..40]);
}

async fn put_as(store: &dyn ObjectStore, name: &str, bytes: Bytes, request: StageRequest) {
    let mut staged = store.stage(&context(), &address(name), request).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

#[tokio::test]
async fn missing_key_fails_only_its_objects() {
    let below = memory();
    let desk = Desk::with_store(below.clone(), ENCRYPT, keyring(&["old"])).await;
    put(&*desk.layered, "old", compressible(100_000)).await;
    let later = Transformed::new(below.clone(), ENCRYPT, keyring(&["new"])).unwrap();
    put(&*later, "new", compressible(100_000)).await;
    let error = get(&*later, "old", GetRequest::default()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AccessDenied);
    assert!(error.message().contains("\"old\", which is not in the settings"), "{error}");
    let head = later.head(&context(), &address("old"), GetRequest::default()).await.unwrap();
    assert_eq!(head.info.size, 100_000);
    assert!(read(&*later, "new").await == compressible(100_000));
    let both = Transformed::new(below, ENCRYPT, keyring(&["new", "old"])).unwrap();
    assert!(read(&*both, "old").await == compressible(100_000));
}

#[tokio::test]
async fn wrong_key_of_the_same_name_yields_no_bytes() {
    let desk = Desk::new(ENCRYPT).await;
    for (name, size) in [("small", 10), ("large", 300_000)] {
        put(&*desk.layered, name, compressible(size)).await;
        let keys = Keyring { keys: [("main".to_owned(), key(99))].into(), ..keyring(&["main"]) };
        let wrong = Transformed::new(desk.below.clone(), ENCRYPT, keys).unwrap();
        assert_eq!(reason(get(&*wrong, name, GetRequest::default()).await), Reason::CorruptData);
        assert_eq!(
            reason(select(&*wrong, name, Select::Range(ByteRange::From(5))).await),
            Reason::CorruptData
        );
    }
}

#[tokio::test]
async fn copy_onto_itself_uses_the_current_key() {
    let below = memory();
    let desk = Desk::with_store(below.clone(), ENCRYPT, keyring(&["old"])).await;
    put(&*desk.layered, "k", compressible(100_000)).await;
    let both = Transformed::new(below.clone(), ENCRYPT, keyring(&["new", "old"])).unwrap();
    both.copy(&context(), copy_of("k", "k")).await.unwrap();
    let new = Transformed::new(below, ENCRYPT, keyring(&["new"])).unwrap();
    assert!(read(&*new, "k").await == compressible(100_000));
}

fn copy_of(from: &str, to: &str) -> CopyRequest {
    CopyRequest {
        source: address(from),
        source_conditions: ReadConditions::default(),
        destination: address(to),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

#[tokio::test]
async fn copies_are_transformed_for_their_destination() {
    for policy in POLICIES {
        let desk = Desk::new(policy).await;
        // One object is from before the layer.
        put(&*desk.below, "before", compressible(200_000)).await;
        put(&*desk.layered, "written", compressible(200_000)).await;
        for name in ["before", "written"] {
            let copied = desk.layered.copy(&context(), copy_of(name, "copy")).await.unwrap();
            assert_eq!(copied.size, 200_000);
            assert!(segments(&*desk.below, "copy").await.is_some(), "the copy is transformed");
            assert!(read(&*desk.layered, "copy").await == compressible(200_000));
        }
        let none =
            Transformed::new(desk.below.clone(), TransformPolicy::default(), keyring(&["main"])).unwrap();
        for name in ["before", "written"] {
            none.copy(&context(), copy_of(name, "copy")).await.unwrap();
            assert!(segments(&*desk.below, "copy").await.is_none(), "the copy is plain");
            assert!(read(&*desk.below, "copy").await == compressible(200_000));
        }
    }
}

/// Uploads parts 2, 3, ... in order; of these numbers, those in `copied` are copies of a range of "source".
async fn upload(store: &dyn ObjectStore, parts: &[Bytes], class: Option<u8>) -> ObjectInfo {
    let metadata = classified(class).metadata;
    let create = CreateUpload { metadata, ..CreateUpload::default() };
    let upload = store.create_upload(&context(), &address("k"), create).await.unwrap();
    let mut named = Vec::new();
    for (number, bytes) in (2..).zip(parts) {
        let number = PartNumber::new(number).unwrap();
        let context = context();
        let mut staged = store
            .stage_part(&context, &address("k"), &upload, number, StageRequest::default())
            .await
            .unwrap();
        write_all(&mut *staged, bytes.clone()).await.unwrap();
        let (committed, _) = staged.commit(Expected::default()).await.unwrap();
        assert_eq!(committed.size, bytes.len() as u64);
        named.push(CompletePart { number, etag: committed.etag, checksum: None });
    }
    // The last part is a copy.
    put(store, "source", compressible(150_000)).await;
    let number = PartNumber::new(100).unwrap();
    let copy = CopyPartRequest {
        source: address("source"),
        range: Some(ByteRange::Inclusive { first: 70_000, last: 139_999 }),
        source_conditions: ReadConditions::default(),
        destination: address("k"),
        upload: upload.clone(),
        number,
        etag: ETagForm::Md5,
    };
    let copied = store.copy_part(&context(), copy).await.unwrap();
    named.push(CompletePart { number, etag: copied.etag, checksum: None });
    let complete = CompleteUpload { parts: named, ..CompleteUpload::default() };
    store.complete_upload(&context(), &address("k"), &upload, complete).await.unwrap();
    store.head(&context(), &address("k"), GetRequest::default()).await.unwrap().info
}

#[tokio::test]
async fn multipart_objects_are_those_of_a_plain_store() {
    let minimum = usize::try_from(MIN_PART_BYTES).unwrap();
    let parts = [compressible(minimum + 1000), pattern(minimum, 2), compressible(minimum)];
    for policy in POLICIES {
        let desk = Desk::new(policy).await;
        for store in desk.both() {
            upload(&*store, &parts, None).await;
        }
        let segments = segments(&*desk.below, "k").await.unwrap();
        assert_eq!(segments.segments.len(), 4);
        desk.assert_same("k").await;
        for number in [2, 3, 4, 100] {
            desk.assert_same_select("k", Select::Part(PartNumber::new(number).unwrap())).await;
        }
        let ends = [minimum + 999, minimum + 1000, 2 * minimum + 1000, 3 * minimum + 1000];
        for first in ends.map(|end| end as u64).into_iter().flat_map(|end| [end - 70_000, end - 1, end]) {
            for length in [1, 2, 100_000, 6 << 20, 20 << 20] {
                let range = ByteRange::Inclusive { first, last: first + length };
                desk.assert_same_select("k", Select::Range(range)).await;
            }
        }
    }
}

#[tokio::test]
async fn uploads_are_encrypted_by_the_class_of_the_upload() {
    let policy = TransformPolicy {
        compress: ClassSet::NONE,
        encrypt: [Class::new(25).unwrap()].into_iter().collect(),
    };
    let desk = Desk::new(policy).await;
    let minimum = usize::try_from(MIN_PART_BYTES).unwrap();
    upload(&*desk.layered, &[compressible(minimum)], Some(24)).await;
    assert!(segments(&*desk.below, "k").await.is_none());
    upload(&*desk.layered, &[compressible(minimum)], Some(25)).await;
    let segments = segments(&*desk.below, "k").await.unwrap();
    assert!(
        segments.segments.iter().all(|segment| !segment.description.is_empty()),
        "every part is encrypted"
    );
    assert!(read(&*desk.layered, "k").await.starts_with(&compressible(minimum)));
}

#[tokio::test]
async fn wrong_declarations_are_rejected_as_by_a_plain_store() {
    for policy in POLICIES {
        let desk = Desk::new(policy).await;
        let bytes = compressible(200_000);
        let other = Checksum::compute(Algorithm::Crc64Nvme, b"other");
        for (expected, why) in [
            (Expected { size: Some(199_999), ..Expected::default() }, Reason::InvalidRequest),
            (Expected { size: Some(200_001), ..Expected::default() }, Reason::IncompleteBody),
            (Expected { md5: Some([0; 16]), ..Expected::default() }, Reason::BadDigest),
            (Expected { checksums: vec![other], ..Expected::default() }, Reason::BadDigest),
        ] {
            let request = StageRequest { verify_md5: true, ..StageRequest::default() };
            let mut staged = desk.layered.stage(&context(), &address("k"), request).await.unwrap();
            write_all(&mut *staged, bytes.clone()).await.unwrap();
            assert_eq!(reason(staged.commit(expected).await), why);
            assert_eq!(reason(get(&*desk.below, "k", GetRequest::default()).await), Reason::NoSuchKey);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ranges_of_a_replaced_object_are_of_one_write() {
    let desk = Desk::new(POLICIES[2]).await;
    // Each version is of one letter, and of another stored length.
    let version = |letter: u8| Bytes::from(vec![letter; 200_000 + usize::from(letter) * 1000]);
    put(&*desk.layered, "k", version(1)).await;
    let writer = {
        let store = desk.layered.clone();
        tokio::spawn(async move {
            for letter in 2..60 {
                put(&*store, "k", version(letter)).await;
            }
        })
    };
    while !writer.is_finished() {
        let range = Select::Range(ByteRange::Inclusive { first: 100_000, last: 180_000 });
        let (info, bytes) = select(&*desk.layered, "k", range).await.unwrap();
        assert!(bytes.len() == 80_001 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(info.size, 200_000 + u64::from(bytes[0]) * 1000);
    }
    writer.await.unwrap();
}

#[test]
fn memory_is_the_reference() {
    let store: Arc<MemoryStore> = MemoryStore::new(SystemClock::shared());
    assert!(store.capabilities().reported_attributes);
}
