//! The queue of open-loop requests that are due and that no worker has started. It is bounded, because a stalled store
//! at a high arrival rate would exhaust the generator's memory. On overflow, that request and all later ones are
//! dropped and the load ends: the requested rate was not measured.

use std::collections::VecDeque;
use std::time::Duration;

/// A bounded FIFO of due requests. `T` is the part of a request that is known before it starts.
#[derive(Debug)]
pub(super) struct DueQueue<T> {
    queue: VecDeque<(Duration, T)>,
    capacity: usize,
    dropped: u64,
}

impl<T> DueQueue<T> {
    pub const fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::new(), capacity, dropped: 0 }
    }

    /// Appends a request and returns true if it was queued. After the first overflow, every request is dropped.
    pub fn push(&mut self, scheduled: Duration, request: T) -> bool {
        let is_queued = self.dropped == 0 && self.queue.len() < self.capacity;
        if is_queued {
            self.queue.push_back((scheduled, request));
        } else {
            self.dropped += 1;
        }
        is_queued
    }

    /// Removes the oldest request.
    pub fn pop(&mut self) -> Option<(Duration, T)> {
        self.queue.pop_front()
    }

    /// Removes all queued requests.
    pub fn drain(&mut self) -> VecDeque<(Duration, T)> {
        std::mem::take(&mut self.queue)
    }

    /// The number of queued requests.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The number of dropped requests.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any sequence of pushes and pops, the queue is bounded and FIFO, and each request is queued, started or
        /// dropped.
        #[test]
        fn due_queue_is_bounded_and_accounts_for_every_request(
            capacity in 0_usize..20,
            pushes in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let mut due = DueQueue::new(capacity);
            let (mut released, mut started, mut has_overflowed) = (0_u32, Vec::new(), false);
            for is_push in pushes {
                if is_push {
                    let is_queued = due.push(Duration::from_secs(released.into()), released);
                    has_overflowed |= !is_queued;
                    prop_assert_eq!(due.dropped() > 0, has_overflowed, "an overflow is permanent");
                    released += 1;
                } else {
                    started.extend(due.pop().map(|(_, request)| request));
                }
                prop_assert!(due.len() <= capacity);
                let all = started.len() + due.len() + usize::try_from(due.dropped()).unwrap();
                prop_assert_eq!(all, released as usize);
            }
            started.extend(due.drain().into_iter().map(|(_, request)| request));
            let first: Vec<u32> = (0..u32::try_from(started.len()).unwrap()).collect();
            prop_assert_eq!(started, first, "only the last requests were dropped");
        }
    }
}
