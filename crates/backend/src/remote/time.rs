//! Times in responses of services: RFC 3339.

use tradewind_core::Timestamp;
use tradewind_wire::sigv4::AmzDate;

/// Parses `2026-01-02T03:04:05.678Z`, also with an offset such as `+01:00` in place of `Z`, with or without a fraction
/// and separators. Further digits than milliseconds are ignored. `None` for text of another form, or without an offset.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (local, offset_minutes) = match text.strip_suffix(['Z', 'z']) {
        Some(local) => (local, 0),
        None => split_offset(text)?,
    };
    let (whole, millis) = match local.split_once(['.', ',']) {
        Some((whole, fraction)) => (whole, parse_fraction(fraction)?),
        None => (local, 0),
    };
    let seconds = parse_seconds(whole)? - offset_minutes * 60;
    Some(Timestamp::from_millis(seconds * 1000 + millis))
}

/// Parses `2026-01-02T03:04:05` or `20260102T030405`, in seconds since 1970. A blank or a `t` may replace the `T`.
fn parse_seconds(text: &str) -> Option<i64> {
    const MARKS: [(usize, u8); 4] = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let bytes = text.as_bytes();
    let has_marks = bytes.len() == 19 && MARKS.iter().all(|(at, mark)| bytes[*at] == *mark);
    let mut basic: Vec<u8> = match has_marks {
        true => (0..bytes.len())
            .filter(|at| !MARKS.iter().any(|mark| mark.0 == *at))
            .map(|at| bytes[at])
            .collect(),
        false => bytes.to_vec(),
    };
    if let Some(separator @ (b't' | b' ')) = basic.get_mut(8) {
        *separator = b'T';
    }
    basic.push(b'Z');
    Some(AmzDate::parse(&basic)?.seconds())
}

/// Parses the digits of a fraction, in milliseconds, rounded down.
fn parse_fraction(digits: &str) -> Option<i64> {
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let millis = digits.bytes().chain(std::iter::repeat(b'0')).take(3);
    Some(millis.fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

/// Splits off `+hh:mm`, `+hhmm` or `+hh` at the end, in minutes.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    // The hyphens of the date come before the hour.
    let at = text.rfind(['+', '-']).filter(|at| *at > "YYYYMMDDT".len())?;
    let (local, offset) = (&text[..at], &text[at + 1..]);
    let sign = if text[at..].starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = match offset.len() {
        2 => (offset, "00"),
        4 => offset.split_at_checked(2)?,
        5 => offset.split_once(':')?,
        _ => return None,
    };
    let number = |text: &str, below: i64| {
        let is_plain = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| is_plain && *number < below)
    };
    Some((local, sign * (number(hours, 24)? * 60 + number(minutes, 60)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn any_legal_form_of_a_time_is_read() {
        let millis = |text| parse_time(text).map(Timestamp::millis);
        for (text, expected) in [
            ("1970-01-01T00:00:01Z", 1000),
            ("1970-01-01T00:00:01.5Z", 1500),
            ("1970-01-01T00:00:01.123456Z", 1123),
            ("1970-01-01T00:00:01.123456789+00:00", 1123),
            ("1970-01-01T00:00:01+00:00", 1000),
            ("1970-01-01T00:00:01-00:00", 1000),
            ("1970-01-01T01:30:01.250+01:30", 1250),
            ("1969-12-31T16:00:01-08:00", 1000),
            ("1970-01-01T01:00:01+0100", 1000),
            ("1970-01-01T01:00:01+01", 1000),
            ("1970-01-01t00:00:01z", 1000),
            ("1970-01-01 00:00:01Z", 1000),
            ("1970-01-01T00:00:01,5Z", 1500),
            ("19700101T000001Z", 1000),
            (" 1970-01-01T00:00:01Z\n", 1000),
        ] {
            assert_eq!(millis(text), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn text_that_is_no_time_is_not_read() {
        for bad in [
            "",
            "Z",
            "0",
            "1970-01-01",
            "1970-01-01T00:00:01",
            "1970-13-01T00:00:01Z",
            "1970-01-01T00:00:01.Z",
            "1970-01-01T00:00:01.xZ",
            "1970-01-01T00:00:01+24:00",
            "1970-01-01T00:00:01+1:00",
            "1970-01-01T00:00:01+01:0",
            "1970-01-01T00:00:01 UTC",
            "1970-01-01+00:00",
        ] {
            assert_eq!(parse_time(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn parse_time_never_panics(text in any::<String>()) {
            let _ = parse_time(&text);
        }

        #[test]
        fn parse_time_never_panics_on_time_characters(text in "[0-9TtZz:.,+é -]{0,30}") {
            let _ = parse_time(&text);
        }
    }
}
