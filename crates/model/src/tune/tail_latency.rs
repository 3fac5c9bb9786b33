//! The ratio of tail latency to mean latency, which a model of means cannot predict.
//!
//! It depends on the utilization of the shared bottleneck. Below the knee requests hardly wait for each other and take
//! about the same time. Beyond it connections with larger windows are favoured, and a few requests take two or three
//! times as long. Samples refine the ratio for points of similar utilization (Gaussian process regression).

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

/// Prior mean of the logarithm of p95 and p99 relative to the mean, beyond the knee.
const LOG_RATIO_BEYOND_KNEE: [f64; 2] = [0.5, 0.75];
/// Like [`LOG_RATIO_BEYOND_KNEE`], below the knee.
const LOG_RATIO_BELOW_KNEE: [f64; 2] = [0.03, 0.1];
/// Sharpness of the step between the two, over the logarithm of the utilization.
const STEP_SHARPNESS: f64 = 6.0;
/// Distance of the step below the knee, in the same logarithm: some requests wait before all do.
const STEP_OFFSET: f64 = 0.5;
/// Kernel of the Gaussian process: standard deviation and length scale over the same logarithm, and the noise of a
/// sample.
const KERNEL_STD_DEV: f64 = 0.5;
const KERNEL_LENGTH_SCALE: f64 = 0.7;
const NOISE_STD_DEV: f64 = 0.25;
/// Remaining standard deviation between two points of the same utilization, however many samples there are.
const POINT_STD_DEV: f64 = 0.1;
/// Bound of the logarithm of the utilization. Beyond it the ratio is constant.
const MAX_LOG_UTILIZATION: f64 = 2.0;

/// A model of tail latency, fitted to samples.
#[derive(Debug, Clone, Default)]
pub struct TailModel {
    log_utilization: Vec<f64>,
    covariance: Cholesky,
    /// For p95 and p99: the residuals of the samples, times the inverse of their covariance.
    residual_weights: [Vec<f64>; 2],
}

impl TailModel {
    /// Fits the samples that have a tail.
    pub fn fit(model: &LatencyModel, samples: &[Sample]) -> Self {
        let known: Vec<(f64, [f64; 2])> = samples
            .iter()
            .filter_map(|sample| {
                Some((
                    log_utilization(model, sample.point),
                    sample.p95_p99?.map(|tail| tail / sample.latency),
                ))
            })
            .collect();
        let covariance = Cholesky::new(known.len(), |i, j| {
            kernel(known[i].0, known[j].0) + if i == j { NOISE_STD_DEV.powi(2) } else { 0.0 }
        });
        let rest = [0, 1].map(|which| {
            let residuals = known.iter().map(|(full, tail)| tail[which].ln() - prior_log_ratio(*full, which));
            covariance.solve(&residuals.collect::<Vec<f64>>())
        });
        Self {
            log_utilization: known.into_iter().map(|(full, _)| full).collect(),
            covariance,
            residual_weights: rest,
        }
    }

    /// Logarithm of the ratio of a statistic to the mean at a point, and its standard deviation.
    pub fn log_ratio(&self, model: &LatencyModel, cell: OperatingPoint, statistic: Statistic) -> (f64, f64) {
        let which = match statistic {
            Statistic::Mean => return (0.0, 0.0),
            Statistic::P95 => 0,
            Statistic::P99 => 1,
        };
        let full = log_utilization(model, cell);
        let kernel_row: Vec<f64> = self.log_utilization.iter().map(|other| kernel(full, *other)).collect();
        let explained = self.covariance.whiten(&kernel_row);
        let variance = (kernel(full, full) - dot(&explained, &explained)).max(0.0) + POINT_STD_DEV.powi(2);
        // A p95 below the mean would require a few extreme outliers.
        (
            (prior_log_ratio(full, which) + dot(&kernel_row, &self.residual_weights[which])).max(0.0),
            variance.sqrt(),
        )
    }
}

/// Logarithm of the utilization: the concurrency relative to the one that saturates the bottleneck.
fn log_utilization(model: &LatencyModel, cell: OperatingPoint) -> f64 {
    let bytes = cell.bytes as f64;
    (model.bottleneck_seconds(bytes) * cell.concurrency as f64 / model.uncontended_latency(bytes))
        .ln()
        .clamp(-MAX_LOG_UTILIZATION, MAX_LOG_UTILIZATION)
}

fn prior_log_ratio(full: f64, which: usize) -> f64 {
    LOG_RATIO_BELOW_KNEE[which]
        + (LOG_RATIO_BEYOND_KNEE[which] - LOG_RATIO_BELOW_KNEE[which])
            / (1.0 + (-STEP_SHARPNESS * (full + STEP_OFFSET)).exp())
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
        let factor = |cell, statistic| tails.log_ratio(&model, cell, statistic).0.exp();
        let [empty, full] = [EMPTY, FULL].map(|cell| factor(cell, Statistic::P99));
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
            p95_p99: Some([0.12, 0.18]),
            from_transfer: false,
        };
        let tails = TailModel::fit(&model, &[sample, Sample { p95_p99: None, point: FULL, ..sample }]);
        let [(empty, sure), (full, unsure)] =
            [EMPTY, FULL].map(|cell| tails.log_ratio(&model, cell, Statistic::P99));
        let [empty, full] = [empty.exp(), full.exp()];
        assert!(sure < 0.8 * unsure, "{sure} {unsure}");
        assert!((2.2..3.1).contains(&empty), "{empty}");
        let without_samples = TailModel::fit(&model, &[]).log_ratio(&model, FULL, Statistic::P99).0.exp();
        assert!((full / without_samples - 1.0).abs() < 0.05, "{full} {without_samples}");
    }
}
