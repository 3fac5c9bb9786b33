//! The ratio of tail latency to mean latency, which a model of means cannot predict.
//!
//! It depends on the utilization of the shared bottleneck. Below the knee requests hardly wait for each other and take
//! about the same time. Beyond the knee, connections with larger congestion windows get more of the link, and a few
//! requests take two or three times as long. Samples refine the ratio for points of similar utilization (Gaussian
//! process regression).

use super::cholesky::{Cholesky, dot};
use super::latency_model::LatencyModel;
use super::{OperatingPoint, Sample};

/// A statistic of the latency of many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

/// The 95th and 99th percentile of the latency, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TailLatency {
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Prior mean of the logarithm of the ratio of a percentile to the mean latency: its two limits, far below and far
/// beyond the knee.
#[derive(Debug, Clone, Copy)]
struct PercentilePrior {
    below_knee: f64,
    beyond_knee: f64,
}

const P95_PRIOR: PercentilePrior = PercentilePrior { below_knee: 0.03, beyond_knee: 0.5 };
const P99_PRIOR: PercentilePrior = PercentilePrior { below_knee: 0.1, beyond_knee: 0.75 };
/// Sharpness of the logistic step between the two limits, over the logarithm of the utilization.
const STEP_SHARPNESS: f64 = 6.0;
/// Distance of the step below the knee, in the logarithm of the utilization: some requests wait before all do.
const STEP_OFFSET: f64 = 0.5;
/// Standard deviation of the Gaussian process, in the logarithm of the ratio.
const KERNEL_STD_DEV: f64 = 0.5;
/// Length scale of its kernel, in the logarithm of the utilization.
const KERNEL_LENGTH_SCALE: f64 = 0.7;
/// Standard deviation of the noise of a sample, in the logarithm of the ratio.
const NOISE_STD_DEV: f64 = 0.25;
/// Remaining standard deviation between two points of the same utilization, however many samples there are.
const POINT_STD_DEV: f64 = 0.1;
/// Maximum absolute logarithm of the utilization. Beyond it the ratio is constant.
const MAX_LOG_UTILIZATION: f64 = 2.0;

/// A model of tail latency, fitted to samples.
#[derive(Debug, Clone, Default)]
pub struct TailModel {
    /// The logarithm of the utilization of each sample.
    log_utilizations: Vec<f64>,
    /// Cholesky factor of the covariance of the samples.
    covariance_factor: Cholesky,
    /// The residuals of the samples' p95 against the prior, times the inverse of the covariance.
    p95_weights: Vec<f64>,
    /// Like `p95_weights`, for the p99.
    p99_weights: Vec<f64>,
}

/// The logarithm of the ratio of a statistic to the mean latency.
#[derive(Debug, Clone, Copy)]
pub struct LogRatio {
    pub mean: f64,
    pub std_dev: f64,
}

impl TailModel {
    /// Fits the model to the samples that have a tail.
    pub fn fit(model: &LatencyModel, samples: &[Sample]) -> Self {
        let samples: Vec<(&Sample, TailLatency)> =
            samples.iter().filter_map(|sample| Some((sample, sample.tail?))).collect();
        let log_utilizations: Vec<f64> =
            samples.iter().map(|(sample, _)| log_utilization(model, sample.point)).collect();
        let covariance_factor = Cholesky::new(samples.len(), |i, j| {
            kernel(log_utilizations[i], log_utilizations[j])
                + if i == j { NOISE_STD_DEV.powi(2) } else { 0.0 }
        });
        let weights = |prior: PercentilePrior, percentile: fn(&TailLatency) -> f64| {
            let residuals = samples.iter().zip(&log_utilizations).map(|((sample, tail), log_utilization)| {
                (percentile(tail) / sample.latency).ln() - prior.log_ratio(*log_utilization)
            });
            covariance_factor.solve(&residuals.collect::<Vec<f64>>())
        };
        let p95_weights = weights(P95_PRIOR, |tail| tail.p95);
        let p99_weights = weights(P99_PRIOR, |tail| tail.p99);
        Self { log_utilizations, covariance_factor, p95_weights, p99_weights }
    }

    /// The logarithm of the ratio of a statistic to the mean latency at a point.
    pub fn log_ratio(&self, model: &LatencyModel, point: OperatingPoint, statistic: Statistic) -> LogRatio {
        let (prior, weights) = match statistic {
            Statistic::Mean => return LogRatio { mean: 0.0, std_dev: 0.0 },
            Statistic::P95 => (P95_PRIOR, &self.p95_weights),
            Statistic::P99 => (P99_PRIOR, &self.p99_weights),
        };
        let of_point = log_utilization(model, point);
        let kernel_row: Vec<f64> =
            self.log_utilizations.iter().map(|of_sample| kernel(of_point, *of_sample)).collect();
        let whitened = self.covariance_factor.whiten(&kernel_row);
        let variance =
            (kernel(of_point, of_point) - dot(&whitened, &whitened)).max(0.0) + POINT_STD_DEV.powi(2);
        LogRatio {
            // A percentile this high is below the mean only with a few extreme outliers.
            mean: (prior.log_ratio(of_point) + dot(&kernel_row, weights)).max(0.0),
            std_dev: variance.sqrt(),
        }
    }
}

impl PercentilePrior {
    /// The prior mean at a utilization.
    fn log_ratio(self, log_utilization: f64) -> f64 {
        self.below_knee
            + (self.beyond_knee - self.below_knee)
                / (1.0 + (-STEP_SHARPNESS * (log_utilization + STEP_OFFSET)).exp())
    }
}

/// Logarithm of the utilization: the concurrency at a point, relative to the one that saturates the bottleneck.
fn log_utilization(model: &LatencyModel, point: OperatingPoint) -> f64 {
    let bytes = point.bytes as f64;
    (model.bottleneck_seconds(bytes) * point.concurrency as f64 / model.uncontended_latency(bytes))
        .ln()
        .clamp(-MAX_LOG_UTILIZATION, MAX_LOG_UTILIZATION)
}

fn kernel(a: f64, b: f64) -> f64 {
    KERNEL_STD_DEV.powi(2) * (-((a - b) / KERNEL_LENGTH_SCALE).powi(2) / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::latency_model;

    const EMPTY: OperatingPoint = OperatingPoint { bytes: 64 << 10, concurrency: 1 };
    const FULL: OperatingPoint = OperatingPoint { bytes: 64 << 10, concurrency: 64 };

    #[test]
    fn tail_is_longer_beyond_the_knee() {
        let model = latency_model(0.05, 20e6, 5e3, 12e6);
        let tails = TailModel::fit(&model, &[]);
        let factor = |point, statistic| tails.log_ratio(&model, point, statistic).mean.exp();
        let [empty, full] = [EMPTY, FULL].map(|point| factor(point, Statistic::P99));
        assert!(empty < 1.2 && full > 2.0, "{empty} {full}");
        assert_eq!(factor(FULL, Statistic::Mean).to_bits(), 1.0_f64.to_bits());
        assert!(factor(FULL, Statistic::P95) < full);
    }

    #[test]
    fn samples_move_the_tail_of_similar_utilization() {
        let model = latency_model(0.05, 20e6, 5e3, 12e6);
        let sample = Sample {
            point: EMPTY,
            latency: 0.06,
            relative_error: 0.02,
            tail: Some(TailLatency { p95: 0.12, p99: 0.18 }),
            from_transfer: false,
        };
        let tails = TailModel::fit(&model, &[sample, Sample { tail: None, point: FULL, ..sample }]);
        let [empty, full] = [EMPTY, FULL].map(|point| tails.log_ratio(&model, point, Statistic::P99));
        assert!(empty.std_dev < 0.8 * full.std_dev, "{empty:?} {full:?}");
        let [empty, full] = [empty.mean.exp(), full.mean.exp()];
        assert!((2.2..3.1).contains(&empty), "{empty}");
        let without_samples = TailModel::fit(&model, &[]).log_ratio(&model, FULL, Statistic::P99).mean.exp();
        assert!((full / without_samples - 1.0).abs() < 0.05, "{full} {without_samples}");
    }
}
