//! State shared by all transfers of a command: concurrency permits, memory, retry budget, rate limit and hedging
//! statistics.
//!
//! Each request holds [`RequestPermits`]: permits of the pool and a memory window. Permits are acquired before memory.
//!
//! The permit rule: a task that holds the permits of a request must not wait for those of another, or waiting tasks
//! could hold all permits. The one exception is a search (`tradewind_transfer::grep`): an object keeps the permits of
//! its read while it waits for its output turn. The search limits the number of such objects, and an adaptive pool
//! always has permits for `MIN_LARGEST_REQUESTS` of the largest requests, unless it starts with fewer.
//!
//! Two layers retry. The leaf retries a request whose body it still has (up to 256 KiB) and connecting; when its retries end,
//! it marks the error final. This module retries streamed bodies, interrupted ranges and damage in transit, with its
//! own budget. The leaf alone decides whether its store is out, and marks errors that do not count as an attempt.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tradewind_core::checksum::Hasher;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Budget, Checksum, Clock, Context, ObjectStore, random};
use tradewind_model::hedge::HedgePolicy;
use tradewind_model::plan::{Plan, StartStagger, split_evenly};
use tradewind_model::retry::{Attempts, RetryBudget, RetryOptions, RetryableFailure};
use tradewind_model::store_statistics::SizeClass;
use tradewind_model::token_bucket::TokenBucket;

use super::buffer_pool::{BUFFER_BYTES, BufferPool};
use super::permit_pool::{self, PacketCounters, PermitConfig, PermitPool};
use super::upload_source::UploadSource;

/// Memory window of one request: five buffers, one each that is being read from the source, held back by the leaf until
/// the next write, queued for the connection, in hyper, and in the socket. With fewer, the writer would wait for its
/// own window and never reach the `write` whose stall timeout detects a stuck store. An upload carves its pieces out of
/// it. A download from a remote store only reserves it: received bytes are in the read buffer of the connection, which is
/// sized separately.
const REQUEST_WINDOW_BYTES: usize = 5 * BUFFER_BYTES;
/// Maximum adaptive concurrency, unless the plan starts with more.
const MAX_ADAPTIVE_CONCURRENCY: usize = 256;
/// Maximum concurrent multi-request objects. More would each progress more slowly, and leave more unfinished work on
/// cancellation.
const MAX_MULTI_REQUEST_OBJECTS: usize = 32;
/// Bytes that a store may read in addition to the requested ones.
const EXTRA_READ_BYTES: usize = 32 << 10;

/// State shared by all transfers of a command. See the module documentation.
#[derive(Debug)]
pub struct TransferContext {
    plan: Plan,
    /// See `permit_pool` for the number of permits that a request takes.
    permits: PermitPool,
    large_objects: LargeObjects,
    memory: TransferMemory,
    clock: Arc<dyn Clock>,
    retries: Retries,
    rate_limit: Option<RateLimit>,
    /// Statistics of the ranges of all objects; `None` if hedging is disabled.
    hedge_policy: Option<Mutex<HedgePolicy>>,
    /// Set once a write succeeded: the leaf then knows in which form the store accepts checksums.
    has_stored: AtomicBool,
    /// The stores that have rejected server-side copies.
    without_copies: Mutex<Vec<Weak<dyn ObjectStore>>>,
}

/// Multi-request objects.
#[derive(Debug)]
struct LargeObjects {
    /// Limits their concurrency: each object in progress takes one slot.
    slots: Semaphore,
    /// True until the first one starts.
    is_first: AtomicBool,
}

/// The memory of transfers.
#[derive(Debug)]
struct TransferMemory {
    /// The budget of the windows of all requests.
    budget: Budget,
    buffers: Arc<BufferPool>,
    /// Slots of the ranges that all in-order streams together may hold in memory ahead of their reader.
    read_ahead_slots: Arc<Semaphore>,
}

/// The retries of requests.
#[derive(Debug)]
struct Retries {
    options: RetryOptions,
    budget: RetryBudget,
}

/// A limit on bytes per second, for both directions together.
#[derive(Debug)]
struct RateLimit {
    piece_bytes: u64,
    tokens: Mutex<TokenBucket>,
}

/// The permits and the memory of one request in flight. Dropping them releases both.
#[derive(Debug)]
pub struct RequestPermits<'a> {
    /// Memory window of the request; it has no deadline (the leaf's timeouts apply).
    pub context: Context,
    transfers: &'a TransferContext,
    /// Bytes charged to the rate limit in advance that have not passed yet.
    prepaid_bytes: u64,
    started: Duration,
    permits: Option<SemaphorePermit<'a>>,
}

impl Drop for RequestPermits<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            self.transfers.permits.release(permits, self.started, self.transfers.clock.now());
        }
    }
}

impl TransferContext {
    /// Creates a context with the concurrency of `plan`, which is fixed unless
    /// [`with_adaptive_concurrency`](Self::with_adaptive_concurrency) follows. Its memory comes from `budget`.
    #[must_use]
    pub fn new(plan: Plan, budget: Budget, clock: Arc<dyn Clock>, retries: RetryOptions) -> Self {
        Self {
            permits: PermitPool::fixed(plan.initial_concurrency),
            large_objects: LargeObjects {
                slots: Semaphore::new(MAX_MULTI_REQUEST_OBJECTS),
                is_first: AtomicBool::new(true),
            },
            memory: TransferMemory {
                budget,
                buffers: Arc::default(),
                read_ahead_slots: Arc::new(Semaphore::new(plan.read_ahead_ranges())),
            },
            plan,
            clock,
            retries: Retries { options: retries, budget: RetryBudget::new() },
            rate_limit: None,
            hedge_policy: Some(Mutex::default()),
            has_stored: AtomicBool::new(false),
            without_copies: Mutex::default(),
        }
    }

    /// Limits the body bytes per second, sent and received together. This disables hedging: a rate-limited transfer
    /// shares its link and must not request bytes twice.
    #[must_use]
    pub fn with_rate_limit(mut self, bytes_per_second: u64) -> Self {
        self.plan.initial_concurrency =
            TokenBucket::max_concurrency(bytes_per_second, self.plan.initial_concurrency);
        self.permits = PermitPool::fixed(self.plan.initial_concurrency);
        self.memory.read_ahead_slots = Arc::new(Semaphore::new(self.plan.read_ahead_ranges()));
        let tokens = Mutex::new(TokenBucket::new(bytes_per_second, self.clock.now()));
        self.rate_limit =
            Some(RateLimit { piece_bytes: Self::piece_bytes_for_rate(bytes_per_second) as u64, tokens });
        self.hedge_policy = None;
        self
    }

    /// Adapts the concurrency to the measured throughput, starting at the plan's. Not to be combined with a rate limit.
    /// `packets` reads this machine's counters of sent and retransmitted packets, which reveal that the bottleneck
    /// queue overflows.
    #[must_use]
    pub fn with_adaptive_concurrency(mut self, packets: PacketCounters) -> Self {
        let largest_request_permits = self.permits_for(u64::MAX);
        let max_request_permits =
            SizeClass::all().map(|class| self.permits_for(class.max_bytes().unwrap_or(u64::MAX))).max();
        let config = PermitConfig {
            initial_concurrency: self.plan.initial_concurrency,
            is_tuned: self.plan.concurrency_by_size.is_some(),
            largest_request_permits,
            max_request_permits: max_request_permits.unwrap_or(largest_request_permits),
            max_concurrency: Self::max_adaptive_concurrency(&self.plan),
        };
        self.permits = PermitPool::adaptive(config, self.clock.now(), packets);
        self
    }

    /// The concurrency of requests of `bytes` bytes on new connections: that of the plan, limited by memory.
    #[must_use]
    pub fn concurrency_on_new_connections_for(&self, bytes: u64) -> usize {
        self.plan
            .concurrency_on_new_connections_for(bytes)
            .min(self.memory.budget.capacity() / window_bytes(bytes))
    }

    /// The maximum concurrency.
    #[must_use]
    pub fn max_concurrency(&self) -> usize {
        if self.permits.is_adaptive() {
            Self::max_adaptive_concurrency(&self.plan)
        } else {
            self.plan.initial_concurrency
        }
    }

    /// The maximum concurrency of an adaptive context with a plan.
    #[must_use]
    pub fn max_adaptive_concurrency(plan: &Plan) -> usize {
        plan.initial_concurrency.max(MAX_ADAPTIVE_CONCURRENCY).min(plan.max_concurrency)
    }

    /// The piece size for a rate limit, at most [`BUFFER_BYTES`].
    #[must_use]
    pub fn piece_bytes_for_rate(bytes_per_second: u64) -> usize {
        usize::try_from(TokenBucket::quantum_bytes(bytes_per_second, BUFFER_BYTES as u64))
            .unwrap_or(BUFFER_BYTES)
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The pool of the buffers that sources are read into.
    pub(crate) const fn buffers(&self) -> &Arc<BufferPool> {
        &self.memory.buffers
    }

    /// Returns true if a rate limit is set.
    #[must_use]
    pub const fn is_rate_limited(&self) -> bool {
        self.rate_limit.is_some()
    }

    /// The piece size in which bodies are handed over.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.rate_limit.as_ref().map_or(BUFFER_BYTES as u64, |limit| limit.piece_bytes)
    }

    /// Slots of the ranges that are read ahead of an in-order stream.
    pub(crate) fn read_ahead_slots(&self) -> Arc<Semaphore> {
        self.memory.read_ahead_slots.clone()
    }

    /// Returns true if a store is known to lack server-side copies.
    pub(crate) fn lacks_copies(&self, store: &Arc<dyn ObjectStore>) -> bool {
        let known = self.without_copies.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(store)))
    }

    /// Records that a store lacks server-side copies, for as long as this context lives.
    pub(crate) fn record_lack_of_copies(&self, store: &Arc<dyn ObjectStore>) {
        if !self.lacks_copies(store) {
            let mut known = self.without_copies.lock().unwrap_or_else(PoisonError::into_inner);
            known.push(Arc::downgrade(store));
        }
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Locks the statistics of current and recent ranges; `None` if hedging is disabled.
    pub(crate) fn hedge_policy(&self) -> Option<MutexGuard<'_, HedgePolicy>> {
        Some(self.hedge_policy.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of ranges that were hedged.
    #[must_use]
    pub fn hedged_ranges(&self) -> u64 {
        self.hedge_policy().map_or(0, |hedges| hedges.hedged())
    }

    /// The start stagger of the requests of one object. Only those of the first object use new connections and are
    /// staggered, over one RTT. If the store reports no RTT, `setup_time` stands for it: the time of at least one
    /// request.
    pub(crate) fn start_stagger(&self, min_rtt: Option<Duration>, setup_time: Duration) -> StartStagger {
        let is_new = self.large_objects.is_first.swap(false, Ordering::Relaxed);
        // The RTT cannot exceed the time of a request.
        let duration = if is_new { setup_time.min(min_rtt.unwrap_or(setup_time)) } else { Duration::ZERO };
        StartStagger::new(self.clock.now(), duration)
    }

    /// Waits for the slot of another multi-request object. Acquire it before the permits of any request, and hold it
    /// until the object is done.
    pub async fn acquire_large_object(&self) -> Result<SemaphorePermit<'_>> {
        self.large_objects.slots.acquire().await.map_err(stopped)
    }

    /// Waits for the permits and memory of a request of `bytes` bytes. The caller must not hold those of another
    /// request (see the permit rule in the module documentation).
    pub async fn acquire_request_permits(&self, bytes: u64) -> Result<RequestPermits<'_>> {
        self.acquire_with_window(bytes, window_bytes(bytes)).await
    }

    /// The permits that a request of `bytes` bytes takes.
    fn permits_for(&self, bytes: u64) -> u32 {
        let is_new = self.permits.has_new_connections(self.clock.now());
        let concurrency = if is_new {
            self.plan.concurrency_on_new_connections_for(bytes)
        } else {
            self.plan.concurrency_for(bytes)
        };
        let permits = permit_pool::permits_for_concurrency(self.plan.initial_concurrency) / concurrency;
        u32::try_from(permits).unwrap_or(u32::MAX).max(1)
    }

    /// The number of requests of `bytes` bytes that could start now. Zero while other tasks wait.
    pub(crate) fn free_requests(&self, bytes: u64) -> usize {
        self.permits.available() / self.permits_for(bytes) as usize
    }

    /// Like [`acquire_request_permits`](Self::acquire_request_permits), but returns `None` instead of waiting, or if
    /// other tasks wait.
    pub(crate) fn try_acquire_request_permits(&self, bytes: u64) -> Option<RequestPermits<'_>> {
        let permits = self.permits.try_acquire(self.permits_for(bytes))?;
        let window = self.memory.budget.try_admit_optional(window_bytes(bytes))?;
        let context = Context::new(Deadline::none(self.clock.clone()), window);
        Some(self.start_request(permits, bytes, context))
    }

    /// Like [`acquire_request_permits`](Self::acquire_request_permits), for a read of up to `bytes` that is relayed
    /// into a write. The window has room for both, so that bytes held by the write do not block the read.
    pub async fn acquire_relay_permits(&self, bytes: u64) -> Result<RequestPermits<'_>> {
        let window =
            usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(EXTRA_READ_BYTES);
        self.acquire_with_window(bytes, window.min(2 * REQUEST_WINDOW_BYTES)).await
    }

    /// Like [`acquire_request_permits`](Self::acquire_request_permits), for a request on behalf of an already admitted
    /// one, whose window it uses: it waits for permits only.
    pub(crate) async fn acquire_nested_permits(
        &self,
        context: &Context,
        bytes: u64,
    ) -> Result<RequestPermits<'_>> {
        let permits = self.acquire_pool_permits(bytes).await?;
        Ok(self.start_request(permits, bytes, context.clone()))
    }

    /// Like [`acquire_nested_permits`](Self::acquire_nested_permits), but returns `None` instead of waiting.
    pub(crate) fn try_acquire_nested_permits(
        &self,
        context: &Context,
        bytes: u64,
    ) -> Option<RequestPermits<'_>> {
        let permits = self.permits.try_acquire(self.permits_for(bytes))?;
        Some(self.start_request(permits, bytes, context.clone()))
    }

    async fn acquire_with_window(&self, bytes: u64, window: usize) -> Result<RequestPermits<'_>> {
        let permits = self.acquire_pool_permits(bytes).await?;
        let deadline = Deadline::none(self.clock.clone());
        let window = self.memory.budget.admit(window, &deadline).await?;
        Ok(self.start_request(permits, bytes, Context::new(deadline, window)))
    }

    /// Starts a request that has its permits and its memory.
    fn start_request<'a>(
        &'a self,
        permits: SemaphorePermit<'a>,
        bytes: u64,
        context: Context,
    ) -> RequestPermits<'a> {
        let started = self.clock.now();
        self.permits.record_start(&permits, bytes > 0, started);
        RequestPermits { context, transfers: self, prepaid_bytes: 0, started, permits: Some(permits) }
    }

    /// Waits for the permits of a request of `bytes` bytes.
    async fn acquire_pool_permits(&self, bytes: u64) -> Result<SemaphorePermit<'_>> {
        let stopped = || Error::new(Reason::ShuttingDown, "transfers have been stopped");
        self.permits.acquire(self.permits_for(bytes)).await.ok_or_else(stopped)
    }

    /// Runs `work` until it succeeds, fails permanently, or exhausts the attempts or the retry budget. `work` must be
    /// idempotent.
    pub async fn retry<T, F: Future<Output = Result<T>>>(&self, mut work: impl FnMut() -> F) -> Result<T> {
        let mut attempts = Attempts::new();
        loop {
            match work().await {
                Ok(done) => {
                    self.record_success();
                    return Ok(done);
                }
                Err(failed) => self.wait_before_retry(failed, &mut attempts).await?,
            }
        }
    }

    /// The checksum of a source range, computed in advance until a first write has succeeded. Before that, the leaf may
    /// not know whether the store accepts a checksum after the bytes.
    pub(crate) fn checksum_in_advance(
        &self,
        source: &dyn UploadSource,
        (offset, length): (u64, u64),
    ) -> Result<Option<Checksum>> {
        if self.has_stored.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
        let mut piece = self.memory.buffers.take(BUFFER_BYTES);
        for (at, size) in split_evenly(length, BUFFER_BYTES as u64) {
            let piece = &mut piece.bytes_mut()[..usize::try_from(size).unwrap_or(BUFFER_BYTES)];
            source.read_at(offset + at, piece)?;
            hasher.update(piece);
        }
        Ok(Some(hasher.finish()))
    }

    /// Records that a write succeeded.
    pub(crate) fn record_first_write(&self) {
        self.has_stored.store(true, Ordering::Relaxed);
    }

    /// Records a success, which refills the retry budget.
    pub fn record_success(&self) {
        self.permits.record_success();
        self.retries.budget.record_success();
    }

    /// Waits before the next attempt. Returns `failed` if it is permanent, or if no attempts or retry budget are left.
    pub async fn wait_before_retry(&self, failed: Error, attempts: &mut Attempts) -> Result<()> {
        if !is_transient(&failed) {
            return Err(failed);
        }
        let Retries { options, budget } = &self.retries;
        let failed_at = self.clock.now();
        let failure = RetryableFailure { failed_at, outage_delay: failed.outage_delay(), retry_after: None };
        let Some(delay) = attempts.next_delay(options, budget, failure, random::jitter_seed()) else {
            return Err(failed);
        };
        tracing::debug!(error = %failed, attempt = attempts.number(), ?delay, "retrying");
        self.clock.sleep_until(failed_at + delay).await;
        Ok(())
    }
}

impl RequestPermits<'_> {
    /// Charges the first piece of a request of `bytes` to the rate limit before it is sent, so that requests that start
    /// together do not cause a burst.
    pub(crate) async fn throttle_first_piece(&mut self, bytes: u64) {
        if let Some(limit) = &self.transfers.rate_limit {
            let first = bytes.min(limit.piece_bytes);
            self.throttle(first).await;
            self.prepaid_bytes += first;
        }
    }

    /// Waits until `bytes` of a body may be sent or, after they were received, until more may be read. Only the permits
    /// and memory are held while waiting, no lock. Without a rate limit the bytes are only counted.
    pub(crate) async fn throttle(&mut self, bytes: u64) {
        self.transfers.permits.record_bytes(bytes, || self.transfers.clock.now());
        let Some(limit) = &self.transfers.rate_limit else { return };
        let due = bytes - bytes.min(self.prepaid_bytes);
        self.prepaid_bytes -= bytes - due;
        if due == 0 {
            return;
        }
        let clock = &self.transfers.clock;
        let due_at = limit.tokens.lock().unwrap_or_else(PoisonError::into_inner).reserve(due, clock.now());
        if due_at > clock.now() {
            clock.sleep_until(due_at).await;
        }
    }
}

fn stopped(e: AcquireError) -> Error {
    Error::with_source(Reason::ShuttingDown, "transfers have been stopped", e)
}

fn window_bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).clamp(4096, REQUEST_WINDOW_BYTES)
}

/// Returns true if a retry may succeed. Damage in transit is transient, too.
fn is_transient(error: &Error) -> bool {
    if error.is_final() {
        return false;
    }
    error.kind().is_retryable() || matches!(error.reason(), Reason::CorruptData | Reason::BadDigest)
}
