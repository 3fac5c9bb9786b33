//! Predicts the latency of all points of one direction from samples.
//!
//! The prediction is a [`LatencyModel`] plus a Gaussian process for what the model does not capture, which is similar for nearby
//! points. Parameters, deviations and measurement noise are normal in the logarithm of the latency. The most likely
//! surface, its uncertainty and the information gain of another sample therefore follow from the same equations
//! (universal kriging with a nonlinear mean, fitted by Gauss-Newton). Bandwidth follows from latency and concurrency
//! (Little 1961).

use super::cholesky::{Cholesky, dot};
use super::latency_model::{LatencyModel, PARAMETER_COUNT, Prior};
use super::tail_latency::{Statistic, TailModel};
use super::{LatencyTarget, OperatingPoint, Sample};

/// Kernel of the Gaussian process: the standard deviation in the logarithm of the latency, …
const KERNEL_STD_DEV: f64 = 0.08;
/// … and the length scales in doublings of size and of concurrency.
const KERNEL_LENGTH_SCALES: [f64; 2] = [2.0, 3.0];
/// Lower bound of the relative error of a sample.
const MIN_RELATIVE_ERROR: f64 = 0.02;
/// Maximum number of Gauss-Newton steps.
const MAX_STEPS: usize = 40;
/// Maximum number of halvings of a step that does not improve.
const MAX_HALVINGS: usize = 12;
/// The search ends at a step that improves less.
const MIN_IMPROVEMENT: f64 = 1e-6;

/// The prediction for a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The point.
    pub point: OperatingPoint,
    /// Mean latency of a request, in seconds.
    pub latency: f64,
    /// Standard deviation of the logarithm of `latency`: 0.1 is about 10 %.
    pub std_dev: f64,
}

impl Prediction {
    /// Total bytes per second.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.point.bandwidth(self.latency)
    }

    /// Requests per second.
    #[must_use]
    pub fn request_rate(&self) -> f64 {
        self.point.request_rate(self.latency)
    }
}

/// The posterior for one direction, given samples. See the module.
#[derive(Debug, Clone)]
pub struct Surface {
    samples: Vec<Sample>,
    prior: Prior,
    model: LatencyModel,
    /// Cholesky factor of the sample covariance without the uncertainty of the parameters.
    residual_factor: Cholesky,
    /// Cholesky factor of the full sample covariance.
    total_factor: Cholesky,
    gradients: Vec<[f64; PARAMETER_COUNT]>,
    /// The residuals of the samples against the model, times the inverse of the first covariance.
    residual_weights: Vec<f64>,
    tail_model: TailModel,
}

impl Surface {
    /// Fits the surface to samples.
    #[must_use]
    pub fn new(prior: Prior, samples: Vec<Sample>) -> Self {
        let unknown = Cholesky::new(samples.len(), |i, j| sample_covariance(&samples, i, j));
        let mut fit = Self {
            model: prior.mean,
            total_factor: Cholesky::default(),
            gradients: Vec::new(),
            residual_weights: Vec::new(),
            tail_model: TailModel::default(),
            samples,
            prior,
            residual_factor: unknown,
        };
        let starts = fit.starting_points();
        let best = starts.into_iter().map(|start| fit.gauss_newton(start)).min_by(|a, b| a.1.total_cmp(&b.1));
        fit.model = best.map_or(prior.mean, |(model, _)| model);
        fit.gradients = fit.samples.iter().map(|sample| fit.model.gradient(sample.point)).collect();
        fit.total_factor = Cholesky::new(fit.samples.len(), |i, j| {
            fit.parameter_covariance(&fit.gradients[i], &fit.gradients[j])
                + sample_covariance(&fit.samples, i, j)
        });
        fit.residual_weights = fit.residual_factor.solve(&fit.residuals(&fit.model));
        fit.tail_model = TailModel::fit(&fit.model, &fit.samples);
        fit
    }

    /// The samples that it was fitted to.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The most likely parameters.
    #[must_use]
    pub const fn model(&self) -> &LatencyModel {
        &self.model
    }

    /// The posterior of the parameters: the most likely values and their remaining standard deviations.
    #[must_use]
    pub fn posterior(&self) -> Prior {
        let remaining = |i: usize| {
            let prior = self.prior.std_dev[i].powi(2);
            let cross: Vec<f64> = self.gradients.iter().map(|slopes| slopes[i] * prior).collect();
            let explained = self.total_factor.whiten(&cross);
            (prior - dot(&explained, &explained)).max(0.0).sqrt()
        };
        Prior { mean: self.model, std_dev: std::array::from_fn(remaining) }
    }

    /// The prediction for a point.
    #[must_use]
    pub fn predict(&self, cell: OperatingPoint) -> Prediction {
        let kernel_row: Vec<f64> = self.samples.iter().map(|sample| kernel(sample.point, cell)).collect();
        let log = self.model.log_latency(cell) + dot(&kernel_row, &self.residual_weights);
        let view = self.project(cell);
        Prediction {
            point: cell,
            latency: log.exp(),
            std_dev: self.posterior_covariance(&view, &view).max(0.0).sqrt(),
        }
    }

    /// A statistic of the latency at a point, in seconds.
    #[must_use]
    pub fn latency_statistic(&self, found: &Prediction, statistic: Statistic) -> f64 {
        found.latency * self.tail_model.log_ratio(&self.model, found.point, statistic).0.exp()
    }

    /// The probability that a point meets a latency target, given the uncertainty of both its mean and its tail.
    #[must_use]
    pub fn target_probability(&self, found: &Prediction, cap: LatencyTarget) -> f64 {
        let (factor, deviation) = self.tail_model.log_ratio(&self.model, found.point, cap.statistic);
        let headroom = (cap.max_seconds / found.latency).ln() - factor;
        // The logistic approximation of the normal distribution function.
        1.0 / (1.0 + (-1.702 * headroom / deviation.hypot(found.std_dev)).exp())
    }

    /// Prepares a point for posterior covariances.
    pub(super) fn project(&self, cell: OperatingPoint) -> ProjectedPoint {
        let slopes = self.model.gradient(cell);
        let prior_covariances = self
            .samples
            .iter()
            .zip(&self.gradients)
            .map(|(sample, own)| self.parameter_covariance(own, &slopes) + kernel(sample.point, cell));
        let seen = self.total_factor.whiten(&prior_covariances.collect::<Vec<f64>>());
        ProjectedPoint { point: cell, gradient: slopes, whitened: seen }
    }

    /// The posterior covariance of two points.
    pub(super) fn posterior_covariance(&self, a: &ProjectedPoint, b: &ProjectedPoint) -> f64 {
        self.parameter_covariance(&a.gradient, &b.gradient) + kernel(a.point, b.point)
            - dot(&a.whitened, &b.whitened)
    }

    /// The covariance of two points by the prior of the parameters.
    fn parameter_covariance(&self, a: &[f64; PARAMETER_COUNT], b: &[f64; PARAMETER_COUNT]) -> f64 {
        (0..PARAMETER_COUNT).map(|i| a[i] * b[i] * self.prior.std_dev[i].powi(2)).sum()
    }

    fn residuals(&self, model: &LatencyModel) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.latency.ln() - model.log_latency(sample.point)).collect()
    }

    /// Starting points of the search, as the objective has several local minima.
    fn starting_points(&self) -> Vec<LatencyModel> {
        let mean = self.prior.mean;
        let Some(fastest) = self.samples.iter().map(Sample::bandwidth).max_by(f64::total_cmp) else {
            return vec![mean];
        };
        let max_rate =
            self.samples.iter().map(|sample| sample.point.request_rate(sample.latency)).fold(1.0, f64::max);
        let quickest = self.samples.iter().map(|sample| sample.latency).fold(f64::MAX, f64::min);
        let mut from_samples = mean;
        from_samples.0[0] = (quickest * 0.9).ln();
        from_samples.0[2] = (0.5 / max_rate).ln();
        from_samples.0[3] = (1.0 / fastest).ln();
        let mut connection_bound = from_samples;
        connection_bound.0[1] = (0.3 / fastest).ln();
        let mut unsaturated = from_samples;
        unsaturated.0[2] = (0.05 / max_rate).ln();
        unsaturated.0[3] = (0.2 / fastest).ln();
        vec![mean, from_samples, connection_bound, unsaturated]
    }

    /// Twice the negative log posterior of the parameters, up to a constant.
    fn misfit(&self, model: &LatencyModel) -> f64 {
        let half = self.residual_factor.whiten(&self.residuals(model));
        let off = (0..PARAMETER_COUNT)
            .map(|i| ((model.0[i] - self.prior.mean.0[i]) / self.prior.std_dev[i]).powi(2));
        dot(&half, &half) + off.sum::<f64>()
    }

    /// Gauss-Newton from a starting point. Returns the parameters found and their misfit.
    fn gauss_newton(&self, start: LatencyModel) -> (LatencyModel, f64) {
        let (mut model, mut misfit) = (start, self.misfit(&start));
        for _ in 0..MAX_STEPS {
            let target = self.gauss_newton_target(&model);
            let mut step_size = 1.0;
            let next = (0..MAX_HALVINGS).find_map(|_| {
                let next = LatencyModel(std::array::from_fn(|i| {
                    (target.0[i] - model.0[i]).mul_add(step_size, model.0[i])
                }));
                step_size /= 2.0;
                let next_misfit = self.misfit(&next);
                (next_misfit < misfit).then_some((next, next_misfit))
            });
            let Some((next, next_misfit)) = next else { break };
            let improvement = misfit - next_misfit;
            (model, misfit) = (next, next_misfit);
            if improvement < MIN_IMPROVEMENT {
                break;
            }
        }
        (model, misfit)
    }

    /// The parameters that minimize the misfit linearized at `model`.
    fn gauss_newton_target(&self, model: &LatencyModel) -> LatencyModel {
        let mean = self.prior.mean;
        let slopes: Vec<[f64; PARAMETER_COUNT]> =
            self.samples.iter().map(|sample| model.gradient(sample.point)).collect();
        let all = Cholesky::new(self.samples.len(), |i, j| {
            self.parameter_covariance(&slopes[i], &slopes[j]) + sample_covariance(&self.samples, i, j)
        });
        let offset: [f64; PARAMETER_COUNT] = std::array::from_fn(|i| mean.0[i] - model.0[i]);
        let linearized: Vec<f64> = self
            .residuals(model)
            .iter()
            .zip(&slopes)
            .map(|(rest, slopes)| rest - dot(slopes, &offset))
            .collect();
        let weights = all.solve(&linearized);
        LatencyModel(std::array::from_fn(|i| {
            let step: f64 = slopes.iter().zip(&weights).map(|(slopes, weight)| slopes[i] * weight).sum();
            mean.0[i] + self.prior.std_dev[i].powi(2) * step
        }))
    }
}

/// A point, prepared for posterior covariances.
#[derive(Debug, Clone)]
pub(super) struct ProjectedPoint {
    point: OperatingPoint,
    gradient: [f64; PARAMETER_COUNT],
    whitened: Vec<f64>,
}

/// The kernel: the prior covariance of the deviations from the model at two points.
fn kernel(a: OperatingPoint, b: OperatingPoint) -> f64 {
    let doublings = [
        (a.bytes.max(1) as f64 / b.bytes.max(1) as f64).log2(),
        (a.concurrency.max(1) as f64 / b.concurrency.max(1) as f64).log2(),
    ];
    let apart: f64 = doublings
        .iter()
        .zip(KERNEL_LENGTH_SCALES)
        .map(|(doublings, reach)| (doublings / reach).powi(2))
        .sum();
    // Matérn 3/2: deviations are continuous, but rough.
    let apart = (3.0 * apart).sqrt();
    KERNEL_STD_DEV.powi(2) * (1.0 + apart) * (-apart).exp()
}

/// The kernel plus the measurement noise of a sample.
fn sample_covariance(samples: &[Sample], i: usize, j: usize) -> f64 {
    let chance = if i == j { samples[i].relative_error.max(MIN_RELATIVE_ERROR).powi(2) } else { 0.0 };
    kernel(samples[i].point, samples[j].point) + chance
}
