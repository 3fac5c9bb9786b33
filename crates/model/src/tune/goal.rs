//! Chooses the best point for a goal.

use super::OperatingPoint;
use super::sampling::MAX_ROUND_SECONDS;
use super::surface::{Prediction, Surface};
use super::tail_latency::Statistic;

/// The objective. Points whose requests take longer than [`MAX_ROUND_SECONDS`] are never probed. They are chosen only
/// if no point with shorter requests is equivalent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Maximum throughput.
    Throughput,
    /// Maximum throughput under a latency target. Among the points within 3 % of that maximum, the one most
    /// likely to meet the target is chosen.
    Latency(LatencyTarget),
    /// Minimum cost for the client within 3 % of the maximum throughput: the largest requests, then the lowest
    /// concurrency (Hou 2017, section 7).
    Efficiency,
}

/// A limit on the latency of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyTarget {
    /// The statistic that is limited.
    pub statistic: Statistic,
    /// The maximum value.
    pub max_seconds: f64,
}

impl LatencyTarget {
    /// A limit on the mean, in seconds.
    #[must_use]
    pub const fn mean(seconds: f64) -> Self {
        Self { statistic: Statistic::Mean, max_seconds: seconds }
    }
}

/// Throughputs within this fraction are equivalent.
const EQUIVALENT_FRACTION: f64 = 0.03;
/// Minimum probability of meeting the target for a point to be eligible.
const MIN_TARGET_PROBABILITY: f64 = 0.5;
/// Higher probabilities of meeting the target count as equal.
const MAX_USEFUL_PROBABILITY: f64 = 0.98;

/// The best of these points; `None` if none is likely to meet the target.
#[must_use]
pub fn choose(surface: &Surface, points: &[OperatingPoint], goal: Goal) -> Option<Prediction> {
    // Rank by the lower confidence bound (one sigma), so that an uncertain candidate cannot win on its mean alone.
    let lower_bound = |prediction: &Prediction| prediction.throughput() * (-prediction.std_dev).exp();
    let predictions: Vec<Prediction> = points
        .iter()
        .map(|point| surface.predict(*point))
        .filter(|prediction| lower_bound(prediction) > 0.0)
        .collect();
    let equivalent_to = |best: f64| {
        predictions
            .iter()
            .filter(move |prediction| lower_bound(prediction) >= best * (1.0 - EQUIVALENT_FRACTION))
    };
    let best = || predictions.iter().map(lower_bound).max_by(f64::total_cmp);
    let chosen = match goal {
        Goal::Throughput => within_probe_latency(equivalent_to(best()?))
            .max_by(|a, b| lower_bound(a).total_cmp(&lower_bound(b))),
        Goal::Latency(target) => {
            let score = |prediction: &Prediction| {
                lower_bound(prediction) * target_weight(surface, prediction, target)
            };
            let is_eligible = |prediction: &&Prediction| score(prediction) > 0.0;
            let best = predictions.iter().filter(is_eligible).max_by(|a, b| score(a).total_cmp(&score(b)))?;
            // Beyond the knee a lower concurrency has the same throughput and less latency: headroom that costs
            // nothing.
            let headroom = |prediction: &Prediction| {
                surface.target_probability(prediction, target).min(MAX_USEFUL_PROBABILITY)
            };
            within_probe_latency(equivalent_to(lower_bound(best)).filter(is_eligible)).max_by(|a, b| {
                headroom(a).total_cmp(&headroom(b)).then_with(|| lower_bound(a).total_cmp(&lower_bound(b)))
            })
        }
        Goal::Efficiency => {
            let cost = |prediction: &&Prediction| {
                (std::cmp::Reverse(prediction.point.bytes), prediction.point.concurrency)
            };
            within_probe_latency(equivalent_to(best()?)).min_by_key(cost)
        }
    };
    chosen.copied()
}

/// The points with a latency of at most [`MAX_ROUND_SECONDS`] (slower ones are never probed); if there is none, the
/// fastest.
fn within_probe_latency<'a>(
    predictions: impl Iterator<Item = &'a Prediction> + Clone,
) -> impl Iterator<Item = &'a Prediction> {
    let min_latency = predictions.clone().map(|prediction| prediction.latency).fold(f64::INFINITY, f64::min);
    predictions.filter(move |prediction| prediction.latency <= MAX_ROUND_SECONDS.max(min_latency))
}

/// Factor of a point's throughput under a target; 0 if it probably misses the target. A missed mean exceeds its limit
/// slightly, but a missed percentile exceeds it several times. The factor of a percentile is therefore the probability
/// of meeting the target.
fn target_weight(surface: &Surface, prediction: &Prediction, target: LatencyTarget) -> f64 {
    let probability = surface.target_probability(prediction, target);
    match target.statistic {
        _ if probability < MIN_TARGET_PROBABILITY => 0.0,
        Statistic::Mean => 1.0,
        Statistic::P95 | Statistic::P99 => probability,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{latency_model, sampled};
    use crate::tune::{Prior, Sample, TailLatency};

    /// 64 requests of 16 MiB have the same throughput on a saturated link as 16 of 1 MiB, and take ten seconds each.
    #[test]
    fn slow_point_is_not_chosen_if_a_faster_one_is_equivalent() {
        let mut all = OperatingPoint::grid(&[16 << 20], &[32, 64]);
        all.extend(OperatingPoint::grid(&[64 << 10, 1 << 20], &[1, 4, 16, 64]));
        for seed in 1..=5 {
            let (surface, _) = sampled(&latency_model(0.02, 20e6, 5e3, 100e6), seed);
            for goal in [Goal::Throughput, Goal::Efficiency] {
                let chosen = choose(&surface, &all, goal).unwrap();
                assert!(chosen.latency <= MAX_ROUND_SECONDS, "{goal:?}: {chosen:?}");
            }
            // If all points are slow, the fastest one is chosen.
            let slow = OperatingPoint::grid(&[64 << 20], &[16, 32, 64]);
            for goal in [Goal::Throughput, Goal::Efficiency] {
                assert_eq!(choose(&surface, &slow, goal).unwrap().point.concurrency, 16, "{goal:?}");
            }
        }
    }

    /// Low concurrency has stragglers here, high concurrency waits evenly: the lower mean does not meet the p95 target.
    #[test]
    fn slow_point_is_chosen_if_no_other_meets_the_target() {
        let model = latency_model(0.02, 20e6, 5e3, 25e6);
        let points = OperatingPoint::grid(&[16 << 20], &(3..=16).collect::<Vec<usize>>());
        let samples = [(3, 6.0), (4, 6.0), (9, 1.02), (10, 1.02)].map(|(concurrency, tail)| {
            let point = OperatingPoint { bytes: 16 << 20, concurrency };
            let latency = model.log_latency(point).exp();
            Sample {
                point,
                latency,
                relative_error: 0.02,
                tail: Some(TailLatency { p95: latency * tail, p99: latency * tail }),
                from_transfer: false,
            }
        });
        let surface = Surface::new(Prior::default(), samples.to_vec());
        let target = LatencyTarget { statistic: Statistic::P95, max_seconds: 8.0 };
        let chosen = choose(&surface, &points, Goal::Latency(target)).unwrap();
        assert!(
            surface.target_probability(&chosen, target) >= MIN_TARGET_PROBABILITY
                && chosen.latency > MAX_ROUND_SECONDS,
            "{chosen:?}"
        );
    }

    /// On a saturated link, more concurrency adds latency but no throughput. The maximum throughput among points likely
    /// to meet a target lies right at its limit.
    #[test]
    fn target_is_met_with_headroom_that_costs_nothing() {
        let target = LatencyTarget::mean(0.05);
        for seed in 1..=3 {
            let (surface, _) = sampled(&latency_model(0.02, 20e6, 5e3, 100e6), seed);
            for bytes in [64 << 10, 256 << 10] {
                let points = OperatingPoint::grid(&[bytes], &(1..=128).collect::<Vec<usize>>());
                let chosen = choose(&surface, &points, Goal::Latency(target)).unwrap();
                let predictions = points.iter().map(|point| surface.predict(*point));
                let eligible = predictions.filter(|prediction| {
                    surface.target_probability(prediction, target) >= MIN_TARGET_PROBABILITY
                });
                let best = eligible.map(|prediction| prediction.throughput()).fold(0.0, f64::max);
                assert!(
                    surface.target_probability(&chosen, target) > 0.8,
                    "{chosen:?} {}",
                    surface.target_probability(&chosen, target)
                );
                assert!(chosen.throughput() > (1.0 - EQUIVALENT_FRACTION) * 0.99 * best, "{chosen:?} {best}");
            }
        }
    }

    /// Without tail samples, a point with slightly more throughput that is as likely to miss the target as to meet it
    /// is not chosen.
    #[test]
    fn tail_target_is_met_with_headroom() {
        let (surface, points) = sampled(&latency_model(0.02, 20e6, 5e3, 100e6), 1);
        for statistic in [Statistic::P95, Statistic::P99] {
            for seconds in [0.05, 0.2, 1.0] {
                let target = LatencyTarget { statistic, max_seconds: seconds };
                let chosen = choose(&surface, &points, Goal::Latency(target)).unwrap();
                let probability = surface.target_probability(&chosen, target);
                let others = points.iter().map(|point| surface.predict(*point));
                let safer_throughput = others
                    .filter(|other| surface.target_probability(other, target) > probability + 0.2)
                    .map(|other| other.throughput())
                    .fold(0.0, f64::max);
                assert!(
                    probability >= MIN_TARGET_PROBABILITY && safer_throughput < chosen.throughput(),
                    "{target:?}: {chosen:?} {probability} {safer_throughput}"
                );
            }
        }
        assert_eq!(
            choose(
                &surface,
                &points,
                Goal::Latency(LatencyTarget { statistic: Statistic::P99, max_seconds: 1e-3 })
            ),
            None
        );
    }
}
