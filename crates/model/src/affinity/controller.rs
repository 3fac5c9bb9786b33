//! The controller of read load: predicts, acts once, verifies.
//!
//! In each round it estimates the service rate of every OSD from its reads ([`ReadLoad::service_rate`]), solves for the best
//! affinities ([`Cluster::solve_from`]) and compares the predicted throughput with that of the current ones. All
//! affinities change in one step. The gain is then measured; without one, the step is undone.
//!
//! Stability: no OSD changes twice within [`Options::min_change_interval`]. An affinity reverses its direction only once
//! the OSD's service rate, relative to its peers, has changed by more than its noise ([`OsdState::has_changed`]). An OSD
//! whose step was undone waits for such a change too, or for [`Options::retry_interval`], which doubles with each undone
//! step.

use std::collections::VecDeque;
use std::time::Duration;

use super::Affinity;
use super::placement::Placement;
use super::queueing::{ReadLoad, predict};
use super::solver::Cluster;

/// Rounds of which the median is the service rate.
const RATE_ROUNDS: usize = 3;
/// Minimum change of a service rate, compared with its peers, that lets an affinity reverse: of its logarithm.
const MIN_RATE_CHANGE: f64 = 0.2;
/// The same in units of the rate's noise.
const MIN_CHANGE_TO_NOISE: f64 = 4.0;
/// Weight of the latest difference in the noise.
const NOISE_WEIGHT: f64 = 1.0 / 32.0;
/// Noise of a rate before it has been observed for long.
const INITIAL_NOISE: f64 = 0.15;
/// Reads of an OSD in a round below which its previous service rate stays.
const MIN_ROUND_READS: f64 = 3.0;
/// Maximum of the doubled [`Options::retry_interval`].
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The controller's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Minimum predicted gain in throughput, as a share: 0.05 is 5 %.
    pub min_predicted_gain: f64,
    /// Minimum measured gain, as a share of the predicted one, for a step to stay.
    pub min_kept_share: f64,
    /// Rounds in a row that must predict a gain before a step.
    pub confirm_rounds: u32,
    /// Rounds after a step that are not measured: the PGs elect their primaries.
    pub settle_rounds: u32,
    /// Rounds that are measured to verify a step.
    pub verify_rounds: u32,
    /// Minimum time between two changes of one OSD. An undone step does not count.
    pub min_change_interval: Duration,
    /// Time until OSDs whose step was undone are tried again although their service rates did not change.
    pub retry_interval: Duration,
    /// The lowest affinity, in steps of 1/64.
    pub min_steps: u32,
    /// Reads per second of the cluster below which nothing is done.
    pub min_reads_per_second: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            min_predicted_gain: 0.05,
            min_kept_share: 0.25,
            confirm_rounds: 2,
            settle_rounds: 1,
            verify_rounds: 3,
            min_change_interval: Duration::from_secs(60),
            retry_interval: Duration::from_secs(900),
            min_steps: 4,
            min_reads_per_second: 2.0,
        }
    }
}

/// The measurements of a round.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// Time since any fixed start.
    pub now: Duration,
    /// The placement groups with their current loads.
    pub placement: &'a Placement,
    /// Reads of each OSD, in the order of the placement.
    pub read_loads: &'a [ReadLoad],
    /// The affinities in force.
    pub affinities: &'a [Affinity],
    /// Seconds over which the reads were counted.
    pub seconds: f64,
}

/// Why nothing changes in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Idle {
    /// There are too few reads to tell fast from slow.
    FewReads,
    /// Some OSD has not been measured yet.
    Measuring,
    /// No other affinities promise enough. The best predicted gain as a share.
    NoGain(f64),
    /// A gain is predicted, but not yet in enough rounds.
    Confirming(f64),
    /// A step was made; its effect is not measured yet.
    Settling,
    /// The OSDs to change were changed within [`Options::min_change_interval`].
    RecentlyChanged,
}

/// The decision of a round.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Change nothing.
    Wait(Idle),
    /// Set these affinities.
    Set {
        /// One per OSD.
        affinities: Vec<Affinity>,
        /// Predicted gain in throughput, as a share.
        predicted_gain: f64,
    },
    /// The last step stays.
    Keep {
        /// Measured gain as a share.
        measured_gain: f64,
    },
    /// Set these affinities, which were in force before the last step: it brought too little.
    Undo {
        /// One per OSD.
        affinities: Vec<Affinity>,
        /// Measured gain as a share.
        measured_gain: f64,
    },
}

/// A step whose effect is being measured.
#[derive(Debug, Clone)]
struct PendingStep {
    previous: Vec<Affinity>,
    /// The state of the OSDs before the step, for an undo.
    previous_osds: Vec<OsdState>,
    predicted_gain: f64,
    /// Loads under the previous affinities, and service rates at that time.
    previous_loads: Vec<f64>,
    service_rates: Vec<f64>,
    /// Measured latency before the step, divided by the predicted one.
    calibration: f64,
    rounds: u32,
    measured: Vec<Total>,
}

/// Reads of all OSDs in a round.
#[derive(Debug, Clone, Copy)]
struct Total {
    in_flight: f64,
    reads_per_second: f64,
}

impl Total {
    fn of(read_loads: &[ReadLoad]) -> Self {
        Self {
            in_flight: read_loads.iter().map(|load| load.in_flight()).sum(),
            reads_per_second: read_loads.iter().map(|load| load.reads_per_second).sum(),
        }
    }

    fn latency_seconds(self) -> f64 {
        self.in_flight / self.reads_per_second
    }
}

/// The state of an OSD.
#[derive(Debug, Clone)]
struct OsdState {
    recent_rates: VecDeque<f64>,
    /// Mean difference of the logarithms of two successive rates.
    noise: f64,
    last_change: Option<LastChange>,
}

impl Default for OsdState {
    fn default() -> Self {
        Self { recent_rates: VecDeque::new(), noise: INITIAL_NOISE, last_change: None }
    }
}

#[derive(Debug, Clone, Copy)]
struct LastChange {
    /// When the affinity was set; an undo does not count.
    at: Option<Duration>,
    is_increase: bool,
    /// The service rate relative to the mean of all OSDs.
    relative_rate: f64,
    /// If the change was undone: no change before this time.
    blocked_until: Option<Duration>,
}

impl OsdState {
    /// Returns false for a change that contradicts the last one although the OSD did not change.
    fn allows(&self, is_increase: bool, mean_rate: f64, now: Duration) -> bool {
        let Some(last) = self.last_change else { return true };
        let is_free = match last.blocked_until {
            Some(end) => now >= end,
            None => is_increase == last.is_increase,
        };
        is_free || self.has_changed(last.relative_rate, mean_rate)
    }

    /// Whether every recent rate differs from an earlier one by more than noise; rates are relative to the mean of all OSDs.
    fn has_changed(&self, earlier: f64, mean_rate: f64) -> bool {
        let threshold = MIN_RATE_CHANGE.max(MIN_CHANGE_TO_NOISE * self.noise);
        let changes = || self.recent_rates.iter().map(|rate| (rate / mean_rate / earlier).ln());
        self.recent_rates.len() == RATE_ROUNDS
            && (changes().all(|change| change > threshold) || changes().all(|change| change < -threshold))
    }

    fn record(&mut self, load: ReadLoad, seconds: f64) {
        let Some(rate) = load.service_rate() else { return };
        let is_sparse = load.reads_per_second * seconds < MIN_ROUND_READS;
        if is_sparse && self.recent_rates.len() == RATE_ROUNDS {
            return;
        }
        if let Some(earlier) = self.recent_rates.back() {
            self.noise += NOISE_WEIGHT * ((rate / earlier).ln().abs() - self.noise);
        }
        if self.recent_rates.len() == RATE_ROUNDS {
            self.recent_rates.pop_front();
        }
        self.recent_rates.push_back(rate);
    }

    /// The median of the recent rounds.
    fn service_rate(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.recent_rates.iter().copied().collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }
}

/// The controller's state.
#[derive(Debug, Clone)]
pub struct Controller {
    options: Options,
    osds: Vec<OsdState>,
    pending: Option<PendingStep>,
    confirmed_rounds: u32,
    /// The current retry interval.
    retry_interval: Duration,
}

impl Controller {
    /// A controller for this number of OSDs. If the set of OSDs changes, make a new one.
    pub fn new(osd_count: usize, options: Options) -> Self {
        Self {
            retry_interval: options.retry_interval,
            options,
            osds: vec![OsdState::default(); osd_count],
            pending: None,
            confirmed_rounds: 0,
        }
    }

    /// The estimated service rates in reads per second; `None` for OSDs without reads so far.
    pub fn service_rates(&self) -> Vec<Option<f64>> {
        self.osds.iter().map(OsdState::service_rate).collect()
    }

    /// Returns true while the effect of a step is not yet verified.
    pub fn is_verifying(&self) -> bool {
        self.pending.is_some()
    }

    /// Decides a round. The caller applies the affinities before the next one.
    pub fn decide(&mut self, round: &Round<'_>) -> Decision {
        let total = Total::of(round.read_loads);
        let has_reads = total.reads_per_second >= self.options.min_reads_per_second;
        if let Some(pending) = self.pending.take() {
            return self.verify(pending, round, total, has_reads);
        }
        if !has_reads {
            self.confirmed_rounds = 0;
            return Decision::Wait(Idle::FewReads);
        }
        for (osd, load) in self.osds.iter_mut().zip(round.read_loads) {
            osd.record(*load, round.seconds);
        }
        let Some(service_rates) = self.known_rates() else { return Decision::Wait(Idle::Measuring) };
        let cluster = Cluster {
            placement: round.placement,
            service_rates: &service_rates,
            in_flight: total.in_flight,
            min_steps: self.options.min_steps,
        };
        let (Some(current), Some(best)) =
            (cluster.predict(round.affinities), cluster.solve_from(round.affinities))
        else {
            return Decision::Wait(Idle::FewReads);
        };
        let affinities = self.without_reversals(&best.affinities, round, &service_rates);
        let predicted = cluster.predict(&affinities).map_or(0.0, |prediction| prediction.reads_per_second);
        let predicted_gain = predicted / current.reads_per_second - 1.0;
        if predicted_gain < self.options.min_predicted_gain {
            self.confirmed_rounds = 0;
            return Decision::Wait(Idle::NoGain(predicted_gain));
        }
        self.confirmed_rounds += 1;
        if self.confirmed_rounds < self.options.confirm_rounds {
            return Decision::Wait(Idle::Confirming(predicted_gain));
        }
        if self.is_recently_changed(&affinities, round) {
            return Decision::Wait(Idle::RecentlyChanged);
        }
        let calibration = total.latency_seconds() / current.latency_seconds;
        let previous_osds = self.osds.clone();
        self.note_changes(&affinities, round, &service_rates);
        self.pending = Some(PendingStep {
            previous: round.affinities.to_vec(),
            previous_osds,
            predicted_gain,
            previous_loads: round.placement.loads(round.affinities),
            service_rates,
            calibration,
            rounds: 0,
            measured: Vec::new(),
        });
        self.confirmed_rounds = 0;
        Decision::Set { affinities, predicted_gain }
    }

    /// Every service rate; an OSD that was never read counts as the mean of its peers. `None` until most are known.
    fn known_rates(&self) -> Option<Vec<f64>> {
        let rates = self.service_rates();
        let known: Vec<f64> = rates.iter().flatten().copied().collect();
        let is_settled =
            self.osds.iter().filter(|osd| osd.recent_rates.len() >= 2).count() * 2 > self.osds.len();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        is_settled.then(|| rates.into_iter().map(|rate| rate.unwrap_or(mean)).collect())
    }

    /// Leaves affinities as they are that would reverse although the OSD did not change.
    fn without_reversals(
        &self,
        best: &[Affinity],
        round: &Round<'_>,
        service_rates: &[f64],
    ) -> Vec<Affinity> {
        let mean_rate = service_rates.iter().sum::<f64>() / service_rates.len() as f64;
        let choose = |osd: usize| {
            let (best, current) = (best[osd], round.affinities[osd]);
            let is_allowed = best == current || self.osds[osd].allows(best > current, mean_rate, round.now);
            if is_allowed { best } else { current }
        };
        (0..best.len()).map(choose).collect()
    }

    fn is_recently_changed(&self, affinities: &[Affinity], round: &Round<'_>) -> bool {
        let is_recent = |osd: usize| {
            let changed_at = self.osds[osd].last_change.and_then(|last| last.at);
            changed_at.is_some_and(|at| round.now.saturating_sub(at) < self.options.min_change_interval)
        };
        (0..affinities.len()).any(|osd| affinities[osd] != round.affinities[osd] && is_recent(osd))
    }

    fn note_changes(&mut self, affinities: &[Affinity], round: &Round<'_>, service_rates: &[f64]) {
        for (osd, state) in self.osds.iter_mut().enumerate() {
            if affinities[osd] != round.affinities[osd] {
                state.last_change = Some(LastChange {
                    at: Some(round.now),
                    is_increase: affinities[osd] > round.affinities[osd],
                    relative_rate: relative(service_rates, osd),
                    blocked_until: None,
                });
            }
        }
    }

    /// Restores the OSDs' state from before a step, and blocks those that it changed.
    fn block_undone(&mut self, pending: &PendingStep, round: &Round<'_>) {
        let stepped = std::mem::replace(&mut self.osds, pending.previous_osds.clone());
        for (osd, state) in self.osds.iter_mut().enumerate() {
            if round.affinities[osd] != pending.previous[osd] {
                state.last_change = Some(LastChange {
                    at: stepped[osd].last_change.and_then(|last| last.at),
                    is_increase: pending.previous[osd] > round.affinities[osd],
                    relative_rate: relative(&pending.service_rates, osd),
                    blocked_until: Some(round.now + self.retry_interval),
                });
            }
        }
    }

    fn verify(
        &mut self,
        mut pending: PendingStep,
        round: &Round<'_>,
        total: Total,
        has_reads: bool,
    ) -> Decision {
        pending.rounds += 1;
        if pending.rounds > self.options.settle_rounds && has_reads {
            pending.measured.push(total);
        }
        if pending.rounds < self.options.settle_rounds + self.options.verify_rounds {
            self.pending = Some(pending);
            return Decision::Wait(Idle::Settling);
        }
        // Without reads there is nothing to judge, and nothing to lose.
        let measured_gain = pending.measured_gain().unwrap_or(0.0);
        let is_kept = pending.measured.is_empty()
            || measured_gain >= pending.predicted_gain * self.options.min_kept_share;
        for osd in &mut self.osds {
            osd.recent_rates.clear();
        }
        if is_kept {
            self.retry_interval = self.options.retry_interval;
            return Decision::Keep { measured_gain };
        }
        self.block_undone(&pending, round);
        self.retry_interval = (self.retry_interval * 2).min(MAX_RETRY_INTERVAL);
        Decision::Undo { affinities: pending.previous, measured_gain }
    }
}

impl PendingStep {
    /// The median over the measured rounds of the latency that the previous affinities would have had with the reads then
    /// in flight, divided by the measured latency, less 1.
    fn measured_gain(&self) -> Option<f64> {
        let gain = |total: &Total| {
            let previous = predict(&self.previous_loads, &self.service_rates, total.in_flight)?;
            Some(previous.latency_seconds * self.calibration / total.latency_seconds() - 1.0)
        };
        let mut gains: Vec<f64> = self.measured.iter().filter_map(gain).collect();
        gains.sort_by(f64::total_cmp);
        gains.get(gains.len() / 2).copied()
    }
}

/// The service rate of an OSD divided by the mean of all.
fn relative(service_rates: &[f64], osd: usize) -> f64 {
    service_rates[osd] * service_rates.len() as f64 / service_rates.iter().sum::<f64>()
}

#[cfg(test)]
mod tests;
