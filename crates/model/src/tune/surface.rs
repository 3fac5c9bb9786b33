//! Predicts the latency of all points of one direction from samples.
//!
//! The prediction is a [`LatencyModel`] plus a Gaussian process for what the model does not capture, which is similar
//! for nearby points. Parameters, deviations and measurement noise are normal in the logarithm of the latency. The most
//! likely surface, its uncertainty and the information gain of another sample therefore follow from the same equations
//! (universal kriging with a nonlinear mean, fitted by Gauss-Newton). Bandwidth follows from latency and concurrency
//! (Little 1961).

use super::cholesky::{Cholesky, dot};
use super::latency_model::{LatencyModel, Prior};
use super::parameters::{ParameterVector, Parameters, log_latency_gradient};
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
    prior_mean: ParameterVector,
    prior_std_dev: ParameterVector,
    /// The most likely parameters, and the model with them.
    parameters: ParameterVector,
    model: LatencyModel,
    /// Cholesky factor of the sample covariance without the uncertainty of the parameters.
    residual_factor: Cholesky,
    /// Cholesky factor of the full sample covariance.
    total_factor: Cholesky,
    gradients: Vec<ParameterVector>,
    /// The residuals of the samples against the model, times the inverse of the first covariance.
    residual_weights: Vec<f64>,
    tail_model: TailModel,
}

impl Surface {
    /// Fits the surface to samples.
    #[must_use]
    pub fn new(prior: Prior, samples: Vec<Sample>) -> Self {
        let residual_factor = Cholesky::new(samples.len(), |i, j| sample_covariance(&samples, i, j));
        let prior_mean = Parameters::of_model(&prior.mean).to_vector();
        let mut fit = Self {
            prior_mean,
            prior_std_dev: prior.std_dev.to_vector(),
            parameters: prior_mean,
            model: prior.mean,
            total_factor: Cholesky::default(),
            gradients: Vec::new(),
            residual_weights: Vec::new(),
            tail_model: TailModel::default(),
            samples,
            residual_factor,
        };
        let starts = fit.starting_points(prior.mean);
        let best = starts
            .iter()
            .map(|start| fit.gauss_newton(Parameters::of_model(start).to_vector()))
            .min_by(|a, b| a.misfit.total_cmp(&b.misfit));
        if let Some(best) = best {
            fit.parameters = best.parameters;
            fit.model = Parameters::from_vector(best.parameters).to_model();
        }
        fit.gradients =
            fit.samples.iter().map(|sample| log_latency_gradient(&fit.parameters, sample.point)).collect();
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
            let prior = self.prior_std_dev[i].powi(2);
            let cross: Vec<f64> = self.gradients.iter().map(|gradient| gradient[i] * prior).collect();
            let explained = self.total_factor.whiten(&cross);
            (prior - dot(&explained, &explained)).max(0.0).sqrt()
        };
        Prior { mean: self.model, std_dev: Parameters::from_vector(std::array::from_fn(remaining)) }
    }

    /// The prediction for a point.
    #[must_use]
    pub fn predict(&self, point: OperatingPoint) -> Prediction {
        let kernel_row: Vec<f64> = self.samples.iter().map(|sample| kernel(sample.point, point)).collect();
        let log = self.model.log_latency(point) + dot(&kernel_row, &self.residual_weights);
        let projected = self.project(point);
        Prediction {
            point,
            latency: log.exp(),
            std_dev: self.posterior_covariance(&projected, &projected).max(0.0).sqrt(),
        }
    }

    /// A statistic of the latency at a point, in seconds.
    #[must_use]
    pub fn latency_statistic(&self, prediction: &Prediction, statistic: Statistic) -> f64 {
        prediction.latency * self.tail_model.log_ratio(&self.model, prediction.point, statistic).mean.exp()
    }

    /// The probability that a point meets a latency target, given the uncertainty of both its mean and its tail.
    #[must_use]
    pub fn target_probability(&self, prediction: &Prediction, target: LatencyTarget) -> f64 {
        let log_ratio = self.tail_model.log_ratio(&self.model, prediction.point, target.statistic);
        let headroom = (target.max_seconds / prediction.latency).ln() - log_ratio.mean;
        // The logistic approximation of the normal distribution function.
        1.0 / (1.0 + (-1.702 * headroom / log_ratio.std_dev.hypot(prediction.std_dev)).exp())
    }

    /// Prepares a point for posterior covariances.
    pub(super) fn project(&self, point: OperatingPoint) -> ProjectedPoint {
        let gradient = log_latency_gradient(&self.parameters, point);
        let prior_covariances = self
            .samples
            .iter()
            .zip(&self.gradients)
            .map(|(sample, own)| self.parameter_covariance(own, &gradient) + kernel(sample.point, point));
        let whitened = self.total_factor.whiten(&prior_covariances.collect::<Vec<f64>>());
        ProjectedPoint { point, gradient, whitened }
    }

    /// The posterior covariance of two points.
    pub(super) fn posterior_covariance(&self, a: &ProjectedPoint, b: &ProjectedPoint) -> f64 {
        self.parameter_covariance(&a.gradient, &b.gradient) + kernel(a.point, b.point)
            - dot(&a.whitened, &b.whitened)
    }

    /// The covariance of two points by the prior of the parameters.
    fn parameter_covariance(&self, a: &ParameterVector, b: &ParameterVector) -> f64 {
        a.iter().zip(b).zip(&self.prior_std_dev).map(|((a, b), std_dev)| a * b * std_dev.powi(2)).sum()
    }

    fn residuals(&self, model: &LatencyModel) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.latency.ln() - model.log_latency(sample.point)).collect()
    }

    /// Starting points of the search, as the objective has several local minima.
    fn starting_points(&self, mean: LatencyModel) -> Vec<LatencyModel> {
        let Some(fastest) = self.samples.iter().map(Sample::bandwidth).max_by(f64::total_cmp) else {
            return vec![mean];
        };
        let max_rate =
            self.samples.iter().map(|sample| sample.point.request_rate(sample.latency)).fold(1.0, f64::max);
        let quickest = self.samples.iter().map(|sample| sample.latency).fold(f64::MAX, f64::min);
        let from_samples = LatencyModel {
            fixed_seconds: quickest * 0.9,
            bottleneck_seconds_per_request: 0.5 / max_rate,
            bottleneck_seconds_per_byte: 1.0 / fastest,
            ..mean
        };
        let connection_bound = LatencyModel { connection_seconds_per_byte: 0.3 / fastest, ..from_samples };
        let unsaturated = LatencyModel {
            bottleneck_seconds_per_request: 0.05 / max_rate,
            bottleneck_seconds_per_byte: 0.2 / fastest,
            ..from_samples
        };
        vec![mean, from_samples, connection_bound, unsaturated]
    }

    /// Twice the negative log posterior of the parameters, up to a constant.
    fn misfit(&self, parameters: &ParameterVector) -> f64 {
        let model = Parameters::from_vector(*parameters).to_model();
        let whitened = self.residual_factor.whiten(&self.residuals(&model));
        let prior = self.prior_mean.iter().zip(&self.prior_std_dev);
        let offsets =
            parameters.iter().zip(prior).map(|(value, (mean, std_dev))| ((value - mean) / std_dev).powi(2));
        dot(&whitened, &whitened) + offsets.sum::<f64>()
    }

    /// Gauss-Newton from a starting point.
    fn gauss_newton(&self, start: ParameterVector) -> Fit {
        let mut best = Fit { parameters: start, misfit: self.misfit(&start) };
        for _ in 0..MAX_STEPS {
            let target = self.gauss_newton_target(&best.parameters);
            let mut step_size = 1.0;
            let next = (0..MAX_HALVINGS).find_map(|_| {
                let parameters = std::array::from_fn(|i| {
                    (target[i] - best.parameters[i]).mul_add(step_size, best.parameters[i])
                });
                step_size /= 2.0;
                let misfit = self.misfit(&parameters);
                (misfit < best.misfit).then_some(Fit { parameters, misfit })
            });
            let Some(next) = next else { break };
            let improvement = best.misfit - next.misfit;
            best = next;
            if improvement < MIN_IMPROVEMENT {
                break;
            }
        }
        best
    }

    /// The parameters that minimize the misfit linearized at `parameters`.
    fn gauss_newton_target(&self, parameters: &ParameterVector) -> ParameterVector {
        let model = Parameters::from_vector(*parameters).to_model();
        let gradients: Vec<ParameterVector> =
            self.samples.iter().map(|sample| log_latency_gradient(parameters, sample.point)).collect();
        let covariance = Cholesky::new(self.samples.len(), |i, j| {
            self.parameter_covariance(&gradients[i], &gradients[j]) + sample_covariance(&self.samples, i, j)
        });
        let offset: ParameterVector = std::array::from_fn(|i| self.prior_mean[i] - parameters[i]);
        let linearized: Vec<f64> = self
            .residuals(&model)
            .iter()
            .zip(&gradients)
            .map(|(residual, gradient)| residual - dot(gradient, &offset))
            .collect();
        let weights = covariance.solve(&linearized);
        std::array::from_fn(|i| {
            let step: f64 =
                gradients.iter().zip(&weights).map(|(gradient, weight)| gradient[i] * weight).sum();
            self.prior_mean[i] + self.prior_std_dev[i].powi(2) * step
        })
    }
}

/// Parameters found by the search, and their misfit.
#[derive(Debug, Clone, Copy)]
struct Fit {
    parameters: ParameterVector,
    misfit: f64,
}

/// A point, prepared for posterior covariances.
#[derive(Debug, Clone)]
pub(super) struct ProjectedPoint {
    point: OperatingPoint,
    gradient: ParameterVector,
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
