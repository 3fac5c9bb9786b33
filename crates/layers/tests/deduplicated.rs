//! A store with deduplication behaves as one without, stores equal chunks once, and never deletes a chunk that an object
//! needs.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "deduplicated/admission.rs"]
mod admission;
#[path = "deduplicated/collection.rs"]
mod collection;
#[path = "deduplicated/collection_damage.rs"]
mod collection_damage;
#[path = "deduplicated/collection_faults.rs"]
mod collection_faults;
#[path = "deduplicated/damage.rs"]
mod damage;
#[path = "deduplicated/doubt.rs"]
mod doubt;
#[path = "deduplicated/examination.rs"]
mod examination;
#[path = "deduplicated/marker.rs"]
mod marker;
#[path = "support/side_by_side.rs"]
mod side_by_side;
#[path = "deduplicated/support.rs"]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use proptest::prelude::*;
use tradewind_core::checksum::Algorithm;
use tradewind_core::error::Reason;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, MIN_PART_BYTES, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyPartRequest, CopyRequest, ETagForm, GetRequest, Select, StageRequest};
use tradewind_core::testing::{conformance, context, reason, write_all};
use tradewind_core::{BucketName, ByteRange, Class, ObjectStore, Precondition, ReadConditions, Tags};
use tradewind_layers::Deduplicated;
use tradewind_layers::deduplicated::DeduplicationPolicy;

use support::{
    CHUNKS, CountingStore, Desk, POLICY, address, chunks, deduplicated, get, memory, noise, put, read,
};

async fn conforming() -> Arc<dyn ObjectStore> {
    deduplicated(memory()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduplicated_stores_conform() {
    conformance::run(|| async { conforming().await }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_match_the_memory_store() {
    for seed in 0..16 {
        conformance::model(|| async { conforming().await }.boxed(), seed, 60).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn reads_are_those_of_a_plain_store(
        size in prop_oneof![Just(0_usize), 1..20_000_usize, 16_383..16_386_usize, 200_000..2_000_000_usize],
        is_size_known: bool,
        algorithms in prop::sample::subsequence(vec![Algorithm::Sha256, Algorithm::XxHash64], 0..=2),
        ranges in prop::collection::vec((0_u64..2_100_000, 0_u64..2_100_000), 6),
        write_bytes in prop::sample::select(vec![1_000_usize, 65_536, 300_000, 1 << 20]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let desk = Desk::new().await;
            let bytes = noise(size, 7);
            let declared = is_size_known.then_some(size as u64);
            let request = StageRequest { algorithms, size: declared, verify_md5: true, ..StageRequest::default() };
            for store in desk.both() {
                let mut staged = store.stage(&context(), &address("k"), request.clone()).await.unwrap();
                for piece in bytes.chunks(write_bytes) {
                    staged.write(Bytes::copy_from_slice(piece)).await.unwrap();
                }
                staged.commit(Expected { size: Some(size as u64), ..Expected::default() }).await.unwrap();
            }
            desk.assert_same_select("k", Select::Whole).await;
            for (a, b) in ranges {
                let (a, b) = (a % (size as u64 + 10), b % (size as u64 + 10));
                for range in [
                    ByteRange::Inclusive { first: a.min(b), last: a.max(b) },
                    ByteRange::Inclusive { first: a, last: a },
                    ByteRange::From(a),
                    ByteRange::Suffix(a),
                ] {
                    desk.assert_same_select("k", Select::Range(range)).await;
                }
            }
        });
    }
}

/// More entries than are searched at once, so that the search takes several steps.
#[tokio::test]
async fn ranges_of_a_large_object_are_found_in_its_manifest() {
    let desk = Desk::new().await;
    let bytes = noise(72 << 20, 5);
    put(&*desk.layer, "k", bytes.clone()).await;
    assert!(chunks(&*desk.below).await.0.len() > 700);
    let size = bytes.len();
    for first in (0..size).step_by(1_234_567).chain([size - 1, size - 65_537]) {
        let last = (first + 100_000).min(size - 1);
        let range = ByteRange::Inclusive { first: first as u64, last: last as u64 };
        let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
        let (_, _, found) = get(&*desk.layer, "k", request).await.unwrap();
        assert!(found == bytes[first..=last], "{first}");
    }
}

#[tokio::test]
async fn second_object_of_equal_bytes_stores_no_chunk() {
    let desk = Desk::new().await;
    let bytes = noise(3 << 20, 1);
    put(&*desk.layer, "a", bytes.clone()).await;
    let stored = desk.chunk_bytes().await;
    assert_eq!(stored, bytes.len() as u64);
    put(&*desk.layer, "b", bytes.clone()).await;
    assert_eq!(desk.chunk_bytes().await, stored);
    let counts = desk.layer.counts();
    assert_eq!((counts.stored_bytes, counts.found_bytes), (stored, stored));
    assert!(read(&*desk.layer, "a").await == bytes && read(&*desk.layer, "b").await == bytes);
}

#[tokio::test]
async fn an_edit_in_the_middle_stores_few_chunks() {
    let desk = Desk::new().await;
    let bytes = noise(8 << 20, 1);
    put(&*desk.layer, "a", bytes.clone()).await;
    let before = desk.chunk_bytes().await;
    let edited = Bytes::from([&bytes[..4_000_000], &b"an insertion"[..], &bytes[4_000_000..]].concat());
    put(&*desk.layer, "b", edited.clone()).await;
    let added = desk.chunk_bytes().await - before;
    assert!(added > 0 && added < 1 << 20, "{added} bytes are new");
    assert!(read(&*desk.layer, "b").await == edited);
}

#[tokio::test]
async fn small_objects_and_other_classes_are_stored_as_they_are() {
    let below = memory();
    let class = Class::new(25).unwrap();
    let policy = DeduplicationPolicy { classes: [class].into_iter().collect(), ..POLICY };
    let layer = Deduplicated::open(&context(), below.clone(), policy).await.unwrap();
    layer.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    for (key, class, size, is_deduplicated) in [
        ("mail", Some(class), 100_000, true),
        ("small", Some(class), 1000, false),
        ("other", None, 100_000, false),
    ] {
        for size_is_known in [true, false] {
            let bytes = noise(size, 2);
            let size = size_is_known.then_some(size as u64);
            let mut request = StageRequest { size, ..StageRequest::default() };
            request.metadata.classes.object = class;
            let mut staged = layer.stage(&context(), &address(key), request).await.unwrap();
            write_all(&mut *staged, bytes.clone()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            let info = below.head(&context(), &address(key), GetRequest::default()).await.unwrap().info;
            assert_eq!(info.stored.is_some(), is_deduplicated, "{key}");
            assert!(read(&*layer, key).await == bytes);
        }
    }
}

fn copy_request(from: &str, to: &str) -> CopyRequest {
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
async fn copies_are_those_of_a_plain_store_and_store_no_chunk() {
    let desk = Desk::new().await;
    let bytes = noise(1 << 20, 3);
    for store in desk.both() {
        put(&*store, "a", bytes.clone()).await;
    }
    let before = desk.layer.counts();
    for (to, algorithm, etag) in [
        ("same", None, ETagForm::Md5),
        ("crc", Some(Algorithm::Crc64Nvme), ETagForm::Md5),
        ("sha", Some(Algorithm::Sha256), ETagForm::Md5),
        ("a", None, ETagForm::Md5),
    ] {
        for store in desk.both() {
            let tags = Some(Tags::default());
            let request = CopyRequest { algorithm, etag, tags, ..copy_request("a", to) };
            store.copy(&context(), request).await.unwrap();
        }
        desk.assert_same_select(to, Select::Whole).await;
    }
    let after = desk.layer.counts();
    assert_eq!(after.stored_chunks, before.stored_chunks);
    // Only the copy with another checksum reads and writes the bytes.
    assert_eq!(after.found_bytes - before.found_bytes, 1 << 20);
    let absent = CopyRequest { precondition: Precondition::Absent, ..copy_request("a", "same") };
    assert_eq!(reason(desk.layer.copy(&context(), absent).await), Reason::PreconditionFailed);
}

/// Bytes that are one chunk of nearly the minimum, also where they are repeated.
fn short_chunk() -> Vec<u8> {
    const MIN_BYTES: usize = 16 << 10;
    let (mut bytes, tails) = (noise(MIN_BYTES + 20, 1).to_vec(), noise(1 << 20, 2));
    for tail in tails.chunks_exact(16) {
        bytes[MIN_BYTES..MIN_BYTES + 16].copy_from_slice(tail);
        let (_, end) =
            fastcdc::v2020::FastCDC::new(&bytes, MIN_BYTES, 64 << 10, 256 << 10).cut(0, bytes.len());
        if end <= MIN_BYTES + 16 {
            // The byte after a chunk decides about its end; the first ones of a chunk decide about nothing.
            bytes[0] = bytes[end];
            bytes.truncate(end);
            return bytes;
        }
    }
    panic!("no tail ends a chunk");
}

/// The last chunk of each part is shorter than the minimum of the others.
#[tokio::test]
async fn ranges_of_a_copied_multipart_object_are_those_of_its_source() {
    let counting = CountingStore::new(memory());
    let desk = Desk::with_store(counting.clone()).await;
    let chunk = short_chunk();
    let mut part = chunk.repeat(usize::try_from(MIN_PART_BYTES).unwrap().div_ceil(chunk.len()));
    part.extend_from_slice(&chunk[..2]);
    let part = Bytes::from(part);
    let upload = desk.layer.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
    let mut parts = Vec::new();
    for number in 1..=8 {
        let number = PartNumber::new(number).unwrap();
        let request = StageRequest { etag: ETagForm::Unique, ..StageRequest::default() };
        let staged = desk.layer.stage_part(&context(), &address("k"), &upload, number, request).await;
        let mut staged = staged.unwrap();
        write_all(&mut *staged, part.clone()).await.unwrap();
        let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
        parts.push(CompletePart { number, etag, checksum: None });
    }
    let request = CompleteUpload { parts, ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    let copy = CopyRequest { etag: ETagForm::Unique, ..copy_request("k", "copy") };
    desk.layer.copy(&context(), copy).await.unwrap();
    let info = desk.below.head(&context(), &address("copy"), GetRequest::default()).await.unwrap().info;
    let form = info.stored.unwrap();
    assert_eq!(form.segments.len(), 1, "the manifest was copied");
    assert_eq!(form.segments[0].description[6..10], 2_u32.to_le_bytes());
    let bytes = part.repeat(8);
    for first in (0..bytes.len() - part.len()).step_by(3_000_001) {
        for last in [first + 10, first + part.len(), bytes.len() - part.len() / 2] {
            let range = ByteRange::Inclusive { first: first as u64, last: last as u64 };
            let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
            let (_, _, found) = get(&*desk.layer, "copy", request).await.unwrap();
            assert!(found == bytes[first..=last], "{first}-{last}");
        }
        // A short range reads at most two chunks, and few entries of the manifest of 100 KiB.
        counting.take_bytes();
        let range = ByteRange::Inclusive { first: first as u64, last: first as u64 + 1 };
        let request = GetRequest { select: Select::Range(range), ..GetRequest::default() };
        get(&*desk.layer, "copy", request).await.unwrap();
        let count = counting.take_bytes();
        let max_entries = 2 * 512 + 100;
        assert!(count < 2 * 17_000 + max_entries * 40, "{first}: {count}");
    }
}

#[tokio::test]
async fn multipart_objects_are_those_of_a_plain_store() {
    let desk = Desk::new().await;
    let part = usize::try_from(MIN_PART_BYTES).unwrap();
    // The second part is stored plain, the third one is copied from an object.
    let parts = [noise(part + 10, 1), noise(part, 2), noise(part, 1), noise(1000, 4)];
    for store in desk.both() {
        put(&*store, "source", parts[2].clone()).await;
        let upload = store.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
        let mut named = Vec::new();
        for (number, bytes) in (1..).zip(&parts) {
            let number = PartNumber::new(number).unwrap();
            let committed = if number.get() == 3 {
                let request = CopyPartRequest {
                    source: address("source"),
                    range: None,
                    source_conditions: ReadConditions::default(),
                    destination: address("k"),
                    upload: upload.clone(),
                    number,
                    etag: ETagForm::Md5,
                };
                store.copy_part(&context(), request).await.unwrap()
            } else {
                // Written past the layer, as if it was uploaded by another policy.
                let is_plain = number.get() == 2 && !store.capabilities().reported_attributes;
                let target = if is_plain { &desk.below } else { &store };
                let request = StageRequest::default();
                let staged = target.stage_part(&context(), &address("k"), &upload, number, request).await;
                let mut staged = staged.unwrap();
                write_all(&mut *staged, bytes.clone()).await.unwrap();
                staged.commit(Expected::default()).await.unwrap().0
            };
            named.push(CompletePart { number, etag: committed.etag, checksum: None });
        }
        let request = CompleteUpload { parts: named, ..CompleteUpload::default() };
        store.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    }
    let size = parts.iter().map(Bytes::len).sum::<usize>() as u64;
    desk.assert_same_select("k", Select::Whole).await;
    for number in 1..=5 {
        desk.assert_same_select("k", Select::Part(PartNumber::new(number).unwrap())).await;
    }
    for first in (0..size).step_by(700_001) {
        for length in [1, 70_000, MIN_PART_BYTES, 2 * MIN_PART_BYTES] {
            let last = first + length - 1;
            desk.assert_same_select("k", Select::Range(ByteRange::Inclusive { first, last })).await;
        }
    }
    desk.collect().await;
    desk.assert_same_select("k", Select::Whole).await;
}

#[tokio::test]
async fn bucket_of_chunks_does_not_exist_for_clients() {
    let desk = Desk::new().await;
    put(&*desk.layer, "a", noise(100_000, 1)).await;
    let (bucket, store) = (BucketName::new(CHUNKS).unwrap(), &desk.layer);
    let (keys, _) = chunks(&*desk.below).await;
    let chunk = tradewind_core::Address::parse(CHUNKS, &keys[0]).unwrap();
    let names: Vec<String> =
        store.list_buckets(&context()).await.unwrap().into_iter().map(|info| info.name.to_string()).collect();
    assert_eq!(names, ["bucket"]);
    assert_eq!(reason(store.create_bucket(&context(), &bucket).await), Reason::InvalidBucketName);
    let missing = Reason::NoSuchBucket;
    assert_eq!(reason(store.head_bucket(&context(), &bucket).await), missing);
    assert_eq!(reason(store.delete_bucket(&context(), &bucket).await), missing);
    assert_eq!(reason(store.get(&context(), &chunk, GetRequest::default()).await), missing);
    assert_eq!(reason(store.head(&context(), &chunk, GetRequest::default()).await), missing);
    assert_eq!(reason(store.stage(&context(), &chunk, StageRequest::default()).await), missing);
    assert_eq!(reason(store.delete(&context(), &chunk, Precondition::None).await), missing);
    assert_eq!(reason(store.set_tags(&context(), &chunk, Tags::default()).await), missing);
    let copy = CopyRequest { source: chunk.clone(), ..copy_request("a", "b") };
    assert_eq!(reason(store.copy(&context(), copy).await), missing);
    let copy = CopyRequest { destination: chunk, ..copy_request("a", "b") };
    assert_eq!(reason(store.copy(&context(), copy).await), missing);
}

#[tokio::test]
async fn a_bucket_of_a_client_is_not_taken_for_that_of_chunks() {
    let below = memory();
    let bucket = BucketName::new(CHUNKS).unwrap();
    below.create_bucket(&context(), &bucket).await.unwrap();
    // As after a crash between the creation of the bucket and that of its marker.
    deduplicated(below.clone()).await;
    deduplicated(below.clone()).await;
    let below = memory();
    below.create_bucket(&context(), &bucket).await.unwrap();
    let key = tradewind_core::Address::parse(CHUNKS, "photo.jpg").unwrap();
    below
        .stage(&context(), &key, StageRequest::default())
        .await
        .unwrap()
        .commit(Expected::default())
        .await
        .unwrap();
    let error = Deduplicated::open(&context(), below, POLICY).await.unwrap_err();
    assert_eq!(error.reason(), Reason::InvalidArgument);
}

/// A new, empty bucket would hide that the chunks of all objects are missing.
#[tokio::test]
async fn a_missing_bucket_of_chunks_is_not_created_for_a_store_with_deduplicated_objects() {
    let desk = Desk::new().await;
    put(&*desk.layer, "a-plain", noise(1000, 1)).await;
    put(&*desk.layer, "k", noise(300_000, 1)).await;
    let (mut keys, _) = chunks(&*desk.below).await;
    keys.push("format".to_owned());
    for key in keys {
        let address = tradewind_core::Address::parse(CHUNKS, &key).unwrap();
        desk.below.delete(&context(), &address, Precondition::None).await.unwrap();
    }
    let bucket = BucketName::new(CHUNKS).unwrap();
    for _ in 0..2 {
        // First without its objects, then missing.
        let error = Deduplicated::open(&context(), desk.below.clone(), POLICY).await.unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidArgument);
        assert!(error.message().contains("\"k\""), "{error}");
        match desk.below.delete_bucket(&context(), &bucket).await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.reason(), Reason::NoSuchBucket),
        }
    }
    assert_eq!(reason(desk.below.head_bucket(&context(), &bucket).await), Reason::NoSuchBucket);
    desk.below.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    assert!(deduplicated(desk.below.clone()).await.counts().found_chunks == 0);
}

/// The first start on a store with many objects examines them while requests are served.
#[tokio::test]
async fn writes_before_the_layer_is_ready_are_plain_and_later_ones_deduplicated() {
    let below = memory();
    below.create_bucket(&context(), &address("k").bucket).await.unwrap();
    put(&*below, "old", noise(300_000, 1)).await;
    let layer = Deduplicated::open_unprepared(&context(), below.clone(), POLICY).await.unwrap();
    assert!(!layer.is_ready() && layer.collect(&context()).await.unwrap().is_none());
    let bytes = noise(300_000, 2);
    put(&*layer, "early", bytes.clone()).await;
    let bucket = BucketName::new(CHUNKS).unwrap();
    assert_eq!(reason(below.head_bucket(&context(), &bucket).await), Reason::NoSuchBucket);
    layer.prepare(&context()).await.unwrap();
    assert_eq!((layer.is_ready(), layer.examined_objects()), (true, 2));
    put(&*layer, "late", bytes.clone()).await;
    assert_eq!(layer.counts().stored_bytes, 300_000, "the plain object has no chunks");
    for key in ["early", "late"] {
        assert!(read(&*layer, key).await == bytes, "{key}");
    }
    let again = Deduplicated::open_unprepared(&context(), below, POLICY).await.unwrap();
    assert!(again.is_ready());
}

#[tokio::test]
async fn history_has_the_last_collection_and_counts_have_its_deletions() {
    let desk = Desk::new().await;
    for key in ["a", "b", "c"] {
        put(&*desk.layer, key, noise(300_000, u64::from(key == "c"))).await;
    }
    assert_eq!(desk.layer.collections().last, None);
    desk.layer.delete(&context(), &address("c"), Precondition::None).await.unwrap();
    let report = desk.layer.collect(&context()).await.unwrap().unwrap();
    let collections = desk.layer.collections();
    assert_eq!((collections.completed, collections.failed), (1, 0));
    assert_eq!(collections.last.unwrap().report, report);
    assert_eq!(report.ratio(), Some(2.0), "{report:?}");
    let counts = desk.layer.counts();
    assert_eq!((counts.deleted_chunks, counts.deleted_bytes), (report.deleted_chunks, 300_000));
}

#[tokio::test]
async fn stores_that_cannot_report_plain_attributes_are_rejected() {
    let lacking = deduplicated(memory()).await;
    assert_eq!(reason(Deduplicated::open(&context(), lacking, POLICY).await), Reason::Unsupported);
}
