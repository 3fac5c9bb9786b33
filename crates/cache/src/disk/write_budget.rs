//! The budget of bytes written to the SSD, which saves its flash: a token bucket with a burst of some minutes.
//!
//! Beyond the budget, an extent is stored only if it was refused before, and is missed again while it is remembered:
//! its second miss. Such extents are paid for in advance, by one burst at most. So the bytes written in any time `t`
//! are at most the rate times `t`, and two bursts.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

/// Unused bytes are kept for this long.
const BURST: Duration = Duration::from_secs(300);

/// The smallest burst in bytes: some extents.
const MIN_BURST_BYTES: i64 = 1 << 20;

/// Refused extents that are remembered.
const MAX_REFUSED_EXTENTS: usize = 1 << 16;

/// See the module's head.
#[derive(Debug)]
pub(super) struct WriteBudget {
    bytes_per_second: u64,
    burst_bytes: i64,
    state: Mutex<BudgetState>,
}

#[derive(Debug)]
struct BudgetState {
    /// Bytes that may be written now; negative if some were paid for in advance.
    tokens: i64,
    refilled: Duration,
    refused: RefusedExtents,
}

/// The keys of the extents that were refused last.
#[derive(Debug, Default)]
struct RefusedExtents {
    keys: HashSet<u64>,
    oldest_first: VecDeque<u64>,
}

impl WriteBudget {
    /// A budget with a full burst.
    pub fn new(bytes_per_second: u64, now: Duration) -> Self {
        let burst = u128::from(bytes_per_second).saturating_mul(u128::from(BURST.as_secs()));
        let burst_bytes = i64::try_from(burst).unwrap_or(i64::MAX / 4).clamp(MIN_BURST_BYTES, i64::MAX / 4);
        let state = BudgetState { tokens: burst_bytes, refilled: now, refused: RefusedExtents::default() };
        Self { bytes_per_second, burst_bytes, state: Mutex::new(state) }
    }

    /// Takes the bytes of an extent from the budget. Returns false if it is not to be written. The key is the same each
    /// time that the extent is read from the backing store; an extent without one needs no second miss.
    pub fn admits(&self, key: Option<u64>, bytes: usize, now: Duration) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 4);
        let state = &mut *self.state.lock();
        state.refill(self.bytes_per_second, self.burst_bytes, now);
        let is_in_budget = state.tokens >= bytes;
        let is_in_debt_limit = state.tokens - bytes >= -self.burst_bytes;
        let is_admitted = is_in_budget || is_in_debt_limit && key.is_none_or(|key| state.refused.take(key));
        if is_admitted {
            state.tokens -= bytes;
        } else if let Some(key) = key {
            state.refused.add(key);
        }
        is_admitted
    }
}

impl BudgetState {
    fn refill(&mut self, bytes_per_second: u64, burst_bytes: i64, now: Duration) {
        let elapsed = now.saturating_sub(self.refilled).as_nanos();
        let added = u128::from(bytes_per_second).saturating_mul(elapsed) / 1_000_000_000;
        // Less than a byte stays for the next time.
        if added > 0 {
            let added = i64::try_from(added).unwrap_or(i64::MAX / 4).min(2 * burst_bytes);
            self.tokens = (self.tokens + added).min(burst_bytes);
            self.refilled = now;
        }
    }
}

impl RefusedExtents {
    fn add(&mut self, key: u64) {
        if !self.keys.insert(key) {
            return;
        }
        self.oldest_first.push_back(key);
        // Keys that were taken since are in the queue, too: their number is bounded with it.
        while self.oldest_first.len() > MAX_REFUSED_EXTENTS {
            let oldest = self.oldest_first.pop_front();
            oldest.map(|key| self.keys.remove(&key));
        }
    }

    fn take(&mut self, key: u64) -> bool {
        self.keys.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXTENT: usize = 64 << 10;
    const RATE: u64 = 64 << 10;
    const NOW: Duration = Duration::from_secs(7);

    fn spent(now: Duration) -> WriteBudget {
        let budget = WriteBudget::new(RATE, now);
        let burst = (0..BURST.as_secs()).filter(|key| budget.admits(Some(1000 + key), EXTENT, now)).count();
        assert_eq!(burst as u64, BURST.as_secs(), "the burst");
        budget
    }

    #[test]
    fn extent_beyond_the_budget_is_admitted_at_its_second_miss() {
        let budget = spent(NOW);
        assert!(!budget.admits(Some(1), EXTENT, NOW));
        assert!(!budget.admits(Some(2), EXTENT, NOW));
        assert!(budget.admits(Some(1), EXTENT, NOW));
        assert!(!budget.admits(Some(1), EXTENT, NOW), "it counts once");
        assert!(budget.admits(None, EXTENT, NOW), "it needs no second miss");
    }

    #[test]
    fn time_pays_for_what_was_written_in_advance() {
        let budget = spent(NOW);
        assert!(!budget.admits(Some(1), EXTENT, NOW) && budget.admits(Some(1), EXTENT, NOW));
        let second = Duration::from_secs(1);
        assert!(!budget.admits(Some(2), EXTENT, NOW + second));
        assert!(budget.admits(Some(3), EXTENT, NOW + second * 2));
        let later = NOW + BURST * 5;
        let burst = (10..1000).filter(|key| budget.admits(Some(*key), EXTENT, later)).count();
        assert_eq!(burst as u64, BURST.as_secs(), "no more than a burst is kept");
    }

    #[test]
    fn refused_extents_are_bounded() {
        let budget = spent(NOW);
        (0..MAX_REFUSED_EXTENTS as u64 + 10).for_each(|key| {
            budget.admits(Some(key), EXTENT, NOW);
        });
        assert!(!budget.admits(Some(0), EXTENT, NOW), "it was forgotten");
        assert!(budget.admits(Some(MAX_REFUSED_EXTENTS as u64), EXTENT, NOW));
        let state = budget.state.lock();
        assert!(state.refused.keys.len() <= MAX_REFUSED_EXTENTS);
        assert!(state.refused.oldest_first.len() <= MAX_REFUSED_EXTENTS);
    }

    proptest! {
        #[test]
        fn written_bytes_are_bounded_whatever_is_missed(
            rate in 1_u64..10_000_000,
            steps in prop::collection::vec((0_u64..20, 1_usize..100_000, any::<bool>(), 0_u64..60_000), 0..300),
        ) {
            let budget = WriteBudget::new(rate, NOW);
            let (mut now, mut written) = (NOW, 0);
            for (key, bytes, is_pinned, millis) in steps {
                now += Duration::from_millis(millis);
                if budget.admits((!is_pinned).then_some(key), bytes, now) {
                    written += bytes as i128;
                }
                let paid = i128::from(rate) * (now - NOW).as_nanos().cast_signed() / 1_000_000_000;
                prop_assert!(written <= paid + 2 * i128::from(budget.burst_bytes));
            }
        }
    }
}
