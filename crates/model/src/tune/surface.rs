//! Predicts the latency of all points of one direction from samples.
//!
//! The prediction is a [`Law`] plus a Gaussian process for what the model does not capture, which is similar for nearby
//! points. Parameters, deviations and measurement noise are normal in the logarithm of the latency. The most likely
//! surface, its uncertainty and the information gain of another sample therefore follow from the same equations
//! (universal kriging with a nonlinear mean, fitted by Gauss-Newton). Bandwidth follows from latency and concurrency
//! (Little 1961).

use super::law::{Belief, COUNT, Law};
use super::matrix::{Factor, dot};
use super::tail::{Statistic, Tails};
use super::{Cap, Cell, Sample};

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
pub struct Inferred {
    /// The point.
    pub cell: Cell,
    /// Mean latency of a request, in seconds.
    pub latency: f64,
    /// Standard deviation of the logarithm of `latency`: 0.1 is about 10 %.
    pub deviation: f64,
}

impl Inferred {
    /// Total bytes per second.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.cell.bandwidth(self.latency)
    }

    /// Requests per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.cell.rate(self.latency)
    }
}

/// The posterior for one direction, given samples. See the module.
#[derive(Debug, Clone)]
pub struct Surface {
    samples: Vec<Sample>,
    prior: Belief,
    model: Law,
    /// Cholesky factor of the sample covariance without the uncertainty of the parameters.
    unknown: Factor,
    /// Cholesky factor of the full sample covariance.
    all: Factor,
    slopes: Vec<[f64; COUNT]>,
    /// The residuals of the samples against the model, times the inverse of the first covariance.
    rest: Vec<f64>,
    tails: Tails,
}

impl Surface {
    /// Fits the surface to samples.
    #[must_use]
    pub fn new(prior: Belief, samples: Vec<Sample>) -> Self {
        let unknown = Factor::of(samples.len(), |i, j| noise(&samples, i, j));
        let mut fit = Self {
            model: prior.mean,
            all: Factor::default(),
            slopes: Vec::new(),
            rest: Vec::new(),
            tails: Tails::default(),
            samples,
            prior,
            unknown,
        };
        let starts = fit.starts();
        let best = starts.into_iter().map(|start| fit.descend(start)).min_by(|a, b| a.1.total_cmp(&b.1));
        fit.model = best.map_or(prior.mean, |(model, _)| model);
        fit.slopes = fit.samples.iter().map(|sample| fit.model.slopes(sample.cell)).collect();
        fit.all = Factor::of(fit.samples.len(), |i, j| {
            fit.believed(&fit.slopes[i], &fit.slopes[j]) + noise(&fit.samples, i, j)
        });
        fit.rest = fit.unknown.solve(&fit.residuals(&fit.model));
        fit.tails = Tails::of(&fit.model, &fit.samples);
        fit
    }

    /// The samples that it was fitted to.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The most likely parameters.
    #[must_use]
    pub const fn law(&self) -> &Law {
        &self.model
    }

    /// The posterior of the parameters: the most likely values and their remaining standard deviations.
    #[must_use]
    pub fn learnt(&self) -> Belief {
        let remaining = |i: usize| {
            let prior = self.prior.deviation[i].powi(2);
            let cross: Vec<f64> = self.slopes.iter().map(|slopes| slopes[i] * prior).collect();
            let explained = self.all.half(&cross);
            (prior - dot(&explained, &explained)).max(0.0).sqrt()
        };
        Belief { mean: self.model, deviation: std::array::from_fn(remaining) }
    }

    /// The prediction for a point.
    #[must_use]
    pub fn infer(&self, cell: Cell) -> Inferred {
        let kernel_row: Vec<f64> = self.samples.iter().map(|sample| alike(sample.cell, cell)).collect();
        let log = self.model.log_latency(cell) + dot(&kernel_row, &self.rest);
        let view = self.view(cell);
        Inferred { cell, latency: log.exp(), deviation: self.covariance(&view, &view).max(0.0).sqrt() }
    }

    /// A statistic of the latency at a point, in seconds.
    #[must_use]
    pub fn latency(&self, found: &Inferred, statistic: Statistic) -> f64 {
        found.latency * self.tails.factor(&self.model, found.cell, statistic).0.exp()
    }

    /// The probability that a point meets a latency target, given the uncertainty of both its mean and its tail.
    #[must_use]
    pub fn keeps(&self, found: &Inferred, cap: Cap) -> f64 {
        let (factor, deviation) = self.tails.factor(&self.model, found.cell, cap.of);
        let headroom = (cap.seconds / found.latency).ln() - factor;
        // The logistic approximation of the normal distribution function.
        1.0 / (1.0 + (-1.702 * headroom / deviation.hypot(found.deviation)).exp())
    }

    /// Prepares a point for posterior covariances.
    pub(super) fn view(&self, cell: Cell) -> View {
        let slopes = self.model.slopes(cell);
        let prior_covariances = self
            .samples
            .iter()
            .zip(&self.slopes)
            .map(|(sample, own)| self.believed(own, &slopes) + alike(sample.cell, cell));
        let seen = self.all.half(&prior_covariances.collect::<Vec<f64>>());
        View { cell, slopes, seen }
    }

    /// The posterior covariance of two points.
    pub(super) fn covariance(&self, a: &View, b: &View) -> f64 {
        self.believed(&a.slopes, &b.slopes) + alike(a.cell, b.cell) - dot(&a.seen, &b.seen)
    }

    /// The covariance of two points by the prior of the parameters.
    fn believed(&self, a: &[f64; COUNT], b: &[f64; COUNT]) -> f64 {
        (0..COUNT).map(|i| a[i] * b[i] * self.prior.deviation[i].powi(2)).sum()
    }

    fn residuals(&self, model: &Law) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.latency.ln() - model.log_latency(sample.cell)).collect()
    }

    /// Starting points of the search, as the objective has several local minima.
    fn starts(&self) -> Vec<Law> {
        let mean = self.prior.mean;
        let Some(fastest) = self.samples.iter().map(Sample::bandwidth).max_by(f64::total_cmp) else {
            return vec![mean];
        };
        let max_rate = self.samples.iter().map(|sample| sample.cell.rate(sample.latency)).fold(1.0, f64::max);
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
    fn misfit(&self, model: &Law) -> f64 {
        let half = self.unknown.half(&self.residuals(model));
        let off = (0..COUNT).map(|i| ((model.0[i] - self.prior.mean.0[i]) / self.prior.deviation[i]).powi(2));
        dot(&half, &half) + off.sum::<f64>()
    }

    /// Gauss-Newton from a starting point. Returns the parameters found and their misfit.
    fn descend(&self, start: Law) -> (Law, f64) {
        let (mut model, mut misfit) = (start, self.misfit(&start));
        for _ in 0..MAX_STEPS {
            let target = self.aim(&model);
            let mut step_size = 1.0;
            let next = (0..MAX_HALVINGS).find_map(|_| {
                let next =
                    Law(std::array::from_fn(|i| (target.0[i] - model.0[i]).mul_add(step_size, model.0[i])));
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
    fn aim(&self, model: &Law) -> Law {
        let mean = self.prior.mean;
        let slopes: Vec<[f64; COUNT]> = self.samples.iter().map(|sample| model.slopes(sample.cell)).collect();
        let all = Factor::of(self.samples.len(), |i, j| {
            self.believed(&slopes[i], &slopes[j]) + noise(&self.samples, i, j)
        });
        let offset: [f64; COUNT] = std::array::from_fn(|i| mean.0[i] - model.0[i]);
        let linearized: Vec<f64> = self
            .residuals(model)
            .iter()
            .zip(&slopes)
            .map(|(rest, slopes)| rest - dot(slopes, &offset))
            .collect();
        let weights = all.solve(&linearized);
        Law(std::array::from_fn(|i| {
            let step: f64 = slopes.iter().zip(&weights).map(|(slopes, weight)| slopes[i] * weight).sum();
            mean.0[i] + self.prior.deviation[i].powi(2) * step
        }))
    }
}

/// A point, prepared for posterior covariances.
#[derive(Debug, Clone)]
pub(super) struct View {
    cell: Cell,
    slopes: [f64; COUNT],
    seen: Vec<f64>,
}

/// The kernel: the prior covariance of the deviations from the model at two points.
fn alike(a: Cell, b: Cell) -> f64 {
    let doublings = [
        (a.bytes.max(1) as f64 / b.bytes.max(1) as f64).log2(),
        (a.parallel.max(1) as f64 / b.parallel.max(1) as f64).log2(),
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
fn noise(samples: &[Sample], i: usize, j: usize) -> f64 {
    let chance = if i == j { samples[i].error.max(MIN_RELATIVE_ERROR).powi(2) } else { 0.0 };
    alike(samples[i].cell, samples[j].cell) + chance
}
