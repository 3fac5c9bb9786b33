//! The log of the requests of a probe, and its evaluation. A request has *ended* whether it succeeded or failed;
//! statistics count those that *succeeded*.

use std::time::Duration;

use parking_lot::Mutex;
use tradewind_model::tune::{OperatingPoint, Sample, TailLatency};

/// Minimum relative error of one round, whatever the variation: congestion windows and queues still change.
const MIN_ERROR_PER_ROUND: f64 = 0.08;
/// Maximum relative excess of the second half over the first. Above it, throughput is still rising.
const MAX_GROWTH: f64 = 0.15;
/// Maximum relative excess of the first half over the second. Above it, throughput is still falling.
const MAX_FALL: f64 = 0.1;
/// Maximum part of the window that is skipped until throughput is steady, in tenths.
const MAX_SKIPPED_TENTHS: u32 = 5;
/// Assumed duration of a pending request that is slower than all successful ones, relative to its age.
const PENDING_FACTOR: f64 = 1.5;
/// Minimum number of successful requests for tail percentiles.
const MIN_TAIL_REQUESTS: u64 = 20;
/// Maximum number of batches for the error estimate.
const MAX_BATCHES: u32 = 10;

/// A request that has ended, successfully or not.
#[derive(Debug, Clone, Copy)]
struct RequestRecord {
    started: Duration,
    ended: Duration,
    is_success: bool,
}

/// The requests of one worker.
#[derive(Debug, Default)]
struct WorkerLog {
    ended: Vec<RequestRecord>,
    /// Start of the request in flight.
    in_flight_since: Option<Duration>,
}

/// The requests of all workers.
#[derive(Debug)]
pub(super) struct ProbeLog(Vec<Mutex<WorkerLog>>);

/// Statistics of a time window.
#[derive(Debug, Default)]
pub(super) struct WindowStats {
    /// Number of successful requests that ended in it.
    pub succeeded: u64,
    /// Number of successful and pending requests, each counted by the fraction of its duration that is in the window.
    pub fractional_requests: f64,
    /// `fractional_requests` per worker.
    pub rounds: f64,
    /// Time per successful request and worker, in seconds: concurrency divided by request rate (Little's law). Includes
    /// time lost to failures.
    pub latency_seconds: f64,
    /// Relative standard error of `latency_seconds`.
    pub relative_error: f64,
    /// Tail of the durations of the successful requests that ended in it.
    pub tail: TailLatency,
}

impl WindowStats {
    /// Converts the statistics into a sample; `None` if no request succeeded.
    pub fn to_sample(&self, point: OperatingPoint) -> Option<Sample> {
        let tail = (self.succeeded >= MIN_TAIL_REQUESTS).then_some(self.tail);
        (self.succeeded > 0).then_some(Sample {
            point,
            latency: self.latency_seconds,
            relative_error: self.relative_error,
            tail,
            from_transfer: false,
        })
    }
}

impl ProbeLog {
    /// Creates empty logs for `count` workers.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    /// Records that a worker starts a request.
    pub fn request_started(&self, number: usize, now: Duration) {
        self.0[number].lock().in_flight_since = Some(now);
    }

    /// Records that a worker's request has ended.
    pub fn request_ended(&self, number: usize, now: Duration, is_success: bool) {
        let mut log = self.0[number].lock();
        if let Some(started) = log.in_flight_since.take() {
            log.ended.push(RequestRecord { started, ended: now, is_success });
        }
    }

    /// Returns true if a request of every worker has ended.
    pub fn is_warm(&self) -> bool {
        self.0.iter().all(|log| !log.lock().ended.is_empty())
    }

    /// Returns true if any request was successful.
    pub fn has_success(&self) -> bool {
        self.0.iter().any(|log| log.lock().ended.iter().any(|request| request.is_success))
    }

    /// The number of requests that were started.
    pub fn started_count(&self) -> u64 {
        let started = |log: &Mutex<WorkerLog>| {
            let log = log.lock();
            (log.ended.len() + usize::from(log.in_flight_since.is_some())) as u64
        };
        self.0.iter().map(started).sum()
    }

    /// The number of failed requests.
    pub fn failure_count(&self) -> u64 {
        let failed = |log: &Mutex<WorkerLog>| {
            log.lock().ended.iter().filter(|request| !request.is_success).count() as u64
        };
        self.0.iter().map(failed).sum()
    }

    /// The earliest start in the first half of the window from which throughput does not fall. The flag is false if
    /// there is none; the start is then the middle of the window.
    pub fn steady_start(&self, (from, to): (Duration, Duration)) -> (Duration, bool) {
        let mut starts = (0..=MAX_SKIPPED_TENTHS).map(|tenths| from + (to - from) * tenths / 10);
        let is_steady = |start: &Duration| {
            let middle = (*start + to) / 2;
            let [before, after] =
                [(*start, middle), (middle, to)].map(|half| self.stats(half).fractional_requests);
            before <= after * (1.0 + MAX_FALL)
        };
        match starts.clone().find(is_steady) {
            Some(start) => (start, true),
            None => (starts.next_back().unwrap_or(from), false),
        }
    }

    /// Returns true if throughput is still rising, because congestion windows are still growing.
    pub fn is_still_growing(&self, (from, to): (Duration, Duration)) -> bool {
        let middle = (from + to) / 2;
        let (before, after) = (self.stats((from, middle)), self.stats((middle, to)));
        after.fractional_requests > before.fractional_requests * (1.0 + MAX_GROWTH)
    }

    /// The statistics of a window with their standard error, estimated from the variation between batches of about one
    /// round (batch means, Law and Carson 1979).
    pub fn stats_with_error(&self, (from, to): (Duration, Duration)) -> WindowStats {
        let mut stats = self.stats((from, to));
        if stats.succeeded == 0 {
            return stats;
        }
        let batches = (stats.rounds as u32).clamp(2, MAX_BATCHES);
        let batch = (to - from) / batches;
        let request_counts =
            (0..batches).map(|n| self.stats((from + batch * n, from + batch * (n + 1))).fractional_requests);
        let mean = stats.fractional_requests / f64::from(batches);
        let squares: f64 = request_counts.map(|count| (count / mean - 1.0).powi(2)).sum();
        let error = (squares / f64::from(batches - 1) / f64::from(batches)).sqrt();
        stats.relative_error = error.max(MIN_ERROR_PER_ROUND / stats.rounds);
        stats
    }

    /// The statistics of a window, without an error estimate. A successful request counts in proportion to its time in
    /// the window. A pending one is assumed to take as long as the successful ones that took longer than its current
    /// age.
    pub fn stats(&self, (from, to): (Duration, Duration)) -> WindowStats {
        let (mut latencies, mut fractional_requests, mut pending) = (Vec::new(), 0.0, Vec::new());
        for log in &self.0 {
            let log = log.lock();
            // The requests of a worker are consecutive, hence sorted.
            let first = log.ended.partition_point(|request| request.ended <= from);
            let last = log.ended.partition_point(|request| request.started < to);
            for request in log.ended[first..last.max(first)].iter().filter(|request| request.is_success) {
                let duration = (request.ended - request.started).as_secs_f64();
                let inside = (request.ended.min(to) - request.started.max(from)).as_secs_f64();
                fractional_requests += if duration > 0.0 { inside / duration } else { 1.0 };
                if request.ended <= to {
                    latencies.push(duration);
                }
            }
            pending.extend(log.in_flight_since.filter(|started| *started < to));
        }
        let succeeded = latencies.len();
        latencies.sort_by(f64::total_cmp);
        for started in pending {
            let elapsed = (to - started).as_secs_f64();
            let longer = &latencies[latencies.partition_point(|latency| *latency <= elapsed)..];
            let mean = longer.iter().sum::<f64>() / longer.len() as f64;
            let duration = if longer.is_empty() { elapsed * PENDING_FACTOR } else { mean };
            fractional_requests += (to - started.max(from)).as_secs_f64() / duration;
        }
        let rounds = fractional_requests / self.0.len() as f64;
        let quantile = |fraction: f64| {
            let index = ((succeeded as f64 * fraction) as usize).min(succeeded.saturating_sub(1));
            latencies.get(index).copied().unwrap_or_default()
        };
        WindowStats {
            succeeded: succeeded as u64,
            fractional_requests,
            rounds,
            latency_seconds: if rounds > 0.0 { (to - from).as_secs_f64() / rounds } else { 0.0 },
            relative_error: f64::INFINITY,
            tail: TailLatency { p95: quantile(0.95), p99: quantile(0.99) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// The log of one worker with consecutive requests of the given durations in milliseconds, and its end.
    fn log(times: impl IntoIterator<Item = u64>) -> (ProbeLog, Duration) {
        let (log, mut now) = (ProbeLog::new(1), 0);
        for time in times {
            log.request_started(0, millis(now));
            now += time;
            log.request_ended(0, millis(now), true);
        }
        (log, millis(now))
    }

    #[test]
    fn steady_start_skips_the_fast_start_of_a_slowdown() {
        let (log, end) = log([10; 30].into_iter().chain([40; 60]));
        let (from, is_steady) = log.steady_start((millis(0), end));
        assert!(is_steady && from > millis(0) && from <= millis(810), "{from:?} of {end:?}");
        let stats = log.stats_with_error((from, end));
        assert!((stats.latency_seconds / 0.04 - 1.0).abs() < 0.15, "{stats:?}");
    }

    #[test]
    fn constant_slowdown_is_never_steady() {
        let (log, end) = log((0..60).map(|n| 10 + n * n / 10));
        assert_eq!(log.steady_start((millis(0), end)), (end / 2, false));
    }

    #[test]
    fn requests_of_adjacent_windows_sum_to_the_total() {
        let (log, end) = log((0..200).map(|n| 5 + n * 7 % 31));
        // A failure follows, and one request is in flight.
        log.request_started(0, end);
        log.request_ended(0, end + millis(40), false);
        log.request_started(0, end + millis(40));
        let to = end + millis(45);
        for parts in [1, 7, 500] {
            let boundary = |n: u32| to * n / parts;
            let windows = (0..parts).map(|n| log.stats((boundary(n), boundary(n + 1))));
            let requests: f64 = windows.map(|stats| stats.fractional_requests).sum();
            // The pending request counts in each window by the latencies known there.
            assert!((199.99..201.5).contains(&requests), "{requests} in {parts}");
        }
        assert_eq!(log.stats((end + millis(1), end + millis(2))).succeeded, 0);
    }

    #[test]
    fn constant_rate_is_steady_from_the_start() {
        let (log, end) = log([20; 50]);
        assert_eq!(log.steady_start((millis(0), end)), (millis(0), true));
        assert!(!log.is_still_growing((millis(0), end)));
    }
}
