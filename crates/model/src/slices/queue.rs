//! The queue of a device: first requests, then the slices of streams in turn, by the shares of their classes.

use std::collections::VecDeque;
use std::num::NonZeroU16;

/// Maximum number of first requests that a device serves in a row while a slice waits, so that streams progress.
pub const MAX_FIRST_IN_A_ROW: u32 = 16;
/// Scale of virtual times: a byte at a share of 1.
const BYTE_COST: u128 = 1 << 20;

/// The place of a request in a [`SliceQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The first request of a stream, or all of a small object. Served in the order of arrival.
    First,
    /// A further slice of the stream with this number. Streams of a group are served in turn, one request each.
    Stream(u32),
}

/// The group of a stream, with its share of the device: groups with slices in the queue transfer bytes in proportion to
/// their shares, however many streams each has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamShare {
    /// The class with this share; `None` for all streams whose class has no share, which are one group.
    pub class: Option<u8>,
    /// The share, relative to those of other groups.
    pub weight: NonZeroU16,
}

impl Default for StreamShare {
    /// The group of streams whose class has no share. It has the share 1.
    fn default() -> Self {
        Self { class: None, weight: NonZeroU16::MIN }
    }
}

/// The queue of one device, which serves requests one after another.
///
/// A first request waits for the request in service, for first requests before it, and for one slice per
/// [`MAX_FIRST_IN_A_ROW`] of these. In a group, a slice waits for one slice of each other stream, and for the first
/// requests in between. Requests of one stream keep their order. Between groups, the queue is start-time fair (Goyal,
/// Vin and Cheng, SIGCOMM 1996): a group that had no slices in the queue gets no compensation for that time.
#[derive(Debug)]
pub struct SliceQueue<T> {
    first: VecDeque<T>,
    first_in_a_row: u32,
    /// Groups that had slices, in the order of their first one. At most one for each class, and one for all others.
    groups: Vec<Group<T>>,
    /// Virtual time: that of the group of the last slice.
    virtual_time: u128,
}

#[derive(Debug)]
struct Group<T> {
    class: Option<u8>,
    /// Virtual time at which its next slice starts: what it was served, divided by its share.
    start: u128,
    /// Streams with requests, the next one at the front.
    streams: VecDeque<Stream<T>>,
}

#[derive(Debug)]
struct Stream<T> {
    number: u32,
    requests: VecDeque<QueuedSlice<T>>,
}

#[derive(Debug)]
struct QueuedSlice<T> {
    bytes: u64,
    /// The share by which it is charged. A stream keeps its share after the class has another one.
    share: StreamShare,
    request: T,
}

impl StreamShare {
    fn cost(self, bytes: u64) -> u128 {
        u128::from(bytes) * BYTE_COST / u128::from(self.weight.get())
    }
}

impl<T> SliceQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: VecDeque::new(), first_in_a_row: 0, groups: Vec::new(), virtual_time: 0 }
    }

    /// Adds a request of the group without a share. Takes time in proportion to the number of streams that wait.
    pub fn push(&mut self, urgency: Urgency, request: T) {
        self.push_shared(urgency, StreamShare::default(), 1, request);
    }

    /// Adds a request of a group for up to `bytes` bytes, which its group is charged by this share when it is served.
    pub fn push_shared(&mut self, urgency: Urgency, share: StreamShare, bytes: u64, request: T) {
        let Urgency::Stream(number) = urgency else { return self.first.push_back(request) };
        let virtual_time = self.virtual_time;
        let group = self.group(share.class);
        if group.streams.is_empty() {
            group.start = group.start.max(virtual_time);
        }
        let slice = QueuedSlice { bytes, share, request };
        match group.streams.iter_mut().find(|stream| stream.number == number) {
            Some(stream) => stream.requests.push_back(slice),
            None => group.streams.push_back(Stream { number, requests: VecDeque::from([slice]) }),
        }
    }

    /// Adds a request that is served before all other first requests.
    pub fn push_front(&mut self, request: T) {
        self.first.push_front(request);
    }

    fn group(&mut self, class: Option<u8>) -> &mut Group<T> {
        let position = self.groups.iter().position(|group| group.class == class);
        let position = position.unwrap_or_else(|| {
            self.groups.push(Group { class, start: self.virtual_time, streams: VecDeque::new() });
            self.groups.len() - 1
        });
        &mut self.groups[position]
    }

    /// Returns bytes to a group that a served slice was charged by this share and did not transfer.
    pub fn refund(&mut self, share: StreamShare, bytes: u64) {
        let group = self.group(share.class);
        group.start = group.start.saturating_sub(share.cost(bytes));
    }

    /// Removes the request to serve next; `None` if the queue is empty.
    pub fn pop(&mut self) -> Option<T> {
        let is_stream_due = self.first_in_a_row >= MAX_FIRST_IN_A_ROW && self.has_slices();
        if !is_stream_due && let Some(request) = self.first.pop_front() {
            self.first_in_a_row = if self.has_slices() { self.first_in_a_row + 1 } else { 0 };
            return Some(request);
        }
        self.first_in_a_row = 0;
        let with_slices = self.groups.iter_mut().filter(|group| !group.streams.is_empty());
        let group = with_slices.min_by_key(|group| group.start)?;
        self.virtual_time = self.virtual_time.max(group.start);
        let mut stream = group.streams.pop_front()?;
        let slice = stream.requests.pop_front()?;
        group.start += slice.share.cost(slice.bytes);
        if !stream.requests.is_empty() {
            group.streams.push_back(stream);
        }
        Some(slice.request)
    }

    /// Removes the requests for which `is_removed` returns true.
    pub fn remove(&mut self, mut is_removed: impl FnMut(&T) -> bool) {
        self.first.retain(|request| !is_removed(request));
        for group in &mut self.groups {
            for stream in &mut group.streams {
                stream.requests.retain(|slice| !is_removed(&slice.request));
            }
            group.streams.retain(|stream| !stream.requests.is_empty());
        }
    }

    fn has_slices(&self) -> bool {
        self.groups.iter().any(|group| !group.streams.is_empty())
    }

    /// All requests, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let streams = self.groups.iter().flat_map(|group| &group.streams);
        let slices = streams.flat_map(|stream| &stream.requests);
        self.first.iter().chain(slices.map(|slice| &slice.request))
    }

    /// Number of first requests.
    #[must_use]
    pub fn first_len(&self) -> usize {
        self.first.len()
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        let streams = self.groups.iter().flat_map(|group| &group.streams);
        self.first.len() + streams.map(|stream| stream.requests.len()).sum::<usize>()
    }

    /// True without requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && !self.has_slices()
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

    /// The share of a class changes while a stream of it runs, whose turns end early.
    #[test]
    fn stream_with_an_earlier_share_does_not_starve_others() {
        let share =
            |class, weight| StreamShare { class: Some(class), weight: NonZeroU16::new(weight).unwrap() };
        let mut queue = SliceQueue::new();
        let mut served = [0_u32; 3];
        for round in 0..300 {
            for (number, share) in [share(25, 1), share(25, 1000), share(26, 1)].into_iter().enumerate() {
                let stream = Urgency::Stream(u32::try_from(number).unwrap());
                if round == 0 {
                    queue.push_shared(stream, share, 1000, number);
                }
            }
            let number = queue.pop().unwrap();
            served[number] += 1;
            let share = [share(25, 1), share(25, 1000), share(26, 1)][number];
            queue.refund(share, 400);
            queue.push_shared(Urgency::Stream(u32::try_from(number).unwrap()), share, 1000, number);
        }
        assert!(served[2] >= 50, "{served:?}");
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

    fn share(class: u8, weight: u16) -> StreamShare {
        StreamShare { class: Some(class), weight: NonZeroU16::new(weight).unwrap() }
    }

    #[test]
    fn share_holds_for_a_class_however_many_streams_others_have() {
        let mut queue = SliceQueue::new();
        let streams: Vec<(u32, StreamShare)> =
            (0..20).map(|number| (number, StreamShare::default())).chain([(20, share(25, 4))]).collect();
        let push = |queue: &mut SliceQueue<usize>, stream: usize| {
            let (number, share) = streams[stream];
            queue.push_shared(Urgency::Stream(number), share, 8 << 20, stream);
        };
        (0..streams.len()).for_each(|stream| push(&mut queue, stream));
        let mut served = vec![0; streams.len()];
        for _ in 0..1_000 {
            let stream = queue.pop().unwrap();
            served[stream] += 1;
            push(&mut queue, stream);
        }
        assert_eq!(served[20], 800);
        assert!(served[..20].iter().all(|count| *count == 10), "{served:?}");
    }

    #[test]
    fn group_that_returns_gets_no_compensation() {
        let mut queue = SliceQueue::new();
        for _ in 0..100 {
            queue.push_shared(Urgency::Stream(1), share(25, 1), 100, 'a');
            assert_eq!(queue.pop(), Some('a'));
        }
        for _ in 0..10 {
            queue.push_shared(Urgency::Stream(1), share(25, 1), 100, 'a');
            queue.push_shared(Urgency::Stream(2), share(26, 1), 100, 'b');
        }
        let order = drain(queue);
        assert!(order[..10].matches('a').count() >= 4, "{order}");
    }

    #[test]
    fn removed_requests_are_not_served() {
        let mut queue = SliceQueue::new();
        for (urgency, request) in
            [(Urgency::First, 'f'), (Urgency::Stream(1), 'a'), (Urgency::Stream(2), 'b')]
        {
            queue.push(urgency, request);
        }
        queue.remove(|request| *request != 'b');
        assert_eq!((queue.len(), drain(queue).as_str()), (1, "b"));
    }

    /// Groups with their weights and numbers of streams.
    fn groups() -> impl Strategy<Value = Vec<(u16, u32)>> {
        prop::collection::vec((1_u16..=10, 1_u32..6), 2..6)
    }

    proptest! {
        /// All groups always have slices of any size. Some end early and are refunded.
        #[test]
        fn shares_hold_within_ten_percent_and_no_stream_starves(
            groups in groups(), sizes in prop::collection::vec((1_u64..=100, 0_u64..=100), 7..50),
        ) {
            let mut queue = SliceQueue::new();
            let mut streams = Vec::new();
            for (class, (weight, count)) in (24_u8..).zip(&groups) {
                (0..*count).for_each(|_| streams.push((streams.len() as u32, share(class, *weight))));
            }
            let mut next = sizes.iter().cycle();
            let mut push = |queue: &mut SliceQueue<_>, (number, share): (u32, StreamShare)| {
                let (bytes, used) = *next.next().unwrap();
                let used = (bytes * used / 100).max(1);
                queue.push_shared(Urgency::Stream(number), share, bytes, ((number, share), bytes, used));
            };
            streams.iter().for_each(|stream| push(&mut queue, *stream));
            let mut transferred = vec![0_u64; groups.len()];
            let mut turns = vec![0_u64; streams.len()];
            for _ in 0..20_000 {
                let (stream, bytes, used) = queue.pop().unwrap();
                queue.refund(stream.1, bytes - used);
                transferred[usize::from(stream.1.class.unwrap() - 24)] += used;
                turns[stream.0 as usize] += 1;
                push(&mut queue, stream);
            }
            let (all, weights) = (transferred.iter().sum::<u64>(), groups.iter().map(|(w, _)| u64::from(*w)).sum::<u64>());
            for (bytes, (weight, _)) in transferred.iter().zip(&groups) {
                let expected = all as f64 * f64::from(*weight) / weights as f64;
                let ratio = *bytes as f64 / expected;
                prop_assert!((0.9..=1.1).contains(&ratio), "{ratio} {groups:?}");
            }
            for (stream, turns) in streams.iter().zip(turns) {
                let (_, count) = groups[usize::from(stream.1.class.unwrap() - 24)];
                prop_assert!(turns > 0 && count > 0, "{stream:?}");
            }
        }
    }
}
