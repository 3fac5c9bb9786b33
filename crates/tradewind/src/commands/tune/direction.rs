//! Measurement of both directions within the budget, with progress output.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use tradewind_bench::drive::StopSignal;
use tradewind_bench::tune::{self, ProbeTarget, SamplingConfig, SamplingEvent, SamplingResult};
use tradewind_core::ErrorKind;
use tradewind_core::error::Result;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::sampling::SamplingBudget;
use tradewind_model::tune::{OperatingPoint, Workload};

use super::Arguments;
use super::heat_map::HeatMap;
use super::json_lines::{print_probe, print_surface};
use super::starting_point::StartingPoint;
use super::workload::Workloads;
use crate::commands::plan_output::{self, candidate_points, direction_name, format_seconds};
use crate::commands::terminal::print_error_line;
use crate::profiles::this_machine::cpus;
use crate::settings::ByteSize;

/// The maximum number of probes per direction.
const MAX_PROBES: usize = 8;
/// The fraction of the budget for uploads; downloads get the rest.
const UPLOAD_FRACTION: f64 = 0.5;

/// The result of one direction.
pub(super) struct DirectionResult {
    pub direction: Direction,
    pub sampled: SamplingResult,
    /// Candidate operating points.
    pub points: Vec<OperatingPoint>,
}

impl DirectionResult {
    /// Returns true if a probe yielded a sample.
    pub fn has_samples(&self) -> bool {
        !self.sampled.surface.samples().is_empty()
    }

    /// The failure of a probe, if one failed.
    fn failure(&self) -> Option<&str> {
        self.sampled.probes.iter().find_map(|probed| probed.failure.as_deref())
    }

    /// Prints the best operating points, or the reason why there is no result.
    pub fn print(&self, arguments: &Arguments, workload: Option<&Workload>) -> io::Result<()> {
        let (direction, mut out) = (self.direction, io::stdout());
        if self.has_samples() {
            let surface = &self.sampled.surface;
            return write!(
                out,
                "{}",
                plan_output::describe_best_points(
                    direction,
                    surface,
                    &self.points,
                    (&arguments.latency, workload)
                )
            );
        }
        let max_time = self.sampled.probes.iter().map(|probed| probed.time).max();
        let reason = match (self.failure(), max_time) {
            (Some(failure), _) => failure.to_owned(),
            (None, Some(time)) => {
                format!("no request completed within {}", format_seconds(time.as_secs_f64()))
            }
            (None, None) => "the budget is too small for a single probe".to_owned(),
        };
        writeln!(out, "{}: no result: {reason}", direction_name(direction))
    }
}

/// The measurement of both directions.
pub(super) struct DirectionTuner<'a> {
    pub arguments: &'a Arguments,
    pub target: &'a Arc<ProbeTarget>,
    pub start: &'a StartingPoint,
    pub workloads: Option<&'a Workloads>,
    pub stop: &'a StopSignal,
}

impl DirectionTuner<'_> {
    /// Measures both directions, or the one that is possible. If stopped, returns the results so far.
    pub async fn measure(&self) -> anyhow::Result<Vec<DirectionResult>> {
        let (ByteSize(bytes), time) = self.arguments.budget;
        let mut remaining =
            SamplingBudget { bytes: bytes as f64, seconds: time.as_secs_f64(), probes: MAX_PROBES };
        let mut results = Vec::new();
        for (direction, fraction) in [(Direction::Write, UPLOAD_FRACTION), (Direction::Read, 1.0)] {
            let points =
                self.workloads.map_or_else(candidate_points, |workloads| workloads.points(direction));
            if self.stop.is_triggered() || !self.can_measure(direction, &points).await? {
                break;
            }
            let budget = SamplingBudget {
                bytes: remaining.bytes * fraction,
                seconds: remaining.seconds * fraction,
                probes: MAX_PROBES,
            };
            let sampled = match self.sample(direction, &points, budget).await {
                Ok(sampled) => sampled,
                Err(e) if direction == Direction::Write && e.kind() == ErrorKind::Denied => {
                    writeln!(io::stderr(), "no permission to write here: only downloads are measured")?;
                    continue;
                }
                Err(e) if !results.is_empty() => {
                    // The result for uploads remains valid.
                    print_error_line(format_args!("tradewind: cannot measure downloads: {e}"))?;
                    break;
                }
                Err(e) => return Err(e.into()),
            };
            remaining.bytes -= budget.bytes - sampled.remaining_budget.bytes;
            remaining.seconds -= budget.seconds - sampled.remaining_budget.seconds;
            results.push(DirectionResult { direction, sampled, points });
        }
        Ok(results)
    }

    /// Returns true for uploads, and for downloads if there is an object at least as large as the smallest request.
    async fn can_measure(&self, direction: Direction, points: &[OperatingPoint]) -> anyhow::Result<bool> {
        let min_bytes = points.iter().map(|point| point.bytes).min().unwrap_or(0).max(1);
        if direction == Direction::Write || self.target.max_read_bytes() >= min_bytes {
            return Ok(true);
        }
        self.target.add_existing_objects(&self.arguments.location.key).await?;
        let has_object = self.target.max_read_bytes() >= min_bytes;
        if !has_object {
            writeln!(io::stderr(), "there are no objects to download here: downloads are not measured")?;
        }
        Ok(has_object)
    }

    /// Samples one direction, with progress output.
    async fn sample(
        &self,
        direction: Direction,
        points: &[OperatingPoint],
        budget: SamplingBudget,
    ) -> Result<SamplingResult> {
        let is_json = self.arguments.json;
        let config = SamplingConfig { points: points.to_vec(), budget, cpus: cpus() };
        let mut heat_map = HeatMap::new(direction, points, is_json || !io::stdout().is_terminal());
        let on_event = |event: SamplingEvent<'_>| match event {
            SamplingEvent::ProbeStarted(_, point) => heat_map.probe_started(point),
            SamplingEvent::Probed(probed, surface) => {
                heat_map.probe_finished(probed, surface);
                if is_json {
                    print_probe(probed);
                }
            }
        };
        // An extrapolated prior is used for sampling only; the profile has just the samples.
        let prior = self.start.prior(direction);
        let sampled = tune::sample(self.target, direction, (&config, prior), self.stop, on_event).await?;
        let surface = &sampled.surface;
        if is_json {
            print_surface(direction, points, surface);
            let best_points =
                plan_output::best_points_as_json(direction, surface, points, &self.arguments.latency);
            for line in best_points.into_iter().chain(plan_output::splits_as_json(direction, surface)) {
                let _ = writeln!(io::stdout(), "{line}");
            }
        } else {
            let _ = heat_map.finish(surface);
        }
        Ok(sampled)
    }
}
