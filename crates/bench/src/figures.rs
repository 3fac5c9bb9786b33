//! Figures as they are kept, of objects and of files: latencies as whole histograms, so that results of several runs and
//! machines can be added up and compared, and rates.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::record::{histogram, record};

/// A rate, and how far from it the true one may be with 95 % confidence, where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The mean over the time that counted.
    pub mean: f64,
    /// The true one is within so much of it.
    pub within: Option<f64>,
}

/// Latencies, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// So long half of them took at the most.
    pub p50: u64,
    /// Nine of ten.
    pub p90: u64,
    /// 99 of a hundred.
    pub p99: u64,
    /// 999 of a thousand.
    pub p999: u64,
    /// All of them.
    pub max: u64,
    /// The histogram: latencies, to three digits, and how often each came.
    pub counts: Vec<(u64, u64)>,
}

impl Latency {
    /// What a histogram holds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let counts = histogram.iter_recorded();
        Self {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
            counts: counts.map(|each| (each.value_iterated_to(), each.count_at_value())).collect(),
        }
    }

    /// One of its figures; `None` where there is no latency, which is not one of 0.
    #[must_use]
    pub fn known<T>(&self, figure: impl FnOnce(&Self) -> T) -> Option<T> {
        (self.count > 0).then(|| figure(self))
    }

    /// The histogram again.
    #[must_use]
    pub fn histogram(&self) -> Histogram<u64> {
        let mut all = histogram();
        for (value, count) in &self.counts {
            record(&mut all, *value, *count);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_comes_back_as_it_was() {
        let mut all = histogram();
        for value in [1, 7, 7, 1234, 99_999, 3_600_000_000] {
            record(&mut all, value, 1);
        }
        let said = Latency::of(&all);
        assert_eq!((said.count, said.p50), (6, 7));
        assert!(said.max.abs_diff(3_600_000_000) < 3_600_000, "{}", said.max);
        let text = serde_json::to_string(&said).unwrap();
        let read: Latency = serde_json::from_str(&text).unwrap();
        assert_eq!(Latency::of(&read.histogram()), said);
    }
}
