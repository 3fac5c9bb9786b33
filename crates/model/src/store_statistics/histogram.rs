//! Latency histograms with logarithmic buckets: eight per doubling, from 1 µs up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::ring::Reset;

/// Shorter durations count as 1.024 µs.
const MIN_BITS: u32 = 10;
/// Base-2 logarithm of the number of buckets per doubling.
const STEP_BITS: u32 = 3;
/// 32 doublings: up to 73 minutes.
const BUCKETS: usize = 256;

fn bucket(time: Duration) -> usize {
    let nanos = nanos(time).max(1 << MIN_BITS);
    let bits = nanos.ilog2();
    let step = (nanos >> (bits - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    let bucket = ((bits - MIN_BITS) as usize) << STEP_BITS | step;
    bucket.min(BUCKETS - 1)
}

/// The midpoint of a bucket.
fn midpoint(bucket: usize) -> Duration {
    let step = 1 << STEP_BITS | bucket as u64 & ((1 << STEP_BITS) - 1);
    let bits = MIN_BITS + (bucket >> STEP_BITS) as u32 - STEP_BITS;
    Duration::from_nanos((step << bits) + (1 << bits) / 2)
}

/// Nanoseconds, saturating at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A histogram that many threads update: 1 KiB.
#[derive(Debug)]
pub(super) struct AtomicHistogram([AtomicU32; BUCKETS]);

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl AtomicHistogram {
    pub fn add(&self, time: Duration) {
        self.0[bucket(time)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Reset for AtomicHistogram {
    fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// A snapshot of a histogram. A quantile is within 1/16 of the exact one, or within 1.1 µs, whichever is more.
/// Durations above 73 minutes count as 71 minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl LatencyHistogram {
    pub(super) fn add_live(&mut self, times: &AtomicHistogram) {
        for (sum, count) in self.counts.iter_mut().zip(&times.0) {
            let count = u64::from(count.load(Ordering::Relaxed));
            *sum += count;
            self.count += count;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
    }

    /// Number of samples.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The `share` quantile, from 0 to 1; `None` without samples.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of a count; the rank is clamped to it"
    )]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut sum = 0;
        let reached = self.counts.iter().position(|count| {
            sum += count;
            sum >= rank
        });
        reached.map(midpoint)
    }

    /// The median; `None` without samples.
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
    fn midpoint_of_a_bucket_is_in_the_bucket() {
        for n in 0..BUCKETS {
            assert_eq!(bucket(midpoint(n)), n);
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
            let histogram = AtomicHistogram::default();
            exact.iter().for_each(|nanos| histogram.add(Duration::from_nanos(*nanos)));
            let mut spread = LatencyHistogram::default();
            spread.add_live(&histogram);
            exact.sort_unstable();
            let rank = ((exact.len() as f64 * share).ceil() as usize).max(1);
            let (exact, found) = (exact[rank - 1], nanos(spread.quantile(share).unwrap()));
            prop_assert!(found.abs_diff(exact) <= (exact / 16).max(1100), "{found} is not {exact}");
        }
    }
}
