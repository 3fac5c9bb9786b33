//! The difference between a service's clock and this machine's, from the `Date` of responses. Times of objects are set by
//! the service's clock; times of files are set by this machine's.
//!
//! A response shows a range of differences: its `Date` is a second in which it was generated, between the request and its
//! arrival. The ranges of all responses have the true difference in common, so their intersection is narrower than the range
//! of any slow response. A proxy or cache in front of the service has another clock, or another time: its ranges disagree, and
//! are ignored unless several responses in a row confirm them.

use http::header::{AGE, DATE, VIA};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tradewind_core::Timestamp;

use super::header_fields::parse_date;

/// The resolution of `Date`.
const DATE_RESOLUTION_MS: i64 = 1000;
/// The number of responses in a row that must agree on another difference before it replaces the known one. The clock of
/// the service or of this machine was set then.
const MIN_RIVAL_RESPONSES: u32 = 3;

/// The known difference of the clocks.
#[derive(Debug, Default)]
pub(crate) struct PeerClock(Mutex<Known>);

/// A response of a service, with the times of this machine's clock at which its request was sent and it arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatedResponse<'a> {
    pub status: StatusCode,
    pub headers: &'a HeaderMap,
    pub sent: Timestamp,
    pub arrived: Timestamp,
}

/// The service's clock minus this machine's, in milliseconds: a range that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetRange {
    lowest: i64,
    highest: i64,
}

#[derive(Debug, Default)]
struct Known {
    range: Option<OffsetRange>,
    rival: Option<Rival>,
}

/// A range that disagrees with the known one.
#[derive(Debug, Clone, Copy)]
struct Rival {
    range: OffsetRange,
    responses: u32,
}

impl PeerClock {
    /// Records the `Date` of a response. An error may be of a proxy, and a response with an `Age` is of a cache: neither
    /// is counted.
    pub fn record(&self, response: DatedResponse<'_>) {
        if let Some(range) = OffsetRange::from_response(response) {
            self.0.lock().add(range);
        }
    }

    /// The service's clock minus this machine's, in milliseconds: the smallest difference that explains the responses.
    /// `None` if no response had a `Date`.
    pub fn offset_ms(&self) -> Option<i64> {
        self.0.lock().range.map(|range| 0.clamp(range.lowest, range.highest))
    }
}

impl Known {
    fn add(&mut self, range: OffsetRange) {
        let Some(known) = self.range else {
            self.range = Some(range);
            return;
        };
        if let Some(common) = known.intersect(range) {
            *self = Self { range: Some(common), rival: None };
            return;
        }
        let rival = match self.rival.and_then(|rival| Some((rival.range.intersect(range)?, rival.responses)))
        {
            Some((range, responses)) => Rival { range, responses: responses + 1 },
            None => Rival { range, responses: 1 },
        };
        *self = if rival.responses < MIN_RIVAL_RESPONSES {
            Self { range: self.range, rival: Some(rival) }
        } else {
            Self { range: Some(rival.range), rival: None }
        };
    }
}

impl OffsetRange {
    /// The range that a response shows; `None` if the response is not known to be of the service.
    fn from_response(response: DatedResponse<'_>) -> Option<Self> {
        let DatedResponse { status, headers, sent, arrived } = response;
        let is_of_service = status.is_success() || status == StatusCode::NOT_MODIFIED;
        let age =
            headers.get(AGE).map(|age| age.to_str().ok().and_then(|age| age.trim().parse::<u64>().ok()));
        if !is_of_service || !matches!(age, None | Some(Some(0))) {
            return None;
        }
        let date = parse_date(headers, &DATE).ok()??.millis();
        let lowest = date.saturating_sub(arrived.millis());
        // A cache that does not say so may be behind a proxy: its response can be old, but not of the future.
        let may_be_cached = headers.contains_key(VIA) && age.is_none();
        let highest = match may_be_cached {
            true => i64::MAX,
            false => date.saturating_add(DATE_RESOLUTION_MS - 1).saturating_sub(sent.millis()).max(lowest),
        };
        Some(Self { lowest, highest })
    }

    fn intersect(self, other: Self) -> Option<Self> {
        let (lowest, highest) = (self.lowest.max(other.lowest), self.highest.min(other.highest));
        (lowest <= highest).then_some(Self { lowest, highest })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOON: i64 = 784_111_777_000;

    /// Records a response with `Date` [`NOON`], sent and received at these times after it.
    fn record(clock: &PeerClock, sent: i64, arrived: i64) {
        record_with(clock, StatusCode::OK, &[("date", "Sun, 06 Nov 1994 08:49:37 GMT")], [sent, arrived]);
    }

    fn record_with(
        clock: &PeerClock,
        status: StatusCode,
        fields: &[(&'static str, &'static str)],
        times: [i64; 2],
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let [sent, arrived] = times.map(|time| Timestamp::from_millis(NOON + time));
        clock.record(DatedResponse { status, headers: &headers, sent, arrived });
    }

    #[test]
    fn offset_is_the_smallest_that_explains_the_date() {
        for (sent, arrived, expected) in [
            (0, 0, 0),
            (999, 999, 0),
            (-100, -100, 100),
            (1500, 1500, -501),
            (-59_700, -59_700, 59_700),
            (60_300, 60_300, -59_301),
            // It was generated before it arrived.
            (-100, 4000, 0),
            (1500, 9000, -501),
        ] {
            let clock = PeerClock::default();
            record(&clock, sent, arrived);
            assert_eq!(clock.offset_ms(), Some(expected), "{sent} {arrived}");
        }
    }

    #[test]
    fn responses_narrow_the_offset() {
        let clock = PeerClock::default();
        record(&clock, -60_000, -20_000);
        assert_eq!(clock.offset_ms(), Some(20_000));
        record(&clock, -60_000, -59_950);
        record(&clock, -60_000, -10_000);
        assert_eq!(clock.offset_ms(), Some(59_950));
    }

    #[test]
    fn clock_is_unknown_without_a_date_of_the_service() {
        let (clock, date) = (PeerClock::default(), ("date", "Sun, 06 Nov 1994 08:49:37 GMT"));
        let times = [-60_000, -60_000];
        for (status, fields) in [
            (200, &[][..]),
            (200, &[("date", "today")]),
            (200, &[date, ("age", "3600")]),
            (200, &[date, ("age", "old")]),
            (403, &[date]),
            (502, &[date]),
            (503, &[date, ("via", "1.1 proxy")]),
        ] {
            record_with(&clock, StatusCode::from_u16(status).unwrap(), fields, times);
            assert_eq!(clock.offset_ms(), None, "{status} {fields:?}");
        }
        record_with(&clock, StatusCode::OK, &[date, ("age", "0"), ("via", "1.1 proxy")], times);
        assert_eq!(clock.offset_ms(), Some(60_000));
    }

    #[test]
    fn response_through_a_proxy_may_be_old() {
        let via = [("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("via", "1.1 proxy")];
        let clock = PeerClock::default();
        record_with(&clock, StatusCode::OK, &via, [3_600_000, 3_600_000]);
        assert_eq!(clock.offset_ms(), Some(0));
        record_with(&clock, StatusCode::OK, &via, [-60_000, -60_000]);
        assert_eq!(clock.offset_ms(), Some(60_000));
    }

    #[test]
    fn single_responses_with_another_clock_are_ignored() {
        let clock = PeerClock::default();
        record(&clock, -60_000, -60_000);
        for _ in 0..3 {
            record(&clock, 3_600_000, 3_600_000);
            record(&clock, 7_200_000, 7_200_000);
            assert_eq!(clock.offset_ms(), Some(60_000));
            record(&clock, -60_500, -60_000);
        }
        // The clock of this machine was set.
        for expected in [60_000, 60_000, 0] {
            record(&clock, 0, 10);
            assert_eq!(clock.offset_ms(), Some(expected));
        }
    }
}
