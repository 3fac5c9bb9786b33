//! A workload to tune for: its request sizes, the significant ones among them, and its estimated duration.

use std::collections::BTreeMap;

use super::{OperatingPoint, Surface};

/// Minimum share of the requests or of the bytes for a size to be significant.
const MIN_SHARE: f64 = 0.02;

/// Requests of one direction, each counted at the nearest of a few sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    amounts: BTreeMap<u64, WorkloadAmount>,
}

/// Number and total bytes of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkloadAmount {
    /// Number of requests.
    pub requests: u64,
    /// Total bytes.
    pub bytes: u64,
}

/// A significant size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeShare {
    /// Approximate bytes of a request.
    pub size: u64,
    /// Share of the requests, 0 to 1.
    pub request_share: f64,
    /// Share of the bytes, 0 to 1.
    pub byte_share: f64,
}

impl Workload {
    /// An empty workload, counted at these sizes.
    #[must_use]
    pub fn new(sizes: &[u64]) -> Self {
        Self { amounts: sizes.iter().map(|size| (*size, WorkloadAmount::default())).collect() }
    }

    /// Adds a request.
    pub fn add(&mut self, bytes: u64) {
        let distance = |size: u64| (size.max(1) as f64 / bytes.max(1) as f64).ln().abs();
        let nearest = self.amounts.iter_mut().min_by(|a, b| distance(*a.0).total_cmp(&distance(*b.0)));
        if let Some((_, amount)) = nearest {
            amount.requests += 1;
            amount.bytes = amount.bytes.saturating_add(bytes);
        }
    }

    /// The total over all sizes.
    #[must_use]
    pub fn total(&self) -> WorkloadAmount {
        let add = |sum: WorkloadAmount, amount: &WorkloadAmount| WorkloadAmount {
            requests: sum.requests + amount.requests,
            bytes: sum.bytes.saturating_add(amount.bytes),
        };
        self.amounts.values().fold(WorkloadAmount::default(), add)
    }

    /// The significant sizes, in ascending order; empty for an empty workload.
    #[must_use]
    pub fn significant_sizes(&self) -> Vec<SizeShare> {
        let total = self.total();
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let shares = self.amounts.iter().map(|(size, amount)| SizeShare {
            size: *size,
            request_share: share(amount.requests, total.requests),
            byte_share: share(amount.bytes, total.bytes),
        });
        shares.filter(|share| share.request_share >= MIN_SHARE || share.byte_share >= MIN_SHARE).collect()
    }

    /// Estimated duration in seconds, with the given concurrency per size and one size after another. The estimate
    /// assumes full concurrency from the first request to the last.
    #[must_use]
    pub fn estimate_seconds(&self, surface: &Surface, concurrency: impl Fn(u64) -> usize) -> f64 {
        let seconds = |amount: &WorkloadAmount| {
            let bytes = amount.bytes / amount.requests;
            let max_concurrency = usize::try_from(amount.requests).unwrap_or(usize::MAX);
            let prediction = surface
                .predict(OperatingPoint { bytes, concurrency: concurrency(bytes).clamp(1, max_concurrency) });
            amount.requests as f64 / prediction.request_rate()
        };
        self.amounts.values().filter(|amount| amount.requests > 0).map(seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Prior, Sample};
    use super::*;

    const SIZES: [u64; 4] = [1 << 10, 16 << 10, 256 << 10, 4 << 20];

    #[test]
    fn sizes_with_a_minimum_share_are_returned() {
        let mut workload = Workload::new(&SIZES);
        assert!(workload.significant_sizes().is_empty());
        (0..900).for_each(|_| workload.add(20_000));
        (0..100).for_each(|_| workload.add(5_000_000));
        workload.add(0);
        workload.add(300_000);
        assert_eq!(
            workload.total(),
            WorkloadAmount { requests: 1002, bytes: 900 * 20_000 + 100 * 5_000_000 + 300_000 }
        );
        let shares = workload.significant_sizes();
        assert_eq!(shares.iter().map(|share| share.size).collect::<Vec<_>>(), [16 << 10, 4 << 20]);
        assert!(shares[0].request_share > 0.89 && shares[0].byte_share < 0.04, "{shares:?}");
        assert!(shares[1].request_share < 0.11 && shares[1].byte_share > 0.96, "{shares:?}");
    }

    #[test]
    fn sizes_are_counted_at_the_nearest_one() {
        let of = |bytes| {
            let mut workload = Workload::new(&SIZES);
            workload.add(bytes);
            workload.significant_sizes()[0].size
        };
        assert_eq!(
            [0, 4095, 4097, 60_000, 70_000, u64::MAX].map(of),
            [1, 1, 16, 16, 256, 4096].map(|kib| kib << 10)
        );
    }

    #[test]
    fn total_time_is_the_sum_over_all_sizes() {
        let sample = |bytes, concurrency, latency| Sample {
            point: OperatingPoint { bytes, concurrency },
            latency,
            relative_error: 0.01,
            tail: None,
            from_transfer: false,
        };
        let surface = Surface::new(Prior::default(), vec![sample(16 << 10, 8, 0.1), sample(4 << 20, 8, 1.0)]);
        let mut workload = Workload::new(&SIZES);
        (0..800).for_each(|_| workload.add(16 << 10));
        (0..80).for_each(|_| workload.add(4 << 20));
        let seconds = workload.estimate_seconds(&surface, |_| 8);
        assert!((seconds / 20.0 - 1.0).abs() < 0.1, "{seconds}");
        assert!(Workload::new(&SIZES).estimate_seconds(&surface, |_| 8) == 0.0);
    }
}
