//! Evidence for or against the gain of a step, from noisy rounds.

/// One-sided 95 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.645;
/// Correction of the quantile for few samples: Student's distribution has about `1 + 1.2 / degrees` of it.
const FEW_SAMPLES_CORRECTION: f64 = 1.2;
/// Minimum standard error of a logarithm: rounds of two seconds are not independent, and equal ones no proof.
const MIN_STANDARD_ERROR: f64 = 0.01;

/// Mean and variance of samples of a logarithm.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Samples {
    count: f64,
    mean: f64,
    /// Sum of the squared differences from the mean.
    squares: f64,
}

/// A one-sided 95 % confidence interval: each bound holds with that probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub low: f64,
    pub mean: f64,
    pub high: f64,
}

impl FromIterator<f64> for Samples {
    /// Ignores values that are not finite.
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        let mut samples = Self::default();
        for value in values.into_iter().filter(|value| value.is_finite()) {
            samples.count += 1.0;
            let difference = value - samples.mean;
            samples.mean += difference / samples.count;
            samples.squares += difference * (value - samples.mean);
        }
        samples
    }
}

impl Samples {
    /// The mean; `None` without samples.
    pub fn mean(self) -> Option<f64> {
        (self.count > 0.0).then_some(self.mean)
    }

    /// Samples with the same variance whose mean is at least this value.
    pub fn with_min_mean(self, mean: f64) -> Self {
        Self { mean: self.mean.max(mean), ..self }
    }

    /// The interval of the mean. `None` without samples.
    pub fn interval(self) -> Option<Interval> {
        let mean = self.mean()?;
        Some(interval(mean, self.squares, self.count - 1.0, 1.0 / self.count))
    }

    /// The interval of the difference of two means, this one less the other. `None` without samples of both.
    pub fn minus(self, other: Self) -> Option<Interval> {
        let mean = self.mean()? - other.mean()?;
        let squares = self.squares + other.squares;
        let degrees = self.count + other.count - 2.0;
        Some(interval(mean, squares, degrees, 1.0 / self.count + 1.0 / other.count))
    }
}

/// The interval of a mean, from the sum of squares, its degrees of freedom, and the variance of the mean in units of that
/// of a sample.
fn interval(mean: f64, squares: f64, degrees: f64, variance_share: f64) -> Interval {
    if degrees < 1.0 {
        return Interval { low: f64::NEG_INFINITY, mean, high: f64::INFINITY };
    }
    let error = (squares / degrees * variance_share).sqrt().max(MIN_STANDARD_ERROR);
    let width = NORMAL_QUANTILE * (1.0 + FEW_SAMPLES_CORRECTION / degrees) * error;
    Interval { low: mean - width, mean, high: mean + width }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_a_difference_is_that_of_the_t_test() {
        let left: Samples = [1.0, 1.2, 0.8, 1.0].into_iter().collect();
        let right: Samples = [0.5, 0.3, 0.7].into_iter().collect();
        let interval = left.minus(right).unwrap();
        // Pooled variance (0.08 + 0.08) / 5; Student's quantile for five degrees is 2.015.
        let width = 2.015 * (0.032_f64 * (1.0 / 4.0 + 1.0 / 3.0)).sqrt();
        assert!((interval.mean - 0.5).abs() < 1e-9);
        assert!((interval.high - interval.mean - width).abs() < 0.02 * width, "{interval:?} {width}");
        assert!((interval.mean - interval.low - width).abs() < 0.02 * width, "{interval:?} {width}");
    }

    #[test]
    fn few_or_equal_samples_prove_nothing_certain() {
        let one: Samples = [1.0].into_iter().collect();
        assert_eq!(one.minus(Samples::default()), None);
        assert_eq!(one.minus(one).unwrap().high, f64::INFINITY);
        let equal: Samples = [1.0, 1.0, f64::NAN, 1.0].into_iter().collect();
        let interval = equal.minus(equal).unwrap();
        assert!(interval.low < 0.0 && interval.high > 0.0 && interval.high < 0.05, "{interval:?}");
    }
}
