//! The open connections, and the choice of the connection to evict for a new one at the limit. The limit is the
//! configured number of connections, or the number of files that the process may still open.
//!
//! At the limit, a new connection replaces another one if these rules allow it:
//! - An idle connection may be evicted if it is of the newcomer's peer, or if its peer has at least as many connections
//!   as the newcomer's peer (the new connection included).
//! - A connection without a complete request, or whose request waits for the client or for memory, may be evicted only
//!   if its peer has more connections than the newcomer's peer.
//! - A connection whose request the store works on is never evicted.
//!
//! Candidates are ordered by the number of connections of their peer (most first), then by [`EvictionCost`], then by
//! the time since when they wait (earliest first).

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::connection_state::{Command, ConnectionState, IdleAction, Phase, WaitingFor};
use super::peer::Peer;

/// The maximum number of connections that are being evicted. At this number no more are evicted and none are accepted.
const MAX_CONCURRENT_EVICTIONS: usize = 8;

/// The maximum number of eviction candidates kept from one search.
const MAX_CANDIDATES: usize = 64;

/// The minimum time between searches, per open connection. A search visits all connections, and new connections that
/// cannot be accepted must not keep the server busy.
const MIN_SEARCH_INTERVAL_PER_CONNECTION: Duration = Duration::from_micros(2);

/// The open connections of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: Mutex<ConnectionTable>,
    evicting: AtomicUsize,
    /// Notified when an eviction has completed or was withdrawn.
    eviction_ended: Notify,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    all: HashMap<u64, Arc<ConnectionEntry>>,
    by_peer: HashMap<Peer, usize>,
    /// Eviction candidates as of the last search, best first.
    candidates: VecDeque<Arc<ConnectionEntry>>,
    /// Earliest time of the next search.
    next_search: Duration,
}

#[derive(Debug)]
struct ConnectionEntry {
    connection: Arc<ConnectionState>,
    eviction: AtomicU8,
}

/// The eviction state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum EvictionState {
    /// Not being evicted.
    None,
    /// Chosen for eviction and still open. Counted in [`Connections::evicting`].
    Evicting,
    Closed,
}

/// The cost of evicting a connection, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionCost {
    /// It has never had a request.
    Unused,
    /// It waits for its next request.
    Idle,
    /// It has no complete request, or lingers after its response.
    NoRequest,
    /// It waits for its client to send or to read.
    Waiting,
    /// It waits for memory.
    Admission,
}

/// A connection chosen for eviction, and its cost at that time.
struct Candidate {
    entry: Arc<ConnectionEntry>,
    cost: EvictionCost,
}

impl ConnectionEntry {
    fn cost(&self) -> Option<EvictionCost> {
        match (self.connection.waits_for(), self.connection.phase()) {
            (WaitingFor::Request, _) if self.connection.requests() == 0 => Some(EvictionCost::Unused),
            (WaitingFor::Request, _) => Some(EvictionCost::Idle),
            (WaitingFor::Head | WaitingFor::Eof, _) => Some(EvictionCost::NoRequest),
            (WaitingFor::Body | WaitingFor::Write, _) => Some(EvictionCost::Waiting),
            (WaitingFor::Nothing, Phase::Admission) => Some(EvictionCost::Admission),
            (WaitingFor::Nothing, _) => None,
        }
    }

    fn is_evictable(&self) -> bool {
        self.eviction.load(Ordering::Acquire) == EvictionState::None as u8
    }

    /// Returns true if the connection was being evicted.
    fn set_eviction(&self, state: EvictionState) -> bool {
        self.eviction.swap(state as u8, Ordering::AcqRel) == EvictionState::Evicting as u8
    }
}

impl Connections {
    pub(crate) fn insert(&self, id: u64, connection: Arc<ConnectionState>) {
        let mut table = self.table.lock();
        *table.by_peer.entry(connection.peer).or_default() += 1;
        table.all.insert(
            id,
            Arc::new(ConnectionEntry { connection, eviction: AtomicU8::new(EvictionState::None as u8) }),
        );
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
        let Some(entry) = table.all.remove(&id) else { return };
        let peer = entry.connection.peer;
        if let Some(count) = table.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                table.by_peer.remove(&peer);
            }
        }
        // Under the lock of the table: otherwise another task could find the closed connection among the candidates and
        // evict it.
        self.set_eviction(&entry, EvictionState::Closed);
    }

    /// All open connections with their IDs.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<ConnectionState>)> {
        self.table.lock().all.iter().map(|(id, entry)| (*id, entry.connection.clone())).collect()
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().all.len()
    }

    /// The number of connections that are being evicted and are still open.
    pub(crate) fn evicting_count(&self) -> usize {
        self.evicting.load(Ordering::Acquire)
    }

    /// Returns true if the maximum number of connections is being evicted.
    pub(crate) fn is_eviction_limit_reached(&self) -> bool {
        self.evicting_count() >= MAX_CONCURRENT_EVICTIONS
    }

    /// Evicts a connection to make room for a new one of this peer. Returns false if there is no candidate.
    pub(crate) fn evict_for_peer(&self, newcomer: Peer, now: Duration) -> bool {
        self.evict_for(Some(newcomer), now)
    }

    /// Evicts a connection to free a descriptor for other files of the process, or for a connection that could not be
    /// accepted and whose peer is therefore unknown.
    pub(crate) fn evict_any(&self, now: Duration) -> bool {
        self.evict_for(None, now)
    }

    fn evict_for(&self, newcomer: Option<Peer>, now: Duration) -> bool {
        let mut table = self.table.lock();
        let mut candidate = table.pop_candidate(newcomer);
        if candidate.is_none() && now >= table.next_search {
            table.search();
            table.next_search =
                now + MIN_SEARCH_INTERVAL_PER_CONNECTION * u32::try_from(table.all.len()).unwrap_or(u32::MAX);
            candidate = table.pop_candidate(newcomer);
        }
        let Some(Candidate { entry, cost }) = candidate else { return false };
        // Counted first: once it has its command, the connection may withdraw the eviction at any time.
        self.evicting.fetch_add(1, Ordering::AcqRel);
        entry.set_eviction(EvictionState::Evicting);
        match cost {
            EvictionCost::Unused | EvictionCost::Idle => {
                entry.connection.request_idle_action(IdleAction::Close)
            }
            // The connection withdraws if the store has started to work on its request.
            EvictionCost::NoRequest | EvictionCost::Waiting | EvictionCost::Admission => {
                entry.connection.raise_command(Command::TurnAway)
            }
        }
        true
    }

    /// Completes when an eviction has completed or was withdrawn. May also complete without one: check again.
    pub(crate) async fn eviction_ended(&self) {
        self.eviction_ended.notified().await;
    }

    /// Withdraws the eviction of a connection that has received a request.
    pub(crate) fn withdraw_eviction(&self, id: u64) {
        let entry = self.table.lock().all.get(&id).cloned();
        if let Some(entry) = entry {
            entry.connection.clear_idle_action();
            self.set_eviction(&entry, EvictionState::None);
        }
    }

    fn set_eviction(&self, entry: &ConnectionEntry, state: EvictionState) {
        if entry.set_eviction(state) {
            self.evicting.fetch_sub(1, Ordering::AcqRel);
            self.eviction_ended.notify_one();
        }
    }
}

impl ConnectionTable {
    fn count(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    /// Returns true if the rules of the module allow a newcomer to replace a connection.
    fn may_replace(&self, newcomer: Option<Peer>, entry: &ConnectionEntry, cost: EvictionCost) -> bool {
        let peer = entry.connection.peer;
        let open_of_peer = self.count(peer);
        // Includes the new connection. An unknown peer counts as one without other connections.
        let open_for_newcomer = newcomer.map_or(0, |newcomer| self.count(newcomer)) + 1;
        match cost {
            EvictionCost::Unused | EvictionCost::Idle => {
                newcomer == Some(peer) || open_of_peer >= open_for_newcomer
            }
            EvictionCost::NoRequest | EvictionCost::Waiting | EvictionCost::Admission => {
                open_of_peer > open_for_newcomer
            }
        }
    }

    /// Removes and returns the best candidate that a newcomer may replace.
    fn pop_candidate(&mut self, newcomer: Option<Peer>) -> Option<Candidate> {
        let check = |(index, entry): (usize, &Arc<ConnectionEntry>)| {
            let cost = entry.cost().filter(|_| entry.is_evictable())?;
            self.may_replace(newcomer, entry, cost).then_some((index, cost))
        };
        let (index, cost) = self.candidates.iter().enumerate().find_map(check)?;
        Some(Candidate { entry: self.candidates.remove(index)?, cost })
    }

    /// Collects the best eviction candidates.
    fn search(&mut self) {
        let order = |entry: &Arc<ConnectionEntry>| -> Option<(Reverse<usize>, EvictionCost, Duration)> {
            Some((Reverse(self.count(entry.connection.peer)), entry.cost()?, entry.connection.waits_since()))
        };
        let evictable = self.all.values().filter(|entry| entry.is_evictable());
        let mut found: Vec<_> = evictable.filter_map(|entry| Some((order(entry)?, entry.clone()))).collect();
        if found.len() > MAX_CANDIDATES {
            found.select_nth_unstable_by_key(MAX_CANDIDATES - 1, |(order, _)| *order);
            found.truncate(MAX_CANDIDATES);
        }
        found.sort_unstable_by_key(|(order, _)| *order);
        self.candidates = found.into_iter().map(|(_, entry)| entry).collect();
    }
}

#[cfg(test)]
mod tests;
