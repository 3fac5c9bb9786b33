//! Changes of buckets and of keys at the same time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;
use tradewind_core::error::{Reason, Result};
use tradewind_core::layer::Method;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{Capabilities, CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{context, reason, write_all};
use tradewind_core::{Address, Context, ObjectStore, Precondition, ReadConditions};
use tradewind_layers::Routed;

use super::fixture::{DISK, SSD, address, bucket, by_class, keys, memory, of_class, put, tier};
use super::moves::{Gated, gated};

/// For what ends at once: only a lock that is held too long makes it pass.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A bucket is being deleted when a write, or an upload, begins in a tier that does not have it yet.
#[tokio::test]
async fn write_that_races_with_a_bucket_deletion_is_rejected() {
    for is_upload in [false, true] {
        let [ssd, disk] = [Gated::new(), Gated::new()];
        let routed = Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", disk.clone()), by_class());
        routed.create_bucket(&context(), &bucket()).await.unwrap();
        put(&*routed, "key", "bytes", of_class(DISK)).await.unwrap();
        routed.delete(&context(), &address("key"), Precondition::None).await.unwrap();
        let (reached, release) = disk.arm(Method::List);
        let deletion = tokio::spawn({
            let routed = routed.clone();
            async move { routed.delete_bucket(&context(), &bucket()).await }
        });
        reached.await.unwrap();
        let writer = tokio::spawn({
            let routed = routed.clone();
            async move {
                let create = CreateUpload { metadata: of_class(SSD).metadata, checksum: None };
                match is_upload {
                    true => routed.create_upload(&context(), &address("key"), create).await.map(drop),
                    false => put(&*routed, "key", "bytes", of_class(SSD)).await.map(drop),
                }
            }
        });
        // The writer runs until it waits for the deletion.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        release.send(()).unwrap();
        deletion.await.unwrap().unwrap();
        assert_eq!(reason(writer.await.unwrap()), Reason::NoSuchBucket);
        assert_eq!(reason(ssd.head_bucket(&context(), &bucket()).await), Reason::NoSuchBucket);
    }
}

#[tokio::test]
async fn long_change_of_a_key_does_not_stall_its_bucket() {
    let ([ssd, _], routed) = gated().await;
    let (reached, release) = ssd.arm(Method::Copy);
    let copy = tokio::spawn({
        let routed = routed.clone();
        let request = CopyRequest {
            source: address("other"),
            source_conditions: ReadConditions::default(),
            destination: address("key"),
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::Md5,
        };
        async move { routed.copy(&context(), request).await }
    });
    reached.await.unwrap();
    // Otherwise, the listing would wait for the copy, and the write for the listing.
    let listed = timeout(MAX_WAIT, keys(&*routed)).await.expect("a listing does not wait");
    assert_eq!(listed, ["key", "other"]);
    let written = timeout(MAX_WAIT, put(&*routed, "third", "bytes", of_class(DISK))).await;
    written.expect("a write does not wait").unwrap();
    // Clients create the bucket before an upload, whether it exists or not.
    let created = timeout(MAX_WAIT, routed.create_bucket(&context(), &bucket())).await;
    assert_eq!(reason(created.expect("CreateBucket does not wait")), Reason::BucketExists);
    release.send(()).unwrap();
    copy.await.unwrap().unwrap();
    assert_eq!(keys(&*routed).await, ["key", "other", "third"]);
}

/// A service that ignores the conditions of completions.
#[derive(Debug)]
struct Service {
    inner: Arc<dyn ObjectStore>,
    capabilities: Capabilities,
}

#[async_trait]
impl ObjectStore for Service {
    tradewind_core::forward_methods! {
        to: |service| &service.inner;
        around: |_service, _call, response| response.await;
        prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, get,
        stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, stage_part,
        copy_part, list_parts, list_uploads, abort_upload, close,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        let request = CompleteUpload { precondition: Precondition::None, ..request };
        self.inner.complete_upload(context, address, upload, request).await
    }
}

#[tokio::test]
async fn completion_whose_condition_fails_replaces_no_object_of_a_service() {
    let inner = memory();
    let capabilities = Capabilities { generations: false, ..inner.capabilities().clone() };
    let service = Arc::new(Service { inner, capabilities });
    let routed = Routed::new(vec![tier("ssd", memory())], tier("disk", service), by_class());
    routed.create_bucket(&context(), &bucket()).await.unwrap();
    let old = put(&*routed, "key", "bytes", of_class(DISK)).await.unwrap();
    let create = CreateUpload { metadata: of_class(DISK).metadata, checksum: None };
    let id = routed.create_upload(&context(), &address("key"), create).await.unwrap();
    let number = PartNumber::new(1).unwrap();
    let part = StageRequest::default();
    let mut staged = routed.stage_part(&context(), &address("key"), &id, number, part).await.unwrap();
    write_all(&mut *staged, "part".into()).await.unwrap();
    let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
    let complete = async || {
        let parts = vec![CompletePart { number, etag: etag.clone(), checksum: None }];
        let request =
            CompleteUpload { parts, precondition: Precondition::Absent, ..CompleteUpload::default() };
        reason(routed.complete_upload(&context(), &address("key"), &id, request).await)
    };
    assert_eq!(complete().await, Reason::PreconditionFailed);
    let found = routed.head(&context(), &address("key"), GetRequest::default()).await.unwrap();
    assert_eq!(found.info.etag, old.etag);
    routed.abort_upload(&context(), &address("key"), &id).await.unwrap();
    assert_eq!(complete().await, Reason::NoSuchUpload);
}
