//! One lane: its queues, and the time at which each queued request is dispatched.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::Dispatch;
use super::capacity::{LaneCapacity, LaneRate};
use super::lane_kind::Priority;
use super::latency_guard::RateShare;

/// Maximum number of consecutive high-priority dispatches while a normal one waits.
const MAX_HIGH_IN_A_ROW: u32 = 8;
/// The head of a queue is dispatched after the time of this many dispatches of its size.
const MAX_WAIT_QUANTA: f64 = 16.0;
/// Unused credit is kept for this long, because timers fire late.
const BURST_SECONDS: f64 = 0.001;
/// Maximum debt, in seconds of the rate.
const DEBT_SECONDS: f64 = 1.0;
/// Duration of one quantum of a large request.
const QUANTUM_SECONDS: f64 = 0.002;
/// Minimum quantum: sending a smaller one would cost more than it saves others.
const MIN_QUANTUM_BYTES: f64 = 16_384.0;
/// Maximum quantum.
const MAX_QUANTUM_BYTES: f64 = 1_048_576.0;

/// Identifies a queued dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub(super) id: u64,
    pub(super) lane: usize,
    pub(super) priority: Priority,
    pub(super) client: ClientId,
    pub(super) round: u64,
}

/// Identifies a client. Clients with the same number count as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// The rate share of a priority in a lane; `None` if it has the highest active rank.
pub(super) trait RateShares: Fn(Priority) -> Option<RateShare> {}
impl<F: Fn(Priority) -> Option<RateShare>> RateShares for F {}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub capacity: LaneCapacity,
    /// By priority.
    queues: [Queue; 2],
    /// The amount that may be dispatched at once; negative if the lane is in debt.
    credit: f64,
    /// Time up to which the credit is refilled.
    refilled_at: Duration,
    /// Number of consecutive high-priority dispatches.
    high_in_a_row: u32,
    /// Time of the last dispatch.
    last_dispatch: Duration,
}

#[derive(Debug, Clone, Copy)]
struct QueuedDispatch {
    amount: f64,
    queued_at: Duration,
    ticket: Ticket,
}

/// A round-robin queue over clients: each round serves one request of every waiting client. A new client joins the
/// current round unless it was already served in it; then it joins the next. Hence a round ends, however fast its
/// clients return.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<QueuePosition, QueuedDispatch>,
    /// The clients with queued requests.
    clients: HashMap<ClientId, ClientState>,
    /// The current round: that of the latest dispatched request.
    round: u64,
    /// Clients served in the current round.
    served: HashSet<ClientId>,
}

/// The order within a queue: by round, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    round: u64,
    id: u64,
}

/// The queued requests of a client.
#[derive(Debug, Clone, Copy, Default)]
struct ClientState {
    /// Number of queued requests.
    queued: usize,
    /// The round of its last one.
    last_round: u64,
}

impl Ticket {
    const fn position(self) -> QueuePosition {
        QueuePosition { round: self.round, id: self.id }
    }
}

impl Queue {
    fn insert(&mut self, mut ticket: Ticket, amount: f64, queued_at: Duration) -> Ticket {
        let earliest = self.round + u64::from(self.served.contains(&ticket.client));
        let client = self.clients.entry(ticket.client).or_default();
        ticket.round = if client.queued == 0 { earliest } else { earliest.max(client.last_round + 1) };
        *client = ClientState { queued: client.queued + 1, last_round: ticket.round };
        self.waiting.insert(ticket.position(), QueuedDispatch { amount, queued_at, ticket });
        ticket
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let is_found = self.waiting.remove(&ticket.position()).is_some();
        if is_found && let Some(client) = self.clients.get_mut(&ticket.client) {
            client.queued -= 1;
            if client.queued == 0 {
                self.clients.remove(&ticket.client);
            }
        }
        is_found
    }

    fn dispatch(&mut self, ticket: Ticket) {
        if ticket.round > self.round {
            self.round = ticket.round;
            self.served.clear();
        }
        self.served.insert(ticket.client);
        self.remove(ticket);
    }
}

impl Lane {
    /// Requests a dispatch.
    #[allow(clippy::cast_precision_loss, reason = "an amount that is added up")]
    pub fn request_dispatch(
        &mut self,
        ticket: Ticket,
        amount: u64,
        shares: impl RateShares,
        now: Duration,
    ) -> Dispatch {
        let amount = amount as f64;
        let Some(rate) = self.rate(&shares, ticket.priority, now) else {
            self.charge(amount, shares, now);
            return Dispatch::Now;
        };
        self.refill(rate, now);
        if self.queued() == 0 && self.credit >= 0.0 {
            self.record_dispatch(ticket.priority, amount, now);
            return Dispatch::Now;
        }
        Dispatch::Queued(self.queues[ticket.priority as usize].insert(ticket, amount, now))
    }

    /// Subtracts an amount that bypassed the queue from the credit of normal priority.
    pub fn charge(&mut self, amount: f64, shares: impl RateShares, now: Duration) {
        if let Some(rate) = self.rate(&shares, Priority::Normal, now) {
            self.refill(rate, now);
            self.credit -= amount;
        }
    }

    /// Dispatches the next request, if one is due.
    pub fn next_dispatched(&mut self, shares: impl RateShares, now: Duration) -> Option<Ticket> {
        let head = self.heads().find(|head| {
            let Some(rate) = self.rate(&shares, head.ticket.priority, now) else { return true };
            self.credit_at(rate.per_second, now) >= 0.0
                || now >= self.dispatch_deadline(head, rate.per_second)
        })?;
        let priority = head.ticket.priority;
        self.queues[priority as usize].dispatch(head.ticket);
        if let Some(rate) = self.rate(&shares, priority, now) {
            self.refill(rate, now);
            if !rate.share.is_measured {
                self.capacity.record_throttled(rate, now);
            }
            self.record_dispatch(priority, head.amount, now);
        }
        Some(head.ticket)
    }

    /// The earliest time of the next dispatch, unless something changes before.
    pub fn next_wake(&self, shares: impl RateShares, now: Duration) -> Option<Duration> {
        let due = self.heads().map(|head| {
            let Some(rate) = self.rate(&shares, head.ticket.priority, now) else { return now };
            let paid = self.refilled_at + saturating_seconds(-self.credit / rate.per_second);
            paid.min(self.dispatch_deadline(&head, rate.per_second))
        });
        due.min()
    }

    /// Removes a queued dispatch.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.queues[ticket.priority as usize].remove(ticket);
    }

    /// Number of queued dispatches.
    pub fn queued(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// Number of queued dispatches of a client.
    pub fn queued_for(&self, client: ClientId) -> usize {
        self.queues.iter().filter_map(|queue| queue.clients.get(&client)).map(|client| client.queued).sum()
    }

    /// Bytes of a quantum; `None` if the lane is not throttled.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    pub fn quantum_bytes(&self, share: Option<RateShare>, now: Duration) -> Option<u64> {
        let rate = share?.rate_factor * self.capacity.estimate(now)?;
        Some((rate * QUANTUM_SECONDS).clamp(MIN_QUANTUM_BYTES, MAX_QUANTUM_BYTES) as u64)
    }

    /// The head of each queue, in the order of service.
    fn heads(&self) -> impl Iterator<Item = QueuedDispatch> {
        let is_normals_turn = self.high_in_a_row >= MAX_HIGH_IN_A_ROW;
        let order = if is_normals_turn {
            [Priority::Normal, Priority::High]
        } else {
            [Priority::High, Priority::Normal]
        };
        order.into_iter().filter_map(|priority| {
            let (_, head) = self.queues[priority as usize].waiting.first_key_value()?;
            Some(*head)
        })
    }

    /// The current rate; `None` if the lane is not throttled or its capacity is unknown.
    fn rate(&self, shares: &impl RateShares, priority: Priority, now: Duration) -> Option<LaneRate> {
        let (share, capacity) = (shares(priority)?, self.capacity.estimate(now)?);
        Some(LaneRate { per_second: share.rate_factor * capacity, capacity, share })
    }

    /// The time at which the head of a queue is dispatched in any case. The next request starts to wait when its
    /// predecessor is dispatched.
    fn dispatch_deadline(&self, head: &QueuedDispatch, per_second: f64) -> Duration {
        head.queued_at.max(self.last_dispatch)
            + saturating_seconds(MAX_WAIT_QUANTA * head.amount / per_second)
    }

    fn credit_at(&self, per_second: f64, now: Duration) -> f64 {
        let grown = self.credit + per_second * now.saturating_sub(self.refilled_at).as_secs_f64();
        grown.clamp(-per_second * DEBT_SECONDS, per_second * BURST_SECONDS)
    }

    fn refill(&mut self, rate: LaneRate, now: Duration) {
        self.credit = self.credit_at(rate.per_second, now);
        self.refilled_at = self.refilled_at.max(now);
    }

    fn record_dispatch(&mut self, priority: Priority, amount: f64, now: Duration) {
        self.credit -= amount;
        self.last_dispatch = now;
        self.high_in_a_row = if priority == Priority::High { self.high_in_a_row + 1 } else { 0 };
    }
}

fn saturating_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(3600))
}
