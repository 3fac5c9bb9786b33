//! Statistics of measured rates: the mean and its confidence interval, by the method of batch means.

/// Length of an interval as a multiple of the mean operation time. Operations that span two intervals correlate them.
const MIN_INTERVAL_OPERATIONS: f64 = 4.0;

/// The number of intervals into which `seconds` can be divided: as many as are long enough to be nearly independent for
/// this mean duration of an operation, and no more than [`estimate_rate`] uses.
#[must_use]
pub fn interval_count(seconds: f64, mean_operation_seconds: f64) -> usize {
    ((seconds / (MIN_INTERVAL_OPERATIONS * mean_operation_seconds).max(f64::MIN_POSITIVE)) as usize)
        .min(MAX_BATCHES)
}

/// The mean of a rate, with a 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateEstimate {
    /// The mean.
    pub mean: f64,
    /// Half width of the confidence interval.
    pub ci95_half_width: f64,
}

/// Fewer batches do not give an estimate of their variance.
const MIN_BATCHES: usize = 5;
/// Adjacent intervals of a run are correlated; the means of this few long batches hardly are.
const MAX_BATCHES: usize = 10;

/// The rate from the amounts in equal time intervals, in amount per interval, by the method of batch means; `None`
/// for too few intervals.
#[must_use]
pub fn estimate_rate(amounts: &[f64]) -> Option<RateEstimate> {
    estimate_rate_with_batches(amounts, MAX_BATCHES)
}

/// Like [`estimate_rate`], but with at most `max_batches` batches.
#[must_use]
pub fn estimate_rate_with_batches(amounts: &[f64], max_batches: usize) -> Option<RateEstimate> {
    let batches = amounts.len().min(MAX_BATCHES).min(max_batches);
    if batches < MIN_BATCHES {
        return None;
    }
    let bound = |n: usize| n * amounts.len() / batches;
    let mean = |n: usize| {
        let batch = &amounts[bound(n)..bound(n + 1)];
        batch.iter().sum::<f64>() / batch.len() as f64
    };
    Some(estimate_independent(&(0..batches).map(mean).collect::<Vec<f64>>()))
}

/// The rate from at least two independent values.
#[must_use]
pub fn estimate_independent(values: &[f64]) -> RateEstimate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    RateEstimate { mean, ci95_half_width: student(values.len() - 1) * (variance / count).sqrt() }
}

/// The 0.975 quantile of Student's t-distribution.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        few @ 1..=30 => FIRST[few - 1],
        // Accurate to 0.1 % beyond the table.
        many => 1.960 + 2.4 / many as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, unit_fraction};

    #[test]
    fn rate_interval_contains_the_mean_in_95_percent() {
        for count in [5, 12, 40, 200] {
            let covered = (0..4000_u64).filter(|run| {
                let drawn = |n: usize| {
                    unit_fraction(mix(mix(*run) ^ n as u64)) + unit_fraction(mix(mix(!*run) ^ n as u64))
                };
                let amounts: Vec<f64> = (0..count).map(drawn).collect();
                let RateEstimate { mean, ci95_half_width } = estimate_rate(&amounts).unwrap();
                (mean - 1.0).abs() <= ci95_half_width
            });
            let covered = covered.count() as f64 / 4000.0;
            assert!((0.935..0.965).contains(&covered), "{count}: {covered}");
        }
        assert!(estimate_rate(&[1.0; 4]).is_none());
        assert_eq!([0.0, 0.01, 0.1, 0.3, 1.0].map(|each| interval_count(3.0, each)), [10, 10, 7, 2, 0]);
        assert!((student(31) - 2.0395).abs() < 0.003 && (student(120) - 1.9799).abs() < 0.001);
    }
}
