//! One direction after the other: what the budget allows, shown while it is found out.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use tradewind_bench::drive::Stop;
use tradewind_bench::tune::{self, Asked, Event, Ground, Sampled};
use tradewind_core::ErrorKind;
use tradewind_core::error::Result;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::sampling::Budget;
use tradewind_model::tune::{Cell, Workload};

use super::Arguments;
use super::heat::Heat;
use super::lines::{print_probe, print_surface};
use super::start::Start;
use super::workload::Workloads;
use crate::commands::advice::{self, cells, name, seconds};
use crate::commands::terminal::say_line;
use crate::profiles::here::cores;

/// Probes of each direction, at the most.
const PROBES: usize = 8;
/// What of the budget is for uploads; downloads have the rest.
const FOR_UPLOADS: f64 = 0.5;

/// What came of one direction.
pub(super) struct Found {
    pub direction: Direction,
    pub sampled: Sampled,
    /// Cells that a plan may have.
    pub cells: Vec<Cell>,
}

impl Found {
    /// Whether a probe said anything.
    pub fn is_known(&self) -> bool {
        !self.sampled.surface.samples().is_empty()
    }

    /// What failed, in one of those that did.
    fn failure(&self) -> Option<&str> {
        self.sampled.probes.iter().find_map(|probed| probed.failure.as_deref())
    }

    /// Says what to do, or why nothing is known.
    pub fn print(&self, arguments: &Arguments, workload: Option<&Workload>) -> io::Result<()> {
        let (direction, mut out) = (self.direction, io::stdout());
        if self.is_known() {
            let surface = &self.sampled.surface;
            return write!(
                out,
                "{}",
                advice::of(direction, surface, &self.cells, (&arguments.latency, workload))
            );
        }
        let longest = self.sampled.probes.iter().map(|probed| probed.time).max();
        let why = match (self.failure(), longest) {
            (Some(failure), _) => failure.to_owned(),
            (None, Some(time)) => format!("no request was answered within {}", seconds(time.as_secs_f64())),
            (None, None) => "the budget is too small for a single probe".to_owned(),
        };
        writeln!(out, "{}: nothing was found out: {why}", name(direction))
    }
}

/// Who finds it out.
pub(super) struct Finder<'a> {
    pub arguments: &'a Arguments,
    pub ground: &'a Arc<Ground>,
    pub start: &'a Start,
    pub workloads: Option<&'a Workloads>,
    pub stop: &'a Stop,
}

impl Finder<'_> {
    /// Both directions, or the one that can be looked at. Where it is stopped, what was found by then.
    pub async fn find(&self) -> anyhow::Result<Vec<Found>> {
        let (bytes, time) = (self.arguments.budget.0.0 as f64, self.arguments.budget.1.as_secs_f64());
        let mut left = Budget { bytes, seconds: time, probes: PROBES };
        let mut found = Vec::new();
        for (direction, part) in [(Direction::Write, FOR_UPLOADS), (Direction::Read, 1.0)] {
            let cells = self.workloads.map_or_else(cells, |workloads| workloads.cells(direction));
            if self.stop.is_asked() || !self.can_be_looked_at(direction, &cells).await? {
                break;
            }
            let share = Budget { bytes: left.bytes * part, seconds: left.seconds * part, probes: PROBES };
            let sampled = match self.sample(direction, &cells, share).await {
                Ok(sampled) => sampled,
                Err(e) if direction == Direction::Write && e.kind() == ErrorKind::Denied => {
                    writeln!(io::stderr(), "nothing may be written here: only downloads are looked at")?;
                    continue;
                }
                Err(e) if !found.is_empty() => {
                    // What is known of uploads is known.
                    say_line(format_args!("tradewind: downloads cannot be looked at: {e}"))?;
                    break;
                }
                Err(e) => return Err(e.into()),
            };
            left.bytes -= share.bytes - sampled.left.bytes;
            left.seconds -= share.seconds - sampled.left.seconds;
            found.push(Found { direction, sampled, cells });
        }
        Ok(found)
    }

    /// Whether there is something to be read that is as large as the smallest of these, or anything that is to be written.
    async fn can_be_looked_at(&self, direction: Direction, cells: &[Cell]) -> anyhow::Result<bool> {
        let least = cells.iter().map(|cell| cell.bytes).min().unwrap_or(0).max(1);
        if direction == Direction::Write || self.ground.most_bytes() >= least {
            return Ok(true);
        }
        self.ground.look(&self.arguments.place.key).await?;
        let is_there = self.ground.most_bytes() >= least;
        if !is_there {
            writeln!(io::stderr(), "nothing is there to be downloaded, so that downloads are not looked at")?;
        }
        Ok(is_there)
    }

    async fn sample(&self, direction: Direction, cells: &[Cell], budget: Budget) -> Result<Sampled> {
        let is_json = self.arguments.json;
        let asked = Asked { cells: cells.to_vec(), budget, cores: cores() };
        let mut heat = Heat::begin(direction, cells, is_json || !io::stdout().is_terminal());
        let tell = |event: Event<'_>| match event {
            Event::Begins(_, cell) => heat.begins(cell),
            Event::Probed(probed, surface) => {
                heat.probed(probed, surface);
                if is_json {
                    print_probe(probed);
                }
            }
        };
        let belief = self.start.belief(direction);
        let sampled = tune::sample(self.ground, direction, (&asked, belief), self.stop, tell).await?;
        let surface = &sampled.surface;
        if is_json {
            print_surface(direction, cells, surface);
            let plans = advice::plans(direction, surface, cells, &self.arguments.latency);
            for line in plans.into_iter().chain(advice::splits(direction, surface)) {
                let _ = writeln!(io::stdout(), "{line}");
            }
        } else {
            let _ = heat.end(surface);
        }
        Ok(sampled)
    }
}
