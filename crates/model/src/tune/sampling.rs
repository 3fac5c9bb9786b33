//! Which cell is sampled next: the one that says most about what plans depend on, for what it costs. No grid: what a probe would
//! add is known before it is made.

use super::surface::{Inferred, Surface, View};
use super::{Cell, Sample};

/// How unsure a probe is that is as short as it may be.
const CHANCE: f64 = 0.05;
/// A cell whose bandwidth lies so far below the best, in standard deviations and a twentieth, is not in question.
const MARGIN: f64 = 0.05;
/// What every cell counts, whatever it carries.
const BASE: f64 = 0.02;
/// What a cell counts that may be the best of its size, and the best of all.
const OF_SIZE: f64 = 0.3;
const OF_ALL: f64 = 1.0;
/// A round of requests that takes longer, in seconds, is not tried: it is inferred.
pub const MOST_ROUND: f64 = 3.0;
/// Nothing more is worth a probe where what counts is known to so much, or where a probe would take so little of the doubt.
const KNOWN: f64 = 0.02;
const WORTH: f64 = 0.003;
/// A fair probe takes no more of what the store carries than that is in so many seconds.
const FAIR_SECONDS: f64 = 3.0;
/// What is known so well of a cell is not sampled again: what the law does not know stays as it is.
const SURE: f64 = 0.06;

/// A probe counts for so many seconds,
pub const LEAST_SECONDS: f64 = 0.3;
/// or for so many rounds where those are over sooner.
pub const ROUNDS_OF_SHORT: f64 = 32.0;
/// Rounds besides: those in which windows open, and those that are under way at the end.
const AROUND: f64 = 3.2;
/// How soon it is seen that a probe is over.
const SEEN: f64 = 0.02;

/// What sampling may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Bytes of bodies.
    pub bytes: f64,
    /// Seconds.
    pub seconds: f64,
    /// Probes.
    pub probes: usize,
}

impl Budget {
    /// What is left of it after a probe.
    #[must_use]
    pub fn after(&self, probe: Cost) -> Self {
        Self {
            bytes: (self.bytes - probe.bytes).max(0.0),
            seconds: (self.seconds - probe.seconds).max(0.0),
            probes: self.probes.saturating_sub(1),
        }
    }
}

/// What a probe costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Bytes of bodies.
    pub bytes: f64,
    /// Seconds.
    pub seconds: f64,
}

/// What a probe costs that soon is sure enough: a round of requests that counts for nothing, then so many that it is.
#[must_use]
pub fn cost(inferred: &Inferred) -> Cost {
    lasting(inferred, LEAST_SECONDS.min(inferred.latency.mul_add(ROUNDS_OF_SHORT, SEEN)))
}

/// What one costs that is not sure of its rounds and counts for as long as any.
#[must_use]
pub fn full_cost(inferred: &Inferred) -> Cost {
    lasting(inferred, LEAST_SECONDS)
}

fn lasting(inferred: &Inferred, counted: f64) -> Cost {
    let seconds = inferred.latency.mul_add(AROUND, counted);
    Cost { bytes: inferred.bandwidth() * seconds + inferred.cell.in_flight() / 2.0, seconds }
}

/// The next cell, of those that may be sampled; `None` where nothing is worth it, or nothing that is can be paid.
#[must_use]
pub fn next(surface: &Surface, cells: &[Cell], budget: &Budget) -> Option<Cell> {
    if budget.probes == 0 {
        return None;
    }
    let views: Vec<(View, Inferred)> =
        cells.iter().map(|cell| (surface.view(*cell), surface.infer(*cell))).collect();
    let weights = weights(&views);
    let unsure: f64 =
        (views.iter().zip(&weights)).map(|((_, found), weight)| weight * found.deviation.powi(2)).sum();
    if unsure < KNOWN.powi(2) * weights.iter().sum::<f64>() {
        return None;
    }
    let fastest =
        views.iter().map(|(_, found)| found.bandwidth() * (-found.deviation).exp()).fold(0.0, f64::max);
    let probes = budget.probes as f64;
    let fair =
        Cost { bytes: (budget.bytes / probes).min(fastest * FAIR_SECONDS), seconds: budget.seconds / probes };
    let worth = |(view, found): &(View, Inferred)| {
        let cost = cost(found);
        let is_dear = cost.bytes > budget.bytes || cost.seconds > budget.seconds;
        let is_sure = |sample: &Sample| sample.cell == found.cell && sample.error < SURE;
        if is_dear || found.latency > MOST_ROUND || surface.samples().iter().any(is_sure) {
            return None;
        }
        let own = surface.covariance(view, view).max(0.0) + CHANCE.powi(2);
        let gain: f64 = (views.iter().zip(&weights))
            .map(|((other, _), weight)| weight * surface.covariance(other, view).powi(2) / own)
            .sum();
        let price = 1.0 + (cost.bytes / fair.bytes).powi(2) + (cost.seconds / fair.seconds).powi(2);
        (gain > unsure * WORTH).then_some((found.cell, gain / price))
    };
    views.iter().filter_map(worth).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(cell, _)| cell)
}

/// What each cell counts: how likely it is to be chosen.
fn weights(views: &[(View, Inferred)]) -> Vec<f64> {
    let best = |among: &dyn Fn(&Inferred) -> bool| {
        let found = views.iter().map(|(_, found)| found).filter(|found| among(found));
        found.map(Inferred::bandwidth).fold(f64::MIN_POSITIVE, f64::max)
    };
    let of_all = best(&|_| true);
    let likely = |found: &Inferred, best: f64| {
        let gap = (best / found.bandwidth()).ln() / (found.deviation + MARGIN);
        (-gap * gap / 2.0).exp()
    };
    let weigh = |(_, found): &(View, Inferred)| {
        let of_size = best(&|other| other.cell.bytes == found.cell.bytes);
        BASE + OF_SIZE * likely(found, of_size) + OF_ALL * likely(found, of_all)
    };
    views.iter().map(weigh).collect()
}
