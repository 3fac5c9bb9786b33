//! Priority scheduling of requests to a store: requests of similar size and the same direction share a *lane*, and the
//! rate of each lane follows from the latency it adds to higher-priority requests (Hou 2017, sections 4.4 and 7).
//!
//! Small requests wait behind the bytes of large ones in a link or device. Reordering at the sender does not help,
//! because the queue is beyond it. A lane is therefore limited to a **rate** while higher-priority requests are active:
//! its measured capacity, a little more while their latency is normal and a little less while it is not ([`shelter`]).
//! The queue beyond the sender then stays short but not empty. A rate, unlike a window, is held by no request, so a
//! slow reader blocks no other.
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

mod carried;
mod kind;
mod lane;
mod shelter;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lane::Lane;
use shelter::Shelter;

pub use kind::{Kind, Priority, SMALL_BYTES, Size};
pub use lane::{Client, Ticket};

/// Limits of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanesOptions {
    /// Maximum number of queued requests per lane. Beyond it, requests are rejected.
    pub most_waiting: usize,
}

/// Maximum ratio of the queued requests of a client to the free places of the queue. A single client can fill 7/8 of
/// it.
const CLIENT_QUEUE_RATIO: usize = 7;

impl Default for LanesOptions {
    fn default() -> Self {
        Self { most_waiting: 1024 }
    }
}

/// All lanes of one store.
#[derive(Debug)]
pub struct Lanes {
    options: LanesOptions,
    lanes: [Lane; Kind::LANES],
    shelter: Shelter,
    last: u64,
}

/// A request admitted to its lane. It must be passed to [`end`](Lanes::end) exactly once.
#[derive(Debug)]
#[must_use = "a request that never ends is counted as in flight forever"]
pub struct Entered {
    id: u64,
    kind: Kind,
    client: Client,
    /// Start of the span whose bytes are not yet counted, and their number.
    since: Duration,
    amount: u64,
}

/// The answer to a dispatch request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It may proceed at once.
    Now,
    /// It is queued until [`Lanes::next`] returns this ticket.
    Waits(Ticket),
}

/// The queue of a lane is full. The request may be retried later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Number of queued requests.
    pub waiting: usize,
}

impl Lanes {
    /// Empty lanes.
    #[must_use]
    pub fn new(options: LanesOptions) -> Self {
        Self { options, lanes: Default::default(), shelter: Shelter::default(), last: 0 }
    }

    /// Admits a request of one of several clients. It must then request its dispatch.
    pub fn enter_for(&mut self, client: Client, kind: Kind, now: Duration) -> Result<Entered, Full> {
        let lane = &self.lanes[kind.lane()];
        let waiting = lane.waiting();
        let room = self.options.most_waiting.saturating_sub(waiting);
        if room == 0 || lane.waiting_of(client) >= room.saturating_mul(CLIENT_QUEUE_RATIO) {
            return Err(Full { waiting });
        }
        self.last += 1;
        self.shelter.came(kind, now);
        self.lanes[kind.lane()].carried.begin(self.last, now);
        Ok(Entered { id: self.last, kind, client, since: now, amount: 0 })
    }

    /// Like [`enter_for`](Self::enter_for), without telling clients apart.
    pub fn enter(&mut self, kind: Kind, now: Duration) -> Result<Entered, Full> {
        self.enter_for(Client::default(), kind, now)
    }

    /// Requests the dispatch of `bytes`. A small request is dispatched as a whole.
    pub fn turn(&mut self, request: &Entered, bytes: u64, now: Duration) -> Turn {
        let (kind, lane) = (request.kind, request.kind.lane());
        self.shelter.came(kind, now);
        self.pass(now);
        self.last += 1;
        let ticket =
            Ticket { id: self.last, lane, priority: kind.priority, client: request.client, round: 0 };
        let shares = |priority| self.shelter.share_of(lane, priority, now);
        self.lanes[lane].ask(ticket, kind.amount(bytes), shares, now)
    }

    /// The next ticket that is dispatched. Call it until it returns `None`.
    pub fn next(&mut self, now: Duration) -> Option<Ticket> {
        self.pass(now);
        let Self { lanes, shelter, .. } = self;
        let mut lanes = lanes.iter_mut().enumerate();
        lanes.find_map(|(index, lane)| lane.next(|priority| shelter.share_of(index, priority, now), now))
    }

    /// The time at which to call `next` again; `None` if no request is queued.
    #[must_use]
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let lanes = self.lanes.iter().enumerate();
        let due = lanes.filter_map(|(index, lane)| {
            lane.wake(|priority| self.shelter.share_of(index, priority, now), now)
        });
        due.min()
    }

    /// Removes a queued ticket. Has no effect if it was dispatched.
    pub fn leave(&mut self, ticket: Ticket) {
        self.lanes[ticket.lane].leave(ticket);
    }

    /// Bytes after which a large request must request its next dispatch; `None` if it need not be split.
    #[must_use]
    pub fn piece(&self, request: &Entered, now: Duration) -> Option<u64> {
        let Kind { priority, .. } = request.kind;
        let lane = request.kind.lane();
        self.lanes[lane].piece(self.shelter.share_of(lane, priority, now), now)
    }

    /// Records bytes of a request that were accepted or received.
    #[allow(clippy::cast_precision_loss, reason = "an amount that is added up")]
    pub fn carried(&mut self, request: &mut Entered, bytes: u64, now: Duration) {
        request.amount += bytes;
        let lane = request.kind.large_lane();
        if request.kind.size == Size::Small {
            // Small requests use the same link as the large ones of their direction.
            let shares = |priority| self.shelter.share_of(lane, priority, now);
            self.lanes[lane].charge(bytes as f64, shares, now);
        } else if now.saturating_sub(request.since) >= carried::LONGEST {
            let carried = &mut self.lanes[lane].carried;
            carried.count(request.id, request.since, now, request.amount);
            carried.begin(request.id, now);
            (request.since, request.amount) = (now, 0);
        }
    }

    /// Ends a request. `service` is the time that the store was waited for; `None` if the request failed or was
    /// cancelled, which says nothing about the speed of the store.
    pub fn end(&mut self, request: Entered, now: Duration, service: Option<Duration>) {
        let Entered { id, kind, since, amount, .. } = request;
        let Some(service) = service else { return self.lanes[kind.lane()].carried.forget(id, since) };
        self.shelter.took(kind, service, now);
        if kind.size == Size::Small {
            self.lanes[kind.lane()].carried.count(id, since, now, 1);
            self.lanes[kind.large_lane()].carried.add(since, now, amount);
        } else {
            self.lanes[kind.lane()].carried.count(id, since, now, amount);
        }
    }

    /// Number of queued requests, over all lanes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::waiting).sum()
    }

    /// Number of requests that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.lanes.iter().map(|lane| lane.carried.open()).sum()
    }

    /// Advances the time.
    fn pass(&mut self, now: Duration) {
        let is_throttled = |(index, lane): (usize, &Lane)| {
            self.shelter.has_waiting(index, now) && lane.carried.most(now).is_some()
        };
        let is_throttled = self.lanes.iter().enumerate().any(is_throttled);
        self.shelter.pass(is_throttled, now);
    }
}
