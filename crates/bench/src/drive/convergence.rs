//! Decides when the confidence interval of throughput is narrow enough to end a measurement. Checking continuously
//! would stop at the first chance agreement and overstate the confidence. It therefore checks once a second, and three
//! consecutive checks must pass.

use crate::batch_means;

/// 100 ms intervals between two checks.
const CHECK_INTERVALS: usize = 10;
/// Minimum number of 100 ms intervals before the first check.
const MIN_INTERVALS: usize = 20;
/// Consecutive checks that must pass.
const REQUIRED_CHECKS: u32 = 3;

/// The convergence check of one load.
#[derive(Debug)]
pub(super) struct ConvergenceCheck {
    /// Maximum half-width of the confidence interval, as a fraction of the mean rate.
    max_ci_fraction: f64,
    /// Requests per 100 ms.
    series: Vec<f64>,
    passed_checks: u32,
}

impl ConvergenceCheck {
    pub const fn new(max_ci_fraction: f64) -> Self {
        Self { max_ci_fraction, series: Vec::new(), passed_checks: 0 }
    }

    /// Adds the requests of the next 100 ms. Returns true if the rate has converged.
    pub fn add_and_check(&mut self, amount: f64) -> bool {
        self.series.push(amount);
        if self.series.len() < MIN_INTERVALS || !self.series.len().is_multiple_of(CHECK_INTERVALS) {
            return false;
        }
        let rate = batch_means::estimate_rate(&self.series);
        let is_narrow = rate
            .is_some_and(|rate| rate.mean > 0.0 && rate.ci95_half_width <= self.max_ci_fraction * rate.mean);
        self.passed_checks = if is_narrow { self.passed_checks + 1 } else { 0 };
        self.passed_checks >= REQUIRED_CHECKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, unit_fraction};

    /// Returns the fraction of runs whose final rate was within `max_ci_fraction` of the true one, and their mean
    /// length in 100 ms intervals. Consecutive intervals have the given autocorrelation.
    fn coverage(max_ci_fraction: f64, noise: f64, autocorrelation: f64) -> (f64, f64) {
        const RUNS: u64 = 2000;
        let (mut covered, mut intervals) = (0, 0);
        for run in 0..RUNS {
            let mut steady = ConvergenceCheck::new(max_ci_fraction);
            let drawn =
                |n: u64| (0..4).map(|k| unit_fraction(mix(mix(run) ^ mix(n * 4 + k)))).sum::<f64>() - 2.0;
            let mut last = 0.0;
            for n in 0..5000 {
                last = autocorrelation * last + (1.0 - autocorrelation * autocorrelation).sqrt() * drawn(n);
                intervals += 1;
                if steady.add_and_check(1.0 + noise * last) {
                    break;
                }
            }
            let mean = steady.series.iter().sum::<f64>() / steady.series.len() as f64;
            covered += u32::from((mean - 1.0).abs() <= max_ci_fraction);
        }
        (f64::from(covered) / RUNS as f64, intervals as f64 / RUNS as f64)
    }

    #[test]
    fn converged_rate_is_within_its_confidence_interval() {
        for (noise, autocorrelation) in [(0.1, 0.0), (0.3, 0.0), (0.3, 0.5), (0.5, 0.7)] {
            let (covered, intervals) = coverage(0.05, noise, autocorrelation);
            let case = format!("noise {noise}, autocorrelation {autocorrelation}");
            assert!(covered >= 0.94, "{case}: coverage {covered} after {intervals} intervals");
        }
    }

    #[test]
    fn constant_rate_converges_after_four_seconds() {
        let mut steady = ConvergenceCheck::new(0.01);
        let intervals = (1..).find(|_| steady.add_and_check(7.0)).unwrap();
        assert_eq!(intervals, 40);
        let mut idle = ConvergenceCheck::new(0.5);
        assert!((0..1000).all(|_| !idle.add_and_check(0.0)), "a rate of zero never converges");
    }
}
