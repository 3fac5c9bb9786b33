//! Classes of data as storage classes and as a tag of the service, for its own rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use tradewind_backend::s3::{MappedClasses, S3Options};
use tradewind_core::error::Reason;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{conformance, context, write_all};
use tradewind_core::{Address, Class, Metadata, ObjectStore, Precondition, ReadConditions, Tags};

use crate::support::http_server::{HttpServer, forward};
use crate::{gateway, leaf_over};

/// Classes 28 and 29 have a storage class, and each class has a tag.
fn map_classes(options: &mut S3Options) {
    let class = |value| Class::new(value).unwrap();
    options.mapped_classes = MappedClasses {
        storage_classes: [(class(28), "STANDARD_IA".to_owned()), (class(29), "GLACIER_IR".to_owned())].into(),
        tag: Some("dss-class".to_owned()),
    };
}

/// A leaf with mapped classes, and one that shows what the service has.
struct Leaves {
    mapped: Arc<dyn ObjectStore>,
    plain: Arc<dyn ObjectStore>,
}

impl Leaves {
    async fn start() -> Self {
        let service = gateway().await;
        let mapped: Arc<dyn ObjectStore> = leaf_over(service, map_classes);
        let plain: Arc<dyn ObjectStore> = leaf_over(service, |_| {});
        mapped.create_bucket(&context(), &address("x").bucket).await.unwrap();
        Self { mapped, plain }
    }

    /// Storage class and tags in the service. Checks that the mapped leaf reports the tags without that of the class.
    async fn found(&self, key: &str) -> (Option<String>, Vec<(String, String)>) {
        let head = async |store: &dyn ObjectStore| {
            store.head(&context(), &address(key), GetRequest::default()).await.unwrap().info.metadata
        };
        let (stored, mut reported) =
            (head(&*self.plain).await, head(&*self.mapped).await.tags.pairs().to_vec());
        if let Some(class) = stored.classes.object {
            reported.push(pair("dss-class", &class.value().to_string()));
        }
        let (mut expected, mut tags) = (reported, stored.tags.pairs().to_vec());
        expected.sort();
        tags.sort();
        assert_eq!(tags, expected);
        (stored.headers.storage_class, tags)
    }
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn classified(class: Option<u8>) -> Metadata {
    let mut metadata = Metadata { tags: Tags::new(vec![pair("a", "b")]).unwrap(), ..Metadata::default() };
    metadata.classes.object = class.map(|value| Class::new(value).unwrap());
    metadata
}

async fn put(store: &dyn ObjectStore, key: &str, metadata: Metadata) {
    let request = StageRequest { metadata, size: Some(9), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address(key), request).await.unwrap();
    write_all(&mut *staged, vec![7; 9].into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
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
async fn the_class_of_a_write_gives_its_storage_class_and_tag() {
    let leaves = Leaves::start().await;
    for (class, storage_class) in [(Some(28), Some("STANDARD_IA")), (Some(25), None), (None, None)] {
        put(&*leaves.mapped, "k", classified(class)).await;
        let (found, tags) = leaves.found("k").await;
        assert_eq!((found.as_deref(), tags.len()), (storage_class, 1 + usize::from(class.is_some())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_tags_leave_the_tag_of_the_class() {
    let leaves = Leaves::start().await;
    put(&*leaves.mapped, "k", classified(Some(28))).await;
    let new = Tags::new(vec![pair("new", "1")]).unwrap();
    leaves.mapped.set_tags(&context(), &address("k"), new).await.unwrap();
    assert_eq!(leaves.found("k").await.1, [pair("dss-class", "28"), pair("new", "1")]);
    leaves.mapped.set_tags(&context(), &address("k"), Tags::default()).await.unwrap();
    assert_eq!(leaves.found("k").await.1, [pair("dss-class", "28")]);
    let reserved = Tags::new(vec![pair("dss-class", "1")]).unwrap();
    let error = leaves.mapped.set_tags(&context(), &address("k"), reserved).await.unwrap_err();
    assert_eq!(error.reason(), Reason::InvalidTag);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_uploads_follow_the_class_of_the_result() {
    let leaves = Leaves::start().await;
    put(&*leaves.mapped, "k", classified(Some(28))).await;
    for (key, class, storage_class) in [("copy", None, "STANDARD_IA"), ("k", Some(29), "GLACIER_IR")] {
        leaves.mapped.copy(&context(), copy(key, class.map(|class| classified(Some(class))))).await.unwrap();
        let (found, tags) = leaves.found(key).await;
        assert_eq!((found.as_deref(), tags.len()), (Some(storage_class), 2), "{key}");
    }
    let create = CreateUpload { metadata: classified(Some(28)), ..CreateUpload::default() };
    let (to, number) = (address("upload"), PartNumber::new(1).unwrap());
    let upload = leaves.mapped.create_upload(&context(), &to, create).await.unwrap();
    let request = StageRequest::default();
    let mut staged = leaves.mapped.stage_part(&context(), &to, &upload, number, request).await.unwrap();
    write_all(&mut *staged, vec![7; 9].into()).await.unwrap();
    let part = staged.commit(Expected::default()).await.unwrap().0;
    let part = CompletePart { number, etag: part.etag, checksum: None };
    let complete = CompleteUpload { parts: vec![part], ..CompleteUpload::default() };
    leaves.mapped.complete_upload(&context(), &to, &upload, complete).await.unwrap();
    let (found, tags) = leaves.found("upload").await;
    assert_eq!((found.as_deref(), tags.len()), (Some("STANDARD_IA"), 2));
}

/// The metadata is read before the bytes are copied: another object in between must not be mixed with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_overwritten_during_a_copy_is_read_again() {
    let gateway = gateway().await;
    let plain: Arc<dyn ObjectStore> = leaf_over(gateway, |_| {});
    plain.create_bucket(&context(), &address("x").bucket).await.unwrap();
    put(&*plain, "k", classified(Some(28))).await;
    let (overwriting, copies) = (plain.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = copies.clone();
    let service = HttpServer::start(None, move |request| {
        let (plain, copies) = (overwriting.clone(), counted.clone());
        async move {
            let is_copy = request.headers().contains_key("x-amz-copy-source");
            if is_copy && copies.fetch_add(1, Ordering::Relaxed) == 0 {
                let request = StageRequest { metadata: classified(Some(29)), ..StageRequest::default() };
                let mut staged = plain.stage(&context(), &address("k"), request).await.unwrap();
                write_all(&mut *staged, vec![8; 5].into()).await.unwrap();
                staged.commit(Expected::default()).await.unwrap();
            }
            forward(request, gateway).await
        }
    });
    let mapped: Arc<dyn ObjectStore> = leaf_over(service.address, map_classes);
    let copied = mapped.copy(&context(), copy("copy", None)).await.unwrap();
    let found = plain.head(&context(), &address("copy"), GetRequest::default()).await.unwrap().info;
    assert_eq!((copied.size, found.size, copies.load(Ordering::Relaxed)), (5, 5, 2));
    assert_eq!(found.metadata.classes.object.map(Class::value), Some(29));
    assert_eq!(found.metadata.headers.storage_class.as_deref(), Some("GLACIER_IR"));
}

/// The conditions of the copy pin the source to what was read: it is not read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_in_radosgw_reads_the_head_of_its_source_once() {
    let gateway = gateway().await;
    let heads = Arc::new(AtomicUsize::new(0));
    let counted = heads.clone();
    let service = HttpServer::start(None, move |request| {
        let is_head = request.method() == http::Method::HEAD && request.uri().path() == "/bucket/k";
        counted.fetch_add(usize::from(is_head), Ordering::Relaxed);
        async move {
            let mut response = forward(request, gateway).await;
            let id = http::HeaderValue::from_static("tx00000cdc607c7513cb9ba-006b0282a7-101a-default");
            response.headers_mut().insert("x-amz-request-id", id);
            response.headers_mut().remove("server");
            response.headers_mut().remove("x-amz-id-2");
            response
        }
    });
    let mapped: Arc<dyn ObjectStore> = leaf_over(service.address, map_classes);
    mapped.create_bucket(&context(), &address("x").bucket).await.unwrap();
    put(&*mapped, "k", classified(Some(28))).await;
    heads.store(0, Ordering::Relaxed);
    mapped.copy(&context(), copy("copy", None)).await.unwrap();
    assert_eq!(heads.load(Ordering::Relaxed), 1);
    let found = mapped.head(&context(), &address("copy"), GetRequest::default()).await.unwrap().info.metadata;
    assert_eq!((found.tags.pairs(), found.classes), (&[pair("a", "b")][..], classified(Some(28)).classes));
}

/// All guarantees hold with mapped classes.
#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_mapped_classes() {
    let topics = ["metadata/", "classes/", "copy/", "tags/"];
    let is_concerned = |name: &str| topics.iter().any(|topic| name.contains(topic));
    let cases: Vec<_> = conformance::cases().into_iter().filter(|case| is_concerned(case.name)).collect();
    assert!(cases.len() > 10);
    for case in cases {
        let store: Arc<dyn ObjectStore> = leaf_over(gateway().await, map_classes);
        if case.suits(store.capabilities()) {
            case.run(store).boxed().await;
        }
    }
}
