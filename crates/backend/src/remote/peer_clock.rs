//! The difference between a service's clock and this machine's, from the `Date` of responses. Times of objects are set by
//! the service's clock; times of files are set by this machine's.

use std::sync::atomic::{AtomicI64, Ordering};

use http::HeaderMap;
use http::header::{AGE, DATE};
use tradewind_core::Timestamp;

use super::header_fields::parse_date;

/// The resolution of `Date`.
const DATE_RESOLUTION_MS: i64 = 1000;
/// No response had a `Date`.
const UNKNOWN: i64 = i64::MIN;

/// The latest known difference of the clocks.
#[derive(Debug)]
pub(crate) struct PeerClock {
    offset_ms: AtomicI64,
}

impl Default for PeerClock {
    fn default() -> Self {
        Self { offset_ms: AtomicI64::new(UNKNOWN) }
    }
}

impl PeerClock {
    /// Records the `Date` of a response that arrived at `now`. A cache's response, which has an `Age`, is ignored.
    pub fn record(&self, headers: &HeaderMap, now: Timestamp) {
        if headers.contains_key(AGE) {
            return;
        }
        if let Ok(Some(date)) = parse_date(headers, &DATE) {
            self.offset_ms.store(offset_ms(date, now), Ordering::Relaxed);
        }
    }

    /// The service's clock minus this machine's, in milliseconds: the smallest difference that explains the latest
    /// `Date`. `None` if no response had one.
    pub fn offset_ms(&self) -> Option<i64> {
        Some(self.offset_ms.load(Ordering::Relaxed)).filter(|offset| *offset != UNKNOWN)
    }
}

/// The smallest difference by which a clock that shows the second `date` differs from one that shows `now`.
fn offset_ms(date: Timestamp, now: Timestamp) -> i64 {
    let lowest = date.millis().saturating_sub(now.millis());
    0.clamp(lowest, lowest.saturating_add(DATE_RESOLUTION_MS - 1))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn offset_is_the_smallest_that_explains_the_date() {
        let offset = |date, now| offset_ms(Timestamp::from_millis(date), Timestamp::from_millis(now));
        for (date, now, expected) in [
            (10_000, 10_000, 0),
            (10_000, 10_999, 0),
            (10_000, 9_900, 100),
            (10_000, 11_500, -501),
            (70_000, 10_300, 59_700),
            (10_000, 70_300, -59_301),
        ] {
            assert_eq!(offset(date, now), expected, "{date} at {now}");
        }
    }

    #[test]
    fn clock_is_unknown_without_a_valid_date() {
        let (clock, mut headers) = (PeerClock::default(), HeaderMap::new());
        let now = Timestamp::from_millis(784_111_777_000 - 60_000);
        clock.record(&headers, now);
        headers.insert(DATE, HeaderValue::from_static("today"));
        clock.record(&headers, now);
        headers.insert(DATE, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
        headers.insert(AGE, HeaderValue::from_static("3600"));
        clock.record(&headers, now);
        assert_eq!(clock.offset_ms(), None);
        headers.remove(AGE);
        clock.record(&headers, now);
        assert_eq!(clock.offset_ms(), Some(60_000));
    }
}
