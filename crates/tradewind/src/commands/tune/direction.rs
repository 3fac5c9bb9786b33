//! Measurement of both directions within the budget, with progress output.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use tradewind_bench::drive::StopSignal;
use tradewind_bench::tune::{self, ProbeTarget, SamplingConfig, SamplingEvent, SamplingResult};
use tradewind_core::ErrorKind;
use tradewind_core::error::Result;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::sampling::Budget;
use tradewind_model::tune::{OperatingPoint, Workload};

use super::Arguments;
use super::heat_map::HeatMap;
use super::json_lines::{print_probe, print_surface};
use super::starting_point::StartingPoint;
use super::workload::Workloads;
use crate::commands::plan_output::{self, candidate_points, direction_name, format_seconds};
use crate::commands::terminal::print_error_line;
use crate::profiles::this_machine::cpus;

/// The limit of probes per direction.
const MAX_PROBES: usize = 8;
/// The fraction of the budget for uploads; downloads get the rest.
const UPLOAD_FRACTION: f64 = 0.5;

/// The result of one direction.
pub(super) struct DirectionResult {
    pub direction: Direction,
    pub sampled: SamplingResult,
    /// The operating points that a plan may use.
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

    /// Prints the plans, or why there is no result.
    pub fn print(&self, arguments: &Arguments, workload: Option<&Workload>) -> io::Result<()> {
        let (direction, mut out) = (self.direction, io::stdout());
        if self.has_samples() {
            let surface = &self.sampled.surface;
            return write!(
                out,
                "{}",
                plan_output::describe_plans(direction, surface, &self.points, (&arguments.latency, workload))
            );
        }
        let max_time = self.sampled.probes.iter().map(|probed| probed.time).max();
        let why = match (self.failure(), max_time) {
            (Some(failure), _) => failure.to_owned(),
            (None, Some(time)) => {
                format!("no request completed within {}", format_seconds(time.as_secs_f64()))
            }
            (None, None) => "the budget is too small for a single probe".to_owned(),
        };
        writeln!(out, "{}: no result: {why}", direction_name(direction))
    }
}

/// The measurement of both directions.
pub(super) struct DirectionTuner<'a> {
    pub arguments: &'a Arguments,
    pub ground: &'a Arc<ProbeTarget>,
    pub start: &'a StartingPoint,
    pub workloads: Option<&'a Workloads>,
    pub stop: &'a StopSignal,
}

impl DirectionTuner<'_> {
    /// Measures both directions, or the one that is possible. If stopped, returns the results so far.
    pub async fn measure(&self) -> anyhow::Result<Vec<DirectionResult>> {
        let (bytes, time) = (self.arguments.budget.0.0 as f64, self.arguments.budget.1.as_secs_f64());
        let mut left = Budget { bytes, seconds: time, probes: MAX_PROBES };
        let mut found = Vec::new();
        for (direction, part) in [(Direction::Write, UPLOAD_FRACTION), (Direction::Read, 1.0)] {
            let points =
                self.workloads.map_or_else(candidate_points, |workloads| workloads.points(direction));
            if self.stop.is_triggered() || !self.can_measure(direction, &points).await? {
                break;
            }
            let share = Budget { bytes: left.bytes * part, seconds: left.seconds * part, probes: MAX_PROBES };
            let sampled = match self.sample(direction, &points, share).await {
                Ok(sampled) => sampled,
                Err(e) if direction == Direction::Write && e.kind() == ErrorKind::Denied => {
                    writeln!(io::stderr(), "no permission to write here: only downloads are measured")?;
                    continue;
                }
                Err(e) if !found.is_empty() => {
                    // The result for uploads remains valid.
                    print_error_line(format_args!("tradewind: cannot measure downloads: {e}"))?;
                    break;
                }
                Err(e) => return Err(e.into()),
            };
            left.bytes -= share.bytes - sampled.remaining_budget.bytes;
            left.seconds -= share.seconds - sampled.remaining_budget.seconds;
            found.push(DirectionResult { direction, sampled, points });
        }
        Ok(found)
    }

    /// Returns true for uploads, and for downloads if there is an object at least as large as the smallest request.
    async fn can_measure(&self, direction: Direction, points: &[OperatingPoint]) -> anyhow::Result<bool> {
        let min_bytes = points.iter().map(|point| point.bytes).min().unwrap_or(0).max(1);
        if direction == Direction::Write || self.ground.max_read_bytes() >= min_bytes {
            return Ok(true);
        }
        self.ground.add_existing_objects(&self.arguments.location.key).await?;
        let has_object = self.ground.max_read_bytes() >= min_bytes;
        if !has_object {
            writeln!(io::stderr(), "there are no objects to download here: downloads are not measured")?;
        }
        Ok(has_object)
    }

    async fn sample(
        &self,
        direction: Direction,
        points: &[OperatingPoint],
        budget: Budget,
    ) -> Result<SamplingResult> {
        let is_json = self.arguments.json;
        let request = SamplingConfig { points: points.to_vec(), budget, cores: cpus() };
        let mut heat = HeatMap::new(direction, points, is_json || !io::stdout().is_terminal());
        let tell = |event: SamplingEvent<'_>| match event {
            SamplingEvent::ProbeStarted(_, point) => heat.probe_started(point),
            SamplingEvent::Probed(probed, surface) => {
                heat.probe_finished(probed, surface);
                if is_json {
                    print_probe(probed);
                }
            }
        };
        let prior = self.start.prior(direction);
        let sampled = tune::sample(self.ground, direction, (&request, prior), self.stop, tell).await?;
        let surface = &sampled.surface;
        if is_json {
            print_surface(direction, points, surface);
            let plans = plan_output::plans_as_json(direction, surface, points, &self.arguments.latency);
            for line in plans.into_iter().chain(plan_output::splits_as_json(direction, surface)) {
                let _ = writeln!(io::stdout(), "{line}");
            }
        } else {
            let _ = heat.finish(surface);
        }
        Ok(sampled)
    }
}
