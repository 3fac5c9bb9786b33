//! Dates of HTTP headers (RFC 9110, section 5.6.7), for any time. The library that formats them panics on times out of
//! range, so it is called only here: `clippy.toml` forbids it everywhere else.

use tradewind_core::Timestamp;

/// Formats a time for HTTP, in whole seconds: `Sun, 06 Nov 1994 08:49:37 GMT`. A time before 1970 or after 9999 becomes
/// the nearest one in that range.
#[must_use]
pub fn http_date(time: Timestamp) -> String {
    #[expect(clippy::disallowed_methods, reason = "the time is clamped to the valid range")]
    httpdate::fmt_http_date(time.clamp_to_calendar().to_system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_has_a_date() {
        const FIRST: &str = "Thu, 01 Jan 1970 00:00:00 GMT";
        const LAST: &str = "Fri, 31 Dec 9999 23:59:59 GMT";
        for (millis, date) in [
            (i64::MIN, FIRST),
            (-1, FIRST),
            (0, FIRST),
            (784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (253_402_300_799_999, LAST),
            (253_402_300_800_000, LAST),
            (i64::MAX, LAST),
        ] {
            assert_eq!(http_date(Timestamp::from_millis(millis)), date, "{millis}");
        }
    }
}
