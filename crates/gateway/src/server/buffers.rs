//! Limits on the connections' read buffers, which are not part of the request budget. Most buffers are small. Large
//! ones are counted here.
//!
//! **Slots** limit large request heads:
//! - A head larger than [`INITIAL_READ_BYTES`] needs a slot until its request is admitted to the budget or ends.
//! - If all slots are held, the connection stops reading and waits, and one holder is turned away for it.
//! - The holder to turn away belongs to the peer with most slots. If the waiting peer would then have as many as that
//!   peer, the holder is one of its own. A peer with its first waiting head and no slot always takes one from others.
//! - Of the candidates, incomplete heads are turned away first, the oldest of them first. A head that makes progress is
//!   complete long before it is the oldest.
//! - A freed slot goes to the peer with fewest slots.
//!
//! **Grown buffers**: a limited number of connections may keep a buffer that has grown for their next request. All
//! others drop it and start with a new buffer.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::connection::MAX_BUFFER_BYTES;
use super::connection_state::{Command, ConnectionState, Phase};
use super::peer::Peer;
use crate::config::GatewayConfig;

/// The maximum number of bytes read into a buffer before it grows, and so the largest head that needs no slot. One byte
/// less than hyper's initial buffer, which grows when it is full.
pub(crate) const INITIAL_READ_BYTES: usize = (8 << 10) - 1;

/// Bytes by which a head may exceed its limit and still be read, so that the response is S3's error.
pub(crate) const MAX_HEAD_OVERRUN_BYTES: usize = 4 << 10;

/// Slots may take memory of 1/16 of the request budget, in addition to the budget.
const HEADS_BUDGET_DIVISOR: usize = 16;

/// Buffers kept between requests may take memory of 1/4 of the request budget, in addition to the budget. That suffices
/// for the connections of a busy client.
const GROWN_BUDGET_DIVISOR: usize = 4;

const MIN_SLOTS: usize = 4;

/// The slots and kept buffers of all connections (see the module documentation).
#[derive(Debug)]
pub(crate) struct BufferLimits {
    max_head_bytes: usize,
    slots: usize,
    slot_bytes: usize,
    heads: Mutex<HeadSlots>,
    max_kept_buffers: usize,
    kept_buffers: AtomicUsize,
}

#[derive(Debug, Default)]
struct HeadSlots {
    /// Peers that hold slots or wait for them.
    peers: HashMap<Peer, PeerHeads>,
    /// The number of slots that are held.
    held: usize,
    /// The number of connections that wait for slots.
    waiting: usize,
    /// Tickets of holders that were turned away and still hold their slots.
    turned_away: HashSet<u64>,
    last_ticket: u64,
}

/// The large heads of one peer.
#[derive(Debug, Default)]
struct PeerHeads {
    /// Holders that were not turned away, by ticket: oldest first.
    staying: BTreeMap<u64, Arc<ConnectionState>>,
    /// Oldest first.
    waiting: VecDeque<WaitingHead>,
}

#[derive(Debug)]
struct WaitingHead {
    /// Smaller numbers came earlier.
    order: u64,
    connection: Arc<ConnectionState>,
}

/// A connection's claim on a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    None,
    Waiting,
    /// Held, with its ticket.
    Held(u64),
}

impl Slot {
    pub(crate) const fn to_u64(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Waiting => 1,
            Self::Held(ticket) => ticket + 2,
        }
    }

    pub(crate) const fn from_u64(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Waiting,
            ticket => Self::Held(ticket - 2),
        }
    }
}

impl BufferLimits {
    pub(crate) fn new(config: &GatewayConfig) -> Arc<Self> {
        // A buffer doubles when it is full. TLS buffers the same amount again.
        let copies = if config.tls.is_some() { 4 } else { 2 };
        let max_head_bytes = config.limits.header_bytes + MAX_HEAD_OVERRUN_BYTES;
        let slot_bytes = copies * (max_head_bytes + INITIAL_READ_BYTES);
        Arc::new(Self {
            max_head_bytes,
            slots: (config.memory_bytes / HEADS_BUDGET_DIVISOR / slot_bytes).max(MIN_SLOTS),
            slot_bytes,
            heads: Mutex::default(),
            max_kept_buffers: config.memory_bytes / GROWN_BUDGET_DIVISOR / MAX_BUFFER_BYTES,
            kept_buffers: AtomicUsize::new(0),
        })
    }

    /// The size from which a head is rejected, in bytes.
    pub(crate) const fn max_head_bytes(&self) -> usize {
        self.max_head_bytes
    }

    /// The memory accounted for a large head, in bytes.
    pub(crate) const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Takes a slot for a connection. Returns true if it has one. Otherwise queues the connection: its waker is called
    /// when it gets a slot or is turned away.
    pub(crate) fn take_slot(&self, connection: &Arc<ConnectionState>) -> bool {
        let mut heads = self.heads.lock();
        match connection.slot() {
            Slot::Held(_) => return true,
            Slot::Waiting => return false,
            Slot::None => {}
        }
        if heads.held < self.slots {
            heads.assign(connection.clone());
            return true;
        }
        heads.enqueue(connection.clone());
        heads.turn_away_for(connection.peer);
        false
    }

    /// Releases a connection's slot, or removes it from the queue.
    pub(crate) fn release_slot(&self, connection: &ConnectionState) {
        if connection.slot() == Slot::None {
            return;
        }
        let mut heads = self.heads.lock();
        match connection.slot() {
            Slot::None => return,
            Slot::Waiting => heads.dequeue(connection),
            Slot::Held(ticket) => heads.release(connection, ticket),
        }
        connection.set_slot(Slot::None);
        while heads.held < self.slots {
            let Some(next) = heads.pop_next() else { break };
            heads.assign(next.clone());
            next.waker.wake();
        }
    }

    /// Counts a grown buffer that a connection keeps. Returns false if the limit is reached: the connection must drop
    /// the buffer.
    pub(crate) fn try_keep_buffer(&self) -> bool {
        let increment = |kept: usize| (kept < self.max_kept_buffers).then_some(kept + 1);
        self.kept_buffers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).is_ok()
    }

    /// The number of grown buffers that connections keep.
    #[cfg(test)]
    pub(crate) fn kept_buffers(&self) -> usize {
        self.kept_buffers.load(Ordering::Relaxed)
    }

    /// Removes a kept buffer from the count.
    pub(crate) fn release_kept_buffer(&self) {
        self.kept_buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeadSlots {
    fn assign(&mut self, connection: Arc<ConnectionState>) {
        self.last_ticket += 1;
        self.held += 1;
        connection.set_slot(Slot::Held(self.last_ticket));
        self.peers.entry(connection.peer).or_default().staying.insert(self.last_ticket, connection);
    }

    fn release(&mut self, connection: &ConnectionState, ticket: u64) {
        self.held -= 1;
        if !self.turned_away.remove(&ticket)
            && let Some(heads) = self.peers.get_mut(&connection.peer)
        {
            heads.staying.remove(&ticket);
        }
        self.remove_if_unused(connection.peer);
    }

    fn enqueue(&mut self, connection: Arc<ConnectionState>) {
        self.last_ticket += 1;
        self.waiting += 1;
        connection.set_slot(Slot::Waiting);
        let waiting = &mut self.peers.entry(connection.peer).or_default().waiting;
        waiting.push_back(WaitingHead { order: self.last_ticket, connection });
    }

    fn dequeue(&mut self, connection: &ConnectionState) {
        self.waiting -= 1;
        if let Some(heads) = self.peers.get_mut(&connection.peer) {
            heads.waiting.retain(|waiting| !std::ptr::eq(&*waiting.connection, connection));
        }
        self.remove_if_unused(connection.peer);
    }

    /// Removes the next connection from the queue: the oldest of the peer that holds fewest slots.
    fn pop_next(&mut self) -> Option<Arc<ConnectionState>> {
        let priority = |heads: &PeerHeads| Some((heads.staying.len(), heads.waiting.front()?.order));
        let next = self.peers.values_mut().filter(|heads| !heads.waiting.is_empty());
        let next = next.min_by_key(|heads| priority(heads))?.waiting.pop_front()?;
        self.waiting -= 1;
        Some(next.connection)
    }

    /// Turns away one holder for a connection of `peer` that was just queued. Does nothing if the holders that were
    /// turned away already suffice for all waiting connections.
    fn turn_away_for(&mut self, peer: Peer) {
        if self.turned_away.len() >= self.waiting {
            return;
        }
        let max_staying = self.peers.values().map(|heads| heads.staying.len()).max().unwrap_or(0);
        let Some(own) = self.peers.get(&peer) else { return };
        let (own_staying, own_waiting) = (own.staying.len(), own.waiting.len());
        // A peer without a slot gets its first one even if no peer has more than one: those heads may never complete.
        let takes_from_others =
            max_staying > own_staying + own_waiting || (own_staying == 0 && own_waiting == 1);
        let is_candidate = |(candidate, heads): &(&Peer, &PeerHeads)| {
            if takes_from_others { heads.staying.len() == max_staying } else { **candidate == peer }
        };
        let candidates = self.peers.iter().filter(is_candidate).flat_map(|(_, heads)| &heads.staying);
        let is_complete =
            |connection: &ConnectionState| !matches!(connection.phase(), Phase::Idle | Phase::Head);
        let Some((&ticket, connection)) =
            candidates.min_by_key(|(ticket, connection)| (is_complete(connection), **ticket))
        else {
            return;
        };
        let connection = connection.clone();
        self.turned_away.insert(ticket);
        if let Some(heads) = self.peers.get_mut(&connection.peer) {
            heads.staying.remove(&ticket);
        }
        connection.raise_command(Command::TurnAway);
        self.remove_if_unused(connection.peer);
    }

    fn remove_if_unused(&mut self, peer: Peer) {
        if self.peers.get(&peer).is_some_and(|heads| heads.staying.is_empty() && heads.waiting.is_empty()) {
            self.peers.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Arc<BufferLimits> {
        BufferLimits::new(&GatewayConfig::default())
    }

    fn connection(buffers: &Arc<BufferLimits>) -> Arc<ConnectionState> {
        connection_of_peer(1, buffers)
    }

    /// A connection of the peer with the given number.
    fn connection_of_peer(peer: u8, buffers: &Arc<BufferLimits>) -> Arc<ConnectionState> {
        Arc::new(ConnectionState::new(std::net::IpAddr::from([127, 0, 0, peer]).into(), buffers.clone()))
    }

    /// Connections of a peer that hold all slots.
    fn hold_all(peer: u8, buffers: &Arc<BufferLimits>) -> Vec<Arc<ConnectionState>> {
        let holders: Vec<_> = (0..buffers.slots).map(|_| connection_of_peer(peer, buffers)).collect();
        assert!(holders.iter().all(|holder| buffers.take_slot(holder)));
        holders
    }

    /// Ends the connections that were turned away.
    fn end_turned_away(holders: &[Arc<ConnectionState>], buffers: &BufferLimits) {
        for holder in holders.iter().filter(|holder| holder.command() == Command::TurnAway) {
            buffers.release_slot(holder);
        }
    }

    #[test]
    fn the_oldest_holder_is_turned_away_for_the_next() {
        let buffers = buffers();
        let holders = hold_all(1, &buffers);
        let (next, last) = (connection(&buffers), connection(&buffers));
        assert!(!buffers.take_slot(&next) && !buffers.take_slot(&next));
        assert_eq!((holders[0].command(), holders[1].command()), (Command::TurnAway, Command::None));
        assert!(!buffers.take_slot(&last));
        assert_eq!(holders[1].command(), Command::TurnAway);
        buffers.release_slot(&holders[0]);
        assert!(buffers.take_slot(&next) && !buffers.take_slot(&last));
        // `last` leaves on its own before it gets a slot.
        buffers.release_slot(&last);
        buffers.release_slot(&holders[1]);
        assert!(buffers.take_slot(&connection(&buffers)), "its slot is free");
        assert_eq!((buffers.heads.lock().turned_away.len(), holders[2].command()), (0, Command::None));
    }

    #[test]
    fn a_peer_with_many_heads_evicts_only_its_own() {
        let buffers = buffers();
        let mut greedy = hold_all(1, &buffers);
        let mut open_more = |count| {
            for _ in 0..count {
                greedy.push(connection_of_peer(1, &buffers));
                buffers.take_slot(&greedy[greedy.len() - 1]);
            }
            greedy.clone()
        };
        open_more(3);
        let single = connection_of_peer(2, &buffers);
        assert!(!buffers.take_slot(&single), "all slots are held");
        let opened = open_more(3);
        let left = opened.iter().find(|holder| holder.command() == Command::TurnAway).unwrap();
        buffers.release_slot(left);
        assert!(buffers.take_slot(&single), "it has priority over older waiters of a peer that holds many");
        for _ in 0..5 {
            let opened = open_more(buffers.slots);
            end_turned_away(&opened, &buffers);
        }
        assert_eq!(single.command(), Command::None);
        open_more(0).iter().for_each(|holder| buffers.release_slot(holder));
        buffers.release_slot(&single);
        let heads = buffers.heads.lock();
        assert_eq!((heads.held, heads.waiting, heads.turned_away.len(), heads.peers.len()), (0, 0, 0, 0));
    }

    #[test]
    fn complete_heads_are_turned_away_last() {
        let buffers = buffers();
        let holders = hold_all(1, &buffers);
        let (partial, whole) = (&holders[2], [&holders[0], &holders[1]]);
        holders.iter().for_each(|holder| holder.set_phase(Phase::Admission));
        partial.set_phase(Phase::Head);
        assert!(!buffers.take_slot(&connection_of_peer(2, &buffers)));
        assert_eq!((partial.command(), whole[0].command()), (Command::TurnAway, Command::None));
        assert!(!buffers.take_slot(&connection_of_peer(3, &buffers)));
        assert_eq!((whole[0].command(), whole[1].command()), (Command::TurnAway, Command::None));
    }

    #[test]
    fn a_new_peer_is_let_in_when_each_peer_holds_one_slot() {
        let buffers = buffers();
        let peers = 1..=u8::try_from(buffers.slots).unwrap();
        let holders: Vec<_> = peers.map(|peer| connection_of_peer(peer, &buffers)).collect();
        assert!(holders.iter().all(|holder| buffers.take_slot(holder)));
        let (next, more) = (connection_of_peer(255, &buffers), connection_of_peer(255, &buffers));
        assert!(!buffers.take_slot(&next) && !buffers.take_slot(&more));
        let turned_away = holders.iter().filter(|holder| holder.command() == Command::TurnAway);
        assert_eq!((turned_away.count(), holders[0].command()), (1, Command::TurnAway));
    }

    #[test]
    fn kept_buffers_are_limited_by_the_request_memory() {
        let buffers = buffers();
        let kept = (0..1000).filter(|_| buffers.try_keep_buffer()).count();
        assert_eq!(kept, (128 << 20) / GROWN_BUDGET_DIVISOR / MAX_BUFFER_BYTES);
        buffers.release_kept_buffer();
        assert!(buffers.try_keep_buffer() && !buffers.try_keep_buffer());
    }
}
