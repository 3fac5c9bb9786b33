//! Splits a single object into requests (Hou 2017, section 4.1.3). Advice for the output; transfers use
//! [`Plan`](crate::plan::Plan).
//!
//! Concurrent requests have more throughput than one, but each has a fixed cost. A split also costs round trips: a
//! multipart upload is created and completed, and a download learns the size from its first response. If there are many
//! objects, they are transferred concurrently instead of being split.

use super::{OperatingPoint, Surface};
use crate::store_statistics::Direction;

/// Candidate request sizes, in bytes.
const CANDIDATE_SIZES: [u64; 7] = [64 << 10, 256 << 10, 1 << 20, 2 << 20, 5 << 20, 8 << 20, 16 << 20];
/// Candidate concurrencies.
const CANDIDATE_CONCURRENCIES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Minimum part size of S3, except for the last part.
const MIN_PART: u64 = crate::plan::MIN_PART_BYTES;
/// A split with fewer requests is preferred if it takes at most this multiple of the shortest time.
const EQUIVALENT_TIME_RATIO: f64 = 1.03;

/// An object split into requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Bytes of each request, except for the last.
    pub request_bytes: u64,
    /// Number of requests.
    pub requests: usize,
    /// Concurrent requests.
    pub concurrency: usize,
    /// Total time in seconds, over warm connections.
    pub seconds: f64,
}

impl Surface {
    /// The best split of an object of `size` bytes that is transferred alone.
    #[must_use]
    pub fn split(&self, direction: Direction, size: u64) -> Split {
        let (min_bytes, extra_round_trips) = match direction {
            Direction::Write => (MIN_PART, 2.0),
            Direction::Read => (0, 1.0),
        };
        let unsplit = self.split_time(size, OperatingPoint { bytes: size, concurrency: 1 }, 0.0);
        let sizes = CANDIDATE_SIZES.into_iter().filter(|bytes| *bytes >= min_bytes && *bytes < size);
        let points = sizes.flat_map(|bytes| {
            CANDIDATE_CONCURRENCIES.map(|concurrency| OperatingPoint { bytes, concurrency })
        });
        let points = points.filter(|point| point.concurrency as u64 <= size.div_ceil(point.bytes));
        let mut all: Vec<Split> =
            points.map(|point| self.split_time(size, point, extra_round_trips)).collect();
        all.push(unsplit);
        let min_seconds = all.iter().map(|split| split.seconds).fold(f64::MAX, f64::min);
        let equivalent = all.into_iter().filter(|split| split.seconds <= min_seconds * EQUIVALENT_TIME_RATIO);
        equivalent.min_by_key(|split| (split.requests, split.concurrency)).unwrap_or(unsplit)
    }

    /// An object of `size` bytes, split into the requests of a point. The fixed time of a request stands for the RTT,
    /// of which it is an upper bound.
    fn split_time(&self, size: u64, point: OperatingPoint, extra_round_trips: f64) -> Split {
        let OperatingPoint { bytes, concurrency } = point;
        let requests = usize::try_from(size.div_ceil(bytes.max(1))).unwrap_or(usize::MAX).max(1);
        let waves = requests.div_ceil(concurrency) as f64;
        let latency = self.predict(OperatingPoint { bytes: bytes.max(1), concurrency }).latency;
        let seconds = waves.mul_add(latency, extra_round_trips * self.model().fixed_seconds);
        Split { request_bytes: bytes, requests, concurrency, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{latency_model, sampled};
    use proptest::prelude::*;

    #[test]
    fn large_objects_are_split_at_a_long_rtt() {
        let (far, _) = sampled(&latency_model(0.176, 15e6, 5e3, 120e6), 1);
        for direction in [Direction::Read, Direction::Write] {
            let small = far.split(direction, 256 << 10);
            assert_eq!((small.requests, small.concurrency), (1, 1), "{small:?}");
            let large = far.split(direction, 256 << 20);
            assert!(large.requests > 8 && large.concurrency > 4 && large.seconds < 4.0, "{large:?}");
        }
        let medium = far.split(Direction::Write, 8 << 20);
        assert_eq!(medium.requests, 1, "two more round trips do not pay off: {medium:?}");
    }

    proptest! {
        #[test]
        fn split_covers_the_object_and_is_no_slower_than_whole(
            size in 1_u64..1 << 32,
            writes in any::<bool>(),
        ) {
            let (surface, _) = sampled(&latency_model(0.02, 40e6, 2e3, 200e6), 1);
            let direction = if writes { Direction::Write } else { Direction::Read };
            let split = surface.split(direction, size);
            let whole = surface.predict(OperatingPoint { bytes: size, concurrency: 1 }).latency;
            prop_assert!(split.seconds <= whole * EQUIVALENT_TIME_RATIO);
            prop_assert!(split.request_bytes * split.requests as u64 >= size);
            prop_assert!(split.request_bytes * (split.requests as u64 - 1) < size);
            prop_assert!(split.requests == 1 || !writes || split.request_bytes >= MIN_PART);
        }
    }
}
