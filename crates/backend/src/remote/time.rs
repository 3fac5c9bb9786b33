//! Timestamps in S3's XML: RFC 3339 in UTC.

use tradewind_core::Timestamp;
use tradewind_wire::sigv4::AmzDate;

/// Parses `2026-01-02T03:04:05.678Z`, with or without a fraction; further digits than milliseconds are ignored.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = match text.strip_suffix('Z')?.split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text.strip_suffix('Z')?, ""),
    };
    let basic: String = whole.chars().filter(|c| !matches!(c, '-' | ':')).chain(['Z']).collect();
    let seconds = AmzDate::parse(basic.as_bytes())?.seconds();
    let millis = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(3)
        .try_fold(0_i64, |n, digit| digit.is_ascii_digit().then(|| n * 10 + i64::from(digit - b'0')))?;
    Some(Timestamp::from_millis(seconds * 1000 + millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_time_accepts_an_optional_fraction() {
        let millis = |text| parse_time(text).map(Timestamp::millis);
        assert_eq!(millis("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(millis("1970-01-01T00:00:01.5Z"), Some(1500));
        assert_eq!(millis("1970-01-01T00:00:01.123456Z"), Some(1123));
        for bad in ["", "1970-01-01", "1970-01-01T00:00:01", "1970-13-01T00:00:01Z", "1970-01-01T00:00:01.xZ"]
        {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }
}
