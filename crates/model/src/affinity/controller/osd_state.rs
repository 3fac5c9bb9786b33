//! The controller's knowledge of an OSD: its service rate with its noise, and the last change of its affinity.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::queueing::{ReadLoad, WriteLoad};
use super::{MIN_SAMPLES, RATE_SAMPLES};

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

/// Reads of an OSD over one or more rounds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    pub reads: f64,
    pub bytes: f64,
    pub latency_sum_seconds: f64,
    pub writes: f64,
    pub written_bytes: f64,
    pub seconds: f64,
}

impl Sample {
    pub fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.latency_sum_seconds += other.latency_sum_seconds;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.seconds += other.seconds;
    }

    pub fn new(load: ReadLoad, seconds: f64) -> Self {
        let reads = load.reads_per_second * seconds;
        Self {
            reads,
            bytes: load.bytes_per_second * seconds,
            latency_sum_seconds: reads * load.latency_seconds,
            writes: load.writes.writes_per_second * seconds,
            written_bytes: load.writes.bytes_per_second * seconds,
            seconds,
        }
    }

    /// `None` without reads.
    pub fn load(self) -> Option<ReadLoad> {
        (self.reads > 0.0 && self.seconds > 0.0).then(|| ReadLoad {
            reads_per_second: self.reads / self.seconds,
            bytes_per_second: self.bytes / self.seconds,
            latency_seconds: self.latency_sum_seconds / self.reads,
            writes: self.writes(),
        })
    }

    /// The writes, also of an OSD without reads. Their latency is not known.
    fn writes(self) -> WriteLoad {
        let per_second = |count: f64| if self.seconds > 0.0 { count / self.seconds } else { 0.0 };
        WriteLoad {
            writes_per_second: per_second(self.writes),
            bytes_per_second: per_second(self.written_bytes),
            latency_seconds: 0.0,
        }
    }

    pub fn service_rate(self) -> Option<f64> {
        self.load()?.service_rate()
    }
}

/// The state of an OSD.
#[derive(Debug, Clone)]
pub(super) struct OsdState {
    pub samples: VecDeque<Sample>,
    /// Rounds that are not a sample yet.
    pub partial: Sample,
    /// The rate from before the samples, for an OSD without reads since.
    pub earlier_rate: Option<f64>,
    /// Mean difference of the logarithms of two successive rates.
    pub noise: f64,
    pub last_change: Option<LastChange>,
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
pub(super) struct LastChange {
    /// When the affinity was set; an undo does not count.
    pub at: Option<Duration>,
    pub is_increase: bool,
    /// The service rate relative to the mean of all OSDs. `None` if it cannot be compared with later ones: the affinities of
    /// other OSDs differed.
    pub relative_rate: Option<f64>,
    /// If the change was undone: no change before this time.
    pub blocked_until: Option<Duration>,
}

impl OsdState {
    /// Returns false for a change that contradicts the last one although the OSD did not change.
    pub fn allows(&self, is_increase: bool, mean_rate: f64, now: Duration) -> bool {
        let Some(last) = self.last_change else { return true };
        let is_free = match last.blocked_until {
            Some(end) => now >= end,
            None => is_increase == last.is_increase,
        };
        is_free || last.relative_rate.is_some_and(|earlier| self.has_changed(earlier, mean_rate))
    }

    /// Returns true if the rates of the samples differ from an earlier one by more than noise, all in the same direction. Rates are
    /// relative to the mean of all OSDs.
    pub fn has_changed(&self, earlier: f64, mean_rate: f64) -> bool {
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
    pub fn has_jumped(&self) -> bool {
        let mut earlier = Sample::default();
        self.samples.iter().rev().skip(1).for_each(|sample| earlier.add(*sample));
        let last = self.samples.back().and_then(|sample| sample.service_rate());
        let Some((last, earlier)) = last.zip(earlier.service_rate()) else { return false };
        self.samples.len() == RATE_SAMPLES
            && (last / earlier).ln().abs() > MIN_JUMP.max(MIN_CHANGE_TO_NOISE * self.noise)
    }

    pub fn record(&mut self, load: ReadLoad, seconds: f64) {
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
    pub fn service_rate(&self) -> Option<f64> {
        self.recent().service_rate().or(self.earlier_rate)
    }

    /// All recent samples together.
    pub fn recent(&self) -> Sample {
        let mut total = Sample::default();
        self.samples.iter().for_each(|sample| total.add(*sample));
        total
    }

    /// The writes of all recent rounds, also of those that are not a sample yet.
    pub fn recent_writes(&self) -> WriteLoad {
        let mut total = self.recent();
        total.add(self.partial);
        total.writes()
    }

    /// Drops the samples and keeps their rate.
    pub fn drop_samples(&mut self) {
        self.earlier_rate = self.service_rate();
        self.samples.clear();
        self.partial = Sample::default();
    }
}
