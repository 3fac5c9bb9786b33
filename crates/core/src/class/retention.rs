//! Retention: for some time, an object has a higher priority in caches than its class. The priority decays to that of
//! the class. `docs/classes.md` has the rules for users, `tradewind_model::class_policy` the decay.
//!
//! It is stored as an absolute time, so that stores can keep it anywhere. Clients give and see a number of seconds.

use std::fmt;

use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};

/// The time for which an object has a higher priority: the seconds before an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    end_seconds: u64,
    period_seconds: u32,
}

impl Retention {
    /// The longest period: 3,650 days.
    pub const MAX_PERIOD_SECONDS: u32 = 3650 * 24 * 3600;
    /// The last second of 9999, as of HTTP dates.
    pub const MAX_END_SECONDS: u64 = 253_402_300_799;
    /// The most by which the clock of the server that has set an end may be ahead, as for signatures.
    const MAX_CLOCK_SKEW_SECONDS: u64 = 900;

    /// A retention of `period_seconds` that ends at `end_seconds` since 1970.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for a period of 0 or above
    /// [`MAX_PERIOD_SECONDS`](Self::MAX_PERIOD_SECONDS), and for an end above
    /// [`MAX_END_SECONDS`](Self::MAX_END_SECONDS).
    pub fn new(end_seconds: u64, period_seconds: u32) -> Result<Self> {
        if period_seconds == 0 || period_seconds > Self::MAX_PERIOD_SECONDS {
            return Err(invalid(&format!("its period is 1 to {} seconds", Self::MAX_PERIOD_SECONDS)));
        }
        if end_seconds > Self::MAX_END_SECONDS {
            return Err(invalid("it ends before the year 10000"));
        }
        Ok(Self { end_seconds, period_seconds })
    }

    /// Parses the value of `X-DSS-Retention`, a decimal number of seconds from `now` on; 0 is no retention.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for another form, and for a number above
    /// [`MAX_PERIOD_SECONDS`](Self::MAX_PERIOD_SECONDS).
    pub fn parse_seconds(header: &str, now: Timestamp) -> Result<Option<Self>> {
        match decimal(header.trim()) {
            Some(0) => Ok(None),
            Some(seconds) if seconds <= u64::from(Self::MAX_PERIOD_SECONDS) => {
                let period = u32::try_from(seconds).unwrap_or(Self::MAX_PERIOD_SECONDS);
                Self::new(seconds_since_1970(now) + seconds, period).map(Some)
            }
            _ => Err(invalid(&format!(
                "{header:?} is not a number of seconds from 0 to {}",
                Self::MAX_PERIOD_SECONDS
            ))),
        }
    }

    /// Parses the stored form, `END-SECONDS`: the end in seconds since 1970, and the period.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) for another form, and for numbers out of range.
    pub fn parse_span(text: &str) -> Result<Self> {
        let fields = text.trim().split_once('-');
        let numbers = fields.and_then(|(end, period)| Some((decimal(end)?, decimal(period)?)));
        let Some((end, period)) = numbers else {
            return Err(invalid(&format!("{text:?} is not END-SECONDS")));
        };
        Self::new(end, u32::try_from(period).unwrap_or(u32::MAX))
    }

    /// Checks that a client may set this retention at `now`: it has begun, so that it decays, and it ends within the
    /// longest period.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if it begins later.
    pub fn check_start(self, now: Timestamp) -> Result<()> {
        let latest_begin = seconds_since_1970(now) + Self::MAX_CLOCK_SKEW_SECONDS;
        if self.end_seconds > latest_begin + u64::from(self.period_seconds) {
            return Err(invalid("in END-SECONDS, the end is at most SECONDS from now"));
        }
        Ok(())
    }

    /// The end in seconds since 1970.
    #[must_use]
    pub const fn end_seconds(self) -> u64 {
        self.end_seconds
    }

    /// The seconds from the beginning to the end, at least 1.
    #[must_use]
    pub const fn period_seconds(self) -> u32 {
        self.period_seconds
    }

    /// The seconds that remain at `now`, at most the period; 0 once it has ended.
    #[must_use]
    pub fn remaining_seconds(self, now: Timestamp) -> u32 {
        let remaining = self.end_seconds.saturating_sub(seconds_since_1970(now));
        u32::try_from(remaining).unwrap_or(u32::MAX).min(self.period_seconds)
    }
}

/// Formats in the stored form, `END-SECONDS`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.end_seconds, self.period_seconds)
    }
}

fn seconds_since_1970(now: Timestamp) -> u64 {
    now.clamp_to_calendar().seconds().unsigned_abs()
}

/// Parses digits without sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn invalid(why: &str) -> Error {
    Error::for_client(Reason::InvalidArgument, format!("retention: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_900);

    #[test]
    fn seconds_end_after_now_and_zero_is_none() {
        let retention = Retention::parse_seconds(" 60 ", NOW).unwrap().unwrap();
        assert_eq!((retention.end_seconds(), retention.period_seconds()), (1060, 60));
        assert_eq!(Retention::parse_seconds("0", NOW).unwrap(), None);
        let max_period = Retention::parse_seconds("315360000", NOW).unwrap().unwrap();
        assert_eq!(max_period.period_seconds(), Retention::MAX_PERIOD_SECONDS);
    }

    #[test]
    fn illegal_seconds_are_rejected() {
        for bad in ["", "-1", "+1", "1.5", "x", "315360001", "99999999999999999999", "1,2"] {
            let error = Retention::parse_seconds(bad, NOW).unwrap_err();
            assert_eq!(error.reason(), Reason::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn remaining_seconds_decrease_to_zero() {
        let retention = Retention::new(1060, 60).unwrap();
        let remaining = |seconds: i64| retention.remaining_seconds(Timestamp::from_millis(seconds * 1000));
        assert_eq!([900, 1000, 1001, 1059, 1060, 2000].map(remaining), [60, 60, 59, 1, 0, 0]);
    }

    #[test]
    fn stored_form_round_trips_and_rejects_others() {
        let retention = Retention::new(1060, 60).unwrap();
        assert_eq!(retention.to_string(), "1060-60");
        assert_eq!(Retention::parse_span("1060-60").unwrap(), retention);
        for bad in ["", "1060", "1060-0", "-60", "1060-", "1060-60-1", "253402300800-1", "1-315360001"] {
            assert!(Retention::parse_span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn retention_that_begins_later_is_rejected() {
        for period in [1, 60, Retention::MAX_PERIOD_SECONDS] {
            let latest = 1000 + u64::from(period) + 900;
            assert!(Retention::new(latest, period).unwrap().check_start(NOW).is_ok());
            assert!(Retention::new(latest + 1, period).unwrap().check_start(NOW).is_err());
        }
    }
}
