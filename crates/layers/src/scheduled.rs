//! A layer that queues requests in lanes by size class, direction and priority, so that large requests do not delay
//! small ones. `model/lanes` decides when each request is dispatched.
//!
//! - A **small** request is dispatched once, before it reaches the store. A **large** one is dispatched in
//!   steps: a write before each quantum, a read after each piece, before the next is requested. Nothing is held in
//!   between, so slow readers and writers delay no other request.
//! - **Priority** follows from the key and the client; that of a listing from the client only.
//! - Bucket operations, server-side copies, and creating, completing and aborting uploads bypass the lanes: they
//!   transfer no data.
//! - **Dropping** a queued request removes it from its lane. A **deadline** also applies while a request is queued,
//!   before it reaches the store.
//! - If the queue is full, a request is rejected as [`Overloaded`](tradewind_core::Reason::Overloaded) before it
//!   reaches the store. A read or write of unknown size is rejected when it turns out to be large.
//!
//! Place this layer below the one that measures how long callers wait, and above the one that retries. If only one
//! class is active, a request costs a few clock reads and a lock.

mod dispatcher;
mod priorities;
mod scheduled_io;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use dispatcher::{Dispatcher, ScheduledRequest};
use scheduled_io::{ScheduledWrite, schedule_body};
use tradewind_core::error::Result;
use tradewind_core::layer::{Call, Method};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::{Address, Body, ByteRange, Clock, Context, ObjectStore, Staged};
use tradewind_model::lanes::{LaneKind, LanesOptions, RequestSize};
use tradewind_model::store_statistics::Operation;

pub use priorities::Priorities;

/// The lane scheduling layer. See the module documentation.
pub struct Scheduled {
    inner: Arc<dyn ObjectStore>,
    dispatcher: Arc<Dispatcher>,
    priorities: Priorities,
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Scheduled {
    /// Wraps `inner` in lanes; times are those of `clock`.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        options: LanesOptions,
        priorities: Priorities,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self { inner, dispatcher: Dispatcher::new(options, clock), priorities })
    }

    /// Number of queued requests.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.dispatcher.queued()
    }

    /// Number of requests that entered a lane and have not ended, queued ones included.
    #[must_use]
    pub fn entered_count(&self) -> usize {
        self.dispatcher.entered_count()
    }

    /// Admits a request to its lane, and waits for the dispatch of a small one.
    async fn enter(&self, context: &Context, kind: LaneKind) -> Result<ScheduledRequest> {
        context.check()?;
        let client = self.dispatcher.client_id(context.client.as_deref());
        let request = self.dispatcher.enter(client, kind)?;
        if kind.size == RequestSize::Small
            && let Some(dispatch) = request.request_dispatch(0)
        {
            context.guard(dispatch).await?;
        }
        Ok(request)
    }

    /// Schedules a call without data, or lets it bypass the lanes.
    async fn schedule<T>(
        &self,
        call: Call<'_>,
        response: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let Some(operation) = scheduled_operation(call.method) else { return response.await };
        let priority = self.priorities.priority_for(call.context, call.address);
        let mut request = self.enter(call.context, LaneKind::new(operation, priority, 0)).await?;
        request.start_wait();
        let response = response.await;
        request.end_wait(0);
        if response.is_ok() {
            request.complete();
        }
        response
    }

    async fn schedule_stage(
        &self,
        context: &Context,
        address: &Address,
        operation: Operation,
        size_bytes: Option<u64>,
        work: impl Future<Output = Result<Box<dyn Staged>>> + Send,
    ) -> Result<Box<dyn Staged>> {
        let priority = self.priorities.priority_for(context, Some(address));
        let kind = size_bytes.map_or_else(
            || LaneKind::new(operation, priority, 0).with_unknown_size(),
            |bytes| LaneKind::new(operation, priority, bytes),
        );
        let mut request = self.enter(context, kind).await?;
        request.start_wait();
        let staged = work.await;
        request.end_wait(0);
        Ok(ScheduledWrite::wrap(staged?, request, operation, priority, &context.deadline))
    }
}

/// The kind of a read before its response: by the length of an explicit range, which is an upper bound. Otherwise the
/// size counts as unknown.
fn kind_of_read(kind: impl Fn(u64) -> LaneKind, select: Select) -> LaneKind {
    match select {
        Select::Range(ByteRange::Inclusive { first, last }) => {
            kind(last.saturating_sub(first).saturating_add(1))
        }
        _ => kind(0).with_unknown_size(),
    }
}

/// The operation under which a call without data is scheduled. `None` for one that bypasses the lanes.
fn scheduled_operation(method: Method) -> Option<Operation> {
    match method {
        Method::Head => Some(Operation::Head),
        Method::Delete => Some(Operation::Delete),
        Method::SetTags | Method::SetClasses | Method::Redescribe | Method::RedescribeUpload => {
            Some(Operation::Tag)
        }
        Method::List
        | Method::ListVersions
        | Method::ObjectParts
        | Method::ListParts
        | Method::ListUploads => Some(Operation::List),
        _ => None,
    }
}

#[async_trait]
impl ObjectStore for Scheduled {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| layer.schedule(call, response).await;
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        list_buckets, versioning, set_versioning,
        head, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, copy_part, list_parts,
        list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let priority = self.priorities.priority_for(context, Some(address));
        let kind = |bytes| LaneKind::new(Operation::Get, priority, bytes);
        // Without an explicit range, the size is known only with the response.
        let mut scheduled = self.enter(context, kind_of_read(kind, request.select)).await?;
        scheduled.start_wait();
        let found = self.inner.get(context, address, request).await;
        scheduled.end_wait(0);
        let found = found?;
        scheduled.update_kind(kind(found.body.length()))?;
        Ok(GetResponse { body: schedule_body(found.body, scheduled, &context.deadline), ..found })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let size = request.size;
        let work = self.inner.stage(context, address, request);
        self.schedule_stage(context, address, Operation::Put, size, work).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let size = request.size;
        let work = self.inner.stage_part(context, address, upload, number, request);
        self.schedule_stage(context, address, Operation::Part, size, work).await
    }
}
