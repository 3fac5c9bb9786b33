//! Collections: they delete what nothing refers to, and nothing that an object, an upload, a write or a read needs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tradewind_core::context::Deadline;
use tradewind_core::error::Reason;
use tradewind_core::layer::Method;
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, MIN_PART_BYTES, PartNumber, UploadId,
};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{SimulatedClock, context, context_until, drain, reason, write_all};
use tradewind_core::{BucketName, Budget, ObjectStore, Precondition, Staged, Versioning};

use super::copy_request;
use super::support::{CHUNKS, Desk, PausingStore, address, deduplicated, memory, noise, put, read};

pub async fn delete(desk: &Desk, key: &str) {
    desk.layer.delete(&context(), &address(key), Precondition::None).await.unwrap();
}

async fn held() -> (Desk, Arc<PausingStore>) {
    let held = PausingStore::new(memory());
    (Desk::with_store(held.clone()).await, held)
}

/// Begins part 1 of an upload.
async fn stage_part(desk: &Desk, key: &str, upload: &UploadId) -> Box<dyn Staged> {
    let number = PartNumber::new(1).unwrap();
    let staged =
        desk.layer.stage_part(&context(), &address(key), upload, number, StageRequest::default()).await;
    staged.unwrap()
}

/// Polls other tasks, so that what can go on does.
async fn run_other_tasks() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn chunks_of_deleted_objects_are_deleted_and_shared_ones_stay() {
    let desk = Desk::new().await;
    let (shared, own) = (noise(1 << 20, 1), noise(1 << 20, 2));
    put(&*desk.layer, "a", shared.clone()).await;
    put(&*desk.layer, "b", Bytes::from([&shared[..], &own[..]].concat())).await;
    let report = desk.collect().await;
    assert_eq!((report.objects, report.referenced_bytes, report.deleted_chunks), (2, 3 << 20, 0));
    let before = desk.chunk_bytes().await;
    assert!(report.chunk_bytes == before && before < (2 << 20) + (256 << 10));
    delete(&desk, "b").await;
    let report = desk.collect().await;
    assert_eq!((report.objects, report.referenced_bytes, report.chunk_bytes), (1, 1 << 20, 1 << 20));
    assert_eq!(report.deleted_bytes, before - (1 << 20));
    assert!(read(&*desk.layer, "a").await == shared);
    delete(&desk, "a").await;
    desk.collect().await;
    assert_eq!(desk.chunk_bytes().await, 0);
}

#[tokio::test]
async fn chunks_of_old_versions_stay_until_the_version_is_deleted() {
    let desk = Desk::new().await;
    let bucket = BucketName::new("bucket").unwrap();
    desk.layer.set_versioning(&context(), &bucket, Versioning::Enabled).await.unwrap();
    let old = put(&*desk.layer, "k", noise(1 << 20, 1)).await.version;
    put(&*desk.layer, "k", noise(1 << 20, 2)).await;
    delete(&desk, "k").await;
    assert_eq!(desk.collect().await.deleted_chunks, 0);
    let version = address("k").with_version(old);
    let found = desk.layer.get(&context(), &version, GetRequest::default()).await.unwrap();
    assert!(drain(found.body).await.unwrap() == noise(1 << 20, 1));
    desk.layer.delete(&context(), &version, Precondition::None).await.unwrap();
    assert_eq!(desk.collect().await.deleted_bytes, 1 << 20);
}

#[tokio::test]
async fn an_abandoned_write_leaves_only_garbage() {
    let desk = Desk::new().await;
    let mut staged = desk.layer.stage(&context(), &address("k"), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, noise(2 << 20, 1)).await.unwrap();
    run_other_tasks().await;
    assert!(desk.chunk_bytes().await > 0);
    // The write is in progress: its chunks stay.
    assert_eq!(desk.collect().await.deleted_chunks, 0);
    drop(staged);
    run_other_tasks().await;
    desk.collect().await;
    assert_eq!(desk.chunk_bytes().await, 0);
}

/// The state after a kill between the chunks and the manifest: nothing in memory is left.
#[tokio::test]
async fn chunks_without_a_manifest_are_deleted_after_a_restart() {
    let desk = Desk::new().await;
    put(&*desk.layer, "kept", noise(1 << 20, 5)).await;
    let mut staged = desk.layer.stage(&context(), &address("k"), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, noise(2 << 20, 1)).await.unwrap();
    run_other_tasks().await;
    let restarted = deduplicated(desk.below.clone()).await;
    let report = restarted.collect(&context()).await.unwrap().unwrap();
    assert!(report.deleted_bytes > 1 << 20 && report.chunk_bytes == 1 << 20, "{report:?}");
    assert!(read(&*restarted, "kept").await == noise(1 << 20, 5));
}

/// The mark has passed the key when an object is written there, of chunks that nothing else refers to any more.
#[tokio::test]
async fn chunks_of_an_object_written_during_the_mark_stay() {
    let (desk, held) = held().await;
    let bytes = noise(1 << 20, 1);
    put(&*desk.layer, "old", bytes.clone()).await;
    delete(&desk, "old").await;
    put(&*desk.layer, "a", noise(100, 1)).await;
    // The page of the listing is read: it has only this object.
    let mut hold = held.hold(Method::Head, "bucket");
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&context()).await });
    hold.reached().await;
    put(&*desk.layer, "Z", bytes.clone()).await;
    assert_eq!(desk.layer.counts().found_bytes, 1 << 20, "the write relies on the chunks");
    hold.release();
    let report = collection.await.unwrap().unwrap().unwrap();
    assert_eq!(report.deleted_chunks, 0);
    assert!(read(&*desk.layer, "Z").await == bytes);
    // The chunks are not kept for ever.
    delete(&desk, "Z").await;
    assert_eq!(desk.collect().await.deleted_bytes, 1 << 20);
}

/// A write has found its chunks before the collection begins, and commits after it.
#[tokio::test]
async fn chunks_of_a_write_that_began_before_the_collection_stay() {
    let desk = Desk::new().await;
    let bytes = noise(1 << 20, 1);
    put(&*desk.layer, "old", bytes.clone()).await;
    let request = StageRequest { size: Some(1 << 20), ..StageRequest::default() };
    let mut staged = desk.layer.stage(&context(), &address("new"), request).await.unwrap();
    write_all(&mut *staged, bytes.clone()).await.unwrap();
    run_other_tasks().await;
    delete(&desk, "old").await;
    let deleted = desk.collect().await.deleted_bytes;
    assert!(deleted < 300_000, "at most the last chunk, which the write has not cut: {deleted}");
    staged.commit(Expected::default()).await.unwrap();
    assert!(read(&*desk.layer, "new").await == bytes);
}

/// The mark has passed the destination of a copy, whose source is deleted before the mark reaches it.
#[tokio::test]
async fn chunks_of_a_copy_during_the_mark_stay() {
    let (desk, held) = held().await;
    let bytes = noise(1 << 20, 1);
    put(&*desk.layer, "b-first", noise(100, 1)).await;
    put(&*desk.layer, "c-source", bytes.clone()).await;
    let mut hold = held.hold(Method::Head, "bucket");
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&context()).await });
    hold.reached().await;
    desk.layer.copy(&context(), copy_request("c-source", "a-copy")).await.unwrap();
    delete(&desk, "c-source").await;
    hold.release();
    assert_eq!(collection.await.unwrap().unwrap().unwrap().deleted_chunks, 0);
    assert!(read(&*desk.layer, "a-copy").await == bytes);
}

/// A write waits for the deletion of its chunk, and stores it again.
#[tokio::test]
async fn a_write_does_not_rely_on_a_chunk_that_is_being_deleted() {
    let (desk, held) = held().await;
    let bytes = noise(20_000, 1);
    put(&*desk.layer, "old", bytes.clone()).await;
    delete(&desk, "old").await;
    let mut hold = held.hold(Method::Delete, CHUNKS);
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&context()).await });
    hold.reached().await;
    let (layer, written) = (desk.layer.clone(), bytes.clone());
    let write = tokio::spawn(async move { put(&*layer, "new", written).await });
    run_other_tasks().await;
    assert!(!write.is_finished(), "the chunk is still there");
    hold.release();
    write.await.unwrap();
    assert_eq!(collection.await.unwrap().unwrap().unwrap().deleted_chunks, 1);
    assert!(read(&*desk.layer, "new").await == bytes);
    assert_eq!(desk.layer.counts().stored_chunks, 2);
}

/// A deletion that was handed over is carried out, although the collection was dropped: no write relies on the chunk.
#[tokio::test]
async fn a_collection_that_is_dropped_leaves_no_deletion_behind() {
    let (desk, held) = held().await;
    let bytes = noise(20_000, 1);
    put(&*desk.layer, "old", bytes.clone()).await;
    delete(&desk, "old").await;
    let mut hold = held.hold(Method::Delete, CHUNKS);
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&context()).await });
    hold.reached().await;
    collection.abort();
    assert!(collection.await.unwrap_err().is_cancelled());
    let (layer, written) = (desk.layer.clone(), bytes.clone());
    let write = tokio::spawn(async move { put(&*layer, "new", written).await });
    run_other_tasks().await;
    assert!(!write.is_finished());
    hold.release();
    write.await.unwrap();
    assert!(read(&*desk.layer, "new").await == bytes);
}

/// A client stops waiting for its commit, which the store carries out later: after the mark has passed the key.
#[tokio::test]
async fn chunks_of_a_commit_without_its_client_stay() {
    let (desk, held) = held().await;
    let bytes = noise(1 << 20, 1);
    put(&*desk.layer, "old", bytes.clone()).await;
    let request = StageRequest { size: Some(1 << 20), ..StageRequest::default() };
    let mut staged = desk.layer.stage(&context(), &address("new"), request).await.unwrap();
    write_all(&mut *staged, bytes.clone()).await.unwrap();
    let mut hold = held.hold(Method::Stage, "bucket");
    let commit = tokio::spawn(staged.commit(Expected::default()));
    hold.reached().await;
    commit.abort();
    assert!(commit.await.unwrap_err().is_cancelled());
    delete(&desk, "old").await;
    for _ in 0..2 {
        let report = desk.collect().await;
        assert_eq!((report.objects, report.deleted_chunks, report.chunk_bytes), (0, 0, 1 << 20));
    }
    let request = GetRequest::default;
    assert_eq!(reason(desk.layer.head(&context(), &address("new"), request()).await), Reason::NoSuchKey);
    hold.release();
    while desk.layer.head(&context(), &address("new"), request()).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(desk.collect().await.deleted_chunks, 0);
    assert!(read(&*desk.layer, "new").await == bytes);
}

#[tokio::test]
async fn a_read_that_began_before_its_object_was_deleted_ends() {
    let desk = Desk::new().await;
    let bytes = noise(4 << 20, 1);
    put(&*desk.layer, "k", bytes.clone()).await;
    let context = context();
    let mut body = desk.layer.get(&context, &address("k"), GetRequest::default()).await.unwrap().body;
    let mut found = body.next().await.unwrap().unwrap().to_vec();
    delete(&desk, "k").await;
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&super::context()).await });
    run_other_tasks().await;
    assert!(!collection.is_finished() && desk.chunk_bytes().await == 4 << 20);
    while let Some(piece) = body.next().await {
        found.extend_from_slice(&piece.unwrap());
    }
    assert!(found == bytes);
    drop(body);
    assert_eq!(collection.await.unwrap().unwrap().unwrap().deleted_bytes, 4 << 20);
}

#[tokio::test]
async fn collection_deletes_nothing_while_a_read_lasts_over_an_hour() {
    let desk = Desk::new().await;
    let bytes = noise(4 << 20, 1);
    put(&*desk.layer, "k", bytes.clone()).await;
    let reading = context();
    let mut body = desk.layer.get(&reading, &address("k"), GetRequest::default()).await.unwrap().body;
    let mut found = body.next().await.unwrap().unwrap().to_vec();
    delete(&desk, "k").await;
    let clock = SimulatedClock::new();
    let collecting = context_until(&Budget::new(1 << 20), Deadline::none(clock.clone()));
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&collecting).await });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(3599));
    run_other_tasks().await;
    assert!(!collection.is_finished());
    clock.advance(Duration::from_secs(2));
    let report = collection.await.unwrap().unwrap().unwrap();
    assert_eq!((report.deleted_chunks, report.chunk_bytes), (0, 4 << 20));
    while let Some(piece) = body.next().await {
        found.extend_from_slice(&piece.unwrap());
    }
    assert!(found == bytes);
    drop(body);
    assert_eq!(desk.collect().await.deleted_bytes, 4 << 20);
}

#[tokio::test]
async fn chunks_of_unfinished_uploads_stay_until_they_are_aborted() {
    let desk = Desk::new().await;
    let part = noise(usize::try_from(MIN_PART_BYTES).unwrap(), 1);
    let upload = desk.layer.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
    let number = PartNumber::new(1).unwrap();
    let mut staged = stage_part(&desk, "k", &upload).await;
    write_all(&mut *staged, part.clone()).await.unwrap();
    let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
    for layer in [desk.layer.clone(), deduplicated(desk.below.clone()).await] {
        let report = layer.collect(&context()).await.unwrap().unwrap();
        assert_eq!((report.objects, report.parts, report.deleted_chunks), (0, 1, 0));
    }
    let parts = vec![CompletePart { number, etag, checksum: None }];
    let request = CompleteUpload { parts, ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    // The first collection after the completion sees the reference of the part, too, and does not count it.
    for _ in 0..3 {
        let report = desk.collect().await;
        assert_eq!((report.objects, report.parts, report.deleted_chunks), (1, 0, 0));
        assert!(read(&*desk.layer, "k").await == part);
    }
    let upload = desk.layer.create_upload(&context(), &address("k2"), CreateUpload::default()).await.unwrap();
    let mut staged = stage_part(&desk, "k2", &upload).await;
    write_all(&mut *staged, noise(1 << 20, 2)).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    desk.layer.abort_upload(&context(), &address("k2"), &upload).await.unwrap();
    desk.collect().await;
    assert_eq!(desk.collect().await.deleted_bytes, 1 << 20);
}

/// An upload is completed while the mark has passed its key.
#[tokio::test]
async fn chunks_of_an_upload_completed_during_the_mark_stay() {
    let (desk, held) = held().await;
    put(&*desk.layer, "b", noise(100, 1)).await;
    let part = noise(1 << 20, 1);
    let number = PartNumber::new(1).unwrap();
    let upload = desk.layer.create_upload(&context(), &address("a"), CreateUpload::default()).await.unwrap();
    let mut staged = stage_part(&desk, "a", &upload).await;
    write_all(&mut *staged, part.clone()).await.unwrap();
    let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
    let mut hold = held.hold(Method::Head, "bucket");
    let layer = desk.layer.clone();
    let collection = tokio::spawn(async move { layer.collect(&context()).await });
    hold.reached().await;
    let parts = vec![CompletePart { number, etag, checksum: None }];
    let request = CompleteUpload { parts, ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("a"), &upload, request).await.unwrap();
    hold.release();
    assert_eq!(collection.await.unwrap().unwrap().unwrap().deleted_chunks, 0);
    for _ in 0..2 {
        assert_eq!(desk.collect().await.deleted_chunks, 0);
        assert!(read(&*desk.layer, "a").await == part);
    }
}
