//! A step whose effect is being measured, and the evidence of its gain.

use std::collections::VecDeque;

use super::super::Affinity;
use super::super::placement::{OsdIndex, Placement};
use super::super::queueing::{ReadLoad, predict};
use super::evidence::{Interval, Samples};
use super::osd_state::OsdState;

/// Minimum of the measured latency before a step, in units of the predicted one: while queues grow after a change, the reads
/// that complete are the short ones.
const MIN_CALIBRATION: f64 = 0.9;

/// A step whose effect is being measured.
#[derive(Debug, Clone)]
pub(super) struct PendingStep {
    pub previous: Vec<Affinity>,
    pub affinities: Vec<Affinity>,
    /// The state of the OSDs before the step, for an undo.
    pub previous_osds: Vec<OsdState>,
    /// Predicted gain, not scaled.
    pub full_gain: f64,
    /// Loads under the previous affinities, and service rates, from before the step.
    pub previous_loads: Vec<f64>,
    pub service_rates: Vec<f64>,
    /// Loads that no affinity moves, in units of the read load of all OSDs: the loads of a later placement have another unit.
    pub other_shares: Vec<f64>,
    /// Rounds before the step.
    pub earlier: Vec<Total>,
    pub rounds: u32,
    pub measured: VecDeque<Total>,
}

/// Reads and writes of all OSDs in a round.
#[derive(Debug, Clone)]
pub(super) struct Total {
    pub in_flight: f64,
    pub reads_per_second: f64,
    pub cost_per_second: f64,
    /// [`ReadLoad::service_rate`] of each OSD.
    pub service_rates: Vec<Option<f64>>,
}

impl Total {
    pub fn from_loads(read_loads: &[ReadLoad]) -> Self {
        let sum = |value: fn(&ReadLoad) -> f64| read_loads.iter().map(value).sum();
        Self {
            in_flight: sum(|load| load.in_flight() + load.writes.in_flight()),
            reads_per_second: sum(|load| load.reads_per_second),
            cost_per_second: sum(|load| load.cost_per_second() + load.writes.cost_per_second()),
            service_rates: read_loads.iter().map(|load| load.service_rate()).collect(),
        }
    }

    /// Latency in seconds per unit of the cost, as in [`Prediction`](super::super::queueing::Prediction).
    pub fn latency_seconds(&self) -> f64 {
        self.in_flight / self.cost_per_second
    }

    /// The logarithm of the measured latency in units of the predicted one; `None` without a load.
    pub fn deviation(&self, loads: &[f64], service_rates: &[f64]) -> Option<f64> {
        let predicted = predict(loads, service_rates, self.in_flight)?;
        Some((self.latency_seconds() / predicted.latency_seconds).ln())
    }
}

impl PendingStep {
    /// The logarithm of the gain: of the latency that the previous affinities would have had with the reads in flight in the
    /// measured rounds, in units of the measured one. `None` without reads.
    pub fn gain(&self) -> Option<Interval> {
        let deviations = |rounds: &mut dyn Iterator<Item = &Total>| -> Samples {
            rounds.filter_map(|total| total.deviation(&self.previous_loads, &self.service_rates)).collect()
        };
        let earlier = deviations(&mut self.earlier.iter()).with_min_mean(MIN_CALIBRATION.ln());
        earlier.minus(deviations(&mut self.measured.iter()))
    }

    /// The OSDs whose change is certain to cost this gain, by the service rates that were measured since the step: the
    /// throughput would be higher if they had their previous affinities, and all other OSDs the affinities of the step.
    pub fn harmful_osds(&self, placement: &Placement, min_gain: f64) -> Vec<OsdIndex> {
        let now = self.loads(placement, &self.affinities);
        let is_harmful = |osd: &OsdIndex| {
            let mut affinities = self.affinities.clone();
            affinities[*osd] = self.previous[*osd];
            let reverted = self.loads(placement, &affinities);
            let gains: Samples =
                self.measured.iter().filter_map(|total| self.gain_of_loads(total, &now, &reverted)).collect();
            gains.interval().is_some_and(|gain| gain.low > min_gain.ln_1p())
        };
        let changed = (0..self.previous.len()).filter(|osd| self.affinities[*osd] != self.previous[*osd]);
        changed.filter(is_harmful).collect()
    }

    fn loads(&self, placement: &Placement, affinities: &[Affinity]) -> Vec<f64> {
        let loads = placement.loads(affinities);
        let read_load: f64 = loads.iter().sum();
        loads.iter().zip(&self.other_shares).map(|(load, share)| load + share * read_load).collect()
    }

    /// The logarithm of the gain in throughput that other loads would have brought in a round. `None` without a load.
    fn gain_of_loads(&self, total: &Total, now: &[f64], other: &[f64]) -> Option<f64> {
        let measured = total.service_rates.iter().zip(&self.service_rates);
        let rates: Vec<f64> = measured.map(|(measured, earlier)| measured.unwrap_or(*earlier)).collect();
        let throughput =
            |loads: &[f64]| predict(loads, &rates, total.in_flight).map(|prediction| prediction.throughput);
        Some((throughput(other)? / throughput(now)?).ln())
    }
}
