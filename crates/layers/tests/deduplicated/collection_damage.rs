//! Collections of stores with damaged manifests and lists of chunks: they delete nothing, name what is damaged, and go on
//! when it is gone.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, PartNumber, PartsPage, UploadId,
};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::stored_form::{PlainAttributes, Reported};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation, context, write_all};
use tradewind_core::{Address, BucketName, Context, ObjectStore, Staged};

use super::collection::delete;
use super::damage::replace_chunk;
use super::support::{CHUNKS, Desk, address, memory, noise, put, read};

/// Cuts the last entry of an object's manifest.
async fn cut_manifest(desk: &Desk, key: &str) {
    let info = desk.below.head(&context(), &address(key), GetRequest::default()).await.unwrap().info;
    let description = info.stored.unwrap().segments[0].description.clone();
    let request = GetRequest { stored: true, ..GetRequest::default() };
    let found = desk.below.get(&context(), &address(key), request).await.unwrap();
    let manifest = found.body.collect().await.unwrap();
    let plain = PlainAttributes { size: info.size, etag: info.etag, checksums: info.checksums };
    let reported = Some(Reported { plain, description });
    let mut staged = desk.below.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    staged.write(manifest.slice(..manifest.len() - 40)).await.unwrap();
    staged.commit(Expected { reported, ..Expected::default() }).await.unwrap();
}

/// The keys of the lists of chunks of parts.
async fn references(desk: &Desk) -> Vec<String> {
    let request = ListRequest { prefix: "part-".to_owned(), limit: 100, ..ListRequest::default() };
    let page = desk.below.list(&context(), &BucketName::new(CHUNKS).unwrap(), &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

async fn begin_upload(desk: &Desk) -> UploadId {
    desk.layer.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap()
}

async fn put_part(desk: &Desk, upload: &UploadId, bytes: Bytes) -> CompletePart {
    let number = PartNumber::new(1).unwrap();
    let staged =
        desk.layer.stage_part(&context(), &address("k"), upload, number, StageRequest::default()).await;
    let mut staged = staged.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
    CompletePart { number, etag, checksum: None }
}

async fn failed_collection(desk: &Desk) -> Error {
    let error = desk.layer.collect(&context()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CorruptData);
    error
}

fn damaged(desk: &Desk) -> Vec<String> {
    desk.layer.damaged_objects().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn damaged_objects_are_named_and_keep_all_chunks_until_they_are_gone() {
    let desk = Desk::new().await;
    for (seed, key) in ["a", "b", "c", "garbage"].into_iter().enumerate() {
        put(&*desk.layer, key, noise(300_000, seed as u64)).await;
    }
    delete(&desk, "garbage").await;
    let before = desk.chunk_bytes().await;
    for key in ["a", "c"] {
        cut_manifest(&desk, key).await;
    }
    let error = failed_collection(&desk).await;
    assert!(error.message().contains("2 objects") && error.message().contains("bucket/a"), "{error}");
    assert_eq!(damaged(&desk), ["bucket/a", "bucket/c"]);
    assert_eq!(desk.layer.collections().failure.unwrap().message, error.message());
    assert_eq!(desk.chunk_bytes().await, before);
    delete(&desk, "a").await;
    put(&*desk.layer, "c", noise(300_000, 2)).await;
    assert_eq!(desk.collect().await.deleted_bytes, 600_000);
    assert!(damaged(&desk).is_empty() && desk.layer.collections().failure.is_none());
    assert!(read(&*desk.layer, "b").await == noise(300_000, 1));
}

#[tokio::test]
async fn damaged_list_of_chunks_is_removed_once_its_upload_has_ended() {
    let desk = Desk::new().await;
    let bytes = noise(300_000, 1);
    for is_completed in [false, true] {
        let upload = begin_upload(&desk).await;
        let part = put_part(&desk, &upload, bytes.clone()).await;
        let [key] = &references(&desk).await[..] else { panic!("one list of chunks") };
        replace_chunk(&*desk.below, key, Bytes::from_static(b"damaged")).await;
        let error = failed_collection(&desk).await;
        let name = format!("bucket/k (upload {upload})");
        assert!(error.message().contains(&name), "{error}");
        assert_eq!(damaged(&desk), [name]);
        if is_completed {
            let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
            desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
            assert_eq!(desk.collect().await.deleted_chunks, 0);
            assert!(read(&*desk.layer, "k").await == bytes);
        } else {
            desk.layer.abort_upload(&context(), &address("k"), &upload).await.unwrap();
            assert_eq!(desk.collect().await.deleted_bytes, 300_000);
        }
        assert!(references(&desk).await.is_empty() && damaged(&desk).is_empty());
    }
}

/// The key of an earlier version does not name the upload.
#[tokio::test]
async fn damaged_list_of_chunks_with_an_old_key_is_removed_without_uploads() {
    let desk = Desk::new().await;
    let upload = begin_upload(&desk).await;
    let key = format!("part-{:032x}", 7);
    replace_chunk(&*desk.below, &key, Bytes::from_static(b"damaged")).await;
    let error = failed_collection(&desk).await;
    assert!(error.message().contains(&key), "{error}");
    assert_eq!(references(&desk).await, [key]);
    desk.layer.abort_upload(&context(), &address("k"), &upload).await.unwrap();
    desk.collect().await;
    assert!(references(&desk).await.is_empty());
    let chunk = Address::parse(CHUNKS, "format").unwrap();
    desk.below.head(&context(), &chunk, GetRequest::default()).await.unwrap();
}

/// Accepts the id of an upload also with a zero before it.
#[derive(Debug)]
struct TwoFormsOfIds(Arc<dyn ObjectStore>);

fn listed(id: &UploadId) -> UploadId {
    UploadId(id.0.trim_start_matches('0').to_owned())
}

#[async_trait]
impl ObjectStore for TwoFormsOfIds {
    tradewind_core::forward_methods! {
        to: |store| &store.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, copy_part, list_uploads, complete_upload,
        abort_upload, close,
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.0.list_parts(context, address, &listed(upload), after, limit).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.0.stage_part(context, address, &listed(upload), number, request).await
    }
}

#[tokio::test]
async fn damaged_list_of_an_upload_id_in_another_form_is_kept() {
    let desk = Desk::with_store(Arc::new(TwoFormsOfIds(memory()))).await;
    let (upload, bytes) = (begin_upload(&desk).await, noise(300_000, 1));
    let part = put_part(&desk, &UploadId(format!("0{upload}")), bytes.clone()).await;
    let [key] = &references(&desk).await[..] else { panic!("one list of chunks") };
    replace_chunk(&*desk.below, key, Bytes::from_static(b"damaged")).await;
    failed_collection(&desk).await;
    assert_eq!(damaged(&desk), [format!("bucket/k (upload {upload})")]);
    let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    desk.collect().await;
    assert!(read(&*desk.layer, "k").await == bytes && references(&desk).await.is_empty());
}

#[tokio::test]
async fn damaged_list_of_an_ended_upload_is_removed_while_others_are_unfinished() {
    let desk = Desk::new().await;
    let (ended, other) = (begin_upload(&desk).await, begin_upload(&desk).await);
    put_part(&desk, &ended, noise(300_000, 1)).await;
    let [key] = &references(&desk).await[..] else { panic!("one list of chunks") };
    replace_chunk(&*desk.below, key, Bytes::from_static(b"damaged")).await;
    let part = put_part(&desk, &other, noise(300_000, 2)).await;
    assert!(failed_collection(&desk).await.message().contains(&ended.0));
    desk.layer.abort_upload(&context(), &address("k"), &ended).await.unwrap();
    let report = desk.collect().await;
    assert_eq!((report.deleted_bytes, report.parts), (300_000, 1));
    assert_eq!(references(&desk).await.len(), 1);
    let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &other, request).await.unwrap();
    assert!(read(&*desk.layer, "k").await == noise(300_000, 2));
}

#[tokio::test]
async fn upload_with_a_damaged_record_is_named_and_ends_no_collection() {
    let faulty = Faulty::new(memory(), FaultPlan::none());
    let desk = Desk::with_store(faulty.clone()).await;
    let upload = begin_upload(&desk).await;
    let part = put_part(&desk, &upload, noise(300_000, 1)).await;
    put(&*desk.layer, "garbage", noise(300_000, 2)).await;
    delete(&desk, "garbage").await;
    let damage = Fault::FailBefore(Reason::CorruptData);
    faulty.set_plan(FaultPlan::none().with_fault(Operation::ListParts, FaultSchedule::Always, damage));
    let report = desk.collect().await;
    assert_eq!((report.deleted_bytes, report.parts, report.chunk_bytes), (300_000, 1, 300_000));
    assert_eq!(damaged(&desk), [format!("bucket/k (upload {upload})")]);
    assert!(desk.layer.last_collection_time(&context()).await.unwrap().is_some());
    faulty.set_plan(FaultPlan::none());
    desk.collect().await;
    assert!(damaged(&desk).is_empty());
    let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    assert!(read(&*desk.layer, "k").await == noise(300_000, 1));
}

#[tokio::test]
async fn damaged_list_is_kept_while_uploads_cannot_be_listed() {
    let faulty = Faulty::new(memory(), FaultPlan::none());
    let desk = Desk::with_store(faulty.clone()).await;
    let key = format!("part-{:032x}-{:032x}", 7, 8);
    replace_chunk(&*desk.below, &key, Bytes::from_static(b"damaged")).await;
    let damage = Fault::FailBefore(Reason::CorruptData);
    faulty.set_plan(FaultPlan::none().with_fault(Operation::ListUploads, FaultSchedule::Always, damage));
    let error = failed_collection(&desk).await;
    assert!(error.message().contains(&key), "{error}");
    assert_eq!(references(&desk).await, [key]);
    faulty.set_plan(FaultPlan::none());
    desk.collect().await;
    assert!(references(&desk).await.is_empty());
}
