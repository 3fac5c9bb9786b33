//! How the clocks of agents lie to the coordinator's, from questions and answers. The answer was given somewhere between the
//! two ends of the exchange: taken for its middle, the clock is known to within half of what the exchange took, and of
//! several exchanges the shortest says the most.

use std::time::Duration;

/// A question for the time, and its answer. All in nanoseconds, of the coordinator's clock and of the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    pub asked: u64,
    pub said: u64,
    pub answered: u64,
}

/// How an agent's clock lies to ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Its clock is so far ahead, in nanoseconds.
    ahead: i128,
    /// To within so many nanoseconds.
    within: u64,
}

impl Alignment {
    /// From exchanges, one at the least.
    pub fn of(exchanges: &[Exchange]) -> Option<Self> {
        let took = |exchange: &Exchange| exchange.answered.saturating_sub(exchange.asked);
        let shortest = exchanges.iter().min_by_key(|exchange| took(exchange))?;
        // Half a nanosecond that is lost counts as one more that is not known.
        let within = took(shortest) / 2 + 1;
        let middle = i128::from(shortest.asked) + i128::from(took(shortest) / 2);
        Some(Self { ahead: i128::from(shortest.said) - middle, within })
    }

    /// A moment of our clock, as the agent's says it.
    pub fn theirs(&self, ours: u64) -> u64 {
        u64::try_from((i128::from(ours) + self.ahead).max(0)).unwrap_or(u64::MAX)
    }

    /// A moment of the agent's clock: the first and the last that it can be in ours.
    fn ours(&self, theirs: u64) -> (i128, i128) {
        let middle = i128::from(theirs) - self.ahead;
        (middle - i128::from(self.within), middle + i128::from(self.within))
    }

    /// How well it is known.
    pub const fn within(&self) -> Duration {
        Duration::from_nanos(self.within)
    }
}

/// How far apart moments of several clocks may lie, at the most.
pub fn apart(moments: impl IntoIterator<Item = (Alignment, u64)>) -> Duration {
    let ranges: Vec<(i128, i128)> = moments.into_iter().map(|(clock, at)| clock.ours(at)).collect();
    if ranges.len() < 2 {
        return Duration::ZERO;
    }
    // The last that one of them can be, and the first that another can be.
    let farthest = ranges.iter().enumerate().flat_map(|(n, late)| {
        ranges.iter().enumerate().filter(move |(other, _)| *other != n).map(|(_, early)| late.1 - early.0)
    });
    let nanos = farthest.max().unwrap_or(0).max(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However long questions and answers travel, the clock is where it is said to be.
        #[test]
        fn the_true_clock_lies_within(
            ahead in -1_000_000_000_i64..1_000_000_000,
            ways in proptest::collection::vec((1_u64..50_000_000, 1_u64..50_000_000), 1..10),
        ) {
            let mut now = 2_000_000_000_u64;
            let exchanges: Vec<Exchange> = ways.iter().map(|(there, back)| {
                let asked = now;
                let said = (asked + there).checked_add_signed(ahead).unwrap();
                now += there + back;
                Exchange { asked, said, answered: now }
            }).collect();
            let clock = Alignment::of(&exchanges).unwrap();
            let off = clock.theirs(now).abs_diff(now.checked_add_signed(ahead).unwrap());
            prop_assert!(off <= clock.within, "{off} of {}", clock.within);
            let least = ways.iter().map(|(there, back)| there + back).min().unwrap();
            prop_assert_eq!(clock.within, least / 2 + 1);
            let exact = Alignment { ahead: 0, within: 0 };
            let true_moment = now.checked_add_signed(ahead).unwrap();
            let apart = apart([(clock, true_moment), (exact, now + 7_000_000)]);
            prop_assert!(apart >= Duration::from_millis(7), "{:?}", apart);
            prop_assert!(apart <= Duration::from_millis(7) + 2 * clock.within());
        }
    }

    #[test]
    fn nothing_is_known_of_a_clock_that_did_not_answer() {
        assert_eq!(Alignment::of(&[]), None);
        let clock = Alignment::of(&[Exchange { asked: 10, said: 0, answered: 10 }]).unwrap();
        assert_eq!(clock.theirs(3), 0, "a clock has no time before its origin");
        assert_eq!(apart([(clock, 5)]), Duration::ZERO);
    }
}
