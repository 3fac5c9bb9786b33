//! Who waits so that others need not: requests of like size and direction share a *lane*, and lanes get shares that follow
//! from what they do to each other (Hou 2017, sections 4.4 and 7).
//!
//! Small requests wait behind the bytes of large ones, in a line or at a device, and no order in which requests are sent
//! helps where the queue is behind the sender. So a lane has a **pace** beside one that goes before it: as much as the lane
//! was seen to carry, a little more while the others are as fast as they usually are and a little less while they are
//! not ([`shelter`]). What is behind the sender is then neither idle nor has it a long queue. A pace is held by nobody: a
//! caller that reads slowly takes no place from others.
//!
//! - **Before whom**: requests of high priority go before all others, and of one priority small ones before large ones. Who
//!   goes before everybody who has asked of late does not wait; where nobody goes before anybody, nobody waits.
//! - **What it may cost**: 8 % of what a lane carries in the long run, and two seconds of it at once; a tenth where others go
//!   first in the same lane. What holding back was not seen to be good for is not taken for what the lane can carry.
//! - **Nothing starves**: whoever is next passes after sixteen turns' time, whatever goes before it.
//! - **Bounded**: where so many wait in a lane, the next request is refused. What was let in before that waits for one turn at
//!   a time.
//! - **Clients take turns** in a lane, and one that has many requests waiting is refused while there is still room for
//!   others.
//!
//! Time is an argument, since any origin that all callers share; those of threads that come one after the other may be a little
//! out of order.

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

/// What may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanesOptions {
    /// Where so many wait in a lane, no request is let in any more.
    pub most_waiting: usize,
}

/// A client may have this many times as many requests waiting in a lane as there is room for: alone, seven eighths of
/// all that may wait.
const CLIENT_SHARE: usize = 7;

impl Default for LanesOptions {
    fn default() -> Self {
        Self { most_waiting: 1024 }
    }
}

/// All lanes to one store.
#[derive(Debug)]
pub struct Lanes {
    options: LanesOptions,
    lanes: [Lane; Kind::LANES],
    shelter: Shelter,
    last: u64,
}

/// A request that has been let into its lane. It must come to its [`end`](Lanes::end), once.
#[derive(Debug)]
#[must_use = "a request that does not end is under way for ever"]
pub struct Entered {
    id: u64,
    kind: Kind,
    client: Client,
    /// Since when what it carried is not counted, and how much that is.
    since: Duration,
    amount: u64,
}

/// Whether what asked for a turn may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// At once.
    Now,
    /// When [`Lanes::next`] says this.
    Waits(Ticket),
}

/// A lane's queue is full: the request may be sent again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Requests that wait.
    pub waiting: usize,
}

impl Lanes {
    /// No lane has anything in it.
    #[must_use]
    pub fn new(options: LanesOptions) -> Self {
        Self { options, lanes: Default::default(), shelter: Shelter::default(), last: 0 }
    }

    /// A request of one client among others comes. What is let in takes its turns.
    pub fn enter_for(&mut self, client: Client, kind: Kind, now: Duration) -> Result<Entered, Full> {
        let lane = &self.lanes[kind.lane()];
        let waiting = lane.waiting();
        let room = self.options.most_waiting.saturating_sub(waiting);
        if room == 0 || lane.waiting_of(client) >= room.saturating_mul(CLIENT_SHARE) {
            return Err(Full { waiting });
        }
        self.last += 1;
        self.shelter.came(kind, now);
        self.lanes[kind.lane()].carried.begin(self.last, now);
        Ok(Entered { id: self.last, kind, client, since: now, amount: 0 })
    }

    /// Like [`enter_for`](Self::enter_for), where clients are not told apart.
    pub fn enter(&mut self, kind: Kind, now: Duration) -> Result<Entered, Full> {
        self.enter_for(Client::default(), kind, now)
    }

    /// Asks for the turn of so many bytes; a small request has one turn in all.
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

    /// Whose turn it is; to be asked for again until it is nobody's.
    pub fn next(&mut self, now: Duration) -> Option<Ticket> {
        self.pass(now);
        let Self { lanes, shelter, .. } = self;
        let mut lanes = lanes.iter_mut().enumerate();
        lanes.find_map(|(lane, waits)| waits.next(|priority| shelter.share_of(lane, priority, now), now))
    }

    /// When `next` is to be asked; `None` while nobody waits.
    #[must_use]
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let lanes = self.lanes.iter().enumerate();
        let due = lanes.filter_map(|(lane, waits)| {
            waits.wake(|priority| self.shelter.share_of(lane, priority, now), now)
        });
        due.min()
    }

    /// Somebody waits no longer. Nothing happens where its turn had come.
    pub fn leave(&mut self, ticket: Ticket) {
        self.lanes[ticket.lane].leave(ticket);
    }

    /// Bytes after which a large request is to ask for its next turn; `None`: it need not be taken to pieces.
    #[must_use]
    pub fn piece(&self, request: &Entered, now: Duration) -> Option<u64> {
        let Kind { priority, .. } = request.kind;
        let lane = request.kind.lane();
        self.lanes[lane].piece(self.shelter.share_of(lane, priority, now), now)
    }

    /// Bytes of a request were taken or have come.
    #[allow(clippy::cast_precision_loss, reason = "what is added up")]
    pub fn carried(&mut self, request: &mut Entered, bytes: u64, now: Duration) {
        request.amount += bytes;
        let lane = request.kind.large_lane();
        if request.kind.size == Size::Small {
            // Where the large ones go, the small ones do too.
            let shares = |priority| self.shelter.share_of(lane, priority, now);
            self.lanes[lane].charge(bytes as f64, shares, now);
        } else if now.saturating_sub(request.since) >= carried::LONGEST {
            let carried = &mut self.lanes[lane].carried;
            carried.count(request.id, request.since, now, request.amount);
            carried.begin(request.id, now);
            (request.since, request.amount) = (now, 0);
        }
    }

    /// A request is over. It was done, and the store was waited for so long; `None` where it failed or was given up: that
    /// says nothing of how fast the store is.
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

    /// Who waits, in all lanes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::waiting).sum()
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.lanes.iter().map(|lane| lane.carried.open()).sum()
    }

    /// Time goes on.
    fn pass(&mut self, now: Duration) {
        let is_paced = |(lane, waits): (usize, &Lane)| {
            self.shelter.has_waiting(lane, now) && waits.carried.most(now).is_some()
        };
        let is_paced = self.lanes.iter().enumerate().any(is_paced);
        self.shelter.pass(is_paced, now);
    }
}
