//! Waits until `model/lanes` dispatches a request.
//!
//! One of the queued tasks, the timekeeper, sleeps until the next possible dispatch and then wakes those that are due.
//! A task that is dropped leaves the queue and passes this role on. A timekeeper that is no longer polled loses it.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::select;
use tokio::sync::Notify;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::lanes::{ClientId, Dispatch, LaneKind, LaneRequest, Lanes, LanesOptions, Ticket};

/// Minimum sleep, the resolution of timers.
const MIN_SLEEP: Duration = Duration::from_micros(100);
/// A timekeeper this late is replaced: its stream may no longer be polled.
const MAX_TIMEKEEPER_DELAY: Duration = Duration::from_millis(20);

/// The lanes of one store, and the tasks queued in them.
#[derive(Debug)]
pub(super) struct Dispatcher {
    state: Mutex<QueueState>,
    clock: Arc<dyn Clock>,
    clients: RandomState,
}

#[derive(Debug)]
struct QueueState {
    lanes: Lanes,
    waiting: BTreeMap<Ticket, Arc<Notify>>,
    /// The timekeeper, and when it wakes.
    timekeeper: Option<(Ticket, Duration)>,
}

/// A request admitted to a lane. Dropping it before its end abandons it.
#[derive(Debug)]
pub(super) struct ScheduledRequest {
    dispatcher: Arc<Dispatcher>,
    /// `None` once the request has ended.
    lane_request: Option<LaneRequest>,
    kind: LaneKind,
    client: ClientId,
    /// Accumulated time waiting for the store, and the start of the current wait.
    waited: Duration,
    since: Option<Duration>,
}

/// A queued task. Dropping it leaves the queue.
#[derive(Debug)]
struct QueuedTask {
    dispatcher: Arc<Dispatcher>,
    ticket: Ticket,
    woken: Arc<Notify>,
}

impl Dispatcher {
    pub fn new(options: LanesOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = QueueState { lanes: Lanes::new(options), waiting: BTreeMap::new(), timekeeper: None };
        Arc::new(Self { state: Mutex::new(state), clock, clients: RandomState::new() })
    }

    /// The client of an access key id. All clients without one count as one.
    pub fn client_id(&self, id: Option<&str>) -> ClientId {
        ClientId(self.clients.hash_one(id))
    }

    /// Admits a request to its lane. Fails with [`Overloaded`](Reason::Overloaded) if too many requests are queued
    /// there, or too many of this client.
    pub fn enter(self: &Arc<Self>, client: ClientId, kind: LaneKind) -> Result<ScheduledRequest> {
        let lane_request = self.lock().lanes.enter_as(client, kind, self.clock.now()).map_err(|full| {
            let message = format!("{} requests are already queued; try again later", full.queued);
            Error::new(Reason::Overloaded, message)
        })?;
        let (waited, since) = (Duration::ZERO, None);
        Ok(ScheduledRequest {
            dispatcher: self.clone(),
            lane_request: Some(lane_request),
            kind,
            client,
            waited,
            since,
        })
    }

    /// Number of queued requests.
    pub fn queued(&self) -> usize {
        self.lock().lanes.queued()
    }

    /// Number of requests that entered a lane and have not ended, queued ones included.
    pub fn entered_count(&self) -> usize {
        self.lock().lanes.entered_count()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Wakes the tasks whose dispatch is due.
    fn wake_due(&mut self, now: Duration) {
        while let Some(ticket) = self.lanes.next_dispatched(now) {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                waiting.notify_one();
            }
        }
    }

    /// When this task must wake: the timekeeper at the next possible dispatch, others once the timekeeper is overdue.
    /// `None` if no dispatch is pending.
    fn wake_time(&mut self, ticket: Ticket, now: Duration) -> Option<Duration> {
        let due = self.lanes.next_wake(now)?.max(now + MIN_SLEEP);
        match self.timekeeper {
            Some((timekeeper, until))
                if timekeeper != ticket && until <= due && now < until + MAX_TIMEKEEPER_DELAY =>
            {
                Some(until + MAX_TIMEKEEPER_DELAY)
            }
            _ => {
                self.timekeeper = Some((ticket, due));
                Some(due)
            }
        }
    }

    /// Removes a task from the queue, and wakes another one if it may have been the timekeeper.
    fn leave(&mut self, ticket: Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            self.lanes.cancel(ticket);
        }
        // The task woken to take over may have been dropped, too.
        if self.timekeeper.is_none_or(|(timekeeper, _)| timekeeper == ticket) {
            self.timekeeper = None;
            if let Some((_, other)) = self.waiting.first_key_value() {
                other.notify_one();
            }
        }
    }
}

impl ScheduledRequest {
    /// The kind that determines its lane.
    pub const fn kind(&self) -> LaneKind {
        self.kind
    }

    /// Requests the dispatch of `bytes`. Returns `None` if it is immediate, else a future that resolves when it is due.
    /// Await it before requesting the next one.
    pub fn request_dispatch(&self, bytes: u64) -> Option<impl Future<Output = ()> + Send + use<>> {
        let lane_request = self.lane_request.as_ref()?;
        let mut state = self.dispatcher.lock();
        let Dispatch::Queued(ticket) =
            state.lanes.request_dispatch(lane_request, bytes, self.dispatcher.clock.now())
        else {
            return None;
        };
        let woken = Arc::new(Notify::new());
        state.waiting.insert(ticket, woken.clone());
        Some(QueuedTask { dispatcher: self.dispatcher.clone(), ticket, woken }.wait())
    }

    /// Bytes after which the next dispatch must be requested (the quantum).
    pub fn quantum_bytes(&self) -> usize {
        let lane_request = self.lane_request.as_ref();
        let quantum = lane_request.and_then(|lane_request| {
            self.dispatcher.lock().lanes.quantum_bytes(lane_request, self.dispatcher.clock.now())
        });
        quantum.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Starts waiting for the store, unless already waiting.
    pub fn start_wait(&mut self) {
        self.since.get_or_insert_with(|| self.dispatcher.clock.now());
    }

    /// Ends the wait for the store, which accepted or delivered `bytes`.
    pub fn end_wait(&mut self, bytes: usize) {
        let now = self.dispatcher.clock.now();
        self.waited += self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if let Some(lane_request) = self.lane_request.as_mut().filter(|_| bytes > 0) {
            self.dispatcher.lock().lanes.record_bytes(lane_request, bytes as u64, now);
        }
    }

    /// Completes the request.
    pub fn complete(&mut self) {
        self.end(Some(self.waited));
    }

    /// Moves the request to the lane of `kind` if it turns out to be larger, or replaces a guessed kind. May be
    /// rejected like [`enter`](Dispatcher::enter).
    pub fn update_kind(&mut self, kind: LaneKind) -> Result<()> {
        if kind.size > self.kind.size || self.kind.is_size_unknown {
            let (waited, since) = (self.waited, self.since);
            let other = self.dispatcher.enter(self.client, kind)?;
            *self = other;
            (self.waited, self.since) = (waited, since);
        }
        Ok(())
    }

    fn end(&mut self, service: Option<Duration>) {
        if let Some(lane_request) = self.lane_request.take() {
            let now = self.dispatcher.clock.now();
            self.dispatcher.lock().lanes.end(lane_request, now, service);
        }
    }
}

impl Drop for ScheduledRequest {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl QueuedTask {
    async fn wait(self) {
        loop {
            let sleep = {
                let now = self.dispatcher.clock.now();
                let mut state = self.dispatcher.lock();
                state.wake_due(now);
                if !state.waiting.contains_key(&self.ticket) {
                    return;
                }
                state.wake_time(self.ticket, now)
            };
            let woken = std::pin::pin!(self.woken.notified());
            match sleep {
                Some(until) => drop(select(woken, self.dispatcher.clock.sleep_until(until)).await),
                None => woken.await,
            }
        }
    }
}

impl Drop for QueuedTask {
    fn drop(&mut self) {
        self.dispatcher.lock().leave(self.ticket);
    }
}
