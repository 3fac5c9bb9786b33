//! The port: one narrow trait that every leaf and every layer implements, and that the gateway and the commands use.
//!
//! Guarantees, which the conformance suite in `testing` checks of every store:
//! - **Durable**: when a write, a delete or a bucket operation returns `Ok`, it survives a crash.
//! - **Atomic**: a reader sees the old object or the new one, whole, never a mixture; a crash leaves
//!   one of the two.
//! - **Linearizable per key**: reads and listings that begin after an acknowledgement see it.
//! - **Preconditions** are evaluated by the store at the commit's linearization point, with commits
//!   in flight taken into account. Of any number of concurrent `Absent` commits exactly one wins.
//! - **Verified**: bytes that fail their checksum are never served; bytes that differ from what the writer declared are
//!   never committed.
//! - **Cancellation**: dropping a future or a [`Staged`] before the commit began leaves no trace.
//!   Once a commit was handed over, it may still be applied although its future was dropped.
//! - **Deadlines** of the [`Context`] are enforced by every call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::body::Body;
use crate::checksum::{Algorithm, Checksum};
use crate::class::ClassUpdate;
use crate::clock::Timestamp;
use crate::condition::{Precondition, ReadConditions};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::listing::{ListPage, ListRequest, ObjectSummary};
use crate::metadata::{Metadata, Tags};
use crate::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use crate::name::{Address, BucketName};
use crate::object::{Committed, Expected, Identity, ObjectInfo};
use crate::observation::Observation;
use crate::range::{ByteRange, Span};
use crate::stored_form::{DescriptionChange, Redescribed};
use crate::version::{ListVersions, VersionId, Versioning, VersionsPage};

/// The clock that sets the times of objects, compared with the clock of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectClock {
    /// The clock minus this machine's, in milliseconds; 0 if no difference is known. `None` if both are one clock, or
    /// before the first response.
    pub offset_ms: Option<i64>,
    /// Times are rounded up to full seconds; otherwise down, or not at all.
    pub rounds_up: bool,
}

/// The capabilities of a store. A call that needs a missing one fails with [`Unsupported`](crate::Reason::Unsupported).
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// The kind of store: `local`, `memory`, `s3`, ...
    pub kind: &'static str,
    /// Buckets can be created and deleted; otherwise settings map them.
    pub owns_buckets: bool,
    /// Creating and deleting a bucket is atomic: of concurrent creations exactly one succeeds, and of a concurrent
    /// write and deletion one fails. Otherwise this holds only for sequential calls.
    pub atomic_buckets: bool,
    /// Commits and completions accept preconditions other than [`Precondition::None`].
    pub conditional_writes: bool,
    /// Multipart uploads are supported.
    pub multipart: bool,
    /// Tags can be set on an existing object. Tags given with a write are stored in any case.
    pub tags: bool,
    /// [`Generation`](crate::Generation) grows with each write, and `Precondition::MatchesGeneration` compares it.
    /// Otherwise equal generations mean that the store reports the same object; their order means nothing.
    pub generations: bool,
    /// [`ETagForm::Unique`] is supported; otherwise it is ignored.
    pub unique_etags: bool,
    /// Checksums of several algorithms are stored with one object; otherwise only the first requested one.
    pub multiple_checksums: bool,
    /// Object listings report which checksum is stored.
    pub listing_reports_checksums: bool,
    /// Listings of uploads include their metadata.
    pub upload_metadata: bool,
    /// `object_parts` is complete. Otherwise it omits entity tags and times, and all parts if the service does not
    /// report them.
    pub reports_all_parts: bool,
    /// [`Deleted::existed`] is exact; otherwise it may be true of what did not exist.
    pub reports_deleted: bool,
    /// `stage` fails if the bucket does not exist; otherwise the commit does.
    pub stage_checks_bucket: bool,
    /// Buckets can keep versions. Otherwise [`ObjectStore::set_versioning`] fails, and each object is its `null`
    /// version.
    pub versions: bool,
    /// The longest key in bytes.
    pub max_key_bytes: usize,
    /// The largest object in bytes.
    pub max_object_bytes: u64,
    /// [`Expected::reported`] is supported, and [`GetRequest::stored`].
    pub reported_attributes: bool,
    /// Features of the [`ObjectStore`] contract that the store lacks; empty for most stores.
    pub unsupported: &'static [Feature],
}

impl Capabilities {
    /// Returns true if the store has this feature.
    #[must_use]
    pub fn supports(&self, feature: Feature) -> bool {
        !self.unsupported.contains(&feature)
    }

    /// Returns true if a store with these capabilities keeps all that the client gave for a write.
    #[must_use]
    pub fn cover(&self, address: &Address, request: &StageRequest) -> bool {
        let (key, metadata) = (address.key.as_str(), &request.metadata);
        request.size.is_none_or(|size| size <= self.max_object_bytes)
            && key.len() <= self.max_key_bytes
            && (self.supports(Feature::NulInKeys) || !key.contains('\0'))
            && (self.supports(Feature::LargeTags) || metadata.tags.is_empty())
            && (self.supports(Feature::ManyClassRanges) || metadata.classes.ranges.is_empty())
            && (self.supports(Feature::Classes) || metadata.classes.is_empty())
            && (self.multiple_checksums || request.algorithms.len() <= 1)
            && (self.supports(Feature::Checksums)
                || (request.algorithms.is_empty() && request.checksum.is_none()))
    }
}

/// Parts of the [`ObjectStore`] contract that a remote service may not support. A request that needs a missing one
/// fails with [`Unsupported`](crate::Reason::Unsupported), or the feature is silently ignored if only metadata is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Checksums are stored with objects, parts and uploads, and those expected at a completion are verified.
    Checksums,
    /// Classes are stored.
    Classes,
    /// [`Classes::MAX_RANGES`](crate::Classes::MAX_RANGES) ranges are stored with an object. Otherwise a write fails with
    /// [`MetadataTooLarge`](crate::Reason::MetadataTooLarge) if its ranges and its user metadata exceed the service's
    /// limit.
    ManyClassRanges,
    /// [`ObjectStore::set_classes`] is supported.
    ClassChanges,
    /// Tags are returned in the order in which they were given.
    TagOrder,
    /// A write accepts tags of any legal size.
    LargeTags,
    /// Tags may be set while the object is written; otherwise one of the two changes may be lost.
    ConcurrentTagWrites,
    /// Setting tags leaves the object's modification time unchanged.
    TagsKeepModified,
    /// A listing page is a consistent snapshot; otherwise each key reflects some moment since the request arrived.
    SnapshotListing,
    /// Listings are certain to be in byte order; otherwise a service may list in another order. See
    /// [`ListPage::check_order`].
    ByteOrder,
    /// Listings report the storage class of each object; otherwise they report none.
    ListedStorageClass,
    /// Uploads of one key are listed in order of creation.
    UploadOrder,
    /// Completing an upload twice fails; otherwise the second call may return the object that the first one created.
    SingleCompletion,
    /// A completion may omit parts that were uploaded.
    PartialCompletion,
    /// Parts of an upload may have different sizes; otherwise all but the last have one size.
    UnequalParts,
    /// A copy of a multipart object has no parts.
    CopiesDropParts,
    /// [`Select::Part`] works for objects that have parts.
    PartReads,
    /// Keys may contain U+0000.
    NulInKeys,
    /// Results name the `null` version in a bucket with versions, errors tell a delete marker from what does not exist,
    /// and deleting a deleted object adds another delete marker.
    VersionDetails,
    /// The result of a write, a copy or a completion names the `null` version in a bucket whose versioning is suspended.
    NullVersionOfWrites,
    /// An id that no version of the store can have is an
    /// [`InvalidVersionId`](crate::Reason::InvalidVersionId). Otherwise the store does not know the form of its ids, and
    /// the version is missing.
    VersionIdForm,
    /// A write may keep the identity of an object that is moved.
    Identity,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: BucketName,
    /// When it was created; `None` if the store does not say.
    pub created: Option<Timestamp>,
}

/// The bytes of an object to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Select {
    /// The whole object.
    #[default]
    Whole,
    /// A range of bytes.
    Range(ByteRange),
    /// One uploaded part, by its number. Part 1 of an object without parts is the whole object; a part that does not
    /// exist is an [`InvalidRange`](crate::Reason::InvalidRange).
    Part(PartNumber),
}

/// The bytes to read, and the conditions for it.
#[derive(Debug, Clone, Default)]
pub struct GetRequest {
    /// The bytes to read.
    pub select: Select,
    /// Conditions, evaluated against the same snapshot that supplies the bytes.
    pub conditions: ReadConditions,
    /// Of an object with [`ObjectInfo::stored`], a GET selects from its stored bytes: [`Select::Whole`] or a range of
    /// them. Only the layer that transformed the bytes sets this. Without it, a GET of such an object fails with
    /// [`Unsupported`](crate::Reason::Unsupported), and so does a copy. Ignored for other objects and by a HEAD, which
    /// is about the reported bytes.
    pub stored: bool,
}

/// The response to a get or a head.
#[derive(Debug)]
pub struct GetResponse<B> {
    /// The object.
    pub info: ObjectInfo,
    /// The bytes selected.
    pub span: Span,
    /// The bytes themselves (`Body`), or `()` for a head.
    pub body: B,
    /// Timing of the request and the peer that served it.
    pub observation: Observation,
}

/// The form of the entity tag that a store computes while bytes are staged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ETagForm {
    /// The MD5 of the bytes, as in S3.
    #[default]
    Md5,
    /// A tag unique to this write that contains a dash and never looks like an MD5: cheaper.
    Unique,
}

/// Parameters of a write, known when it begins.
#[derive(Debug, Clone, Default)]
pub struct StageRequest {
    /// Headers, user metadata, tags and classes. Ignored for parts.
    pub metadata: Metadata,
    /// The size, if known. With fewer bytes the commit fails with [`IncompleteBody`](crate::Reason::IncompleteBody);
    /// with more, a write or the commit fails with [`InvalidRequest`](crate::Reason::InvalidRequest).
    pub size: Option<u64>,
    /// Checksums to compute and store. If empty, a CRC-64/NVME is stored.
    pub algorithms: Vec<Algorithm>,
    /// A `Content-MD5` will be expected at the commit.
    pub verify_md5: bool,
    /// The form of the entity tag.
    pub etag: ETagForm,
    /// A checksum of the bytes, if known beforehand: some services verify only a checksum that precedes the bytes.
    pub checksum: Option<Checksum>,
    /// The condition on the key, evaluated at the commit. Parts have none.
    pub precondition: Precondition,
    /// The identity of the object that this write moves: the store uses it instead of a new one. Ignored for parts, and
    /// without [`Feature::Identity`].
    pub identity: Option<Identity>,
}

/// Bytes on their way into a store, invisible until committed. Dropping it aborts.
#[async_trait]
pub trait Staged: Send {
    /// Appends bytes. Waits while the store cannot keep up, and holds no more than the request's window and what the
    /// store's settings allow in addition. After an error, or if the future is dropped, bytes are missing: the write
    /// can then only be dropped.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Verifies the bytes against `expected`, evaluates the precondition and makes the bytes durable and visible, all
    /// or nothing.
    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)>;
}

/// A copy of an object within the store, with the treatment of its metadata and tags.
#[derive(Debug, Clone)]
pub struct CopyRequest {
    /// The object to read.
    pub source: Address,
    /// Conditions on the source.
    pub source_conditions: ReadConditions,
    /// The object to write; may be the source.
    pub destination: Address,
    /// New metadata; `None` copies headers, user metadata and classes, but neither the website redirect nor the storage
    /// class: see [`Metadata::for_copy`]. Tags in it are ignored.
    pub metadata: Option<Metadata>,
    /// New tags; `None` copies them.
    pub tags: Option<Tags>,
    /// A checksum to compute and store; `None` uses the source's algorithm, also if the source's checksum is composite.
    /// The copy's checksum is over the full object. Without a checksum of the source, it is a CRC-64/NVME.
    pub algorithm: Option<Algorithm>,
    /// A condition on the destination.
    pub precondition: Precondition,
    /// The form of the entity tag.
    pub etag: ETagForm,
}

/// The creation of a part from bytes that the store already holds.
#[derive(Debug, Clone)]
pub struct CopyPartRequest {
    /// The object to read.
    pub source: Address,
    /// The bytes to read; `None` for all. A range must lie within the source.
    pub range: Option<ByteRange>,
    /// Conditions on the source.
    pub source_conditions: ReadConditions,
    /// The upload's key.
    pub destination: Address,
    /// The upload.
    pub upload: UploadId,
    /// The part to create.
    pub number: PartNumber,
    /// The form of the entity tag.
    pub etag: ETagForm,
}

/// The result of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The object, or the version named, existed. Deleting what does not exist is not an error. Without
    /// [`Capabilities::reports_deleted`] it is false only for a version that certainly did not exist.
    pub existed: bool,
    /// The version that was deleted, or the delete marker that was added; `None` if neither was named or added.
    pub version: Option<VersionId>,
    /// A delete marker was added, or deleted.
    pub is_delete_marker: bool,
}

/// A store of objects: a leaf that holds bytes or a layer that wraps other stores. See the module's
/// head for the guarantees.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug + 'static {
    /// The capabilities of this store.
    fn capabilities(&self) -> &Capabilities;

    /// Hint: about `concurrency` requests to `bucket` follow shortly. A remote store may open connections now. Returns
    /// at once; correctness must not depend on it.
    fn prewarm(&self, bucket: &BucketName, concurrency: usize) {
        let _ = (bucket, concurrency);
    }

    /// The lowest RTT observed to the bucket's endpoint; `None` for a local store or before the first connection.
    fn min_rtt(&self, bucket: &BucketName) -> Option<Duration> {
        let _ = bucket;
        None
    }

    /// The clock that sets the times of objects in the bucket, as far as responses have shown it. Sends nothing.
    fn object_clock(&self, bucket: &BucketName) -> ObjectClock {
        let _ = bucket;
        ObjectClock::default()
    }

    /// Returns false if this store rejects a write, or may reject it, by a rule of its own that its [`Capabilities`] do not
    /// state: for a key, metadata, tags or classes that it cannot keep. A layer that acknowledges a write before this store
    /// has it asks first. Sends nothing: of what is not known yet, the strictest case counts. The default is for a leaf
    /// without such rules; a layer asks each store to which the object may go.
    fn accepts(&self, address: &Address, request: &StageRequest) -> bool {
        let _ = (address, request);
        true
    }

    /// Creates a bucket. Fails with [`BucketExists`](crate::Reason::BucketExists) if it exists already.
    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// Deletes an empty bucket, atomically against concurrent writes: either the write fails with
    /// [`NoSuchBucket`](crate::Reason::NoSuchBucket) or the deletion with
    /// [`BucketNotEmpty`](crate::Reason::BucketNotEmpty). Unfinished uploads are aborted.
    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// Returns `Ok` if the bucket exists, else [`NoSuchBucket`](crate::Reason::NoSuchBucket).
    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// All buckets in order of name.
    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>>;

    /// The versioning of a bucket. [`Versioning::Off`] without [`Capabilities::versions`].
    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning>;

    /// Enables or suspends the versioning of a bucket for all later writes and deletes.
    /// Fails with [`InvalidRequest`](crate::Reason::InvalidRequest) for [`Versioning::Off`] once it was enabled.
    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()>;

    /// Returns an object's metadata without its bytes. Without a version in the address, a key whose newest version is
    /// a delete marker does not exist: [`NoSuchKey`](crate::Reason::NoSuchKey). With one, the call fails with
    /// [`NoSuchVersion`](crate::Reason::NoSuchVersion) if it does not exist, with
    /// [`InvalidVersionId`](crate::Reason::InvalidVersionId) if no version can have the id, and with
    /// [`DeleteMarker`](crate::Reason::DeleteMarker) if it is one.
    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>>;

    /// Reads an object or a part of it. All bytes come from one write, however long reading takes.
    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>>;

    /// Begins a write. The bucket must exist; see [`Capabilities::stage_checks_bucket`].
    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>>;

    /// Deletes an object if the condition holds for its current version. In a bucket with versioning, this adds a
    /// delete marker, also for a key that does not exist. With a version in the address, that version is removed; if
    /// it was the newest, the next one becomes current. A version that does not exist is no error, except an id that no
    /// version can have: see [`Feature::VersionIdForm`].
    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted>;

    /// Lists one page of a bucket: a snapshot that includes every write acknowledged before the call began.
    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>>;

    /// Lists one page of a bucket's versions and delete markers, from one snapshot as [`list`](Self::list).
    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage>;

    /// Copies an object within the store.
    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed>;

    /// Replaces an object's tags. Bytes, entity tag, modification time and version stay, the generation grows.
    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()>;

    /// Changes an object's classes. Bytes, entity tag, modification time and version stay, the generation grows. Fails
    /// with [`InvalidArgument`](crate::Reason::InvalidArgument) if a new range is not within the object, and with
    /// [`Unsupported`](crate::Reason::Unsupported) without [`Feature::ClassChanges`].
    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()>;

    /// Changes the descriptions of an object's transformed bytes. Bytes, entity tag, modification time, version and all
    /// other metadata stay; the generation grows if a description changed. The change applies to one write of the object:
    /// if another one intervenes, it is evaluated again. Fails with [`Unsupported`](crate::Reason::Unsupported) without
    /// [`Capabilities::reported_attributes`]. Only the layer that transformed the bytes calls this.
    async fn redescribe(
        &self,
        context: &Context,
        address: &Address,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        let _ = (context, address, change);
        Err(Error::unsupported("change descriptions of transformed bytes"))
    }

    /// Changes the descriptions of the parts of an unfinished upload, one after the other. Entity tags, times and
    /// checksums of the parts stay. If it fails, some may be changed. Otherwise as [`redescribe`](Self::redescribe).
    async fn redescribe_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        let _ = (context, address, upload, change);
        Err(Error::unsupported("change descriptions of transformed bytes"))
    }

    /// Returns the parts of a multipart object after `after`, at most `limit`, and true if there are more. Empty for
    /// other objects.
    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)>;

    /// Begins a multipart upload.
    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId>;

    /// Begins the write of a part. A later commit of the same number replaces the earlier one.
    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>>;

    /// Creates a part from bytes that the store already holds.
    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed>;

    /// Lists one page of an upload's parts after `after`.
    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage>;

    /// Lists one page of a bucket's unfinished uploads.
    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage>;

    /// Makes the object visible, all parts at once, and ends the upload. Fails with
    /// [`InvalidArgument`](crate::Reason::InvalidArgument) if a range of its classes is not within the object; a service
    /// without [`Feature::ClassChanges`] does not check that.
    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed>;

    /// Aborts an upload and frees its parts.
    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()>;

    /// Waits for operations in flight, makes them durable and releases the store's resources. Later calls fail with
    /// [`ShuttingDown`](crate::Reason::ShuttingDown). Calling it twice is not an error.
    async fn close(&self) -> Result<()>;
}
