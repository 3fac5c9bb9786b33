//! Connections that do not authenticate: counted, and logged at most once a minute. A scanner must not fill the log.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the log.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The count of strangers.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    total: u64,
    /// Strangers since the last line of the log, and the last one of them.
    unlogged: u64,
    last: String,
    /// The time from which another line may follow.
    quiet_until: Option<Instant>,
}

impl Strangers {
    /// Counts a stranger. Returns a line for the log if none was due within the last minute. Then the caller calls
    /// [`Self::flush`] after each [`LOG_INTERVAL`], until that returns nothing.
    pub fn record(&self, now: Instant, peer: IpAddr, error: &str) -> Option<String> {
        let mut state = self.lock();
        state.total += 1;
        if state.quiet_until.is_some() {
            state.unlogged += 1;
            state.last = format!("{peer}: {error}");
            return None;
        }
        state.quiet_until = Some(now + LOG_INTERVAL);
        Some(format!("a stranger was rejected: {peer}: {error}"))
    }

    /// Ends a minute. Returns a line for the log if there were strangers in it.
    pub fn flush(&self, now: Instant) -> Option<String> {
        let mut state = self.lock();
        if state.unlogged == 0 {
            state.quiet_until = None;
            return None;
        }
        state.quiet_until = Some(now + LOG_INTERVAL);
        let count = std::mem::take(&mut state.unlogged);
        let (last, total) = (std::mem::take(&mut state.last), state.total);
        Some(format!(
            "{count} more strangers were rejected within a minute, the last one {last}; {total} in total"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_counted_and_logged_once_a_minute() {
        let strangers = Strangers::default();
        let peer = IpAddr::from([10, 0, 0, 9]);
        let start = Instant::now();
        let first = strangers.record(start, peer, "no key").unwrap();
        assert_eq!(first, "a stranger was rejected: 10.0.0.9: no key");
        for second in 1..50 {
            let line = strangers.record(start + Duration::from_secs(second), peer, "garbage");
            assert_eq!(line, None, "{second}");
        }
        let minute = strangers.flush(start + LOG_INTERVAL).unwrap();
        assert_eq!(
            minute,
            "49 more strangers were rejected within a minute, the last one 10.0.0.9: garbage; 50 in total"
        );
        assert_eq!(
            strangers.record(start + LOG_INTERVAL, peer, "garbage"),
            None,
            "a line was logged just now"
        );
        assert!(strangers.flush(start + 2 * LOG_INTERVAL).unwrap().starts_with("1 more"));
        assert_eq!(strangers.flush(start + 3 * LOG_INTERVAL), None);
        assert!(strangers.record(start + 3 * LOG_INTERVAL, peer, "no key").is_some(), "after a quiet minute");
    }
}
