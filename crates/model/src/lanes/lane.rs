//! One lane: who waits in it, and who passes when.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::Turn;
use super::carried::{Carried, Pace};
use super::kind::Priority;
use super::shelter::Share;

/// So many turns of high priority pass before one that waits.
const IN_A_ROW: u32 = 8;
/// Whoever is next passes when it has waited for so many turns.
const PATIENCE_TURNS: f64 = 16.0;
/// What was not used may be made up for as long as this: timers are late.
const BURST_SECONDS: f64 = 0.001;
/// What was used too much is made up for as long as this.
const DEBT_SECONDS: f64 = 1.0;
/// How long a turn of a large request is to take.
const PIECE_SECONDS: f64 = 0.002;
/// A piece is no smaller: sending it would cost more than it spares others.
const LEAST_PIECE: f64 = 16_384.0;
/// A piece is no larger.
const MOST_PIECE: f64 = 1_048_576.0;

/// The place of somebody who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub(super) id: u64,
    pub(super) lane: usize,
    pub(super) priority: Priority,
    pub(super) client: Client,
    pub(super) round: u64,
}

/// A client, told from others by a number. Clients that have the same number are one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u64);

/// How fast a lane is to go for requests of a priority; `None` where they go before everybody.
pub(super) trait Shares: Fn(Priority) -> Option<Share> {}
impl<F: Fn(Priority) -> Option<Share>> Shares for F {}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub carried: Carried,
    /// By priority.
    queues: [Queue; 2],
    /// What may pass at once; less than nothing where more has passed.
    credit: f64,
    /// Until when it has grown.
    at: Duration,
    /// How many of high priority have passed in a row.
    in_a_row: u32,
    /// When somebody passed last.
    passed: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    amount: f64,
    since: Duration,
    ticket: Ticket,
}

/// Clients take turns: each round has one request of each client that waits. A client that comes anew joins the round
/// that is passing, unless it has had its turn in that round: then it joins the next one. So a round ends, however fast
/// its clients come back.
#[derive(Debug, Default)]
struct Queue {
    /// By round, and in one in the order in which they came.
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// The number of waiting requests of each client, and the round of its last.
    clients: HashMap<Client, (usize, u64)>,
    /// The round of the latest that has passed.
    round: u64,
    /// Clients that have had their turn in that round. Emptied when the next round begins.
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
    /// Asks for a turn.
    #[allow(clippy::cast_precision_loss, reason = "what is added up")]
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

    /// So much has passed before everybody who waits here: they have that much less.
    pub fn charge(&mut self, amount: f64, shares: impl Shares, now: Duration) {
        if let Some(pace) = self.pace(&shares, Priority::Normal, now) {
            self.grow(pace, now);
            self.credit -= amount;
        }
    }

    /// Who passes now.
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

    /// When somebody may pass, if nothing else happens.
    pub fn wake(&self, shares: impl Shares, now: Duration) -> Option<Duration> {
        let due = self.heads().map(|head| {
            let Some(Pace { rate, .. }) = self.pace(&shares, head.ticket.priority, now) else { return now };
            let paid = self.at + seconds(-self.credit / rate);
            paid.min(self.patience(&head, rate))
        });
        due.min()
    }

    /// Somebody waits no longer.
    pub fn leave(&mut self, ticket: Ticket) {
        self.queues[ticket.priority as usize].remove(ticket);
    }

    /// Who waits.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// Requests of a client that wait.
    pub fn waiting_of(&self, client: Client) -> usize {
        self.queues.iter().filter_map(|queue| queue.clients.get(&client)).map(|(count, _)| count).sum()
    }

    /// Bytes of a turn; `None` where the lane goes as fast as it can.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    pub fn piece(&self, share: Option<Share>, now: Duration) -> Option<u64> {
        let rate = share?.factor * self.carried.most(now)?;
        Some((rate * PIECE_SECONDS).clamp(LEAST_PIECE, MOST_PIECE) as u64)
    }

    /// The first of each queue, in the order in which they are let pass.
    fn heads(&self) -> impl Iterator<Item = Waiting> {
        let is_normals_turn = self.in_a_row >= IN_A_ROW;
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

    /// How fast; `None` where nobody needs to wait, or nobody knows yet what the lane carries.
    fn pace(&self, shares: &impl Shares, priority: Priority, now: Duration) -> Option<Pace> {
        let (share, most) = (shares(priority)?, self.carried.most(now)?);
        Some(Pace { rate: share.factor * most, most, share })
    }

    /// When the first of a queue passes in any case. Those behind it have as much patience with it.
    fn patience(&self, head: &Waiting, rate: f64) -> Duration {
        head.since.max(self.passed) + seconds(PATIENCE_TURNS * head.amount / rate)
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
