//! Tracks whether a store is out: it cannot be reached, closes connections, or answers that it is overloaded or not
//! available.
//!
//! All requests to the store share one wait. Without it, each of them would find out by itself, use up its attempts
//! within a second, and add load to a store that is about to return. A failure of an attempt that began before the
//! current wait only joins that wait; later failures double it. A response to an attempt that began after the wait ends
//! the outage. Responses to earlier attempts do not: a store that throttles answers some of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::retry::RetryOptions;

/// Maximum wait between two rounds of attempts, unless the store requests more: the end of an outage is noticed soon.
pub(crate) const MAX_ROUND_DELAY: Duration = Duration::from_secs(2);
/// Without attempts for this multiple of the maximum outage, the next failure begins another outage.
const IDLE_FACTOR: u32 = 2;

/// An attempt that failed because of an outage.
#[derive(Debug, Clone, Copy)]
pub struct OutageFailure {
    /// Start of the attempt.
    pub started_at: Duration,
    /// Time of its failure.
    pub failed_at: Duration,
    /// The delay that the store requested (`Retry-After`).
    pub retry_after: Option<Duration>,
}

/// The decision about an attempt that failed because of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageWait {
    /// Delay before the next attempt of this request.
    pub delay: Duration,
    /// Set for one failure of each outage that has lasted for a while, so that it is reported once.
    pub should_report: bool,
}

/// The outage of one store, shared by all requests to it.
#[derive(Debug, Default)]
pub struct OutageTracker {
    /// Time before which no request should be sent, in nanoseconds; zero without an outage, at least 1 during one.
    resume_at_nanos: AtomicU64,
    outage: Mutex<Option<Outage>>,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    began_at: Duration,
    last_failed_at: Duration,
    /// Number of rounds of attempts.
    rounds: u32,
    /// Bound of the delays of the current round.
    round_delay: Duration,
    /// End of the shared wait.
    resume_at: Duration,
    is_reported: bool,
}

/// Age of an outage at which it is reported.
const REPORT_AGE: Duration = Duration::from_secs(3);

impl OutageTracker {
    /// A store without an outage.
    #[must_use]
    pub const fn new() -> Self {
        Self { resume_at_nanos: AtomicU64::new(0), outage: Mutex::new(None) }
    }

    /// The time before which no request should be sent. In the past without an outage.
    #[must_use]
    pub fn resume_at(&self) -> Duration {
        Duration::from_nanos(self.resume_at_nanos.load(Ordering::Acquire))
    }

    /// The time at which a request that is ready at `now` should check again whether it may be sent; `None` if it may be
    /// sent. The requests that wait are spread like those of a round. `random` must be uniform over all values of its
    /// type.
    pub fn wait_until(&self, now: Duration, random: impl FnOnce() -> u64) -> Option<Duration> {
        if self.resume_at() <= now {
            return None;
        }
        let current = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = current.as_ref().filter(|outage| outage.resume_at > now)?;
        Some(outage.spread_resume(random()))
    }

    /// Records a failure. Returns the wait of the request; `None` if outages are not waited out, or if this one has
    /// lasted for [`RetryOptions::max_outage`]. `random` must be uniform over all values of its type.
    pub fn record_failure(
        &self,
        options: &RetryOptions,
        failure: OutageFailure,
        random: u64,
    ) -> Option<OutageWait> {
        if options.max_outage.is_zero() {
            return None;
        }
        let OutageFailure { started_at, failed_at, retry_after } = failure;
        let mut current = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |outage: &Outage| started_at > outage.last_failed_at + options.max_outage * IDLE_FACTOR;
        let outage = match &mut *current {
            Some(outage) if !is_idle(outage) => outage,
            other => other.insert(Outage {
                began_at: failed_at,
                last_failed_at: failed_at,
                rounds: 0,
                round_delay: Duration::ZERO,
                resume_at: failed_at,
                is_reported: false,
            }),
        };
        outage.last_failed_at = outage.last_failed_at.max(failed_at);
        let end = outage.began_at + options.max_outage;
        if failed_at >= end {
            self.resume_at_nanos.store(1, Ordering::Release);
            return None;
        }
        if outage.rounds == 0 || started_at >= outage.resume_at.min(end) {
            let doubled =
                options.first_delay.saturating_mul(1_u32.checked_shl(outage.rounds).unwrap_or(u32::MAX));
            outage.rounds += 1;
            outage.round_delay = doubled.min(options.max_delay).min(MAX_ROUND_DELAY);
            outage.resume_at = failed_at + outage.round_delay / 2;
        }
        if let Some(requested) = retry_after {
            let requested_end = failed_at + requested.min(options.max_retry_after);
            outage.resume_at = outage.resume_at.max(requested_end);
        }
        outage.resume_at = outage.resume_at.min(end);
        let next_at = outage.spread_resume(random).min(end);
        let should_report = !outage.is_reported && failed_at >= outage.began_at + REPORT_AGE;
        outage.is_reported |= should_report;
        let resume_nanos = u64::try_from(outage.resume_at.as_nanos()).unwrap_or(u64::MAX);
        self.resume_at_nanos.store(resume_nanos, Ordering::Release);
        Some(OutageWait { delay: next_at.saturating_sub(failed_at), should_report })
    }

    /// Records a response that shows that the store is available. Ends the outage if the attempt began at or after the
    /// end of the shared wait.
    pub fn record_response(&self, started_at: Duration) {
        if self.resume_at_nanos.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut current = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_none_or(|outage| started_at >= outage.resume_at) {
            *current = None;
            // Under the lock, so that the wait of an outage that begins now is not lost.
            self.resume_at_nanos.store(0, Ordering::Release);
        }
    }
}

impl Outage {
    /// The end of the shared wait for one request: the requests of a round are spread over the second half of its delay.
    fn spread_resume(&self, random: u64) -> Duration {
        let spread = (u128::from(random) * (self.round_delay / 2).as_nanos()) >> 64;
        self.resume_at + Duration::from_nanos(u64::try_from(spread).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fail(tracker: &OutageTracker, started: Duration, failed: Duration) -> Option<Duration> {
        fail_with(tracker, started, failed, None)
    }

    fn fail_with(
        tracker: &OutageTracker,
        started_at: Duration,
        failed_at: Duration,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        let failure = OutageFailure { started_at, failed_at, retry_after };
        Some(tracker.record_failure(&RetryOptions::for_commands(), failure, u64::MAX)?.delay)
    }

    /// The times at which a request that always fails at once is sent.
    fn attempts(tracker: &OutageTracker, start: Duration) -> Vec<Duration> {
        let mut times = vec![start];
        while let Some(delay) = times.last().and_then(|now| fail(tracker, *now, *now)) {
            times.push(times[times.len() - 1] + delay);
        }
        times
    }

    #[test]
    fn outage_is_waited_out_for_its_maximum() {
        let times = attempts(&OutageTracker::new(), SECOND);
        assert_eq!(*times.last().unwrap(), 31 * SECOND);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= MAX_ROUND_DELAY), "{times:?}");
        assert!((15..25).contains(&times.len()), "{times:?}");
    }

    #[test]
    fn requests_that_fail_together_share_one_wait() {
        let tracker = OutageTracker::new();
        let first = fail(&tracker, SECOND, SECOND).unwrap();
        for _ in 0..256 {
            assert_eq!(fail(&tracker, SECOND, SECOND), Some(first));
        }
        assert!(tracker.resume_at() > SECOND && tracker.resume_at() <= SECOND + first);
        let second = fail(&tracker, SECOND + first, SECOND + first).unwrap();
        assert!(second > first);
    }

    #[test]
    fn requests_after_the_maximum_do_not_wait() {
        let tracker = OutageTracker::new();
        attempts(&tracker, SECOND);
        assert_eq!(fail(&tracker, 32 * SECOND, 32 * SECOND), None);
        assert!(tracker.resume_at() < SECOND);
        // Much later, or after a response, it is another outage.
        assert!(fail(&tracker, 600 * SECOND, 600 * SECOND).is_some());
        attempts(&tracker, 601 * SECOND);
        tracker.record_response(639 * SECOND);
        assert!(fail(&tracker, 640 * SECOND, 640 * SECOND).is_some());
    }

    #[test]
    fn response_to_an_attempt_after_the_wait_ends_the_outage() {
        let tracker = OutageTracker::new();
        fail(&tracker, SECOND, SECOND);
        let resume_at = tracker.resume_at();
        assert!(resume_at > SECOND);
        for earlier in [Duration::ZERO, SECOND, resume_at - Duration::from_nanos(1)] {
            tracker.record_response(earlier);
            assert_eq!(tracker.resume_at(), resume_at, "{earlier:?}");
        }
        tracker.record_response(resume_at);
        assert_eq!(tracker.resume_at(), Duration::ZERO);
        assert_eq!(*attempts(&tracker, 40 * SECOND).last().unwrap(), 70 * SECOND);
    }

    #[test]
    fn waiting_requests_are_spread_and_wait_again() {
        let tracker = OutageTracker::new();
        assert_eq!(tracker.wait_until(SECOND, || u64::MAX), None);
        let mut now = SECOND;
        for _ in 0..8 {
            now += fail(&tracker, now, now).unwrap();
        }
        let wait = fail(&tracker, now, now).unwrap();
        let (first, last) =
            (tracker.wait_until(now, || 0).unwrap(), tracker.wait_until(now, || u64::MAX).unwrap());
        assert_eq!(first, tracker.resume_at());
        assert!(last > first + MAX_ROUND_DELAY / 4 && last <= now + wait, "{first:?} {last:?}");
        // The first of them fails again, and the others wait for the next round.
        fail(&tracker, first, first);
        assert!(tracker.wait_until(last, || 0).is_some_and(|next| next > last));
        tracker.record_response(tracker.resume_at());
        assert_eq!(tracker.wait_until(last, || 0), None);
    }

    #[test]
    fn requested_delay_extends_the_shared_wait() {
        let tracker = OutageTracker::new();
        fail(&tracker, SECOND, SECOND);
        fail_with(&tracker, SECOND, SECOND, Some(4 * SECOND));
        assert_eq!(tracker.resume_at(), 5 * SECOND);
        fail_with(&tracker, SECOND, SECOND, Some(3600 * SECOND));
        assert_eq!(tracker.resume_at(), 31 * SECOND, "not beyond the maximum outage");
    }

    #[test]
    fn long_outage_is_reported_once() {
        let tracker = OutageTracker::new();
        let report = |second: u32| {
            let at = SECOND * second;
            let failure = OutageFailure { started_at: at, failed_at: at, retry_after: None };
            tracker.record_failure(&RetryOptions::for_commands(), failure, 0).unwrap().should_report
        };
        assert_eq!([1, 2, 5, 6, 7].map(report), [false, false, true, false, false]);
    }

    #[test]
    fn server_does_not_wait_out_outages() {
        let tracker = OutageTracker::new();
        let failure = OutageFailure { started_at: SECOND, failed_at: SECOND, retry_after: Some(SECOND) };
        assert_eq!(tracker.record_failure(&RetryOptions::default(), failure, 0), None);
        assert_eq!(tracker.resume_at(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn waits_end_with_the_maximum_outage(
            steps in prop::collection::vec((0_u64..5000, any::<u64>(), prop::option::of(0_u64..100)), 1..200)
        ) {
            let (tracker, options) = (OutageTracker::new(), RetryOptions::for_commands());
            let mut now = Duration::ZERO;
            for (millis, random, retry_after) in steps {
                let retry_after = retry_after.map(Duration::from_secs);
                let failure = OutageFailure { started_at: now, failed_at: now, retry_after };
                if let Some(wait) = tracker.record_failure(&options, failure, random) {
                    prop_assert!(now + wait.delay <= options.max_outage);
                    prop_assert!(tracker.resume_at() <= options.max_outage);
                } else {
                    prop_assert!(now >= options.max_outage);
                }
                now += Duration::from_millis(millis);
            }
        }
    }
}
