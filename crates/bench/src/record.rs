//! Statistics of requests: latency histograms, operations and bytes per second, failures by kind. Records of several
//! workers, processes and machines are merged from raw sums, never as averages of averages. The time series of a load
//! is stored once for all of its workers ([`timeline`]).

pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;

use self::timeline::CurrentSecond;
use crate::operation::Operation;

/// Interval of the throughput series, in milliseconds.
const SERIES_INTERVAL_MS: u128 = 100;
/// Maximum number of failures that are recorded with their message.
pub(crate) const MAX_FAILURE_SAMPLES: usize = 5;
/// Significant digits of latencies: a relative error of at most 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The times of a completed request, since the origin of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTiming {
    /// Scheduled start; in a closed loop, the actual start.
    pub scheduled: Duration,
    /// Actual start.
    pub started: Duration,
    /// First byte of the response body; the response itself if it has no body.
    pub first_byte: Duration,
    /// Last byte.
    pub ended: Duration,
}

/// The measurement window. Throughput counts each request in proportion to its time within the window, so that long
/// requests count neither fully nor not at all. Latency covers all requests scheduled to start in it, whenever they
/// complete: otherwise the slowest would be omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasurementWindow {
    /// Start, since the origin of the run.
    pub begin: Duration,
    /// Exclusive end.
    pub end: Duration,
}

impl MeasurementWindow {
    /// Returns true if the interval `from..=to` overlaps the window.
    pub(crate) fn overlaps(&self, from: Duration, to: Duration) -> bool {
        from < self.end && to >= self.begin
    }

    fn contains(&self, time: Duration) -> bool {
        self.begin <= time && time < self.end
    }

    /// The index of the second of the window that contains `time`.
    fn second(&self, time: Duration) -> usize {
        usize::try_from(time.saturating_sub(self.begin).as_secs()).unwrap_or(usize::MAX)
    }

    /// The fractions of a request by 100 ms interval of the window: the index of the interval, and the fraction, 0 to
    /// 1.
    fn parts(&self, timing: &RequestTiming) -> impl Iterator<Item = (usize, f64)> + use<> {
        let start = timing.started.min(timing.ended);
        let since = |time: Duration| time.saturating_sub(self.begin).as_secs_f64() * 10.0;
        let (from, to) = (since(start.max(self.begin)), since(timing.ended.min(self.end)));
        let whole = (timing.ended - start).as_secs_f64() * 10.0;
        let is_inside = if whole > 0.0 { to > from } else { self.contains(timing.ended) };
        let (first, last) = (from as usize, to as usize);
        (first..=last).take_while(move |_| is_inside).map(move |interval| {
            let inside = to.min(interval as f64 + 1.0) - from.max(interval as f64);
            (interval, if whole > 0.0 { inside.max(0.0) / whole } else { 1.0 })
        })
    }
}

/// An amount of work: requests and their bytes. Requests may count in part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkAmount {
    /// Requests.
    pub operations: f64,
    /// Their bytes.
    pub bytes: f64,
}

impl AddAssign for WorkAmount {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// Statistics of one second of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecondStats {
    /// Requests that completed successfully.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Sum of the latencies of successful requests, in microseconds.
    pub latency_sum_us: u64,
    /// Maximum latency of successful requests, in microseconds.
    pub max_latency_us: u64,
}

impl SecondStats {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.failures += other.failures;
        self.latency_sum_us += other.latency_sum_us;
        self.max_latency_us = self.max_latency_us.max(other.max_latency_us);
    }
}

/// Statistics of one kind of request.
#[derive(Debug, Clone)]
pub struct OperationStats {
    /// Requests that completed successfully within the window.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Work done within the window.
    pub throughput: WorkAmount,
    /// Requests that were cancelled, in flight or before they started. Their recorded latencies are lower bounds.
    pub truncated: u64,
    /// Latencies of requests scheduled to start within the window, in microseconds.
    pub latency: Histogram<u64>,
    /// Latencies to the first byte, in microseconds.
    pub first_byte: Histogram<u64>,
    /// Statistics per second, from the start of the window.
    pub seconds: Vec<SecondStats>,
    /// Number of failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Messages of some failures.
    pub failure_samples: Vec<String>,
}

/// Creates an empty, auto-resizing histogram.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new(SIGNIFICANT_DIGITS)
        .unwrap_or_else(|_| unreachable!("{SIGNIFICANT_DIGITS} digits are supported"))
}

/// Adds a value `count` times. The histogram resizes: saturating would truncate the slowest requests.
pub(crate) fn record_value(histogram: &mut Histogram<u64>, value: u64, count: u64) {
    // Every `u64` fits into an auto-resizing histogram.
    let _ = histogram.record_n(value, count);
}

impl Default for OperationStats {
    fn default() -> Self {
        Self {
            operations: 0,
            bytes: 0,
            throughput: WorkAmount::default(),
            truncated: 0,
            latency: new_histogram(),
            first_byte: new_histogram(),
            seconds: Vec::new(),
            failures: BTreeMap::new(),
            failure_samples: Vec::new(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Returns the element at an index and extends the vector if necessary.
fn get_or_extend<T: Clone + Default>(values: &mut Vec<T>, index: usize) -> &mut T {
    if values.len() <= index {
        values.resize(index + 1, T::default());
    }
    &mut values[index]
}

impl OperationStats {
    /// Counts a successful request. Returns its contribution to the second in which it completed, if within the window.
    fn record_success(
        &mut self,
        window: MeasurementWindow,
        timing: RequestTiming,
        bytes: u64,
    ) -> Option<SecondStats> {
        let latency = micros(timing.ended.saturating_sub(timing.scheduled));
        if window.contains(timing.scheduled) {
            record_value(&mut self.latency, latency, 1);
            record_value(&mut self.first_byte, micros(timing.first_byte.saturating_sub(timing.scheduled)), 1);
        }
        window.contains(timing.ended).then(|| {
            self.operations += 1;
            self.bytes += bytes;
            SecondStats {
                operations: 1,
                bytes,
                failures: 0,
                latency_sum_us: latency,
                max_latency_us: latency,
            }
        })
    }

    /// Counts a cancelled request with the time waited, if it was scheduled to start within the window.
    fn record_truncated(&mut self, window: MeasurementWindow, scheduled: Duration, now: Duration) {
        if window.contains(scheduled) {
            self.truncated += 1;
            record_value(&mut self.latency, micros(now.saturating_sub(scheduled)), 1);
        }
    }

    /// Counts a failure. Failures outside the window count too, so that none is hidden.
    fn record_failure(&mut self, kind: &str, message: &str) {
        *self.failures.entry(kind.to_owned()).or_default() += 1;
        if self.failure_samples.len() < MAX_FAILURE_SAMPLES {
            self.failure_samples.push(message.to_owned());
        }
    }

    /// The number of failures of all kinds.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Adds the statistics of other workers in the same window.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.throughput += other.throughput;
        self.truncated += other.truncated;
        // Auto-resizing histograms cannot fail here.
        let _ = self.latency.add(&other.latency);
        let _ = self.first_byte.add(&other.first_byte);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), SecondStats::default());
        }
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(own, added)| own.add(added));
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
        let room = MAX_FAILURE_SAMPLES.saturating_sub(self.failure_samples.len());
        self.failure_samples.extend(other.failure_samples.iter().take(room).cloned());
    }
}

/// Statistics of all requests of one or several workers.
#[derive(Debug, Clone, Default)]
pub struct LoadRecord {
    stats: BTreeMap<Operation, OperationStats>,
    /// Work per 100 ms of the window.
    series_100ms: Vec<WorkAmount>,
    /// The current second of a worker. Its earlier seconds are in the load's timeline.
    current_second: Option<CurrentSecond>,
}

impl LoadRecord {
    /// Counts a successful request.
    pub fn record_success(
        &mut self,
        window: MeasurementWindow,
        operation: Operation,
        timing: RequestTiming,
        bytes: u64,
    ) {
        let mut total = WorkAmount::default();
        for (interval, part) in window.parts(&timing) {
            let amount = WorkAmount { operations: part, bytes: part * bytes as f64 };
            total += amount;
            *self.interval(interval) += amount;
        }
        let stats = self.stats.entry(operation).or_default();
        stats.throughput += total;
        if let Some(second) = stats.record_success(window, timing, bytes) {
            self.second(operation, window.second(timing.ended)).add(&second);
        }
    }

    /// Counts a request that was cancelled at `now`.
    pub fn record_truncated(
        &mut self,
        window: MeasurementWindow,
        operation: Operation,
        scheduled: Duration,
        now: Duration,
    ) {
        self.stats.entry(operation).or_default().record_truncated(window, scheduled, now);
    }

    /// Counts a failed request.
    pub fn record_failure(
        &mut self,
        window: MeasurementWindow,
        operation: Operation,
        ended: Duration,
        kind: &str,
        message: &str,
    ) {
        self.stats.entry(operation).or_default().record_failure(kind, message);
        if window.contains(ended) {
            self.second(operation, window.second(ended)).failures += 1;
        }
    }

    fn second(&mut self, operation: Operation, number: usize) -> &mut SecondStats {
        match &mut self.current_second {
            Some(current_second) => current_second.second(operation, number),
            None => get_or_extend(&mut self.stats.entry(operation).or_default().seconds, number),
        }
    }

    fn interval(&mut self, number: usize) -> &mut WorkAmount {
        match &mut self.current_second {
            Some(current_second) => current_second.interval(number),
            None => get_or_extend(&mut self.series_100ms, number),
        }
    }

    /// Adds the statistics of other workers. The seconds that a worker has handed to the load's timeline are not
    /// included.
    pub fn add(&mut self, other: &Self) {
        for (operation, stats) in &other.stats {
            self.stats.entry(*operation).or_default().add(stats);
        }
        if self.series_100ms.len() < other.series_100ms.len() {
            self.series_100ms.resize(other.series_100ms.len(), WorkAmount::default());
        }
        self.series_100ms.iter_mut().zip(&other.series_100ms).for_each(|(own, added)| *own += *added);
        if let Some(current_second) = &other.current_second {
            current_second.add_to(self);
        }
    }

    /// Statistics by kind of request.
    #[must_use]
    pub const fn stats_by_operation(&self) -> &BTreeMap<Operation, OperationStats> {
        &self.stats
    }

    /// Work per complete 100 ms interval of a window of length `duration`.
    #[must_use]
    pub fn series(&self, duration: Duration) -> Vec<WorkAmount> {
        let mut series = self.series_100ms.clone();
        series.resize(
            usize::try_from(duration.as_millis() / SERIES_INTERVAL_MS).unwrap_or(0),
            WorkAmount::default(),
        );
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn parts(start: u32, ended: u32) -> Vec<(usize, f64)> {
        let window = MeasurementWindow { begin: 1000 * MILLI, end: 2000 * MILLI };
        let (start, ended) = (start * MILLI, ended * MILLI);
        let timing = RequestTiming { scheduled: start, started: start, first_byte: ended, ended };
        window.parts(&timing).filter(|(_, part)| *part > 1e-9).collect()
    }

    #[test]
    fn request_counts_in_proportion_to_its_time_in_the_window() {
        let sum = |parts: Vec<(usize, f64)>| parts.iter().map(|(_, part)| part).sum::<f64>();
        assert!(parts(1110, 1120)[0].0 == 1 && (sum(parts(1110, 1120)) - 1.0).abs() < 1e-9);
        assert_eq!(parts(1500, 1500), [(5, 1.0)], "a request of zero duration");
        assert_eq!(parts(900, 999), []);
        assert_eq!(parts(2000, 2100), []);
        assert!((sum(parts(900, 1100)) - 0.5).abs() < 1e-9);
        assert!((sum(parts(1900, 2300)) - 0.25).abs() < 1e-9);
        assert!((sum(parts(0, 10_000)) - 0.1).abs() < 1e-9);
        assert_eq!(parts(0, 10_000).len(), 10);
    }

    proptest! {
        /// Consecutive requests of any lengths fill exactly the window.
        #[test]
        fn throughput_is_independent_of_the_window_position(
            lengths in proptest::collection::vec(1_u32..900, 40..60),
            begin in 500_u32..2000,
        ) {
            let window = MeasurementWindow { begin: begin * MILLI, end: (begin + 3000) * MILLI };
            let (mut at, mut busy) = (0, 0.0);
            for length in lengths {
                let (start, ended) = (at * MILLI, (at + length) * MILLI);
                let timing = RequestTiming { scheduled: start, started: start, first_byte: ended, ended };
                busy += window.parts(&timing).map(|(_, part)| part * f64::from(length)).sum::<f64>();
                at += length;
            }
            let expected = f64::from((at.min(begin + 3000)).saturating_sub(begin));
            prop_assert!((busy - expected).abs() < 1e-3, "{busy} of {expected}");
        }
    }
}
