//! Statistics of requests: latency histograms, operations and bytes per second, failures by kind. Records of several
//! workers, processes and machines are merged from raw sums, never as averages of averages. The time series of a load
//! is stored once for all of its workers ([`timeline`]).

mod payload;
pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tradewind_core::cache_status::CacheOutcome;

pub use self::payload::Payload;
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
    /// First byte of the response body; the response itself if it has no body.
    pub first_byte: Duration,
    /// Last byte.
    pub ended: Duration,
}

/// The measurement window. Throughput counts the bytes that pass within it, also those of requests that begin before it
/// or end after it. The request rate counts the requests that complete in it. Latency covers all requests scheduled to
/// start in it, whenever they complete: otherwise the slowest would be omitted.
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

    /// The index of the 100 ms interval of the window that contains `time`.
    fn interval(&self, time: Duration) -> usize {
        let since_begin = time.saturating_sub(self.begin).as_millis();
        usize::try_from(since_begin / SERIES_INTERVAL_MS).unwrap_or(usize::MAX)
    }
}

/// The work done in a period: requests that completed in it, and bytes that passed in it, of whatever requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkAmount {
    /// Requests that completed.
    pub operations: u64,
    /// Bytes that passed.
    pub bytes: u64,
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
    /// Bytes that passed within the window, of all successful requests, whenever they completed.
    pub passed_bytes: u64,
    /// Reads within the window by what the caches of the store said of them.
    pub cached: CacheCounts,
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

/// Numbers of reads by the header `Cache-Status` of their responses (RFC 9211).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Reads that a cache served.
    pub hits: u64,
    /// Reads that all caches forwarded.
    pub misses: u64,
}

impl CacheCounts {
    /// Returns true if no response had the header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hits == 0 && self.misses == 0
    }

    /// Adds other counts.
    pub const fn add(&mut self, other: Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.misses = self.misses.saturating_add(other.misses);
    }

    /// The share of hits, from 0 to 1; `None` without reads.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.hits as f64 / self.hits.saturating_add(self.misses) as f64)
    }
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
            passed_bytes: 0,
            cached: CacheCounts::default(),
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
        self.passed_bytes += other.passed_bytes;
        self.cached.add(other.cached);
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
        payload: &Payload,
    ) {
        let mut passed_bytes = 0;
        for (interval, bytes) in payload.intervals() {
            passed_bytes += bytes;
            self.interval(interval).bytes += bytes;
        }
        let stats = self.stats.entry(operation).or_default();
        stats.passed_bytes += passed_bytes;
        if let Some(second) = stats.record_success(window, timing, payload.total()) {
            self.second(operation, window.second(timing.ended)).add(&second);
            self.interval(window.interval(timing.ended)).operations += 1;
        }
    }

    /// Counts a read, if it ended within the window, by what the caches of the store said of it.
    pub fn record_cache(
        &mut self,
        window: MeasurementWindow,
        operation: Operation,
        ended: Duration,
        outcome: CacheOutcome,
    ) {
        if !window.contains(ended) {
            return;
        }
        let (hits, misses) = match outcome {
            CacheOutcome::Hit => (1, 0),
            CacheOutcome::Miss => (0, 1),
        };
        self.stats.entry(operation).or_default().cached.add(CacheCounts { hits, misses });
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
