//! The lanes of one store: `model/lanes` decides when each request is dispatched.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::lanes::{ClientId, Dispatch, LaneKind, LaneRequest, Lanes, LanesOptions, Ticket};

use crate::dispatch_queue::{DispatchQueue, QueueState, Scheduler};

/// The lanes of one store, and the tasks queued in them.
#[derive(Debug)]
pub(super) struct Dispatcher {
    queue: Arc<DispatchQueue<Lanes>>,
    clients: RandomState,
}

impl Scheduler for Lanes {
    type Ticket = Ticket;

    fn next_dispatched(&mut self, now: Duration) -> Option<Ticket> {
        Self::next_dispatched(self, now)
    }

    fn next_wake(&self, now: Duration) -> Option<Duration> {
        Self::next_wake(self, now)
    }

    fn cancel(&mut self, ticket: Ticket) {
        Self::cancel(self, ticket);
    }
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

impl Dispatcher {
    pub fn new(options: LanesOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = Arc::new(DispatchQueue::new(Lanes::new(options), clock));
        Arc::new(Self { queue, clients: RandomState::new() })
    }

    /// The client of an access key id. All clients without one count as one.
    pub fn client_id(&self, id: Option<&str>) -> ClientId {
        ClientId(self.clients.hash_one(id))
    }

    /// Admits a request to its lane. Fails with [`Overloaded`](Reason::Overloaded) if too many requests are queued
    /// there, or too many of this client.
    pub fn enter(self: &Arc<Self>, client: ClientId, kind: LaneKind) -> Result<ScheduledRequest> {
        let lane_request = self.lock().scheduler.enter_as(client, kind, self.now()).map_err(|full| {
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
        self.lock().scheduler.queued()
    }

    /// Number of requests that entered a lane and have not ended, queued ones included.
    pub fn entered_count(&self) -> usize {
        self.lock().scheduler.entered_count()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<Lanes>> {
        self.queue.lock()
    }

    fn now(&self) -> Duration {
        self.queue.now()
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
            state.scheduler.request_dispatch(lane_request, bytes, self.dispatcher.now())
        else {
            return None;
        };
        Some(self.dispatcher.queue.enqueue(&mut state, ticket).wait())
    }

    /// Bytes after which the next dispatch must be requested (the quantum).
    pub fn quantum_bytes(&self) -> usize {
        let lane_request = self.lane_request.as_ref();
        let quantum = lane_request.and_then(|lane_request| {
            self.dispatcher.lock().scheduler.quantum_bytes(lane_request, self.dispatcher.now())
        });
        quantum.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Starts waiting for the store, unless already waiting.
    pub fn start_wait(&mut self) {
        self.since.get_or_insert_with(|| self.dispatcher.now());
    }

    /// Ends the wait for the store, which accepted or delivered `bytes`.
    pub fn end_wait(&mut self, bytes: usize) {
        let now = self.dispatcher.now();
        self.waited += self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if let Some(lane_request) = self.lane_request.as_mut().filter(|_| bytes > 0) {
            self.dispatcher.lock().scheduler.record_bytes(lane_request, bytes as u64, now);
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
            let now = self.dispatcher.now();
            self.dispatcher.lock().scheduler.end(lane_request, now, service);
        }
    }
}

impl Drop for ScheduledRequest {
    fn drop(&mut self) {
        self.end(None);
    }
}
