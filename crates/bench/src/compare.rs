//! Compares two results. A difference is reported if it is statistically significant given the variance between
//! rounds. Welch's t-test is applied to logarithms, since throughput and latency differ by factors. Holm's correction
//! covers all measurements of a comparison: if nothing changed, at most one comparison in 50 reports any difference.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::operation::Operation;
use crate::result::Measurement;

/// Family-wise significance level of a comparison. It is stricter than 5 % because separate runs vary more than the
/// rounds of one run, from which the variance is estimated.
const SIGNIFICANCE_LEVEL: f64 = 0.02;

/// Limit of the degrees of freedom: beyond it, Student's t-distribution is practically normal and its inverse is slow.
const MAX_DEGREES_OF_FREEDOM: f64 = 1000.0;

/// A compared figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparedFigure {
    /// Requests per second.
    Throughput,
    /// Median latency.
    Median,
    /// 99th percentile of latency.
    P99,
    /// Bytes per second, of files.
    Bandwidth,
    /// Postmark transactions per second.
    Transactions,
}

impl ComparedFigure {
    /// The figures of requests.
    pub const ALL: [Self; 3] = [Self::Throughput, Self::Median, Self::P99];

    /// The value for all requests of a measurement, or for those of one operation.
    fn value(self, measurement: &Measurement, operation: Option<Operation>) -> Option<f64> {
        let latency = |quantile: fn(&crate::result::LatencySummary) -> u64| {
            let is_compared = |other| operation.is_none_or(|operation| operation == other);
            let mut matching = measurement
                .operations
                .iter()
                .filter(|(other, figures)| is_compared(**other) && figures.latency_us.count > 0);
            // A mix has no common latency, only one of each operation.
            let (_, figures) = matching.next().filter(|_| matching.next().is_none())?;
            Some(quantile(&figures.latency_us) as f64)
        };
        let value = match self {
            Self::Throughput => operation.is_none().then_some(measurement.operations_per_second.mean),
            Self::Median => latency(|latency| latency.p50),
            Self::P99 => latency(|latency| latency.p99),
            Self::Bandwidth | Self::Transactions => None,
        };
        value.filter(|value| *value > 0.0)
    }

    /// The relative resolution of the values: latencies are stored in whole microseconds and with three significant
    /// digits. Rounding may shift all rounds in the same direction.
    fn resolution(self, a: &[f64], b: &[f64]) -> f64 {
        match self {
            Self::Median | Self::P99 => mean(a).min(mean(b)).exp().recip().max(1e-3),
            Self::Throughput | Self::Bandwidth | Self::Transactions => 0.0,
        }
    }

    /// Returns true if higher values are better.
    #[must_use]
    pub const fn is_higher_better(self) -> bool {
        matches!(self, Self::Throughput | Self::Bandwidth | Self::Transactions)
    }
}

/// The outcome of comparing one figure of one measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// No significant difference.
    Same,
    /// A significant difference.
    Differs,
    /// Too few rounds: each side needs at least two.
    Unknown,
}

/// A figure of a measurement in both results.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Name of the measurement.
    pub name: String,
    /// The compared figure.
    pub figure: ComparedFigure,
    /// Geometric mean over the rounds of the first result.
    pub before: f64,
    /// Geometric mean over the rounds of the second result.
    pub after: f64,
    /// 95 % confidence interval of the ratio `after / before`, if there are enough rounds.
    pub ratio_interval: Option<(f64, f64)>,
    /// Minimum detectable effect: the factor of change that this comparison detects with a power of 50 %.
    pub detectable_effect: Option<f64>,
    /// The outcome.
    pub verdict: Verdict,
}

/// Compares all measurements that both results contain, in the order of the first.
#[must_use]
pub fn compare(before: &[Measurement], after: &[Measurement]) -> Vec<Comparison> {
    // The name of a measurement, and the operation if only its requests are compared.
    let mut parts: Vec<(String, Option<Operation>)> = Vec::new();
    for measurement in before {
        for operation in compared_operations(measurement) {
            let part = (measurement.name(), operation);
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    let values = |measurements: &[Measurement],
                  (name, operation): &(String, Option<Operation>),
                  figure: ComparedFigure|
     -> Vec<f64> {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for measurement in
            measurements.iter().filter(|measurement| !measurement.is_partial() && measurement.name() == *name)
        {
            rounds
                .entry(measurement.round)
                .or_default()
                .extend(figure.value(measurement, *operation).map(f64::ln));
        }
        // Values of one round are not independent. A load that runs with itself has two measurements and counts once.
        rounds.values().filter(|values| !values.is_empty()).map(|values| mean(values)).collect()
    };
    // Stopped measurements do not count as failed.
    let has_failed = |measurements: &[Measurement], name: &str| {
        let is_lost = |measurement: &&Measurement| {
            measurement.is_void() || (!measurement.is_partial() && measurement.has_no_success())
        };
        measurements
            .iter()
            .filter(|measurement| measurement.name() == name)
            .any(|measurement| is_lost(&measurement))
    };
    let mut samples = Vec::new();
    for part in parts {
        for figure in ComparedFigure::ALL {
            let (mut log_before, mut log_after) =
                (values(before, &part, figure), values(after, &part, figure));
            if has_failed(before, &part.0) || has_failed(after, &part.0) {
                // Some rounds failed or are void, so the remaining ones are not a fair sample: no significance test.
                (log_before, log_after) = (collapse_to_mean(&log_before), collapse_to_mean(&log_after));
            }
            if !log_before.is_empty() && !log_after.is_empty() {
                let name = match part.1 {
                    Some(operation) => format!("{operation} in {}", part.0),
                    None => part.0.clone(),
                };
                samples.push(SamplePair { name, figure, log_before, log_after });
            }
        }
    }
    compare_samples(samples)
}

/// The values of a figure in both results.
pub(crate) struct SamplePair {
    /// Name of the measurement.
    pub name: String,
    pub figure: ComparedFigure,
    /// Logarithms of the values of the first result, at least one.
    pub log_before: Vec<f64>,
    /// Logarithms of the values of the second result, at least one.
    pub log_after: Vec<f64>,
}

/// Tests all samples with a common significance level.
pub(crate) fn compare_samples(samples: Vec<SamplePair>) -> Vec<Comparison> {
    let test = |SamplePair { figure, log_before, log_after, .. }: &SamplePair| {
        WelchTest::new(log_before, log_after, figure.resolution(log_before, log_after))
    };
    let tests: Vec<Option<WelchTest>> = samples.iter().map(test).collect();
    let differs = holm(&tests);
    let count = tests.iter().flatten().count();
    (samples.into_iter().zip(tests).zip(differs))
        .map(|((sample, test), differs)| Comparison {
            name: sample.name,
            figure: sample.figure,
            before: mean(&sample.log_before).exp(),
            after: mean(&sample.log_after).exp(),
            ratio_interval: test.map(|test| test.interval()),
            detectable_effect: test
                .map(|test| test.critical_difference(SIGNIFICANCE_LEVEL / count as f64).exp()),
            verdict: match (test, differs) {
                (None, _) => Verdict::Unknown,
                (Some(_), true) => Verdict::Differs,
                (Some(_), false) => Verdict::Same,
            },
        })
        .collect()
}

/// The compared parts of a measurement: all requests (`None`) and, for a mix, those of each operation, since their
/// latencies are unrelated. With scheduled requests, throughput is given, so that only the latencies of the operations
/// can differ.
fn compared_operations(measurement: &Measurement) -> Vec<Option<Operation>> {
    let operations = measurement.operations.keys().copied().map(Some);
    let is_mix = measurement.operations.len() > 1;
    std::iter::once(None).chain(operations.filter(|_| is_mix)).collect()
}

/// Reduces values to their mean, as a single value without a known variance.
pub(crate) fn collapse_to_mean(values: &[f64]) -> Vec<f64> {
    values.first().map(|_| mean(values)).into_iter().collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Welch's t-test of two means.
#[derive(Debug, Clone, Copy)]
struct WelchTest {
    difference: f64,
    standard_error: f64,
    degrees_of_freedom: f64,
}

impl WelchTest {
    /// Tests the values of two sides; `None` if either has fewer than two. `step` is the resolution of the values:
    /// the means may be off by one step, however many values there are.
    fn new(a: &[f64], b: &[f64], step: f64) -> Option<Self> {
        if a.len() < 2 || b.len() < 2 {
            return None;
        }
        let part = |values: &[f64]| {
            let mean = mean(values);
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            // Equal values were rounded, so their variance is not 0.
            let variance = (squares / (values.len() - 1) as f64).max(1e-6);
            (variance / values.len() as f64, (values.len() - 1) as f64)
        };
        let ((a_part, a_freedom), (b_part, b_freedom)) = (part(a), part(b));
        let sum = a_part + b_part + step.powi(2);
        let freedom = sum.powi(2) / (a_part.powi(2) / a_freedom + b_part.powi(2) / b_freedom);
        let degrees_of_freedom = freedom.min(MAX_DEGREES_OF_FREEDOM);
        Some(Self { difference: mean(b) - mean(a), standard_error: sum.sqrt(), degrees_of_freedom })
    }

    fn student(&self) -> Option<StudentsT> {
        StudentsT::new(0.0, 1.0, self.degrees_of_freedom).ok()
    }

    /// The two-sided p-value.
    fn p_value(&self) -> f64 {
        let statistic = (self.difference / self.standard_error).abs();
        self.student().map_or(1.0, |student| 2.0 * student.sf(statistic))
    }

    /// The smallest difference that is significant at the given level.
    fn critical_difference(&self, level: f64) -> f64 {
        let quantile = self.student().map_or(f64::INFINITY, |student| student.inverse_cdf(1.0 - level / 2.0));
        quantile * self.standard_error
    }

    /// The 95 % confidence interval of the ratio, without correction for multiple tests.
    fn interval(&self) -> (f64, f64) {
        let half_width = self.critical_difference(0.05);
        ((self.difference - half_width).exp(), (self.difference + half_width).exp())
    }
}

/// Determines which tests are significant, with a family-wise error rate of at most [`SIGNIFICANCE_LEVEL`] (Holm 1979).
fn holm(tests: &[Option<WelchTest>]) -> Vec<bool> {
    let mut p_values: Vec<(usize, f64)> =
        tests.iter().enumerate().filter_map(|(n, test)| Some((n, test.as_ref()?.p_value()))).collect();
    p_values.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut differs = vec![false; tests.len()];
    let count = p_values.len();
    for (rank, (n, p_value)) in p_values.into_iter().enumerate() {
        if p_value > SIGNIFICANCE_LEVEL / (count - rank) as f64 {
            break;
        }
        differs[n] = true;
    }
    differs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, unit_fraction};

    /// An approximately normal value: the sum of twelve uniform ones.
    fn normal(seed: u64) -> f64 {
        (0..12).map(|n| unit_fraction(mix(mix(seed) ^ n))).sum::<f64>() - 6.0
    }

    fn values(seed: u64, count: u64, factor: f64, noise: f64) -> Vec<f64> {
        (0..count).map(|n| f64::ln(1000.0 * factor) + noise * normal(mix(seed) ^ n)).collect()
    }

    fn finds(run: u64, factor: f64) -> bool {
        let tests: Vec<Option<WelchTest>> = (0..24)
            .map(|measurement| {
                let seed = mix(run) ^ mix(measurement);
                WelchTest::new(&values(seed, 5, 1.0, 0.02), &values(!seed, 5, factor, 0.02), 0.0)
            })
            .collect();
        holm(&tests).contains(&true)
    }

    #[test]
    fn compare_rarely_errs_and_nearly_always_finds_10_percent() {
        let wrong = (0..1000).filter(|run| finds(*run, 1.0)).count();
        assert!(wrong <= 30, "{wrong} of 1000 comparisons of equal results found a difference");
        let found = (0..200).filter(|run| finds(*run, 1.1)).count();
        assert!(found >= 198, "{found} of 200 comparisons found a difference of 10 %");
    }

    #[test]
    fn minimum_detectable_effect_has_50_percent_power() {
        let detected = (0..2000_u64).filter(|run| {
            let (a, seed) = (values(*run, 5, 1.0, 0.02), mix(!run));
            let visible = WelchTest::new(&a, &values(seed, 5, 1.0, 0.02), 0.0)
                .unwrap()
                .critical_difference(SIGNIFICANCE_LEVEL)
                .exp();
            let test = WelchTest::new(&a, &values(seed, 5, visible, 0.02), 0.0).unwrap();
            test.p_value() <= SIGNIFICANCE_LEVEL
        });
        let power = detected.count() as f64 / 2000.0;
        assert!((0.42..0.58).contains(&power), "{power}");
    }

    #[test]
    fn one_step_of_resolution_is_not_a_difference() {
        let verdict = |figure, before: f64, after: f64| {
            let (log_before, log_after) = (vec![before.ln(); 3], vec![after.ln(); 3]);
            compare_samples(vec![SamplePair { name: "x".to_owned(), figure, log_before, log_after }])[0]
                .verdict
        };
        assert_eq!(verdict(ComparedFigure::Median, 12.0, 13.0), Verdict::Same);
        assert_eq!(verdict(ComparedFigure::P99, 101.0, 100.0), Verdict::Same);
        assert_eq!(verdict(ComparedFigure::Median, 100.0, 110.0), Verdict::Differs);
        assert_eq!(verdict(ComparedFigure::Throughput, 12.0, 13.0), Verdict::Differs);
    }

    #[test]
    fn test_needs_two_values_on_each_side() {
        assert!(WelchTest::new(&[1.0], &[2.0, 2.1], 0.0).is_none());
        let test = WelchTest::new(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0], 0.0).unwrap();
        assert!(test.p_value() > 0.99 && test.interval().0 < 1.0 && test.interval().1 > 1.0);
    }
}
