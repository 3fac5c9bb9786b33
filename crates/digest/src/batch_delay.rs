//! The batching delay: how long to wait for more streams before hashing the few that are ready. A pure decision.
//!
//! Sixteen streams take little more time than one, so waiting saves CPU time if others are about to arrive. The delay
//! adapts: a wait that gained streams doubles the next one, a wait that gained none halves it, down to zero.

use std::time::Duration;

/// The longest wait.
const MAX_WAIT: Duration = Duration::from_millis(1);
/// The shortest wait worth a timer; below, none.
const MIN_WAIT: Duration = Duration::from_micros(60);

/// The current batching delay.
#[derive(Debug)]
pub(crate) struct BatchDelay(Duration);

impl BatchDelay {
    pub(crate) fn new() -> Self {
        Self(MAX_WAIT / 4)
    }

    /// The limit of the next wait; zero for none.
    pub(crate) fn max_wait(&self) -> Duration {
        self.0
    }

    /// Adapts to a wait after which `taken` streams were ready, `before` of them when it began.
    pub(crate) fn record_wait(&mut self, before: usize, taken: usize) {
        self.0 = if taken > before.max(1) {
            (self.0 * 2).clamp(MIN_WAIT, MAX_WAIT)
        } else if self.0 >= 2 * MIN_WAIT {
            self.0 / 2
        } else {
            Duration::ZERO
        };
    }

    /// Adapts to a batch of `taken` streams without a wait: two or more that arrive together re-enable waiting.
    pub(crate) fn record_no_wait(&mut self, taken: usize) {
        if taken > 1 {
            self.0 = self.0.max(MIN_WAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useless_waits_shrink_to_zero() {
        let mut delay = BatchDelay::new();
        for _ in 0..10 {
            delay.record_wait(1, 1);
        }
        assert_eq!(delay.max_wait(), Duration::ZERO);
        delay.record_no_wait(1);
        assert_eq!(delay.max_wait(), Duration::ZERO);
    }

    #[test]
    fn simultaneous_streams_restore_the_wait() {
        let mut delay = BatchDelay(Duration::ZERO);
        delay.record_no_wait(2);
        assert_eq!(delay.max_wait(), MIN_WAIT);
        for _ in 0..10 {
            delay.record_wait(0, 2);
        }
        assert_eq!(delay.max_wait(), MAX_WAIT);
    }
}
