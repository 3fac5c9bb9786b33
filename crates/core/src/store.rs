//! The port: one narrow trait that every leaf and every layer implements and every front door uses.
//!
//! Guarantees, which the conformance suite in `testing` checks of every store:
//! - **Durable**: when a write, a delete or a bucket operation answers `Ok`, it survives a crash.
//! - **Atomic**: a reader sees the old object or the new one, whole, never a mixture; a crash leaves
//!   one of the two.
//! - **Linearizable per key**: reads and listings that begin after an acknowledgement see it.
//! - **Preconditions** are evaluated by the store at the commit's linearization point, with commits
//!   in flight taken into account. Of any number of concurrent `Absent` commits exactly one wins.
//! - **Verified**: bytes that fail their checksum are never served; bytes that are not what the writer
//!   promised are never committed.
//! - **Cancellation**: dropping a future or a [`Staged`] before the commit began leaves no trace.
//!   Once a commit was handed over it may still be applied although its future was dropped.
//! - **Deadlines** of the [`Context`] are enforced by every call.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::body::Body;
use crate::checksum::{Algorithm, Checksum};
use crate::clock::Timestamp;
use crate::condition::{Precondition, ReadConditions};
use crate::context::Context;
use crate::error::Result;
use crate::listing::{ListPage, ListRequest, ObjectSummary};
use crate::metadata::{Metadata, Tags};
use crate::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use crate::name::{Address, BucketName};
use crate::object::{Committed, Expected, ObjectInfo};
use crate::observation::Observation;
use crate::range::{ByteRange, Span};

/// What a store can do. A call to something it cannot answers [`Unsupported`](crate::Reason::Unsupported).
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// What kind of store: `local`, `memory`, `s3`, ...
    pub kind: &'static str,
    /// Buckets can be made and removed; otherwise they are mapped by settings.
    pub owns_buckets: bool,
    /// A bucket is made and removed at one moment: of many that make it one wins, and of a write and the removal one is
    /// refused. Otherwise each holds of calls one after the other.
    pub atomic_buckets: bool,
    /// `Precondition` other than `None` on commits and completions.
    pub conditional_writes: bool,
    /// Multipart uploads.
    pub multipart: bool,
    /// Tags can be set. Those that come with a write are kept in any case.
    pub tags: bool,
    /// [`Generation`](crate::Generation) grows with each write, and `Precondition::Is` compares it. Otherwise it is
    /// equal where the store says that the object is the same, and says nothing more.
    pub generations: bool,
    /// [`ETagForm::Unique`] is heeded.
    pub unique_etags: bool,
    /// Checksums of several algorithms are kept with one object; otherwise the first that was asked for.
    pub several_checksums: bool,
    /// What is listed of objects says which checksum is kept.
    pub lists_checksums: bool,
    /// What is listed of uploads says their metadata.
    pub upload_metadata: bool,
    /// `object_parts` says all that it can: otherwise tags and times are left out, and parts where the store does not
    /// tell of them.
    pub tells_parts: bool,
    /// [`Deleted::existed`] is the truth.
    pub tells_deleted: bool,
    /// `stage` refuses a bucket that is not there; otherwise the commit does.
    pub refuses_at_stage: bool,
    /// The longest key in bytes.
    pub max_key_bytes: usize,
    /// The largest object in bytes.
    pub max_object_bytes: u64,
    /// What it lacks beyond that: few services do.
    pub lacks: &'static [Lack],
}

impl Capabilities {
    /// Whether it lacks nothing of this kind.
    #[must_use]
    pub fn has(&self, what: Lack) -> bool {
        !self.lacks.contains(&what)
    }
}

/// What a service may lack of what the port promises. What is asked of it nevertheless is left out in silence where
/// nothing but a word of the metadata is lost, else refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Checksums are kept with objects, parts and uploads, and those that are promised at a completion are compared.
    Checksums,
    /// Classes are kept.
    Classes,
    /// Tags come back in the order in which they were given.
    OrderOfTags,
    /// Tags of any legal size come with a write.
    LargeTags,
    /// Tags may be set while the object is written; otherwise one of the two may be lost.
    TagsBesideWrites,
    /// An object whose tags are set stays as old as it was.
    TimeBesideTags,
    /// A page of a listing is of one moment; otherwise each key in it is of a moment since the request came.
    Snapshots,
    /// Uploads of one key are listed in the order in which they began.
    OrderOfUploads,
    /// An upload that was completed is gone; otherwise completing it again may answer what it became.
    EndOfUploads,
    /// A completion may leave out parts that were uploaded.
    LeavingPartsOut,
    /// A copy of an object of parts has none.
    JoiningCopies,
    /// [`Select::Part`] of an object that has parts.
    SinglePart,
    /// Keys may hold U+0000.
    NulInKeys,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: BucketName,
    /// When it was made.
    pub created: Timestamp,
}

/// Which part of an object to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Select {
    /// All of it.
    #[default]
    Whole,
    /// A range of bytes.
    Range(ByteRange),
    /// One part as it was uploaded, by the number it had. Part 1 of an object without parts is the
    /// whole of it; a part that is not there is an [`InvalidRange`](crate::Reason::InvalidRange).
    Part(PartNumber),
}

/// What to read and under which conditions.
#[derive(Debug, Clone, Default)]
pub struct GetRequest {
    /// Which bytes.
    pub select: Select,
    /// Conditions, evaluated against the same snapshot that supplies the bytes.
    pub conditions: ReadConditions,
}

/// The answer to a get or a head.
#[derive(Debug)]
pub struct Found<B> {
    /// The object.
    pub info: ObjectInfo,
    /// The bytes selected.
    pub span: Span,
    /// The bytes themselves (`Body`), or `()` for a head.
    pub body: B,
    /// What the request learned about the store.
    pub observation: Observation,
}

/// Which checksums a store computes while bytes are staged, so that they are read once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ETagForm {
    /// The MD5 of the bytes, as S3 answers it.
    #[default]
    Md5,
    /// A tag unique to this write that contains a dash and never looks like an MD5: cheaper.
    Unique,
}

/// What is known when a write begins.
#[derive(Debug, Clone, Default)]
pub struct StageRequest {
    /// Headers, user metadata, tags and classes. Ignored for parts.
    pub metadata: Metadata,
    /// The size, where it is known. Fewer bytes are refused at the commit, with
    /// [`IncompleteBody`](crate::Reason::IncompleteBody); more there or before it, with
    /// [`InvalidRequest`](crate::Reason::InvalidRequest).
    pub size: Option<u64>,
    /// Checksums to compute and keep. Empty: a CRC-64/NVME is kept.
    pub algorithms: Vec<Algorithm>,
    /// A `Content-MD5` will be expected at the commit.
    pub verify_md5: bool,
    /// Which entity tag to make.
    pub etag: ETagForm,
    /// A checksum of the bytes, where it is known beforehand: some stores compare only what they are told before they get
    /// them.
    pub checksum: Option<Checksum>,
    /// What the commit must find at the key. Said here, evaluated there. Parts have none.
    pub precondition: Precondition,
}

/// Bytes on their way into a store, invisible until committed. Dropping it aborts.
#[async_trait]
pub trait Staged: Send {
    /// Appends bytes. Waits while the store is behind, holding no more than the request's window. After an error, or
    /// where the future is dropped, bytes are missing: what was staged can only be dropped then.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Verifies what the writer promised about the bytes, evaluates the precondition and makes the bytes durable and visible,
    /// all or nothing.
    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)>;
}

/// How a copy treats metadata and tags.
#[derive(Debug, Clone)]
pub struct CopyRequest {
    /// Where to read.
    pub source: Address,
    /// Conditions on the source.
    pub source_conditions: ReadConditions,
    /// Where to write; may be the source.
    pub destination: Address,
    /// New metadata; `None` copies headers, user metadata and classes. Tags in it are ignored.
    pub metadata: Option<Metadata>,
    /// New tags; `None` copies them.
    pub tags: Option<Tags>,
    /// A checksum to compute and keep; `None` keeps the source's algorithm where it is over the full
    /// object, else a CRC-64/NVME.
    pub algorithm: Option<Algorithm>,
    /// A condition on the destination.
    pub precondition: Precondition,
    /// Which entity tag to make.
    pub etag: ETagForm,
}

/// A part made of bytes that the store already holds.
#[derive(Debug, Clone)]
pub struct CopyPartRequest {
    /// Where to read.
    pub source: Address,
    /// Which bytes; `None` for all. A range must lie within the source.
    pub range: Option<ByteRange>,
    /// Conditions on the source.
    pub source_conditions: ReadConditions,
    /// The upload's key.
    pub destination: Address,
    /// The upload.
    pub upload: UploadId,
    /// Which part.
    pub number: PartNumber,
    /// Which entity tag to make.
    pub etag: ETagForm,
}

/// Whether a delete found something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleted {
    /// There was an object. Deleting what is not there is no error. Always true where the store cannot tell.
    pub existed: bool,
}

/// A store of objects: a leaf that holds bytes or a layer that wraps other stores. See the module's
/// head for the guarantees.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug + 'static {
    /// What this store can do.
    fn capabilities(&self) -> &Capabilities;

    /// Whoever carries objects of this bucket is about to have so many requests under way at a time, and waits for something else
    /// before. What takes time and can be done beforehand, as connecting to a service, may be done meanwhile. Nothing depends on it.
    fn expect_requests(&self, bucket: &BucketName, requests: usize) {
        let _ = (bucket, requests);
    }

    /// How long a round trip to where the bucket is takes, the least that was seen; `None` where that is no other machine, or nothing
    /// is known of the way yet.
    fn round_trip(&self, bucket: &BucketName) -> Option<Duration> {
        let _ = bucket;
        None
    }

    /// Makes a bucket. [`BucketExists`](crate::Reason::BucketExists) where it is there already.
    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// Removes an empty bucket, atomically against concurrent writes: either the write is refused with
    /// [`NoSuchBucket`](crate::Reason::NoSuchBucket) or the removal with
    /// [`BucketNotEmpty`](crate::Reason::BucketNotEmpty). Unfinished uploads are aborted.
    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// Whether the bucket is there: [`NoSuchBucket`](crate::Reason::NoSuchBucket) where it is not.
    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()>;

    /// All buckets in order of name.
    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>>;

    /// What the store knows of an object, without its bytes.
    async fn head(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<()>>;

    /// Reads an object or a part of it. The bytes are of one write, however long reading takes.
    async fn get(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<Body>>;

    /// Begins a write. The bucket must exist; see [`Capabilities::refuses_at_stage`].
    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>>;

    /// Deletes an object where the condition holds.
    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted>;

    /// One page of a bucket: one snapshot, with every write acknowledged before the call began.
    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>>;

    /// Copies an object within the store.
    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed>;

    /// Replaces an object's tags; bytes, entity tag and time stay, the generation grows.
    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()>;

    /// The parts a multipart object was made of, behind `after`, at most `limit`; the bool says whether
    /// there are more. Empty for other objects.
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

    /// Makes a part of bytes that the store already holds.
    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed>;

    /// A page of an upload's parts behind `after`.
    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage>;

    /// A page of a bucket's unfinished uploads.
    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage>;

    /// Makes the object visible, all parts at once; the upload is gone then.
    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed>;

    /// Gives an upload up and frees its parts.
    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()>;

    /// Waits for what is under way, makes it durable and lets go of the store's resources. Calls after
    /// it fail with [`ShuttingDown`](crate::Reason::ShuttingDown). Calling it twice is no error.
    async fn close(&self) -> Result<()>;
}
