//! The date of HTTP headers (RFC 9110, section 5.6.7), of any time at all. The library that writes it panics on times that it
//! cannot say, so it is called from here only: `clippy.toml` refuses it everywhere else.

use tradewind_core::Timestamp;

/// A time as HTTP writes it, to the second: `Sun, 06 Nov 1994 08:49:37 GMT`. A time before 1970 or after 9999 is
/// written as the nearest that HTTP can say.
#[must_use]
pub fn http_date(time: Timestamp) -> String {
    #[expect(clippy::disallowed_methods, reason = "within what it can say")]
    httpdate::fmt_http_date(time.within_calendar().to_system_time())
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
