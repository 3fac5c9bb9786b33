//! The circuit breaker of the SSD. After a few errors in sequence the SSD is switched off, with one log line, and reads
//! go to the backing store at once. Later, single operations try it again.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::Clock;

use crate::counters::Counters;

/// Errors in sequence after which the SSD is switched off.
pub(crate) const MAX_SEQUENTIAL_ERRORS: u32 = 3;

/// Time between trials of an SSD that is switched off.
pub(crate) const TRIAL_INTERVAL: Duration = Duration::from_secs(30);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Health {
    is_off: AtomicBool,
    /// Changed under the lock of the state.
    sequential_errors: AtomicU32,
    /// Successful operations that followed an error.
    recoveries: AtomicU64,
    state: Mutex<HealthState>,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct HealthState {
    next_trial: Duration,
}

impl Health {
    pub fn new(clock: Arc<dyn Clock>, counters: Arc<Counters>) -> Self {
        Self {
            is_off: AtomicBool::new(false),
            sequential_errors: AtomicU32::new(0),
            recoveries: AtomicU64::new(0),
            state: Mutex::default(),
            clock,
            counters,
        }
    }

    /// Returns true if an operation may use the SSD: always, or as a trial.
    pub fn may_use(&self) -> bool {
        if !self.is_off.load(Ordering::Acquire) {
            return true;
        }
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_due = now >= state.next_trial;
        if is_due {
            state.next_trial = now + TRIAL_INTERVAL;
        }
        is_due
    }

    /// Returns true if the SSD is not switched off, or is due for a trial.
    pub fn is_usable(&self) -> bool {
        !self.is_off() || self.clock.now() >= self.state.lock().next_trial
    }

    /// Records a successful operation.
    pub fn record_success(&self) {
        // The common case takes no lock. An SSD that is switched off has errors.
        if self.sequential_errors.load(Ordering::Acquire) == 0 {
            return;
        }
        let _state = self.state.lock();
        if self.sequential_errors.swap(0, Ordering::AcqRel) > 0 {
            self.recoveries.fetch_add(1, Ordering::AcqRel);
        }
        if self.is_off.swap(false, Ordering::AcqRel) {
            tracing::info!("the SSD of the cache works again");
        }
    }

    /// Records an operation that failed for a part of the SSD only.
    pub fn record_partial_error(&self) {
        self.counters.ssd_errors.increment();
        self.record_success();
    }

    /// Successful operations that followed an error: an error before the last of them was not one of the whole SSD.
    pub fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Acquire)
    }

    /// True while the SSD is switched off.
    pub fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// True after a failed operation, until one is successful.
    pub fn is_failing(&self) -> bool {
        self.sequential_errors.load(Ordering::Acquire) > 0
    }

    /// Records a failed operation.
    pub fn record_error(&self, error: &dyn Display) {
        self.counters.ssd_errors.increment();
        let mut state = self.state.lock();
        let errors = self.sequential_errors.load(Ordering::Acquire).saturating_add(1);
        self.sequential_errors.store(errors, Ordering::Release);
        state.next_trial = self.clock.now() + TRIAL_INTERVAL;
        if errors >= MAX_SEQUENTIAL_ERRORS && !self.is_off.swap(true, Ordering::AcqRel) {
            self.counters.ssd_switched_off.increment();
            tracing::warn!(%error, "the SSD of the cache fails and is switched off; it is tried again later");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::testing::SimulatedClock;

    #[test]
    fn errors_switch_off_and_a_successful_trial_switches_on() {
        let (clock, counters) = (SimulatedClock::new(), Arc::new(Counters::default()));
        let health = Health::new(clock.clone(), counters.clone());
        for _ in 1..MAX_SEQUENTIAL_ERRORS {
            health.record_error(&"error");
            assert!(health.may_use());
        }
        health.record_error(&"error");
        assert!(!health.may_use());
        clock.advance(TRIAL_INTERVAL);
        assert!(health.may_use() && !health.may_use(), "one operation tries");
        health.record_error(&"error");
        assert!(!health.may_use());
        clock.advance(TRIAL_INTERVAL);
        assert!(health.may_use());
        health.record_success();
        assert!(health.may_use() && health.may_use());
        assert_eq!((counters.ssd_switched_off.value(), counters.ssd_errors.value()), (1, 4));
    }
}
