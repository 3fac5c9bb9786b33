//! What all transfers of one command share: how many requests may be under way, the memory that they may hold, and
//! when a request is worth another attempt.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tradewind_core::checksum::Hasher;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Budget, Checksum, Clock, Context, random};
use tradewind_model::hedge::Hedges;
use tradewind_model::pace::Pace;
use tradewind_model::plan::{Plan, Spread};
use tradewind_model::retry::{RetryBudget, RetryOptions};
use tradewind_model::store_model::SizeClass;

use super::buffers::{BUFFER_BYTES, Buffers};
use super::source::Source;
use super::steer::{self, Packets, Turns};

/// The memory of one request: pieces of a body that are read, waiting, handed over and being sent. One more than that,
/// so that a store which takes nothing is noticed by whoever sends.
const WINDOW_BYTES: usize = 5 * BUFFER_BYTES;
/// Requests at a time, at the most, where what is carried says how many, unless a plan begins with more.
const MOST_STEERED: usize = 256;
/// Objects of several requests at a time: more would each be carried more slowly, and be begun in vain when all are stopped.
const LARGE_AT_A_TIME: usize = 32;
/// What a store may read besides the bytes that it is asked for.
const HEAD_BYTES: usize = 32 << 10;

/// What transfers share.
#[derive(Debug)]
pub struct Carrier {
    plan: Plan,
    /// A request takes as many turns as there are for each of those of its size.
    turns: Turns,
    /// Places for objects of several requests.
    large: Semaphore,
    buffers: Arc<Buffers>,
    /// Chunks that may wait in memory for their turn, over all streams.
    ahead: Arc<Semaphore>,
    budget: Budget,
    clock: Arc<dyn Clock>,
    retries: RetryOptions,
    purse: RetryBudget,
    /// The store has taken something: its leaf knows by now how it is told checksums.
    has_stored: AtomicBool,
    limit: Option<Limit>,
    is_steered: bool,
    /// No object of several requests was begun yet.
    is_new: AtomicBool,
    /// Chunks of all objects; `None` where none is asked for twice.
    hedges: Option<Mutex<Hedges>>,
}

/// A limit on bytes per second, over both directions.
#[derive(Debug)]
struct Limit {
    piece: u64,
    pace: Mutex<Pace>,
}

/// A request's place among those that are under way.
#[derive(Debug)]
pub struct Slot<'a> {
    /// What the request goes with.
    pub context: Context,
    carrier: &'a Carrier,
    /// Bytes that had their turn and have not passed.
    paid: u64,
    began: Duration,
    turns: Option<SemaphorePermit<'a>>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            self.carrier.turns.give_back(turns, self.began, self.carrier.clock.now());
        }
    }
}

impl Carrier {
    /// At most `plan.requests` at a time, within `budget`.
    #[must_use]
    pub fn new(plan: Plan, budget: Budget, clock: Arc<dyn Clock>, retries: RetryOptions) -> Self {
        let ahead = Arc::new(Semaphore::new(plan.ahead()));
        let (buffers, purse) = (Arc::default(), RetryBudget::new());
        Self {
            turns: Turns::fixed(plan.requests),
            large: Semaphore::new(LARGE_AT_A_TIME),
            plan,
            buffers,
            ahead,
            budget,
            clock,
            retries,
            purse,
            has_stored: AtomicBool::new(false),
            limit: None,
            is_steered: false,
            is_new: AtomicBool::new(true),
            hedges: Some(Mutex::default()),
        }
    }

    /// The same, under a limit on the bytes of bodies that pass in a second, those that are sent and those that come
    /// taken together. Nothing is asked for twice then: whoever shares a line takes no more of it than has to be.
    #[must_use]
    pub fn limited(mut self, bytes_per_second: u64) -> Self {
        self.plan.requests = Pace::requests(bytes_per_second, self.plan.requests);
        self.turns = Turns::fixed(self.plan.requests);
        self.ahead = Arc::new(Semaphore::new(self.plan.ahead()));
        let pace = Mutex::new(Pace::new(bytes_per_second, self.clock.now()));
        self.limit = Some(Limit { piece: Self::piece_under(bytes_per_second) as u64, pace });
        self.hedges = None;
        self
    }

    /// The same, with as many requests at a time as turn out to carry the most: the plan says with how many it begins. Not under
    /// a limit. `packets` are those of this client, which say where a queue overruns.
    #[must_use]
    pub fn steered(mut self, packets: Packets) -> Self {
        // Small ones may take more turns at first than the largest do.
        let heaviest = SizeClass::all().map(|sizes| self.turns(sizes.most_bytes().unwrap_or(u64::MAX))).max();
        let (largest, most) = (self.turns(u64::MAX), Self::most_steered(self.plan.requests));
        let bounds = ((largest, heaviest.unwrap_or(largest)), most);
        let begins = (self.plan.requests, self.plan.at_a_time.is_some());
        self.turns = Turns::steered(begins, bounds, self.clock.now(), packets);
        self.is_steered = true;
        self
    }

    /// Requests of so many bytes at a time while connections are new, as the plan has them and as memory has room for them.
    #[must_use]
    pub fn most_at_first(&self, bytes: u64) -> usize {
        self.plan.parallel_at_first(bytes).min(self.budget.capacity() / window_bytes(bytes))
    }

    /// Requests at a time, at the most.
    #[must_use]
    pub fn most_requests(&self) -> usize {
        if self.is_steered { Self::most_steered(self.plan.requests) } else { self.plan.requests }
    }

    /// The same of one that begins with so many and is steered.
    #[must_use]
    pub fn most_steered(requests: usize) -> usize {
        requests.max(MOST_STEERED)
    }

    /// Bytes that are best handed over at once where no more than so many pass in a second.
    #[must_use]
    pub fn piece_under(bytes_per_second: u64) -> usize {
        usize::try_from(Pace::piece(bytes_per_second, BUFFER_BYTES as u64)).unwrap_or(BUFFER_BYTES)
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is read of sources goes through these.
    pub(crate) const fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Whether there is a limit on how fast bytes pass.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Bytes that are best handed over at once.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.limit.as_ref().map_or(BUFFER_BYTES as u64, |limit| limit.piece)
    }

    /// Places for chunks that wait in memory for their turn.
    pub(crate) fn ahead(&self) -> Arc<Semaphore> {
        self.ahead.clone()
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What is known of chunks that are and were under way.
    pub(crate) fn hedges(&self) -> Option<MutexGuard<'_, Hedges>> {
        Some(self.hedges.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Chunks that were asked for a second time, because the first request for them was late.
    #[must_use]
    pub fn hedged(&self) -> u64 {
        self.hedges().map_or(0, |hedges| hedges.hedged())
    }

    /// How the requests of one object begin: those of the first go by new connections. Where a store does not know how long a round
    /// trip takes, one that was answered within so long says it.
    pub(crate) fn spread(&self, round_trip: Option<Duration>, answered_in: Duration) -> Spread {
        let is_new = self.is_new.swap(false, Ordering::Relaxed);
        // No answer comes sooner than after one.
        let over = if is_new { answered_in.min(round_trip.unwrap_or(answered_in)) } else { Duration::ZERO };
        Spread::new(self.clock.now(), over)
    }

    /// Waits until few enough objects of several requests are under way. To be asked for before any slot, and held to the end.
    pub async fn large(&self) -> Result<SemaphorePermit<'_>> {
        self.large.acquire().await.map_err(over)
    }

    /// Waits for a turn and for memory of up to `bytes`. Who holds a slot must not ask for another.
    pub async fn slot(&self, bytes: u64) -> Result<Slot<'_>> {
        self.slot_with(bytes, window_bytes(bytes)).await
    }

    /// Turns that a request of so many bytes takes.
    fn turns(&self, bytes: u64) -> u32 {
        let is_new = self.turns.are_new(self.clock.now());
        let parallel = if is_new { self.plan.parallel_at_first(bytes) } else { self.plan.parallel(bytes) };
        let turns = steer::of(self.plan.requests) / parallel;
        u32::try_from(turns).unwrap_or(u32::MAX).max(1)
    }

    /// Requests of so many bytes that nobody would have to wait for, neither who asks nor who else would.
    pub(crate) fn spare_requests(&self, bytes: u64) -> usize {
        self.turns.spare() / self.turns(bytes) as usize
    }

    /// The same where nobody has to wait for it, neither who asks nor who else would.
    pub(crate) fn spare_slot(&self, bytes: u64) -> Option<Slot<'_>> {
        let turns = self.turns.try_take(self.turns(bytes))?;
        let window = self.budget.try_admit(window_bytes(bytes))?;
        let context = Context::new(Deadline::none(self.clock.clone()), window);
        Some(self.slot_of(turns, bytes, context))
    }

    /// The same for two requests, one that reads up to `bytes` and one that they are handed on to: what the second still
    /// holds must leave the first its room.
    pub async fn slot_between(&self, bytes: u64) -> Result<Slot<'_>> {
        let window =
            usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(HEAD_BYTES);
        self.slot_with(bytes, window.min(2 * WINDOW_BYTES)).await
    }

    /// The same for a request within another, which has its memory already: it waits for its turn alone.
    pub(crate) async fn slot_within(&self, context: &Context, bytes: u64) -> Result<Slot<'_>> {
        let turns = self.turn(bytes).await?;
        Ok(self.slot_of(turns, bytes, context.clone()))
    }

    /// The same where nobody has to wait for it.
    pub(crate) fn spare_slot_within(&self, context: &Context, bytes: u64) -> Option<Slot<'_>> {
        let turns = self.turns.try_take(self.turns(bytes))?;
        Some(self.slot_of(turns, bytes, context.clone()))
    }

    async fn slot_with(&self, bytes: u64, window: usize) -> Result<Slot<'_>> {
        let turns = self.turn(bytes).await?;
        let deadline = Deadline::none(self.clock.clone());
        let window = self.budget.admit(window, &deadline).await?;
        Ok(self.slot_of(turns, bytes, Context::new(deadline, window)))
    }

    /// A request begins that has its turns.
    fn slot_of<'a>(&'a self, turns: SemaphorePermit<'a>, bytes: u64, context: Context) -> Slot<'a> {
        let began = self.clock.now();
        self.turns.begin(&turns, bytes > 0, began);
        Slot { context, carrier: self, paid: 0, began, turns: Some(turns) }
    }

    async fn turn(&self, bytes: u64) -> Result<SemaphorePermit<'_>> {
        let over = || Error::new(Reason::ShuttingDown, "transfers are over");
        self.turns.take(self.turns(bytes)).await.ok_or_else(over)
    }

    /// Does `work` until it succeeds, fails for good, or has failed too often. It must be as good twice as once.
    pub async fn again<T, F: Future<Output = Result<T>>>(&self, mut work: impl FnMut() -> F) -> Result<T> {
        let mut attempt = 1;
        loop {
            match work().await {
                Ok(done) => {
                    self.earn();
                    return Ok(done);
                }
                Err(failed) => self.wait(failed, attempt).await?,
            }
            attempt += 1;
        }
    }

    /// A checksum of the source, as long as the leaf may not know yet how to tell one behind the bytes.
    pub(crate) fn checksum_beforehand(
        &self,
        source: &dyn Source,
        (offset, length): (u64, u64),
    ) -> Result<Option<Checksum>> {
        if self.has_stored.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
        let mut piece = self.buffers.take(BUFFER_BYTES);
        for (at, size) in Plan::chunks(length, BUFFER_BYTES as u64) {
            let piece = &mut piece.bytes_mut()[..usize::try_from(size).unwrap_or(BUFFER_BYTES)];
            source.read_at(offset + at, piece)?;
            hasher.update(piece);
        }
        Ok(Some(hasher.finish()))
    }

    /// The store has taken something.
    pub(crate) fn stored(&self) {
        self.has_stored.store(true, Ordering::Relaxed);
    }

    /// What was tried succeeded: it pays for attempts to come.
    pub(crate) fn earn(&self) {
        self.turns.done();
        self.purse.earn();
    }

    /// Waits before another attempt, or fails where there is to be none.
    pub async fn wait(&self, failed: Error, attempt: u32) -> Result<()> {
        if !is_passing(&failed) || attempt >= self.retries.attempts || !self.purse.spend() {
            return Err(failed);
        }
        let delay = self.retries.delay(attempt + 1, random::for_delay());
        tracing::debug!(error = %failed, attempt, ?delay, "trying again");
        self.clock.sleep_until(self.clock.now() + delay).await;
        Ok(())
    }
}

impl Slot<'_> {
    /// Waits until the first of `bytes` that are about to be asked for may come: requests that begin together do not come
    /// all at once.
    pub(crate) async fn pass_first_of(&mut self, bytes: u64) {
        if let Some(limit) = &self.carrier.limit {
            let first = bytes.min(limit.piece);
            self.pass(first).await;
            self.paid += first;
        }
    }

    /// Waits until so many bytes of a body may be sent; of those that came, until more may be read. Nothing is held
    /// meanwhile but the slot.
    pub(crate) async fn pass(&mut self, bytes: u64) {
        self.carrier.turns.passed(bytes, || self.carrier.clock.now());
        let Some(limit) = &self.carrier.limit else { return };
        let due = bytes - bytes.min(self.paid);
        self.paid -= bytes - due;
        if due == 0 {
            return;
        }
        let clock = &self.carrier.clock;
        let turn = limit.pace.lock().unwrap_or_else(PoisonError::into_inner).take(due, clock.now());
        if turn > clock.now() {
            clock.sleep_until(turn).await;
        }
    }
}

fn over(e: AcquireError) -> Error {
    Error::with_source(Reason::ShuttingDown, "transfers are over", e)
}

fn window_bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).clamp(4096, WINDOW_BYTES)
}

/// Whether the same may succeed later. What came damaged over the wire is sent whole the next time.
fn is_passing(error: &Error) -> bool {
    if error.was_retried() {
        return false;
    }
    error.kind().is_retryable() || matches!(error.reason(), Reason::CorruptData | Reason::BadDigest)
}
