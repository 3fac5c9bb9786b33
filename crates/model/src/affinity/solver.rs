//! The affinities under which a cluster with given service rates serves most reads.
//!
//! Affinities decide groups by hashes, so the search is over exact loads. For an exponent `p` it minimizes the sum of
//! `load * (load / service rate)^p`: the higher `p`, the more the bottleneck counts. Each step sets the affinity of one OSD to
//! its best value while the others stay; the sum never grows, and the search ends. Of the results for several
//! exponents, the one with the highest predicted throughput wins.

use super::placement::{Choice, OsdIndex, Placement};
use super::queueing::{Prediction, predict};
use super::{AFFINITY_STEPS, Affinity};

/// Exponents of the search. The best one depends on the reads in flight per OSD.
const EXPONENTS: [i32; 3] = [2, 6, 16];
/// Exponent of the search from a rough guess: one search is enough there.
const GUESS_EXPONENT: i32 = 6;
/// Maximum number of passes over all OSDs.
const MAX_PASSES: usize = 24;
/// Minimum relative improvement of a step; it also bounds rounding errors.
const MIN_IMPROVEMENT: f64 = 1e-9;

/// A cluster with known service rates.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    /// Its placement groups.
    pub placement: &'a Placement,
    /// Cost per second that each OSD can serve, in any unit, above 0.
    pub service_rates: &'a [f64],
    /// Reads in flight.
    pub in_flight: f64,
    /// The lowest affinity allowed, in steps of 1/64. Above 0, every OSD keeps some reads, so that its recovery is seen.
    pub min_steps: u32,
    /// The OSDs whose affinity must not change.
    pub fixed_osds: &'a [OsdIndex],
    /// Load of each OSD that no affinity moves, such as its writes, in the unit of the placement's loads. Empty for none.
    pub other_loads: &'a [f64],
}

/// Affinities and what they are predicted to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// One per OSD.
    pub affinities: Vec<Affinity>,
    /// The predicted behaviour.
    pub prediction: Prediction,
}

impl Cluster<'_> {
    /// Predicts the cluster with these affinities; `None` without reads.
    pub fn predict(&self, affinities: &[Affinity]) -> Option<Prediction> {
        predict(&self.loads(affinities), self.service_rates, self.in_flight)
    }

    /// The loads of the OSDs under these affinities, with those that no affinity moves.
    pub fn loads(&self, affinities: &[Affinity]) -> Vec<f64> {
        let mut loads = self.placement.loads(affinities);
        loads.iter_mut().zip(self.other_loads).for_each(|(load, other)| *load += other);
        loads
    }

    /// The best affinities found, starting from all at 1; `None` without reads.
    pub fn solve(&self) -> Option<Solution> {
        self.solve_from(&vec![Affinity::MAX; self.placement.osd_count()])
    }

    /// The best affinities found by improving `start`; `None` without reads.
    pub fn solve_from(&self, start: &[Affinity]) -> Option<Solution> {
        let mut best = Solution { prediction: self.predict(start)?, affinities: start.to_vec() };
        let guess = self.rough_guess(start);
        let from_start = EXPONENTS.map(|exponent| self.descend(start.to_vec(), exponent));
        let from_guess = self.descend(guess, GUESS_EXPONENT);
        for affinities in from_start.into_iter().chain([from_guess]) {
            let prediction = self.predict(&affinities)?;
            if prediction.throughput > best.prediction.throughput {
                best = Solution { affinities, prediction };
            }
        }
        Some(best)
    }

    /// A second start, far from affinities of 1: each step of a descent changes one OSD, so that it may end in a local optimum.
    ///
    /// An OSD gets the square of its speed compared with the fastest: it leads groups that others reject, too.
    fn rough_guess(&self, start: &[Affinity]) -> Vec<Affinity> {
        let fastest = self.service_rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let lowest = Affinity::from_steps(self.min_steps);
        let guess = |rate: &f64| Affinity::from_ratio((rate / fastest).powi(2)).max(lowest);
        let mut guesses: Vec<Affinity> = self.service_rates.iter().map(guess).collect();
        for osd in self.fixed_osds {
            guesses[*osd] = start[*osd];
        }
        guesses
    }

    /// Minimizes the cost with this exponent.
    fn descend(&self, mut affinities: Vec<Affinity>, exponent: i32) -> Vec<Affinity> {
        let loads = self.loads(&affinities);
        let ideal = loads.iter().sum::<f64>() / self.service_rates.iter().sum::<f64>();
        let mut balance = Balance { service_rates: self.service_rates, ideal, exponent, loads };
        for _ in 0..MAX_PASSES {
            let is_free = |osd: &OsdIndex| !self.fixed_osds.contains(osd);
            let mut order: Vec<OsdIndex> = (0..affinities.len()).filter(is_free).collect();
            let utilizations: Vec<f64> = (0..affinities.len()).map(|osd| balance.utilization(osd)).collect();
            order.sort_by(|a, b| utilizations[*b].total_cmp(&utilizations[*a]));
            let mut is_improved = false;
            for osd in order {
                let choices = self.placement.choices(osd, &affinities);
                if let Some(affinity) = balance.improve(choices, affinities[osd], self.min_steps) {
                    affinities[osd] = affinity;
                    is_improved = true;
                }
            }
            if !is_improved {
                break;
            }
        }
        affinities
    }
}

/// The loads of the OSDs during a search. Their cost is the sum of `load * utilization^exponent`.
struct Balance<'a> {
    service_rates: &'a [f64],
    /// Utilization of every OSD under a perfect distribution.
    ideal: f64,
    exponent: i32,
    loads: Vec<f64>,
}

impl Balance<'_> {
    /// Relative to the perfect distribution.
    fn utilization(&self, osd: OsdIndex) -> f64 {
        self.loads[osd] / (self.service_rates[osd] * self.ideal)
    }

    fn cost(&self, osd: OsdIndex) -> f64 {
        self.loads[osd] * self.utilization(osd).powi(self.exponent)
    }

    /// Moves a group to the other OSD of its choice. Returns the change of the cost.
    fn move_group(&mut self, from: OsdIndex, to: OsdIndex, read_load: f64) -> f64 {
        let before = self.cost(from) + self.cost(to);
        self.loads[from] -= read_load;
        self.loads[to] += read_load;
        self.cost(from) + self.cost(to) - before
    }

    /// Applies the best affinity of the OSD with these choices and returns it; `None` if the current one is the best.
    fn improve(&mut self, mut choices: Vec<Choice>, current: Affinity, min_steps: u32) -> Option<Affinity> {
        // The groups that the OSD gives away first come first.
        choices.sort_by_key(|choice| std::cmp::Reverse(choice.hash));
        let mut change = 0.0;
        let given_at = |affinity: Affinity| choices.partition_point(|choice| !affinity.accepts(choice.hash));
        let (mut given, start_given) = (0, given_at(current));
        for choice in &choices[..start_given] {
            change += self.move_group(choice.if_rejected, choice.if_accepted, choice.read_load);
        }
        let (mut best, mut best_given, mut best_change) =
            (None, start_given, -MIN_IMPROVEMENT * self.total());
        for steps in (min_steps..=AFFINITY_STEPS).rev() {
            let affinity = Affinity::from_steps(steps);
            while given < given_at(affinity) {
                let choice = choices[given];
                change += self.move_group(choice.if_accepted, choice.if_rejected, choice.read_load);
                given += 1;
            }
            if change < best_change {
                (best, best_given, best_change) = (Some(affinity), given, change);
            }
        }
        while given > best_given {
            given -= 1;
            let choice = choices[given];
            self.move_group(choice.if_rejected, choice.if_accepted, choice.read_load);
        }
        for choice in &choices[given..best_given] {
            self.move_group(choice.if_accepted, choice.if_rejected, choice.read_load);
        }
        best
    }

    fn total(&self) -> f64 {
        self.loads.iter().sum()
    }
}

#[cfg(test)]
pub(super) mod tests;
