//! The discrete-event loop of all simulations: events in the order of their simulated times.
//!
//! Events at the same time come in the order in which they were scheduled, so that a schedule depends on nothing but
//! the simulation. Each operation takes time logarithmic in the number of pending events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The pending events of a simulation, and its clock.
#[derive(Debug)]
pub struct EventLoop<E> {
    now: Duration,
    next_sequence: u64,
    pending: BinaryHeap<Pending<E>>,
}

#[derive(Debug)]
struct Pending<E> {
    at: Duration,
    sequence: u64,
    event: E,
}

impl<E> EventLoop<E> {
    /// A loop without events, at time 0.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Duration::ZERO, next_sequence: 0, pending: BinaryHeap::new() }
    }

    /// Simulated time since the start: that of the latest event that [`Self::next_event`] returned.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules an event. A time in the past counts as now.
    pub fn schedule(&mut self, at: Duration, event: E) {
        let at = at.max(self.now);
        self.pending.push(Pending { at, sequence: self.next_sequence, event });
        self.next_sequence += 1;
    }

    /// Removes the earliest event and advances the clock to it. `None` if nothing is pending.
    pub fn next_event(&mut self) -> Option<E> {
        let Pending { at, event, .. } = self.pending.pop()?;
        self.now = at;
        Some(event)
    }
}

impl<E> Default for EventLoop<E> {
    fn default() -> Self {
        Self::new()
    }
}

/// The earliest event is the greatest: the heap returns the greatest first.
impl<E> Ord for Pending<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Pending<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Pending<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Pending<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_at_one_time_as_scheduled() {
        let mut events = EventLoop::new();
        for (millis, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b'), (5, 'e')] {
            events.schedule(Duration::from_millis(millis), event);
        }
        let order: String = std::iter::from_fn(|| events.next_event()).collect();
        assert_eq!(order, "abcde");
        assert_eq!(events.now(), Duration::from_millis(5));
    }

    #[test]
    fn event_in_the_past_happens_now_and_the_clock_never_runs_back() {
        let mut events = EventLoop::default();
        events.schedule(Duration::from_secs(2), 'a');
        assert_eq!(events.next_event(), Some('a'));
        events.schedule(Duration::from_secs(1), 'b');
        assert_eq!((events.next_event(), events.now()), (Some('b'), Duration::from_secs(2)));
        assert_eq!(events.next_event(), None);
    }
}
