//! The controller of read load: predicts, acts once, verifies.
//!
//! In each round it estimates the service rate of every OSD from its reads ([`ReadLoad::service_rate`]), solves for the best
//! affinities ([`Cluster::solve_from`]) and compares the predicted throughput with that of the current ones. All
//! affinities change in one step. The gain is then measured, and compared with none ([`evidence`]): a step stays if the
//! rounds show a gain, however small, and it is undone if they show none. An OSD whose change costs throughput, by
//! the service rates that are measured after the step, is undone by itself. Predictions are scaled by what earlier steps brought.
//!
//! Writes count as load of all replicas: they do not move, and they grow with the reads, as the same clients issue both.
//!
//! Stability: no OSD changes twice within [`Options::min_change_interval`]. An affinity reverses its direction only once
//! the OSD's service rate, relative to its peers, has changed by more than its noise. An OSD whose step was undone waits
//! for such a change too, or for [`Options::retry_interval`], which doubles with each undone step.

mod evidence;
mod osd_state;
mod pending_step;

use std::collections::VecDeque;
use std::time::Duration;

use self::osd_state::{LastChange, OsdState};
use self::pending_step::{PendingStep, Total};
use super::Affinity;
use super::placement::{OsdIndex, Placement};
use super::queueing::ReadLoad;
use super::solver::Cluster;

/// Samples of an OSD's reads that make its service rate.
const RATE_SAMPLES: usize = 5;
/// Samples that an OSD needs for a decision about it.
const MIN_SAMPLES: usize = 2;
/// Rounds after a step that count for its gain: the last ones, as reads that waited while PGs elected their primaries
/// complete late.
const MEASURED_ROUNDS: usize = 6;
/// Minimum predicted gain of a step that must leave OSDs alone because they changed a short time ago, and its minimum share
/// of the gain without that limit: while a small step is verified, a large one must wait.
const MIN_EARLY_GAIN: f64 = 0.15;
const MIN_EARLY_SHARE: f64 = 0.5;
/// Share of the predicted gain that the measured one may still have: such a step is kept without a verdict.
const MIN_UNDECIDED_SHARE: f64 = 0.5;
/// Minimum of the factor by which predictions are scaled.
const MIN_PREDICTION_SCALE: f64 = 0.25;
/// Minimum and maximum of a measured gain in units of the predicted one, for that factor.
const MIN_REALIZED_SHARE: f64 = 0.05;
const MAX_REALIZED_SHARE: f64 = 1.5;
/// Maximum of the doubled [`Options::retry_interval`].
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The controller's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Minimum predicted gain in throughput, as a share: 0.05 is 5 %.
    pub min_predicted_gain: f64,
    /// Minimum measured gain for a step to stay whose gain is not certain to be above 0.
    pub min_kept_gain: f64,
    /// Rounds in a row that must predict a gain before a step.
    pub confirm_rounds: u32,
    /// Rounds after a step that are not measured: the PGs elect their primaries.
    pub settle_rounds: u32,
    /// Minimum number of rounds that verify a step.
    pub verify_rounds: u32,
    /// Maximum of [`Self::verify_rounds`], for a step whose gain is not certain.
    pub max_verify_rounds: u32,
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
            min_kept_gain: 0.02,
            confirm_rounds: 2,
            settle_rounds: 1,
            verify_rounds: 3,
            max_verify_rounds: 10,
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
    /// The OSDs whose affinity no decision changes, not even to undo a step.
    pub fixed_osds: &'a [OsdIndex],
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
        /// Predicted gain in throughput, as a share, scaled by what earlier steps brought.
        predicted_gain: f64,
    },
    /// The last step stays.
    Keep {
        /// Measured gain as a share.
        measured_gain: f64,
    },
    /// The last step stays, without the OSDs whose change is certain to cost throughput: set these affinities.
    KeepPart {
        /// One per OSD.
        affinities: Vec<Affinity>,
        /// Measured gain of the whole step, as a share.
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

/// The controller's state.
#[derive(Debug, Clone)]
pub struct Controller {
    options: Options,
    osds: Vec<OsdState>,
    /// Recent rounds, for the reads in flight: a round counts the latencies of reads that began before it.
    totals: VecDeque<Total>,
    pending: Option<PendingStep>,
    confirmed_rounds: u32,
    /// Factor of predicted gains, from what earlier steps brought.
    prediction_scale: f64,
    /// When predictions count in full again, after an undone step. It is retried then.
    scaled_until: Option<Duration>,
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
            totals: VecDeque::new(),
            pending: None,
            confirmed_rounds: 0,
            prediction_scale: 1.0,
            scaled_until: None,
        }
    }

    /// The estimated service rates in bytes of [`ReadLoad::cost_per_second`] per second; `None` for OSDs without reads so far.
    pub fn service_rates(&self) -> Vec<Option<f64>> {
        self.osds.iter().map(OsdState::service_rate).collect()
    }

    /// Returns true while the effect of a step is not yet verified.
    pub fn is_verifying(&self) -> bool {
        self.pending.is_some()
    }

    /// Decides a round. The caller applies the affinities before the next one.
    pub fn decide(&mut self, round: &Round<'_>) -> Decision {
        let total = Total::from_loads(round.read_loads);
        let has_reads = total.reads_per_second >= self.options.min_reads_per_second;
        if let Some(pending) = self.pending.take() {
            return self.verify(pending, round, total, has_reads);
        }
        if self.scaled_until.is_some_and(|end| round.now >= end) {
            self.prediction_scale = 1.0;
            self.scaled_until = None;
        }
        if !has_reads {
            self.confirmed_rounds = 0;
            self.totals.clear();
            return Decision::Wait(Idle::FewReads);
        }
        for (osd, load) in self.osds.iter_mut().zip(round.read_loads) {
            osd.record(*load, round.seconds);
        }
        if self.osds.iter().any(OsdState::has_jumped) {
            self.drop_samples();
        }
        if self.totals.len() == RATE_SAMPLES {
            self.totals.pop_front();
        }
        self.totals.push_back(total);
        let Some(service_rates) = self.known_rates() else { return Decision::Wait(Idle::Measuring) };
        let other_loads = self.write_loads(round.placement, round.affinities);
        let cluster = Cluster {
            placement: round.placement,
            service_rates: &service_rates,
            in_flight: self.recent_in_flight(),
            min_steps: self.options.min_steps,
            fixed_osds: round.fixed_osds,
            other_loads: &other_loads,
        };
        let Some(best) = self.find_step(&cluster, round) else { return Decision::Wait(Idle::FewReads) };
        let predicted_gain = best.full_gain * self.prediction_scale;
        if predicted_gain < self.options.min_predicted_gain {
            self.confirmed_rounds = 0;
            return Decision::Wait(Idle::NoGain(predicted_gain));
        }
        self.confirmed_rounds += 1;
        if self.confirmed_rounds < self.options.confirm_rounds {
            return Decision::Wait(Idle::Confirming(predicted_gain));
        }
        let Some(step) = self.without_recent_changes(best, &cluster, round) else {
            return Decision::Wait(Idle::RecentlyChanged);
        };
        let predicted_gain = step.full_gain * self.prediction_scale;
        let previous_loads = cluster.loads(round.affinities);
        let read_load = sum_of_loads(round.placement, round.affinities);
        let previous_osds = self.osds.clone();
        self.note_changes(&step.affinities, round, &service_rates);
        self.pending = Some(PendingStep {
            previous: round.affinities.to_vec(),
            affinities: step.affinities.clone(),
            previous_osds,
            full_gain: step.full_gain,
            previous_loads,
            other_shares: other_loads.iter().map(|load| load / read_load).collect(),
            service_rates,
            earlier: self.totals.iter().cloned().collect(),
            rounds: 0,
            measured: VecDeque::new(),
        });
        self.confirmed_rounds = 0;
        Decision::Set { affinities: step.affinities, predicted_gain }
    }

    /// The best step, without reversals; `None` without reads.
    fn find_step(&self, cluster: &Cluster<'_>, round: &Round<'_>) -> Option<Step> {
        let current = cluster.predict(round.affinities)?;
        let best = cluster.solve_from(round.affinities)?;
        let affinities = self.without_reversals(&best.affinities, round, cluster.service_rates);
        let predicted = cluster.predict(&affinities).map_or(0.0, |prediction| prediction.throughput);
        Some(Step { affinities, full_gain: predicted / current.throughput - 1.0 })
    }

    /// A step that changes no OSD a second time within the minimum interval: the others may be worth a step of their own.
    fn without_recent_changes(&self, best: Step, cluster: &Cluster<'_>, round: &Round<'_>) -> Option<Step> {
        let is_changed = |osd: &OsdIndex| best.affinities[*osd] != round.affinities[*osd];
        let recent: Vec<OsdIndex> =
            (0..best.affinities.len()).filter(|osd| self.is_recently_changed(*osd, round)).collect();
        if !recent.iter().any(is_changed) {
            return Some(best);
        }
        let fixed_osds = [round.fixed_osds, &recent].concat();
        let step = self.find_step(&Cluster { fixed_osds: &fixed_osds, ..*cluster }, round)?;
        let is_worth_it = step.full_gain * self.prediction_scale >= MIN_EARLY_GAIN
            && step.full_gain >= MIN_EARLY_SHARE * best.full_gain;
        is_worth_it.then_some(step)
    }

    /// The writes of each OSD, in the unit of the placement's loads.
    fn write_loads(&self, placement: &Placement, affinities: &[Affinity]) -> Vec<f64> {
        let reads = self.osds.iter().filter_map(|osd| osd.recent().load());
        let read_cost: f64 = reads.map(|load| load.cost_per_second()).sum();
        let unit = sum_of_loads(placement, affinities) / read_cost.max(f64::MIN_POSITIVE);
        self.osds.iter().map(|osd| osd.recent_writes().cost_per_second() * unit).collect()
    }

    /// Rates from before and after a change of the cluster must not be compared.
    fn drop_samples(&mut self) {
        self.osds.iter_mut().for_each(OsdState::drop_samples);
        self.totals.clear();
        self.confirmed_rounds = 0;
    }

    /// Mean of the reads and writes in flight in the recent rounds.
    fn recent_in_flight(&self) -> f64 {
        self.totals.iter().map(|total| total.in_flight).sum::<f64>() / self.totals.len().max(1) as f64
    }

    /// Every service rate; an OSD that was never read counts as the mean of its peers. `None` until most are known.
    fn known_rates(&self) -> Option<Vec<f64>> {
        let rates = self.service_rates();
        let known: Vec<f64> = rates.iter().flatten().copied().collect();
        let is_settled =
            self.osds.iter().filter(|osd| osd.samples.len() >= MIN_SAMPLES).count() * 2 > self.osds.len();
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
            // Lower than this controller sets: a choice of the administrator.
            let is_pinned = current < Affinity::from_steps(self.options.min_steps);
            let is_allowed =
                best == current || !is_pinned && self.osds[osd].allows(best > current, mean_rate, round.now);
            if is_allowed { best } else { current }
        };
        (0..best.len()).map(choose).collect()
    }

    fn is_recently_changed(&self, osd: OsdIndex, round: &Round<'_>) -> bool {
        let changed_at = self.osds[osd].last_change.and_then(|last| last.at);
        changed_at.is_some_and(|at| round.now.saturating_sub(at) < self.options.min_change_interval)
    }

    fn note_changes(&mut self, affinities: &[Affinity], round: &Round<'_>, service_rates: &[f64]) {
        for (osd, state) in self.osds.iter_mut().enumerate() {
            if affinities[osd] != round.affinities[osd] {
                state.last_change = Some(LastChange {
                    at: Some(round.now),
                    is_increase: affinities[osd] > round.affinities[osd],
                    relative_rate: Some(relative(service_rates, osd)),
                    blocked_until: None,
                });
            }
        }
    }

    /// Blocks OSDs whose change is undone. If the whole step is, a change of their service rates lets them change again.
    fn block_undone(&mut self, pending: &PendingStep, undone: &[OsdIndex], now: Duration, extent: Undone) {
        for osd in undone.iter().copied() {
            let state = &mut self.osds[osd];
            state.last_change = Some(LastChange {
                at: state.last_change.and_then(|last| last.at),
                is_increase: pending.previous[osd] > pending.affinities[osd],
                relative_rate: (extent == Undone::Step).then(|| relative(&pending.service_rates, osd)),
                blocked_until: Some(now + self.retry_interval),
            });
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
            if pending.measured.len() == MEASURED_ROUNDS {
                pending.measured.pop_front();
            }
            pending.measured.push_back(total);
        }
        let measured_rounds = pending.rounds.saturating_sub(self.options.settle_rounds);
        let gain = pending.gain();
        let is_over = measured_rounds >= self.options.max_verify_rounds;
        let verdict = match gain {
            // Without reads there is nothing to judge, and nothing to lose.
            None => Some(true),
            Some(gain) if gain.low > 0.0 => Some(true),
            Some(gain) if gain.high < self.options.min_kept_gain.ln_1p() => Some(false),
            // Evidence that is too vague to contradict half of the prediction does not undo a step.
            Some(gain) => is_over.then(|| {
                gain.mean.exp_m1() >= self.options.min_kept_gain
                    || gain.high >= (pending.full_gain * MIN_UNDECIDED_SHARE).ln_1p()
            }),
        };
        let Some(is_kept) = verdict.filter(|_| measured_rounds >= self.options.verify_rounds) else {
            self.pending = Some(pending);
            return Decision::Wait(Idle::Settling);
        };
        let measured_gain = gain.map_or(0.0, |gain| gain.mean.exp_m1());
        if gain.is_some() {
            self.learn(measured_gain, pending.full_gain);
        }
        self.drop_samples();
        let undone = if is_kept {
            pending.harmful_osds(round.placement, self.options.min_predicted_gain)
        } else {
            (0..pending.previous.len()).collect()
        };
        let is_own = |osd: &OsdIndex| {
            !round.fixed_osds.contains(osd) && pending.previous[*osd] != round.affinities[*osd]
        };
        let undone: Vec<OsdIndex> = undone.into_iter().filter(is_own).collect();
        let extent = if is_kept { Undone::Part } else { Undone::Step };
        self.block_undone(&pending, &undone, round.now, extent);
        let mut affinities = round.affinities.to_vec();
        for osd in &undone {
            affinities[*osd] = pending.previous[*osd];
        }
        if is_kept {
            self.retry_interval = self.options.retry_interval;
            return if undone.is_empty() {
                Decision::Keep { measured_gain }
            } else {
                Decision::KeepPart { affinities, measured_gain }
            };
        }
        // The samples from before the step count again.
        for (state, previous) in self.osds.iter_mut().zip(pending.previous_osds) {
            *state = OsdState { last_change: state.last_change, ..previous };
        }
        self.scaled_until = Some(round.now + self.retry_interval);
        self.retry_interval = (self.retry_interval * 2).min(MAX_RETRY_INTERVAL);
        Decision::Undo { affinities, measured_gain }
    }

    /// Scales later predictions by what a step brought: by the geometric mean of the earlier factor and this step's.
    fn learn(&mut self, measured_gain: f64, full_gain: f64) {
        let realized = (measured_gain / full_gain).clamp(MIN_REALIZED_SHARE, MAX_REALIZED_SHARE);
        self.prediction_scale = (self.prediction_scale * realized).sqrt().clamp(MIN_PREDICTION_SCALE, 1.0);
    }
}

/// The extent of an undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undone {
    Step,
    Part,
}

/// Affinities and their predicted gain, not scaled.
struct Step {
    affinities: Vec<Affinity>,
    full_gain: f64,
}

/// The read load of all OSDs.
fn sum_of_loads(placement: &Placement, affinities: &[Affinity]) -> f64 {
    placement.loads(affinities).iter().sum()
}

/// The service rate of an OSD divided by the mean of all.
fn relative(service_rates: &[f64], osd: usize) -> f64 {
    service_rates[osd] * service_rates.len() as f64 / service_rates.iter().sum::<f64>()
}

#[cfg(test)]
mod tests;
