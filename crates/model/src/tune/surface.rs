//! Everything that is known of how long requests of one direction take: samples, and what follows from them for cells that
//! were never sampled.
//!
//! What is inferred is a [`Law`] with what the samples say besides: they differ from the law by what it does not know, which is
//! alike for cells that are near each other, and by chance. All three are normal in the logarithm of the latency, so that the
//! most likely surface, how sure it is, and what another sample would add to that all come from the same few equations (universal
//! kriging with a mean that is not linear, Gauss-Newton for its numbers). Bandwidth follows from latency: so many requests are
//! under way at any time (Little 1961).

use super::law::{Belief, COUNT, Law};
use super::matrix::{Factor, dot};
use super::tail::{Statistic, Tails};
use super::{Cap, Cell, Sample};

/// What the law does not know: the standard deviation of that in the logarithm of a latency.
const UNKNOWN: f64 = 0.08;
/// How many doublings of size and of parallelism it reaches.
const REACH: [f64; 2] = [2.0, 3.0];
/// Nothing is known better than this.
const LEAST_ERROR: f64 = 0.02;
/// Steps until the numbers are found, at the most.
const STEPS: usize = 40;
/// Halvings of a step that leads nowhere.
const HALVINGS: usize = 12;
/// A step that improves less is the last.
const ENOUGH: f64 = 1e-6;

/// What is inferred of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inferred {
    /// Of which.
    pub cell: Cell,
    /// How long a request takes in the mean, in seconds.
    pub latency: f64,
    /// How sure that is: the standard deviation of its logarithm. 0.1 is a tenth.
    pub deviation: f64,
}

impl Inferred {
    /// Bytes a second, all requests together.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.cell.bandwidth(self.latency)
    }

    /// Requests a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.cell.rate(self.latency)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Surface {
    samples: Vec<Sample>,
    belief: Belief,
    law: Law,
    /// Of the covariance of the samples, as far as it is not the law's.
    unknown: Factor,
    /// Of all of it.
    all: Factor,
    slopes: Vec<[f64; COUNT]>,
    /// What the law leaves unsaid of each sample, times the inverse of the first covariance.
    rest: Vec<f64>,
    tails: Tails,
}

impl Surface {
    /// What follows from these.
    #[must_use]
    pub fn new(belief: Belief, samples: Vec<Sample>) -> Self {
        let unknown = Factor::of(samples.len(), |i, j| noise(&samples, i, j));
        let mut fit = Self {
            law: belief.mean,
            all: Factor::default(),
            slopes: Vec::new(),
            rest: Vec::new(),
            tails: Tails::default(),
            samples,
            belief,
            unknown,
        };
        let starts = fit.starts();
        let best = starts.into_iter().map(|start| fit.descend(start)).min_by(|a, b| a.1.total_cmp(&b.1));
        fit.law = best.map_or(belief.mean, |(law, _)| law);
        fit.slopes = fit.samples.iter().map(|sample| fit.law.slopes(sample.cell)).collect();
        fit.all = Factor::of(fit.samples.len(), |i, j| {
            fit.believed(&fit.slopes[i], &fit.slopes[j]) + noise(&fit.samples, i, j)
        });
        fit.rest = fit.unknown.solve(&fit.residuals(&fit.law));
        fit.tails = Tails::of(&fit.law, &fit.samples);
        fit
    }

    /// The samples that it follows from.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The law that is the most likely.
    #[must_use]
    pub const fn law(&self) -> &Law {
        &self.law
    }

    /// What is known of the law itself: what was believed of each number, as far as samples have narrowed it.
    #[must_use]
    pub fn learnt(&self) -> Belief {
        let left = |i: usize| {
            let believed = self.belief.deviation[i].powi(2);
            let told: Vec<f64> = self.slopes.iter().map(|slopes| slopes[i] * believed).collect();
            let told = self.all.half(&told);
            (believed - dot(&told, &told)).max(0.0).sqrt()
        };
        Belief { mean: self.law, deviation: std::array::from_fn(left) }
    }

    /// What is to be expected of a cell.
    #[must_use]
    pub fn infer(&self, cell: Cell) -> Inferred {
        let near: Vec<f64> = self.samples.iter().map(|sample| alike(sample.cell, cell)).collect();
        let log = self.law.log_latency(cell) + dot(&near, &self.rest);
        let view = self.view(cell);
        Inferred { cell, latency: log.exp(), deviation: self.covariance(&view, &view).max(0.0).sqrt() }
    }

    /// A statistic of the latencies of a cell's requests, in seconds.
    #[must_use]
    pub fn latency(&self, found: &Inferred, statistic: Statistic) -> f64 {
        found.latency * self.tails.factor(&self.law, found.cell, statistic).0.exp()
    }

    /// How likely it is that this keeps to a cap, from 0 to 1: both what the mean is and what the tail is of it are inferred.
    #[must_use]
    pub fn keeps(&self, found: &Inferred, cap: Cap) -> f64 {
        let (factor, deviation) = self.tails.factor(&self.law, found.cell, cap.of);
        let room = (cap.seconds / found.latency).ln() - factor;
        // The logistic curve that is closest to a normal one.
        1.0 / (1.0 + (-1.702 * room / deviation.hypot(found.deviation)).exp())
    }

    /// A cell as the samples see it.
    pub(super) fn view(&self, cell: Cell) -> View {
        let slopes = self.law.slopes(cell);
        let shared = self
            .samples
            .iter()
            .zip(&self.slopes)
            .map(|(sample, own)| self.believed(own, &slopes) + alike(sample.cell, cell));
        let seen = self.all.half(&shared.collect::<Vec<f64>>());
        View { cell, slopes, seen }
    }

    /// How what is not yet known of one cell goes with what is not known of another.
    pub(super) fn covariance(&self, a: &View, b: &View) -> f64 {
        self.believed(&a.slopes, &b.slopes) + alike(a.cell, b.cell) - dot(&a.seen, &b.seen)
    }

    /// The covariance of two cells by what is believed of the law.
    fn believed(&self, a: &[f64; COUNT], b: &[f64; COUNT]) -> f64 {
        (0..COUNT).map(|i| a[i] * b[i] * self.belief.deviation[i].powi(2)).sum()
    }

    fn residuals(&self, law: &Law) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.latency.ln() - law.log_latency(sample.cell)).collect()
    }

    /// Where the search begins: the valley that is found depends on it.
    fn starts(&self) -> Vec<Law> {
        let mean = self.belief.mean;
        let Some(fastest) = self.samples.iter().map(Sample::bandwidth).max_by(f64::total_cmp) else {
            return vec![mean];
        };
        let most = self.samples.iter().map(|sample| sample.cell.rate(sample.latency)).fold(1.0, f64::max);
        let quickest = self.samples.iter().map(|sample| sample.latency).fold(f64::MAX, f64::min);
        let mut told = mean;
        told.0[0] = (quickest * 0.9).ln();
        told.0[2] = (0.5 / most).ln();
        told.0[3] = (1.0 / fastest).ln();
        let mut alone = told;
        alone.0[1] = (0.3 / fastest).ln();
        let mut free = told;
        free.0[2] = (0.05 / most).ln();
        free.0[3] = (0.2 / fastest).ln();
        vec![mean, told, alone, free]
    }

    /// How unlikely a law is, of itself and by what it says of the samples.
    fn misfit(&self, law: &Law) -> f64 {
        let half = self.unknown.half(&self.residuals(law));
        let off = (0..COUNT).map(|i| ((law.0[i] - self.belief.mean.0[i]) / self.belief.deviation[i]).powi(2));
        dot(&half, &half) + off.sum::<f64>()
    }

    /// Gauss-Newton from a start: where it ends, and how unlikely that is.
    fn descend(&self, start: Law) -> (Law, f64) {
        let (mut law, mut misfit) = (start, self.misfit(&start));
        for _ in 0..STEPS {
            let aim = self.aim(&law);
            let mut part = 1.0;
            let next = (0..HALVINGS).find_map(|_| {
                let next = Law(std::array::from_fn(|i| (aim.0[i] - law.0[i]).mul_add(part, law.0[i])));
                part /= 2.0;
                let found = self.misfit(&next);
                (found < misfit).then_some((next, found))
            });
            let Some((next, found)) = next else { break };
            let gained = misfit - found;
            (law, misfit) = (next, found);
            if gained < ENOUGH {
                break;
            }
        }
        (law, misfit)
    }

    /// The most likely law, if slopes were the same everywhere.
    fn aim(&self, law: &Law) -> Law {
        let mean = self.belief.mean;
        let slopes: Vec<[f64; COUNT]> = self.samples.iter().map(|sample| law.slopes(sample.cell)).collect();
        let all = Factor::of(self.samples.len(), |i, j| {
            self.believed(&slopes[i], &slopes[j]) + noise(&self.samples, i, j)
        });
        let back: [f64; COUNT] = std::array::from_fn(|i| mean.0[i] - law.0[i]);
        let unsaid: Vec<f64> =
            self.residuals(law).iter().zip(&slopes).map(|(rest, slopes)| rest - dot(slopes, &back)).collect();
        let pull = all.solve(&unsaid);
        Law(std::array::from_fn(|i| {
            let along: f64 = slopes.iter().zip(&pull).map(|(slopes, pull)| slopes[i] * pull).sum();
            mean.0[i] + self.belief.deviation[i].powi(2) * along
        }))
    }
}

/// A cell as samples see it, to be compared with others.
#[derive(Debug, Clone)]
pub(super) struct View {
    cell: Cell,
    slopes: [f64; COUNT],
    seen: Vec<f64>,
}

/// The covariance of what the law does not know of two cells.
fn alike(a: Cell, b: Cell) -> f64 {
    let doublings = [
        (a.bytes.max(1) as f64 / b.bytes.max(1) as f64).log2(),
        (a.parallel.max(1) as f64 / b.parallel.max(1) as f64).log2(),
    ];
    let apart: f64 = doublings.iter().zip(REACH).map(|(doublings, reach)| (doublings / reach).powi(2)).sum();
    // Matern's of 3/2: what is left changes from cell to cell, but not by leaps.
    let apart = (3.0 * apart).sqrt();
    UNKNOWN.powi(2) * (1.0 + apart) * (-apart).exp()
}

/// That, and chance.
fn noise(samples: &[Sample], i: usize, j: usize) -> f64 {
    let chance = if i == j { samples[i].error.max(LEAST_ERROR).powi(2) } else { 0.0 };
    alike(samples[i].cell, samples[j].cell) + chance
}
