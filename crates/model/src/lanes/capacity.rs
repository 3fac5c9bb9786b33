//! Estimates the capacity of a lane: the throughput it reaches without throttling.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::latency_guard::RateShare;

/// Length of a slice, in milliseconds.
const SLICE_MILLIS: u64 = 500;
const SLICES_PER_SECOND: f64 = 1000.0 / SLICE_MILLIS as f64;
/// Number of slices stored: the window of 10 s, and those that may still grow.
const STORED_SLICES: usize = 56;
/// Number of slices whose maximum is the capacity.
const WINDOW_SLICES: u64 = 20;
/// Requests that take longer are counted in parts before they end.
pub(super) const MAX_COUNTED_SPAN: Duration = Duration::from_secs(16);

/// The rate of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneRate {
    /// Amount per second: the share of the capacity.
    pub per_second: f64,
    /// Amount per second without throttling.
    pub capacity: f64,
    pub share: RateShare,
}

/// Amounts by time slice. The amount of a request is spread evenly over its duration, because the time at which its
/// bytes left a buffer is unknown.
#[derive(Debug)]
pub(super) struct LaneCapacity {
    slices: [Slice; STORED_SLICES],
    uncounted: BTreeSet<UncountedRequest>,
    cached: Cell<Option<CachedMaximum>>,
}

/// A request that started and is not counted yet. Ordered by start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UncountedRequest {
    since: Duration,
    id: u64,
}

/// The maximum amount of a slice in the window before the slice `end`.
#[derive(Debug, Clone, Copy)]
struct CachedMaximum {
    end: u64,
    amount: f64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Slice {
    number: u64,
    amount: f64,
    /// Requests of this lane contributed. Without them the slice says nothing about the lane's capacity.
    is_own: bool,
    /// The rate at which requests were throttled without a measured benefit.
    throttled_rate: Option<LaneRate>,
}

impl Default for LaneCapacity {
    fn default() -> Self {
        Self {
            slices: [Slice::default(); STORED_SLICES],
            uncounted: BTreeSet::new(),
            cached: Cell::default(),
        }
    }
}

impl LaneCapacity {
    /// Registers the start of a request.
    pub fn begin(&mut self, id: u64, now: Duration) {
        self.uncounted.insert(UncountedRequest { since: now, id });
    }

    /// Counts the amount of a request since `since`.
    pub fn record(&mut self, id: u64, since: Duration, now: Duration, amount: u64) {
        self.discard(id, since);
        self.spread(since, now, amount, true);
    }

    /// Counts the amount of requests of another lane that use the same link.
    pub fn record_other(&mut self, since: Duration, now: Duration, amount: u64) {
        self.spread(since, now, amount, false);
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    fn spread(&mut self, since: Duration, now: Duration, amount: u64, is_own: bool) {
        let (first, last) = (slice_number(since), slice_number(now));
        let whole = (now.saturating_sub(since)).as_secs_f64().max(1e-9);
        for number in first.max((last + 1).saturating_sub(STORED_SLICES as u64))..=last {
            let begin = Duration::from_millis(number * SLICE_MILLIS);
            let end = begin + Duration::from_millis(SLICE_MILLIS);
            let overlap = end.min(now).saturating_sub(begin.max(since)).as_secs_f64();
            let part = if whole > 1e-9 { overlap / whole } else { 1.0 };
            let slice = self.slice(number);
            slice.amount += amount as f64 * part;
            slice.is_own |= is_own;
        }
    }

    /// Records that requests were throttled to this rate without a measured benefit.
    pub fn record_throttled(&mut self, rate: LaneRate, now: Duration) {
        self.slice(slice_number(now)).throttled_rate = Some(rate);
    }

    #[allow(clippy::cast_possible_truncation, reason = "less than the number of slices")]
    fn slice(&mut self, number: u64) -> &mut Slice {
        let slice = &mut self.slices[(number % STORED_SLICES as u64) as usize];
        if slice.number != number {
            *slice = Slice { number, ..Slice::default() };
        }
        slice
    }

    /// Drops a request without counting it.
    pub fn discard(&mut self, id: u64, since: Duration) {
        self.uncounted.remove(&UncountedRequest { since, id });
    }

    /// Number of requests that are not counted yet.
    pub fn open_count(&self) -> usize {
        self.uncounted.len()
    }

    /// The maximum per second over the completed slices of the last 10 s; `None` if there is none.
    pub fn estimate(&self, now: Duration) -> Option<f64> {
        let oldest = self.uncounted.first().map_or(now, |request| request.since);
        // Longer requests were counted in parts.
        let end = slice_number(oldest.max(now.saturating_sub(MAX_COUNTED_SPAN)));
        let amount = match self.cached.get() {
            Some(cached) if cached.end == end => cached.amount,
            _ => {
                let from = end.saturating_sub(WINDOW_SLICES);
                let is_in_window = |slice: &&Slice| slice.is_own && (from..end).contains(&slice.number);
                let slices = self.slices.iter().filter(is_in_window);
                let amount = slices.map(Slice::unthrottled_amount).fold(0.0, f64::max);
                self.cached.set(Some(CachedMaximum { end, amount }));
                amount
            }
        };
        (amount > 0.0).then_some(amount * SLICES_PER_SECOND)
    }
}

impl Slice {
    /// The amount that the slice would have had without needless throttling, assuming that it scales with the rate. It
    /// cannot exceed the capacity estimated before.
    fn unthrottled_amount(&self) -> f64 {
        let scaled =
            |rate: LaneRate| (self.amount / rate.share.rate_factor).min(rate.capacity / SLICES_PER_SECOND);
        self.throttled_rate.map_or(self.amount, |rate| scaled(rate).max(self.amount))
    }
}

fn slice_number(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX) / SLICE_MILLIS
}
