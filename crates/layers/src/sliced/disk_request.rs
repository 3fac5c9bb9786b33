//! The scheduler of a disk that stores share, and requests that wait for it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Clock, Context};
use tradewind_model::slices::{
    DiskScheduler, DiskSpeed, DiskStatistics, DiskWork, QueueFull, RequestGroup, StreamShare, TurnId,
    TurnRequest, Urgency, WaitingRequests,
};

use crate::dispatch_queue::{DispatchQueue, QueuedTask, Scheduler};

impl Scheduler for DiskScheduler {
    type Ticket = TurnId;

    fn next_dispatched(&mut self, now: Duration) -> Option<TurnId> {
        Self::next_dispatched(self, now)
    }

    fn next_wake(&self, _: Duration) -> Option<Duration> {
        Self::next_wake(self)
    }

    fn cancel(&mut self, ticket: TurnId) {
        self.end(ticket);
    }
}

/// The scheduler of one rotating disk. All stores on the disk share it.
#[derive(Debug)]
pub struct DiskQueue {
    queue: Arc<DispatchQueue<DiskScheduler>>,
    speed: DiskSpeed,
    last_stream: AtomicU32,
    page_cache_bytes: AtomicU64,
}

/// The state of a disk's scheduler, for operators.
#[derive(Debug, Clone, Default)]
pub struct DiskQueueReport {
    /// Counts since the start.
    pub statistics: DiskStatistics,
    /// The requests that wait, by group.
    pub waiting: BTreeMap<RequestGroup, WaitingRequests>,
    /// The number of requests that have the disk, by group.
    pub in_service: BTreeMap<RequestGroup, usize>,
    /// Bytes of objects that were read without the disk, since the start.
    pub page_cache_bytes: u64,
}

impl DiskQueue {
    /// The scheduler of an idle disk; times are those of `clock`.
    pub fn new(speed: DiskSpeed, clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = Arc::new(DispatchQueue::new(DiskScheduler::new(speed), clock));
        let (last_stream, page_cache_bytes) = (AtomicU32::new(0), AtomicU64::new(0));
        Arc::new(Self { queue, speed, last_stream, page_cache_bytes })
    }

    /// The speed of the disk.
    #[must_use]
    pub const fn speed(&self) -> DiskSpeed {
        self.speed
    }

    /// Its state now, and counts since the start.
    #[must_use]
    pub fn report(&self) -> DiskQueueReport {
        let now = self.queue.now();
        let state = self.queue.lock();
        DiskQueueReport {
            statistics: state.scheduler.statistics().clone(),
            waiting: state.scheduler.waiting(now),
            in_service: state.scheduler.in_service(),
            page_cache_bytes: self.page_cache_bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts bytes that were read without the disk.
    pub(super) fn count_page_cache_bytes(&self, bytes: u64) {
        self.page_cache_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Fails with [`Overloaded`](Reason::Overloaded) if the queue is full.
    pub(super) fn check_capacity(&self) -> Result<()> {
        self.queue.lock().scheduler.check_capacity().map_err(overloaded)
    }

    /// Number of queued requests.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.lock().scheduler.queued()
    }

    /// Number of requests that have the disk.
    #[must_use]
    pub fn turn_count(&self) -> usize {
        self.queue.lock().scheduler.turn_count()
    }
}

fn overloaded(full: QueueFull) -> Error {
    let message = format!("{} requests already wait for the disk; try again later", full.queued);
    Error::new(Reason::Overloaded, message)
}

/// A request that needs the disk. Dropping it ends its turn, or removes it from the queue.
#[derive(Debug)]
pub(super) struct DiskRequest {
    disk: Arc<DiskQueue>,
    stream: u32,
    share: StreamShare,
    turn: Option<TurnId>,
    /// The request for the last turn.
    requested: Option<TurnRequest>,
    paused_at: Option<Duration>,
    is_prompt: bool,
    /// True if a full queue takes the request.
    is_admitted: bool,
}

impl DiskRequest {
    /// A request without a turn. A full queue rejects it, unless the context says that it was admitted.
    pub fn new(disk: &Arc<DiskQueue>, context: &Context) -> Self {
        let stream = disk.last_stream.fetch_add(1, Ordering::Relaxed);
        let share = StreamShare::default();
        Self {
            disk: disk.clone(),
            stream,
            share,
            turn: None,
            requested: None,
            paused_at: None,
            is_prompt: true,
            is_admitted: context.is_admitted,
        }
    }

    /// Sets the group of the stream.
    pub const fn set_share(&mut self, share: StreamShare) {
        self.share = share;
    }

    /// The bytes that a stream transfers in one turn.
    pub fn slice_bytes(&self) -> u64 {
        self.disk.speed.slice_bytes()
    }

    fn turn_request(&self, work: DiskWork, urgency: Urgency) -> TurnRequest {
        TurnRequest { work, urgency, share: self.share, is_prompt: self.is_prompt }
    }

    /// Fails with [`Overloaded`](Reason::Overloaded) if the queue is full and the request was not admitted before.
    pub fn check_capacity(&self) -> Result<()> {
        if self.is_admitted { Ok(()) } else { self.disk.check_capacity() }
    }

    /// Requests a turn as one of the first requests. Returns `None` if it begins at once. Fails like
    /// [`Self::check_capacity`].
    pub fn request_first(
        &mut self,
        work: DiskWork,
    ) -> Result<Option<impl Future<Output = ()> + Send + use<>>> {
        self.check_capacity()?;
        Ok(self.request(work, Urgency::First))
    }

    /// Requests a turn like [`Self::request_first`], also in a full queue.
    pub fn request_admitted(&mut self, work: DiskWork) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.request(work, Urgency::First)
    }

    /// Requests the next turn of the stream. Returns `None` if it begins at once.
    pub fn request_further(&mut self, work: DiskWork) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.request(work, Urgency::Stream(self.stream))
    }

    fn request(
        &mut self,
        work: DiskWork,
        urgency: Urgency,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let now = self.disk.queue.now();
        let request = self.turn_request(work, urgency);
        let mut state = self.disk.queue.lock();
        if let Some(turn) = self.turn.take() {
            state.scheduler.end(turn);
        }
        let turn = state.scheduler.request_admitted(request, now);
        (self.turn, self.requested) = (Some(turn), Some(request));
        let task = self.disk.queue.enqueue(&mut state, turn);
        state.wake_due(now);
        let is_waiting = state.is_waiting(turn);
        drop(state);
        is_waiting.then(|| task.wait())
    }

    /// Exchanges the turn for reads of `bytes` bytes in sequence, as the next request of the queue.
    pub fn exchange_for_reads(&mut self, bytes: u64) -> Option<impl Future<Output = ()> + Send + use<>> {
        let request = self.turn_request(DiskWork::Read { bytes }, Urgency::First);
        let turn = self.turn.take()?;
        let now = self.disk.queue.now();
        let mut state = self.disk.queue.lock();
        let turn = state.scheduler.exchange(turn, request, now);
        (self.turn, self.requested) = (Some(turn), Some(request));
        let task: QueuedTask<DiskScheduler> = self.disk.queue.enqueue(&mut state, turn);
        state.wake_due(now);
        let is_waiting = state.is_waiting(turn);
        drop(state);
        is_waiting.then(|| task.wait())
    }

    /// The request uses the disk from now on.
    pub fn begin(&mut self) {
        let now = self.disk.queue.now();
        if let Some(turn) = self.turn {
            self.disk.queue.lock().scheduler.begin(turn, now);
        }
    }

    /// The stream reads on. Compares the time since its last bytes with that for which the disk waits.
    pub fn record_demand(&mut self) {
        if let Some(paused_at) = self.paused_at.take() {
            let idle = self.disk.queue.now().saturating_sub(paused_at);
            self.is_prompt = idle <= self.disk.speed.positioning_time;
        }
    }

    /// The stream got bytes that need no turn.
    pub fn record_delivery(&mut self) {
        self.paused_at = Some(self.disk.queue.now());
    }

    /// The disk transferred `bytes` bytes, and the request does not use it now.
    pub fn pause(&mut self, bytes: u64) {
        let now = self.disk.queue.now();
        self.paused_at = Some(now);
        if let (Some(turn), Some(requested)) = (self.turn, self.requested) {
            let mut state = self.disk.queue.lock();
            pause_turn(&mut state.scheduler, turn, &requested, bytes, now);
            state.wake_due(now);
        }
    }

    /// Labels the turn, which was requested before the class was known, as one for `work`. Sets the group of the stream.
    pub fn relabel(&mut self, work: DiskWork, share: StreamShare) {
        self.share = share;
        if let Some(turn) = self.turn {
            self.disk.queue.lock().scheduler.relabel(turn, work, share);
        }
        if let Some(requested) = &mut self.requested {
            (requested.work, requested.share) = (work, share);
        }
    }

    /// Pauses like [`Self::pause`]. At the end of a turn, a prompt stream requests the next one of `bytes_left` bytes before the
    /// disk is given to another, so that its class keeps its share. Returns the wait for it, if it does not begin at
    /// once.
    pub fn pause_slice(
        &mut self,
        bytes: u64,
        bytes_left: u64,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let now = self.disk.queue.now();
        self.paused_at = Some(now);
        let (turn, requested) = (self.turn?, self.requested?);
        let request = self.turn_request(DiskWork::Read { bytes: bytes_left }, Urgency::Stream(self.stream));
        let mut state = self.disk.queue.lock();
        pause_turn(&mut state.scheduler, turn, &requested, bytes, now);
        let mut queued = None;
        if self.is_prompt && state.scheduler.is_over(turn, now) {
            state.scheduler.end(turn);
            self.turn = Some(state.scheduler.request_admitted(request, now));
            self.requested = Some(request);
            queued = self.turn.map(|turn| (turn, self.disk.queue.enqueue(&mut state, turn)));
        }
        state.wake_due(now);
        let queued = queued.map(|(turn, task)| (state.is_waiting(turn), task));
        drop(state);
        queued.and_then(|(is_waiting, task)| is_waiting.then(|| task.wait()))
    }

    /// The disk.
    pub const fn disk(&self) -> &Arc<DiskQueue> {
        &self.disk
    }

    /// True if the request has a turn with bytes left.
    pub fn has_bytes(&self) -> bool {
        self.turn.is_some_and(|turn| self.disk.queue.lock().scheduler.has_bytes(turn))
    }

    /// Ends the turn, or removes the request from the queue.
    pub fn end(&mut self) {
        if let Some(turn) = self.turn.take() {
            let now = self.disk.queue.now();
            let mut state = self.disk.queue.lock();
            state.scheduler.end(turn);
            state.wake_due(now);
        }
    }
}

/// Counts the bytes for the request also if its turn was lost.
fn pause_turn(
    scheduler: &mut DiskScheduler,
    turn: TurnId,
    requested: &TurnRequest,
    bytes: u64,
    now: Duration,
) {
    if !scheduler.pause(turn, bytes, now) {
        scheduler.record_late_read(requested, bytes);
    }
}

impl Drop for DiskRequest {
    fn drop(&mut self) {
        self.end();
    }
}
