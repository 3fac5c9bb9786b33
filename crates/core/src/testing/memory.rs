//! The memory store: a map under one lock, and the reference for every other store.
//! Each operation takes the lock once and does all of its work under it, so that every
//! operation is atomic and the order of the lock is the linearization. Bodies are
//! streamed in small pieces although they are in one buffer, so that callers are tested with real streams.

mod object;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};

use crate::body::Body;
use crate::class::ClassUpdate;
use crate::clock::Clock;
use crate::condition::Precondition;
use crate::context::Context;
use crate::error::{Error, Reason, Result};
use crate::listing::{ListPage, ListRequest, ObjectSummary};
use crate::metadata::Tags;
use crate::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use crate::name::{Address, BucketName, MAX_KEY_BYTES};
use crate::object::{Committed, Expected, ObjectInfo};
use crate::observation::Observation;
use crate::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, GetRequest, GetResponse, ObjectStore,
    StageRequest, Staged,
};
use crate::stored_form::{DescriptionChange, Redescribed};
use crate::version::{ListVersions, Versioning, VersionsPage};

use object::{DigestPlan, Payload, StoredObject};
use state::MemoryState;

/// Bytes in one piece of a streamed body.
const PIECE_BYTES: usize = 64 << 10;

/// A store that holds everything in memory. See the module's head.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    state: Arc<Mutex<MemoryState>>,
}

impl MemoryStore {
    /// An empty store whose objects carry this clock's wall time.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let capabilities = Capabilities {
            kind: "memory",
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
            max_key_bytes: MAX_KEY_BYTES,
            max_object_bytes: u64::MAX,
            reported_attributes: true,
            unsupported: &[],
        };
        Arc::new(Self { clock, capabilities, state: Arc::default() })
    }

    /// An object and its metadata, which name its version if the bucket keeps versions.
    fn find(&self, context: &Context, address: &Address) -> Result<(Arc<StoredObject>, ObjectInfo)> {
        let state = self.open(context)?;
        let object = state.object(address)?;
        let version = state.version_of(address, &object)?;
        let info = ObjectInfo { version, ..object.info.clone() };
        Ok((object, info))
    }

    /// Locks the state. Fails if the request is over or the store closed.
    fn open(&self, context: &Context) -> Result<MutexGuard<'_, MemoryState>> {
        lock(&self.state, context)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

fn lock<'a>(state: &'a Mutex<MemoryState>, context: &Context) -> Result<MutexGuard<'a, MemoryState>> {
    context.check()?;
    let state = state.lock();
    if state.closed {
        return Err(Error::new(Reason::ShuttingDown, "the memory store was closed"));
    }
    Ok(state)
}

#[async_trait]
impl ObjectStore for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.open(context)?.create_bucket(bucket, self.clock.wall())
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.open(context)?.delete_bucket(bucket)
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let state = self.open(context)?;
        state.bucket(bucket).map(drop)
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let state = self.open(context)?;
        let info = |(name, bucket): (&BucketName, &state::Bucket)| BucketInfo {
            name: name.clone(),
            created: Some(bucket.created),
        };
        Ok(state.buckets.iter().map(info).collect())
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.open(context)?.versioning(bucket)
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.open(context)?.set_versioning(bucket, versioning)
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        let (object, info) = self.find(context, address)?;
        let span = object.select(&request)?;
        Ok(GetResponse { info, span, body: (), observation: Observation::default() })
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let (object, info) = self.find(context, address)?;
        let (span, bytes) = object.read(address.key.as_str(), &request)?;
        let body = stream(context.clone(), bytes);
        Ok(GetResponse { info, span, body, observation: Observation::default() })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.open(context)?.bucket(&address.bucket)?;
        request.metadata.check()?;
        Ok(self.staged(context, address, request, None))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.open(context)?.delete(address, &precondition, self.clock.wall())
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.open(context)?.list(bucket, request)
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.open(context)?.list_versions(bucket, request)
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.open(context)?.copy(&request, self.clock.wall())
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.open(context)?.set_tags(address, tags)
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        self.open(context)?.set_classes(address, &update)
    }

    async fn redescribe(
        &self,
        context: &Context,
        address: &Address,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        self.open(context)?.redescribe(address, &*change)
    }

    async fn redescribe_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        self.open(context)?.redescribe_upload(address, upload, &*change)
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        let object = self.open(context)?.object(address)?;
        Ok(state::page_of_parts(&object.parts, after, limit))
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.open(context)?.create_upload(address, request, self.clock.wall())
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        mut request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let needed = self.open(context)?.upload(address, upload)?.algorithm();
        request.algorithms.push(needed);
        Ok(self.staged(context, address, request, Some((upload.clone(), number))))
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.open(context)?.copy_part(&request, self.clock.wall())
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.open(context)?.list_parts(address, upload, after, limit)
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.open(context)?.list_uploads(bucket, request)
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.open(context)?.complete_upload(address, upload, &request, self.clock.wall())
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.open(context)?.abort_upload(address, upload)
    }

    async fn close(&self) -> Result<()> {
        *self.state.lock() = MemoryState { closed: true, ..MemoryState::default() };
        Ok(())
    }
}

impl MemoryStore {
    fn staged(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
        part: Option<(UploadId, PartNumber)>,
    ) -> Box<dyn Staged> {
        Box::new(MemoryStaged {
            state: self.state.clone(),
            clock: self.clock.clone(),
            context: context.clone(),
            address: address.clone(),
            bytes: BytesMut::new(),
            request,
            part,
        })
    }
}

/// A staged write: a buffer, invisible until the commit. Dropping it aborts.
struct MemoryStaged {
    state: Arc<Mutex<MemoryState>>,
    clock: Arc<dyn Clock>,
    context: Context,
    address: Address,
    bytes: BytesMut,
    request: StageRequest,
    part: Option<(UploadId, PartNumber)>,
}

#[async_trait]
impl Staged for MemoryStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.context.check()?;
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { state, clock, context, address, bytes, request: staged, part } = *self;
        let plan =
            DigestPlan { algorithms: staged.algorithms, verify_md5: staged.verify_md5, etag: staged.etag };
        let mut payload = Payload::new(bytes.freeze(), &plan);
        payload.verify(expected.with_default_size(staged.size))?;
        payload.set_identity(staged.identity.clone().filter(|_| part.is_none()));
        let mut state = lock(&state, &context)?;
        let committed = match part {
            Some((upload, number)) => state.put_part(&address, &upload, number, payload, clock.wall())?,
            None => state.put(&address, payload, staged.metadata, &staged.precondition, clock.wall())?,
        };
        Ok((committed, Observation::default()))
    }
}

/// A body in pieces that ends with the request's deadline.
fn stream(context: Context, bytes: Bytes) -> Body {
    if bytes.len() <= PIECE_BYTES {
        return Body::from_bytes(bytes);
    }
    let length = bytes.len() as u64;
    let pieces = futures::stream::unfold(bytes, move |mut rest| {
        let alive = context.check();
        async move {
            if rest.is_empty() {
                return None;
            }
            Some(match alive {
                Ok(()) => {
                    let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                    (Ok(piece), rest)
                }
                Err(e) => (Err(e), Bytes::new()),
            })
        }
    });
    Body::from_stream(length, pieces)
}
