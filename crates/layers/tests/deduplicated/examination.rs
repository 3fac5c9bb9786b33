//! The examination of a store without a bucket of chunks: it finds everything that is deduplicated, goes on after
//! errors, and does not end while an object cannot be examined.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{context, write_all};
use tradewind_core::{Address, BucketName, Context, ObjectStore, Precondition};
use tradewind_layers::Deduplicated;

use crate::support::{CHUNKS, Desk, POLICY, address, memory, noise, put, read};

/// A store whose HEADs of some keys fail.
#[derive(Debug)]
struct FailingHeads {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<BTreeMap<&'static str, Reason>>,
    heads: Mutex<Vec<String>>,
}

impl FailingHeads {
    fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, faults: Mutex::default(), heads: Mutex::default() })
    }

    fn fail(&self, key: &'static str, reason: Reason) {
        self.faults.lock().insert(key, reason);
    }

    fn repair(&self) {
        self.faults.lock().clear();
    }

    /// The keys of HEADs since the last call.
    fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock())
    }
}

#[async_trait]
impl ObjectStore for FailingHeads {
    tradewind_core::forward_methods! {
        to: |store| &store.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.heads.lock().push(address.key.as_str().to_owned());
        let fault = self.faults.lock().get(address.key.as_str()).copied();
        match fault {
            Some(reason) => Err(Error::new(reason, "the HEAD fails")),
            None => self.inner.head(context, address, request).await,
        }
    }
}

/// A store with the plain objects `a` to `e`, and the layer over it, which is not ready.
async fn unprepared() -> (Arc<FailingHeads>, Arc<Deduplicated>) {
    let below = memory();
    below.create_bucket(&context(), &address("k").bucket).await.unwrap();
    for key in ["a", "b", "c", "d", "e"] {
        put(&*below, key, noise(1_000, 1)).await;
    }
    let store = FailingHeads::new(below);
    let layer = Deduplicated::open_unprepared(&context(), store.clone(), POLICY).await.unwrap();
    store.take_heads();
    (store, layer)
}

async fn prepare(layer: &Deduplicated) -> Reason {
    layer.prepare(&context()).await.unwrap_err().reason()
}

/// Loses the bucket of chunks.
async fn lose_chunks(below: &dyn ObjectStore) {
    let bucket = BucketName::new(CHUNKS).unwrap();
    let request = tradewind_core::listing::ListRequest { limit: 1_000, ..Default::default() };
    let page = below.list(&context(), &bucket, &request).await.unwrap();
    for entry in page.entries {
        let address = Address::parse(CHUNKS, entry.name()).unwrap();
        below.delete(&context(), &address, Precondition::None).await.unwrap();
    }
    below.delete_bucket(&context(), &bucket).await.unwrap();
}

#[tokio::test]
async fn examination_goes_on_with_the_object_whose_head_failed() {
    let (store, layer) = unprepared().await;
    store.fail("c", Reason::Overloaded);
    assert_eq!(prepare(&layer).await, Reason::Overloaded);
    assert_eq!(store.take_heads(), ["a", "b", "c"]);
    assert_eq!(prepare(&layer).await, Reason::Overloaded);
    assert_eq!((store.take_heads(), layer.examined_objects()), (vec!["c".to_owned()], 2));
    store.repair();
    layer.prepare(&context()).await.unwrap();
    assert_eq!(store.take_heads(), ["c", "d", "e"]);
    assert_eq!((layer.is_ready(), layer.examined_objects()), (true, 5));
}

#[tokio::test]
async fn layer_is_not_ready_while_a_damaged_object_may_be_deduplicated() {
    let (store, layer) = unprepared().await;
    store.fail("b", Reason::CorruptData);
    let error = layer.prepare(&context()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CorruptData);
    assert!(error.message().contains("\"b\"") && error.message().contains("delete"), "{error}");
    assert_eq!(store.take_heads(), ["a", "b", "c", "d", "e"]);
    let unreadable = layer.unreadable_objects();
    assert_eq!((unreadable.len(), unreadable[0].key.as_str()), (1, "b"));
    assert_eq!(prepare(&layer).await, Reason::CorruptData);
    assert_eq!(store.take_heads(), ["b"], "only the damaged object is examined again");
    let bucket = BucketName::new(CHUNKS).unwrap();
    assert_eq!(store.head_bucket(&context(), &bucket).await.unwrap_err().reason(), Reason::NoSuchBucket);
    put(&*layer, "late", noise(300_000, 2)).await;
    assert_eq!(layer.counts().stored_chunks, 0);
    layer.delete(&context(), &address("b"), Precondition::None).await.unwrap();
    store.repair();
    layer.prepare(&context()).await.unwrap();
    assert!(layer.is_ready() && layer.unreadable_objects().is_empty());
}

/// A damaged object does not keep the examination from those after it.
#[tokio::test]
async fn deduplicated_object_is_found_behind_a_damaged_one() {
    let desk = Desk::new().await;
    put(&*desk.layer, "a", noise(1_000, 1)).await;
    put(&*desk.layer, "z", noise(300_000, 1)).await;
    lose_chunks(&*desk.below).await;
    let store = FailingHeads::new(desk.below.clone());
    store.fail("a", Reason::CorruptData);
    let layer = Deduplicated::open_unprepared(&context(), store.clone(), POLICY).await.unwrap();
    for _ in 0..2 {
        let error = layer.prepare(&context()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidArgument);
        assert!(error.message().contains("\"z\""), "{error}");
    }
    store.fail("z", Reason::Unsupported);
    assert_eq!(prepare(&layer).await, Reason::Unsupported);
}

async fn put_part(store: &dyn ObjectStore, upload: &UploadId, seed: u64) -> CompletePart {
    let number = PartNumber::new(1).unwrap();
    let request = StageRequest::default();
    let mut staged = store.stage_part(&context(), &address("k"), upload, number, request).await.unwrap();
    write_all(&mut *staged, noise(300_000, seed)).await.unwrap();
    let committed = staged.commit(Expected::default()).await.unwrap().0;
    CompletePart { number, etag: committed.etag, checksum: None }
}

/// Completed behind the cursor of the examination, it would be an object whose chunks are lost.
#[tokio::test]
async fn upload_with_deduplicated_parts_and_without_its_chunks_is_found_before_requests_are_served() {
    let desk = Desk::new().await;
    let upload = desk.layer.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
    put_part(&*desk.layer, &upload, 1).await;
    lose_chunks(&*desk.below).await;
    let bucket = BucketName::new(CHUNKS).unwrap();
    for _ in 0..2 {
        let opened = Deduplicated::open_unprepared(&context(), desk.below.clone(), POLICY).await;
        let error = opened.unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidArgument);
        assert!(error.message().contains("unfinished upload of \"k\""), "{error}");
        // First missing, then without its objects.
        match desk.below.create_bucket(&context(), &bucket).await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.reason(), Reason::BucketExists),
        }
    }
    desk.below.abort_upload(&context(), &address("k"), &upload).await.unwrap();
    let layer = Deduplicated::open(&context(), desk.below.clone(), POLICY).await.unwrap();
    assert!(layer.is_ready());
}

#[tokio::test]
async fn upload_with_plain_parts_is_completed_while_objects_are_examined() {
    let (store, _) = unprepared().await;
    let upload = store.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
    put_part(&*store, &upload, 1).await;
    let layer = Deduplicated::open_unprepared(&context(), store.clone(), POLICY).await.unwrap();
    let part = put_part(&*layer, &upload, 2).await;
    let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    layer.prepare(&context()).await.unwrap();
    assert!(read(&*layer, "k").await == noise(300_000, 2));
}

/// Parts of uploads that were completed are counted once, as objects.
#[tokio::test]
async fn collection_counts_parts_of_unfinished_uploads_apart() {
    let desk = Desk::new().await;
    let upload = desk.layer.create_upload(&context(), &address("k"), CreateUpload::default()).await.unwrap();
    let part = put_part(&*desk.layer, &upload, 1).await;
    let report = desk.collect().await;
    assert_eq!((report.objects, report.parts, report.part_bytes), (0, 1, 300_000));
    assert_eq!((report.ratio(), report.deleted_chunks), (None, 0));
    let request = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    desk.layer.complete_upload(&context(), &address("k"), &upload, request).await.unwrap();
    let report = desk.collect().await;
    assert_eq!((report.objects, report.referenced_bytes, report.parts), (1, 300_000, 0));
    assert_eq!(report.ratio(), Some(1.0));
}
