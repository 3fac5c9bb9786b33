//! Decides when and how often a request is retried, apart from sending it.
//!
//! Delays grow exponentially and are drawn uniformly between zero and their bound ("full jitter"), so that clients
//! which failed together do not return together. All requests of one client, or of one transfer context, share a retry
//! budget: if most of them fail, retries would only add load.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Limits of the retries of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOptions {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Bound of the first delay. It doubles with each further one.
    pub first_delay: Duration,
    /// Maximum bound of a delay.
    pub max_delay: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { max_attempts: 6, first_delay: Duration::from_millis(100), max_delay: Duration::from_secs(10) }
    }
}

impl RetryOptions {
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
