//! Predicts the latency of all points of one direction from samples.
//!
//! The prediction is a [`LatencyModel`] plus a Gaussian process for what the model does not capture, which is similar
//! for nearby points. Parameters, deviations and measurement noise are normal in the logarithm of the latency. The
//! maximum a posteriori (MAP) surface, its uncertainty and the information gain of another sample therefore follow from
//! the same equations (universal kriging with a nonlinear mean, fitted by Gauss-Newton). Throughput follows from
//! latency and concurrency (Little 1961).

use super::cholesky::{Cholesky, dot};
use super::latency_model::{LatencyModel, Posterior, Prior};
use super::parameters::{ParameterVector, Parameters, log_latency_gradient};
use super::tail_latency::{Statistic, TailModel};
use super::{LatencyTarget, OperatingPoint, Sample};

/// Standard deviation of the Gaussian process, in the logarithm of the latency.
const KERNEL_STD_DEV: f64 = 0.08;
/// Length scales of its kernel, in doublings of the request size and of the concurrency.
const KERNEL_LENGTH_SCALES: [f64; 2] = [2.0, 3.0];
/// Lower bound of the relative error of a sample.
const MIN_RELATIVE_ERROR: f64 = 0.02;
/// Maximum number of Gauss-Newton steps.
const MAX_STEPS: usize = 40;
/// Maximum number of halvings of a step that does not improve.
const MAX_HALVINGS: usize = 12;
/// Minimum reduction of the misfit by a step. The search ends at a step with less.
const MIN_IMPROVEMENT: f64 = 1e-6;

/// The prediction for a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The point.
    pub point: OperatingPoint,
    /// Latency in seconds, defined like [`Sample::latency`].
    pub latency: f64,
    /// Standard deviation of the logarithm of `latency`: 0.1 is about 10 %.
    pub std_dev: f64,
}

impl Prediction {
    /// Total bytes per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.point.throughput(self.latency)
    }

    /// Requests per second.
    #[must_use]
    pub fn request_rate(&self) -> f64 {
        self.point.request_rate(self.latency)
    }
}

/// The posterior of the latency of all points of one direction, given samples. See the module.
#[derive(Debug, Clone)]
pub struct Surface {
    samples: Vec<Sample>,
    prior_mean: ParameterVector,
    prior_std_dev: ParameterVector,
    /// The maximum a posteriori (MAP) parameters.
    parameters: ParameterVector,
    /// The model with these parameters.
    model: LatencyModel,
    /// Cholesky factor of the covariance of the samples for fixed parameters: kernel and measurement noise.
    residual_factor: Cholesky,
    /// Cholesky factor of the covariance of the samples including the prior uncertainty of the parameters.
    total_factor: Cholesky,
    /// The gradient of the log latency at each sample with respect to the parameters.
    gradients: Vec<ParameterVector>,
    /// The residuals of the samples against the model, times the inverse of the covariance of `residual_factor`.
    residual_weights: Vec<f64>,
    tail_model: TailModel,
}

impl Surface {
    /// Fits the surface to samples.
    #[must_use]
    pub fn new(prior: Prior, samples: Vec<Sample>) -> Self {
        let residual_factor = Cholesky::new(samples.len(), |i, j| sample_covariance(&samples, i, j));
        let prior_mean = Parameters::of_model(&prior.mean).to_vector();
        let mut surface = Self {
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
        let starting_points = surface.starting_points(prior.mean);
        let best = starting_points
            .iter()
            .map(|start| surface.gauss_newton(Parameters::of_model(start).to_vector()))
            .min_by(|a, b| a.misfit.total_cmp(&b.misfit));
        if let Some(best) = best {
            surface.parameters = best.parameters;
            surface.model = Parameters::from_vector(best.parameters).to_model();
        }
        surface.gradients = surface
            .samples
            .iter()
            .map(|sample| log_latency_gradient(&surface.parameters, sample.point))
            .collect();
        surface.total_factor = Cholesky::new(surface.samples.len(), |i, j| {
            surface.parameter_covariance(&surface.gradients[i], &surface.gradients[j])
                + sample_covariance(&surface.samples, i, j)
        });
        surface.residual_weights = surface.residual_factor.solve(&surface.residuals(&surface.model));
        surface.tail_model = TailModel::fit(&surface.model, &surface.samples);
        surface
    }

    /// The samples to which the surface was fitted.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The model with the maximum a posteriori (MAP) parameters.
    #[must_use]
    pub const fn model(&self) -> &LatencyModel {
        &self.model
    }

    /// The posterior of the parameters: the maximum a posteriori (MAP) values and their remaining standard deviations.
    #[must_use]
    pub fn posterior(&self) -> Posterior {
        let posterior_std_dev = |i: usize| {
            let prior_variance = self.prior_std_dev[i].powi(2);
            // The covariance of the parameter with each sample.
            let covariances: Vec<f64> =
                self.gradients.iter().map(|gradient| gradient[i] * prior_variance).collect();
            let whitened = self.total_factor.whiten(&covariances);
            (prior_variance - dot(&whitened, &whitened)).max(0.0).sqrt()
        };
        Posterior {
            mean: self.model,
            std_dev: Parameters::from_vector(std::array::from_fn(posterior_std_dev)),
        }
    }

    /// The prediction for a point.
    #[must_use]
    pub fn predict(&self, point: OperatingPoint) -> Prediction {
        let kernel_row: Vec<f64> = self.samples.iter().map(|sample| kernel(sample.point, point)).collect();
        let log_latency = self.model.log_latency(point) + dot(&kernel_row, &self.residual_weights);
        let projected = self.project(point);
        Prediction {
            point,
            latency: log_latency.exp(),
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
        let log_headroom = (target.max_seconds / prediction.latency).ln() - log_ratio.mean;
        let std_dev = log_ratio.std_dev.hypot(prediction.std_dev);
        // The logistic approximation of the normal distribution function.
        1.0 / (1.0 + (-1.702 * log_headroom / std_dev).exp())
    }

    /// Prepares a point for posterior covariances.
    pub(super) fn project(&self, point: OperatingPoint) -> ProjectedPoint {
        let gradient = log_latency_gradient(&self.parameters, point);
        let prior_covariances = self.samples.iter().zip(&self.gradients).map(|(sample, sample_gradient)| {
            self.parameter_covariance(sample_gradient, &gradient) + kernel(sample.point, point)
        });
        let whitened = self.total_factor.whiten(&prior_covariances.collect::<Vec<f64>>());
        ProjectedPoint { point, gradient, whitened }
    }

    /// The posterior covariance of two points.
    pub(super) fn posterior_covariance(&self, a: &ProjectedPoint, b: &ProjectedPoint) -> f64 {
        self.parameter_covariance(&a.gradient, &b.gradient) + kernel(a.point, b.point)
            - dot(&a.whitened, &b.whitened)
    }

    /// The prior covariance of the log latency at two points that is due to the uncertainty of the parameters, given
    /// the gradients at both points.
    fn parameter_covariance(&self, a: &ParameterVector, b: &ParameterVector) -> f64 {
        a.iter().zip(b).zip(&self.prior_std_dev).map(|((a, b), std_dev)| a * b * std_dev.powi(2)).sum()
    }

    /// The log latency of each sample minus that of the model.
    fn residuals(&self, model: &LatencyModel) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.latency.ln() - model.log_latency(sample.point)).collect()
    }

    /// Starting points of the search, because the misfit has several local minima: the prior mean; a bottleneck at
    /// about the measured maxima; slow connections as the limit; and a bottleneck that is far from saturated.
    fn starting_points(&self, mean: LatencyModel) -> Vec<LatencyModel> {
        let Some(max_throughput) = self.samples.iter().map(Sample::throughput).max_by(f64::total_cmp) else {
            return vec![mean];
        };
        let max_rate =
            self.samples.iter().map(|sample| sample.point.request_rate(sample.latency)).fold(1.0, f64::max);
        let min_latency = self.samples.iter().map(|sample| sample.latency).fold(f64::MAX, f64::min);
        let from_samples = LatencyModel {
            fixed_seconds: min_latency * 0.9,
            bottleneck_seconds_per_request: 0.5 / max_rate,
            bottleneck_seconds_per_byte: 1.0 / max_throughput,
            ..mean
        };
        let connection_bound =
            LatencyModel { connection_seconds_per_byte: 0.3 / max_throughput, ..from_samples };
        let unsaturated = LatencyModel {
            bottleneck_seconds_per_request: 0.05 / max_rate,
            bottleneck_seconds_per_byte: 0.2 / max_throughput,
            ..from_samples
        };
        vec![mean, from_samples, connection_bound, unsaturated]
    }

    /// Twice the negative log posterior of the parameters, up to a constant.
    fn misfit(&self, parameters: &ParameterVector) -> f64 {
        let model = Parameters::from_vector(*parameters).to_model();
        let whitened = self.residual_factor.whiten(&self.residuals(&model));
        let prior = self.prior_mean.iter().zip(&self.prior_std_dev);
        let squared_deviations =
            parameters.iter().zip(prior).map(|(value, (mean, std_dev))| ((value - mean) / std_dev).powi(2));
        dot(&whitened, &whitened) + squared_deviations.sum::<f64>()
    }

    /// Minimizes the misfit by Gauss-Newton steps from a starting point.
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

/// A point, prepared for posterior covariances with other points.
#[derive(Debug, Clone)]
pub(super) struct ProjectedPoint {
    point: OperatingPoint,
    /// The gradient of the log latency with respect to the parameters.
    gradient: ParameterVector,
    /// The prior covariances with the samples, whitened by their full covariance.
    whitened: Vec<f64>,
}

/// The kernel: the prior covariance of the deviations from the model at two points.
fn kernel(a: OperatingPoint, b: OperatingPoint) -> f64 {
    let doublings = [
        (a.bytes.max(1) as f64 / b.bytes.max(1) as f64).log2(),
        (a.concurrency.max(1) as f64 / b.concurrency.max(1) as f64).log2(),
    ];
    let squared_distance: f64 = doublings
        .iter()
        .zip(KERNEL_LENGTH_SCALES)
        .map(|(doublings, length_scale)| (doublings / length_scale).powi(2))
        .sum();
    // Matérn 3/2: deviations are continuous, but rough.
    let distance = (3.0 * squared_distance).sqrt();
    KERNEL_STD_DEV.powi(2) * (1.0 + distance) * (-distance).exp()
}

/// The covariance of two samples for fixed parameters: the kernel, plus the measurement noise on the diagonal.
fn sample_covariance(samples: &[Sample], i: usize, j: usize) -> f64 {
    let noise_variance = if i == j { samples[i].relative_error.max(MIN_RELATIVE_ERROR).powi(2) } else { 0.0 };
    kernel(samples[i].point, samples[j].point) + noise_variance
}
