//! Expiration times of credentials: RFC 3339, as written by programs and `aws configure export-credentials`.

use tradewind_core::Timestamp;
use tradewind_wire::sigv4::AmzDate;

/// An example of the format, for messages.
pub(super) const EXAMPLE: &str = "2026-01-02T03:04:05Z";

/// Parses `2026-01-02T03:04:05Z`, also with a fraction or an offset such as `+01:00`. A fraction is truncated, so that
/// the time is never too late.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let (local, offset_minutes) = match text.strip_suffix(['Z', 'z']) {
        Some(local) => (local, 0),
        None => split_offset(text)?,
    };
    let (whole, fraction) = local.split_once('.').unwrap_or((local, "0"));
    let bytes = whole.as_bytes();
    let has_marks =
        [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')].iter().all(|(at, c)| bytes.get(*at) == Some(c));
    if bytes.len() != 19 || !has_marks || fraction.is_empty() || !fraction.bytes().all(|c| c.is_ascii_digit())
    {
        return None;
    }
    let basic: Vec<u8> = bytes.iter().copied().filter(|c| !b"-:".contains(c)).chain([b'Z']).collect();
    let seconds = AmzDate::parse(&basic)?.seconds() - offset_minutes * 60;
    Some(Timestamp::from_millis(seconds * 1000))
}

/// Splits off the `+hh:mm` at the end, in minutes.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let sign = match offset.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |text: &str, below: i64| {
        let is_plain = text.len() == 2 && text.bytes().all(|c| c.is_ascii_digit());
        text.parse::<i64>().ok().filter(|n| is_plain && *n < below)
    };
    Some((local, sign * (number(hours, 24)? * 60 + number(minutes, 60)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parse_accepts_fractions_and_offsets() {
        let millis = |text| parse(text).map(Timestamp::millis);
        assert_eq!(millis("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(millis("1970-01-01T00:00:01.987Z"), Some(1000));
        assert_eq!(millis("1970-01-01T01:30:00+01:30"), Some(0));
        assert_eq!(millis("1969-12-31T23:00:00.5-01:00"), Some(0));
        assert_eq!(millis(EXAMPLE), Some(1_767_323_045_000));
        for bad in [
            "",
            "Z",
            "1970-01-01",
            "1970-01-01T00:00:01",
            "19700101T000001Z",
            "1970-13-01T00:00:01Z",
            "1970-01-01T00:00:01.Z",
            "1970-01-01T00:00:01+1:00",
            "1970-01-01T00:00:01+24:00",
            "1970-01-01T00:00:01.+1Z",
        ] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn parse_never_panics_on_time_characters(text in "[0-9TZ:.+é-]{0,30}") {
            let _ = parse(&text);
        }
    }
}
