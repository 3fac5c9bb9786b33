//! Chooses the next point to probe: the one with the most information about points that may be the best, per cost.
//! The gain of a probe does not depend on its result, so it is computed before the probe runs.
//!
//! A *round* is one request of each worker, hence as long as the latency of a request.

use super::surface::{Prediction, ProjectedPoint, Surface};
use super::{OperatingPoint, Sample};

/// Standard deviation of the shortest probe, in the logarithm of the latency.
const PROBE_STD_DEV: f64 = 0.05;
/// Added to the standard deviation of a point when it is compared with the best one: points of nearly the best
/// throughput stay relevant even if their predictions are certain.
const NEAR_BEST_MARGIN: f64 = 0.05;
/// Minimum weight of a point.
const BASE_WEIGHT: f64 = 0.02;
/// Additional weight of a point that is certainly the best of its size.
const BEST_OF_SIZE_WEIGHT: f64 = 0.3;
/// Additional weight of a point that is certainly the best of all.
const BEST_OVERALL_WEIGHT: f64 = 1.0;
/// Maximum latency of the requests of a probe, in seconds. Points with longer requests are inferred.
pub const MAX_ROUND_SECONDS: f64 = 3.0;
/// Sampling ends at this weighted root mean square of the standard deviations of all points.
const TARGET_STD_DEV: f64 = 0.02;
/// Minimum fraction of the weighted variance that a probe must remove. Sampling ends if no probe does.
const MIN_RELATIVE_GAIN: f64 = 0.003;
/// Upper limit of a probe's share of the byte budget: what the best point transfers in this many seconds.
const MAX_SHARE_SECONDS: f64 = 3.0;
/// Points with a sample below this relative error are not probed again: a second sample would hardly reduce the
/// uncertainty of the deviations from the model.
const MAX_RESAMPLE_ERROR: f64 = 0.06;

/// Measured duration, in seconds, after which a probe may end.
pub const MIN_MEASURED_SECONDS: f64 = 0.3;
/// Number of measured rounds that suffice: a probe may end after them even before [`MIN_MEASURED_SECONDS`].
pub const SUFFICIENT_ROUNDS: f64 = 32.0;
/// Rounds of a probe that are not measured: those in which congestion windows open, and those in flight at the end.
const OVERHEAD_ROUNDS: f64 = 3.2;
/// Delay until the end condition of a probe is detected, in seconds.
const END_DETECTION_SECONDS: f64 = 0.02;

/// Limits of the cost of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingBudget {
    /// Bytes of request bodies.
    pub bytes: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of probes.
    pub probes: usize,
}

impl SamplingBudget {
    /// The budget left after a probe.
    #[must_use]
    pub fn minus_probe(&self, probe: Cost) -> Self {
        Self {
            bytes: (self.bytes - probe.bytes).max(0.0),
            seconds: (self.seconds - probe.seconds).max(0.0),
            probes: self.probes.saturating_sub(1),
        }
    }
}

/// The cost of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Bytes of request bodies.
    pub bytes: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The cost of a probe that ends after the shortest measurement: [`SUFFICIENT_ROUNDS`] or [`MIN_MEASURED_SECONDS`],
/// whichever is over first. Includes the rounds that are not measured.
#[must_use]
pub fn min_cost(prediction: &Prediction) -> Cost {
    cost_of_duration(
        prediction,
        MIN_MEASURED_SECONDS.min(prediction.latency.mul_add(SUFFICIENT_ROUNDS, END_DETECTION_SECONDS)),
    )
}

/// The cost of a probe that measures for [`MIN_MEASURED_SECONDS`], even if it completes [`SUFFICIENT_ROUNDS`]
/// earlier.
#[must_use]
pub fn cost_of_min_duration(prediction: &Prediction) -> Cost {
    cost_of_duration(prediction, MIN_MEASURED_SECONDS)
}

fn cost_of_duration(prediction: &Prediction, measured_seconds: f64) -> Cost {
    let seconds = prediction.latency.mul_add(OVERHEAD_ROUNDS, measured_seconds);
    Cost { bytes: prediction.throughput() * seconds + prediction.point.bytes_in_flight() / 2.0, seconds }
}

/// The next one of `points` to probe; `None` if no probe is worth its cost or fits the budget.
#[must_use]
pub fn next_probe(
    surface: &Surface,
    points: &[OperatingPoint],
    budget: &SamplingBudget,
) -> Option<OperatingPoint> {
    if budget.probes == 0 {
        return None;
    }
    let candidates: Vec<Candidate> = points
        .iter()
        .map(|point| Candidate { projected: surface.project(*point), prediction: surface.predict(*point) })
        .collect();
    let weights = weights(&candidates);
    let total_variance: f64 = (candidates.iter().zip(&weights))
        .map(|(candidate, weight)| weight * candidate.prediction.std_dev.powi(2))
        .sum();
    if total_variance < TARGET_STD_DEV.powi(2) * weights.iter().sum::<f64>() {
        return None;
    }
    let lower_bound =
        |candidate: &Candidate| candidate.prediction.throughput() * (-candidate.prediction.std_dev).exp();
    let max_throughput = candidates.iter().map(lower_bound).fold(0.0, f64::max);
    let probe_count = budget.probes as f64;
    // The share of one probe in the remaining budget.
    let share = Cost {
        bytes: (budget.bytes / probe_count).min(max_throughput * MAX_SHARE_SECONDS),
        seconds: budget.seconds / probe_count,
    };
    let gain_per_cost = |Candidate { projected, prediction }: &Candidate| {
        let cost = min_cost(prediction);
        let is_over_budget = cost.bytes > budget.bytes || cost.seconds > budget.seconds;
        let is_precise =
            |sample: &Sample| sample.point == prediction.point && sample.relative_error < MAX_RESAMPLE_ERROR;
        if is_over_budget
            || prediction.latency > MAX_ROUND_SECONDS
            || surface.samples().iter().any(is_precise)
        {
            return None;
        }
        let variance = surface.posterior_covariance(projected, projected).max(0.0) + PROBE_STD_DEV.powi(2);
        let covariance = |other: &Candidate| surface.posterior_covariance(&other.projected, projected);
        let gain: f64 = (candidates.iter().zip(&weights))
            .map(|(other, weight)| weight * covariance(other).powi(2) / variance)
            .sum();
        let price = 1.0 + (cost.bytes / share.bytes).powi(2) + (cost.seconds / share.seconds).powi(2);
        (gain > total_variance * MIN_RELATIVE_GAIN).then_some((prediction.point, gain / price))
    };
    candidates.iter().filter_map(gain_per_cost).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(point, _)| point)
}

/// A point that may be probed.
#[derive(Debug, Clone)]
struct Candidate {
    projected: ProjectedPoint,
    prediction: Prediction,
}

/// The weight of each candidate: how likely it is the best point of all, or of its size.
fn weights(candidates: &[Candidate]) -> Vec<f64> {
    let best = |is_included: &dyn Fn(&Prediction) -> bool| {
        let predictions = candidates.iter().map(|candidate| &candidate.prediction);
        predictions
            .filter(|prediction| is_included(prediction))
            .map(Prediction::throughput)
            .fold(f64::MIN_POSITIVE, f64::max)
    };
    let best_overall = best(&|_| true);
    let likelihood = |prediction: &Prediction, best: f64| {
        let gap = (best / prediction.throughput()).ln() / (prediction.std_dev + NEAR_BEST_MARGIN);
        (-gap * gap / 2.0).exp()
    };
    let weight = |candidate: &Candidate| {
        let prediction = &candidate.prediction;
        let best_of_size = best(&|other| other.point.bytes == prediction.point.bytes);
        BASE_WEIGHT
            + BEST_OF_SIZE_WEIGHT * likelihood(prediction, best_of_size)
            + BEST_OVERALL_WEIGHT * likelihood(prediction, best_overall)
    };
    candidates.iter().map(weight).collect()
}
