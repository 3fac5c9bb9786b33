//! A read-only volume: reads go on, and no change reaches the store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use tradewind_cache::{Cached, CachedOptions, ReadOnly, Validation};
use tradewind_core::class::ClassUpdate;
use tradewind_core::listing::ListRequest;
use tradewind_core::multipart::{CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheSource;
use tradewind_core::store::{CopyPartRequest, CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{
    FaultPlan, Faulty, MemoryStore, Operation, SimulatedClock, context, drain, reason,
};
use tradewind_core::{
    Address, BucketName, Classes, ObjectStore, Precondition, ReadConditions, Reason, Tags, Versioning,
};

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn key() -> Address {
    Address::parse("bucket", "key").unwrap()
}

async fn open() -> (Arc<Faulty<MemoryStore>>, Arc<ReadOnly>) {
    let clock = SimulatedClock::new();
    let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
    store.create_bucket(&context(), &bucket()).await.unwrap();
    let mut staged = store.stage(&context(), &key(), StageRequest::default()).await.unwrap();
    staged.write("content".into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let options = CachedOptions {
        directory: None,
        disk_bytes: 0,
        memory_bytes: 1 << 20,
        validation: Validation::Owner,
        volume_id: "test".to_owned(),
    };
    let cached = Cached::open(store.clone(), options, clock).unwrap();
    (store, ReadOnly::new(cached))
}

#[tokio::test]
async fn reads_of_a_read_only_volume_are_served_and_cached() {
    let (_, volume) = open().await;
    for expected in [false, true] {
        let found = volume.get(&context(), &key(), GetRequest::default()).await.unwrap();
        let status = found.observation.cache.unwrap();
        assert_eq!(status.source == CacheSource::Ram, expected);
        assert_eq!(drain(found.body).await.unwrap(), "content");
    }
    volume.head(&context(), &key(), GetRequest::default()).await.unwrap();
    volume.head_bucket(&context(), &bucket()).await.unwrap();
    assert_eq!(volume.list_buckets(&context()).await.unwrap().len(), 1);
    let page = volume
        .list(&context(), &bucket(), &ListRequest { limit: 10, ..ListRequest::default() })
        .await
        .unwrap();
    assert_eq!(page.entries.len(), 1);
    volume.close().await.unwrap();
}

#[tokio::test]
async fn changes_of_a_read_only_volume_are_rejected_before_the_store() {
    let (store, volume) = open().await;
    let (context, bucket, key, upload) = (context(), bucket(), key(), UploadId("upload".to_owned()));
    let number = PartNumber::new(1).unwrap();
    let copy = CopyRequest {
        source: key.clone(),
        source_conditions: ReadConditions::default(),
        destination: key.clone(),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::default(),
    };
    let copy_part = CopyPartRequest {
        source: key.clone(),
        range: None,
        source_conditions: ReadConditions::default(),
        destination: key.clone(),
        upload: upload.clone(),
        number,
        etag: ETagForm::default(),
    };
    let all_calls = || Operation::ALL.iter().map(|operation| store.calls(*operation)).sum::<u64>();
    let calls = all_calls();
    let reasons = [
        reason(volume.create_bucket(&context, &BucketName::new("other").unwrap()).await),
        reason(volume.delete_bucket(&context, &bucket).await),
        reason(volume.set_versioning(&context, &bucket, Versioning::Enabled).await),
        reason(volume.stage(&context, &key, StageRequest::default()).await),
        reason(volume.delete(&context, &key, Precondition::None).await),
        reason(volume.copy(&context, copy).await),
        reason(volume.set_tags(&context, &key, Tags::default()).await),
        reason(volume.set_classes(&context, &key, ClassUpdate::replace(Classes::default())).await),
        reason(volume.create_upload(&context, &key, CreateUpload::default()).await),
        reason(volume.stage_part(&context, &key, &upload, number, StageRequest::default()).await),
        reason(volume.copy_part(&context, copy_part).await),
        reason(volume.complete_upload(&context, &key, &upload, CompleteUpload::default()).await),
        reason(volume.abort_upload(&context, &key, &upload).await),
    ];
    assert!(reasons.iter().all(|reason| *reason == Reason::AccessDenied), "{reasons:?}");
    assert_eq!(all_calls(), calls);
    let error = volume.delete(&context, &key, Precondition::None).await.unwrap_err();
    assert_eq!(error.to_string(), "this bucket is read-only on this server");
}
