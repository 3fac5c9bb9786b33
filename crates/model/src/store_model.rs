//! The live model of a store: latency by operation and size, requests in flight, outcomes and throughput. Every request
//! feeds it, and every adaptive decision reads it.
//!
//! It does no I/O and reads no clock: `now` is an argument, the time since any origin that all callers share. It keeps
//! the last 50 to 60 s in slices of 10 s, twice the 20 s in which affinities are recomputed (Noel 2018, section IV),
//! and totals since the start. Requests may be fed in any order.
//!
//! Memory: less than 1 MiB if all operations and sizes occur; 12.5 KiB per operation and size class that does. Feeding
//! a request is a dozen relaxed atomic additions without a lock, so no thread waits for another that is not running.

mod operation;
mod ring;
mod series;
mod size;
mod spread;
#[cfg(test)]
mod tests;
mod times;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::{Forget, Ring};
use series::Series;
use spread::nanos;

pub use operation::{Direction, End, Failure, Operation, Outcomes};
pub use series::{Alike, Total};
pub use size::SizeClass;
pub use spread::Spread;
pub use times::{Expectation, Times};

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

/// The shared model of one store.
#[derive(Debug, Default)]
pub struct StoreModel {
    kinds: [Kind; Operation::ALL.len()],
    transferred: [Moved; Direction::ALL.len()],
}

/// Statistics of one operation.
#[derive(Debug, Default)]
struct Kind {
    /// A single counter, so that readers never see a partial update.
    in_flight: AtomicU64,
    /// Time of the latest sample in nanoseconds, plus one; 0 if there is none.
    youngest: AtomicU64,
    since_beginning: Counts,
    window: Ring<Counts, SLICES>,
    /// By size class, allocated at the first request.
    series: [OnceLock<Box<Series>>; SizeClass::COUNT],
}

/// Number of requests by outcome.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    refused: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
    given_up: AtomicU64,
    given_up_nanos: AtomicU64,
    queued_nanos: AtomicU64,
}

/// Bytes transferred in one direction.
#[derive(Debug, Default)]
struct Moved {
    seconds: Ring<Bytes, 8>,
    since_beginning: AtomicU64,
}

#[derive(Debug, Default)]
struct Bytes(AtomicU64);

impl Forget for Bytes {
    fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A request in flight. It must be passed to [`end`](StoreModel::end) exactly once.
#[derive(Debug)]
#[must_use = "a request that never ends is counted as in flight forever"]
pub struct Underway(Operation);

impl StoreModel {
    /// A model without any samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the start of a request.
    pub fn begin(&self, operation: Operation) -> Underway {
        self.kind(operation).in_flight.fetch_add(1, Ordering::Relaxed);
        Underway(operation)
    }

    /// Records the start of the response: the first byte of a read, or the response after the last byte of a write.
    /// `bytes` is the size of the whole request; `queued` is the time that it waited inside this process, or zero if
    /// unknown.
    pub fn answered(
        &self,
        now: Duration,
        request: &Underway,
        bytes: u64,
        first_byte: Duration,
        queued: Duration,
    ) {
        let kind = self.kind(request.0);
        kind.series(request.0, bytes).answered(now, first_byte);
        kind.feel(now);
        if !queued.is_zero() {
            kind.since_beginning.queued_nanos.fetch_add(nanos(queued), Ordering::Relaxed);
            if let Some(window) = kind.window.at(slice_of(now)) {
                window.queued_nanos.fetch_add(nanos(queued), Ordering::Relaxed);
            }
        }
    }

    /// Records bytes transferred.
    pub fn moved(&self, now: Duration, direction: Direction, bytes: u64) {
        let moved = &self.transferred[direction as usize];
        moved.since_beginning.fetch_add(bytes, Ordering::Relaxed);
        if let Some(second) = moved.seconds.at(now.as_secs()) {
            second.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records the end of a request.
    pub fn end(&self, now: Duration, request: Underway, end: End) {
        let kind = self.kind(request.0);
        kind.since_beginning.add(end);
        if let Some(window) = kind.window.at(slice_of(now)) {
            window.add(end);
        }
        if let End::Done { bytes, service } = end {
            kind.series(request.0, bytes).done(now, bytes, service);
            kind.feel(now);
        }
        kind.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Number of requests of an operation in flight.
    #[must_use]
    pub fn in_flight(&self, operation: Operation) -> u64 {
        self.kind(operation).in_flight.load(Ordering::Relaxed)
    }

    /// Number of requests of all operations in flight.
    #[must_use]
    pub fn all_in_flight(&self) -> u64 {
        Operation::ALL.iter().map(|operation| self.in_flight(*operation)).sum()
    }

    /// Latencies of an operation in the window.
    #[must_use]
    pub fn times(&self, now: Duration, operation: Operation) -> Times {
        let series = SizeClass::all().zip(&self.kind(operation).series);
        Times::new(series.filter_map(|(sizes, series)| Some(series.get()?.read(now, sizes))).collect())
    }

    /// Outcomes of an operation in the window.
    #[must_use]
    pub fn outcomes(&self, now: Duration, operation: Operation) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let window = self.kind(operation).window.last(slice_of(now), SLICES as u64);
        window.for_each(|counts| counts.add_to(&mut outcomes));
        outcomes
    }

    /// Outcomes of an operation since the start.
    #[must_use]
    pub fn all_outcomes(&self, operation: Operation) -> Outcomes {
        let mut outcomes = Outcomes::default();
        self.kind(operation).since_beginning.add_to(&mut outcomes);
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
    pub fn all_moved(&self, direction: Direction) -> u64 {
        self.transferred[direction as usize].since_beginning.load(Ordering::Relaxed)
    }

    /// Age of the latest latency sample of an operation, to a millisecond; `None` if there is none.
    #[must_use]
    pub fn age(&self, now: Duration, operation: Operation) -> Option<Duration> {
        let youngest = self.kind(operation).youngest.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_nanos(youngest)))
    }

    fn kind(&self, operation: Operation) -> &Kind {
        &self.kinds[operation as usize]
    }
}

impl Kind {
    fn series(&self, operation: Operation, bytes: u64) -> &Series {
        let sizes = SizeClass::of(if operation.has_size() { bytes } else { 0 });
        self.series[sizes.index()].get_or_init(Box::default)
    }

    /// Updates the time of the latest sample, at most once a millisecond to avoid contention.
    fn feel(&self, now: Duration) {
        let (at, youngest) = (nanos(now).saturating_add(1), self.youngest.load(Ordering::Relaxed));
        if youngest == 0 || at.saturating_sub(youngest) >= AGE_RESOLUTION_NANOS {
            self.youngest.fetch_max(at, Ordering::Relaxed);
        }
    }
}

impl Counts {
    fn add(&self, end: End) {
        let count = match end {
            End::Done { .. } => &self.done,
            End::Refused => &self.refused,
            End::Failed(failure) => &self.failed[failure as usize],
            End::GivenUp { waited } => {
                self.given_up_nanos.fetch_add(nanos(waited), Ordering::Relaxed);
                &self.given_up
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut Outcomes) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        sum.done += read(&self.done);
        sum.refused += read(&self.refused);
        sum.failed.iter_mut().zip(&self.failed).for_each(|(sum, count)| *sum += read(count));
        sum.given_up += read(&self.given_up);
        sum.given_up_after += Duration::from_nanos(read(&self.given_up_nanos));
        sum.queued += Duration::from_nanos(read(&self.queued_nanos));
    }
}

impl Forget for Counts {
    fn forget(&self) {
        let all = [&self.done, &self.refused, &self.given_up, &self.given_up_nanos, &self.queued_nanos];
        all.into_iter().chain(&self.failed).for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
