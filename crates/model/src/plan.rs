//! How an object is carried: in how many requests of what size. Until a store has been sampled, by size alone; then by what its
//! surfaces say ([`Plan::tuned`]).

use std::time::Duration;

use crate::store_model::SizeClass;
use crate::tune::{AtATime, Cell, Surface};

/// The most parts that S3 takes of one object.
const MOST_PARTS: u64 = 10_000;
/// The least that S3 takes as a part, but for the last.
pub const LEAST_PART: u64 = 5 << 20;

/// Bytes of one object that are in flight at a time: under a twentieth of 2 GiB.
const IN_FLIGHT: u64 = 100 << 20;
/// Parts of one object, before they are as large as a chunk.
const PARTS: u64 = 64;
/// A range is so large a part of what is left of its object: there are as many as are fetched at a time far away, and as many again.
const OF_REST: u64 = 128;
/// Requests of one object at a time, however large they are.
const LEAST_PARALLEL: usize = 2;

/// The least that a range may have where a store is known: towards the end of an object everybody waits for those that are under way.
const RANGES: [u64; 3] = [256 << 10, 512 << 10, 1 << 20];
/// A range goes on for so many round trips at the least, and for so long, so that asking for the next one costs little.
const ROUND_TRIPS: f64 = 8.0;
const LEAST_SECONDS: f64 = 0.1;
/// The last ones: there are few of them. More at a time than that are far away, where an object is two ranges for each, which end
/// together, and a round trip is long.
const LAST_ROUND_TRIPS: f64 = 3.0;
const LAST_SECONDS: f64 = 0.02;
const MOST_UNEVEN: usize = 32;

/// Objects to read at a time.
const LEAST_READERS: usize = 8;
/// The most, unless somebody asks for more.
pub const MOST_READERS: usize = 64;

/// The chunk size and the parallelism of transfers with one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of one part of an upload, at the most; what is no larger is fetched in one request.
    pub chunk_bytes: u64,
    /// Bytes of one range of a download that may come in any order: the most, and towards the end the least.
    pub range_bytes: (u64, u64),
    /// The least of the last ranges, which are as many as are fetched at a time, and as many again.
    pub last_bytes: u64,
    /// Requests at a time, over all objects, at the most.
    pub requests: usize,
    /// How many of those may be of one size, where that is known. Of several sizes each has its part.
    pub at_a_time: Option<AtATime>,
    /// Bytes of one request where they must come in order: those ahead of the first wait in memory.
    pub stream_bytes: u64,
    /// Bytes that may wait in memory for one object.
    pub memory_bytes: u64,
}

/// When the first requests of an object begin, so that they do not begin together.
///
/// Windows of new connections double every round trip, all at the same moments where all began at the same. Their bursts then meet in
/// the queue in front of a line that is mostly idle, senders see what they wait there as the sign of a full line (HyStart, Ha and Rhee
/// 2011), and behind a long line windows that stopped opening stay small for seconds. Spread over a round trip they pass one after
/// the other.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    from: Duration,
    over: Duration,
    begun: u32,
}

/// Who answers later does so for other reasons than the way.
const MOST_SPREAD: Duration = Duration::from_millis(300);

impl Spread {
    /// From now on, over what a round trip takes.
    #[must_use]
    pub fn new(now: Duration, round_trip: Duration) -> Self {
        Self { from: now, over: round_trip.min(MOST_SPREAD), begun: 0 }
    }

    /// When the next one begins, of so many that are spread: those behind them may begin at once.
    pub fn next(&mut self, of: usize) -> Duration {
        let of = u32::try_from(of).unwrap_or(u32::MAX).max(1);
        let turn = if self.begun < of { self.from + self.over / of * self.begun } else { Duration::ZERO };
        self.begun = self.begun.saturating_add(1);
        turn
    }
}

impl Default for Plan {
    /// Chunks of 8 MiB: large enough that a request's own cost is a hundredth of carrying it, small enough that sending
    /// one again costs little. 32 requests hide a round trip of 50 ms at some 5 GB/s of such chunks.
    fn default() -> Self {
        Self {
            chunk_bytes: 8 << 20,
            range_bytes: (4 << 20, 2 << 20),
            last_bytes: 2 << 20,
            requests: 32,
            at_a_time: None,
            stream_bytes: 2 << 20,
            memory_bytes: 16 << 20,
        }
    }
}

impl Plan {
    /// The same for a store whose surfaces are known, those of uploads and of downloads.
    #[must_use]
    pub fn tuned(self, surfaces: &[Surface]) -> Self {
        let Some(at_a_time) = AtATime::of(surfaces) else { return self };
        let long = |round_trips: f64, least: f64| {
            let is_long = |surface: &Surface, bytes: u64| {
                let parallel = at_a_time.at(SizeClass::of(bytes));
                let seconds = surface.infer(Cell { bytes, parallel }).latency;
                seconds >= (surface.law().fixed() * round_trips).max(least)
            };
            RANGES.into_iter().find(|bytes| surfaces.iter().all(|surface| is_long(surface, *bytes)))
        };
        let range_bytes =
            long(ROUND_TRIPS, LEAST_SECONDS).map_or(self.range_bytes, |least| (2 * least, least));
        let is_uneven = at_a_time.at(SizeClass::of(range_bytes.1)) <= MOST_UNEVEN;
        let last = long(LAST_ROUND_TRIPS, LAST_SECONDS).filter(|_| is_uneven);
        let last_bytes = last.unwrap_or(range_bytes.1).min(range_bytes.1);
        let requests = at_a_time.most();
        Self { requests, at_a_time: Some(at_a_time), range_bytes, last_bytes, ..self }
    }

    /// The same with so many bytes in each request of a large object.
    #[must_use]
    pub const fn with_chunks(self, bytes: u64) -> Self {
        Self { chunk_bytes: bytes, range_bytes: (bytes, bytes), last_bytes: bytes, ..self }
    }

    /// Requests of so many bytes at a time, over all objects.
    #[must_use]
    pub fn parallel(&self, bytes: u64) -> usize {
        self.at_most(|known| known.at(SizeClass::of(bytes)))
    }

    /// The same as long as connections are new.
    #[must_use]
    pub fn parallel_at_first(&self, bytes: u64) -> usize {
        self.at_most(|known| known.at_first(SizeClass::of(bytes)))
    }

    /// What is known, where anything is, and no more than there may be.
    fn at_most(&self, known: impl FnOnce(&AtATime) -> usize) -> usize {
        self.at_a_time.as_ref().map_or(self.requests, |of| known(of).min(self.requests)).max(1)
    }

    /// The size of the parts that an object of `size` bytes is sent in; `None` where one request is better.
    #[must_use]
    pub const fn part_bytes(&self, size: u64) -> Option<u64> {
        // Two requests more, to begin and to complete, are worth it from three parts on.
        if size < self.chunk_bytes.saturating_mul(3) {
            return None;
        }
        // Of a large one there are enough to go on side by side.
        let share = size.div_ceil(PARTS).next_multiple_of(1 << 20);
        let mut bytes = if self.is_guided() && share < self.chunk_bytes { share } else { self.chunk_bytes };
        bytes = if bytes < LEAST_PART { LEAST_PART } else { bytes };
        while size.div_ceil(bytes) > MOST_PARTS {
            bytes *= 2;
        }
        Some(bytes)
    }

    /// Requests of one object at a time, of so many bytes each: what is in flight when a transfer is killed is sent again, so that
    /// nobody asks for more than is known to be of use.
    #[must_use]
    pub fn of_one_object(&self, bytes: u64) -> usize {
        if self.at_a_time.is_some() {
            return self.parallel(bytes);
        }
        let fits = IN_FLIGHT / bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(LEAST_PARALLEL, self.requests.max(LEAST_PARALLEL))
    }

    /// Ranges of one object at a time.
    #[must_use]
    pub fn ranges_at_a_time(&self) -> usize {
        // Each takes turns by its own size; most are small.
        self.of_one_object(if self.at_a_time.is_some() { self.range_bytes.1 } else { self.range_bytes.0 })
    }

    /// Objects to read at a time where their mean size is this: small ones cost a round trip each and little else, so
    /// that many are asked for together; of large ones a few fill any line (Hou 2017, figure 20).
    #[must_use]
    pub fn readers(&self, mean_bytes: u64) -> usize {
        let fits = self.memory_bytes / mean_bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(LEAST_READERS, self.requests.max(MOST_READERS))
    }

    /// Chunks of a stream that are fetched ahead of the one that is read.
    #[must_use]
    pub fn ahead(&self) -> usize {
        let fits = self.memory_bytes / self.stream_bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, self.requests.max(1))
    }

    /// Whether requests of one object may differ in size.
    const fn is_guided(&self) -> bool {
        self.range_bytes.1 < self.range_bytes.0
    }

    /// The ranges that an object of `size` bytes is fetched in from `from` on, as offset and length, in order: large ones first,
    /// and towards the end smaller ones, so that nobody waits for a large one on a slow connection (guided self-scheduling,
    /// Polychronopoulos and Kuck 1987).
    pub fn ranges(&self, from: u64, size: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (most, least) = (self.range_bytes.0.max(1), self.range_bytes.1.max(1));
        let last = self.last_bytes.max(1);
        let of_last = 2 * self.ranges_at_a_time() as u64;
        let even = move |left: u64| (left / of_last).next_multiple_of(last).max(last);
        let mut at = from;
        std::iter::from_fn(move || {
            let left = size.checked_sub(at).filter(|left| *left > 0)?;
            let wanted = (left / OF_REST).clamp(least, most).next_multiple_of(least);
            let wanted = if last < least { wanted.min(even(left)) } else { wanted };
            let range = (at, wanted.min(most).min(left));
            at += range.1;
            Some(range)
        })
    }

    /// The same around spans that are there, in order, each of which is a range as well. One that begins before the end of another,
    /// or before `from`, is none.
    pub fn ranges_around(
        &self,
        from: u64,
        size: u64,
        there: Vec<(u64, u64)>,
    ) -> impl Iterator<Item = (u64, u64)> + use<> {
        // What is left before a span is no end.
        let (plan, inner) = (*self, Self { last_bytes: self.range_bytes.1, ..*self });
        let ends = |(offset, length): (u64, u64)| offset.checked_add(length).filter(|end| *end <= size);
        let mut at = from;
        let mut kept = Vec::new();
        for span in there {
            if let Some(end) = ends(span).filter(|_| span.0 >= at && span.1 > 0) {
                kept.push(span);
                at = end;
            }
        }
        kept.push((size.max(at), 0));
        kept.into_iter()
            .scan(from, |at, (offset, length)| {
                let before = std::mem::replace(at, offset + length);
                Some((before, offset, length))
            })
            .flat_map(move |(from, offset, length)| {
                let plan = if length > 0 { inner } else { plan };
                plan.ranges(from, offset).chain((length > 0).then_some((offset, length)))
            })
    }

    /// The chunks of an object of `size` bytes, as offset and length, in order.
    pub fn chunks(size: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let bytes = bytes.max(1);
        (0..size.div_ceil(bytes)).map(move |n| (n * bytes, bytes.min(size - n * bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Belief, Sample};
    use proptest::prelude::*;

    #[test]
    fn small_objects_are_one_request() {
        let plan = Plan::default();
        assert_eq!(plan.part_bytes(0), None);
        assert_eq!(plan.part_bytes((24 << 20) - 1), None);
        assert_eq!(plan.part_bytes(24 << 20), Some(5 << 20));
        assert_eq!(plan.part_bytes(448 << 20), Some(7 << 20));
        assert_eq!(plan.part_bytes(1 << 30), Some(8 << 20));
        assert_eq!(plan.part_bytes(100 << 30), Some(16 << 20));
        assert_eq!(plan.with_chunks(6 << 20).part_bytes(24 << 20), Some(6 << 20));
        assert_eq!(plan.with_chunks(1).part_bytes(100), Some(5 << 20));
    }

    #[test]
    fn ranges_become_smaller_towards_the_end() {
        let of = |plan: Plan, from, size| {
            plan.ranges(from, size).map(|(_, bytes)| bytes >> 20).collect::<Vec<_>>()
        };
        let ranges = of(Plan::default(), 4 << 20, 256 << 20);
        assert!(ranges.is_sorted_by(|a, b| a >= b), "{ranges:?}");
        assert_eq!((ranges[0], ranges[ranges.len() - 1]), (2, 2));
        assert_eq!(of(Plan::default(), 4 << 20, 1 << 30)[0], 4);
        assert_eq!(of(Plan::default().with_chunks(8 << 20), 8 << 20, 32 << 20), [8, 8, 8]);
    }

    #[test]
    fn the_last_ranges_are_a_part_of_what_is_left() {
        let plan = Plan { requests: 6, last_bytes: 512 << 10, ..Plan::default() };
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

    /// What is asked of stores that carry 118 MB/s behind so many seconds.
    fn tuned(round_trip: f64) -> Plan {
        let sample = |(bytes, parallel): (u64, usize)| {
            let cell = Cell { bytes, parallel };
            let latency = (round_trip + bytes as f64 / 40e6).max(cell.in_flight() / 118e6);
            Sample { cell, latency, error: 0.02, tail: None, is_seen: false }
        };
        let cells = [(4 << 10, 1), (256 << 10, 4), (256 << 10, 64), (4 << 20, 4), (4 << 20, 64)];
        let belief = Belief::default().with_round_trip(round_trip);
        Plan::default().tuned(&[Surface::new(belief, cells.map(sample).to_vec())])
    }

    #[test]
    fn the_last_ranges_are_short_where_few_are_under_way() {
        let region = tuned(0.01);
        assert!(region.ranges_at_a_time() <= 16, "{region:?}");
        assert!(region.range_bytes == (4 << 20, 2 << 20) && region.last_bytes <= 512 << 10, "{region:?}");
        let ends = region.ranges(0, 256 << 20).map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert_eq!((ends[0], *ends.last().unwrap()), (2 << 20, region.last_bytes));
        // What is fetched between spans that are there is no end.
        let there = vec![(1 << 20, 127 << 20), (129 << 20, 127 << 20)];
        let gaps: Vec<_> = region.ranges_around(0, 256 << 20, there).collect();
        assert_eq!(gaps, [(0, 1 << 20), (1 << 20, 127 << 20), (128 << 20, 1 << 20), (129 << 20, 127 << 20)]);
        // Far away each has two, which end together.
        let far = tuned(0.128);
        assert!(far.ranges_at_a_time() > MOST_UNEVEN && far.last_bytes == far.range_bytes.1, "{far:?}");
    }

    #[test]
    fn the_first_begin_one_after_the_other() {
        let at = Duration::from_millis;
        let mut spread = Spread::new(at(1000), at(100));
        let turns: Vec<Duration> = (0..6).map(|_| spread.next(4)).collect();
        assert_eq!(turns, [at(1000), at(1025), at(1050), at(1075), at(0), at(0)]);
        let mut slow = Spread::new(at(0), at(10_000));
        assert!((0..4).all(|_| slow.next(4) < MOST_SPREAD));
    }

    proptest! {
        #[test]
        fn parts_are_what_s3_takes(size in 1_u64..5 << 40, chunk in 1_u64..1 << 30) {
            if let Some(bytes) = Plan::default().with_chunks(chunk).part_bytes(size) {
                prop_assert!(bytes >= LEAST_PART && size.div_ceil(bytes) <= MOST_PARTS);
            }
        }

        #[test]
        fn ranges_cover_the_object(
            size in 0_u64..10_000_000,
            from in 0_u64..1_000_000,
            most in 1000_u64..100_000,
            least in 0_u64..100_000,
            last_bytes in 0_u64..100_000,
            requests in 1_usize..100,
        ) {
            let range_bytes = (most, least.min(most));
            let plan = Plan { range_bytes, last_bytes, requests, ..Plan::default() };
            let mut at = from.min(size);
            for (offset, length) in plan.ranges(at, size) {
                prop_assert!(offset == at && length > 0 && length <= most);
                at += length;
            }
            prop_assert_eq!(at, size);
        }

        #[test]
        fn ranges_cover_what_is_between_those_that_are_there(
            size in 1_u64..10_000_000,
            from in 0_u64..1_000_000,
            mut there in proptest::collection::vec((0_u64..11_000_000, 0_u64..100_000), 0..50),
        ) {
            let plan = Plan { range_bytes: (50_000, 20_000), last_bytes: 5_000, ..Plan::default() };
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
            for (offset, length) in plan.ranges_around(from, size, there) {
                prop_assert!(offset == at && length > 0);
                at += length;
                found.push((offset, length));
            }
            prop_assert_eq!(at, size);
            prop_assert!(apart.iter().all(|span| found.contains(span)), "{:?} in {:?}", apart, found);
        }

        #[test]
        fn chunks_cover_the_object(size in 0_u64..1_000_000, bytes in 1_u64..100_000) {
            let mut at = 0;
            for (offset, length) in Plan::chunks(size, bytes) {
                prop_assert!(offset == at && length > 0 && length <= bytes);
                at += length;
            }
            prop_assert_eq!(at, size);
        }
    }
}
