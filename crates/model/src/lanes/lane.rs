//! One lane: its queues, and the time at which each queued request is dispatched.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::Turn;
use super::carried::{Carried, Pace};
use super::kind::Priority;
use super::shelter::Share;

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
    pub(super) client: Client,
    pub(super) round: u64,
}

/// Identifies a client. Clients with the same number count as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u64);

/// The rate share of a priority in a lane; `None` if it has the highest active rank.
pub(super) trait Shares: Fn(Priority) -> Option<Share> {}
impl<F: Fn(Priority) -> Option<Share>> Shares for F {}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub carried: Carried,
    /// By priority.
    queues: [Queue; 2],
    /// The amount that may be dispatched at once; negative if the lane is in debt.
    credit: f64,
    /// Time up to which the credit is refilled.
    at: Duration,
    /// Number of consecutive high-priority dispatches.
    in_a_row: u32,
    /// Time of the last dispatch.
    passed: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    amount: f64,
    since: Duration,
    ticket: Ticket,
}

/// A round-robin queue over clients: each round serves one request of every waiting client. A new client joins the
/// current round unless it was already served in it; then it joins the next. Hence a round ends, however fast its
/// clients return.
#[derive(Debug, Default)]
struct Queue {
    /// By round, then by order of arrival.
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// Number of queued requests of each client, and the round of its last one.
    clients: HashMap<Client, (usize, u64)>,
    /// The current round: that of the latest dispatched request.
    round: u64,
    /// Clients served in the current round.
    served: HashSet<Client>,
}

impl Queue {
    fn insert(&mut self, mut ticket: Ticket, amount: f64, since: Duration) -> Ticket {
        let earliest = self.round + u64::from(self.served.contains(&ticket.client));
        let (count, last) = self.clients.entry(ticket.client).or_insert((0, 0));
        ticket.round = if *count == 0 { earliest } else { earliest.max(*last + 1) };
        (*count, *last) = (*count + 1, ticket.round);
        self.waiting.insert((ticket.round, ticket.id), Waiting { amount, since, ticket });
        ticket
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let is_found = self.waiting.remove(&(ticket.round, ticket.id)).is_some();
        if is_found && let Some((count, _)) = self.clients.get_mut(&ticket.client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&ticket.client);
            }
        }
        is_found
    }

    fn pass(&mut self, ticket: Ticket) {
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
    pub fn ask(&mut self, ticket: Ticket, amount: u64, shares: impl Shares, now: Duration) -> Turn {
        let (asked, amount) = (self.pace(&shares, ticket.priority, now), amount as f64);
        let Some(pace) = asked else {
            self.charge(amount, shares, now);
            return Turn::Now;
        };
        self.grow(pace, now);
        if self.waiting() == 0 && self.credit >= 0.0 {
            self.pass(ticket.priority, amount, now);
            return Turn::Now;
        }
        Turn::Waits(self.queues[ticket.priority as usize].insert(ticket, amount, now))
    }

    /// Subtracts an amount that bypassed the queue from the credit of normal priority.
    pub fn charge(&mut self, amount: f64, shares: impl Shares, now: Duration) {
        if let Some(pace) = self.pace(&shares, Priority::Normal, now) {
            self.grow(pace, now);
            self.credit -= amount;
        }
    }

    /// Dispatches the next request, if one is due.
    pub fn next(&mut self, shares: impl Shares, now: Duration) -> Option<Ticket> {
        let head = self.heads().find(|head| {
            let Some(pace) = self.pace(&shares, head.ticket.priority, now) else { return true };
            self.credit_at(pace.rate, now) >= 0.0 || now >= self.patience(head, pace.rate)
        })?;
        let priority = head.ticket.priority;
        self.queues[priority as usize].pass(head.ticket);
        if let Some(pace) = self.pace(&shares, priority, now) {
            self.grow(pace, now);
            if !pace.share.is_felt {
                self.carried.hold(pace, now);
            }
            self.pass(priority, head.amount, now);
        }
        Some(head.ticket)
    }

    /// The earliest time of the next dispatch, unless something changes before.
    pub fn wake(&self, shares: impl Shares, now: Duration) -> Option<Duration> {
        let due = self.heads().map(|head| {
            let Some(Pace { rate, .. }) = self.pace(&shares, head.ticket.priority, now) else { return now };
            let paid = self.at + seconds(-self.credit / rate);
            paid.min(self.patience(&head, rate))
        });
        due.min()
    }

    /// Removes a queued dispatch.
    pub fn leave(&mut self, ticket: Ticket) {
        self.queues[ticket.priority as usize].remove(ticket);
    }

    /// Number of queued dispatches.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// Number of queued dispatches of a client.
    pub fn waiting_of(&self, client: Client) -> usize {
        self.queues.iter().filter_map(|queue| queue.clients.get(&client)).map(|(count, _)| count).sum()
    }

    /// Bytes of a quantum; `None` if the lane is not throttled.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    pub fn piece(&self, share: Option<Share>, now: Duration) -> Option<u64> {
        let rate = share?.factor * self.carried.most(now)?;
        Some((rate * QUANTUM_SECONDS).clamp(MIN_QUANTUM_BYTES, MAX_QUANTUM_BYTES) as u64)
    }

    /// The head of each queue, in the order of service.
    fn heads(&self) -> impl Iterator<Item = Waiting> {
        let is_normals_turn = self.in_a_row >= MAX_HIGH_IN_A_ROW;
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
    fn pace(&self, shares: &impl Shares, priority: Priority, now: Duration) -> Option<Pace> {
        let (share, most) = (shares(priority)?, self.carried.most(now)?);
        Some(Pace { rate: share.factor * most, most, share })
    }

    /// The time at which the head of a queue is dispatched in any case. The next request starts to wait when its
    /// predecessor is dispatched.
    fn patience(&self, head: &Waiting, rate: f64) -> Duration {
        head.since.max(self.passed) + seconds(MAX_WAIT_QUANTA * head.amount / rate)
    }

    fn credit_at(&self, rate: f64, now: Duration) -> f64 {
        let grown = self.credit + rate * now.saturating_sub(self.at).as_secs_f64();
        grown.clamp(-rate * DEBT_SECONDS, rate * BURST_SECONDS)
    }

    fn grow(&mut self, Pace { rate, .. }: Pace, now: Duration) {
        (self.credit, self.at) = (self.credit_at(rate, now), self.at.max(now));
    }

    fn pass(&mut self, priority: Priority, amount: f64, now: Duration) {
        self.credit -= amount;
        self.passed = now;
        self.in_a_row = if priority == Priority::High { self.in_a_row + 1 } else { 0 };
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(3600))
}
