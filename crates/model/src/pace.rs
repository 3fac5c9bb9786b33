//! A limit on bytes per second: when the next bytes may pass. A token bucket, kept as the moment from which on it has
//! tokens again (the "virtual scheduling" of ITU-T I.371), so that a turn is one addition and nobody has to refill it.

use std::time::Duration;

/// What was not used may be made up for as long as this: a timer that fires late loses nothing, and a burst is short.
const BURST: Duration = Duration::from_millis(100);
/// Bytes that pass at once are those of so long a time, within the bounds of [`Pace::piece`].
const PIECES_PER_SECOND: u64 = 10;
/// A piece is no smaller: what is smaller costs more to send than it smoothes.
const LEAST_PIECE: u64 = 8 << 10;
/// A request gets so many bytes a second at the least: a store ends one of which it hears nothing for some 20 seconds.
const LEAST_OF_ONE: u64 = 16 << 10;

/// The limit, and how much of it is used up.
#[derive(Debug, Clone)]
pub struct Pace {
    bytes_per_second: u64,
    /// When everything that was let pass is paid for.
    paid: Duration,
}

impl Pace {
    /// A limit that counts from `now` on; none is lower than a byte a second.
    #[must_use]
    pub fn new(bytes_per_second: u64, now: Duration) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid: now }
    }

    /// When these bytes may pass. Turns are given in the order in which they are asked for: nobody waits for more than
    /// what was asked for before. In any time `t`, no more pass than the limit times `t` and 100 ms, and one turn's.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let turn = self.paid.max(now.saturating_sub(BURST));
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second));
        self.paid = turn.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        turn
    }

    /// Bytes that are best handed over at once, `most` at the most: those of a tenth of a second.
    #[must_use]
    pub fn piece(bytes_per_second: u64, most: u64) -> u64 {
        (bytes_per_second / PIECES_PER_SECOND).clamp(LEAST_PIECE.min(most), most)
    }

    /// Requests at a time under the limit, `most` at the most: each must go on visibly.
    #[must_use]
    pub fn requests(bytes_per_second: u64, most: usize) -> usize {
        usize::try_from(bytes_per_second / LEAST_OF_ONE).unwrap_or(usize::MAX).clamp(1, most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn turns_come_one_after_the_other() {
        let mut pace = Pace::new(1000, SECOND);
        let turns: Vec<u128> = (0..4).map(|_| pace.take(500, SECOND).as_millis()).collect();
        assert_eq!(turns, [1000, 1500, 2000, 2500]);
    }

    #[test]
    fn what_was_not_used_is_lost_but_for_a_moment() {
        let mut pace = Pace::new(1000, Duration::ZERO);
        let now = 10 * SECOND;
        let turns: Vec<u128> = (0..4).map(|_| pace.take(50, now).as_millis()).collect();
        assert_eq!(turns, [9900, 9950, 10_000, 10_050]);
    }

    #[test]
    fn slow_limits_mean_small_pieces_and_few_requests() {
        let at = |rate| (Pace::piece(rate, 128 << 10), Pace::requests(rate, 32));
        assert_eq!(at(16 << 10), (8 << 10, 1));
        assert_eq!(at(64 << 10), (8 << 10, 4));
        assert_eq!(at(512 << 10), ((512 << 10) / 10, 32));
        assert_eq!(at(1 << 30), (128 << 10, 32));
        assert_eq!(at(0), (8 << 10, 1));
        assert_eq!(Pace::piece(1, 100), 100);
    }

    proptest! {
        /// Whoever asks for how much, and however late: no window of time sees more than the limit.
        #[test]
        fn no_time_sees_more_than_the_limit(
            rate in 1_u64..10_000_000,
            asked in prop::collection::vec((1_u64..200_000, 0_u64..300), 1..60),
        ) {
            let (mut pace, mut now, mut passed) = (Pace::new(rate, Duration::ZERO), Duration::ZERO, Vec::new());
            for (bytes, later) in asked {
                now += Duration::from_millis(later);
                let turn = pace.take(bytes, now).max(now);
                passed.push((turn, bytes));
            }
            for (first, (from, _)) in passed.iter().enumerate() {
                let (mut sum, mut largest) = (0_u64, 0);
                for (at, bytes) in &passed[first..] {
                    sum += bytes;
                    largest = largest.max(*bytes);
                    let allowed = (*at - *from + BURST).as_secs_f64() * rate as f64 + largest as f64;
                    prop_assert!(sum as f64 <= allowed + 1.0, "{sum} of {allowed} at {at:?}");
                }
            }
        }

        #[test]
        fn all_of_the_limit_can_be_used(rate in 100_000_u64..10_000_000, piece in 1_000_u64..100_000) {
            let (mut pace, mut now, mut sum) = (Pace::new(rate, Duration::ZERO), Duration::ZERO, 0);
            while now < 5 * SECOND {
                // Timers are late.
                now = now.max(pace.take(piece, now) + Duration::from_millis(1));
                sum += piece;
            }
            // The last one has just begun.
            let used = (sum - piece) as f64 / now.as_secs_f64() / rate as f64;
            prop_assert!((0.95..=1.05).contains(&used), "{used}");
        }
    }
}
