//! Decides when a slow range of a download is requested again on another connection: a *hedge* (Dean and Barroso 2013,
//! "The Tail at Scale"). Racing replicas (Wang 2012, section 3) duplicates every request; a hedge duplicates only the
//! few that fall behind others like them.
//!
//! A range is hedged at most once, and only if all of this holds:
//! - Its age is at least 4 times the median of recent ranges of its size class, and at least 500 ms.
//! - At its recent rate, the missing bytes take longer than a new request usually takes for the whole range. A range
//!   that has stalled or crawls qualifies; one that started late but progresses well does not.
//! - Concurrent ranges were twice as fast, measured from its start until now. If all are slow, the store or the link is
//!   the cause, and more requests would add load.
//! - At most one request plus one in twenty is hedged.
//!
//! The age of a range is the time spent waiting for its bytes, without the time that the reader took to process them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::store_statistics::SizeClass;

/// A range is a straggler beyond this multiple of the median of its size class, …
const STRAGGLER_VS_MEDIAN: u32 = 4;
/// … and beyond this multiple of what concurrent ranges need, …
const STRAGGLER_VS_CONCURRENT: u32 = 2;
/// … but never before this age: a lost packet or the store's own retry is over by then.
const MIN_STRAGGLER_AGE: Duration = Duration::from_millis(500);
/// A range expected to complete within this time is not hedged.
const ALMOST_DONE: Duration = Duration::from_millis(100);
/// Minimum number of completed ranges of a size class before their median counts.
const MIN_SAMPLES: usize = 8;
/// Number of most recent ranges that the median is taken over.
const SAMPLE_WINDOW: usize = 32;
/// At most one in this many requests is hedged (plus one).
const HEDGE_ONE_IN: u64 = 20;

/// Statistics of completed ranges, and the number of ranges in flight and hedged.
#[derive(Debug, Default)]
pub struct HedgePolicy {
    started: u64,
    hedged: u64,
    in_flight: u32,
    /// Totals up to `updated_at`.
    totals: Totals,
    updated_at: Duration,
    /// Durations of the most recent ranges, by size class.
    durations: BTreeMap<SizeClass, VecDeque<Duration>>,
}

/// A range in flight. It must be passed to [`end`](HedgePolicy::end) exactly once.
#[derive(Debug)]
#[must_use = "a range that never ends is counted as in flight forever"]
pub struct RangeProgress {
    bytes: u64,
    received: u64,
    started: Duration,
    totals_at_start: Totals,
    last_check: Check,
    is_hedged: bool,
}

/// Totals over all ranges.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// Bytes received.
    received: u64,
    /// Sum of the time that each range has been in flight.
    time_in_flight: Duration,
}

/// The state of a range at a check.
#[derive(Debug, Clone, Copy, Default)]
struct Check {
    /// Bytes received.
    received: u64,
    age: Duration,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HedgeDecision {
    /// True if the range should be hedged now.
    pub hedge_now: bool,
    /// The age at which to check the range again.
    pub next_check: Duration,
}

impl HedgePolicy {
    /// Registers a range of `bytes` that is being requested.
    pub fn begin(&mut self, now: Duration, bytes: u64) -> RangeProgress {
        self.advance(now);
        self.started += 1;
        self.in_flight += 1;
        RangeProgress {
            bytes,
            received: 0,
            started: now,
            totals_at_start: self.totals,
            last_check: Check::default(),
            is_hedged: false,
        }
    }

    /// Records bytes of a range received.
    pub const fn record_bytes(&mut self, range: &mut RangeProgress, bytes: u64) {
        self.totals.received += bytes;
        range.received += bytes;
    }

    /// The age at which to check a range for the first time.
    #[must_use]
    pub fn first_check(&self, range: &RangeProgress) -> Duration {
        self.median_duration(range.bytes).map_or(MIN_STRAGGLER_AGE, straggler_age) / 2
    }

    /// Checks a range that has reached `age`.
    pub fn check(&mut self, range: &mut RangeProgress, now: Duration, age: Duration) -> HedgeDecision {
        let last = std::mem::replace(&mut range.last_check, Check { received: range.received, age });
        let Some(median) = self.median_duration(range.bytes) else {
            return HedgeDecision { hedge_now: false, next_check: age + MIN_STRAGGLER_AGE / 2 };
        };
        let min_age = straggler_age(median);
        let next_check = if age < min_age / 2 { min_age / 2 } else { min_age.max(age + min_age / 4) };
        let missing = range.bytes.saturating_sub(range.received);
        let hedge_now = age >= min_age
            && !range.is_hedged
            && self.hedged < 1 + self.started / HEDGE_ONE_IN
            && self.concurrent_duration(range, now).is_some_and(|others| {
                let left =
                    time_for_bytes(missing, range.received - last.received, age.saturating_sub(last.age));
                age >= others * STRAGGLER_VS_CONCURRENT
                    && left.is_none_or(|left| left > median.max(others).max(ALMOST_DONE))
            });
        HedgeDecision { hedge_now, next_check }
    }

    /// Marks the range as hedged.
    pub const fn mark_hedged(&mut self, range: &mut RangeProgress) {
        if !range.is_hedged {
            range.is_hedged = true;
            self.hedged += 1;
        }
    }

    /// Removes a range. `completed_age` is the age at which it completed; `None` if it failed or was cancelled.
    pub fn end(&mut self, range: RangeProgress, now: Duration, completed_age: Option<Duration>) {
        self.advance(now);
        self.in_flight -= 1;
        // Two requests determined the duration of a hedged range.
        if let Some(age) = completed_age.filter(|_| !range.is_hedged) {
            let times = self.durations.entry(SizeClass::for_bytes(range.bytes)).or_default();
            if times.len() == SAMPLE_WINDOW {
                times.pop_front();
            }
            times.push_back(age);
        }
    }

    /// Number of ranges hedged.
    #[must_use]
    pub const fn hedged(&self) -> u64 {
        self.hedged
    }

    /// Number of ranges in flight.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The median duration of ranges of this size class, or of the next larger class with enough samples.
    fn median_duration(&self, bytes: u64) -> Option<Duration> {
        let class = SizeClass::for_bytes(bytes);
        // The last class has no upper bound, so its ranges are not comparable.
        class.max_bytes()?;
        let (_, times) = self.durations.range(class..).find(|(_, times)| times.len() >= MIN_SAMPLES)?;
        let mut sorted: Vec<Duration> = times.iter().copied().collect();
        let middle = sorted.len() / 2;
        Some(*sorted.select_nth_unstable(middle).1)
    }

    /// The time that other ranges would need for as many bytes, at their rate since this one started; `None` if they
    /// received fewer bytes.
    fn concurrent_duration(&mut self, range: &RangeProgress, now: Duration) -> Option<Duration> {
        self.advance(now);
        let before = range.totals_at_start;
        let others_bytes = self.totals.received - before.received - range.received;
        let own_time = now.saturating_sub(range.started);
        let others_time = (self.totals.time_in_flight - before.time_in_flight).saturating_sub(own_time);
        if others_bytes < range.bytes { None } else { time_for_bytes(range.bytes, others_bytes, others_time) }
    }

    /// Adds the time since the last call for every range in flight. Concurrent callers may pass times out of order.
    fn advance(&mut self, now: Duration) {
        let now = now.max(self.updated_at);
        self.totals.time_in_flight += (now - self.updated_at) * self.in_flight;
        self.updated_at = now;
    }
}

impl RangeProgress {
    /// Corrects the size of the range.
    pub const fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Returns true if the range was hedged.
    #[must_use]
    pub const fn is_hedged(&self) -> bool {
        self.is_hedged
    }
}

fn straggler_age(median: Duration) -> Duration {
    median.saturating_mul(STRAGGLER_VS_MEDIAN).max(MIN_STRAGGLER_AGE)
}

/// The time that `bytes` take at the rate of `received` bytes within `time`; `None` if `received` is 0.
fn time_for_bytes(bytes: u64, received: u64, time: Duration) -> Option<Duration> {
    let nanos = (u128::from(bytes) * time.as_nanos()).checked_div(u128::from(received))?;
    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
