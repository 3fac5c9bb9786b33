//! The plan of transfers: sizes, order and concurrency of the requests that an object is split into. [`Plan::tuned`]
//! derives the concurrency and the range sizes from the store's surfaces; part sizes depend on the object's size alone.

use std::collections::VecDeque;
use std::time::Duration;

use crate::store_statistics::SizeClass;
use crate::tune::{ConcurrencyBySize, OperatingPoint, Surface};

/// S3 allows at most 10,000 parts per upload.
const MAX_PARTS: u64 = 10_000;
/// S3 requires at least 5 MiB per part, except for the last.
pub const MIN_PART_BYTES: u64 = 5 << 20;

/// Maximum bytes of one object in flight, unless the concurrency is tuned. They are transferred again if the command is
/// killed: less than 5 % of an object of 2 GiB.
const MAX_OBJECT_BYTES_IN_FLIGHT: u64 = 100 << 20;
/// Number of parts that an object is split into while they are smaller than [`Plan::chunk_bytes`].
const TARGET_PARTS: u64 = 64;
/// Each range is 1/128 of the bytes left (guided self-scheduling): with 64 concurrent requests, as on a link with a
/// long RTT, each has two ranges left.
const RANGE_DIVISOR: u64 = 128;
/// Maximum size of a range that grows where few connections fill the link. Three of them are in flight.
const MAX_GROWN_RANGE_BYTES: u64 = 32 << 20;
/// Minimum concurrent requests of one object, whatever their size.
const MIN_OBJECT_CONCURRENCY: usize = 2;

/// Candidates for the minimum range size of a tuned store. Completion waits for the last ranges in flight, so the
/// smallest efficient size is taken.
const MIN_RANGE_BYTES_CANDIDATES: [u64; 3] = [256 << 10, 512 << 10, 1 << 20];
/// Minimum duration of a range, as a multiple of the fixed time of a request. This is an upper bound of the RTT, which
/// requesting the next range costs.
const MIN_RANGE_ROUND_TRIPS: f64 = 8.0;
/// Minimum duration of a range in seconds, which applies at a short RTT.
const MIN_RANGE_SECONDS: f64 = 0.1;
/// Minimum duration of a tail range, as a multiple of the fixed time of a request.
const MIN_TAIL_RANGE_ROUND_TRIPS: f64 = 3.0;
/// Minimum duration of a tail range in seconds, which applies at a short RTT.
const MIN_TAIL_RANGE_SECONDS: f64 = 0.02;
/// Maximum concurrency with tail ranges. A higher concurrency means a long RTT: an additional round trip is expensive.
/// Each request then has only about two ranges, and these end together without a tail.
const MAX_TAIL_CONCURRENCY: usize = 32;

/// Minimum number of objects read concurrently.
const MIN_READERS: usize = 8;
/// Maximum number of objects read concurrently, unless the plan has more requests.
pub const MAX_READERS: usize = 64;

/// Request sizes and concurrency of transfers with one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Usual size of an upload part; more if S3's limits (5 MiB minimum, 10,000 parts) require it, less for objects
    /// under 64 such parts. A download of at most this size is a single request.
    pub chunk_bytes: u64,
    /// Maximum bytes of a download range that may arrive in any order. Ranges shrink towards the end.
    pub max_range_bytes: u64,
    /// Minimum bytes of such a range, before the tail.
    pub min_range_bytes: u64,
    /// Minimum bytes of the tail ranges: the last two per concurrent request.
    pub min_tail_range_bytes: u64,
    /// Concurrency of the size class with the highest one, over all objects, at the start; an adaptive pool may go
    /// above it.
    pub initial_concurrency: usize,
    /// Maximum concurrency over all objects, also of an adaptive pool.
    pub max_concurrency: usize,
    /// Concurrency by size class, if a profile applies. A request takes permits in inverse proportion to the
    /// concurrency of its size class, so that all sizes share one pool.
    pub concurrency_by_size: Option<ConcurrencyBySize>,
    /// Bytes of one request of an ordered download. The responses of later ranges wait in memory for the first.
    pub stream_bytes: u64,
    /// Maximum bytes buffered in memory for one object.
    pub max_buffered_bytes: u64,
}

/// Start times of an object's first requests, staggered over one round trip.
///
/// The congestion windows of new connections double every round trip. If all start together, their bursts meet in the
/// queue of a mostly idle link. Senders take that delay for a full link (HyStart, Ha and Rhee 2011) and leave slow
/// start; with a long RTT, their congestion windows then stay small for seconds. Staggered bursts pass one after
/// another.
#[derive(Debug, Clone, Copy)]
pub struct StartStagger {
    start: Duration,
    /// The time over which the first requests are spread.
    duration: Duration,
    /// Number of start times handed out.
    started: u32,
}

/// Longest stagger. A slower response is not explained by the RTT.
const MAX_STAGGER: Duration = Duration::from_millis(300);

impl StartStagger {
    /// A stagger that starts now and lasts one RTT.
    #[must_use]
    pub fn new(now: Duration, rtt: Duration) -> Self {
        Self { start: now, duration: rtt.min(MAX_STAGGER), started: 0 }
    }

    /// The start time of the next of `total` staggered requests. Later requests may start at once.
    pub fn next_start(&mut self, total: usize) -> Duration {
        let total = u32::try_from(total).unwrap_or(u32::MAX).max(1);
        let start = if self.started < total {
            self.start + self.duration / total * self.started
        } else {
            Duration::ZERO
        };
        self.started = self.started.saturating_add(1);
        start
    }
}

impl Default for Plan {
    /// Parts of 8 MiB: large enough that the fixed cost of a request is 1 % of its transfer time, small enough to
    /// resend cheaply. 32 concurrent requests of this size sustain about 5 GB/s at an RTT of 50 ms.
    fn default() -> Self {
        Self {
            chunk_bytes: 8 << 20,
            max_range_bytes: 4 << 20,
            min_range_bytes: 2 << 20,
            min_tail_range_bytes: 2 << 20,
            initial_concurrency: 32,
            max_concurrency: usize::MAX,
            concurrency_by_size: None,
            stream_bytes: 2 << 20,
            max_buffered_bytes: 16 << 20,
        }
    }
}

impl Plan {
    /// This plan with a maximum concurrency.
    #[must_use]
    pub fn with_max_concurrency(self, max_concurrency: usize) -> Self {
        let initial_concurrency = self.initial_concurrency.min(max_concurrency);
        Self { initial_concurrency, max_concurrency, ..self }
    }

    /// This plan adapted to a store with the given surfaces (uploads, downloads or both). The fixed time of a request
    /// stands for the RTT, of which it is an upper bound.
    #[must_use]
    pub fn tuned(self, surfaces: &[Surface]) -> Self {
        let Some(by_size) = ConcurrencyBySize::from_surfaces(surfaces) else { return self };
        // Only downloads have ranges, but upload surfaces count, too: a profile may have no others. Next to download
        // surfaces they can only make ranges longer.
        let min_bytes = |round_trips: f64, min_seconds: f64| {
            let is_long = |surface: &Surface, bytes: u64| {
                let concurrency = by_size.for_class(SizeClass::for_bytes(bytes));
                let seconds = surface.predict(OperatingPoint { bytes, concurrency }).latency;
                seconds >= (surface.model().fixed_seconds * round_trips).max(min_seconds)
            };
            MIN_RANGE_BYTES_CANDIDATES
                .into_iter()
                .find(|bytes| surfaces.iter().all(|surface| is_long(surface, *bytes)))
        };
        let (max_range_bytes, min_range_bytes) = min_bytes(MIN_RANGE_ROUND_TRIPS, MIN_RANGE_SECONDS)
            .map_or((self.max_range_bytes, self.min_range_bytes), |bytes| (2 * bytes, bytes));
        let has_tail = by_size.for_class(SizeClass::for_bytes(min_range_bytes)) <= MAX_TAIL_CONCURRENCY;
        let min_tail_range_bytes =
            min_bytes(MIN_TAIL_RANGE_ROUND_TRIPS, MIN_TAIL_RANGE_SECONDS).filter(|_| has_tail);
        Self {
            initial_concurrency: by_size.highest().min(self.max_concurrency),
            concurrency_by_size: Some(by_size),
            max_range_bytes,
            min_range_bytes,
            min_tail_range_bytes: min_tail_range_bytes.unwrap_or(min_range_bytes).min(min_range_bytes),
            ..self
        }
    }

    /// This plan with a fixed number of bytes per request of a large object.
    #[must_use]
    pub const fn with_chunk_bytes(self, bytes: u64) -> Self {
        Self {
            chunk_bytes: bytes,
            max_range_bytes: bytes,
            min_range_bytes: bytes,
            min_tail_range_bytes: bytes,
            ..self
        }
    }

    /// Concurrency of requests of this size, over all objects.
    #[must_use]
    pub fn concurrency_for(&self, bytes: u64) -> usize {
        self.tuned_or_initial_concurrency(|by_size| by_size.for_class(SizeClass::for_bytes(bytes)))
    }

    /// Like [`concurrency_for`](Self::concurrency_for), while connections are new.
    #[must_use]
    pub fn concurrency_on_new_connections_for(&self, bytes: u64) -> usize {
        self.tuned_or_initial_concurrency(|by_size| {
            by_size.for_class_on_new_connections(SizeClass::for_bytes(bytes))
        })
    }

    /// The tuned concurrency if a profile applies, at most [`Plan::initial_concurrency`]; otherwise that.
    fn tuned_or_initial_concurrency(&self, tuned: impl FnOnce(&ConcurrencyBySize) -> usize) -> usize {
        self.concurrency_by_size
            .as_ref()
            .map_or(self.initial_concurrency, |by_size| tuned(by_size).min(self.initial_concurrency))
            .max(1)
    }

    /// The part size of an upload of `size` bytes; `None` if a single request is better.
    #[must_use]
    pub const fn part_bytes(&self, size: u64) -> Option<u64> {
        // The two extra requests, to create and to complete the upload, pay off from three parts on.
        if size < self.chunk_bytes.saturating_mul(3) {
            return None;
        }
        // A smaller object is split into `TARGET_PARTS` smaller parts, so that enough of them can run concurrently. A
        // size set by a flag is kept.
        let even_share = size.div_ceil(TARGET_PARTS).next_multiple_of(1 << 20);
        let mut bytes = if !self.has_fixed_chunk_size() && even_share < self.chunk_bytes {
            even_share
        } else {
            self.chunk_bytes
        };
        bytes = if bytes < MIN_PART_BYTES { MIN_PART_BYTES } else { bytes };
        while size.div_ceil(bytes) > MAX_PARTS {
            bytes *= 2;
        }
        Some(bytes)
    }

    /// Maximum concurrent requests of one object, of `bytes` bytes each. Without a tuned concurrency, at most
    /// [`MAX_OBJECT_BYTES_IN_FLIGHT`] are in flight, because they are transferred again if the command is killed.
    #[must_use]
    pub fn object_concurrency(&self, bytes: u64) -> usize {
        if self.concurrency_by_size.is_some() {
            return self.concurrency_for(bytes);
        }
        let fits = MAX_OBJECT_BYTES_IN_FLIGHT / bytes.max(1);
        usize::try_from(fits)
            .unwrap_or(usize::MAX)
            .clamp(MIN_OBJECT_CONCURRENCY, self.initial_concurrency.max(MIN_OBJECT_CONCURRENCY))
    }

    /// Maximum concurrent ranges of one object.
    #[must_use]
    pub fn range_concurrency(&self) -> usize {
        // Most ranges of a tuned plan have the minimum size.
        self.object_concurrency(if self.concurrency_by_size.is_some() {
            self.min_range_bytes
        } else {
            self.max_range_bytes
        })
    }

    /// Number of objects of this mean size to read concurrently. Small objects cost little but a round trip,
    /// hence many are read concurrently; a few large ones fill any link (Hou 2017, figure 20).
    #[must_use]
    pub fn reader_concurrency(&self, mean_bytes: u64) -> usize {
        let fits = self.max_buffered_bytes / mean_bytes.max(1);
        usize::try_from(fits)
            .unwrap_or(usize::MAX)
            .clamp(MIN_READERS, self.initial_concurrency.max(MAX_READERS))
    }

    /// Number of ranges of an ordered download to fetch ahead of its reader.
    #[must_use]
    pub fn read_ahead_ranges(&self) -> usize {
        let fits = self.max_buffered_bytes / self.stream_bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, self.initial_concurrency.max(1))
    }

    /// Returns true if all requests of a large object have the same size, set by
    /// [`with_chunk_bytes`](Self::with_chunk_bytes).
    const fn has_fixed_chunk_size(&self) -> bool {
        self.min_tail_range_bytes >= self.max_range_bytes
    }

    /// This plan with ranges of twice the size before the tail, of which fewer are in flight. `None` if the range size
    /// is tuned, set by a flag, or the largest.
    #[must_use]
    pub fn with_larger_ranges(self) -> Option<Self> {
        let bytes = 2 * self.max_range_bytes;
        let is_chosen = self.concurrency_by_size.is_some() || self.has_fixed_chunk_size();
        (!is_chosen && bytes <= MAX_GROWN_RANGE_BYTES).then_some(Self {
            max_range_bytes: bytes,
            min_range_bytes: bytes,
            ..self
        })
    }

    /// The size of the next range if `left` bytes are left. Ranges shrink towards the end, so that no slow connection
    /// holds a large last one (guided self-scheduling, Polychronopoulos and Kuck 1987).
    #[must_use]
    pub fn next_range_bytes(&self, left: u64) -> u64 {
        let (max_bytes, min_bytes) = (self.max_range_bytes.max(1), self.min_range_bytes.max(1));
        let min_tail_bytes = self.min_tail_range_bytes.max(1);
        let wanted = (left / RANGE_DIVISOR).clamp(min_bytes, max_bytes).next_multiple_of(min_bytes);
        let wanted = if min_tail_bytes < min_bytes {
            let tail_ranges = 2 * self.range_concurrency() as u64;
            wanted.min((left / tail_ranges).next_multiple_of(min_tail_bytes).max(min_tail_bytes))
        } else {
            wanted
        };
        wanted.min(max_bytes).min(left)
    }

    /// The ranges in which to fetch an object of `size` bytes from offset `from`, as offset and length, in order.
    pub fn ranges(&self, from: u64, size: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (plan, mut queue) = (*self, RangeQueue::new(from, size, Vec::new()));
        std::iter::from_fn(move || queue.next(&plan))
    }
}

/// The ranges of a download that have not been requested yet. Each is cut by the plan that applies at that time.
#[derive(Debug, Clone)]
pub struct RangeQueue {
    /// Offset of the next range.
    at: u64,
    size: u64,
    /// Spans after `at` that are already stored, as offset and length, in order.
    stored: VecDeque<(u64, u64)>,
}

impl RangeQueue {
    /// The ranges of an object of `size` bytes from offset `from`, around spans that are already stored. A span is
    /// ignored if it begins before `from` or before the end of another, or ends beyond `size`.
    #[must_use]
    pub fn new(from: u64, size: u64, mut stored: Vec<(u64, u64)>) -> Self {
        let mut end = from;
        stored.retain(|(offset, length)| {
            let stored_end = offset.checked_add(*length).filter(|end| *end <= size);
            let next_end = stored_end.filter(|_| *offset >= end && *length > 0);
            end = next_end.unwrap_or(end);
            next_end.is_some()
        });
        Self { at: from, size, stored: stored.into() }
    }

    /// Takes the next range, as offset and length. A stored span is one range. `None` at the end.
    pub fn next(&mut self, plan: &Plan) -> Option<(u64, u64)> {
        let range = match self.stored.front().copied() {
            Some(stored) if stored.0 == self.at => {
                self.stored.pop_front();
                stored
            }
            // A gap before a stored span is not the tail of the object.
            Some((end, _)) => {
                let plan = Plan { min_tail_range_bytes: plan.min_range_bytes, ..*plan };
                (self.at, plan.next_range_bytes(end - self.at))
            }
            None => {
                (self.at, plan.next_range_bytes(self.size.checked_sub(self.at).filter(|left| *left > 0)?))
            }
        };
        self.at += range.1;
        Some(range)
    }
}

/// Splits `size` bytes into pieces of `bytes` each; the last one may be smaller. Yields offset and length, in order.
pub fn split_evenly(size: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let bytes = bytes.max(1);
    (0..size.div_ceil(bytes)).map(move |n| (n * bytes, bytes.min(size - n * bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Prior, Sample};
    use proptest::prelude::*;

    #[test]
    fn small_objects_are_a_single_request() {
        let plan = Plan::default();
        assert_eq!(plan.part_bytes(0), None);
        assert_eq!(plan.part_bytes((24 << 20) - 1), None);
        assert_eq!(plan.part_bytes(24 << 20), Some(5 << 20));
        assert_eq!(plan.part_bytes(448 << 20), Some(7 << 20));
        assert_eq!(plan.part_bytes(1 << 30), Some(8 << 20));
        assert_eq!(plan.part_bytes(100 << 30), Some(16 << 20));
        assert_eq!(plan.with_chunk_bytes(6 << 20).part_bytes(24 << 20), Some(6 << 20));
        assert_eq!(plan.with_chunk_bytes(1).part_bytes(100), Some(5 << 20));
    }

    #[test]
    fn ranges_shrink_towards_the_end() {
        let mebibytes = |plan: Plan, from, size| {
            plan.ranges(from, size).map(|(_, bytes)| bytes >> 20).collect::<Vec<_>>()
        };
        let ranges = mebibytes(Plan::default(), 4 << 20, 256 << 20);
        assert!(ranges.is_sorted_by(|a, b| a >= b), "{ranges:?}");
        assert_eq!((ranges[0], ranges[ranges.len() - 1]), (2, 2));
        assert_eq!(mebibytes(Plan::default(), 4 << 20, 1 << 30)[0], 4);
        assert_eq!(mebibytes(Plan::default().with_chunk_bytes(8 << 20), 8 << 20, 32 << 20), [8, 8, 8]);
    }

    #[test]
    fn tail_ranges_are_a_share_of_the_remaining_bytes() {
        let plan = Plan { initial_concurrency: 6, min_tail_range_bytes: 512 << 10, ..Plan::default() };
        let size = 256 << 20;
        let ranges: Vec<(u64, u64)> = plan.ranges(0, size).collect();
        for &(at, bytes) in &ranges {
            let left = size - at;
            let even = (left / 12).max(512 << 10).min(left);
            assert!(left > 24 << 20 || bytes < even + (512 << 10), "{bytes} of {left}");
            assert!(left < 24 << 20 || bytes >= 2 << 20, "{bytes} of {left}");
        }
        assert_eq!(ranges.last().unwrap().1, 512 << 10);
    }

    /// The plan for a store that sustains 118 MB/s at this RTT in seconds.
    fn tuned(rtt: f64) -> Plan {
        let sample = |(bytes, concurrency): (u64, usize)| {
            let point = OperatingPoint { bytes, concurrency };
            let latency = (rtt + bytes as f64 / 40e6).max(point.bytes_in_flight() / 118e6);
            Sample { point, latency, relative_error: 0.02, tail: None, from_transfer: false }
        };
        let points = [(4 << 10, 1), (256 << 10, 4), (256 << 10, 64), (4 << 20, 4), (4 << 20, 64)];
        let prior = Prior::default().with_rtt(rtt);
        Plan::default().tuned(&[Surface::new(prior, points.map(sample).to_vec())])
    }

    #[test]
    fn tail_ranges_are_short_at_low_concurrency() {
        let region = tuned(0.01);
        assert!(region.range_concurrency() <= 16, "{region:?}");
        assert!(
            (region.max_range_bytes, region.min_range_bytes) == (4 << 20, 2 << 20)
                && region.min_tail_range_bytes <= 512 << 10,
            "{region:?}"
        );
        let ends = region.ranges(0, 256 << 20).map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert_eq!((ends[0], *ends.last().unwrap()), (2 << 20, region.min_tail_range_bytes));
        // A gap between stored spans has no tail ranges.
        let there = vec![(1 << 20, 127 << 20), (129 << 20, 127 << 20)];
        let mut queue = RangeQueue::new(0, 256 << 20, there);
        let gaps: Vec<_> = std::iter::from_fn(|| queue.next(&region)).collect();
        assert_eq!(gaps, [(0, 1 << 20), (1 << 20, 127 << 20), (128 << 20, 1 << 20), (129 << 20, 127 << 20)]);
        // On a long link each slot has two ranges, which end together.
        let far = tuned(0.128);
        assert!(
            far.range_concurrency() > MAX_TAIL_CONCURRENCY && far.min_tail_range_bytes == far.min_range_bytes,
            "{far:?}"
        );
    }

    #[test]
    fn first_requests_start_staggered_over_the_rtt() {
        let at = Duration::from_millis;
        let mut spread = StartStagger::new(at(1000), at(100));
        let turns: Vec<Duration> = (0..6).map(|_| spread.next_start(4)).collect();
        assert_eq!(turns, [at(1000), at(1025), at(1050), at(1075), at(0), at(0)]);
        let mut slow = StartStagger::new(at(0), at(10_000));
        assert!((0..4).all(|_| slow.next_start(4) < MAX_STAGGER));
    }

    proptest! {
        #[test]
        fn parts_are_within_s3_limits(size in 1_u64..5 << 40, chunk in 1_u64..1 << 30) {
            if let Some(bytes) = Plan::default().with_chunk_bytes(chunk).part_bytes(size) {
                prop_assert!(bytes >= MIN_PART_BYTES && size.div_ceil(bytes) <= MAX_PARTS);
            }
        }

        #[test]
        fn ranges_cover_the_object(
            size in 0_u64..10_000_000,
            from in 0_u64..1_000_000,
            max_bytes in 1000_u64..100_000,
            min_bytes in 0_u64..100_000,
            min_tail_range_bytes in 0_u64..100_000,
            initial_concurrency in 1_usize..100,
        ) {
            let plan = Plan {
                max_range_bytes: max_bytes,
                min_range_bytes: min_bytes.min(max_bytes),
                min_tail_range_bytes,
                initial_concurrency,
                ..Plan::default()
            };
            let mut at = from.min(size);
            for (offset, length) in plan.ranges(at, size) {
                prop_assert!(offset == at && length > 0 && length <= max_bytes);
                at += length;
            }
            prop_assert_eq!(at, size);
        }

        #[test]
        fn ranges_around_stored_spans_cover_the_object(
            size in 1_u64..10_000_000,
            from in 0_u64..1_000_000,
            mut there in proptest::collection::vec((0_u64..11_000_000, 0_u64..100_000), 0..50),
        ) {
            let plan = Plan {
                max_range_bytes: 50_000,
                min_range_bytes: 20_000,
                min_tail_range_bytes: 5_000,
                ..Plan::default()
            };
            let from = from.min(size);
            there.sort_unstable();
            let apart = there.iter().scan(from, |end, &(offset, length)| {
                let is_apart = offset >= *end && length > 0 && offset + length <= size;
                *end = if is_apart { offset + length } else { *end };
                Some((is_apart, (offset, length)))
            });
            let apart: Vec<_> = apart.filter(|(is_apart, _)| *is_apart).map(|(_, span)| span).collect();
            let mut at = from;
            let mut found = Vec::new();
            let mut queue = RangeQueue::new(from, size, there);
            while let Some((offset, length)) = queue.next(&plan) {
                prop_assert!(offset == at && length > 0);
                at += length;
                found.push((offset, length));
            }
            prop_assert_eq!(at, size);
            prop_assert!(apart.iter().all(|span| found.contains(span)), "{:?} in {:?}", apart, found);
        }

        #[test]
        fn split_evenly_covers_the_object(size in 0_u64..1_000_000, bytes in 1_u64..100_000) {
            let mut at = 0;
            for (offset, length) in split_evenly(size, bytes) {
                prop_assert!(offset == at && length > 0 && length <= bytes);
                at += length;
            }
            prop_assert_eq!(at, size);
        }
    }
}
