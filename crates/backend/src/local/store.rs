//! [`LocalStore`]: the implementation of the port. It holds the upkeep thread and an [`OpenStore`], which is the state
//! of the store plus its committer and extent allocator. The state itself,
//! [`StoreState`](super::store_state::StoreState), is shared with the committer's thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tradewind_core::Versioning;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, GetRequest, GetResponse, Select,
    StageRequest,
};
use tradewind_core::stored_form::{DescriptionChange, Redescribed};
use tradewind_core::threads::thread_error;
use tradewind_core::version::{ListVersions, VersionsPage};
use tradewind_core::{
    Address, Algorithm, Body, BucketName, Checksum, ClassUpdate, Clock, Context, ObjectStore, Precondition,
    Staged, Tags,
};

use super::commit;
use super::open_store::OpenStore;
use super::options::LocalOptions;
use super::read::object_parts;
use super::record::{Object, Upload};
use super::recovery::Recovery;
use super::stage::{LocalStaged, StageTarget};
use super::upkeep::{self, Upkeep};
use super::uploads::format_id;

/// Maximum object size: S3's limit.
const MAX_OBJECT_BYTES: u64 = 5 << 40;

/// A store in a local directory. Dropping the last handle closes it.
pub struct LocalStore {
    store: Arc<OpenStore>,
    /// `None` if the store is closed, or was opened without upkeep by a test.
    upkeep: Mutex<Option<Upkeep>>,
    recovery: Recovery,
    capabilities: Capabilities,
    closed: AtomicBool,
}

impl LocalStore {
    /// Opens the store in `root`, creating an empty one if there is none, and starts its upkeep. Only one process
    /// can have a store open. Blocks while the log is replayed.
    pub fn open(root: &Path, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let (store, recovery) = OpenStore::open(root, options, clock)?;
        let upkeep = Upkeep::start(&store)?;
        let local_store = Self::from_open(store, recovery);
        *local_store.upkeep.lock() = Some(upkeep);
        Ok(local_store)
    }

    pub(super) fn from_open(store: Arc<OpenStore>, recovery: Recovery) -> Arc<Self> {
        let capabilities = Capabilities {
            kind: "local",
            owns_buckets: true,
            atomic_buckets: true,
            conditional_writes: true,
            multipart: true,
            tags: true,
            generations: true,
            unique_etags: true,
            multiple_checksums: true,
            listing_reports_checksums: true,
            upload_metadata: true,
            reports_all_parts: true,
            reports_deleted: true,
            stage_checks_bucket: true,
            versions: true,
            max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
            max_object_bytes: MAX_OBJECT_BYTES,
            reported_attributes: true,
            unsupported: &[],
        };
        Arc::new(Self {
            store,
            upkeep: Mutex::new(None),
            recovery,
            capabilities,
            closed: AtomicBool::new(false),
        })
    }

    /// The actions taken while opening.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Runs a round of upkeep on this thread. Returns the number of segments removed.
    pub fn run_upkeep(&self) -> Result<usize> {
        upkeep::run_once(&self.store)
    }

    /// Wakes the upkeep thread.
    pub fn wake_upkeep(&self) {
        if let Some(upkeep) = &*self.upkeep.lock() {
            upkeep.wake();
        }
    }

    /// Returns true if the store is read-only, after a failure that leaves the state on disk unknown.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.store.committer.is_read_only()
    }

    /// Bytes read from segments so far: the cost of reads for the device or the page cache.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.store.state.io.read_bytes()
    }

    /// Free bytes of the store's device.
    pub fn free_bytes(&self) -> Result<u64> {
        self.store.state.space.free()
    }

    fn check_open(&self, context: &Context) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(Reason::ShuttingDown, "the store is closed"));
        }
        context.check()
    }

    /// Rejects a write that is known not to fit before any of it is written.
    fn check_space(&self, size: Option<u64>) -> Result<()> {
        size.map_or(Ok(()), |bytes| self.store.state.space.admit_whole(bytes))
    }

    async fn submit<C: commit::Change>(&self, context: &Context, change: C) -> Result<C::Output> {
        self.check_open(context)?;
        context.guard(self.store.committer.submit(change)).await?
    }

    /// Rewrites an object's record with other metadata. `change` is called again if another write intervened.
    async fn change_metadata(
        &self,
        context: &Context,
        address: &Address,
        change: impl Fn(&mut Object) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        self.check_open(context)?;
        // In each round one of the concurrent attempts succeeds, so all of them end.
        loop {
            let record = self.store.object(context, address, true).await?;
            let mut object = Box::new(Arc::unwrap_or_clone(record.object));
            change(&mut object)?;
            let rewrite = commit::RewriteVersion {
                bucket: address.bucket.as_str().to_owned(),
                object,
                seq: record.seq,
                payload: record.payload.into_iter().collect(),
                block_crcs: record.block_crcs,
            };
            match self.submit(context, rewrite).await {
                Err(e) if e.reason() == Reason::Conflict => {}
                other => return other,
            }
        }
    }

    /// Copies a body into a write. Returns the number of bytes.
    async fn copy_body(context: &Context, staged: &mut dyn Staged, mut body: Body) -> Result<u64> {
        let mut size = 0;
        while let Some(bytes) = context.guard(body.next_copied()).await?? {
            size += bytes.len() as u64;
            staged.write(bytes).await?;
        }
        Ok(size)
    }
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalStore({})", self.store.state.layout.root().display())
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        stop_threads(self.upkeep.lock().take(), &self.store);
    }
}

/// Ends the store's threads after finishing queued work.
fn stop_threads(upkeep: Option<Upkeep>, store: &OpenStore) {
    drop(upkeep);
    store.committer.close();
}

#[async_trait]
impl ObjectStore for LocalStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let created = self.store.state.clock.wall();
        self.submit(context, commit::CreateBucket { name: bucket.as_str().to_owned(), created }).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.submit(context, commit::DeleteBucket { name: bucket.as_str().to_owned() }).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.check_open(context)?;
        self.store.state.bucket(bucket.as_str()).map(drop)
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.check_open(context)?;
        let buckets = self.store.state.buckets.read();
        buckets
            .values()
            .map(|b| Ok(BucketInfo { name: BucketName::new(&b.name)?, created: Some(b.created) }))
            .collect()
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.check_open(context)?;
        Ok(self.store.state.bucket(bucket.as_str())?.versioning)
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.submit(context, commit::SetVersioning { name: bucket.as_str().to_owned(), versioning }).await
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.check_open(context)?;
        self.store.head_object(context, address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.check_open(context)?;
        self.store.open_object(context, address, request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_open(context)?;
        request.metadata.check()?;
        self.store.state.bucket(address.bucket.as_str())?;
        self.check_space(request.size)?;
        let target = StageTarget::Object {
            bucket: address.bucket.as_str().to_owned(),
            key: address.key.as_str().to_owned(),
            metadata: Box::new(request.metadata.clone()),
        };
        Ok(Box::new(LocalStaged::new(self.store.clone(), context.clone(), target, request)))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        let change = commit::DeleteObject {
            bucket: address.bucket.as_str().to_owned(),
            key: address.key.as_str().to_owned(),
            version: address.version.clone(),
            precondition,
            deleted: self.store.state.clock.wall(),
        };
        self.submit(context, change).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.check_open(context)?;
        let bucket = self.store.state.bucket(bucket.as_str())?;
        let (state, request) = (self.store.state.clone(), request.clone());
        let listing = move || super::list::list_page(&state, bucket.id, &request);
        context.guard(self.store.state.io.run(listing)).await?
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.check_open(context)?;
        let bucket = self.store.state.bucket(bucket.as_str())?;
        let (state, request) = (self.store.state.clone(), request.clone());
        let listing = move || super::list::versions_page(&state, bucket.id, &request);
        context.guard(self.store.state.io.run(listing)).await?
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.check_open(context)?;
        let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
        let source = self.get(context, &request.source, get).await?;
        let algorithm = request.algorithm.or(source.info.checksums.first().map(Checksum::algorithm));
        let mut metadata = request.metadata.unwrap_or_else(|| source.info.metadata.clone().for_copy());
        metadata.tags = request.tags.unwrap_or_else(|| source.info.metadata.tags.clone());
        let stage = StageRequest {
            metadata,
            size: Some(source.info.size),
            algorithms: algorithm.into_iter().collect(),
            verify_md5: false,
            etag: request.etag,
            precondition: request.precondition,
            checksum: None,
            identity: None,
        };
        let source_version = source.info.version;
        let mut staged = self.stage(context, &request.destination, stage).await?;
        let size = Self::copy_body(context, &mut *staged, source.body).await?;
        let expected = Expected { size: Some(source.info.size.max(size)), ..Expected::default() };
        let (committed, _) = staged.commit(expected).await?;
        Ok(Committed { source_version, ..committed })
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        let change = |object: &mut Object| {
            object.metadata.tags = tags.clone();
            Ok(())
        };
        self.change_metadata(context, address, change).await
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        let change = |object: &mut Object| {
            object.metadata.classes = update.apply(&object.metadata.classes, object.size)?;
            Ok(())
        };
        self.change_metadata(context, address, change).await
    }

    async fn redescribe(
        &self,
        context: &Context,
        address: &Address,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        self.check_open(context)?;
        self.store.redescribe_object(context, address, &*change).await
    }

    async fn redescribe_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        self.check_open(context)?;
        self.store.redescribe_parts(context, address, upload, &*change).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.check_open(context)?;
        let record = self.store.object(context, address, false).await?;
        object_parts(&record.object, after, limit)
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        request.check()?;
        let upload = Upload {
            bucket: 0,
            key: address.key.as_str().to_owned(),
            initiated: self.store.state.clock.wall(),
            metadata: request.metadata,
            checksum: request.checksum,
        };
        let bucket = address.bucket.as_str().to_owned();
        let seq = self.submit(context, commit::CreateUpload { bucket, upload: Box::new(upload) }).await?;
        Ok(UploadId(format_id(seq)))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_open(context)?;
        let seq = self.store.upload_seq(address, upload)?;
        let created_upload = self.store.upload(address, seq)?;
        self.check_space(request.size)?;
        let mut request = request;
        let required_algorithm =
            created_upload.checksum.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm);
        if !request.algorithms.contains(&required_algorithm) {
            request.algorithms.push(required_algorithm);
        }
        let target = StageTarget::Part {
            bucket: address.bucket.as_str().to_owned(),
            key: address.key.as_str().to_owned(),
            upload: seq,
            number: number.get(),
        };
        Ok(Box::new(LocalStaged::new(self.store.clone(), context.clone(), target, request)))
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.check_open(context)?;
        let select = request.range.map_or(Select::Whole, Select::Range);
        let get =
            GetRequest { select, conditions: request.source_conditions.clone(), ..GetRequest::default() };
        let source = self.get(context, &request.source, get).await?;
        if let Some(tradewind_core::ByteRange::Inclusive { last, .. }) = request.range
            && last >= source.info.size
        {
            return Err(Error::for_client(
                Reason::InvalidRange,
                "the range extends beyond the end of the source",
            ));
        }
        let stage =
            StageRequest { size: Some(source.span.length), etag: request.etag, ..StageRequest::default() };
        let mut staged =
            self.stage_part(context, &request.destination, &request.upload, request.number, stage).await?;
        let length = source.span.length;
        Self::copy_body(context, &mut *staged, source.body).await?;
        let expected = Expected { size: Some(length), ..Expected::default() };
        let (committed, _) = staged.commit(expected).await?;
        Ok(Committed { source_version: source.info.version, ..committed })
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.check_open(context)?;
        self.store.parts_page(address, upload, after, limit)
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.check_open(context)?;
        let (store, bucket, request) = (self.store.clone(), bucket.clone(), request.clone());
        let listing_context = context.clone();
        let listing = move || store.uploads_page(&listing_context, &bucket, &request);
        context.guard(self.store.state.io.run(listing)).await?
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.check_open(context)?;
        let seq = self.store.upload_seq(address, upload)?;
        loop {
            let (store, address, request) = (self.store.clone(), address.clone(), request.clone());
            let assemble = move || store.assemble(&address, seq, &request);
            let (change, mut committed) = context.guard(self.store.state.io.run(assemble)).await??;
            if let Some(written) = self.submit(context, change).await? {
                committed.generation = written.generation;
                committed.version = written.version;
                return Ok(committed);
            }
        }
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        let upload = self.store.upload_seq(address, upload)?;
        let (bucket, key) = (address.bucket.as_str().to_owned(), address.key.as_str().to_owned());
        self.submit(context, commit::AbortUpload { bucket, key, upload }).await
    }

    async fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (store, upkeep) = (self.store.clone(), self.upkeep.lock().take());
        let (result_sender, result_receiver) = tokio::sync::oneshot::channel();
        // Not on an I/O thread: the upkeep thread, which is joined here, may be waiting for one.
        let closing = move || {
            stop_threads(upkeep, &store);
            let result = if store.committer.is_read_only() { Ok(()) } else { store.state.index.checkpoint() };
            drop(store);
            let _ = result_sender.send(result);
        };
        let spawned = std::thread::Builder::new().name("local-close".to_owned()).spawn(closing);
        spawned.map_err(thread_error)?;
        result_receiver
            .await
            .unwrap_or_else(|_| Err(Error::new(Reason::Defect, "closing the store panicked")))
    }
}
