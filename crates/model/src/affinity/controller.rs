//! The controller of read load: predicts, acts once, verifies.
//!
//! In each round it estimates the service rate of every OSD from its reads ([`ReadLoad::service_rate`]), solves for the best
//! affinities ([`Cluster::solve_from`]) and compares the predicted throughput with that of the current ones. All
//! affinities change in one step. The gain is then measured; without one, the step is undone.
//!
//! Stability: no OSD changes twice within [`Options::min_change_interval`]. An affinity reverses its direction only once
//! the OSD's service rate, relative to its peers, has changed by more than its noise. An OSD whose step was undone waits
//! for such a change too, or for [`Options::retry_interval`], which doubles with each undone step.

use std::collections::VecDeque;
use std::time::Duration;

use super::Affinity;
use super::placement::{OsdIndex, Placement};
use super::queueing::{ReadLoad, predict};
use super::solver::Cluster;

/// Samples of an OSD's reads that make its service rate.
const RATE_SAMPLES: usize = 5;
/// Samples that an OSD needs for a decision about it.
const MIN_SAMPLES: usize = 2;
/// Reads of a sample; rounds with fewer are added up. The first samples of an OSD may have fewer.
const MIN_SAMPLE_READS: f64 = 3.0;
/// Minimum change of a service rate, compared with its peers, that lets an affinity reverse: of its logarithm.
const MIN_RATE_CHANGE: f64 = 0.2;
/// Minimum change in units of the noise of both rates, of which the earlier one had [`MIN_SAMPLES`] or more.
const MIN_CHANGE_TO_NOISE: f64 = 4.5;
/// Minimum change of the logarithm of a rate from one sample to the next, after which all samples are dropped.
const MIN_JUMP: f64 = 0.6;
/// Weight of the latest difference in the noise.
const NOISE_WEIGHT: f64 = 1.0 / 32.0;
/// Noise of a rate before it has been observed for long.
const INITIAL_NOISE: f64 = 0.15;
/// Minimum of the measured latency before a step, in units of the predicted one: while queues grow after a change, the reads
/// that complete are the short ones.
const MIN_CALIBRATION: f64 = 0.9;
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
    /// Number of the last rounds that verify a step.
    pub verify_rounds: u32,
    /// Maximum of [`Self::verify_rounds`], for a step that seems to bring too little.
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
            min_kept_share: 0.25,
            confirm_rounds: 2,
            settle_rounds: 1,
            verify_rounds: 3,
            max_verify_rounds: 6,
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
    measured: VecDeque<Total>,
}

/// Reads of all OSDs in a round.
#[derive(Debug, Clone, Copy)]
struct Total {
    in_flight: f64,
    reads_per_second: f64,
    cost_per_second: f64,
}

impl Total {
    fn of(read_loads: &[ReadLoad]) -> Self {
        Self {
            in_flight: read_loads.iter().map(|load| load.in_flight()).sum(),
            reads_per_second: read_loads.iter().map(|load| load.reads_per_second).sum(),
            cost_per_second: read_loads.iter().map(|load| load.cost_per_second()).sum(),
        }
    }

    /// `None` without rounds.
    fn mean<'a>(rounds: impl ExactSizeIterator<Item = &'a Self>) -> Option<Self> {
        let count = rounds.len() as f64;
        let zero = Self { in_flight: 0.0, reads_per_second: 0.0, cost_per_second: 0.0 };
        let sum = rounds.fold(zero, |sum, round| Self {
            in_flight: sum.in_flight + round.in_flight,
            reads_per_second: sum.reads_per_second + round.reads_per_second,
            cost_per_second: sum.cost_per_second + round.cost_per_second,
        });
        (count > 0.0).then(|| Self {
            in_flight: sum.in_flight / count,
            reads_per_second: sum.reads_per_second / count,
            cost_per_second: sum.cost_per_second / count,
        })
    }

    /// Latency in seconds per unit of the cost, as in [`Prediction`](super::queueing::Prediction).
    fn latency_seconds(self) -> f64 {
        self.in_flight / self.cost_per_second
    }
}

/// Reads of an OSD over one or more rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    reads: f64,
    bytes: f64,
    latency_sum_seconds: f64,
    seconds: f64,
}

impl Sample {
    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.latency_sum_seconds += other.latency_sum_seconds;
        self.seconds += other.seconds;
    }

    fn new(load: ReadLoad, seconds: f64) -> Self {
        let reads = load.reads_per_second * seconds;
        let latency_sum_seconds = reads * load.latency_seconds;
        Self { reads, bytes: load.bytes_per_second * seconds, latency_sum_seconds, seconds }
    }

    fn service_rate(self) -> Option<f64> {
        let load = ReadLoad {
            reads_per_second: self.reads / self.seconds,
            bytes_per_second: self.bytes / self.seconds,
            latency_seconds: self.latency_sum_seconds / self.reads,
        };
        (self.reads > 0.0 && self.seconds > 0.0).then(|| load.service_rate())?
    }
}

/// The state of an OSD.
#[derive(Debug, Clone)]
struct OsdState {
    samples: VecDeque<Sample>,
    /// Rounds that are not a sample yet.
    partial: Sample,
    /// The rate from before the samples, for an OSD without reads since.
    earlier_rate: Option<f64>,
    /// Mean difference of the logarithms of two successive rates.
    noise: f64,
    last_change: Option<LastChange>,
}

impl Default for OsdState {
    fn default() -> Self {
        Self {
            samples: VecDeque::new(),
            partial: Sample::default(),
            earlier_rate: None,
            noise: INITIAL_NOISE,
            last_change: None,
        }
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

    /// Returns true if the rates of the samples differ from an earlier one by more than noise, all in the same direction. Rates are
    /// relative to the mean of all OSDs.
    fn has_changed(&self, earlier: f64, mean_rate: f64) -> bool {
        let rates = self.samples.iter().filter_map(|sample| sample.service_rate());
        let changes: Vec<f64> = rates.map(|rate| (rate / mean_rate / earlier).ln()).collect();
        let count = changes.len() as f64;
        let threshold = MIN_RATE_CHANGE
            .max(MIN_CHANGE_TO_NOISE * self.noise * (1.0 / count + 1.0 / MIN_SAMPLES as f64).sqrt());
        let is_same_direction =
            changes.iter().all(|change| *change > 0.0) || changes.iter().all(|change| *change < 0.0);
        is_same_direction && (changes.iter().sum::<f64>() / count).abs() > threshold
    }

    /// Returns true if the last sample differs from those before by more than noise.
    fn has_jumped(&self) -> bool {
        let mut earlier = Sample::default();
        self.samples.iter().rev().skip(1).for_each(|sample| earlier.add(*sample));
        let last = self.samples.back().and_then(|sample| sample.service_rate());
        let Some((last, earlier)) = last.zip(earlier.service_rate()) else { return false };
        self.samples.len() == RATE_SAMPLES
            && (last / earlier).ln().abs() > MIN_JUMP.max(MIN_CHANGE_TO_NOISE * self.noise)
    }

    fn record(&mut self, load: ReadLoad, seconds: f64) {
        self.partial.add(Sample::new(load, seconds));
        let has_history = self.samples.len() == RATE_SAMPLES;
        if self.partial.reads < if has_history { MIN_SAMPLE_READS } else { f64::MIN_POSITIVE } {
            return;
        }
        let sample = std::mem::take(&mut self.partial);
        let Some(rate) = sample.service_rate() else { return };
        if let Some(earlier) = self.samples.back().and_then(|sample| sample.service_rate()) {
            self.noise += NOISE_WEIGHT * ((rate / earlier).ln().abs() - self.noise);
        }
        if has_history {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The rate of all recent samples together; without any, the last known one.
    fn service_rate(&self) -> Option<f64> {
        let mut total = Sample::default();
        self.samples.iter().for_each(|sample| total.add(*sample));
        total.service_rate().or(self.earlier_rate)
    }

    /// Drops the samples and keeps their rate.
    fn drop_samples(&mut self) {
        self.earlier_rate = self.service_rate();
        self.samples.clear();
        self.partial = Sample::default();
    }
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
        let total = Total::of(round.read_loads);
        let has_reads = total.reads_per_second >= self.options.min_reads_per_second;
        if let Some(pending) = self.pending.take() {
            return self.verify(pending, round, total, has_reads);
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
        let total = self.recent_mean(total);
        let Some(service_rates) = self.known_rates() else { return Decision::Wait(Idle::Measuring) };
        let cluster = Cluster {
            placement: round.placement,
            service_rates: &service_rates,
            in_flight: total.in_flight,
            min_steps: self.options.min_steps,
            fixed_osds: round.fixed_osds,
        };
        let (Some(current), Some(best)) =
            (cluster.predict(round.affinities), cluster.solve_from(round.affinities))
        else {
            return Decision::Wait(Idle::FewReads);
        };
        let affinities = self.without_reversals(&best.affinities, round, &service_rates);
        let predicted = cluster.predict(&affinities).map_or(0.0, |prediction| prediction.throughput);
        let predicted_gain = predicted / current.throughput - 1.0;
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
        let calibration = (total.latency_seconds() / current.latency_seconds).max(MIN_CALIBRATION);
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
            measured: VecDeque::new(),
        });
        self.confirmed_rounds = 0;
        Decision::Set { affinities, predicted_gain }
    }

    /// Rates from before and after a change of the cluster must not be compared.
    fn drop_samples(&mut self) {
        self.osds.iter_mut().for_each(OsdState::drop_samples);
        self.totals.clear();
        self.confirmed_rounds = 0;
    }

    /// Adds a round and returns the mean of the recent ones.
    fn recent_mean(&mut self, total: Total) -> Total {
        if self.totals.len() == RATE_SAMPLES {
            self.totals.pop_front();
        }
        self.totals.push_back(total);
        Total::mean(self.totals.iter()).unwrap_or(total)
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
            // Reads that waited while PGs elected their primaries complete late: the last rounds count.
            if pending.measured.len() >= self.options.verify_rounds as usize {
                pending.measured.pop_front();
            }
            pending.measured.push_back(total);
        }
        let measured_rounds = pending.rounds.saturating_sub(self.options.settle_rounds);
        // Without reads there is nothing to judge, and nothing to lose.
        let measured_gain = pending.measured_gain();
        let is_kept =
            measured_gain.is_none_or(|gain| gain >= pending.predicted_gain * self.options.min_kept_share);
        let needed_rounds = if is_kept { self.options.verify_rounds } else { self.options.max_verify_rounds };
        if measured_rounds < needed_rounds {
            self.pending = Some(pending);
            return Decision::Wait(Idle::Settling);
        }
        let measured_gain = measured_gain.unwrap_or(0.0);
        self.drop_samples();
        if is_kept {
            self.retry_interval = self.options.retry_interval;
            return Decision::Keep { measured_gain };
        }
        for osd in round.fixed_osds {
            pending.previous[*osd] = round.affinities[*osd];
        }
        self.block_undone(&pending, round);
        self.retry_interval = (self.retry_interval * 2).min(MAX_RETRY_INTERVAL);
        Decision::Undo { affinities: pending.previous, measured_gain }
    }
}

impl PendingStep {
    /// The latency that the previous affinities would have had with the reads in flight in the measured rounds, divided by
    /// the measured latency, less 1. `None` without reads.
    fn measured_gain(&self) -> Option<f64> {
        let total = Total::mean(self.measured.iter())?;
        let previous = predict(&self.previous_loads, &self.service_rates, total.in_flight)?;
        Some(previous.latency_seconds * self.calibration / total.latency_seconds() - 1.0)
    }
}

/// The service rate of an OSD divided by the mean of all.
fn relative(service_rates: &[f64], osd: usize) -> f64 {
    service_rates[osd] * service_rates.len() as f64 / service_rates.iter().sum::<f64>()
}

#[cfg(test)]
mod tests;
