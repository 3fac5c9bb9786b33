//! Changes of buckets and of keys at the same time.

use std::time::Duration;

use tokio::time::timeout;
use tradewind_core::error::Reason;
use tradewind_core::layer::Method;
use tradewind_core::multipart::CreateUpload;
use tradewind_core::store::{CopyRequest, ETagForm};
use tradewind_core::testing::{context, reason};
use tradewind_core::{ObjectStore, Precondition, ReadConditions};
use tradewind_layers::Routed;

use super::fixture::{DISK, SSD, address, bucket, by_class, keys, of_class, put, tier};
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
    release.send(()).unwrap();
    copy.await.unwrap().unwrap();
    assert_eq!(keys(&*routed).await, ["key", "other", "third"]);
}
