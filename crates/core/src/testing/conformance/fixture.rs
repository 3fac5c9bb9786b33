//! The fixture of the cases: a store with its two buckets, and shorthands to write and read. It panics if a step that
//! only prepares a case fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use md5::Digest as _;

use crate::budget::Budget;
use crate::checksum::Checksum;
use crate::clock::SystemClock;
use crate::condition::Precondition;
use crate::context::{Context, Deadline};
use crate::error::{Reason, Result};
use crate::listing::{ListEntry, ListRequest, ObjectSummary};
use crate::metadata::{Metadata, SystemHeaders, Tags};
use crate::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use crate::name::{Address, BucketName};
use crate::object::Expected;
use crate::object::{Committed, ETag, ObjectInfo};
use crate::range::Span;
use crate::store::{
    Capabilities, CopyRequest, Deleted, ETagForm, Feature, GetRequest, ObjectStore, Select, StageRequest,
};
use crate::testing::{context, context_until, write_all};
use crate::version::{ListVersions, ListedVersion, VersionId, Versioning};

pub(super) use crate::testing::{drain, pattern, reason};

/// The names of the buckets that cases write to.
pub const BUCKETS: [&str; 2] = ["conformance-one", "conformance-two"];

/// A store under test whose buckets exist. Cheap to clone into tasks.
#[derive(Clone)]
pub(super) struct Fixture {
    pub store: Arc<dyn ObjectStore>,
}

impl Fixture {
    pub async fn open(store: Arc<dyn ObjectStore>) -> Self {
        if store.capabilities().owns_buckets {
            for name in BUCKETS {
                store.create_bucket(&context(), &bucket(name)).await.expect("a bucket can be created");
            }
        }
        Self { store }
    }

    /// The store's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    /// Returns true if the store has this feature.
    pub fn supports(&self, what: Feature) -> bool {
        self.capabilities().supports(what)
    }

    /// The metadata that the store returns for `metadata`.
    pub fn stored_metadata(&self, mut metadata: Metadata) -> Metadata {
        if !self.supports(Feature::Classes) {
            metadata.classes = Default::default();
        }
        if !self.supports(Feature::TagOrder) {
            let mut pairs = metadata.tags.pairs().to_vec();
            pairs.sort();
            metadata.tags = Tags::new(pairs).expect("they were legal before");
        }
        metadata
    }

    /// The checksums that the store stores of `checksums`.
    pub fn stored_checksums<const N: usize>(&self, checksums: [Checksum; N]) -> Vec<Checksum> {
        checksums.into_iter().filter(|_| self.supports(Feature::Checksums)).collect()
    }

    pub async fn put(&self, key: &str, bytes: impl Into<Bytes>) -> Committed {
        self.put_as(key, bytes, StageRequest::default()).await
    }

    pub async fn put_as(&self, key: &str, bytes: impl Into<Bytes>, request: StageRequest) -> Committed {
        self.try_put(key, bytes, request, Expected::default()).await.expect("a PUT succeeds")
    }

    pub async fn put_if(
        &self,
        key: &str,
        bytes: impl Into<Bytes>,
        precondition: Precondition,
    ) -> Result<Committed> {
        let request = StageRequest { precondition, ..StageRequest::default() };
        self.try_put(key, bytes, request, Expected::default()).await
    }

    pub async fn try_put(
        &self,
        key: &str,
        bytes: impl Into<Bytes>,
        request: StageRequest,
        expected: Expected,
    ) -> Result<Committed> {
        self.put_within(&context(), &key_address(key), bytes.into(), request, expected).await
    }

    pub async fn put_within(
        &self,
        context: &Context,
        address: &Address,
        bytes: Bytes,
        request: StageRequest,
        expected: Expected,
    ) -> Result<Committed> {
        let mut staged = self.store.stage(context, address, request).await?;
        write_all(&mut *staged, bytes).await?;
        Ok(staged.commit(expected).await?.0)
    }

    /// The bytes of an object. Panics if it cannot be read.
    pub async fn read(&self, key: &str) -> Bytes {
        self.get(key, GetRequest::default()).await.expect("a GET succeeds").2
    }

    pub async fn get(&self, key: &str, request: GetRequest) -> Result<(ObjectInfo, Span, Bytes)> {
        let found = self.store.get(&context(), &key_address(key), request).await?;
        let length = found.body.length();
        assert_eq!(length, found.span.length, "a body has the length of its span");
        let bytes = drain(found.body).await?;
        assert_eq!(bytes.len() as u64, length, "a body yields its whole length");
        Ok((found.info, found.span, bytes))
    }

    pub async fn select(&self, key: &str, select: Select) -> Result<(ObjectInfo, Span, Bytes)> {
        self.get(key, GetRequest { select, ..GetRequest::default() }).await
    }

    pub async fn head(&self, key: &str) -> ObjectInfo {
        self.try_head(key).await.expect("a HEAD succeeds")
    }

    pub async fn try_head(&self, key: &str) -> Result<ObjectInfo> {
        Ok(self.store.head(&context(), &key_address(key), GetRequest::default()).await?.info)
    }

    /// Enables the first bucket's versioning.
    pub async fn enable_versioning(&self) {
        self.set_versioning(Versioning::Enabled).await;
    }

    pub async fn set_versioning(&self, versioning: Versioning) {
        let bucket = key_address("x").bucket;
        let set = self.store.set_versioning(&context(), &bucket, versioning).await;
        set.expect("versioning can be set");
    }

    /// The versions and delete markers of the first bucket whose key begins with `prefix`.
    pub async fn versions(&self, prefix: &str) -> Vec<(String, ListedVersion)> {
        let request = ListVersions { prefix: prefix.to_owned(), limit: 1000, ..ListVersions::default() };
        let page = self.store.list_versions(&context(), &key_address("x").bucket, &request).await;
        let entries = page.expect("versions can be listed").entries.into_iter();
        entries
            .filter_map(|entry| match entry {
                ListEntry::Key(key, version) => Some((key, version)),
                ListEntry::CommonPrefix(_) => None,
            })
            .collect()
    }

    /// Reads a version.
    pub async fn get_version(&self, key: &str, version: &VersionId) -> Result<(ObjectInfo, Bytes)> {
        let address = key_address(key).with_version(Some(version.clone()));
        let found = self.store.get(&context(), &address, GetRequest::default()).await?;
        Ok((found.info, drain(found.body).await?))
    }

    /// Deletes a version, or the object.
    pub async fn delete_version(&self, key: &str, version: Option<&VersionId>) -> Deleted {
        let address = key_address(key).with_version(version.cloned());
        let deleted = self.store.delete(&context(), &address, Precondition::None).await;
        deleted.expect("a DELETE succeeds")
    }

    pub async fn delete(&self, key: &str) -> bool {
        let deleted = self.store.delete(&context(), &key_address(key), Precondition::None).await;
        deleted.expect("a DELETE succeeds").existed
    }

    /// Asserts that neither reads nor listings find the key.
    pub async fn assert_absent(&self, key: &str) {
        assert_eq!(reason(self.try_head(key).await), Reason::NoSuchKey, "head of {key:?}");
        assert_eq!(reason(self.get(key, GetRequest::default()).await), Reason::NoSuchKey, "get of {key:?}");
        let request = ListRequest { prefix: key.to_owned(), limit: 1, ..ListRequest::default() };
        let listed = self.list(request).await;
        assert!(listed.first().is_none_or(|entry| entry.name() != key), "{key:?} is listed");
    }

    /// One page of the first bucket.
    pub async fn list(&self, request: ListRequest) -> Vec<ListEntry<ObjectSummary>> {
        self.store
            .list(&context(), &key_address("x").bucket, &request)
            .await
            .expect("a LIST succeeds")
            .entries
    }

    /// All pages, each of `limit` entries.
    pub async fn list_all(&self, mut request: ListRequest) -> Vec<ListEntry<ObjectSummary>> {
        let mut all = Vec::new();
        loop {
            let page = self
                .store
                .list(&context(), &key_address("x").bucket, &request)
                .await
                .expect("a LIST succeeds");
            assert!(page.entries.len() <= request.limit, "a page is no longer than its limit");
            all.extend(page.entries);
            match page.next {
                Some(next) => request.after = Some(next),
                None => return all,
            }
        }
    }

    /// The names of everything in the first bucket.
    pub async fn names(&self) -> Vec<String> {
        let all = self.list_all(ListRequest { limit: 1000, ..ListRequest::default() }).await;
        all.iter().map(|entry| entry.name().to_owned()).collect()
    }

    pub async fn create_upload(&self, key: &str, request: CreateUpload) -> UploadId {
        self.store.create_upload(&context(), &key_address(key), request).await.expect("an upload begins")
    }

    /// Uploads a part and returns its entry for the completion.
    pub async fn part(&self, key: &str, upload: &UploadId, number: i64, bytes: Bytes) -> CompletePart {
        let staged = StageRequest::default();
        self.try_part(key, upload, number, bytes, staged).await.expect("a part is taken").0
    }

    pub async fn try_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: i64,
        bytes: Bytes,
        request: StageRequest,
    ) -> Result<(CompletePart, Committed)> {
        let number = part_number(number);
        let context = context();
        let mut staged = self.store.stage_part(&context, &key_address(key), upload, number, request).await?;
        write_all(&mut *staged, bytes).await?;
        let (committed, _) = staged.commit(Expected::default()).await?;
        Ok((CompletePart { number, etag: committed.etag.clone(), checksum: None }, committed))
    }

    pub async fn complete(&self, key: &str, upload: &UploadId, request: CompleteUpload) -> Result<Committed> {
        self.store.complete_upload(&context(), &key_address(key), upload, request).await
    }

    /// Writes a multipart object of these parts, numbered from one.
    pub async fn put_parts(&self, key: &str, create: CreateUpload, parts: &[Bytes]) -> Committed {
        self.try_put_parts(key, create, parts).await.expect("a completion succeeds")
    }

    pub async fn try_put_parts(&self, key: &str, create: CreateUpload, parts: &[Bytes]) -> Result<Committed> {
        let upload = self.create_upload(key, create).await;
        let mut named = Vec::new();
        for (number, bytes) in (1..).zip(parts) {
            named.push(self.part(key, &upload, number, bytes.clone()).await);
        }
        self.complete(key, &upload, named_parts(named)).await
    }
}

/// A key's address in the first bucket.
pub(super) fn key_address(key: &str) -> Address {
    Address::parse(BUCKETS[0], key).expect("the cases use legal keys")
}

/// A key's address in the second bucket.
pub(super) fn key_address_two(key: &str) -> Address {
    Address::parse(BUCKETS[1], key).expect("the cases use legal keys")
}

pub(super) fn bucket(name: &str) -> BucketName {
    BucketName::new(name).expect("the cases use legal names")
}

pub(super) fn part_number(number: i64) -> PartNumber {
    PartNumber::new(number).expect("the cases use legal numbers")
}

pub(super) fn named_parts(parts: Vec<CompletePart>) -> CompleteUpload {
    CompleteUpload { parts, ..CompleteUpload::default() }
}

/// A copy that preserves everything.
pub(super) fn copy_request(source: Address, destination: Address) -> CopyRequest {
    CopyRequest {
        source,
        source_conditions: crate::condition::ReadConditions::default(),
        destination,
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    md5::Md5::digest(bytes).into()
}

pub(super) fn md5_etag(bytes: &[u8]) -> ETag {
    ETag::from_md5(&md5(bytes))
}

/// Metadata with a value in every field.
pub(super) fn full_metadata() -> Metadata {
    let text = |text: &str| Some(text.to_owned());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Metadata {
        headers: SystemHeaders {
            content_type: text("text/plain; charset=utf-8"),
            content_encoding: text("gzip"),
            content_disposition: text("attachment; filename=\"a b.txt\""),
            content_language: text("de, en"),
            cache_control: text("max-age=60"),
            expires: text("Thu, 01 Dec 1994 16:00:00 GMT"),
            website_redirect: text("/elsewhere"),
            storage_class: text("STANDARD_IA"),
        },
        user: vec![pair("author", "Zoë"), pair("empty", ""), pair("x-y", "a, b")],
        tags: tags(&[("project", "lake"), ("owner", "")]),
        classes: crate::class::Classes {
            object: Some(crate::class::Class::new(25).expect("a legal class")),
            // Every object has this metadata, whatever its size.
            ranges: Vec::new(),
            // It has ended, on simulated clocks, too.
            retention: Some(crate::class::Retention::new(1000, 60).expect("a legal retention")),
        },
    }
}

pub(super) fn tags(pairs: &[(&str, &str)]) -> Tags {
    Tags::new(pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect())
        .expect("the cases use legal tags")
}

/// A request whose deadline has passed already.
pub(super) fn expired() -> Context {
    context_until(&Budget::new(1 << 20), Deadline::after(SystemClock::shared(), Duration::ZERO))
}
