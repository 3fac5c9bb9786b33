//! A read-ahead layer: large objects are fetched in parallel ranges according to a plan and delivered in order. All
//! other requests are forwarded unchanged.
//!
//! - A read is forwarded as requested, so the store evaluates its conditions, a small object stays a single request,
//!   and the response has all metadata. Only a range known to be large is replaced by a request for its beginning.
//! - If the response is larger than `Plan::chunk_bytes`, the rest is read ahead in ranges of the same version
//!   (`ordered_read`). The plan limits their concurrency over all requests, and the read-ahead budget their memory
//!   (`read_ahead_budget`).
//! - Memory comes from the request's own window and from a part of the admission budget; no request waits for the
//!   latter.
//! - A whole object that the leaf would verify is verified here (`verifier`) before its last piece is delivered.
//! - If the object changes during the read, the body fails; it never mixes versions.
//!
//! Writes are forwarded unchanged (decision 26). Place this layer above the one that measures the store, so that ranges
//! are measured individually.

mod ordered_read;
mod read_ahead_budget;
mod verifier;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ordered_read::OrderedRead;
use read_ahead_budget::{ReadAheadBudget, RequestReadAhead};
use tokio::sync::Semaphore;
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Address, Body, Budget, ByteRange, Clock, Context, ObjectStore, Span};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use verifier::Verifier;

use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_parallel::origin::{Origin, check_span};
use tradewind_parallel::transfer_context::TransferContext;
use tradewind_parallel::versioned_object::VersionedObject;

/// A body up to this size has nearly arrived with its response: it needs neither permits nor a task.
const MAX_SMALL_BODY_BYTES: u64 = 2 * BUFFER_BYTES as u64;
/// Memory budget for hedged requests.
const HEDGE_MEMORY_BYTES: usize = 4 << 20;

/// Options of the read-ahead layer.
#[derive(Debug, Clone)]
pub struct ReadAheadOptions {
    /// The plan: range size, concurrency by size, and read-ahead memory per object.
    pub plan: Plan,
    /// Maximum bytes read ahead, for all objects together.
    pub max_read_ahead_bytes: u64,
    /// Retries of interrupted ranges.
    pub retries: RetryOptions,
    /// True if an ETag in the form of an MD5 is always the MD5 of the bytes.
    pub etags_are_md5: bool,
}

/// The read-ahead layer. See the module documentation.
pub struct ReadAhead {
    inner: Arc<dyn ObjectStore>,
    transfers: Arc<TransferContext>,
    budget: Arc<ReadAheadBudget>,
    etags_are_md5: bool,
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl ReadAhead {
    /// Wraps `inner`; delays are those of `clock`.
    pub fn new(inner: Arc<dyn ObjectStore>, options: ReadAheadOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let ReadAheadOptions { plan, max_read_ahead_bytes, retries, etags_are_md5 } = options;
        let transfers = Arc::new(TransferContext::new(plan, Budget::new(HEDGE_MEMORY_BYTES), clock, retries));
        Arc::new(Self { inner, transfers, budget: ReadAheadBudget::new(max_read_ahead_bytes), etags_are_md5 })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.transfers.plan()
    }

    /// Bytes currently held that were read ahead.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.budget.held_bytes()
    }

    /// The first request for a selection: the first part of a large range, else the selection itself.
    fn first_request(&self, select: Select) -> Select {
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

    /// Turns the response to the first request into the response to the whole selection.
    fn read_ahead(
        &self,
        context: &Context,
        address: &Address,
        select: Select,
        found: GetResponse<Body>,
    ) -> Result<GetResponse<Body>> {
        let span = match select {
            Select::Range(range @ ByteRange::Inclusive { .. }) => range.resolve(found.info.size)?,
            _ => found.span,
        };
        if span == found.span && span.length <= MAX_SMALL_BODY_BYTES {
            return Ok(found);
        }
        check_span(found.span, Span { offset: span.offset, ..found.span })?;
        let GetResponse { info, body, observation, .. } = found;
        let plan = self.plan();
        let is_split = span.length > plan.chunk_bytes || span.length > body.length();
        // The leaf verifies a whole object read in one request, too; computing an expensive checksum again is avoided.
        let verifier =
            (select == Select::Whole).then(|| Verifier::for_object(&info, self.etags_are_md5)).flatten();
        let is_verifiable = verifier.is_some();
        let verifier = verifier.filter(|verifier| is_split || verifier.is_cheap());
        let origin = Origin { store: self.inner.clone(), address: address.clone() };
        let range_bytes = plan.stream_bytes.max(1);
        let max_ranges = usize::try_from(plan.max_buffered_bytes / range_bytes).unwrap_or(usize::MAX);
        // Half of the memory is for ranges in flight, the other half for complete ones that wait for an earlier range.
        let max_in_flight = plan.object_concurrency(range_bytes).min(max_ranges / 2).max(1);
        let reading = OrderedRead {
            whole: VersionedObject::for_admitted_request(
                &self.transfers,
                origin,
                info.clone(),
                context.clone(),
            ),
            context: context.clone(),
            span,
            is_resumable: verifier.is_some() || !is_verifiable,
            verifier,
            range_bytes,
            in_flight: Arc::new(Semaphore::new(max_in_flight)),
            max_ranges_ahead: if is_split { max_ranges } else { 0 },
            read_ahead: RequestReadAhead::new(&self.budget, &context.window),
        };
        Ok(GetResponse { info, span, body: ordered_read::body(reading, body), observation })
    }
}

#[async_trait]
impl ObjectStore for ReadAhead {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        list_buckets, versioning, set_versioning,
        head, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part,
        copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        // The size that a store reports is not that of its stored bytes.
        if request.stored {
            return self.inner.get(context, address, request).await;
        }
        let select = request.select;
        let request = GetRequest { select: self.first_request(select), ..request };
        let found = self.inner.get(context, address, request).await?;
        self.read_ahead(context, address, select, found)
    }
}
