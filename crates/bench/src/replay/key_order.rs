//! Orders requests when a trace is replayed as fast as possible: requests to one key do not overtake each other, like
//! a fair reader-writer lock per key. Reads between two changes run concurrently; a change waits for all earlier
//! requests, and all later ones wait for it. Listings are not ordered.

use std::collections::{HashMap, VecDeque};

/// The waiting and running requests (`T`) of each object.
#[derive(Debug)]
pub struct KeyOrder<T> {
    keys: HashMap<usize, KeyQueue<T>>,
}

/// The queue of one object.
#[derive(Debug)]
struct KeyQueue<T> {
    /// Reads in flight. A change runs alone.
    reads: usize,
    is_changing: bool,
    waiting: VecDeque<(bool, T)>,
}

impl<T> Default for KeyOrder<T> {
    fn default() -> Self {
        Self { keys: HashMap::new() }
    }
}

impl<T> KeyQueue<T> {
    const fn may_start(&self, changes: bool) -> bool {
        !self.is_changing && (self.reads == 0 || !changes)
    }

    const fn begin(&mut self, changes: bool) {
        if changes {
            self.is_changing = true;
        } else {
            self.reads += 1;
        }
    }
}

impl<T> KeyOrder<T> {
    /// Adds the next request to `object`, which may change it. Returns the request if it may start at once.
    pub fn enqueue(&mut self, object: usize, changes: bool, request: T) -> Option<T> {
        let queue = self.keys.entry(object).or_insert_with(|| KeyQueue {
            reads: 0,
            is_changing: false,
            waiting: VecDeque::new(),
        });
        if queue.waiting.is_empty() && queue.may_start(changes) {
            queue.begin(changes);
            return Some(request);
        }
        queue.waiting.push_back((changes, request));
        None
    }

    /// Records the end of a request to `object`. Returns the waiting requests that may start now.
    pub fn finish(&mut self, object: usize, changed: bool) -> Vec<T> {
        let Some(queue) = self.keys.get_mut(&object) else { return Vec::new() };
        if changed {
            queue.is_changing = false;
        } else {
            queue.reads = queue.reads.saturating_sub(1);
        }
        let mut started = Vec::new();
        while let Some((changes, request)) = queue
            .waiting
            .front()
            .map(|(changes, _)| *changes)
            .filter(|changes| queue.may_start(*changes))
            .and_then(|_| queue.waiting.pop_front())
        {
            queue.begin(changes);
            started.push(request);
        }
        if queue.reads == 0 && !queue.is_changing && queue.waiting.is_empty() {
            self.keys.remove(&object);
        }
        started
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_run_concurrently_and_changes_run_alone() {
        let mut order = KeyOrder::default();
        assert_eq!(order.enqueue(1, false, "a"), Some("a"));
        assert_eq!(order.enqueue(1, false, "b"), Some("b"));
        assert_eq!(order.enqueue(1, true, "c"), None);
        assert_eq!(order.enqueue(1, false, "d"), None, "it does not overtake");
        assert_eq!(order.enqueue(2, true, "other"), Some("other"));
        assert_eq!(order.finish(1, false), [""; 0]);
        assert_eq!(order.finish(1, false), ["c"]);
        assert_eq!(order.enqueue(1, false, "e"), None);
        assert_eq!(order.finish(1, true), ["d", "e"]);
        assert_eq!(
            (order.finish(1, false).len(), order.finish(1, false).len(), order.finish(2, true).len()),
            (0, 0, 0)
        );
        assert!(order.keys.is_empty());
    }

    proptest! {
        /// Every request starts exactly once, in the order of its key.
        #[test]
        fn every_request_starts_once_and_in_order(
            requests in proptest::collection::vec((0_usize..3, any::<bool>()), 0..40),
            picks in proptest::collection::vec(any::<usize>(), 0..80),
        ) {
            let (mut order, mut running, mut dispatched) = (KeyOrder::default(), Vec::new(), Vec::new());
            let (mut coming, mut picks) = (requests.iter().enumerate(), picks.into_iter());
            loop {
                let pick = picks.next().unwrap_or(0);
                if pick % 2 == 1 && !running.is_empty() {
                    let number: usize = running.remove(pick % running.len());
                    let (object, changes) = requests[number];
                    let next = order.finish(object, changes);
                    running.extend(&next);
                    dispatched.extend(next);
                } else if let Some((number, (object, changes))) = coming.next() {
                    let next = order.enqueue(*object, *changes, number);
                    running.extend(next);
                    dispatched.extend(next);
                } else if let Some(number) = running.pop() {
                    let (object, changes) = requests[number];
                    let next = order.finish(object, changes);
                    running.extend(&next);
                    dispatched.extend(next);
                } else {
                    break;
                }
                for number in &running {
                    let (object, changes) = requests[*number];
                    let concurrent = running.iter().filter(|other| requests[**other].0 == object).count();
                    prop_assert!(!changes || concurrent == 1);
                }
            }
            prop_assert_eq!(dispatched.len(), requests.len());
            for object in 0..3 {
                prop_assert!(dispatched.iter().filter(|number| requests[**number].0 == object).is_sorted());
            }
            prop_assert!(order.keys.is_empty());
        }
    }
}
