//! When and how often a request is sent again: decided here, apart from sending it.
//!
//! Delays grow and are drawn at random between nothing and their bound ("full jitter"), so that clients which failed
//! together do not come back together. All requests to a store share a budget: where most of them fail, retries would
//! only add to its load.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How patient a store's client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOptions {
    /// Sent so many times in all, at the most.
    pub attempts: u32,
    /// The bound of the first delay; each further one is twice the last.
    pub first_delay: Duration,
    /// No delay is longer.
    pub most_delay: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { attempts: 6, first_delay: Duration::from_millis(100), most_delay: Duration::from_secs(10) }
    }
}

impl RetryOptions {
    /// The delay before attempt `number` (the second is number 2). `random` is uniform over all of its values.
    #[must_use]
    pub fn delay(&self, number: u32, random: u64) -> Duration {
        let doubled =
            self.first_delay.saturating_mul(1_u32.checked_shl(number.saturating_sub(2)).unwrap_or(u32::MAX));
        let bound = u64::try_from(doubled.min(self.most_delay).as_nanos()).unwrap_or(u64::MAX);
        let scaled = (u128::from(random) * u128::from(bound)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(bound))
    }
}

/// What a store's requests may spend on retries: one each, of a purse that is full at first; ten requests that
/// succeed earn one.
#[derive(Debug)]
pub struct RetryBudget {
    /// In tenths of a retry.
    tenths: AtomicU32,
}

impl RetryBudget {
    const FULL: u32 = 1000;
    const RETRY: u32 = 10;

    /// A full purse: a hundred retries.
    #[must_use]
    pub const fn new() -> Self {
        Self { tenths: AtomicU32::new(Self::FULL) }
    }

    /// Pays for a retry; `false` where there is nothing left to pay with.
    pub fn spend(&self) -> bool {
        let pay = |left: u32| left.checked_sub(Self::RETRY);
        self.tenths.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay).is_ok()
    }

    /// A request succeeded.
    pub fn earn(&self) {
        let add = |left: u32| (left < Self::FULL).then(|| left + 1);
        // Full already.
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
    fn delays_double_up_to_their_bound() {
        let options = RetryOptions::default();
        let longest = |number| options.delay(number, u64::MAX).as_millis();
        assert_eq!([2, 3, 4, 8, 9, 40, 4000].map(longest), [99, 199, 399, 6399, 9999, 9999, 9999]);
        assert_eq!(options.delay(9, 0), Duration::ZERO);
    }

    #[test]
    fn a_store_that_fails_is_asked_no_more_than_its_requests_pay_for() {
        let budget = RetryBudget::new();
        let spent = |n: u32| (0..n).filter(|_| budget.spend()).count();
        assert_eq!(spent(500), 100);
        (0..25).for_each(|_| budget.earn());
        assert_eq!(spent(500), 2);
        (0..5000).for_each(|_| budget.earn());
        assert_eq!(spent(500), 100);
    }

    proptest! {
        #[test]
        fn delays_stay_within_their_bound(number in 0_u32..100, random in any::<u64>()) {
            let options = RetryOptions::default();
            prop_assert!(options.delay(number, random) <= options.most_delay);
        }
    }
}
