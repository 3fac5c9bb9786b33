//! Hill climbing on the concurrency of transfers, because the tuned concurrency of a plan may be outdated, may come
//! from another client, or may be missing.
//!
//! The unit of the concurrency is one request of the size class with the highest concurrency; other classes change in
//! proportion.
//!
//! Time is divided into *intervals*. An interval at the current concurrency is followed by one at a trial value. The first
//! interval after a change is discarded. The trial is kept if it pays off: a higher value if throughput rises enough, a lower one if throughput does not fall
//! (Hou 2017, section 4.1.1: beyond the knee, more requests only cost). Steps are factors of at most 2, and a
//! failed trial is undone. After a success the next trial follows at once. The concurrency stays within its bounds. When neither direction helps, trials become rare until throughput changes.
//!
//! If many packets are retransmitted while requests stall, the bottleneck queue overflows (Jacobson 1988), and some
//! connections will stall for seconds. Much lower values are tried first in that case. A link with random loss keeps
//! its concurrency, because lower values reduce throughput there.
//!
//! Throughput is counted in bytes; each request counts as a fixed number of extra bytes, so that objects per second
//! matter too.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The cost of a request besides its bytes, expressed in bytes.
pub const REQUEST_COST_BYTES: f64 = 64.0 * 1024.0;
/// Factor of a step up while throughput scales well with concurrency.
const FAST_STEP_UP: f64 = 2.0;
/// Factor of any other step up.
const STEP_UP: f64 = 1.4;
/// Divisor of a step down.
const STEP_DOWN: f64 = 1.3;
/// Divisor of a step down while the bottleneck queue overflows.
const OVERFLOW_STEP_DOWN: f64 = 2.0;
/// Throughput that a step up must gain, as a fraction of the growth in concurrency. A step back up to the tuned
/// concurrency must only not lose throughput, unless the bottleneck queue overflows.
const MIN_GAIN_PER_GROWTH: f64 = 0.15;
/// Fraction of the throughput that a step down may lose. Below the tuned concurrency it may lose nothing, or noise
/// would lead down step by step.
const MAX_LOSS: f64 = 0.03;
/// Fraction of the throughput that all steps down together may lose while the bottleneck queue overflows. Throughput
/// then varies more between intervals.
const MAX_LOSS_IN_OVERFLOW: f64 = 0.1;
/// Factor by which the best throughput decays each interval.
const BEST_DECAY: f64 = 0.99;
/// Relative difference beyond which throughput is taken to have changed.
const CHANGE_THRESHOLD: f64 = 0.2;
/// Maximum number of intervals between trials once neither direction helps. The number doubles with each pair of failed
/// trials up to this.
const MAX_REST_INTERVALS: u32 = 8;
/// Maximum number of intervals that the mean throughput is taken over.
const MAX_MEAN_INTERVALS: u32 = 8;
/// Minimum length of an interval, which otherwise lasts as long as two requests.
const MIN_INTERVAL: Duration = Duration::from_millis(300);
/// Maximum length of an interval.
const MAX_INTERVAL: Duration = Duration::from_millis(1200);

/// The direction of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Up,
    Down,
}

impl Step {
    const fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// Adapts the concurrency to the measured throughput. See the module for the unit.
#[derive(Debug, Clone)]
pub struct ConcurrencyController {
    /// Current concurrency, without the trial in progress.
    current: f64,
    min: f64,
    max: f64,
    /// The concurrency that tuning chose; 0 if the store was not tuned.
    tuned_concurrency: f64,
    /// The trial value in progress.
    trial: Option<f64>,
    /// The current interval still reflects the previous concurrency and does not count.
    is_transition_interval: bool,
    /// Mean throughput at the current concurrency, over `intervals` intervals.
    throughput: f64,
    /// Number of intervals that `throughput` covers, at most [`MAX_MEAN_INTERVALS`].
    intervals: u32,
    /// Maximum of `throughput`, which decays by [`BEST_DECAY`] each interval.
    best_throughput: f64,
    /// Factor of the next step up.
    step_up: f64,
    /// The bottleneck queue overflowed in the last interval.
    is_queue_overflow: bool,
    /// The trial in progress, or the last one kept, is a step down because of an overflow.
    is_overflow_step_down: bool,
    /// Reference for steps down because of an overflow: the throughput before the first of them, or 90 % of that of a
    /// later one if this is higher.
    throughput_before_overflow: f64,
    /// A step down because of an overflow lost throughput, or a step up gained some: no further step down of this kind
    /// is tried.
    is_overflow_step_down_ruled_out: bool,
    /// The direction of the next trial.
    next_step: Step,
    /// Number of consecutive failed trials. After a successful step down it is 1: a step up, which would undo it,
    /// counts as failed.
    failed_trials: u32,
    /// Number of intervals left until the next trial.
    rest_intervals: u32,
}

impl ConcurrencyController {
    /// Starts at the concurrency `initial` and stays within `bounds`, which are extended to include it.
    #[must_use]
    pub fn new(initial: usize, bounds: RangeInclusive<usize>) -> Self {
        Self {
            current: initial as f64,
            min: (*bounds.start()).min(initial).max(1) as f64,
            max: (*bounds.end()).max(initial) as f64,
            tuned_concurrency: 0.0,
            trial: None,
            is_transition_interval: true,
            throughput: 0.0,
            intervals: 0,
            best_throughput: 0.0,
            step_up: FAST_STEP_UP,
            is_queue_overflow: false,
            is_overflow_step_down: false,
            throughput_before_overflow: 0.0,
            is_overflow_step_down_ruled_out: false,
            next_step: Step::Up,
            failed_trials: 0,
            rest_intervals: 0,
        }
    }

    /// Marks the initial concurrency as chosen by tuning.
    #[must_use]
    pub const fn tuned(self) -> Self {
        Self { tuned_concurrency: self.current, ..self }
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

    /// Ends an interval in which the pool was busy: a request waited for permits, or nearly all were taken.
    /// `throughput` is in bytes per second, with [`REQUEST_COST_BYTES`] for each request. `is_queue_overflow` is true
    /// if many packets were retransmitted and requests stalled. Returns the concurrency to use from now on.
    pub fn end_interval(&mut self, throughput: f64, is_queue_overflow: bool) -> usize {
        self.is_queue_overflow = is_queue_overflow;
        if std::mem::take(&mut self.is_transition_interval) {
            return self.concurrency();
        }
        match self.trial {
            Some(trial) => self.evaluate_trial(trial, throughput),
            None => self.record_throughput(throughput),
        }
        self.concurrency()
    }

    /// Discards an interval that is inconclusive about the concurrency: the pool was idle, or connections were new.
    /// Returns the concurrency to use from now on.
    pub fn discard_interval(&mut self) -> usize {
        (self.trial, self.is_overflow_step_down, self.is_transition_interval) = (None, false, true);
        self.concurrency()
    }

    /// Records the throughput at the current concurrency, and starts a trial if one is due.
    fn record_throughput(&mut self, throughput: f64) {
        let (less, more) = (throughput.min(self.throughput), throughput.max(self.throughput));
        if more > less * (1.0 + CHANGE_THRESHOLD) {
            // Trials that failed before may succeed now.
            (self.next_step, self.failed_trials) = (Step::Up, 0);
            (self.rest_intervals, self.step_up) = (0, FAST_STEP_UP);
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
        let was_overflow_step_down = self.is_overflow_step_down;
        self.is_overflow_step_down = self.is_queue_overflow
            && !self.is_overflow_step_down_ruled_out
            && (self.failed_trials == 0 || was_overflow_step_down);
        if self.is_overflow_step_down && !was_overflow_step_down {
            self.throughput_before_overflow = self.throughput;
        }
        let target = if self.is_overflow_step_down {
            self.current / OVERFLOW_STEP_DOWN
        } else {
            match self.next_step {
                Step::Up => {
                    let up = self.current * self.step_up;
                    if self.current < self.tuned_concurrency { up.min(self.tuned_concurrency) } else { up }
                }
                Step::Down => self.current / STEP_DOWN,
            }
        };
        let target = target.clamp(self.min, self.max).round();
        if target == self.current.round() {
            if std::mem::take(&mut self.is_overflow_step_down) {
                // Already at the lower bound: try a step up instead.
                self.is_overflow_step_down_ruled_out = true;
                (self.next_step, self.failed_trials) = (Step::Up, 0);
                return self.start_trial();
            }
            return self.record_failed_trial();
        }
        (self.trial, self.is_transition_interval) = (Some(target), true);
    }

    fn evaluate_trial(&mut self, trial: f64, throughput: f64) {
        self.trial = None;
        let is_step_up = trial > self.current;
        let required = self.throughput * (1.0 + MIN_GAIN_PER_GROWTH * (trial / self.current - 1.0));
        let helps = if is_step_up {
            let is_back_to_tuned = trial <= self.tuned_concurrency && !self.is_queue_overflow;
            if is_back_to_tuned { throughput > self.throughput } else { throughput > required }
        } else {
            let best = self.throughput.max(self.best_throughput);
            let (reference, max_loss) = if self.is_overflow_step_down {
                (self.throughput_before_overflow.max(self.best_throughput), MAX_LOSS_IN_OVERFLOW)
            } else if trial < self.tuned_concurrency {
                (best, 0.0)
            } else {
                (best, MAX_LOSS)
            };
            throughput >= reference * (1.0 - max_loss)
        };
        if !helps {
            self.is_overflow_step_down_ruled_out |= std::mem::take(&mut self.is_overflow_step_down);
            return self.record_failed_trial();
        }
        if self.is_overflow_step_down {
            // Keep a gain that exceeds noise as the new reference.
            self.throughput_before_overflow =
                self.throughput_before_overflow.max(throughput * (1.0 - MAX_LOSS_IN_OVERFLOW));
        }
        let scales_well = (throughput / self.throughput - 1.0) > (trial / self.current - 1.0) / 2.0;
        self.step_up = if scales_well { FAST_STEP_UP } else { STEP_UP };
        // Continue in the same direction.
        (self.next_step, self.failed_trials) = if is_step_up { (Step::Up, 0) } else { (Step::Down, 1) };
        self.is_overflow_step_down_ruled_out |= is_step_up && throughput > required;
        (self.current, self.throughput, self.intervals) = (trial, throughput, 1);
        self.start_trial();
    }

    fn record_failed_trial(&mut self) {
        (self.next_step, self.failed_trials) = (self.next_step.opposite(), self.failed_trials + 1);
        (self.step_up, self.is_transition_interval) = (STEP_UP, true);
        if self.failed_trials >= 2 {
            self.rest_intervals = (1 << (self.failed_trials / 2).min(4)).min(MAX_REST_INTERVALS);
        }
    }
}

#[cfg(test)]
mod tests;
