//! Decides when and how often a request is retried, apart from sending it.
//!
//! Delays grow exponentially and are drawn uniformly between zero and their bound ("full jitter"), so that clients
//! which failed together do not return together. All requests of one client, or of one transfer context, share a retry
//! budget: if most of them fail, retries would only add load.
//!
//! Attempts during an outage of the store ([`OutageTracker`](crate::outage::OutageTracker)) neither count nor use the
//! budget. Their number is bounded by [`RetryOptions::max_outage`] instead, and each request backs off by itself, too: a
//! store that throttles answers some requests, and the outage that all share is then short.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::outage::MAX_ROUND_DELAY;

/// Limits of the retries of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOptions {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Bound of the first delay. It doubles with each further one.
    pub first_delay: Duration,
    /// Maximum bound of a delay.
    pub max_delay: Duration,
    /// Maximum time that requests wait for a store during an outage; zero if outages are not waited out.
    pub max_outage: Duration,
    /// Maximum delay that the store may request (`Retry-After`).
    pub max_retry_after: Duration,
}

/// Time that commands wait for a store during an outage. A restart of a service or of its load balancer is shorter.
const COMMAND_MAX_OUTAGE: Duration = Duration::from_secs(30);

impl Default for RetryOptions {
    /// The options of a server, whose clients wait and retry themselves: outages are not waited out.
    fn default() -> Self {
        Self {
            max_attempts: 6,
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(10),
            max_outage: Duration::ZERO,
            max_retry_after: Duration::from_secs(1),
        }
    }
}

impl RetryOptions {
    /// The options of a command, which waits out an outage of 30 s.
    #[must_use]
    pub fn for_commands() -> Self {
        Self { max_outage: COMMAND_MAX_OUTAGE, max_retry_after: COMMAND_MAX_OUTAGE, ..Self::default() }
    }

    /// The options of a command whose user limits the attempts: outages are not waited out.
    #[must_use]
    pub fn with_max_attempts(max_attempts: u32) -> Self {
        Self { max_attempts, max_outage: Duration::ZERO, ..Self::for_commands() }
    }

    /// These options for a server, whose clients wait and retry themselves: with the same number of attempts.
    #[must_use]
    pub fn for_server(self) -> Self {
        Self { max_attempts: self.max_attempts, ..Self::default() }
    }

    /// Options without retries.
    #[must_use]
    pub fn disabled() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }

    /// The delay before an attempt (the first retry is attempt 2). `random` must be uniform over all values of its
    /// type.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let doubled =
            self.first_delay.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(2)).unwrap_or(u32::MAX));
        let bound = u64::try_from(doubled.min(self.max_delay).as_nanos()).unwrap_or(u64::MAX);
        let scaled = (u128::from(random) * u128::from(bound)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(bound))
    }
}

/// A failed attempt that may be retried.
#[derive(Debug, Clone, Copy, Default)]
pub struct RetryableFailure {
    /// Time of the failure.
    pub failed_at: Duration,
    /// Set if the attempt failed because of an outage that is waited out: the delay until its next attempt.
    pub outage_delay: Option<Duration>,
    /// The delay that the store requested.
    pub retry_after: Option<Duration>,
}

/// The attempts of one request.
#[derive(Debug, Clone, Copy)]
pub struct Attempts {
    /// Number of the current attempt, without those during outages.
    number: u32,
    /// Number of failed attempts during outages.
    outage_failures: u32,
    /// Time of the first failure.
    failing_since: Option<Duration>,
}

impl Attempts {
    /// The first attempt.
    #[must_use]
    pub const fn new() -> Self {
        Self { number: 1, outage_failures: 0, failing_since: None }
    }

    /// The number of the current attempt, from 1.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Time since the first failure; zero before it.
    #[must_use]
    pub fn failing_time(&self, now: Duration) -> Duration {
        self.failing_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// The delay before the next attempt; `None` if there is none. A repeated outage of a store that responds to other
    /// requests is waited out for [`RetryOptions::max_outage`] in total. `random` must be uniform over all values of its
    /// type.
    pub fn next_delay(
        &mut self,
        options: &RetryOptions,
        budget: &RetryBudget,
        failure: RetryableFailure,
        random: u64,
    ) -> Option<Duration> {
        if options.max_attempts <= 1 {
            return None;
        }
        self.failing_since.get_or_insert(failure.failed_at);
        if let Some(delay) = failure.outage_delay
            && self.failing_time(failure.failed_at) < options.max_outage
        {
            self.outage_failures = self.outage_failures.saturating_add(1);
            let own = options.delay(self.number.saturating_add(self.outage_failures), random);
            return Some(delay.max(own.min(MAX_ROUND_DELAY)));
        }
        if self.number >= options.max_attempts || !budget.try_spend() {
            return None;
        }
        self.number += 1;
        let requested = failure.retry_after.unwrap_or_default().min(options.max_retry_after);
        Some(options.delay(self.number, random).max(requested))
    }
}

impl Default for Attempts {
    fn default() -> Self {
        Self::new()
    }
}

/// Retry budget of a client or a transfer context: a retry costs one token, ten successful requests earn one. The
/// budget starts full.
#[derive(Debug)]
pub struct RetryBudget {
    /// Tokens, in tenths.
    tenths: AtomicU32,
}

impl RetryBudget {
    const CAPACITY_TENTHS: u32 = 1000;
    const COST_TENTHS: u32 = 10;

    /// A full budget of 100 retries.
    #[must_use]
    pub const fn new() -> Self {
        Self { tenths: AtomicU32::new(Self::CAPACITY_TENTHS) }
    }

    /// Takes the token of one retry. Returns false if none is left.
    pub fn try_spend(&self) -> bool {
        let pay = |left: u32| left.checked_sub(Self::COST_TENTHS);
        self.tenths.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay).is_ok()
    }

    /// Records a successful request.
    pub fn record_success(&self) {
        let add = |left: u32| (left < Self::CAPACITY_TENTHS).then(|| left + 1);
        // An error means that the budget is full.
        let _ = self.tenths.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let options = RetryOptions::default();
        let max_millis = |number| options.delay(number, u64::MAX).as_millis();
        assert_eq!([2, 3, 4, 8, 9, 40, 4000].map(max_millis), [99, 199, 399, 6399, 9999, 9999, 9999]);
        assert_eq!(options.delay(9, 0), Duration::ZERO);
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn attempts_during_an_outage_do_not_count() {
        let (options, budget, mut attempts) =
            (RetryOptions::for_commands(), RetryBudget::new(), Attempts::new());
        let mut next = |second: u32, outage_delay| {
            let failed_at = SECOND * (100 + second);
            let failure = RetryableFailure { failed_at, outage_delay, retry_after: None };
            attempts.next_delay(&options, &budget, failure, 0)
        };
        assert!((0..30).all(|second| next(second, Some(SECOND)) == Some(SECOND)));
        // After that they count, as those after an ordinary failure do.
        let counted = (30..100).take_while(|second| next(*second, Some(SECOND)).is_some()).count();
        assert_eq!(counted, 5);
    }

    /// The shared wait is short because other requests succeed.
    #[test]
    fn throttled_request_backs_off_by_its_own_attempts() {
        let (options, budget, mut attempts) =
            (RetryOptions::for_commands(), RetryBudget::new(), Attempts::new());
        let short = Duration::from_millis(50);
        let mut next = |random| {
            let failure =
                RetryableFailure { failed_at: SECOND, outage_delay: Some(short), retry_after: None };
            attempts.next_delay(&options, &budget, failure, random).unwrap()
        };
        let delays: Vec<_> = (0..7).map(|_| next(u64::MAX).as_millis()).collect();
        assert_eq!(delays, [99, 199, 399, 799, 1599, 2000, 2000]);
        assert_eq!(next(0), short);
    }

    #[test]
    fn requested_delay_is_honoured_up_to_its_maximum() {
        let delay = |options: RetryOptions, seconds| {
            let failure = RetryableFailure { retry_after: Some(SECOND * seconds), ..Default::default() };
            Attempts::new().next_delay(&options, &RetryBudget::new(), failure, 0).unwrap()
        };
        assert_eq!(delay(RetryOptions::for_commands(), 4), SECOND * 4);
        assert_eq!(delay(RetryOptions::for_commands(), 3600), SECOND * 30);
        assert_eq!(delay(RetryOptions::with_max_attempts(2), 4), SECOND * 4);
        // A server must not hold its clients.
        assert_eq!(delay(RetryOptions::default(), 4), SECOND);
    }

    #[test]
    fn disabled_retries_ignore_outages() {
        let failure = RetryableFailure { outage_delay: Some(SECOND), ..Default::default() };
        for options in [RetryOptions::disabled(), RetryOptions::with_max_attempts(1)] {
            assert_eq!(Attempts::new().next_delay(&options, &RetryBudget::new(), failure, 0), None);
        }
    }

    #[test]
    fn retries_are_bounded_by_successful_requests() {
        let budget = RetryBudget::new();
        let spent = |n: u32| (0..n).filter(|_| budget.try_spend()).count();
        assert_eq!(spent(500), 100);
        (0..25).for_each(|_| budget.record_success());
        assert_eq!(spent(500), 2);
        (0..5000).for_each(|_| budget.record_success());
        assert_eq!(spent(500), 100);
    }

    proptest! {
        #[test]
        fn delays_stay_below_the_maximum(number in 0_u32..100, random in any::<u64>()) {
            let options = RetryOptions::default();
            prop_assert!(options.delay(number, random) <= options.max_delay);
        }
    }
}
