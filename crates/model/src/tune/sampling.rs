//! Chooses the next point to probe: the one with the most information about points that may be the best, per cost.
//! There is no grid; the information gain of a probe is known before it runs.

use super::surface::{Prediction, ProjectedPoint, Surface};
use super::{OperatingPoint, Sample};

/// Standard deviation of the shortest probe, in the logarithm of the latency.
const PROBE_STD_DEV: f64 = 0.05;
/// Added to the standard deviation of a point when its distance from the best bandwidth is weighed.
const CONTENTION_MARGIN: f64 = 0.05;
/// Weight of every point.
const BASE_WEIGHT: f64 = 0.02;
/// Additional weight of a point that may be the best of its size, and the best of all.
const BEST_OF_SIZE_WEIGHT: f64 = 0.3;
const BEST_OVERALL_WEIGHT: f64 = 1.0;
/// Points whose requests take longer than this, in seconds, are not probed but inferred.
pub const MAX_ROUND_SECONDS: f64 = 3.0;
/// Sampling ends at this weighted standard deviation, or if no probe removes this fraction of the weighted variance.
const TARGET_STD_DEV: f64 = 0.02;
const MIN_RELATIVE_GAIN: f64 = 0.003;
/// Bytes of a fair probe, in seconds of the store's throughput.
const FAIR_PROBE_SECONDS: f64 = 3.0;
/// Points with a sample below this relative error are not probed again: the deviation from the model would remain.
const MAX_RESAMPLE_ERROR: f64 = 0.06;

/// Measured duration of a probe in seconds, …
pub const MIN_MEASURED_SECONDS: f64 = 0.3;
/// … or in rounds of requests, if those take less time.
pub const MAX_MEASURED_ROUNDS: f64 = 32.0;
/// Additional rounds: those in which windows open, and those in flight at the end.
const OVERHEAD_ROUNDS: f64 = 3.2;
/// Delay until the end of a probe is detected.
const END_DETECTION_SECONDS: f64 = 0.02;

/// Limits of the cost of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Bytes of request bodies.
    pub bytes: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of probes.
    pub probes: usize,
}

impl Budget {
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

/// The cost of a probe that is soon precise enough: a round that is not measured, then the shortest measurement.
#[must_use]
pub fn min_cost(prediction: &Prediction) -> Cost {
    cost_of_duration(
        prediction,
        MIN_MEASURED_SECONDS.min(prediction.latency.mul_add(MAX_MEASURED_ROUNDS, END_DETECTION_SECONDS)),
    )
}

/// The cost of a probe that needs the full measured duration.
#[must_use]
pub fn max_cost(prediction: &Prediction) -> Cost {
    cost_of_duration(prediction, MIN_MEASURED_SECONDS)
}

fn cost_of_duration(prediction: &Prediction, measured_seconds: f64) -> Cost {
    let seconds = prediction.latency.mul_add(OVERHEAD_ROUNDS, measured_seconds);
    Cost { bytes: prediction.bandwidth() * seconds + prediction.point.bytes_in_flight() / 2.0, seconds }
}

/// The next one of `points` to probe; `None` if no probe is worth its cost or fits the budget.
#[must_use]
pub fn next_probe(surface: &Surface, points: &[OperatingPoint], budget: &Budget) -> Option<OperatingPoint> {
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
        |candidate: &Candidate| candidate.prediction.bandwidth() * (-candidate.prediction.std_dev).exp();
    let fastest = candidates.iter().map(lower_bound).fold(0.0, f64::max);
    let probes = budget.probes as f64;
    let fair = Cost {
        bytes: (budget.bytes / probes).min(fastest * FAIR_PROBE_SECONDS),
        seconds: budget.seconds / probes,
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
        let price = 1.0 + (cost.bytes / fair.bytes).powi(2) + (cost.seconds / fair.seconds).powi(2);
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

/// The weight of each candidate: the likelihood of being chosen.
fn weights(candidates: &[Candidate]) -> Vec<f64> {
    let best = |among: &dyn Fn(&Prediction) -> bool| {
        let predictions = candidates.iter().map(|candidate| &candidate.prediction);
        predictions
            .filter(|prediction| among(prediction))
            .map(Prediction::bandwidth)
            .fold(f64::MIN_POSITIVE, f64::max)
    };
    let best_overall = best(&|_| true);
    let likelihood = |prediction: &Prediction, best: f64| {
        let gap = (best / prediction.bandwidth()).ln() / (prediction.std_dev + CONTENTION_MARGIN);
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
