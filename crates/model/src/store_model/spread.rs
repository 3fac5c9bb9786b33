//! How long something takes, as counts of times that are nearly equal: eight buckets to each doubling, from 1 µs on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::ring::Forget;

/// Shorter times count as this: 1.024 µs.
const LEAST_BITS: u32 = 10;
/// Buckets to each doubling: 2 to the power of this.
const STEP_BITS: u32 = 3;
/// 32 doublings: up to 73 minutes.
const BUCKETS: usize = 256;

fn bucket(time: Duration) -> usize {
    let nanos = nanos(time).max(1 << LEAST_BITS);
    let bits = nanos.ilog2();
    let step = (nanos >> (bits - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    let bucket = ((bits - LEAST_BITS) as usize) << STEP_BITS | step;
    bucket.min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> Duration {
    let step = 1 << STEP_BITS | bucket as u64 & ((1 << STEP_BITS) - 1);
    let bits = LEAST_BITS + (bucket >> STEP_BITS) as u32 - STEP_BITS;
    Duration::from_nanos((step << bits) + (1 << bits) / 2)
}

/// As many as fit: 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Times that are added by many threads: 1 KiB.
#[derive(Debug)]
pub(super) struct Histogram([AtomicU32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl Histogram {
    pub fn add(&self, time: Duration) {
        self.0[bucket(time)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Forget for Histogram {
    fn forget(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Times at one moment. A quantile is within a sixteenth of the exact one, or within 1.1 µs, whichever is more; what is over
/// 73 minutes counts as 71.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl Spread {
    pub(super) fn add(&mut self, times: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&times.0) {
            let count = u64::from(count.load(Ordering::Relaxed));
            *sum += count;
            self.count += count;
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The time that `share` of all, from 0 to 1, do not exceed; `None` where there are none.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count; the rank is held within it"
    )]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut sum = 0;
        let reached = self.counts.iter().position(|count| {
            sum += count;
            sum >= rank
        });
        reached.map(middle)
    }

    /// Half of them took no longer.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        self.quantile(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_of_a_bucket_lies_in_it() {
        for n in 0..BUCKETS {
            assert_eq!(bucket(middle(n)), n);
        }
        assert_eq!(
            [Duration::ZERO, Duration::from_micros(1), Duration::MAX].map(bucket),
            [0, 0, BUCKETS - 1]
        );
    }

    proptest! {
        #[test]
        fn quantiles_are_near_the_exact_ones(
            times in prop::collection::vec((0_u32..42, any::<u64>()), 1..300),
            share in 0.0..=1.0_f64,
        ) {
            let mut exact: Vec<u64> = times.iter().map(|(bits, low)| low & ((1 << bits) - 1)).collect();
            let histogram = Histogram::default();
            exact.iter().for_each(|nanos| histogram.add(Duration::from_nanos(*nanos)));
            let mut spread = Spread::default();
            spread.add(&histogram);
            exact.sort_unstable();
            let rank = ((exact.len() as f64 * share).ceil() as usize).max(1);
            let (exact, found) = (exact[rank - 1], nanos(spread.quantile(share).unwrap()));
            prop_assert!(found.abs_diff(exact) <= (exact / 16).max(1100), "{found} is not {exact}");
        }
    }
}
