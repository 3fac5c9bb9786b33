//! Priority scheduling of requests to a store: requests of similar size and the same direction share a *lane*, and the
//! rate of each lane follows from the latency it adds to higher-priority requests (Hou 2017, sections 4.4 and 7).
//!
//! Small requests wait behind the bytes of large ones in a link or device. Reordering at the sender does not help,
//! because the queue is beyond it. A lane is therefore limited to a **rate** while higher-priority requests are active:
//! its measured capacity, a little more while their latency is normal and a little less while it is not
//! (`latency_guard`). The queue beyond the sender then stays short but not empty. No request holds a part of a rate, as
//! it would of a window, so a slow reader blocks no other.
//!
//! - **Order**: high priority before normal, and within a priority small requests before large ones. The highest rank
//!   that was recently active never waits; if only one rank is active, none does.
//! - **Cost**: 8 % of the capacity of a lane in the long run, with bursts of two seconds of capacity; 10 % if the
//!   higher-priority requests are in the same lane. Throughput lost to throttling without a measured benefit does not
//!   lower the capacity estimate.
//! - **No starvation**: the head of a queue is dispatched after the time of 16 quanta at the latest.
//! - **Bounded queues**: a request is rejected if the queue of its lane is full. An admitted request is
//!   queued again for each quantum.
//! - **Fairness**: clients are served round-robin within a lane, and a client with many queued requests is rejected
//!   while others still fit.
//!
//! Time is an argument, relative to any origin that all callers share. Times of concurrent callers may be slightly out
//! of order.

mod capacity;
mod lane;
mod lane_kind;
mod latency_guard;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lane::Lane;
use latency_guard::LatencyGuard;

pub use lane::{ClientId, Ticket};
pub use lane_kind::{LaneKind, Priority, RequestSize, SMALL_BYTES};

/// Limits of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanesOptions {
    /// Maximum number of queued requests per lane. Beyond it, requests are rejected.
    pub max_queue_depth: usize,
}

/// Maximum ratio of the queued requests of a client to the free places of the queue. A single client can fill 7/8 of
/// it.
const CLIENT_QUEUE_RATIO: usize = 7;

impl Default for LanesOptions {
    fn default() -> Self {
        Self { max_queue_depth: 1024 }
    }
}

/// All lanes of one store.
#[derive(Debug)]
pub struct Lanes {
    options: LanesOptions,
    lanes: [Lane; LaneKind::LANE_COUNT],
    latency_guard: LatencyGuard,
    last_id: u64,
}

/// A request admitted to its lane. It must be passed to [`end`](Lanes::end) exactly once.
#[derive(Debug)]
#[must_use = "a request that never ends counts as entered forever"]
pub struct LaneRequest {
    id: u64,
    kind: LaneKind,
    client: ClientId,
    /// Start of the span whose bytes are not yet counted, and their number.
    uncounted_since: Duration,
    uncounted_bytes: u64,
}

/// The response to a dispatch request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// It may proceed at once.
    Now,
    /// It is queued until [`Lanes::next_dispatched`] returns this ticket.
    Queued(Ticket),
}

/// The queue of a lane is full. The request may be retried later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneFull {
    /// Number of queued requests.
    pub queued: usize,
}

impl Lanes {
    /// Empty lanes.
    #[must_use]
    pub fn new(options: LanesOptions) -> Self {
        Self { options, lanes: Default::default(), latency_guard: LatencyGuard::default(), last_id: 0 }
    }

    /// Admits a request of one of several clients. It must then request its dispatch.
    pub fn enter_as(
        &mut self,
        client: ClientId,
        kind: LaneKind,
        now: Duration,
    ) -> Result<LaneRequest, LaneFull> {
        let lane = &self.lanes[kind.lane()];
        let queued = lane.queued();
        let room = self.options.max_queue_depth.saturating_sub(queued);
        if room == 0 || lane.queued_for(client) >= room.saturating_mul(CLIENT_QUEUE_RATIO) {
            return Err(LaneFull { queued });
        }
        self.last_id += 1;
        self.latency_guard.record_arrival(kind, now);
        self.lanes[kind.lane()].capacity.begin(self.last_id, now);
        Ok(LaneRequest { id: self.last_id, kind, client, uncounted_since: now, uncounted_bytes: 0 })
    }

    /// Like [`enter_as`](Self::enter_as), without distinguishing clients.
    pub fn enter(&mut self, kind: LaneKind, now: Duration) -> Result<LaneRequest, LaneFull> {
        self.enter_as(ClientId::default(), kind, now)
    }

    /// Requests the dispatch of `bytes`. A small request is dispatched as a whole.
    pub fn request_dispatch(&mut self, request: &LaneRequest, bytes: u64, now: Duration) -> Dispatch {
        let (kind, lane) = (request.kind, request.kind.lane());
        self.latency_guard.record_arrival(kind, now);
        self.advance(now);
        self.last_id += 1;
        let ticket =
            Ticket { id: self.last_id, lane, priority: kind.priority, client: request.client, round: 0 };
        let shares = |priority| self.latency_guard.rate_share(lane, priority, now);
        self.lanes[lane].request_dispatch(ticket, kind.dispatch_amount(bytes), shares, now)
    }

    /// The next ticket that is dispatched. Call it until it returns `None`.
    pub fn next_dispatched(&mut self, now: Duration) -> Option<Ticket> {
        self.advance(now);
        let Self { lanes, latency_guard, .. } = self;
        let mut lanes = lanes.iter_mut().enumerate();
        lanes.find_map(|(index, lane)| {
            lane.next_dispatched(|priority| latency_guard.rate_share(index, priority, now), now)
        })
    }

    /// The time at which to call [`next_dispatched`](Self::next_dispatched) again; `None` if no request is queued.
    #[must_use]
    pub fn next_wake(&self, now: Duration) -> Option<Duration> {
        let lanes = self.lanes.iter().enumerate();
        let due = lanes.filter_map(|(index, lane)| {
            lane.next_wake(|priority| self.latency_guard.rate_share(index, priority, now), now)
        });
        due.min()
    }

    /// Removes a queued ticket. Has no effect if it was dispatched.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.lanes[ticket.lane].cancel(ticket);
    }

    /// Bytes after which a large request must request its next dispatch; `None` if it need not be split.
    #[must_use]
    pub fn quantum_bytes(&self, request: &LaneRequest, now: Duration) -> Option<u64> {
        let LaneKind { priority, .. } = request.kind;
        let lane = request.kind.lane();
        self.lanes[lane].quantum_bytes(self.latency_guard.rate_share(lane, priority, now), now)
    }

    /// Records bytes of a request that were accepted or received.
    #[allow(clippy::cast_precision_loss, reason = "an amount that is added up")]
    pub fn record_bytes(&mut self, request: &mut LaneRequest, bytes: u64, now: Duration) {
        request.uncounted_bytes += bytes;
        let lane = request.kind.large_lane();
        if request.kind.size == RequestSize::Small {
            // Small requests use the same link as the large ones of their direction.
            let shares = |priority| self.latency_guard.rate_share(lane, priority, now);
            self.lanes[lane].charge(bytes as f64, shares, now);
        } else if now.saturating_sub(request.uncounted_since) >= capacity::MAX_COUNTED_SPAN {
            let capacity = &mut self.lanes[lane].capacity;
            capacity.record(request.id, request.uncounted_since, now, request.uncounted_bytes);
            capacity.begin(request.id, now);
            (request.uncounted_since, request.uncounted_bytes) = (now, 0);
        }
    }

    /// Ends a request. `response_time` is the time that the store was waited for; `None` if the request failed or was
    /// cancelled, which is no evidence of the store's speed.
    pub fn end(&mut self, request: LaneRequest, now: Duration, service: Option<Duration>) {
        let LaneRequest { id, kind, uncounted_since, uncounted_bytes, .. } = request;
        let Some(service) = service else {
            return self.lanes[kind.lane()].capacity.discard(id, uncounted_since);
        };
        self.latency_guard.record_latency(kind, service, now);
        if kind.size == RequestSize::Small {
            self.lanes[kind.lane()].capacity.record(id, uncounted_since, now, 1);
            self.lanes[kind.large_lane()].capacity.record_other(uncounted_since, now, uncounted_bytes);
        } else {
            self.lanes[kind.lane()].capacity.record(id, uncounted_since, now, uncounted_bytes);
        }
    }

    /// Number of queued requests, over all lanes.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.lanes.iter().map(Lane::queued).sum()
    }

    /// Number of requests that entered a lane and have not ended, queued ones included.
    #[must_use]
    pub fn entered_count(&self) -> usize {
        self.lanes.iter().map(|lane| lane.capacity.open_count()).sum()
    }

    /// Advances the time.
    fn advance(&mut self, now: Duration) {
        let is_throttled = |(index, lane): (usize, &Lane)| {
            self.latency_guard.is_outranked(index, now) && lane.capacity.estimate(now).is_some()
        };
        let is_throttled = self.lanes.iter().enumerate().any(is_throttled);
        self.latency_guard.advance(is_throttled, now);
    }
}
