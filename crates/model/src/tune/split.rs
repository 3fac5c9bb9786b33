//! How one object is best carried alone: in how many requests of what size (Hou 2017, section 4.1.3).
//!
//! Several at a time carry more than one does, and each costs what is fixed of it. Whoever splits pays round trips besides: an upload
//! of parts is begun and completed, and of a download the first answer says how large it is. With many objects there is nothing to
//! split: they are carried beside each other.

use super::{Cell, Surface};
use crate::store_model::Direction;

/// Sizes of requests that are considered, and how many of them at a time.
const SIZES: [u64; 7] = [64 << 10, 256 << 10, 1 << 20, 2 << 20, 5 << 20, 8 << 20, 16 << 20];
const PARALLEL: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// S3 takes no smaller part, but for the last.
const LEAST_PART: u64 = crate::plan::LEAST_PART;
/// Fewer requests are as good where they take no longer than this.
const SAME: f64 = 1.03;

/// An object as requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Bytes of each, but for the last.
    pub bytes: u64,
    /// How many there are.
    pub requests: usize,
    /// How many of them at a time.
    pub parallel: usize,
    /// How long all of it takes, in seconds, over connections that have been used before.
    pub seconds: f64,
}

impl Surface {
    /// An object of so many bytes that is carried alone.
    #[must_use]
    pub fn split(&self, direction: Direction, size: u64) -> Split {
        let (least, rounds) = match direction {
            Direction::Write => (LEAST_PART, 2.0),
            Direction::Read => (0, 1.0),
        };
        let whole = self.taken(size, (size, 1), 0.0);
        let sizes = SIZES.into_iter().filter(|bytes| *bytes >= least && *bytes < size);
        let several = sizes.flat_map(|bytes| PARALLEL.map(|parallel| (bytes, parallel)));
        let several = several.filter(|(bytes, parallel)| *parallel as u64 <= size.div_ceil(*bytes));
        let mut all: Vec<Split> = several.map(|how| self.taken(size, how, rounds)).collect();
        all.push(whole);
        let best = all.iter().map(|split| split.seconds).fold(f64::MAX, f64::min);
        let near = all.into_iter().filter(|split| split.seconds <= best * SAME);
        near.min_by_key(|split| (split.requests, split.parallel)).unwrap_or(whole)
    }

    fn taken(&self, size: u64, (bytes, parallel): (u64, usize), rounds: f64) -> Split {
        let requests = usize::try_from(size.div_ceil(bytes.max(1))).unwrap_or(usize::MAX).max(1);
        let waves = requests.div_ceil(parallel) as f64;
        let latency = self.infer(Cell { bytes: bytes.max(1), parallel }).latency;
        let seconds = waves.mul_add(latency, rounds * self.law().fixed());
        Split { bytes, requests, parallel, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{law, sampled};
    use proptest::prelude::*;

    #[test]
    fn far_away_large_ones_are_split_and_small_ones_are_not() {
        let (far, _) = sampled(&law(0.176, 15e6, 5e3, 120e6), 1);
        for direction in [Direction::Read, Direction::Write] {
            let small = far.split(direction, 256 << 10);
            assert_eq!((small.requests, small.parallel), (1, 1), "{small:?}");
            let large = far.split(direction, 256 << 20);
            assert!(large.requests > 8 && large.parallel > 4 && large.seconds < 4.0, "{large:?}");
        }
        let medium = far.split(Direction::Write, 8 << 20);
        assert_eq!(medium.requests, 1, "two round trips more are not worth it: {medium:?}");
    }

    proptest! {
        #[test]
        fn a_split_covers_its_object_and_takes_no_longer_than_the_whole(
            size in 1_u64..1 << 32,
            writes in any::<bool>(),
        ) {
            let (surface, _) = sampled(&law(0.02, 40e6, 2e3, 200e6), 1);
            let direction = if writes { Direction::Write } else { Direction::Read };
            let split = surface.split(direction, size);
            let whole = surface.infer(Cell { bytes: size, parallel: 1 }).latency;
            prop_assert!(split.seconds <= whole * SAME);
            prop_assert!(split.bytes * split.requests as u64 >= size);
            prop_assert!(split.bytes * (split.requests as u64 - 1) < size);
            prop_assert!(split.requests == 1 || !writes || split.bytes >= LEAST_PART);
        }
    }
}
