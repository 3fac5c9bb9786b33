//! The queue of a device: first requests, then the slices of streams in turn.

use std::collections::VecDeque;

/// Maximum number of first requests that a device serves in a row while a slice waits, so that streams progress.
pub const MAX_FIRST_IN_A_ROW: u32 = 16;

/// The place of a request in a [`SliceQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The first request of a stream, or all of a small object. Served in the order of arrival.
    First,
    /// A further slice of the stream with this number. Streams are served in turn, one request each.
    Stream(u32),
}

/// The queue of one device, which serves requests one after another.
///
/// A first request waits for the request in service, for first requests before it, and for one slice per
/// [`MAX_FIRST_IN_A_ROW`] of these. A slice waits for one slice of each other stream, and for the first requests in
/// between. Requests of one stream keep their order.
#[derive(Debug)]
pub struct SliceQueue<T> {
    first: VecDeque<T>,
    first_in_a_row: u32,
    /// Streams with requests, the next one at the front.
    streams: VecDeque<Stream<T>>,
}

#[derive(Debug)]
struct Stream<T> {
    number: u32,
    requests: VecDeque<T>,
}

impl<T> SliceQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: VecDeque::new(), first_in_a_row: 0, streams: VecDeque::new() }
    }

    /// Adds a request. Takes time in proportion to the number of streams that wait.
    pub fn push(&mut self, urgency: Urgency, request: T) {
        match urgency {
            Urgency::First => self.first.push_back(request),
            Urgency::Stream(number) => match self.streams.iter_mut().find(|stream| stream.number == number) {
                Some(stream) => stream.requests.push_back(request),
                None => self.streams.push_back(Stream { number, requests: VecDeque::from([request]) }),
            },
        }
    }

    /// Removes the request to serve next; `None` if the queue is empty.
    pub fn pop(&mut self) -> Option<T> {
        let is_stream_due = self.first_in_a_row >= MAX_FIRST_IN_A_ROW && !self.streams.is_empty();
        if !is_stream_due && let Some(request) = self.first.pop_front() {
            self.first_in_a_row = if self.streams.is_empty() { 0 } else { self.first_in_a_row + 1 };
            return Some(request);
        }
        self.first_in_a_row = 0;
        let mut stream = self.streams.pop_front()?;
        let request = stream.requests.pop_front();
        if !stream.requests.is_empty() {
            self.streams.push_back(stream);
        }
        request
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.streams.iter().map(|stream| stream.requests.len()).sum::<usize>()
    }

    /// True without requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.streams.is_empty()
    }
}

impl<T> Default for SliceQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(mut queue: SliceQueue<char>) -> String {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn first_requests_go_before_slices_and_streams_take_turns() {
        let mut queue = SliceQueue::new();
        for (urgency, request) in [
            (Urgency::Stream(1), 'a'),
            (Urgency::Stream(1), 'b'),
            (Urgency::Stream(2), 'x'),
            (Urgency::First, 'f'),
            (Urgency::Stream(2), 'y'),
            (Urgency::First, 'g'),
        ] {
            queue.push(urgency, request);
        }
        assert_eq!((queue.len(), queue.is_empty()), (6, false));
        assert_eq!(drain(queue), "fgaxby");
    }

    #[test]
    fn slice_is_served_among_endless_first_requests() {
        let mut queue = SliceQueue::new();
        queue.push(Urgency::Stream(1), 's');
        (0..100).for_each(|_| queue.push(Urgency::First, 'f'));
        let order = drain(queue);
        assert_eq!(order.find('s'), Some(MAX_FIRST_IN_A_ROW as usize));
    }

    /// A request in the queue.
    struct QueuedRequest {
        urgency: Urgency,
        number: usize,
        /// Slices served since it was pushed.
        slices: u32,
        /// First requests ahead of it when it was pushed.
        first_ahead: u32,
    }

    /// Requests to push, and `None` for one to serve.
    fn steps() -> impl Strategy<Value = Vec<Option<Urgency>>> {
        let urgency = prop_oneof![Just(Urgency::First), (0_u32..5).prop_map(Urgency::Stream)];
        prop::collection::vec(prop::option::of(urgency), 1..300)
    }

    proptest! {
        #[test]
        fn every_request_is_served_once_and_within_its_bound(steps in steps()) {
            let mut queue = SliceQueue::new();
            let mut waiting: Vec<QueuedRequest> = Vec::new();
            let drain = vec![None; steps.len()];
            for (number, step) in steps.into_iter().chain(drain).enumerate() {
                if let Some(urgency) = step {
                    let first_ahead = waiting.iter().filter(|other| other.urgency == Urgency::First).count() as u32;
                    waiting.push(QueuedRequest { urgency, number, slices: 0, first_ahead });
                    queue.push(urgency, number);
                    continue;
                }
                let Some(served) = queue.pop() else {
                    prop_assert!(waiting.is_empty());
                    continue;
                };
                let place = waiting.iter().position(|other| other.number == served).unwrap();
                let request = waiting.remove(place);
                let overtook = |other: &QueuedRequest| other.urgency == request.urgency && other.number < served;
                prop_assert!(!waiting.iter().any(overtook), "requests of one stream keep their order");
                if request.urgency == Urgency::First {
                    prop_assert!(request.slices <= 1 + request.first_ahead / MAX_FIRST_IN_A_ROW);
                } else {
                    waiting.iter_mut().for_each(|other| other.slices += 1);
                }
            }
            prop_assert!(waiting.is_empty() && queue.is_empty());
        }
    }
}
