//! State shared by the workers of one load: the measurement window, request numbers, the queue of due requests, and the
//! progress that observers read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};

use super::due_queue::DueQueue;
use super::live_window::{LiveWindow, nanos};
use super::payload_meter::PayloadMeter;
use crate::record::timeline::Timeline;
use crate::record::{LoadRecord, MeasurementWindow};
use crate::samples::{MeasurementSamples, ObjectNames, SampleCounts, Sampler};

/// Capacity of the queue of due open-loop requests: about 20 MB, and seconds of the highest rate that a store can
/// serve.
pub(crate) const MAX_QUEUED_REQUESTS: usize = 1 << 20;

/// A stop signal. What was measured before it is kept.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(CancellationToken);

impl StopSignal {
    /// Requests the stop.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Waits until a stop is requested.
    pub async fn triggered(&self) {
        self.0.cancelled().await;
    }

    /// Waits until `time` after the stop was requested.
    pub async fn triggered_for(&self, time: Duration) {
        self.0.cancelled().await;
        tokio::time::sleep(time).await;
    }

    /// Returns true if a stop was requested.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// The progress of a load, for observers. Includes the warm-up.
#[derive(Debug, Default)]
pub struct Progress {
    operations: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    /// Destination of per-request samples, if they are recorded.
    samples: Option<Arc<MeasurementSamples>>,
}

impl Progress {
    /// Creates the progress of a load whose requests are also recorded individually.
    pub(crate) fn with_samples(samples: Arc<MeasurementSamples>) -> Self {
        Self { samples: Some(samples), ..Self::default() }
    }

    /// Returns successful requests, their bytes, and failed requests.
    #[must_use]
    pub fn snapshot(&self) -> (u64, u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.operations), read(&self.bytes), read(&self.failures))
    }

    /// Finishes the per-request samples after the load has ended. Returns `None` if none are recorded.
    pub(crate) async fn finish_samples(&self) -> Option<SampleCounts> {
        match &self.samples {
            Some(samples) => Some(samples.conclude().await),
            None => None,
        }
    }

    /// Sets the counters to the progress that an agent reported.
    pub(crate) fn set(&self, operations: u64, bytes: u64, failures: u64) {
        self.operations.store(operations, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.failures.store(failures, Ordering::Relaxed);
    }

    pub(crate) fn record_success(&self, bytes: u64) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// The shared state of a load. `T` is the part of a request that is known before it starts.
pub(crate) struct LoadState<T> {
    live_window: LiveWindow,
    /// Number of the next request.
    next_number: AtomicU64,
    max_requests: AtomicU64,
    workers: usize,
    /// Due open-loop requests.
    due: Mutex<DueQueue<T>>,
    /// One permit for each due request.
    pub start_permits: Semaphore,
    /// Cancels requests in flight.
    pub cancelled: CancellationToken,
    /// Completion time of the last request, in nanoseconds of the clock.
    last_completion: AtomicU64,
    /// Workers that have not finished.
    active: AtomicUsize,
    /// The failure that ended the load: its bucket does not exist.
    missing_bucket: Mutex<Option<String>>,
    pub progress: Arc<Progress>,
    /// Work per 100 ms and second.
    pub timeline: Timeline,
    /// Object names.
    names: Arc<dyn ObjectNames>,
}

/// Creates an empty histogram of latencies in microseconds.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    crate::record::new_histogram()
}

impl<T> LoadState<T> {
    /// Creates the state for a number of workers and an optional request limit.
    pub fn new(
        clock: Arc<dyn Clock>,
        (workers, max_requests): (usize, Option<u64>),
        progress: Arc<Progress>,
        names: Arc<dyn ObjectNames>,
    ) -> Self {
        Self {
            live_window: LiveWindow::new(clock),
            next_number: AtomicU64::new(0),
            max_requests: AtomicU64::new(max_requests.unwrap_or(u64::MAX)),
            workers,
            due: Mutex::new(DueQueue::new(MAX_QUEUED_REQUESTS)),
            start_permits: Semaphore::new(0),
            cancelled: CancellationToken::new(),
            last_completion: AtomicU64::new(0),
            active: AtomicUsize::new(workers),
            missing_bucket: Mutex::default(),
            progress,
            timeline: Timeline::default(),
            names,
        }
    }

    /// Creates the empty record of a worker.
    pub fn new_record(&self) -> LoadRecord {
        self.timeline.new_record()
    }

    /// Returns the sampler of a worker, if requests are recorded individually; without a worker, the one for requests
    /// that never start.
    pub fn sampler(&self, worker: Option<usize>) -> Option<Sampler> {
        Some(self.progress.samples.as_ref()?.sampler(worker, self.names.clone()))
    }

    /// Replaces the queue of due requests by one of the given capacity.
    #[cfg(test)]
    pub fn with_queue_capacity(mut self, capacity: usize) -> Self {
        self.due = Mutex::new(DueQueue::new(capacity));
        self
    }

    pub fn now(&self) -> Duration {
        self.live_window.now()
    }

    /// Creates the meter of a request's payload.
    pub fn payload_meter(&self) -> PayloadMeter<'_> {
        PayloadMeter::new(&self.live_window)
    }

    /// Opens the measurement window now.
    pub fn open_window(&self) -> Duration {
        self.live_window.open()
    }

    /// Closes the measurement window now. A closed loop starts no further requests.
    pub fn close_window_now(&self) -> Duration {
        self.close_window(self.now())
    }

    /// Closes the measurement window at the completion of the last request.
    pub fn close_window_at_last_completion(&self) -> Duration {
        self.close_window(Duration::from_nanos(self.last_completion.load(Ordering::Relaxed)))
    }

    fn close_window(&self, time: Duration) -> Duration {
        self.live_window.close_at(time);
        time
    }

    /// Records the completion time of a request.
    pub fn record_completion(&self, at: Duration) {
        self.last_completion.fetch_max(nanos(at), Ordering::Relaxed);
    }

    pub fn is_window_closed(&self) -> bool {
        self.live_window.is_closed()
    }

    pub fn window(&self) -> MeasurementWindow {
        self.live_window.bounds()
    }

    /// Takes the number of the next request; `None` if the request limit is reached.
    pub fn next_request_number(&self) -> Option<u64> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        (number < self.max_requests.load(Ordering::Relaxed)).then_some(number)
    }

    /// Records that a worker has finished.
    pub fn worker_finished(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if no further request will start.
    pub fn is_exhausted(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
            || self.next_number.load(Ordering::Relaxed) >= self.max_requests.load(Ordering::Relaxed)
    }

    /// Returns true if all workers finished before the request limit, because no objects were left.
    pub fn has_run_out_of_objects(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
            && self.next_number.load(Ordering::Relaxed) < self.max_requests.load(Ordering::Relaxed)
    }

    /// The request limit.
    pub fn max_requests(&self) -> usize {
        usize::try_from(self.max_requests.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Lowers the request limit to `limit`.
    pub fn limit_requests(&self, limit: u64) {
        self.max_requests.fetch_min(limit, Ordering::Relaxed);
    }

    /// Ends the load, because its bucket does not exist.
    pub fn end_without_bucket(&self, message: &str) {
        self.missing_bucket.lock().get_or_insert_with(|| message.to_owned());
        self.limit_requests(0);
        self.cancel_queued();
    }

    /// Fails if the bucket does not exist.
    pub fn check_bucket(&self) -> Result<()> {
        match self.missing_bucket.lock().take() {
            Some(message) => Err(Error::new(Reason::NoSuchBucket, message)),
            None => Ok(()),
        }
    }

    /// Queues a request that is due. If the queue is full, the request is dropped and counted, and the load is overrun.
    pub fn release(&self, scheduled: Duration, request: T) {
        if self.due.lock().push(scheduled, request) {
            self.start_permits.add_permits(1);
        }
    }

    /// The number of requests dropped because the queue was full. A load with any is void.
    pub fn dropped(&self) -> u64 {
        self.due.lock().dropped()
    }

    /// Takes the oldest due request and its scheduled start. The caller must hold a permit of `start_permits`.
    pub fn pop_due(&self) -> Option<(Duration, T)> {
        self.due.lock().pop()
    }

    /// Ends the release of requests: workers finish once the queue is empty.
    pub fn finish_releases(&self) {
        // One extra permit for each worker, which then finds the queue empty and ends.
        self.start_permits.add_permits(self.workers);
    }

    /// Prevents queued requests from starting.
    pub fn cancel_queued(&self) {
        self.start_permits.close();
    }

    /// Cancels requests in flight and prevents queued ones from starting.
    pub fn cancel_all(&self) {
        self.cancel_queued();
        self.cancelled.cancel();
    }

    /// Drains the queue. Yields the scheduled start, the data and the number of each request that never started.
    pub fn drain_unstarted(&self) -> impl Iterator<Item = ((Duration, T), u64)> {
        let first = self.next_number.load(Ordering::Relaxed);
        self.due.lock().drain().into_iter().zip(first..)
    }

    /// The number of due requests that have not started.
    pub fn queued(&self) -> u64 {
        self.due.lock().len() as u64
    }
}
