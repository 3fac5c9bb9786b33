//! Live statistics of a store: latency by operation and size, requests in flight, outcomes and throughput. Every
//! request is recorded in them; metrics, summaries and samples for tuning profiles are read from them.
//!
//! They do no I/O and read no clock: `now` is an argument, the time since any origin that all callers share. They
//! consist of totals since the start and a sliding window of the last 50 to 60 s, in slices of 10 s. Requests may be
//! recorded in any order.
//!
//! Memory: 12.5 KiB per operation and size class that occurs, less than 1 MiB if all do. Recording a request is a dozen
//! relaxed atomic additions without a lock, so that a thread never waits for one that was preempted.

mod histogram;
mod latency_snapshot;
mod operation;
mod ring;
mod series;
mod size_class;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use histogram::nanos;
use ring::{Reset, Ring};
use series::Series;

pub use histogram::LatencyHistogram;
pub use latency_snapshot::{LatencySnapshot, LinearLatency};
pub use operation::{Direction, Failure, Operation, OutcomeCounts, RequestOutcome};
pub use series::{SizeClassStats, Total};
pub use size_class::SizeClass;

/// Length of a slice of the window, in seconds.
const SLICE_SECONDS: u64 = 10;
/// Number of slices in the window.
const SLICES: usize = 6;
/// Throughput is taken over this many whole seconds and the current one.
const RATE_SECONDS: u64 = 5;
/// Resolution of the age of the latest sample.
const AGE_RESOLUTION_NANOS: u64 = 1_000_000;

const fn slice_of(now: Duration) -> u64 {
    now.as_secs() / SLICE_SECONDS
}

/// Live statistics of a store, shared by its requests and their readers.
#[derive(Debug, Default)]
pub struct StoreStatistics {
    operations: [OperationStats; Operation::ALL.len()],
    transferred: [TransferredBytes; Direction::ALL.len()],
}

/// Statistics of one operation.
#[derive(Debug, Default)]
struct OperationStats {
    /// A single counter, so that readers never see a partial update.
    in_flight: AtomicU64,
    /// Time of the latest sample in nanoseconds, plus one; 0 if there is none.
    latest_sample: AtomicU64,
    totals: AtomicOutcomeCounts,
    window: Ring<AtomicOutcomeCounts, SLICES>,
    /// By size class, allocated at the first request.
    series: [OnceLock<Box<Series>>; SizeClass::COUNT],
}

/// Number of requests by outcome.
#[derive(Debug, Default)]
struct AtomicOutcomeCounts {
    done: AtomicU64,
    rejected: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
    cancelled: AtomicU64,
    cancelled_nanos: AtomicU64,
    queued_nanos: AtomicU64,
}

/// Bytes transferred in one direction.
#[derive(Debug, Default)]
struct TransferredBytes {
    seconds: Ring<ByteCounter, 8>,
    total: AtomicU64,
}

#[derive(Debug, Default)]
struct ByteCounter(AtomicU64);

impl Reset for ByteCounter {
    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A request in flight. It must be passed to [`end`](StoreStatistics::end) exactly once.
#[derive(Debug)]
#[must_use = "a request that never ends is counted as in flight forever"]
pub struct InFlightRequest(Operation);

impl StoreStatistics {
    /// Statistics without any samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the start of a request.
    pub fn begin(&self, operation: Operation) -> InFlightRequest {
        self.operation_stats(operation).in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(operation)
    }

    /// Records the start of the response: the first byte of a read, or the response after the last byte of a write.
    /// `bytes` is the size of the whole request; `queued` is the time that it waited inside this process, or zero if
    /// unknown.
    pub fn record_first_byte(
        &self,
        now: Duration,
        request: &InFlightRequest,
        bytes: u64,
        first_byte: Duration,
        queued: Duration,
    ) {
        let stats = self.operation_stats(request.0);
        stats.series(request.0, bytes).record_first_byte(now, first_byte);
        stats.record_sample_time(now);
        if !queued.is_zero() {
            stats.totals.queued_nanos.fetch_add(nanos(queued), Ordering::Relaxed);
            if let Some(counts) = stats.window.slice(slice_of(now)) {
                counts.queued_nanos.fetch_add(nanos(queued), Ordering::Relaxed);
            }
        }
    }

    /// Records bytes transferred.
    pub fn record_bytes(&self, now: Duration, direction: Direction, bytes: u64) {
        let transferred = &self.transferred[direction as usize];
        transferred.total.fetch_add(bytes, Ordering::Relaxed);
        if let Some(second) = transferred.seconds.slice(now.as_secs()) {
            second.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records the end of a request.
    pub fn end(&self, now: Duration, request: InFlightRequest, outcome: RequestOutcome) {
        let stats = self.operation_stats(request.0);
        stats.totals.add(outcome);
        if let Some(counts) = stats.window.slice(slice_of(now)) {
            counts.add(outcome);
        }
        if let RequestOutcome::Done { bytes, response_time } = outcome {
            stats.series(request.0, bytes).record_response_time(now, bytes, response_time);
            stats.record_sample_time(now);
        }
        stats.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Number of requests of an operation in flight.
    #[must_use]
    pub fn in_flight(&self, operation: Operation) -> u64 {
        self.operation_stats(operation).in_flight.load(Ordering::Relaxed)
    }

    /// Number of requests of all operations in flight.
    #[must_use]
    pub fn total_in_flight(&self) -> u64 {
        Operation::ALL.iter().map(|operation| self.in_flight(*operation)).sum()
    }

    /// Latencies of an operation in the window.
    #[must_use]
    pub fn latencies(&self, now: Duration, operation: Operation) -> LatencySnapshot {
        let series = SizeClass::all().zip(&self.operation_stats(operation).series);
        LatencySnapshot::new(
            series.filter_map(|(size_class, series)| Some(series.get()?.snapshot(now, size_class))).collect(),
        )
    }

    /// Outcomes of an operation in the window.
    #[must_use]
    pub fn outcomes(&self, now: Duration, operation: Operation) -> OutcomeCounts {
        let mut outcomes = OutcomeCounts::default();
        let window = self.operation_stats(operation).window.last(slice_of(now), SLICES as u64);
        window.for_each(|counts| counts.add_to(&mut outcomes));
        outcomes
    }

    /// Outcomes of an operation since the start.
    #[must_use]
    pub fn total_outcomes(&self, operation: Operation) -> OutcomeCounts {
        let mut outcomes = OutcomeCounts::default();
        self.operation_stats(operation).totals.add_to(&mut outcomes);
        outcomes
    }

    /// Bytes per second over the last 5 to 6 s. It underestimates the capacity of a store that was idle for a part of
    /// that.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub fn throughput(&self, now: Duration, direction: Direction) -> f64 {
        let seconds = self.transferred[direction as usize].seconds.last(now.as_secs(), RATE_SECONDS + 1);
        let bytes: u64 = seconds.map(|second| second.0.load(Ordering::Relaxed)).sum();
        let current_second = Duration::from_nanos(now.subsec_nanos().into());
        bytes as f64
            / (Duration::from_secs(RATE_SECONDS.min(now.as_secs())) + current_second).as_secs_f64().max(1e-3)
    }

    /// Bytes transferred since the start.
    #[must_use]
    pub fn total_bytes(&self, direction: Direction) -> u64 {
        self.transferred[direction as usize].total.load(Ordering::Relaxed)
    }

    /// Age of the latest latency sample of an operation, to a millisecond; `None` if there is none.
    #[must_use]
    pub fn latest_sample_age(&self, now: Duration, operation: Operation) -> Option<Duration> {
        let latest_sample =
            self.operation_stats(operation).latest_sample.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_nanos(latest_sample)))
    }

    fn operation_stats(&self, operation: Operation) -> &OperationStats {
        &self.operations[operation as usize]
    }
}

impl OperationStats {
    fn series(&self, operation: Operation, bytes: u64) -> &Series {
        let size_class = SizeClass::for_bytes(if operation.has_size() { bytes } else { 0 });
        self.series[size_class.index()].get_or_init(Box::default)
    }

    /// Updates the time of the latest sample, at most once a millisecond to avoid contention.
    fn record_sample_time(&self, now: Duration) {
        let (sample, latest) = (nanos(now).saturating_add(1), self.latest_sample.load(Ordering::Relaxed));
        if latest == 0 || sample.saturating_sub(latest) >= AGE_RESOLUTION_NANOS {
            self.latest_sample.fetch_max(sample, Ordering::Relaxed);
        }
    }
}

impl AtomicOutcomeCounts {
    fn add(&self, outcome: RequestOutcome) {
        let count = match outcome {
            RequestOutcome::Done { .. } => &self.done,
            RequestOutcome::Rejected => &self.rejected,
            RequestOutcome::Failed(failure) => &self.failed[failure as usize],
            RequestOutcome::Cancelled { waited } => {
                self.cancelled_nanos.fetch_add(nanos(waited), Ordering::Relaxed);
                &self.cancelled
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut OutcomeCounts) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        sum.done += read(&self.done);
        sum.rejected += read(&self.rejected);
        sum.failed.iter_mut().zip(&self.failed).for_each(|(sum, count)| *sum += read(count));
        sum.cancelled += read(&self.cancelled);
        sum.cancelled_after += Duration::from_nanos(read(&self.cancelled_nanos));
        sum.queue_time += Duration::from_nanos(read(&self.queued_nanos));
    }
}

impl Reset for AtomicOutcomeCounts {
    fn reset(&self) {
        let all = [&self.done, &self.rejected, &self.cancelled, &self.cancelled_nanos, &self.queued_nanos];
        all.into_iter().chain(&self.failed).for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
