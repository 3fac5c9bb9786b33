//! Estimates the offsets of the agents' clocks from request-response exchanges, like NTP. The agent read its clock at
//! some time within the exchange. Assuming the middle, the error is at most half the RTT, so the shortest exchange is
//! used.

use std::time::Duration;

/// One time exchange: the coordinator's clock at the request and at the response, and the agent's clock, in
/// nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockExchange {
    pub sent: u64,
    pub agent_time: u64,
    pub received: u64,
}

/// The offset of an agent's clock from the coordinator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// The agent's clock minus the coordinator's, in nanoseconds.
    offset: i128,
    /// Maximum error of the offset, in nanoseconds.
    max_error: u64,
}

impl ClockOffset {
    /// Estimates the offset; `None` without exchanges.
    pub fn from_exchanges(exchanges: &[ClockExchange]) -> Option<Self> {
        let rtt = |exchange: &ClockExchange| exchange.received.saturating_sub(exchange.sent);
        let shortest = exchanges.iter().min_by_key(|exchange| rtt(exchange))?;
        // One more nanosecond, because the division rounds down.
        let max_error = rtt(shortest) / 2 + 1;
        let middle = i128::from(shortest.sent) + i128::from(rtt(shortest) / 2);
        Some(Self { offset: i128::from(shortest.agent_time) - middle, max_error })
    }

    /// Converts a time of the coordinator's clock to the agent's.
    pub fn to_agent_time(self, local_time: u64) -> u64 {
        u64::try_from((i128::from(local_time) + self.offset).max(0)).unwrap_or(u64::MAX)
    }

    /// Converts a time of the agent's clock to the coordinator's: the earliest and the latest possible time.
    fn to_local_range(self, agent_time: u64) -> (i128, i128) {
        let middle = i128::from(agent_time) - self.offset;
        (middle - i128::from(self.max_error), middle + i128::from(self.max_error))
    }

    /// Maximum error of the offset.
    pub const fn max_error(&self) -> Duration {
        Duration::from_nanos(self.max_error)
    }
}

/// The maximum possible difference between times of several clocks.
pub fn max_skew(moments: impl IntoIterator<Item = (ClockOffset, u64)>) -> Duration {
    let ranges: Vec<(i128, i128)> =
        moments.into_iter().map(|(clock, agent_time)| clock.to_local_range(agent_time)).collect();
    if ranges.len() < 2 {
        return Duration::ZERO;
    }
    // The latest possible time of one minus the earliest possible time of another.
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
        /// For any one-way delays, the true offset is within the error bound.
        #[test]
        fn true_offset_is_within_the_error_bound(
            offset in -1_000_000_000_i64..1_000_000_000,
            delays in proptest::collection::vec((1_u64..50_000_000, 1_u64..50_000_000), 1..10),
        ) {
            let mut now = 2_000_000_000_u64;
            let exchanges: Vec<ClockExchange> = delays.iter().map(|(there, back)| {
                let sent = now;
                let agent_time = (sent + there).checked_add_signed(offset).unwrap();
                now += there + back;
                ClockExchange { sent, agent_time, received: now }
            }).collect();
            let clock = ClockOffset::from_exchanges(&exchanges).unwrap();
            let error = clock.to_agent_time(now).abs_diff(now.checked_add_signed(offset).unwrap());
            prop_assert!(error <= clock.max_error, "{error} of {}", clock.max_error);
            let min_rtt = delays.iter().map(|(there, back)| there + back).min().unwrap();
            prop_assert_eq!(clock.max_error, min_rtt / 2 + 1);
            let exact = ClockOffset { offset: 0, max_error: 0 };
            let true_time = now.checked_add_signed(offset).unwrap();
            let skew = max_skew([(clock, true_time), (exact, now + 7_000_000)]);
            prop_assert!(skew >= Duration::from_millis(7), "{:?}", skew);
            prop_assert!(skew <= Duration::from_millis(7) + 2 * clock.max_error());
        }
    }

    #[test]
    fn offset_needs_an_exchange_and_saturates_at_zero() {
        assert_eq!(ClockOffset::from_exchanges(&[]), None);
        let clock =
            ClockOffset::from_exchanges(&[ClockExchange { sent: 10, agent_time: 0, received: 10 }]).unwrap();
        assert_eq!(clock.to_agent_time(3), 0, "a clock cannot be before its origin");
        assert_eq!(max_skew([(clock, 5)]), Duration::ZERO);
    }
}
