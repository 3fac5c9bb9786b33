//! What the workers of one load share: the window that counts, the numbers of requests, and what is seen from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;

use super::due::Due;
use crate::record::timeline::Timeline;
use crate::record::{Record, Window};
use crate::samples::{CellSamples, Names, Sampled, Sampler};

/// Requests of an open loop that wait for a worker, at the most: seconds of a load that no store serves, in some 20 MB.
pub(crate) const MOST_WAITING: usize = 1 << 20;

/// A wish to end early: what was measured by then is kept.
#[derive(Debug, Clone, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// Ends whatever looks at it.
    pub fn ask(&self) {
        self.0.cancel();
    }

    /// Waits until somebody did.
    pub async fn asked(&self) {
        self.0.cancelled().await;
    }

    /// Waits until so long after somebody did.
    pub async fn patience(&self, time: Duration) {
        self.0.cancelled().await;
        tokio::time::sleep(time).await;
    }

    /// Whether somebody did.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// What a load has done so far, for whoever watches. Everything counts, the warm-up too.
#[derive(Debug, Default)]
pub struct Gauge {
    operations: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    /// Where single requests are kept, where they are to be.
    samples: Option<Arc<CellSamples>>,
}

impl Gauge {
    /// One whose requests are kept one by one too.
    pub(crate) fn with_samples(samples: Arc<CellSamples>) -> Self {
        Self { samples: Some(samples), ..Self::default() }
    }

    /// Requests that ended with success, their bytes, and those that failed.
    #[must_use]
    pub fn read(&self) -> (u64, u64, u64) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.operations), read(&self.bytes), read(&self.failures))
    }

    /// What became of the requests that are kept one by one, when all of them have ended; nothing where none are.
    pub(crate) async fn sampled(&self) -> Option<Sampled> {
        match &self.samples {
            Some(samples) => Some(samples.conclude().await),
            None => None,
        }
    }

    /// What another machine said that it had done so far.
    pub(crate) fn show(&self, operations: u64, bytes: u64, failures: u64) {
        self.operations.store(operations, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.failures.store(failures, Ordering::Relaxed);
    }

    pub(crate) fn success(&self, bytes: u64) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// See the module. `T` is what is known of a request before its moment comes.
pub(crate) struct Shared<T> {
    clock: Arc<dyn Clock>,
    /// In nanoseconds of the clock.
    begin: AtomicU64,
    end: AtomicU64,
    numbers: AtomicU64,
    most: AtomicU64,
    workers: usize,
    /// Requests of an open loop whose moment has come, and a permit for each.
    due: Mutex<Due<T>>,
    pub starts: Semaphore,
    /// Requests that are under way are given up.
    pub over: CancellationToken,
    /// When the last request ended, in nanoseconds of the clock.
    last: AtomicU64,
    /// Workers that have not ended.
    active: AtomicUsize,
    pub gauge: Arc<Gauge>,
    /// How it goes over time.
    pub timeline: Timeline,
    /// What objects are called.
    names: Arc<dyn Names>,
}

/// Latencies in microseconds.
pub(crate) fn micros() -> Histogram<u64> {
    crate::record::histogram()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<T> Shared<T> {
    /// Of so many workers, and so many requests at the most.
    pub fn new(
        clock: Arc<dyn Clock>,
        (workers, most): (usize, Option<u64>),
        gauge: Arc<Gauge>,
        names: Arc<dyn Names>,
    ) -> Self {
        Self {
            clock,
            begin: AtomicU64::new(u64::MAX),
            end: AtomicU64::new(u64::MAX),
            numbers: AtomicU64::new(0),
            most: AtomicU64::new(most.unwrap_or(u64::MAX)),
            workers,
            due: Mutex::new(Due::new(MOST_WAITING)),
            starts: Semaphore::new(0),
            over: CancellationToken::new(),
            last: AtomicU64::new(0),
            active: AtomicUsize::new(workers),
            gauge,
            timeline: Timeline::default(),
            names,
        }
    }

    /// What a worker is to see, who has begun nothing yet.
    pub fn record(&self) -> Record {
        self.timeline.record()
    }

    /// What keeps the requests of a worker one by one, where they are to be kept; without a worker, of those that never start.
    pub fn sampler(&self, worker: Option<usize>) -> Option<Sampler> {
        Some(self.gauge.samples.as_ref()?.sampler(worker, self.names.clone()))
    }

    /// The same, of whose requests so many may wait.
    #[cfg(test)]
    pub fn with_room(mut self, most_waiting: usize) -> Self {
        self.due = Mutex::new(Due::new(most_waiting));
        self
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// It counts from now on.
    pub fn begin(&self) -> Duration {
        let now = self.now();
        self.begin.store(nanos(now), Ordering::Relaxed);
        now
    }

    /// It counts no longer, and nothing more is begun.
    pub fn end(&self) -> Duration {
        self.end_at(self.now())
    }

    /// It counted until the last request ended.
    pub fn end_with_the_last(&self) -> Duration {
        self.end_at(Duration::from_nanos(self.last.load(Ordering::Relaxed)))
    }

    fn end_at(&self, at: Duration) -> Duration {
        self.end.store(nanos(at), Ordering::Relaxed);
        at
    }

    /// A request has ended.
    pub fn ended(&self, at: Duration) {
        self.last.fetch_max(nanos(at), Ordering::Relaxed);
    }

    pub fn has_ended(&self) -> bool {
        self.end.load(Ordering::Relaxed) != u64::MAX
    }

    pub fn window(&self) -> Window {
        let read = |at: &AtomicU64| Duration::from_nanos(at.load(Ordering::Relaxed));
        Window { begin: read(&self.begin), end: read(&self.end) }
    }

    /// The number of the next request; `None` where there is to be none.
    pub fn next(&self) -> Option<u64> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        (number < self.most.load(Ordering::Relaxed)).then_some(number)
    }

    /// A worker has ended.
    pub fn leave(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing is left to be begun.
    pub fn is_over(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
            || self.numbers.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }

    /// All workers ended before there were as many requests as there are to be: there is nothing that they could be about.
    pub fn is_deserted(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
            && self.numbers.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// So many requests there are to be at the most.
    pub fn most(&self) -> usize {
        usize::try_from(self.most.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// There are no more than so many.
    pub fn at_most(&self, most: u64) {
        self.most.fetch_min(most, Ordering::Relaxed);
    }

    /// A request is to start: it was meant to at that moment. Where too many wait it is given up and counted, and the load is
    /// overrun.
    pub fn release(&self, intended: Duration, request: T) {
        if self.due.lock().push(intended, request) {
            self.starts.add_permits(1);
        }
    }

    /// Requests that were given up at their moments, since too many waited: with the first of them the load is void.
    pub fn refused(&self) -> u64 {
        self.due.lock().refused()
    }

    /// When the request whose permit this worker has was meant to start.
    pub fn intended(&self) -> Option<(Duration, T)> {
        self.due.lock().pop()
    }

    /// No request is released any more: whoever waits for one ends when those that were are begun.
    pub fn last(&self) {
        // One for each worker, which finds no request with it.
        self.starts.add_permits(self.workers);
    }

    /// Requests that are to start are given up.
    pub fn begin_no_more(&self) {
        self.starts.close();
    }

    /// Requests that are under way, and those that are to start, are given up.
    pub fn give_up(&self) {
        self.begin_no_more();
        self.over.cancel();
    }

    /// When each request that waited was meant to start and never did, its number, and what is known of it.
    pub fn abandoned(&self) -> impl Iterator<Item = ((Duration, T), u64)> {
        let first = self.numbers.load(Ordering::Relaxed);
        self.due.lock().take().into_iter().zip(first..)
    }

    /// Requests that are to start and did not yet.
    pub fn left(&self) -> u64 {
        self.due.lock().len() as u64
    }
}
