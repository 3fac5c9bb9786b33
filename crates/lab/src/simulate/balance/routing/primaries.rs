//! Policies that set primary affinities: every read goes to the primary of its PG.

use std::time::Duration;

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::controller::{Controller, Decision, Round};
use tradewind_model::affinity::dlr::{self, Thresholds};
use tradewind_model::affinity::placement::{OsdIndex, Placement};
use tradewind_model::affinity::queueing::ReadLoad;
use tradewind_model::affinity::solver::{Cluster, Solution};

use super::{EndedRead, Request, Routing};
use crate::simulate::balance::report::{AffinityStep, StepAction};
use crate::simulate::balance::scenario::StoreState;
use crate::simulate::balance::store::{Measured, Store};
use crate::simulate::balance::workload::World;

/// Time between two rounds of `predict`, as in `tradewind balance ceph`.
const PREDICT_INTERVAL: Duration = Duration::from_secs(2);
/// Rounds after which the loads of the PGs are read again, as in `tradewind balance ceph`.
const PG_REFRESH_ROUNDS: u64 = 5;
/// Reads per PG that weigh as much as the assumption that all PGs are read equally often, as in `tradewind balance
/// ceph`.
const PRIOR_READS_PER_PG: f64 = 20.0;
/// Service rate that the oracle assumes of a failing store.
const FAILING_READS_PER_SECOND: f64 = 1e-3;
/// Where the oracle's searches start: with the affinities `(service rate / highest one)^exponent`. A search ends at the
/// nearest optimum, and the one nearest to affinities of 1 can be far below the best.
const ORACLE_START_EXPONENTS: [i32; 5] = [0, 1, 2, 4, 16];

/// Reads by primaries.
pub(super) struct Primaries<'a> {
    world: &'a World,
    affinities: Vec<Affinity>,
    /// The primary of each PG.
    primaries: Vec<OsdIndex>,
    /// The PGs with the loads that the policy knows.
    placement: Placement,
    reads_of_pg: Vec<u64>,
    rounds: u64,
    decider: Decider,
    steps: Vec<AffinityStep>,
}

/// The decision about affinities.
enum Decider {
    Constant,
    Dlr(Thresholds),
    Predict(Box<Controller>),
    Oracle,
}

impl<'a> Primaries<'a> {
    fn new(world: &'a World, decider: Decider) -> Self {
        let is_oracle = matches!(decider, Decider::Oracle);
        let load = |pg| if is_oracle { world.pgs.popularity(pg) } else { 1.0 };
        let placement = world.pgs.placement(world.store_count, load);
        let affinities = vec![Affinity::MAX; world.store_count];
        Self {
            world,
            primaries: placement.primaries(&affinities),
            affinities,
            placement,
            reads_of_pg: vec![0; world.pgs.count()],
            rounds: 0,
            decider,
            steps: Vec::new(),
        }
    }

    /// All affinities stay 1.
    pub fn constant(world: &'a World) -> Self {
        Self::new(world, Decider::Constant)
    }

    /// The paper's controller.
    pub fn dlr(world: &'a World) -> Self {
        Self::new(world, Decider::Dlr(Thresholds::default()))
    }

    /// The controller of `tradewind balance ceph`.
    pub fn predict(world: &'a World) -> Self {
        let controller = Controller::new(world.store_count, world.predict);
        Self::new(world, Decider::Predict(Box::new(controller)))
    }

    /// The best affinities at any time.
    pub fn oracle(world: &'a World) -> Self {
        Self::new(world, Decider::Oracle)
    }

    fn apply(&mut self, now: Duration, action: StepAction, affinities: Vec<Affinity>) {
        let pairs = affinities.iter().zip(&self.affinities);
        let changed_stores = pairs.filter(|(next, current)| next != current).count();
        if changed_stores > 0 || matches!(action, StepAction::Keep { .. }) {
            self.primaries = self.placement.primaries(&affinities);
            self.affinities = affinities;
            self.steps.push(AffinityStep { at: now, action, changed_stores });
        }
    }

    fn predict_round(&mut self, now: Duration, measured: &[Measured]) {
        if self.rounds.is_multiple_of(PG_REFRESH_ROUNDS) {
            let load = |pg: usize| self.reads_of_pg[pg] as f64 + PRIOR_READS_PER_PG;
            self.placement = self.world.pgs.placement(self.world.store_count, load);
        }
        self.rounds += 1;
        let read_loads: Vec<ReadLoad> = measured.iter().map(|measured| measured.reads).collect();
        let Decider::Predict(controller) = &mut self.decider else { return };
        let decision = controller.decide(&Round {
            now,
            placement: &self.placement,
            read_loads: &read_loads,
            affinities: &self.affinities,
            fixed_osds: &[],
            seconds: PREDICT_INTERVAL.as_secs_f64(),
        });
        match decision {
            Decision::Wait(_) => {}
            Decision::Set { affinities, predicted_gain } => {
                self.apply(now, StepAction::Set { predicted_gain: Some(predicted_gain) }, affinities);
            }
            Decision::Keep { measured_gain } => {
                self.apply(now, StepAction::Keep { measured_gain }, self.affinities.clone());
            }
            Decision::KeepPart { affinities, measured_gain } => {
                self.apply(now, StepAction::Keep { measured_gain }, affinities);
            }
            Decision::Undo { affinities, measured_gain } => {
                self.apply(now, StepAction::Undo { measured_gain }, affinities);
            }
        }
    }

    fn dlr_round(&mut self, now: Duration, measured: &[Measured], thresholds: &Thresholds) {
        let osds = measured.iter().zip(&self.affinities);
        let osds: Vec<dlr::Measured> = osds
            .map(|(measured, affinity)| dlr::Measured {
                signal_percent: measured.busy_percent,
                affinity: *affinity,
            })
            .collect();
        let affinities = dlr::adjust(&osds, thresholds);
        self.apply(now, StepAction::Set { predicted_gain: None }, affinities);
    }
}

impl Routing for Primaries<'_> {
    fn route(&mut self, request: &Request<'_>, _: &[Store]) -> OsdIndex {
        self.primaries[request.pg]
    }

    fn completed(&mut self, ended: EndedRead) {
        self.reads_of_pg[ended.pg] += 1;
    }

    fn round_interval(&self) -> Option<Duration> {
        match self.decider {
            Decider::Constant | Decider::Oracle => None,
            Decider::Dlr(_) => Some(Duration::from_secs(dlr::INTERVAL_SECONDS)),
            Decider::Predict(_) => Some(PREDICT_INTERVAL),
        }
    }

    fn round(&mut self, now: Duration, measured: &[Measured]) {
        match &self.decider {
            Decider::Constant | Decider::Oracle => {}
            Decider::Dlr(thresholds) => {
                let thresholds = *thresholds;
                self.dlr_round(now, measured, &thresholds);
            }
            Decider::Predict(_) => self.predict_round(now, measured),
        }
    }

    fn phase_changed(&mut self, now: Duration, stores: &[StoreState]) {
        if !matches!(self.decider, Decider::Oracle) {
            return;
        }
        let service_rates: Vec<f64> = stores
            .iter()
            .map(|store| if store.is_failing { FAILING_READS_PER_SECOND } else { store.reads_per_second })
            .collect();
        let cluster = Cluster {
            placement: &self.placement,
            service_rates: &service_rates,
            in_flight: self.world.in_flight as f64,
            // Nothing needs to be tried out, so that no store must keep reads.
            min_steps: 0,
            fixed_osds: &[],
            other_loads: &[],
        };
        if let Some(solution) = solve_from_many(&cluster) {
            self.apply(now, StepAction::Set { predicted_gain: None }, solution.affinities);
        }
    }

    fn steps(&self) -> &[AffinityStep] {
        &self.steps
    }
}

/// The best of searches from several starts; `None` without reads.
fn solve_from_many(cluster: &Cluster<'_>) -> Option<Solution> {
    let max_rate = cluster.service_rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let solutions = ORACLE_START_EXPONENTS.iter().filter_map(|exponent| {
        let start =
            cluster.service_rates.iter().map(|rate| Affinity::from_ratio((rate / max_rate).powi(*exponent)));
        cluster.solve_from(&start.collect::<Vec<_>>())
    });
    solutions.max_by(|a, b| a.prediction.throughput.total_cmp(&b.prediction.throughput))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::balance::Options;

    #[test]
    fn oracle_is_at_least_as_good_as_one_search() {
        for seed in 1..=8 {
            let world = World::new(&Options { seed, ..Options::default() });
            let placement = world.pgs.placement(world.store_count, |pg| world.pgs.popularity(pg));
            let rates: Vec<f64> = world.phases[0].stores.iter().map(|store| store.reads_per_second).collect();
            let cluster = Cluster {
                placement: &placement,
                service_rates: &rates,
                in_flight: 16.0,
                min_steps: 0,
                fixed_osds: &[],
                other_loads: &[],
            };
            let rate = |solution: Option<Solution>| solution.unwrap().prediction.throughput;
            assert!(rate(solve_from_many(&cluster)) >= rate(cluster.solve()), "{seed}");
        }
    }

    #[test]
    fn rounds_set_primaries_and_are_recorded_as_steps() {
        let world = World::new(&Options::default());
        let mut routing = Primaries::dlr(&world);
        let before = routing.primaries.clone();
        let measured = |busy_percent| Measured { busy_percent, ..Measured::default() };
        let mut stores = vec![measured(10.0); 8];
        stores[0] = measured(100.0);
        routing.round(Duration::from_secs(20), &stores);
        let moved = (0..128).filter(|pg| routing.primaries[*pg] != before[*pg]);
        assert!(moved.clone().count() > 0 && moved.clone().all(|pg| before[pg] == 0));
        routing.round(Duration::from_secs(40), &[measured(30.0); 8]);
        let changed: Vec<_> = routing.steps().iter().map(|step| step.changed_stores).collect();
        assert_eq!(changed, [1], "a round without a change is no step");
    }
}
