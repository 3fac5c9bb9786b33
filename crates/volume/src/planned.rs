//! A layer under whose plan a store is read: what is large is fetched in ranges beside each other, as transfers do, and handed on in
//! order. Everything else passes through as it is.
//!
//! - A read goes to the store as it was asked for, so that its conditions are judged there, what is small is one request as ever, and
//!   the answer says all that the store knows. Only a range that is known to be large is asked for by its beginning.
//! - The answer says how large it is. What is larger than a chunk of the plan is fetched ahead in ranges of the same version
//!   (`reading`), as many at a time as the plan says of all requests together, and as there is memory for (`ahead`).
//! - Memory is the request's own window, and what is fetched ahead: a part of the budget that requests are admitted to, for which
//!   nobody waits.
//! - A whole that its leaf would compare with a checksum is compared here (`sum`), before its last piece is handed on.
//! - Where the object changes meanwhile, the body fails. It is never a mixture.
//!
//! Writes pass as they are: see decision 26. To stand above whatever measures how long the store takes, so that it sees ranges.

mod ahead;
mod reading;
mod sum;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahead::{Ahead, Shares};
use async_trait::async_trait;
use reading::Reading;
use sum::Sum;
use tokio::sync::Semaphore;
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
    Address, Body, BucketName, Budget, ByteRange, Clock, Context, ObjectStore, Precondition, Span, Staged,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

use super::buffers::BUFFER_BYTES;
use super::carrier::Carrier;
use super::origin::{Origin, check_place};
use super::whole::Whole;

/// A body of no more has come with its answer, or nearly: it takes no turn and no task.
const SMALL_BYTES: u64 = 2 * BUFFER_BYTES as u64;
/// Memory of requests that are made a second time because the first is late.
const HEDGE_BYTES: usize = 4 << 20;

/// How a store is read.
#[derive(Debug, Clone)]
pub struct PlannedOptions {
    /// The plan: how large ranges are, how many requests of which size there are at a time, and what may wait in memory for one
    /// object.
    pub plan: Plan,
    /// Bytes that are fetched ahead, of all objects together.
    pub ahead_bytes: u64,
    /// How patient it is with ranges that break off.
    pub retries: RetryOptions,
    /// Tags in the form of an MD5 are the MD5 of the bytes, always.
    pub tags_are_md5: bool,
}

/// See the module's head.
pub struct Planned {
    inner: Arc<dyn ObjectStore>,
    carrier: Arc<Carrier>,
    ahead: Arc<Ahead>,
    tags_are_md5: bool,
}

/// As what lies below: it is the same store.
impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Planned {
    /// Reads `inner` so, by this clock.
    pub fn new(inner: Arc<dyn ObjectStore>, options: PlannedOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let PlannedOptions { plan, ahead_bytes, retries, tags_are_md5 } = options;
        let carrier = Arc::new(Carrier::new(plan, Budget::new(HEDGE_BYTES), clock, retries));
        Arc::new(Self { inner, carrier, ahead: Ahead::new(ahead_bytes), tags_are_md5 })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.carrier.plan()
    }

    /// Bytes that are held now of what is fetched ahead.
    #[must_use]
    pub fn held_ahead(&self) -> u64 {
        self.ahead.held()
    }

    /// What is asked for first of what is asked for.
    fn first_of(&self, select: Select) -> Select {
        match select {
            Select::Range(ByteRange::Inclusive { first, last })
                if last.saturating_sub(first) >= self.plan().chunk_bytes =>
            {
                let last = first.saturating_add(self.plan().stream_bytes.max(1) - 1);
                Select::Range(ByteRange::Inclusive { first, last })
            }
            select => select,
        }
    }

    /// The answer to a request, from that to its first part.
    fn read(
        &self,
        context: &Context,
        address: &Address,
        select: Select,
        found: Found<Body>,
    ) -> Result<Found<Body>> {
        let span = match select {
            Select::Range(range @ ByteRange::Inclusive { .. }) => range.resolve(found.info.size)?,
            _ => found.span,
        };
        if span == found.span && span.length <= SMALL_BYTES {
            return Ok(found);
        }
        check_place(found.span, Span { offset: span.offset, ..found.span })?;
        let Found { info, body, observation, .. } = found;
        let plan = self.plan();
        let is_split = span.length > plan.chunk_bytes || span.length > body.length();
        // One request of a whole is compared by the leaf.
        let sum = (select == Select::Whole).then(|| Sum::of(&info, self.tags_are_md5)).flatten();
        let (is_compared, sum) = (sum.is_some(), sum.filter(|sum| is_split || sum.is_cheap()));
        let origin = Origin { store: self.inner.clone(), address: address.clone() };
        let range_bytes = plan.stream_bytes.max(1);
        let most = usize::try_from(plan.memory_bytes / range_bytes).unwrap_or(usize::MAX);
        // The other half has come already, and waits for one before it that is late.
        let under_way = plan.of_one_object(range_bytes).min(most / 2).max(1);
        let reading = Reading {
            whole: Whole::within(&self.carrier, origin, info.clone(), context.clone()),
            context: context.clone(),
            span,
            may_go_on: sum.is_some() || !is_compared,
            sum,
            range_bytes,
            under_way: Arc::new(Semaphore::new(under_way)),
            most_ahead: if is_split { most } else { 0 },
            shares: Shares::new(&self.ahead, &context.window),
        };
        Ok(Found { info, span, body: reading::body(reading, body), observation })
    }
}

#[async_trait]
impl ObjectStore for Planned {
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
        self.inner.head(context, address, request).await
    }

    async fn get(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<Body>> {
        let select = request.select;
        let request = GetRequest { select: self.first_of(select), ..request };
        let found = self.inner.get(context, address, request).await?;
        self.read(context, address, select, found)
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.inner.stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.inner.delete(context, address, precondition).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.inner.list(context, bucket, request).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.inner.copy(context, request).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.inner.set_tags(context, address, tags).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.inner.object_parts(context, address, after, limit).await
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
        self.inner.stage_part(context, address, upload, number, request).await
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
        self.inner.list_parts(context, address, upload, after, limit).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.inner.list_uploads(context, bucket, request).await
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
