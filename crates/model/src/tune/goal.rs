//! Which cell is the best for what somebody wants.

use super::Cell;
use super::surface::{Inferred, Surface};

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The most bytes a second.
    Bandwidth,
    /// The same of those whose requests take so many seconds at the most, in the mean.
    Latency(f64),
    /// Of those that are within 3 % of the most bytes a second the one that costs the client least: the largest requests, and
    /// of these the fewest at a time (Hou 2017, section 7).
    Efficiency,
}

/// Bandwidths that lie so near each other are the same.
const SAME: f64 = 0.03;
/// The same where the client is not to be spared: so much for a smaller amount in flight.
const TIE: f64 = 0.01;

/// The best of these cells; `None` where none keeps to what is asked.
#[must_use]
pub fn choose(surface: &Surface, cells: &[Cell], goal: Goal) -> Option<Inferred> {
    let found: Vec<Inferred> = cells.iter().map(|cell| surface.infer(*cell)).collect();
    let kept: Vec<&Inferred> = match goal {
        Goal::Latency(most) => found.iter().filter(|found| found.latency <= most).collect(),
        Goal::Bandwidth | Goal::Efficiency => found.iter().collect(),
    };
    // Who is not sure does not choose what may be worse.
    let sure = |found: &Inferred| found.bandwidth() * (-found.deviation).exp();
    let best = kept.iter().map(|found| sure(found)).max_by(f64::total_cmp)?;
    let near = |part: f64| kept.iter().filter(move |found| sure(found) >= best * (1.0 - part));
    let chosen = match goal {
        Goal::Efficiency => {
            near(SAME).min_by_key(|found| (std::cmp::Reverse(found.cell.bytes), found.cell.parallel))
        }
        Goal::Bandwidth | Goal::Latency(_) => {
            near(TIE).min_by(|a, b| a.cell.in_flight().total_cmp(&b.cell.in_flight()))
        }
    };
    chosen.map(|found| **found)
}
