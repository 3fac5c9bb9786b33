//! Samples a store with one probe after another, each of one request size and concurrency. The next probe is always the
//! most informative one (Hou 2017, section 5.1). [`tradewind_model::tune`] chooses the probes and interprets them; this
//! module executes them.

pub mod probe;
pub mod probe_target;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{ErrorKind, Result};
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::sampling::{self, Cost, SamplingBudget};
use tradewind_model::tune::{OperatingPoint, Prediction, Prior, Surface};

pub use self::probe::{ProbeLimits, ProbeResult};
pub use self::probe_target::ProbeTarget;
use crate::drive::StopSignal;

/// Round trips measured to find the minimum RTT.
const RTT_SAMPLES: usize = 4;
/// Maximum duration and bytes of a probe, relative to the expected ones.
const MAX_COST_FACTOR: f64 = 2.5;
/// Minimum time limit of a probe.
const MIN_PROBE_TIME: Duration = Duration::from_millis(1500);
/// Fraction of the remaining bytes that a probe may use if it is less precise than expected.
const MAX_BUDGET_FRACTION: f64 = 0.1;

/// Configuration of a sampling run.
#[derive(Debug, Clone)]
pub struct SamplingConfig {
    /// Candidate operating points. The sampled ones are among them.
    pub points: Vec<OperatingPoint>,
    /// Budget of all probes.
    pub budget: SamplingBudget,
    /// CPUs that this process may use.
    pub cpus: usize,
}

/// A progress event.
#[derive(Debug)]
pub enum SamplingEvent<'a> {
    /// A probe begins.
    ProbeStarted(Direction, OperatingPoint),
    /// A probe is complete: its result, and the surface inferred from all probes of this direction.
    Probed(&'a ProbeResult, &'a Surface),
}

/// The result of all probes of one direction.
#[derive(Debug, Clone)]
pub struct SamplingResult {
    /// The probes, in order.
    pub probes: Vec<ProbeResult>,
    /// The surface inferred from them.
    pub surface: Surface,
    /// The remaining budget.
    pub remaining_budget: SamplingBudget,
}

/// Measures the minimum RTT of a few requests; `None` if the request is denied.
pub async fn measure_min_rtt(target: &ProbeTarget) -> Result<Option<Duration>> {
    let mut min = None;
    for _ in 0..RTT_SAMPLES {
        match target.measure_rtt().await {
            Ok(time) => min = Some(min.map_or(time, |min: Duration| min.min(time))),
            Err(e) if e.kind() == ErrorKind::Denied => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(min)
}

/// Samples one direction until no further probe is worthwhile or the budget is spent. If stopped, returns the results
/// so far.
pub async fn sample(
    target: &Arc<ProbeTarget>,
    direction: Direction,
    (config, prior): (&SamplingConfig, Prior),
    stop: &StopSignal,
    mut on_event: impl FnMut(SamplingEvent<'_>),
) -> Result<SamplingResult> {
    let mut points = config.points.clone();
    if direction == Direction::Read {
        let max_bytes = target.max_read_bytes();
        points.retain(|point| point.bytes <= max_bytes);
    }
    let mut sampled = SamplingResult {
        probes: Vec::new(),
        surface: Surface::new(prior, Vec::new()),
        remaining_budget: config.budget,
    };
    while !stop.is_triggered() {
        let Some(point) = sampling::next_probe(&sampled.surface, &points, &sampled.remaining_budget) else {
            break;
        };
        on_event(SamplingEvent::ProbeStarted(direction, point));
        let limits = probe_limits(&sampled.surface.predict(point), &sampled.remaining_budget);
        let probed = probe::run_probe(target, (direction, point), limits, (config.cpus, stop)).await?;
        sampled.remaining_budget = sampled
            .remaining_budget
            .minus_probe(Cost { bytes: probed.bytes as f64, seconds: probed.time.as_secs_f64() });
        // If no request succeeded, none would succeed at a point with at least this size and concurrency.
        let mut samples = sampled.surface.samples().to_vec();
        match probed.sample {
            Some(sample) => samples.push(sample),
            None => points.retain(|other| other.bytes < point.bytes || other.concurrency < point.concurrency),
        }
        sampled.surface = Surface::new(prior, samples);
        on_event(SamplingEvent::Probed(&probed, &sampled.surface));
        sampled.probes.push(probed);
    }
    Ok(sampled)
}

/// The limits of a probe, from its expected cost and the remaining budget.
fn probe_limits(expected: &Prediction, remaining: &SamplingBudget) -> ProbeLimits {
    let (min_cost, cost_of_min_duration) =
        (sampling::min_cost(expected), sampling::cost_of_min_duration(expected));
    let remaining_time = Duration::from_secs_f64(remaining.seconds);
    let max_time = Duration::from_secs_f64(cost_of_min_duration.seconds * MAX_COST_FACTOR)
        .max(MIN_PROBE_TIME)
        .min(remaining_time);
    // A probe that is less precise than expected may use more bytes, but only a part of the remaining ones.
    let max_imprecise_bytes =
        (cost_of_min_duration.bytes * MAX_COST_FACTOR).min(remaining.bytes * MAX_BUDGET_FRACTION);
    let max_bytes = (min_cost.bytes * MAX_COST_FACTOR).max(max_imprecise_bytes).min(remaining.bytes) as u64;
    ProbeLimits {
        max_time,
        max_bytes,
        max_time_with_losses: remaining_time,
        max_bytes_with_losses: remaining.bytes as u64,
    }
}
