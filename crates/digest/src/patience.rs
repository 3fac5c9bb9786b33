//! How long to wait for more streams before hashing the few that are ready: a pure decision.
//!
//! Sixteen streams cost little more time than one, so waiting saves processor time wherever others are about to
//! arrive. Whether they are is learned from the waits before: one that gained streams doubles the next, one that
//! gained none halves it, down to no waiting at all.

use std::time::Duration;

/// The longest wait.
const LONGEST: Duration = Duration::from_millis(1);
/// The shortest wait worth a timer; below, none.
const SHORTEST: Duration = Duration::from_micros(60);

/// The current length of the wait.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(LONGEST / 4)
    }

    /// How long to wait at most; zero means not at all.
    pub(crate) fn wait(&self) -> Duration {
        self.0
    }

    /// Learns that after a wait `taken` streams were ready, `before` of them when it began.
    pub(crate) fn waited(&mut self, before: usize, taken: usize) {
        self.0 = if taken > before.max(1) {
            (self.0 * 2).clamp(SHORTEST, LONGEST)
        } else if self.0 >= 2 * SHORTEST {
            self.0 / 2
        } else {
            Duration::ZERO
        };
    }

    /// Learns that without a wait `taken` streams were ready: two that come together give waiting a new chance.
    pub(crate) fn hurried(&mut self, taken: usize) {
        if taken > 1 {
            self.0 = self.0.max(SHORTEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_gain_nothing_end() {
        let mut patience = Patience::new();
        for _ in 0..10 {
            patience.waited(1, 1);
        }
        assert_eq!(patience.wait(), Duration::ZERO);
        patience.hurried(1);
        assert_eq!(patience.wait(), Duration::ZERO);
    }

    #[test]
    fn company_brings_patience_back() {
        let mut patience = Patience(Duration::ZERO);
        patience.hurried(2);
        assert_eq!(patience.wait(), SHORTEST);
        for _ in 0..10 {
            patience.waited(0, 2);
        }
        assert_eq!(patience.wait(), LONGEST);
    }
}
