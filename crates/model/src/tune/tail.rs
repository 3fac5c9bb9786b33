//! How much longer the slowest requests take than the mean: not what a law of means can say.
//!
//! What decides it is how full that is which all share. In front of the knee requests hardly wait for each other and take the same;
//! behind it those that windows favour go before others, and a few take twice or three times as long. How much so is learnt from
//! samples, whose tails say most about cells that are as full as they are.

use super::law::Law;
use super::matrix::{Factor, dot};
use super::{Cell, Sample};

/// Which latency of many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// Their mean.
    Mean,
    /// What 95 of a hundred have at the most.
    P95,
    /// What 99 of a hundred have at the most.
    P99,
}

/// Behind the knee and without a sample: the logarithm of the tail's part of the mean, of 95 and of 99.
const BEHIND: [f64; 2] = [0.5, 0.75];
/// The same in front of it.
const BEFORE: [f64; 2] = [0.03, 0.1];
/// How sharp the step between the two is, by the logarithm of how full it is.
const STEP: f64 = 6.0;
/// How far in front of the knee it lies, in the same logarithm: some wait before all do.
const EARLY: f64 = 0.5;
/// How far samples' tails lie from that, how far that reaches in the same logarithm, and how much of it is chance.
const SPREAD: f64 = 0.5;
const REACH: f64 = 0.7;
const CHANCE: f64 = 0.25;
/// What two cells that are as full differ by, however many samples there are.
const OWN: f64 = 0.1;
/// What is fuller, or emptier, is as this is.
const FULLEST: f64 = 2.0;

/// What samples say of tails.
#[derive(Debug, Clone, Default)]
pub struct Tails {
    full: Vec<f64>,
    covariance: Factor,
    /// For 95 and for 99: what the samples say besides the step, times the inverse of their covariance.
    rest: [Vec<f64>; 2],
}

impl Tails {
    /// What follows from those that have one.
    pub fn of(law: &Law, samples: &[Sample]) -> Self {
        let known: Vec<(f64, [f64; 2])> = samples
            .iter()
            .filter_map(|sample| {
                Some((full(law, sample.cell), sample.tail?.map(|tail| tail / sample.latency)))
            })
            .collect();
        let covariance = Factor::of(known.len(), |i, j| {
            alike(known[i].0, known[j].0) + if i == j { CHANCE.powi(2) } else { 0.0 }
        });
        let rest = [0, 1].map(|which| {
            let besides = known.iter().map(|(full, tail)| tail[which].ln() - usual(*full, which));
            covariance.solve(&besides.collect::<Vec<f64>>())
        });
        Self { full: known.into_iter().map(|(full, _)| full).collect(), covariance, rest }
    }

    /// How many times the mean a statistic of a cell is: the logarithm, and its standard deviation.
    pub fn factor(&self, law: &Law, cell: Cell, statistic: Statistic) -> (f64, f64) {
        let which = match statistic {
            Statistic::Mean => return (0.0, 0.0),
            Statistic::P95 => 0,
            Statistic::P99 => 1,
        };
        let full = full(law, cell);
        let near: Vec<f64> = self.full.iter().map(|other| alike(full, *other)).collect();
        let told = self.covariance.half(&near);
        let left = (alike(full, full) - dot(&told, &told)).max(0.0) + OWN.powi(2);
        // Nothing that 95 of a hundred keep to is shorter than the mean, but for a few that take very long.
        ((usual(full, which) + dot(&near, &self.rest[which])).max(0.0), left.sqrt())
    }
}

/// The logarithm of how many times as many requests there are as fill what all share.
fn full(law: &Law, cell: Cell) -> f64 {
    let bytes = cell.bytes as f64;
    (law.shared(bytes) * cell.parallel as f64 / law.alone(bytes)).ln().clamp(-FULLEST, FULLEST)
}

fn usual(full: f64, which: usize) -> f64 {
    BEFORE[which] + (BEHIND[which] - BEFORE[which]) / (1.0 + (-STEP * (full + EARLY)).exp())
}

fn alike(a: f64, b: f64) -> f64 {
    SPREAD.powi(2) * (-((a - b) / REACH).powi(2) / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::law;

    const EMPTY: Cell = Cell { bytes: 64 << 10, parallel: 1 };
    const FULL: Cell = Cell { bytes: 64 << 10, parallel: 64 };

    #[test]
    fn those_wait_longer_that_wait_for_each_other() {
        let law = law(0.05, 20e6, 5e3, 12e6);
        let tails = Tails::of(&law, &[]);
        let factor = |cell, statistic| tails.factor(&law, cell, statistic).0.exp();
        let [empty, full] = [EMPTY, FULL].map(|cell| factor(cell, Statistic::P99));
        assert!(empty < 1.2 && full > 2.0, "{empty} {full}");
        assert_eq!(factor(FULL, Statistic::Mean).to_bits(), 1.0_f64.to_bits());
        assert!(factor(FULL, Statistic::P95) < full);
    }

    #[test]
    fn samples_say_more_of_what_is_like_them() {
        let law = law(0.05, 20e6, 5e3, 12e6);
        let sample =
            Sample { cell: EMPTY, latency: 0.06, error: 0.02, tail: Some([0.12, 0.18]), is_seen: false };
        let tails = Tails::of(&law, &[sample, Sample { tail: None, cell: FULL, ..sample }]);
        let [(empty, sure), (full, unsure)] =
            [EMPTY, FULL].map(|cell| tails.factor(&law, cell, Statistic::P99));
        let [empty, full] = [empty.exp(), full.exp()];
        assert!(sure < 0.8 * unsure, "{sure} {unsure}");
        assert!((2.2..3.1).contains(&empty), "{empty}");
        let untold = Tails::of(&law, &[]).factor(&law, FULL, Statistic::P99).0.exp();
        assert!((full / untold - 1.0).abs() < 0.05, "{full} {untold}");
    }
}
