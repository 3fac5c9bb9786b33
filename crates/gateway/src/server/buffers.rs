//! Memory of connections beside the request budget: the buffers that connections read into. Most of them are small.
//! The large ones are counted here.
//!
//! - A request head beyond [`HEAD_FREE_BYTES`] needs a *slot* until its request is admitted to the budget or over.
//!   There are few. Who needs one waits for it without reading on, and the holder whose head is the oldest is turned
//!   away: a head that makes progress is whole long before it is the oldest.
//! - A connection whose buffer has grown may keep it for its next request only with a *permit*. Others get a new
//!   buffer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::connection::BUFFER_BYTES;
use super::watch::{Command, Watch};
use crate::config::GatewayConfig;

/// Bytes of a head that need no slot: one byte less than what the HTTP library reads at first, so that its buffer does
/// not grow.
pub(crate) const HEAD_FREE_BYTES: usize = (8 << 10) - 1;

/// How far over its limit a request's head may be and still be read.
pub(crate) const HEAD_OVERRUN_BYTES: usize = 4 << 10;

/// Large heads may take this part of as much memory as requests have.
const HEADS_PART: usize = 16;

/// Grown buffers may take this part of it between requests: enough for the connections of a busy client.
const GROWN_PART: usize = 4;

const MIN_SLOTS: usize = 4;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Buffers {
    max_head_bytes: usize,
    slots: usize,
    slot_bytes: usize,
    heads: Mutex<Heads>,
    permits: usize,
    grown: AtomicUsize,
}

#[derive(Debug, Default)]
struct Heads {
    /// By ticket, oldest first.
    holders: BTreeMap<u64, Holder>,
    waiting: VecDeque<Arc<Watch>>,
    /// Holders that were turned away and are not gone.
    leaving: usize,
    last_ticket: u64,
}

#[derive(Debug)]
struct Holder {
    watch: Arc<Watch>,
    is_leaving: bool,
}

/// What a connection has of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    None,
    Waiting,
    /// The ticket.
    Held(u64),
}

impl Slot {
    pub(crate) const fn to_number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Waiting => 1,
            Self::Held(ticket) => ticket + 2,
        }
    }

    pub(crate) const fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Waiting,
            ticket => Self::Held(ticket - 2),
        }
    }
}

impl Buffers {
    pub(crate) fn new(config: &GatewayConfig) -> Arc<Self> {
        // A buffer doubles when it is full. TLS keeps as much again.
        let copies = if config.tls.is_some() { 4 } else { 2 };
        let max_head_bytes = config.limits.header_bytes + HEAD_OVERRUN_BYTES;
        let slot_bytes = copies * (max_head_bytes + HEAD_FREE_BYTES);
        Arc::new(Self {
            max_head_bytes,
            slots: (config.memory_bytes / HEADS_PART / slot_bytes).max(MIN_SLOTS),
            slot_bytes,
            heads: Mutex::default(),
            permits: config.memory_bytes / GROWN_PART / BUFFER_BYTES,
            grown: AtomicUsize::new(0),
        })
    }

    /// Bytes from which on a head is refused.
    pub(crate) const fn max_head_bytes(&self) -> usize {
        self.max_head_bytes
    }

    /// Bytes that a large head counts for.
    pub(crate) const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns true if the connection has a slot. Otherwise it waits for one: its waker is called when it has one, or
    /// when it is turned away.
    pub(crate) fn take_slot(&self, watch: &Arc<Watch>) -> bool {
        let mut heads = self.heads.lock();
        match watch.slot() {
            Slot::Held(_) => return true,
            Slot::Waiting => return false,
            Slot::None => {}
        }
        if heads.holders.len() < self.slots {
            heads.give(watch.clone());
            return true;
        }
        watch.set_slot(Slot::Waiting);
        heads.waiting.push_back(watch.clone());
        heads.turn_away_oldest();
        false
    }

    /// Takes back a connection's slot, or its place in the queue.
    pub(crate) fn release_slot(&self, watch: &Watch) {
        if watch.slot() == Slot::None {
            return;
        }
        let mut heads = self.heads.lock();
        match watch.slot() {
            Slot::None => return,
            Slot::Waiting => heads.waiting.retain(|waiting| !std::ptr::eq(&**waiting, watch)),
            Slot::Held(ticket) => {
                if heads.holders.remove(&ticket).is_some_and(|holder| holder.is_leaving) {
                    heads.leaving -= 1;
                }
            }
        }
        watch.set_slot(Slot::None);
        while heads.holders.len() < self.slots {
            let Some(next) = heads.waiting.pop_front() else { break };
            heads.give(next.clone());
            next.waker.wake();
        }
    }

    /// Takes a permit for a grown buffer, if there is one.
    pub(crate) fn take_permit(&self) -> bool {
        let within = |grown: usize| (grown < self.permits).then_some(grown + 1);
        self.grown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Permits that are taken.
    #[cfg(test)]
    pub(crate) fn grown(&self) -> usize {
        self.grown.load(Ordering::Relaxed)
    }

    /// Takes back a permit.
    pub(crate) fn release_permit(&self) {
        self.grown.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Heads {
    fn give(&mut self, watch: Arc<Watch>) {
        self.last_ticket += 1;
        watch.set_slot(Slot::Held(self.last_ticket));
        self.holders.insert(self.last_ticket, Holder { watch, is_leaving: false });
    }

    /// As many holders as there are requests waiting for slots.
    fn turn_away_oldest(&mut self) {
        let needed = self.waiting.len().saturating_sub(self.leaving);
        let staying = self.holders.values_mut().filter(|holder| !holder.is_leaving);
        for holder in staying.take(needed) {
            holder.is_leaving = true;
            self.leaving += 1;
            holder.watch.tell(Command::TurnAway);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Arc<Buffers> {
        Buffers::new(&GatewayConfig::default())
    }

    fn watch(buffers: &Arc<Buffers>) -> Arc<Watch> {
        Arc::new(Watch::new(std::net::IpAddr::from([127, 0, 0, 1]).into(), buffers.clone()))
    }

    #[test]
    fn the_oldest_holder_makes_room_for_the_next() {
        let buffers = buffers();
        let holders: Vec<_> = (0..buffers.slots).map(|_| watch(&buffers)).collect();
        assert!(holders.iter().all(|holder| buffers.take_slot(holder)));
        let (next, last) = (watch(&buffers), watch(&buffers));
        assert!(!buffers.take_slot(&next) && !buffers.take_slot(&next));
        assert_eq!((holders[0].command(), holders[1].command()), (Command::TurnAway, Command::Serve));
        assert!(!buffers.take_slot(&last));
        assert_eq!(holders[1].command(), Command::TurnAway);
        buffers.release_slot(&holders[0]);
        assert!(buffers.take_slot(&next) && !buffers.take_slot(&last));
        // It goes on its own before it is needed.
        buffers.release_slot(&last);
        buffers.release_slot(&holders[1]);
        assert!(buffers.take_slot(&watch(&buffers)), "its slot is free");
        assert_eq!((buffers.heads.lock().leaving, holders[2].command()), (0, Command::Serve));
    }

    #[test]
    fn permits_are_counted() {
        let buffers = buffers();
        let taken = (0..1000).filter(|_| buffers.take_permit()).count();
        assert_eq!(taken, (128 << 20) / GROWN_PART / BUFFER_BYTES);
        buffers.release_permit();
        assert!(buffers.take_permit() && !buffers.take_permit());
    }
}
