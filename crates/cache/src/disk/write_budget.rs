//! The budget of bytes written to the SSD, which saves its flash: a token bucket with a burst of some minutes.
//!
//! Beyond the budget, an extent is stored only if it was refused before, and is missed again while it is remembered:
//! its second miss. Such extents are paid for in advance, by one burst at most. So the bytes written in any time `t`
//! are at most the rate times `t`, and two bursts. What is admitted and then not written is refunded.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

/// Unused bytes are kept for this long.
const BURST: Duration = Duration::from_secs(300);

/// The smallest burst in bytes: some extents.
const MIN_BURST_BYTES: i64 = 1 << 20;

/// Keys of a kind that are remembered.
const MAX_RECENT_KEYS: usize = 1 << 16;

/// The kind of an extent. Its key is the same each time that it is read from the backing store.
#[derive(Debug, Clone, Copy)]
pub(super) enum WriteKind {
    /// It needs no second miss.
    Pinned,
    /// Data, or a head with the data of a small object.
    Missed {
        key: u64,
        /// The key of the head of this data.
        head: Option<u64>,
    },
    /// A head whose data is apart. It may be written beyond the budget after its data, or at its second miss.
    Head(u64),
}

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
    /// Extents that were refused.
    refused: RecentKeys,
    /// Heads of data that was admitted.
    heads: RecentKeys,
}

/// The latest keys of a kind.
#[derive(Debug, Default)]
struct RecentKeys {
    keys: HashSet<u64>,
    oldest_first: VecDeque<u64>,
}

impl WriteBudget {
    /// A budget with a full burst.
    pub fn new(bytes_per_second: u64, now: Duration) -> Self {
        let burst = u128::from(bytes_per_second).saturating_mul(u128::from(BURST.as_secs()));
        let burst_bytes = i64::try_from(burst).unwrap_or(i64::MAX / 4).clamp(MIN_BURST_BYTES, i64::MAX / 4);
        let state = BudgetState {
            tokens: burst_bytes,
            refilled: now,
            refused: RecentKeys::default(),
            heads: RecentKeys::default(),
        };
        Self { bytes_per_second, burst_bytes, state: Mutex::new(state) }
    }

    /// Takes the bytes of an extent from the budget. Returns false if it is not to be written.
    pub fn admits(&self, kind: WriteKind, bytes: usize, now: Duration) -> bool {
        let bytes = signed(bytes);
        let state = &mut *self.state.lock();
        state.refill(self.bytes_per_second, self.burst_bytes, now);
        let is_in_budget = state.tokens >= bytes;
        let is_in_debt_limit = state.tokens - bytes >= -self.burst_bytes;
        let is_admitted = is_in_budget || is_in_debt_limit && state.is_worth_debt(kind);
        if is_admitted {
            state.tokens -= bytes;
        }
        match kind {
            WriteKind::Missed { head: Some(head), .. } if is_admitted => state.heads.add(head),
            WriteKind::Missed { key, .. } | WriteKind::Head(key) if !is_admitted => state.refused.add(key),
            _ => {}
        }
        is_admitted
    }

    /// Returns the bytes of an admitted extent that was not written.
    pub fn refund(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.tokens = (state.tokens + signed(bytes)).min(self.burst_bytes);
    }

    /// The bytes that may be written now, and not in advance.
    pub fn available_bytes(&self, now: Duration) -> u64 {
        let state = &mut *self.state.lock();
        state.refill(self.bytes_per_second, self.burst_bytes, now);
        u64::try_from(state.tokens).unwrap_or(0)
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}

impl BudgetState {
    /// True if an extent is written in advance.
    fn is_worth_debt(&mut self, kind: WriteKind) -> bool {
        match kind {
            WriteKind::Pinned => true,
            WriteKind::Missed { key, .. } => self.refused.take(key),
            // A head without its data is of little use, and data without its head is lost when memory is short.
            WriteKind::Head(key) => self.heads.take(key) || self.refused.take(key),
        }
    }

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

impl RecentKeys {
    fn add(&mut self, key: u64) {
        if !self.keys.insert(key) {
            return;
        }
        self.oldest_first.push_back(key);
        // Keys that were taken since are in the queue, too: their number is bounded with it.
        while self.oldest_first.len() > MAX_RECENT_KEYS {
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
        let burst = (0..BURST.as_secs()).filter(|key| budget.admits(missed(1000 + key), EXTENT, now)).count();
        assert_eq!(burst as u64, BURST.as_secs(), "the burst");
        budget
    }

    fn missed(key: u64) -> WriteKind {
        WriteKind::Missed { key, head: None }
    }

    #[test]
    fn heads_without_data_leave_the_debt_to_second_misses() {
        const HEAD: usize = 4 << 10;
        let budget = spent(NOW);
        assert!(!budget.admits(missed(1), EXTENT, NOW));
        let heads = (10_000..30_000).filter(|key| budget.admits(WriteKind::Head(*key), HEAD, NOW)).count();
        assert_eq!(heads, 0);
        assert!(budget.admits(WriteKind::Missed { key: 1, head: Some(7) }, EXTENT, NOW), "a second miss");
        assert!(budget.admits(WriteKind::Head(7), HEAD, NOW), "the head follows its data");
        assert!(!budget.admits(WriteKind::Head(8), HEAD, NOW));
        assert!(budget.admits(WriteKind::Head(8), HEAD, NOW), "the second miss of a head");
    }

    #[test]
    fn refund_pays_for_another_extent_and_no_more_than_a_burst() {
        let budget = spent(NOW);
        assert!(!budget.admits(missed(1), EXTENT, NOW));
        budget.refund(EXTENT);
        assert_eq!(budget.available_bytes(NOW), EXTENT as u64);
        assert!(budget.admits(missed(2), EXTENT, NOW) && !budget.admits(missed(3), EXTENT, NOW));
        budget.refund(usize::MAX);
        assert_eq!(budget.available_bytes(NOW), budget.burst_bytes as u64);
    }

    #[test]
    fn extent_beyond_the_budget_is_admitted_at_its_second_miss() {
        let budget = spent(NOW);
        assert!(!budget.admits(missed(1), EXTENT, NOW));
        assert!(!budget.admits(missed(2), EXTENT, NOW));
        assert!(budget.admits(missed(1), EXTENT, NOW));
        assert!(!budget.admits(missed(1), EXTENT, NOW), "it counts once");
        assert!(budget.admits(WriteKind::Pinned, EXTENT, NOW), "it needs no second miss");
    }

    #[test]
    fn time_pays_for_what_was_written_in_advance() {
        let budget = spent(NOW);
        assert!(!budget.admits(missed(1), EXTENT, NOW) && budget.admits(missed(1), EXTENT, NOW));
        let second = Duration::from_secs(1);
        assert!(!budget.admits(missed(2), EXTENT, NOW + second));
        assert!(budget.admits(missed(3), EXTENT, NOW + second * 2));
        let later = NOW + BURST * 5;
        let burst = (10..1000).filter(|key| budget.admits(missed(*key), EXTENT, later)).count();
        assert_eq!(burst as u64, BURST.as_secs(), "no more than a burst is kept");
    }

    #[test]
    fn refused_extents_are_bounded() {
        let budget = spent(NOW);
        (0..MAX_RECENT_KEYS as u64 + 10).for_each(|key| {
            budget.admits(missed(key), EXTENT, NOW);
        });
        assert!(!budget.admits(missed(0), EXTENT, NOW), "it was forgotten");
        assert!(budget.admits(missed(MAX_RECENT_KEYS as u64), EXTENT, NOW));
        let state = budget.state.lock();
        assert!(state.refused.keys.len() <= MAX_RECENT_KEYS);
        assert!(state.refused.oldest_first.len() <= MAX_RECENT_KEYS);
    }

    proptest! {
        #[test]
        fn written_bytes_are_bounded_whatever_is_missed(
            rate in 1_u64..10_000_000,
            steps in prop::collection::vec((0_u64..20, 1_usize..100_000, 0_u8..4, 0_u64..60_000), 0..300),
        ) {
            let budget = WriteBudget::new(rate, NOW);
            let (mut now, mut written) = (NOW, 0);
            for (key, bytes, kind, millis) in steps {
                now += Duration::from_millis(millis);
                let (kind, is_written) = match kind {
                    0 => (WriteKind::Pinned, true),
                    1 => (WriteKind::Head(key), true),
                    2 => (missed(key), false),
                    _ => (WriteKind::Missed { key, head: Some(key) }, true),
                };
                if budget.admits(kind, bytes, now) {
                    if is_written {
                        written += bytes as i128;
                    } else {
                        budget.refund(bytes);
                    }
                }
                let paid = i128::from(rate) * (now - NOW).as_nanos().cast_signed() / 1_000_000_000;
                prop_assert!(written <= paid + 2 * i128::from(budget.burst_bytes));
            }
        }
    }
}
