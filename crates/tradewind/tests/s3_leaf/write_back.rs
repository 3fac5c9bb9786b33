//! Write-back over a service: what the service may reject goes through, so that the client gets its error.

use std::sync::Arc;
use std::time::Duration;

use tradewind_backend::s3::{MappedClasses, S3Options};
use tradewind_cache::{AllowAll, WriteBack, WriteBackOptions};
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, reason, write_all};
use tradewind_core::{Address, Class, Metadata, ObjectStore, SystemClock, Tags};

use crate::classes::other_service;
use crate::{gateway, leaf_over};

/// Write-back over a leaf, with the bucket `bucket`. Nothing in the journal is written back.
async fn write_back(leaf: Arc<dyn ObjectStore>) -> Arc<WriteBack> {
    let clock = SystemClock::shared();
    let options = WriteBackOptions {
        delay: Duration::from_secs(100_000),
        close_timeout: Duration::ZERO,
        ..WriteBackOptions::default()
    };
    let journal = MemoryStore::new(clock.clone());
    let layer = WriteBack::open(leaf, journal, Arc::new(AllowAll), options, clock).await.unwrap();
    layer.create_bucket(&context(), &address("x").bucket).await.unwrap();
    layer
}

fn map_class_tag(options: &mut S3Options) {
    options.mapped_classes = MappedClasses { tag: Some("c".to_owned()), ..MappedClasses::default() };
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn classified(value: u8) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.classes.object = Some(Class::new(value).unwrap());
    metadata
}

fn with_user(name: &str, value: &str, metadata: Metadata) -> Metadata {
    Metadata { user: vec![(name.to_owned(), value.to_owned())], ..metadata }
}

fn with_tags(keys: &[&str], metadata: Metadata) -> Metadata {
    let pairs = keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect();
    Metadata { tags: Tags::new(pairs).unwrap(), ..metadata }
}

async fn put(store: &dyn ObjectStore, metadata: Metadata) -> Result<()> {
    let request = StageRequest { metadata, size: Some(9), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address("k"), request).await?;
    write_all(&mut *staged, vec![7; 9].into()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

/// Checks that the client gets the error of the leaf, and that the journal stays empty.
async fn check_rejected(layer: &WriteBack, metadata: Metadata, expected: Reason) {
    assert_eq!(reason(put(layer, metadata.clone()).await), expected, "{metadata:?}");
    assert_eq!(layer.status().dirty_objects, 0, "{metadata:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_does_not_fit_with_classes_is_not_acknowledged() {
    let service = other_service().await;
    let layer = write_back(leaf_over(service.address, |_| {})).await;
    let long = |bytes: usize| with_user("n", &"v".repeat(bytes - 1), classified(25));
    // The class has 18 bytes: the name without its prefix, and the value.
    check_rejected(&layer, long(2040), Reason::MetadataTooLarge).await;
    check_rejected(&layer, long(2031), Reason::MetadataTooLarge).await;
    put(&*layer, long(2030)).await.unwrap();
    assert_eq!(layer.status().dirty_objects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_with_the_name_of_a_class_is_not_acknowledged() {
    let service = other_service().await;
    let layer = write_back(leaf_over(service.address, |_| {})).await;
    for name in ["dss-object-class", "dss-range-class", "dss-retention"] {
        let named = with_user(name, "x", Metadata::default());
        check_rejected(&layer, named, Reason::InvalidArgument).await;
    }
    layer.delete_bucket(&context(), &address("x").bucket).await.unwrap();
    // A Tradewind server has headers for classes.
    let layer = write_back(leaf_over(gateway().await, |_| {})).await;
    put(&*layer, with_user("dss-object-class", "x", classified(25))).await.unwrap();
    assert_eq!(layer.status().dirty_objects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_without_room_for_that_of_the_class_are_not_acknowledged() {
    let layer = write_back(leaf_over(gateway().await, map_class_tag)).await;
    let ten = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    check_rejected(&layer, with_tags(&ten, classified(25)), Reason::InvalidTag).await;
    check_rejected(&layer, with_tags(&["c"], Metadata::default()), Reason::InvalidTag).await;
    put(&*layer, with_tags(&ten[1..], classified(25))).await.unwrap();
    assert_eq!(layer.status().dirty_objects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_class_is_for_the_service_to_accept() {
    let layer = write_back(leaf_over(gateway().await, |_| {})).await;
    let mut stored = Metadata::default();
    stored.headers.storage_class = Some("GLACIER".to_owned());
    put(&*layer, stored.clone()).await.unwrap();
    assert_eq!((layer.status().dirty_objects, layer.status().through), (0, 1));
    let found = layer.head(&context(), &address("k"), GetRequest::default()).await.unwrap().info.metadata;
    assert_eq!(found, stored);
    stored.headers.storage_class = Some("UNKNOWN".to_owned());
    check_rejected(&layer, stored, Reason::InvalidRequest).await;
}

/// A leaf that has had no response assumes the strictest service.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_not_yet_identified_accepts_what_all_accept() {
    let leaf = leaf_over(gateway().await, |_| {});
    let accepts = |metadata: Metadata| {
        let request = StageRequest { metadata, size: Some(9), ..StageRequest::default() };
        leaf.accepts(&address("k"), &request)
    };
    let tagged = with_tags(&["a"], Metadata::default());
    let named = with_user("dss-retention", "x", Metadata::default());
    assert!(accepts(classified(25)) && !accepts(tagged.clone()) && !accepts(named.clone()));
    leaf.list_buckets(&context()).await.unwrap();
    assert!(accepts(tagged) && accepts(named));
}
