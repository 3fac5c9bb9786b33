//! The open connections, and the choice of the one that makes room for a new one at the limit.
//!
//! The limit is the configured number, or the files that the process may still have open. At the limit a new connection
//! takes the place of another one, of the peer that has most:
//!
//! - of one that waits for a request, unless the new one's peer has more connections: rather of one that never had
//!   any, and of the one that has waited longest;
//! - else of one that has sent no whole request, does not move, or waits for memory, if its peer has more than the new
//!   one's. A request that the store works on is never given up.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::peer::Peer;
use super::watch::{Command, Phase, Wait, Watch, WhenIdle};

/// Connections that were told to make room and are not gone. No more are told, and none are accepted, until there
/// are less.
const MAX_LEAVING: usize = 8;

/// Connections found in one search for those that could make room.
const MAX_CANDIDATES: usize = 64;

/// The minimum time between searches, per open connection: a search visits all of them, and new connections that cannot
/// be accepted must not keep the server busy.
const SEARCH_TIME: Duration = Duration::from_micros(2);

/// The open connections of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: Mutex<Table>,
    leaving: AtomicUsize,
    /// Told when one less is leaving.
    left: Notify,
}

#[derive(Debug, Default)]
struct Table {
    all: HashMap<u64, Arc<Entry>>,
    by_peer: HashMap<Peer, usize>,
    /// Those that could make room, best first, as of the last search.
    candidates: VecDeque<Arc<Entry>>,
    next_search: Duration,
}

#[derive(Debug)]
struct Entry {
    watch: Arc<Watch>,
    stay: AtomicU8,
}

/// The state of a connection with regard to making room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stay {
    Yes,
    /// It was told to make room. Counted in `leaving`.
    Leaving,
    Gone,
}

/// The cost of losing a connection, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cost {
    /// It has never sent anything.
    Unused,
    /// It waits for the next request.
    Idle,
    /// There is no whole request, or no more than a courtesy.
    NoRequest,
    /// Its client is waited for.
    Waiting,
    /// It waits for memory.
    Admission,
}

/// A connection that is to make room, and what it was doing when it was chosen.
struct Candidate {
    entry: Arc<Entry>,
    cost: Cost,
}

impl Entry {
    fn cost(&self) -> Option<Cost> {
        match (self.watch.waits_for(), self.watch.phase()) {
            (Wait::Request, _) if self.watch.requests() == 0 => Some(Cost::Unused),
            (Wait::Request, _) => Some(Cost::Idle),
            (Wait::Head | Wait::End, _) => Some(Cost::NoRequest),
            (Wait::Body | Wait::Write, _) => Some(Cost::Waiting),
            (Wait::Nothing, Phase::Admission) => Some(Cost::Admission),
            (Wait::Nothing, _) => None,
        }
    }

    fn stays(&self) -> bool {
        self.stay.load(Ordering::Acquire) == Stay::Yes as u8
    }

    /// Returns true if it was leaving.
    fn set(&self, stay: Stay) -> bool {
        self.stay.swap(stay as u8, Ordering::AcqRel) == Stay::Leaving as u8
    }
}

impl Connections {
    pub(crate) fn insert(&self, id: u64, watch: Arc<Watch>) {
        let mut table = self.table.lock();
        *table.by_peer.entry(watch.peer).or_default() += 1;
        table.all.insert(id, Arc::new(Entry { watch, stay: AtomicU8::new(Stay::Yes as u8) }));
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
        let Some(entry) = table.all.remove(&id) else { return };
        let peer = entry.watch.peer;
        if let Some(count) = table.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                table.by_peer.remove(&peer);
            }
        }
        // Before anybody else finds it among the candidates, where it could be told to leave once more.
        self.set(&entry, Stay::Gone);
    }

    /// All of them, with their numbers.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Watch>)> {
        self.table.lock().all.iter().map(|(id, entry)| (*id, entry.watch.clone())).collect()
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().all.len()
    }

    /// Connections that were told to make room and are not gone.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Acquire)
    }

    /// Returns true if as many make room as may at the same time.
    pub(crate) fn is_making_room(&self) -> bool {
        self.leaving() >= MAX_LEAVING
    }

    /// Has another connection make room for one of this peer. Returns false if there is none.
    pub(crate) fn make_room(&self, newcomer: Peer, now: Duration) -> bool {
        self.make_room_for(Some(newcomer), now)
    }

    /// Has a connection make room for other files of the process, or for a connection that cannot be accepted.
    pub(crate) fn make_room_for_any(&self, now: Duration) -> bool {
        self.make_room_for(None, now)
    }

    fn make_room_for(&self, newcomer: Option<Peer>, now: Duration) -> bool {
        let mut table = self.table.lock();
        let mut found = table.take_candidate(newcomer);
        if found.is_none() && now >= table.next_search {
            table.search();
            table.next_search = now + SEARCH_TIME * u32::try_from(table.all.len()).unwrap_or(u32::MAX);
            found = table.take_candidate(newcomer);
        }
        let Some(Candidate { entry, cost }) = found else { return false };
        // Counted before it can be taken back.
        self.leaving.fetch_add(1, Ordering::AcqRel);
        entry.set(Stay::Leaving);
        match cost {
            Cost::Unused | Cost::Idle => entry.watch.ask(WhenIdle::Leave),
            // Where the store has begun to work on it meanwhile, the connection takes it back.
            Cost::NoRequest | Cost::Waiting | Cost::Admission => entry.watch.tell(Command::TurnAway),
        }
        true
    }

    /// Completes when less connections are leaving than when this was called, or soon after.
    pub(crate) async fn room_made(&self) {
        self.left.notified().await;
    }

    /// A connection that was to make room has got a request: it stays.
    pub(crate) fn withdraw(&self, id: u64) {
        let entry = self.table.lock().all.get(&id).cloned();
        if let Some(entry) = entry {
            entry.watch.stay();
            self.set(&entry, Stay::Yes);
        }
    }

    fn set(&self, entry: &Entry, stay: Stay) {
        if entry.set(stay) {
            self.leaving.fetch_sub(1, Ordering::AcqRel);
            self.left.notify_one();
        }
    }
}

impl Table {
    fn count(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    fn may_replace(&self, newcomer: Option<Peer>, entry: &Entry, cost: Cost) -> bool {
        let peer = entry.watch.peer;
        // With the new one. One that is not known is taken for a peer without connections.
        let (has, wants) = (self.count(peer), newcomer.map_or(0, |newcomer| self.count(newcomer)) + 1);
        match cost {
            Cost::Unused | Cost::Idle => newcomer == Some(peer) || has >= wants,
            Cost::NoRequest | Cost::Waiting | Cost::Admission => has > wants,
        }
    }

    fn take_candidate(&mut self, newcomer: Option<Peer>) -> Option<Candidate> {
        let may = |(at, entry): (usize, &Arc<Entry>)| {
            let cost = entry.cost().filter(|_| entry.stays())?;
            self.may_replace(newcomer, entry, cost).then_some((at, cost))
        };
        let (at, cost) = self.candidates.iter().enumerate().find_map(may)?;
        Some(Candidate { entry: self.candidates.remove(at)?, cost })
    }

    fn search(&mut self) {
        let key = |entry: &Arc<Entry>| -> Option<(Reverse<usize>, Cost, Duration)> {
            Some((Reverse(self.count(entry.watch.peer)), entry.cost()?, entry.watch.waits_since()))
        };
        let staying = self.all.values().filter(|entry| entry.stays());
        let mut found: Vec<_> = staying.filter_map(|entry| Some((key(entry)?, entry.clone()))).collect();
        if found.len() > MAX_CANDIDATES {
            found.select_nth_unstable_by_key(MAX_CANDIDATES - 1, |(key, _)| *key);
            found.truncate(MAX_CANDIDATES);
        }
        found.sort_unstable_by_key(|(key, _)| *key);
        self.candidates = found.into_iter().map(|(_, entry)| entry).collect();
    }
}

#[cfg(test)]
mod tests;
