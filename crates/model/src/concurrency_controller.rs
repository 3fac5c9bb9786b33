//! Hill climbing on the number of concurrent requests: a plan may have been measured on another day, by another client,
//! or never.
//!
//! Time is divided into *intervals*. After an interval at the current concurrency follows one at a trial value. The
//! trial is kept if it pays off: a higher value if throughput rises enough, a lower one if throughput does not fall
//! (Hou 2017, section 4.1.1: beyond the knee, more requests only cost). Steps are small, a failed trial is undone, and
//! the concurrency stays within its bounds. When neither direction helps, trials become rare until throughput changes.
//!
//! If many packets are retransmitted while requests stall, a queue overruns (Jacobson 1988), and some connections will
//! stall for seconds. Much lower values are tried first in that case. A link with random loss keeps its concurrency,
//! because lower values reduce throughput there.
//!
//! Throughput is counted in bytes; each request counts as a fixed number of extra bytes, so that objects per second
//! matter too.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The cost of a request besides its bytes, expressed in bytes.
pub const REQUEST_COST_BYTES: f64 = 64.0 * 1024.0;
/// Factors of a step up (large while throughput grows with it) and divisor of a step down.
const FAST_STEP_UP: f64 = 2.0;
const STEP_UP: f64 = 1.4;
const STEP_DOWN: f64 = 1.3;
/// Divisor of a step down while a queue overruns.
const OVERRUN_STEP_DOWN: f64 = 2.0;
/// Throughput that a step up must gain, as a fraction of the growth in concurrency, and throughput that a step down may
/// lose. Below the value of a plan the rules differ, or noise would lead down step by step: a step down may lose
/// nothing, and a step back up needs no gain unless a queue overruns.
const MIN_GAIN_PER_GROWTH: f64 = 0.15;
const MAX_LOSS: f64 = 0.03;
/// Total throughput that steps down may lose while a queue overruns. Throughput varies more between intervals there.
const MAX_LOSS_OVERRUN: f64 = 0.1;
/// Factor by which the best throughput decays each interval.
const BEST_DECAY: f64 = 0.99;
/// Relative difference beyond which throughput is taken to have changed.
const CHANGE_THRESHOLD: f64 = 0.2;
/// Maximum number of intervals between trials once neither direction helps. It doubles with each failed pair up to
/// this.
const MAX_REST_INTERVALS: u32 = 8;
/// Maximum number of intervals that the mean throughput is taken over.
const MAX_MEAN_INTERVALS: u32 = 8;
/// An interval lasts as long as two requests, within these bounds.
const MIN_INTERVAL: Duration = Duration::from_millis(300);
const MAX_INTERVAL: Duration = Duration::from_millis(1200);

/// Adapts the number of concurrent requests to throughput.
#[derive(Debug, Clone)]
pub struct ConcurrencyController {
    /// Current concurrency, without the trial in progress.
    current: f64,
    min: f64,
    max: f64,
    /// The concurrency of a plan; 0 without one.
    planned: f64,
    /// The trial value in progress.
    trial: Option<f64>,
    /// The current interval still reflects the previous concurrency and does not count.
    is_transition_interval: bool,
    /// Mean throughput at the current concurrency over `intervals` intervals, and the decaying maximum of that mean.
    throughput: f64,
    intervals: u32,
    best_throughput: f64,
    /// Factor of the next step up.
    step_up: f64,
    /// A queue overruns, and whether the trial in progress is a step down because of it.
    overruns: bool,
    is_retreat: bool,
    /// Throughput before the first of those steps, or of one that was clearly better.
    throughput_before_retreat: f64,
    /// A step down because of an overrun lost throughput, or a step up gained some.
    is_retreat_ruled_out: bool,
    /// Consecutive failed trials, and intervals left until the next trial.
    failed_trials: u32,
    rest_intervals: u32,
}

impl ConcurrencyController {
    /// Starts with `initial` concurrent requests and keeps their number within `bounds`, which are extended to include
    /// the initial one.
    #[must_use]
    pub fn new(initial: usize, bounds: RangeInclusive<usize>) -> Self {
        Self {
            current: initial as f64,
            min: (*bounds.start()).min(initial).max(1) as f64,
            max: (*bounds.end()).max(initial) as f64,
            planned: 0.0,
            trial: None,
            is_transition_interval: true,
            throughput: 0.0,
            intervals: 0,
            best_throughput: 0.0,
            step_up: FAST_STEP_UP,
            overruns: false,
            is_retreat: false,
            throughput_before_retreat: 0.0,
            is_retreat_ruled_out: false,
            failed_trials: 0,
            rest_intervals: 0,
        }
    }

    /// Marks the initial concurrency as that of a plan.
    #[must_use]
    pub const fn planned(self) -> Self {
        Self { planned: self.current, ..self }
    }

    /// The concurrency to use now.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.trial.unwrap_or(self.current).round() as usize
    }

    /// The length of the next interval if a request takes `latency`.
    #[must_use]
    pub fn interval(latency: Duration) -> Duration {
        (2 * latency).clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    /// Ends an interval with this throughput in bytes per second, in which requests waited for permits throughout.
    /// `overruns` is true if many packets were retransmitted and requests stalled. Returns the concurrency to use from
    /// now on.
    pub fn end_interval(&mut self, throughput: f64, overruns: bool) -> usize {
        self.overruns = overruns;
        if std::mem::take(&mut self.is_transition_interval) {
            return self.concurrency();
        }
        match self.trial {
            Some(trial) => self.evaluate_trial(trial, throughput),
            None => self.record_throughput(throughput),
        }
        self.concurrency()
    }

    /// Ends an interval in which no request waited for a permit, so that its throughput says nothing about the
    /// concurrency.
    pub fn end_idle_interval(&mut self) -> usize {
        (self.trial, self.is_retreat, self.is_transition_interval) = (None, false, true);
        self.concurrency()
    }

    /// Records the throughput at the current concurrency, and starts a trial if one is due.
    fn record_throughput(&mut self, throughput: f64) {
        let (less, more) = (throughput.min(self.throughput), throughput.max(self.throughput));
        if more > less * (1.0 + CHANGE_THRESHOLD) {
            // Trials that failed before may succeed now.
            (self.failed_trials, self.rest_intervals, self.step_up) = (0, 0, FAST_STEP_UP);
            (self.throughput, self.intervals, self.best_throughput) = (throughput, 0, 0.0);
        }
        self.intervals = (self.intervals + 1).min(MAX_MEAN_INTERVALS);
        self.throughput += (throughput - self.throughput) / f64::from(self.intervals);
        self.best_throughput = (self.best_throughput * BEST_DECAY).max(self.throughput);
        match self.rest_intervals.checked_sub(1) {
            Some(rest) => self.rest_intervals = rest,
            None => self.start_trial(),
        }
    }

    fn start_trial(&mut self) {
        let was_retreat = self.is_retreat;
        self.is_retreat =
            self.overruns && !self.is_retreat_ruled_out && (self.failed_trials == 0 || was_retreat);
        if self.is_retreat && !was_retreat {
            self.throughput_before_retreat = self.throughput;
        }
        let wanted = if self.is_retreat {
            self.current / OVERRUN_STEP_DOWN
        } else if self.failed_trials.is_multiple_of(2) {
            let up = self.current * self.step_up;
            if self.current < self.planned { up.min(self.planned) } else { up }
        } else {
            self.current / STEP_DOWN
        };
        let wanted = wanted.clamp(self.min, self.max).round();
        if wanted == self.current.round() {
            if std::mem::take(&mut self.is_retreat) {
                // Already at the lower bound: try a step up instead.
                (self.is_retreat_ruled_out, self.failed_trials) = (true, 0);
                return self.start_trial();
            }
            return self.record_failed_trial();
        }
        (self.trial, self.is_transition_interval) = (Some(wanted), true);
    }

    fn evaluate_trial(&mut self, trial: f64, throughput: f64) {
        self.trial = None;
        let is_more = trial > self.current;
        let required = self.throughput * (1.0 + MIN_GAIN_PER_GROWTH * (trial / self.current - 1.0));
        let helps = if is_more {
            let is_back_to_plan = trial <= self.planned && !self.overruns;
            if is_back_to_plan { throughput > self.throughput } else { throughput > required }
        } else {
            let best = self.throughput.max(self.best_throughput);
            let (reference, max_loss) = if self.is_retreat {
                (self.throughput_before_retreat.max(self.best_throughput), MAX_LOSS_OVERRUN)
            } else if trial < self.planned {
                (best, 0.0)
            } else {
                (best, MAX_LOSS)
            };
            throughput >= reference * (1.0 - max_loss)
        };
        if !helps {
            self.is_retreat_ruled_out |= std::mem::take(&mut self.is_retreat);
            return self.record_failed_trial();
        }
        if self.is_retreat {
            // Keep a gain that exceeds noise as the new reference.
            self.throughput_before_retreat =
                self.throughput_before_retreat.max(throughput * (1.0 - MAX_LOSS_OVERRUN));
        }
        let is_much = (throughput / self.throughput - 1.0) > (trial / self.current - 1.0) / 2.0;
        self.step_up = if is_much { FAST_STEP_UP } else { STEP_UP };
        self.failed_trials = u32::from(!is_more);
        self.is_retreat_ruled_out |= is_more && throughput > required;
        (self.current, self.throughput, self.intervals) = (trial, throughput, 1);
        // Continue in the same direction at once.
        self.start_trial();
    }

    fn record_failed_trial(&mut self) {
        (self.failed_trials, self.step_up, self.is_transition_interval) =
            (self.failed_trials + 1, STEP_UP, true);
        if self.failed_trials >= 2 {
            self.rest_intervals = (1 << (self.failed_trials / 2).min(4)).min(MAX_REST_INTERVALS);
        }
    }
}

#[cfg(test)]
mod tests;
