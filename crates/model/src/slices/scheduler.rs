//! The scheduler of a rotating disk: which request has a turn, and when a turn ends. Pure; times are arguments.
//!
//! - **Small** requests have the disk together, up to [`MAX_CONCURRENT_SMALL`], so that its elevator orders them.
//! - **Changes** have one place together: a store commits those that wait by one sync.
//! - A **slice** of a stream has the disk alone, for [`DiskSpeed::slice_bytes`] and [`DiskSpeed::slice_time`]. The time
//!   counts where the disk is slower than it was said to be. Between two reads of a slice, the disk waits for the next
//!   one if the stream was prompt before (anticipatory scheduling: Iyer and Druschel, SOSP 2001), for at most the
//!   positioning time that another request would cost. If no other request is queued, a turn does not end.
//! - A slice that is **written** waits for its turn and then holds nothing: the page cache takes it.

mod report;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::queue::{SliceQueue, StreamShare, Urgency};
use super::statistics::DiskStatistics;
use super::{DiskSpeed, HEAD_BYTES};

/// Small requests that have the disk at once: enough for its elevator, and few enough to keep their order.
pub const MAX_CONCURRENT_SMALL: usize = 4;
/// Requests in the queue, without further slices of streams. Further ones are rejected.
pub const MAX_QUEUED_REQUESTS: usize = 1_024;
/// A request that the disk does not complete in this time loses its turn, so that a lost one blocks no other.
pub const MAX_BUSY_TIME: Duration = Duration::from_secs(2);

/// The id of a request for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnId(u64);

/// The data that a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskWork {
    /// A request of up to [`HEAD_BYTES`].
    Small,
    /// The first [`HEAD_BYTES`] of a stream.
    StreamHead,
    /// A change that is durable after a sync.
    Change,
    /// Reads of up to this many bytes in sequence, at most a slice.
    Read {
        /// The bytes that the stream still needs.
        bytes: u64,
    },
    /// Writes of a slice.
    Write {
        /// The bytes that the stream may then write.
        bytes: u64,
    },
}

/// A request for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRequest {
    /// The data.
    pub work: DiskWork,
    /// The place in the queue.
    pub urgency: Urgency,
    /// The group of the stream.
    pub share: StreamShare,
    /// True if the stream read again soon after its last reads. Otherwise the disk does not wait for it.
    pub is_prompt: bool,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull {
    /// Requests in the queue.
    pub queued: usize,
}

impl DiskWork {
    const fn is_small(self) -> bool {
        matches!(self, Self::Small | Self::StreamHead)
    }
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct QueuedRequest {
    id: TurnId,
    request: TurnRequest,
    since: Duration,
}

/// An entry of the queue.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Request(QueuedRequest),
    /// All changes that wait.
    Changes,
}

/// A request that has the disk.
#[derive(Debug)]
struct Turn {
    request: TurnRequest,
    bytes_left: u64,
    /// End of the slice, where the disk is slow.
    until: Duration,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Busy { since: Duration },
    Idle { since: Duration },
}

/// See the module documentation.
#[derive(Debug)]
pub struct DiskScheduler {
    speed: DiskSpeed,
    queue: SliceQueue<Entry>,
    /// An entry that left the queue and waits until the requests that have the disk are complete.
    next: Option<Entry>,
    /// Changes of the entry [`Entry::Changes`].
    changes: Vec<QueuedRequest>,
    /// Requests that have a turn and were not reported yet.
    dispatched: VecDeque<TurnId>,
    turns: BTreeMap<TurnId, Turn>,
    last_id: u64,
    statistics: DiskStatistics,
}

impl DiskScheduler {
    /// The scheduler of an idle disk.
    #[must_use]
    pub const fn new(speed: DiskSpeed) -> Self {
        Self {
            speed,
            queue: SliceQueue::new(),
            next: None,
            changes: Vec::new(),
            dispatched: VecDeque::new(),
            turns: BTreeMap::new(),
            last_id: 0,
            statistics: DiskStatistics::new(),
        }
    }

    /// The speed of the disk.
    #[must_use]
    pub const fn speed(&self) -> DiskSpeed {
        self.speed
    }

    /// Requests a turn at the time `now`. [`Self::next_dispatched`] reports when it begins, possibly at once.
    ///
    /// # Errors
    ///
    /// [`MAX_QUEUED_REQUESTS`] are queued, and the request is not a further slice of a stream.
    pub fn request(&mut self, request: TurnRequest, now: Duration) -> Result<TurnId, QueueFull> {
        if request.urgency == Urgency::First {
            self.check_capacity()?;
        }
        Ok(self.request_admitted(request, now))
    }

    /// Requests a turn like [`Self::request`], for a request that was admitted before: a full queue takes it.
    pub fn request_admitted(&mut self, request: TurnRequest, now: Duration) -> TurnId {
        let queued = self.queued_request(request, now);
        if request.work == DiskWork::Change {
            if self.changes.is_empty() {
                self.queue.push(Urgency::First, Entry::Changes);
            }
            self.changes.push(queued);
        } else {
            let bytes = self.cost(request.work);
            self.queue.push_shared(request.urgency, request.share, bytes, Entry::Request(queued));
        }
        queued.id
    }

    /// Fails if the queue takes no further first request, and counts the request as rejected.
    pub fn check_capacity(&mut self) -> Result<(), QueueFull> {
        let changes_entry = usize::from(!self.changes.is_empty());
        let queued =
            self.queue.first_len() + usize::from(self.next.is_some()) + self.changes.len() - changes_entry;
        if queued >= MAX_QUEUED_REQUESTS {
            self.statistics.rejected += 1;
            return Err(QueueFull { queued });
        }
        Ok(())
    }

    /// Exchanges a turn for one with other work, which is the next of the queue: the request has waited already.
    pub fn exchange(&mut self, id: TurnId, request: TurnRequest, now: Duration) -> TurnId {
        self.end(id);
        let queued = self.queued_request(request, now);
        self.queue.push_front(Entry::Request(queued));
        queued.id
    }

    const fn queued_request(&mut self, request: TurnRequest, now: Duration) -> QueuedRequest {
        self.last_id += 1;
        QueuedRequest { id: TurnId(self.last_id), request, since: now }
    }

    /// The bytes of a turn.
    fn budget(&self, work: DiskWork) -> u64 {
        match work {
            DiskWork::Small | DiskWork::StreamHead => HEAD_BYTES,
            DiskWork::Change => 0,
            DiskWork::Read { bytes } | DiskWork::Write { bytes } => bytes.min(self.speed.slice_bytes()),
        }
    }

    /// The bytes that the disk could transfer in the time that a turn takes at most.
    fn cost(&self, work: DiskWork) -> u64 {
        let bytes = self.budget(work);
        match work {
            DiskWork::Read { .. } => bytes + self.positioning_bytes(),
            _ => bytes,
        }
    }

    fn positioning_bytes(&self) -> u64 {
        (self.speed.positioning_time.as_secs_f64() * self.speed.bytes_per_second as f64) as u64
    }

    /// The next request whose turn began; `None` if no further one can begin now.
    pub fn next_dispatched(&mut self, now: Duration) -> Option<TurnId> {
        self.end_overdue(now);
        while self.dispatched.is_empty() {
            if self.has_slice() {
                // No request can begin, and those that come go first.
                return None;
            }
            let entry = self.next.take().or_else(|| self.queue.pop())?;
            if !self.can_begin(entry) {
                self.next = Some(entry);
                return None;
            }
            match entry {
                Entry::Request(queued) => self.dispatch(queued, now),
                Entry::Changes => {
                    for queued in std::mem::take(&mut self.changes) {
                        self.dispatch(queued, now);
                    }
                }
            }
        }
        self.dispatched.pop_front()
    }

    fn dispatch(&mut self, queued: QueuedRequest, now: Duration) {
        let QueuedRequest { id, request, since } = queued;
        let bytes_left = self.budget(request.work);
        let until = now + self.speed.slice_time();
        self.statistics.record_wait(request.group(), now.saturating_sub(since));
        if let DiskWork::Write { .. } = request.work {
            self.statistics.record_written(request.group(), bytes_left);
        } else {
            // Until the request begins, it counts as between two reads: a task that is not polled loses its turn.
            let turn = Turn { request, bytes_left, until, phase: Phase::Idle { since: now } };
            self.turns.insert(id, turn);
        }
        self.dispatched.push_back(id);
    }

    fn has_slice(&self) -> bool {
        self.turns.values().any(|turn| matches!(turn.request.work, DiskWork::Read { .. }))
    }

    /// True if an entry can begin while no slice has the disk.
    fn can_begin(&self, entry: Entry) -> bool {
        let has_change = self.turns.values().any(|turn| turn.request.work == DiskWork::Change);
        let small = self.turns.values().filter(|turn| turn.request.work.is_small()).count();
        match entry {
            Entry::Changes => has_change || small < MAX_CONCURRENT_SMALL,
            Entry::Request(queued) => match queued.request.work {
                DiskWork::Small | DiskWork::StreamHead => {
                    small + usize::from(has_change) < MAX_CONCURRENT_SMALL
                }
                DiskWork::Write { .. } => true,
                DiskWork::Read { .. } | DiskWork::Change => self.turns.is_empty(),
            },
        }
    }

    /// Time until which a turn stays without an event, while other requests are queued.
    fn turn_end(&self, turn: &Turn) -> Duration {
        match turn.phase {
            Phase::Busy { since } => since + MAX_BUSY_TIME,
            Phase::Idle { since } if turn.bytes_left == 0 && turn.request.work != DiskWork::Change => since,
            Phase::Idle { since } if !turn.request.is_prompt => since,
            Phase::Idle { since } => (since + self.speed.positioning_time).min(turn.until.max(since)),
        }
    }

    /// Ends the turns that others need and whose time is over.
    fn end_overdue(&mut self, now: Duration) {
        if self.queued() == 0 {
            return;
        }
        let over = self.turns.iter().filter(|(_, turn)| self.turn_end(turn) <= now);
        let over: Vec<TurnId> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end(id));
    }

    /// When [`Self::next_dispatched`] may report a request without an event before; `None` without such a time.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        if self.queued() == 0 {
            return None;
        }
        self.turns.values().map(|turn| self.turn_end(turn)).min()
    }

    /// The request uses the disk from now on. Returns false if it has no turn any more.
    pub fn begin(&mut self, id: TurnId, now: Duration) -> bool {
        let Some(turn) = self.turns.get_mut(&id) else { return false };
        if let Phase::Idle { .. } = turn.phase {
            turn.phase = Phase::Busy { since: now };
        }
        true
    }

    /// The disk transferred `bytes` bytes, and the request does not use it now. Returns false if the turn was lost
    /// meanwhile: the bytes are not counted then.
    pub fn pause(&mut self, id: TurnId, bytes: u64, now: Duration) -> bool {
        let Some(turn) = self.turns.get_mut(&id) else { return false };
        turn.bytes_left = turn.bytes_left.saturating_sub(bytes);
        turn.phase = Phase::Idle { since: now };
        self.statistics.record_read(turn.request.group(), bytes);
        true
    }

    /// Counts bytes that were transferred for a request that has lost its turn.
    pub fn record_late_read(&mut self, request: &TurnRequest, bytes: u64) {
        self.statistics.record_read(request.group(), bytes);
    }

    /// The class of a request that has a turn is known: the turn is one for `work` in the group of `share` from now on.
    /// Its wait stays counted where it was.
    pub fn relabel(&mut self, id: TurnId, work: DiskWork, share: StreamShare) {
        if let Some(turn) = self.turns.get_mut(&id)
            && turn.request.work.is_small()
            && work.is_small()
        {
            turn.request.work = work;
            turn.request.share = share;
        }
    }

    /// Returns true if the request still has its turn, and bytes of it.
    #[must_use]
    pub fn has_bytes(&self, id: TurnId) -> bool {
        self.turns.get(&id).is_some_and(|turn| turn.bytes_left > 0)
    }

    /// Returns true if the turn is over, also if no other request is queued.
    #[must_use]
    pub fn is_over(&self, id: TurnId, now: Duration) -> bool {
        self.turns.get(&id).is_none_or(|turn| turn.bytes_left == 0 || turn.until <= now)
    }

    /// Ends a turn, or removes the request from the queue. Does nothing for one that has ended.
    pub fn end(&mut self, id: TurnId) {
        if let Some(turn) = self.turns.remove(&id) {
            if matches!(turn.request.urgency, Urgency::Stream(_)) {
                self.queue.refund(turn.request.share, turn.bytes_left);
            }
            return;
        }
        let mut abandoned = None;
        let mut is_it = |entry: &Entry| match entry {
            Entry::Request(queued) if queued.id == id => {
                abandoned = Some(queued.request.group());
                true
            }
            _ => false,
        };
        if let Some(Entry::Request(queued)) = self.next.take_if(|entry| is_it(entry)) {
            // It was charged when it left the queue.
            if matches!(queued.request.urgency, Urgency::Stream(_)) {
                self.queue.refund(queued.request.share, self.cost(queued.request.work));
            }
        }
        self.queue.remove(is_it);
        if let Some(place) = self.changes.iter().position(|queued| queued.id == id) {
            abandoned = Some(self.changes.remove(place).request.group());
            if self.changes.is_empty() {
                self.queue.remove(|entry| matches!(entry, Entry::Changes));
                self.next.take_if(|entry| matches!(entry, Entry::Changes));
            }
        }
        if let Some(group) = abandoned {
            self.statistics.record_abandoned(group);
        }
        self.dispatched.retain(|other| *other != id);
    }

    /// Number of requests in the queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        let changes_entry = usize::from(!self.changes.is_empty());
        self.queue.len() + usize::from(self.next.is_some()) + self.changes.len() - changes_entry
    }

    /// Number of requests that have a turn.
    #[must_use]
    pub fn turn_count(&self) -> usize {
        self.turns.len()
    }
}

#[cfg(test)]
mod tests;
