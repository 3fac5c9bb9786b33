//! Classes of data in another S3 service than Tradewind: they are its user metadata. The service is a gateway behind a
//! proxy that hides what it is, and that rejects headers that only Tradewind has.

use std::sync::Arc;

use futures::FutureExt as _;
use http::StatusCode;
use tradewind_core::class::{ClassRange, ClassUpdate};
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::{CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, Feature, GetRequest, StageRequest};
use tradewind_core::testing::{conformance, context, write_all};
use tradewind_core::{Address, Class, Classes, Metadata, ObjectStore, Precondition, ReadConditions};

use crate::support::http_server::{HttpServer, empty, forward};
use crate::{gateway, leaf_over};

/// A service and its address.
pub async fn other_service() -> HttpServer {
    let gateway = gateway().await;
    HttpServer::start(None, move |request| async move {
        if request.headers().keys().any(|name| name.as_str().starts_with("x-dss-")) {
            return empty(StatusCode::IM_A_TEAPOT);
        }
        let mut response = forward(request, gateway).await;
        response.headers_mut().remove("server");
        response.headers_mut().remove("x-amz-id-2");
        response
    })
}

/// A store over such a service, with the bucket `bucket`.
async fn store() -> (HttpServer, Arc<dyn ObjectStore>) {
    let service = other_service().await;
    let store: Arc<dyn ObjectStore> = leaf_over(service.address, |_| {});
    store.create_bucket(&context(), &address("x").bucket).await.unwrap();
    (service, store)
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn classes(object: Option<u8>, ranges: &str) -> Classes {
    let ranges = if ranges.is_empty() { Vec::new() } else { Classes::parse_ranges(ranges).unwrap() };
    Classes { object: object.map(|value| Class::new(value).unwrap()), ranges, retention: None }
}

fn metadata(classes: Classes) -> Metadata {
    Metadata { classes, user: vec![("a".to_owned(), "b".to_owned())], ..Metadata::default() }
}

async fn put(store: &dyn ObjectStore, key: &str, metadata: Metadata) -> Result<()> {
    let request = StageRequest { metadata, ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address(key), request).await?;
    write_all(&mut *staged, vec![7; 600_000].into()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

async fn head(store: &dyn ObjectStore, key: &str) -> Metadata {
    store.head(&context(), &address(key), GetRequest::default()).await.unwrap().info.metadata
}

fn copy(to: &str, metadata: Option<Metadata>) -> CopyRequest {
    CopyRequest {
        source: address("k"),
        source_conditions: ReadConditions::default(),
        destination: address(to),
        metadata,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_service_keeps_classes_as_user_metadata() {
    let (_service, store) = store().await;
    for stored in [classes(Some(25), ""), classes(None, "0-64-25,1000-32-26"), classes(Some(0), "9-1-31")] {
        put(&*store, "k", metadata(stored.clone())).await.unwrap();
        assert_eq!(head(&*store, "k").await, metadata(stored.clone()), "not among the user metadata");
        let found = store.get(&context(), &address("k"), GetRequest::default()).await.unwrap();
        assert_eq!(found.info.metadata.classes, stored);
    }
    put(&*store, "k", metadata(Classes::default())).await.unwrap();
    assert_eq!(head(&*store, "k").await, metadata(Classes::default()));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_in_another_service_keep_or_replace_classes() {
    let (_service, store) = store().await;
    let old = classes(Some(25), "0-64-25");
    put(&*store, "k", metadata(old.clone())).await.unwrap();
    store.copy(&context(), copy("copy", None)).await.unwrap();
    assert_eq!(head(&*store, "copy").await, metadata(old));
    for new in [classes(Some(3), ""), classes(None, "1-1-4"), Classes::default()] {
        store.copy(&context(), copy("copy", Some(metadata(new.clone())))).await.unwrap();
        assert_eq!(head(&*store, "copy").await, metadata(new));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_to_another_service_keep_classes() {
    let (_service, store) = store().await;
    let stored = classes(Some(25), "0-64-25");
    let create = CreateUpload { metadata: metadata(stored.clone()), ..CreateUpload::default() };
    let upload = store.create_upload(&context(), &address("k"), create).await.unwrap();
    let number = PartNumber::new(1).unwrap();
    let request = StageRequest::default();
    let mut staged = store.stage_part(&context(), &address("k"), &upload, number, request).await.unwrap();
    write_all(&mut *staged, vec![7; 600_000].into()).await.unwrap();
    let (part, _) = staged.commit(Expected::default()).await.unwrap();
    let part = tradewind_core::multipart::CompletePart { number, etag: part.etag, checksum: None };
    let complete = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    store.complete_upload(&context(), &address("k"), &upload, complete).await.unwrap();
    assert_eq!(head(&*store, "k").await, metadata(stored));
}

/// A part of the ranges would be another classification.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_do_not_fit_are_an_error_and_nothing_is_stored() {
    let (_service, store) = store().await;
    let ranges = |count| (0..count).map(|n| format!("{n:04}-0001-1")).collect::<Vec<_>>().join(",");
    let many = Metadata { user: Vec::new(), ..metadata(classes(None, &ranges(1000))) };
    let create = CreateUpload { metadata: many.clone(), ..CreateUpload::default() };
    let errors = [
        put(&*store, "k", many.clone()).await.unwrap_err(),
        store.create_upload(&context(), &address("k"), create).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.reason(), Reason::MetadataTooLarge);
        assert!(error.to_string().contains("classes of 1000 ranges"), "{error}");
    }
    let missing = store.head(&context(), &address("k"), GetRequest::default()).await.unwrap_err();
    assert_eq!(missing.reason(), Reason::NoSuchKey);
    put(&*store, "k", metadata(classes(None, &ranges(150)))).await.unwrap();
    let copied = store.copy(&context(), copy("copy", Some(many))).await.unwrap_err();
    assert_eq!(copied.reason(), Reason::MetadataTooLarge);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_service_does_not_change_classes() {
    let (_service, store) = store().await;
    put(&*store, "k", metadata(classes(Some(25), ""))).await.unwrap();
    assert!(!store.capabilities().supports(Feature::ClassChanges));
    let update = ClassUpdate { ranges: Some(Vec::<ClassRange>::new()), ..ClassUpdate::default() };
    let error = store.set_classes(&context(), &address("k"), update).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unsupported);
    assert!(error.to_string().contains("copy the object onto itself"), "{error}");
}

/// All guarantees hold with classes as user metadata.
#[tokio::test(flavor = "multi_thread")]
async fn conforms_to_another_service() {
    let cases: Vec<_> = conformance::cases()
        .into_iter()
        .filter(|case| {
            case.name.contains("metadata/") || case.name.contains("classes/") || case.name.contains("copy/")
        })
        .collect();
    assert!(cases.len() > 10);
    for case in cases {
        let service = other_service().await;
        let store: Arc<dyn ObjectStore> = leaf_over(service.address, |_| {});
        if case.suits(store.capabilities()) {
            case.run(store).boxed().await;
        }
    }
}
