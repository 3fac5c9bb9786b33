//! Figures of result files, for objects and for files: rates, and latencies as complete histograms, so that results of
//! several runs and machines can be merged and compared.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::record::{new_histogram, record_value};

/// A rate with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Mean over the measurement window.
    pub mean: f64,
    /// Half-width of the 95 % confidence interval; `None` if unknown.
    pub ci95_half_width: Option<f64>,
}

/// A latency distribution, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of samples.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
    /// The histogram: pairs of latency, to three significant digits, and count.
    pub histogram_counts: Vec<(u64, u64)>,
}

impl LatencySummary {
    /// Summarizes a histogram.
    #[must_use]
    pub fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let quantile = |fraction| histogram.value_at_quantile(fraction);
        let counts = histogram.iter_recorded();
        Self {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: histogram.max(),
            histogram_counts: counts
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
        }
    }

    /// Returns a figure of the distribution; `None` if there are no samples, where it would wrongly be 0.
    #[must_use]
    pub fn figure_if_any<T>(&self, figure: impl FnOnce(&Self) -> T) -> Option<T> {
        (self.count > 0).then(|| figure(self))
    }

    /// Reconstructs the histogram.
    #[must_use]
    pub fn to_histogram(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        for (value, count) in &self.histogram_counts {
            record_value(&mut all, *value, *count);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_round_trips_through_json_and_histogram() {
        let mut all = new_histogram();
        for value in [1, 7, 7, 1234, 99_999, 3_600_000_000] {
            record_value(&mut all, value, 1);
        }
        let latency = LatencySummary::from_histogram(&all);
        assert_eq!((latency.count, latency.p50), (6, 7));
        assert!(latency.max.abs_diff(3_600_000_000) < 3_600_000, "{}", latency.max);
        let text = serde_json::to_string(&latency).unwrap();
        let read: LatencySummary = serde_json::from_str(&text).unwrap();
        assert_eq!(LatencySummary::from_histogram(&read.to_histogram()), latency);
    }
}
