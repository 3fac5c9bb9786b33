//! A layer in which requests wait so that others need not: each takes its turns in the lane of its size and direction, as
//! `model/lanes` gives them. Everything else passes through as it is.
//!
//! - A **small** request has one turn, before the store is asked. A **large** one has one for each piece: a write before
//!   the piece is handed on, a read before the next is asked for. Nobody holds anything between its turns: who reads or
//!   writes slowly keeps nobody waiting.
//! - **Priority** follows from the key, and from who asks. Listings have that of who asks.
//! - Buckets, copies within the store, and the beginning and the end of uploads take no turns: they carry nothing.
//! - What is **dropped** gives its place back. A **deadline** is heeded while a turn is waited for, and nothing has been asked
//!   of the store then that was not before.
//! - Where too many wait, a request is refused as [`Overloaded`](tradewind_core::Reason::Overloaded), before anything is asked
//!   of the store; of a write or a read whose size nobody knew, when it turns out to be large.
//!
//! To stand beneath whatever measures how long callers wait, and above whatever retries. Where nobody goes before anybody a
//! request costs a few looks at the clock and a lock.

mod carried;
mod priorities;
mod turns;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use carried::{Writing, reading};
use tradewind_core::error::Result;
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::metadata::Tags;
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, Found, GetRequest, Select, StageRequest,
};
use tradewind_core::{
    Address, Body, BucketName, ByteRange, Clock, Context, ObjectStore, Precondition, Staged,
};
use tradewind_model::lanes::{Kind, LanesOptions, Size};
use tradewind_model::store_model::Operation;
use turns::{Request, Turns};

pub use priorities::Priorities;

/// See the module's head.
pub struct Scheduled {
    inner: Arc<dyn ObjectStore>,
    turns: Arc<Turns>,
    priorities: Priorities,
}

/// As what lies below: it is the same store.
impl fmt::Debug for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Scheduled {
    /// Lanes to `inner`, by this clock.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        options: LanesOptions,
        priorities: Priorities,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self { inner, turns: Turns::new(options, clock), priorities })
    }

    /// Requests that wait for a turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.turns.counts().0
    }

    /// Requests that have been let in and are not over.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.turns.counts().1
    }

    /// Lets a request in; a small one has had its turn then.
    async fn enter(&self, context: &Context, kind: Kind) -> Result<Request> {
        context.check()?;
        let client = self.turns.client(context.client.as_deref());
        let request = self.turns.enter(client, kind)?;
        if kind.size == Size::Small
            && let Some(turn) = request.turn(0)
        {
            context.guard(turn).await?;
        }
        Ok(request)
    }

    async fn call<T>(
        &self,
        context: &Context,
        (operation, address): (Operation, Option<&Address>),
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let priority = self.priorities.of(context, address);
        let mut request = self.enter(context, Kind::new(operation, priority, 0)).await?;
        request.wait();
        let answer = work.await;
        request.come(0);
        if answer.is_ok() {
            request.done();
        }
        answer
    }

    async fn staging(
        &self,
        context: &Context,
        (operation, address, size): (Operation, &Address, Option<u64>),
        work: impl Future<Output = Result<Box<dyn Staged>>> + Send,
    ) -> Result<Box<dyn Staged>> {
        let priority = self.priorities.of(context, Some(address));
        let kind = size.map_or_else(
            || Kind::new(operation, priority, 0).guessed(),
            |bytes| Kind::new(operation, priority, bytes),
        );
        let mut request = self.enter(context, kind).await?;
        request.wait();
        let staged = work.await;
        request.come(0);
        Ok(Writing::wrap(staged?, request, operation, priority, &context.deadline))
    }
}

/// What a read is, as long as only its range tells: unless the object has less, what a range has; otherwise nobody knows.
fn guess(kind: impl Fn(u64) -> Kind, select: Select) -> Kind {
    match select {
        Select::Range(ByteRange::Inclusive { first, last }) => {
            kind(last.saturating_sub(first).saturating_add(1))
        }
        _ => kind(0).guessed(),
    }
}

#[async_trait]
impl ObjectStore for Scheduled {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn expect_requests(&self, bucket: &BucketName, requests: usize) {
        self.inner.expect_requests(bucket, requests);
    }

    fn round_trip(&self, bucket: &BucketName) -> Option<Duration> {
        self.inner.round_trip(bucket)
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.inner.create_bucket(context, bucket).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.inner.delete_bucket(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.inner.head_bucket(context, bucket).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.inner.list_buckets(context).await
    }

    async fn head(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<()>> {
        self.call(context, (Operation::Head, Some(address)), self.inner.head(context, address, request)).await
    }

    async fn get(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<Body>> {
        let priority = self.priorities.of(context, Some(address));
        let kind = |bytes| Kind::new(Operation::Get, priority, bytes);
        // How much it will be is known with the answer where no range says so.
        let mut turned = self.enter(context, guess(kind, request.select)).await?;
        turned.wait();
        let found = self.inner.get(context, address, request).await;
        turned.come(0);
        let found = found?;
        turned.grow(kind(found.body.length()))?;
        Ok(Found { body: reading(found.body, turned, &context.deadline), ..found })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let size = request.size;
        self.staging(context, (Operation::Put, address, size), self.inner.stage(context, address, request))
            .await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.call(
            context,
            (Operation::Delete, Some(address)),
            self.inner.delete(context, address, precondition),
        )
        .await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.call(context, (Operation::List, None), self.inner.list(context, bucket, request)).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.inner.copy(context, request).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.call(context, (Operation::Tag, Some(address)), self.inner.set_tags(context, address, tags)).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.call(
            context,
            (Operation::List, Some(address)),
            self.inner.object_parts(context, address, after, limit),
        )
        .await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.inner.create_upload(context, address, request).await
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
        self.staging(context, (Operation::Part, address, size), work).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.inner.copy_part(context, request).await
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.call(
            context,
            (Operation::List, Some(address)),
            self.inner.list_parts(context, address, upload, after, limit),
        )
        .await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.call(context, (Operation::List, None), self.inner.list_uploads(context, bucket, request)).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.inner.complete_upload(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.inner.abort_upload(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
