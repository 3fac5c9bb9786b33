//! Removals in flight: the space of removed objects is freed in the background. Their number is bounded, because an SSD
//! that hangs finishes none.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Removals in flight at most: several pages of a listing whose objects are evicted.
const MAX_REMOVALS: usize = 8192;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    state: Mutex<RemovalsState>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct RemovalsState {
    next_number: u64,
    /// The numbers of the removals in flight.
    in_flight: BTreeSet<u64>,
}

/// A removal in flight, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Removal {
    removals: Arc<Removals>,
    number: u64,
}

impl Removals {
    /// Begins a removal; `None` if too many are in flight.
    pub fn begin(self: &Arc<Self>) -> Option<Removal> {
        let mut state = self.state.lock();
        if state.in_flight.len() >= MAX_REMOVALS {
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        state.in_flight.insert(number);
        Some(Removal { removals: self.clone(), number })
    }

    /// Waits until the removals that were begun so far have ended, in whatever order.
    pub async fn finish(&self) {
        let end = self.state.lock().next_number;
        loop {
            let ended = self.ended.notified();
            if self.state.lock().in_flight.first().is_none_or(|first| *first >= end) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.removals.state.lock().in_flight.remove(&self.number);
        self.removals.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn finish_waits_for_all_removals_before_it_and_no_later_one() {
        let removals = Arc::new(Removals::default());
        let (first, second) = (removals.begin(), removals.begin());
        let mut finished = Box::pin(removals.finish());
        assert!(finished.as_mut().now_or_never().is_none());
        let later = removals.begin();
        drop(second);
        assert!(finished.as_mut().now_or_never().is_none());
        drop(first);
        assert!(finished.as_mut().now_or_never().is_some());
        drop(later);
    }

    #[test]
    fn removals_are_bounded() {
        let removals = Arc::new(Removals::default());
        let mut in_flight: Vec<Removal> = (0..MAX_REMOVALS).map(|_| removals.begin().unwrap()).collect();
        assert!(removals.begin().is_none());
        in_flight.pop();
        assert!(removals.begin().is_some());
    }
}
