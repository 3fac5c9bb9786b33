//! A store that stores equal chunks of objects once, by class.
//!
//! - Clients see the **plain** bytes: sizes, entity tags, checksums, ranges and conditions are those of a store without
//!   this layer. The store below keeps them with the object: see [`tradewind_core::stored_form`].
//! - An object is cut into **chunks** by its content (`chunker`). A chunk is an object of its own in a hidden bucket
//!   (`chunk_store`), and the stored form of the object is the list of its chunks (`manifest`). Small objects are stored
//!   as they are.
//! - Each **part** of an upload is deduplicated by itself, by the class of the upload.
//! - **Acknowledged means durable**: a manifest is committed when all of its chunks are durable.
//! - Chunks have no counts of references. A **collection** finds those that no manifest refers to and deletes them
//!   (`collector`); chunks that writes and reads in progress need stay (`pins`). After a crash, what was not committed is
//!   referred to by nothing.
//! - Each chunk is **verified** by its hash when it is read.
//!
//! The store below belongs to this layer alone.

mod busy_retry;
mod chunk_store;
mod chunker;
mod collector;
mod copy;
mod damage;
mod damaged_references;
mod decoder;
mod doubt;
mod examination;
mod last_collection;
mod manifest;
mod mark;
mod marker;
mod marking;
mod object_pages;
mod part_references;
mod pins;
mod policy;
mod read;
mod staged;
mod statistics;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{ListUploads, PartNumber, UploadId, UploadInfo, UploadsPage};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, GetRequest, GetResponse, StageRequest,
};
use tradewind_core::threads::thread_error;
use tradewind_core::version::{ListVersions, VersionsPage};
use tradewind_core::{
    Address, Algorithm, Body, BucketName, Classes, Context, ObjectInfo, ObjectStore, Staged, Timestamp,
    Versioning,
};
use tradewind_digest::Engine;

pub use collector::CollectionReport;
pub use damage::DamagedObject;
pub use policy::{DEFAULT_MIN_OBJECT_BYTES, DeduplicationPolicy, MAX_MIN_OBJECT_BYTES, MIN_MIN_OBJECT_BYTES};
pub use statistics::{CollectionFailure, CollectionHistory, DeduplicationCounts, LastCollection};

use crate::relay::{self, RelayEnd};
use crate::store_error::StoreName;
use chunk_store::ChunkStore;
use read::Reader;
use staged::{DeduplicatedStaged, PartTarget, WriteTarget};

/// Threads for the MD5 of large objects: one hashes many at once.
const HASH_THREADS: usize = 1;

/// See the module documentation.
pub struct Deduplicated {
    store: Arc<ChunkStore>,
    policy: DeduplicationPolicy,
    engine: Engine,
    capabilities: Capabilities,
    collections: Mutex<CollectionHistory>,
}

impl Deduplicated {
    /// A layer over `inner` that deduplicates: [`Self::open_unprepared`] and [`Self::prepare`].
    ///
    /// Fails as these do.
    pub async fn open(
        context: &Context,
        inner: Arc<dyn ObjectStore>,
        policy: DeduplicationPolicy,
    ) -> Result<Arc<Self>> {
        let layer = Self::open_unprepared(context, inner, policy).await?;
        layer.prepare(context).await?;
        Ok(layer)
    }

    /// A layer over `inner`. It stores plain objects until it [is ready](Self::is_ready), which it is at once unless it
    /// is new to the store.
    ///
    /// Fails with [`Unsupported`](Reason::Unsupported) without [`Capabilities::reported_attributes`]. Fails with
    /// [`InvalidArgument`](Reason::InvalidArgument) if the policy is out of range, if the bucket of chunks has other
    /// objects, or if it is missing and an unfinished upload has deduplicated parts. Fails with
    /// [`CorruptData`](Reason::CorruptData) if the marker of the bucket is damaged and nothing shows its version. Must end
    /// before the store is served.
    pub async fn open_unprepared(
        context: &Context,
        inner: Arc<dyn ObjectStore>,
        policy: DeduplicationPolicy,
    ) -> Result<Arc<Self>> {
        let below = inner.capabilities();
        if !below.reported_attributes {
            let message = format!(
                "a store of the kind {:?} cannot report the size and ETag of deduplicated objects: the layer \
                 \"deduplicated\" must be directly over a local store",
                below.kind
            );
            return Err(Error::new(Reason::Unsupported, message));
        }
        if !(MIN_MIN_OBJECT_BYTES..=MAX_MIN_OBJECT_BYTES).contains(&policy.min_bytes) {
            let message = "the size from which objects are deduplicated must be 16 KiB to 1 MiB";
            return Err(Error::new(Reason::InvalidArgument, message));
        }
        let capabilities = Capabilities { reported_attributes: false, ..below.clone() };
        let store = Arc::new(ChunkStore::open(inner, context).await?);
        let engine = Engine::start(HASH_THREADS).map_err(thread_error)?;
        let collections = Mutex::default();
        Ok(Arc::new(Self { store, policy, engine, capabilities, collections }))
    }

    /// True if writes are deduplicated. Otherwise [`Self::prepare`] has not ended.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.store.is_ready()
    }

    /// Creates the bucket of chunks, after a look at all objects. Returns at once if the layer is ready. Requests may
    /// be served concurrently.
    ///
    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if there are deduplicated objects, whose chunks are
    /// missing, and with [`Unsupported`](Reason::Unsupported) if an object is in a form of a later version: the store
    /// must not be served then. Other errors may pass: the next call goes on where this one failed. Objects that are
    /// damaged are passed; until they are replaced or deleted, it fails with [`CorruptData`](Reason::CorruptData) at its
    /// end.
    pub async fn prepare(&self, context: &Context) -> Result<()> {
        self.store.prepare(context).await
    }

    /// Objects that [`Self::prepare`] has examined so far.
    #[must_use]
    pub fn examined_objects(&self) -> u64 {
        self.store.examination_progress.objects.load(Ordering::Relaxed)
    }

    /// Objects that [`Self::prepare`] could not examine because they are damaged: at most 1,000.
    #[must_use]
    pub fn unreadable_objects(&self) -> Vec<Address> {
        self.store.examination_progress.unreadable.lock().clone()
    }

    /// Deletes the chunks that nothing refers to. `None` if a collection runs already, or if the layer is not ready. It
    /// can be cancelled by the context; what it has deleted by then stays deleted. While a read lasts more than an hour,
    /// no chunk is deleted.
    ///
    /// Fails with [`CorruptData`](Reason::CorruptData) if an object or part cannot be read, and deletes nothing then: see
    /// [`Self::damaged_objects`].
    pub async fn collect(&self, context: &Context) -> Result<Option<CollectionReport>> {
        if !self.is_ready() {
            return Ok(None);
        }
        let clock = context.deadline.clock();
        let started_at = clock.now();
        let collected = collector::collect(&self.store, context).await;
        self.record_collection(&collected, started_at, clock.now());
        if matches!(collected, Ok(Some(_))) {
            last_collection::record(&self.store, context).await;
        }
        collected
    }

    /// The end of the last collection, also of earlier runs, by the wall clock; `None` if it is not known.
    pub async fn last_collection_time(&self, context: &Context) -> Result<Option<Timestamp>> {
        last_collection::read(&self.store, context).await
    }

    /// Returns false if the bytes of a write are stored as they are.
    fn applies(&self, classes: &Classes, size: Option<u64>) -> bool {
        self.is_ready() && self.policy.applies(classes, size)
    }

    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.store.inner
    }

    /// The bucket of chunks does not exist for clients.
    fn check_bucket(&self, bucket: &BucketName) -> Result<()> {
        match *bucket == self.store.bucket {
            true => Err(Error::no_such_bucket(bucket.as_str())),
            false => Ok(()),
        }
    }

    fn check_address(&self, address: Option<&Address>) -> Result<()> {
        address.map_or(Ok(()), |address| self.check_bucket(&address.bucket))
    }

    fn reader<'a>(&'a self, context: &'a Context, address: &'a Address) -> Reader<'a> {
        Reader { store: &self.store, context, address }
    }

    fn write_target(&self, context: &Context, address: &Address, request: StageRequest) -> WriteTarget {
        WriteTarget {
            store: self.store.clone(),
            engine: self.engine.clone(),
            context: context.clone(),
            address: address.clone(),
            part: None,
            request,
            min_bytes: self.policy.min_bytes,
        }
    }

    /// An unfinished upload.
    async fn upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<UploadInfo> {
        Ok(self.inner().list_parts(context, address, upload, None, 1).await?.upload)
    }

    fn relay_end(&self) -> RelayEnd<'_> {
        RelayEnd { store: self, name: StoreName { role: "layer", name: "deduplicated" } }
    }

    /// The source of a copy.
    async fn source(&self, context: &Context, source: &Address) -> Result<ObjectInfo> {
        Ok(self.inner().head(context, source, GetRequest::default()).await?.info)
    }
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Deduplicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.inner.fmt(f)
    }
}

/// Hides the stored form from the layers above, for which the object is a plain one.
fn without_form<B>(mut found: GetResponse<B>) -> GetResponse<B> {
    found.info.stored = None;
    found
}

#[async_trait]
impl ObjectStore for Deduplicated {
    tradewind_core::forward_methods! {
        to: |layer| &layer.store.inner;
        prewarm, min_rtt, object_clock, accepts,
    }

    tradewind_core::forward_methods! {
        to: |layer| &layer.store.inner;
        around: |layer, call, response| match layer.check_address(call.address) {
            Ok(()) => response.await,
            Err(error) => Err(error),
        };
        delete, set_tags, set_classes, object_parts, create_upload, list_parts, complete_upload, abort_upload,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        if *bucket == self.store.bucket {
            return Err(Error::for_client(Reason::InvalidBucketName, "this bucket name is reserved"));
        }
        self.inner().create_bucket(context, bucket).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.check_bucket(bucket)?;
        self.inner().delete_bucket(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.check_bucket(bucket)?;
        self.inner().head_bucket(context, bucket).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let mut buckets = self.inner().list_buckets(context).await?;
        buckets.retain(|bucket| bucket.name != self.store.bucket);
        Ok(buckets)
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.check_bucket(bucket)?;
        self.inner().versioning(context, bucket).await
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.check_bucket(bucket)?;
        self.inner().set_versioning(context, bucket, versioning).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.check_bucket(bucket)?;
        self.inner().list(context, bucket, request).await
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.check_bucket(bucket)?;
        self.inner().list_versions(context, bucket, request).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.check_bucket(bucket)?;
        self.inner().list_uploads(context, bucket, request).await
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.check_bucket(&address.bucket)?;
        self.inner().head(context, address, request).await.map(without_form)
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.check_bucket(&address.bucket)?;
        if request.stored {
            return Err(Error::unsupported("return stored bytes, which a layer transforms"));
        }
        self.reader(context, address).read(request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_bucket(&address.bucket)?;
        if !self.applies(&request.metadata.classes, request.size) {
            return self.inner().stage(context, address, request).await;
        }
        let target = self.write_target(context, address, request);
        Ok(Box::new(DeduplicatedStaged::begin(target).await?))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        mut request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_bucket(&address.bucket)?;
        if self.policy.classes.is_empty() || !self.is_ready() {
            return self.inner().stage_part(context, address, upload, number, request).await;
        }
        let created = self.upload(context, address, upload).await?;
        if !self.applies(&created.metadata.classes, request.size) {
            return self.inner().stage_part(context, address, upload, number, request).await;
        }
        // The checksum from which the object's is computed at the completion.
        let required = created.checksum.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm);
        if !request.algorithms.contains(&required) {
            request.algorithms.push(required);
        }
        // The id as the store lists it: clients may write it in another form.
        let part = Some(PartTarget { upload: created.id, number });
        let target = WriteTarget { part, ..self.write_target(context, address, request) };
        Ok(Box::new(DeduplicatedStaged::begin(target).await?))
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.check_bucket(&request.source.bucket)?;
        self.check_bucket(&request.destination.bucket)?;
        let source = self.source(context, &request.source).await?;
        let classes = &request.metadata.as_ref().unwrap_or(&source.metadata).classes;
        let is_plain = !self.applies(classes, Some(source.size));
        if is_plain && source.stored.is_none() {
            match self.inner().copy(context, request.clone()).await {
                // It was replaced by a deduplicated one meanwhile.
                Err(error) if error.reason() == Reason::Unsupported => {}
                copied => return copied,
            }
        }
        if !is_plain && source.stored.is_some() {
            let target = self.write_target(context, &request.destination, StageRequest::default());
            let reader = self.reader(context, &request.source);
            if let Some(copied) = copy::copy_manifest(reader, target, &request).await? {
                return Ok(copied);
            }
        }
        relay::copy(context, self.relay_end(), self.relay_end(), request).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.check_bucket(&request.source.bucket)?;
        self.check_bucket(&request.destination.bucket)?;
        let created = self.upload(context, &request.destination, &request.upload).await?;
        let source = self.source(context, &request.source).await?;
        let is_plain = !self.applies(&created.metadata.classes, None);
        if is_plain && source.stored.is_none() {
            match self.inner().copy_part(context, request.clone()).await {
                Err(error) if error.reason() == Reason::Unsupported => {}
                copied => return copied,
            }
        }
        relay::copy_part(context, self.relay_end(), self.relay_end(), request).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
