//! Which cell is the best for what somebody wants.

use super::Cell;
use super::surface::{Inferred, Surface};
use super::tail::Statistic;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The most bytes a second.
    Bandwidth,
    /// The same of those whose requests keep to a cap.
    Latency(Cap),
    /// Of those that are within 3 % of the most bytes a second the one that costs the client least: the largest requests, and
    /// of these the fewest at a time (Hou 2017, section 7).
    Efficiency,
}

/// How long requests may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cap {
    /// Which latency of many requests.
    pub of: Statistic,
    /// The most that it may be.
    pub seconds: f64,
}

impl Cap {
    /// So many seconds in the mean.
    #[must_use]
    pub const fn mean(seconds: f64) -> Self {
        Self { of: Statistic::Mean, seconds }
    }
}

/// Bandwidths that lie so near each other are the same.
const SAME: f64 = 0.03;
/// What 95 or 99 of a hundred keep to is inferred to be so much shorter, as a logarithm: tails are less sure than means.
const MARGIN: f64 = 0.2;

/// The best of these cells; `None` where none keeps to what is asked.
#[must_use]
pub fn choose(surface: &Surface, cells: &[Cell], goal: Goal) -> Option<Inferred> {
    let found: Vec<Inferred> = cells.iter().map(|cell| surface.infer(*cell)).collect();
    let kept: Vec<&Inferred> = match goal {
        Goal::Latency(cap) => {
            let margin = if cap.of == Statistic::Mean { 0.0 } else { MARGIN };
            let most = cap.seconds * (-margin).exp();
            found.iter().filter(|found| surface.latency(found, cap.of) <= most).collect()
        }
        Goal::Bandwidth | Goal::Efficiency => found.iter().collect(),
    };
    // Who is not sure does not choose what may be worse.
    let sure = |found: &Inferred| found.bandwidth() * (-found.deviation).exp();
    let chosen = match goal {
        Goal::Bandwidth | Goal::Latency(_) => kept.into_iter().max_by(|a, b| sure(a).total_cmp(&sure(b))),
        Goal::Efficiency => {
            let best = kept.iter().map(|found| sure(found)).max_by(f64::total_cmp)?;
            let near = kept.into_iter().filter(|found| sure(found) >= best * (1.0 - SAME));
            near.min_by_key(|found| (std::cmp::Reverse(found.cell.bytes), found.cell.parallel))
        }
    };
    chosen.copied()
}
