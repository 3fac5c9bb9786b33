//! Which cell is the best for what somebody wants.

use super::Cell;
use super::sampling::MOST_ROUND;
use super::surface::{Inferred, Surface};
use super::tail::Statistic;

/// What is wanted. Cells whose requests take longer than those of a probe may ([`MOST_ROUND`]) count only where nothing that is over
/// sooner is as good: of most of them there is no sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The most bytes a second.
    Bandwidth,
    /// The same of those whose requests keep to a cap: within 3 % of it the one that most likely does.
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
/// What is less likely to keep to a cap than that is not said to.
const LIKELY: f64 = 0.5;
/// More room than that makes nothing likelier.
const CERTAIN: f64 = 0.98;

/// The best of these cells; `None` where none keeps to what is asked.
#[must_use]
pub fn choose(surface: &Surface, cells: &[Cell], goal: Goal) -> Option<Inferred> {
    // Who is not sure does not choose what may be worse.
    let sure = |found: &Inferred| found.bandwidth() * (-found.deviation).exp();
    let found: Vec<Inferred> =
        cells.iter().map(|cell| surface.infer(*cell)).filter(|found| sure(found) > 0.0).collect();
    let as_good_as = |best: f64| found.iter().filter(move |found| sure(found) >= best * (1.0 - SAME));
    let best = || found.iter().map(sure).max_by(f64::total_cmp);
    let chosen = match goal {
        Goal::Bandwidth => not_long(as_good_as(best()?)).max_by(|a, b| sure(a).total_cmp(&sure(b))),
        Goal::Latency(cap) => {
            let worth = |found: &Inferred| sure(found) * counts(surface, found, cap);
            let keeps = |found: &&Inferred| worth(found) > 0.0;
            let best = found.iter().filter(keeps).max_by(|a, b| worth(a).total_cmp(&worth(b)))?;
            // Behind the knee fewer at a time carry as much and take less: what costs nothing is room.
            let room = |found: &Inferred| surface.keeps(found, cap).min(CERTAIN);
            not_long(as_good_as(sure(best)).filter(keeps))
                .max_by(|a, b| room(a).total_cmp(&room(b)).then_with(|| sure(a).total_cmp(&sure(b))))
        }
        Goal::Efficiency => {
            let cost = |found: &&Inferred| (std::cmp::Reverse(found.cell.bytes), found.cell.parallel);
            not_long(as_good_as(best()?)).min_by_key(cost)
        }
    };
    chosen.copied()
}

/// Those whose requests take no longer than a probe's may; where all do, the one whose take the least.
fn not_long<'a>(found: impl Iterator<Item = &'a Inferred> + Clone) -> impl Iterator<Item = &'a Inferred> {
    let least = found.clone().map(|found| found.latency).fold(f64::INFINITY, f64::min);
    found.filter(move |found| found.latency <= MOST_ROUND.max(least))
}

/// What a plan counts for by what is known of the cap. One whose mean is a little over it misses it by a little; the slowest of one
/// that misses it take several times as long, so that what it carries counts for as much as it is likely to keep to it.
fn counts(surface: &Surface, found: &Inferred, cap: Cap) -> f64 {
    let likely = surface.keeps(found, cap);
    match cap.of {
        _ if likely < LIKELY => 0.0,
        Statistic::Mean => 1.0,
        Statistic::P95 | Statistic::P99 => likely,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{law, sampled};
    use crate::tune::{Belief, Sample};

    /// 64 requests of 16 MiB carry as much over a full line as 16 of 1 MiB do, and take ten seconds each.
    #[test]
    fn what_takes_long_is_no_plan_where_something_else_carries_as_much() {
        let mut all = Cell::grid(&[16 << 20], &[32, 64]);
        all.extend(Cell::grid(&[64 << 10, 1 << 20], &[1, 4, 16, 64]));
        for seed in 1..=5 {
            let (surface, _) = sampled(&law(0.02, 20e6, 5e3, 100e6), seed);
            for goal in [Goal::Bandwidth, Goal::Efficiency] {
                let chosen = choose(&surface, &all, goal).unwrap();
                assert!(chosen.latency <= MOST_ROUND, "{goal:?}: {chosen:?}");
            }
            // Where there is nothing else, it is the one that is over soonest.
            let long = Cell::grid(&[64 << 20], &[16, 32, 64]);
            for goal in [Goal::Bandwidth, Goal::Efficiency] {
                assert_eq!(choose(&surface, &long, goal).unwrap().cell.parallel, 16, "{goal:?}");
            }
        }
    }

    /// Few at a time have stragglers here, and many wait evenly: what is over sooner in the mean does not keep the cap.
    #[test]
    fn what_takes_long_is_a_plan_where_nothing_else_keeps_a_cap() {
        let law = law(0.02, 20e6, 5e3, 25e6);
        let cells = Cell::grid(&[16 << 20], &(3..=16).collect::<Vec<usize>>());
        let samples = [(3, 6.0), (4, 6.0), (9, 1.02), (10, 1.02)].map(|(parallel, tail)| {
            let cell = Cell { bytes: 16 << 20, parallel };
            let latency = law.log_latency(cell).exp();
            Sample { cell, latency, error: 0.02, tail: Some([latency * tail; 2]), is_seen: false }
        });
        let surface = Surface::new(Belief::default(), samples.to_vec());
        let cap = Cap { of: Statistic::P95, seconds: 8.0 };
        let chosen = choose(&surface, &cells, Goal::Latency(cap)).unwrap();
        assert!(surface.keeps(&chosen, cap) >= LIKELY && chosen.latency > MOST_ROUND, "{chosen:?}");
    }

    /// A line that is full carries no more when more is asked for, and all of it waits longer: what carries the most that is likelier than
    /// not to keep a cap lies right at it.
    #[test]
    fn a_cap_is_kept_with_the_room_that_costs_nothing() {
        let cap = Cap::mean(0.05);
        for seed in 1..=3 {
            let (surface, _) = sampled(&law(0.02, 20e6, 5e3, 100e6), seed);
            for bytes in [64 << 10, 256 << 10] {
                let cells = Cell::grid(&[bytes], &(1..=128).collect::<Vec<usize>>());
                let chosen = choose(&surface, &cells, Goal::Latency(cap)).unwrap();
                let found = cells.iter().map(|cell| surface.infer(*cell));
                let keeping = found.filter(|found| surface.keeps(found, cap) >= LIKELY);
                let most = keeping.map(|found| found.bandwidth()).fold(0.0, f64::max);
                assert!(surface.keeps(&chosen, cap) > 0.8, "{chosen:?} {}", surface.keeps(&chosen, cap));
                assert!(chosen.bandwidth() > (1.0 - SAME) * 0.99 * most, "{chosen:?} {most}");
            }
        }
    }

    /// Nothing was seen of tails: a plan that carries a little more and is as likely to miss the cap as to keep to it is none.
    #[test]
    fn a_cap_on_the_slowest_is_kept_with_room() {
        let (surface, cells) = sampled(&law(0.02, 20e6, 5e3, 100e6), 1);
        for of in [Statistic::P95, Statistic::P99] {
            for seconds in [0.05, 0.2, 1.0] {
                let cap = Cap { of, seconds };
                let chosen = choose(&surface, &cells, Goal::Latency(cap)).unwrap();
                let likely = surface.keeps(&chosen, cap);
                let others = cells.iter().map(|cell| surface.infer(*cell));
                let room = others
                    .filter(|other| surface.keeps(other, cap) > likely + 0.2)
                    .map(|other| other.bandwidth())
                    .fold(0.0, f64::max);
                assert!(likely >= LIKELY && room < chosen.bandwidth(), "{cap:?}: {chosen:?} {likely} {room}");
            }
        }
        assert_eq!(choose(&surface, &cells, Goal::Latency(Cap { of: Statistic::P99, seconds: 1e-3 })), None);
    }
}
