//! Time as an argument. Production uses [`SystemClock`]; tests and the simulator advance a clock
//! by hand. Raw clocks are not read anywhere else.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;

/// Wall time in milliseconds since 1970 UTC, the unit of objects' times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since 1970.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, rounded down: the resolution of HTTP dates.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// The nearest time from 1970 to the end of 9999, the range of HTTP dates. Times outside of it come from a wrong
    /// clock or from another store.
    #[must_use]
    pub const fn clamp_to_calendar(self) -> Self {
        /// The last millisecond of 9999.
        const LAST_MILLIS: i64 = 253_402_300_799_999;
        match self.0 {
            ..0 => Self(0),
            0..=LAST_MILLIS => self,
            _ => Self(LAST_MILLIS),
        }
    }

    /// Converts to the standard library's type.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        let offset = Duration::from_millis(self.0.unsigned_abs());
        if self.0 >= 0 { UNIX_EPOCH + offset } else { UNIX_EPOCH - offset }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(millis(after)),
            Err(before) => Self(-millis(before.duration())),
        }
    }
}

/// A source of time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Monotonic time since an arbitrary origin of this clock.
    fn now(&self) -> Duration;

    /// Wall time.
    fn wall(&self) -> Timestamp;

    /// Resolves once `now()` is at least `until`. Dropping the future cancels the wait.
    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// A new clock as a shared trait object.
    #[must_use]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall(&self) -> Timestamp {
        SystemTime::now().into()
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        let deadline = tokio::time::Instant::from_std(self.origin + until);
        Box::pin(tokio::time::sleep_until(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_calendar_become_its_ends() {
        for (millis, nearest) in [
            (i64::MIN, 0),
            (-1, 0),
            (0, 0),
            (253_402_300_799_999, 253_402_300_799_999),
            (253_402_300_800_000, 253_402_300_799_999),
            (i64::MAX, 253_402_300_799_999),
        ] {
            assert_eq!(Timestamp::from_millis(millis).clamp_to_calendar().millis(), nearest, "{millis}");
        }
    }
}
