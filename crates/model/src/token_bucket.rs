//! A token bucket that limits bytes per second. It stores the time from which on tokens are available again (the
//! "virtual scheduling" of ITU-T I.371), so that a reservation is one addition and no timer refills it.

use std::time::Duration;

/// Unused tokens are kept for this long: late timers lose nothing, and bursts stay short.
const MAX_BURST: Duration = Duration::from_millis(100);
/// A quantum is the bytes of 1/10 s, within the bounds of [`TokenBucket::quantum_bytes`].
const QUANTA_PER_SECOND: u64 = 10;
/// Minimum quantum: a smaller one costs more to send than it smooths.
const MIN_QUANTUM_BYTES: u64 = 8 << 10;
/// Minimum rate per request: a store aborts a request that is silent for about 20 s.
const MIN_REQUEST_BYTES_PER_SECOND: u64 = 16 << 10;

/// The limit, and the tokens used.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    bytes_per_second: u64,
    /// The time at which all bytes let through so far are paid for.
    paid_until: Duration,
}

impl TokenBucket {
    /// A limit that applies from `now` on, of at least 1 byte per second.
    #[must_use]
    pub fn new(bytes_per_second: u64, now: Duration) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid_until: now }
    }

    /// The time at which these bytes may pass. Reservations are granted in order of the calls, and each waits only for
    /// those before it. In any time `t`, at most the limit times `t` + 100 ms pass, plus one reservation.
    pub fn reserve(&mut self, bytes: u64, now: Duration) -> Duration {
        let start = self.paid_until.max(now.saturating_sub(MAX_BURST));
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second));
        self.paid_until =
            start.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        start
    }

    /// The bytes to hand over at once: those of 100 ms, at most `max_bytes`.
    #[must_use]
    pub fn quantum_bytes(bytes_per_second: u64, max_bytes: u64) -> u64 {
        (bytes_per_second / QUANTA_PER_SECOND).clamp(MIN_QUANTUM_BYTES.min(max_bytes), max_bytes)
    }

    /// Concurrent requests under the limit, at most `max_requests`: each must make visible progress.
    #[must_use]
    pub fn max_concurrency(bytes_per_second: u64, max_requests: usize) -> usize {
        let requests = usize::try_from(bytes_per_second / MIN_REQUEST_BYTES_PER_SECOND).unwrap_or(usize::MAX);
        requests.clamp(1, max_requests.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn reservations_are_spaced_by_the_rate() {
        let mut pace = TokenBucket::new(1000, SECOND);
        let turns: Vec<u128> = (0..4).map(|_| pace.reserve(500, SECOND).as_millis()).collect();
        assert_eq!(turns, [1000, 1500, 2000, 2500]);
    }

    #[test]
    fn unused_tokens_are_kept_for_100_ms_only() {
        let mut pace = TokenBucket::new(1000, Duration::ZERO);
        let now = 10 * SECOND;
        let turns: Vec<u128> = (0..4).map(|_| pace.reserve(50, now).as_millis()).collect();
        assert_eq!(turns, [9900, 9950, 10_000, 10_050]);
    }

    #[test]
    fn low_limits_give_small_quanta_and_few_requests() {
        let at = |rate| (TokenBucket::quantum_bytes(rate, 128 << 10), TokenBucket::max_concurrency(rate, 32));
        assert_eq!(at(16 << 10), (8 << 10, 1));
        assert_eq!(at(64 << 10), (8 << 10, 4));
        assert_eq!(at(512 << 10), ((512 << 10) / 10, 32));
        assert_eq!(at(1 << 30), (128 << 10, 32));
        assert_eq!(at(0), (8 << 10, 1));
        assert_eq!(TokenBucket::quantum_bytes(1, 100), 100);
    }

    proptest! {
        /// For any sizes and delays of the reservations, no window of time exceeds the limit.
        #[test]
        fn no_time_window_exceeds_the_limit(
            rate in 1_u64..10_000_000,
            asked in prop::collection::vec((1_u64..200_000, 0_u64..300), 1..60),
        ) {
            let (mut pace, mut now, mut passed) = (TokenBucket::new(rate, Duration::ZERO), Duration::ZERO, Vec::new());
            for (bytes, later) in asked {
                now += Duration::from_millis(later);
                let turn = pace.reserve(bytes, now).max(now);
                passed.push((turn, bytes));
            }
            for (first, (from, _)) in passed.iter().enumerate() {
                let (mut sum, mut largest) = (0_u64, 0);
                for (at, bytes) in &passed[first..] {
                    sum += bytes;
                    largest = largest.max(*bytes);
                    let allowed = (*at - *from + MAX_BURST).as_secs_f64() * rate as f64 + largest as f64;
                    prop_assert!(sum as f64 <= allowed + 1.0, "{sum} of {allowed} at {at:?}");
                }
            }
        }

        #[test]
        fn full_limit_is_usable_with_late_timers(rate in 100_000_u64..10_000_000, piece in 1_000_u64..100_000) {
            let (mut pace, mut now, mut sum) = (TokenBucket::new(rate, Duration::ZERO), Duration::ZERO, 0);
            while now < 5 * SECOND {
                // Timers fire 1 ms late.
                now = now.max(pace.reserve(piece, now) + Duration::from_millis(1));
                sum += piece;
            }
            // The last reservation has just started.
            let used = (sum - piece) as f64 / now.as_secs_f64() / rate as f64;
            prop_assert!((0.95..=1.05).contains(&used), "{used}");
        }
    }
}
