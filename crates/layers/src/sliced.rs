//! A layer over a store on a rotating disk, which decides when each request uses the disk (Chen, Mesnier and Hahn,
//! *Client-aware Cloud Storage*, section V.D). `model/slices` has the rules.
//!
//! - Reads and writes of more than [`MAX_UNSLICED_BYTES`] go slice by slice. The first slice of a stream and all small
//!   requests have priority over further slices of others. Streams share the disk by the `share` of their classes.
//! - **Reads** wait in the store ([`DeviceGate`](tradewind_core::DeviceGate)). Records, and bodies of up to 256 KiB,
//!   need no turn if the page cache answers them. Longer bodies take turns, cached or not. Lookups in the index of the
//!   store have none.
//! - A **reader that does not poll** loses its turn, and requests the next one when it polls. A **dropped** request
//!   leaves the queue. **Deadlines** apply while a request is queued.
//! - If the queue is full, a request is rejected as [`Overloaded`](tradewind_core::Reason::Overloaded) before it reaches
//!   the store. A stream that has begun is not.
//! - Bucket operations and copies within the store bypass the scheduler.
//!
//! Writes go to the page cache, and the kernel decides when it writes them to the disk, at the latest at a commit. A
//! slice orders when a stream may write, not when the disk does.

mod disk_request;
mod read_gate;
mod sliced_io;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::RwLock;
use tradewind_core::error::Result;
use tradewind_core::layer::{Call, Method};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::{Address, Body, Classes, Context, ObjectStore, Staged};
use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_model::slices::{DiskWork, MAX_UNSLICED_BYTES, StreamShare};

use self::disk_request::DiskRequest;
pub use self::disk_request::{DiskQueue, DiskQueueReport};
use self::read_gate::ReadGate;
use self::sliced_io::{SlicedWrite, slice_body};

/// The layer that schedules a rotating disk. See the module documentation.
pub struct Sliced {
    inner: Arc<dyn ObjectStore>,
    disk: Arc<DiskQueue>,
    policies: RwLock<Arc<ClassPolicyTable>>,
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Sliced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Sliced {
    /// Schedules the requests of `inner`, a store on the disk of `disk`.
    pub fn new(inner: Arc<dyn ObjectStore>, disk: Arc<DiskQueue>) -> Arc<Self> {
        Arc::new(Self { inner, disk, policies: RwLock::default() })
    }

    /// Replaces the policies of classes, which have the shares of streams. Slices that are queued keep their shares.
    pub fn set_policies(&self, policies: Arc<ClassPolicyTable>) {
        *self.policies.write() = policies;
    }

    /// The policies of classes.
    pub fn policies(&self) -> Arc<ClassPolicyTable> {
        self.policies.read().clone()
    }

    /// The scheduler of the disk.
    #[must_use]
    pub const fn disk(&self) -> &Arc<DiskQueue> {
        &self.disk
    }

    fn share(&self, classes: &Classes, size: Option<u64>) -> StreamShare {
        let policies = self.policies.read();
        policies.stream_share(policies.class_of_object(classes, size.unwrap_or(MAX_UNSLICED_BYTES + 1)))
    }

    /// A request that has the disk.
    async fn begin(&self, context: &Context, work: DiskWork) -> Result<DiskRequest> {
        context.check()?;
        let mut request = DiskRequest::new(&self.disk, context);
        if let Some(wait) = request.request_first(work)? {
            context.guard(wait).await?;
        }
        request.begin();
        Ok(request)
    }

    /// Schedules a call without data, or lets it bypass the scheduler.
    async fn schedule<T>(
        &self,
        call: Call<'_>,
        response: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let Some(work) = scheduled_work(call.method) else { return response.await };
        let _request = self.begin(call.context, work).await?;
        response.await
    }

    fn stage_request(&self, context: &Context, request: &StageRequest) -> DiskRequest {
        let mut disk_request = DiskRequest::new(&self.disk, context);
        disk_request.set_share(self.share(&request.metadata.classes, request.size));
        disk_request
    }
}

/// The use of the disk by a call without data. `None` for one that bypasses the scheduler.
fn scheduled_work(method: Method) -> Option<DiskWork> {
    match method {
        Method::List
        | Method::ListVersions
        | Method::ObjectParts
        | Method::ListParts
        | Method::ListUploads => Some(DiskWork::Small),
        Method::Delete
        | Method::SetTags
        | Method::SetClasses
        | Method::CreateUpload
        | Method::CompleteUpload
        | Method::AbortUpload => Some(DiskWork::Change),
        _ => None,
    }
}

#[async_trait]
impl ObjectStore for Sliced {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| layer.schedule(call, response).await;
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        list_buckets, versioning, set_versioning,
        delete, list, list_versions, copy, set_tags, set_classes, redescribe, redescribe_upload, object_parts, create_upload,
        copy_part, list_parts,
        list_uploads, complete_upload, abort_upload, close,
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        let gate = ReadGate::new(&self.disk, context);
        self.inner.head(&context.clone().with_device_gate(gate), address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let gate = ReadGate::new(&self.disk, context);
        let gated = context.clone().with_device_gate(gate.clone());
        let GetResponse { body, info, span, observation } = self.inner.get(&gated, address, request).await?;
        let body = match body.into_bytes() {
            Ok(bytes) => {
                gate.end_with_bytes(bytes.len() as u64);
                Body::from_bytes(bytes)
            }
            Err(body) => {
                gate.begin_body(body.length(), self.share(&info.metadata.classes, Some(info.size)))?;
                slice_body(body, gate)
            }
        };
        Ok(GetResponse { body, info, span, observation })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let (size, disk_request) = (request.size, self.stage_request(context, &request));
        let staged = self.inner.stage(context, address, request).await?;
        Ok(SlicedWrite::wrap(staged, disk_request, size, &context.deadline))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let (size, disk_request) = (request.size, self.stage_request(context, &request));
        let staged = self.inner.stage_part(context, address, upload, number, request).await?;
        Ok(SlicedWrite::wrap(staged, disk_request, size, &context.deadline))
    }
}
