//! Decimal numbers in responses: digits without sign or blanks, up to a maximum. A size that is wrong must be an error,
//! because a download would otherwise end early or never, and an object would be taken for an empty one.

use std::time::Duration;

use serde_json::Value as Json;

/// Maximum size of an object in a response, in bytes (8 PiB). No service stores a larger one, and sums of sizes do not
/// overflow.
pub(crate) const MAX_SIZE_BYTES: u64 = 1 << 53;
/// Maximum size of a part in a response, in bytes (256 TiB). The sum of 10,000 sizes does not overflow.
const MAX_PART_SIZE_BYTES: u64 = 1 << 48;
/// Maximum time in a response, in seconds: about 136 years.
const MAX_TIME_SECONDS: u64 = u32::MAX as u64;

/// The number that `text` is; `None` if it is not a decimal number up to `max`.
pub(crate) fn parse_decimal(text: &str, max: u64) -> Option<u64> {
    let is_decimal = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|number| is_decimal && *number <= max)
}

/// The size in bytes that `text` is; `None` if it is none.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    parse_decimal(text, MAX_SIZE_BYTES)
}

/// The size of a part in bytes that `text` is; `None` if it is none.
pub(crate) fn parse_part_size(text: &str) -> Option<u64> {
    parse_decimal(text, MAX_PART_SIZE_BYTES)
}

/// The small number that `text` is, such as a part number or a number of parts; `None` if it is none.
pub(crate) fn parse_count(text: &str) -> Option<u32> {
    u32::try_from(parse_decimal(text, u64::from(u32::MAX))?).ok()
}

/// The time in seconds that `text` is; `None` if it is none.
pub(crate) fn parse_seconds(text: &str) -> Option<Duration> {
    parse_decimal(text, MAX_TIME_SECONDS).map(Duration::from_secs)
}

/// The size of a part in bytes in a JSON document; `None` if it is none.
pub(crate) fn json_part_size(value: &Json) -> Option<u64> {
    value.as_u64().filter(|size| *size <= MAX_PART_SIZE_BYTES)
}

/// The size in bytes in a JSON document; `None` if it is none.
pub(crate) fn json_size(value: &Json) -> Option<u64> {
    value.as_u64().filter(|size| *size <= MAX_SIZE_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_digits_only_and_a_maximum() {
        for (text, expected) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("2147483648", Some(1 << 31)),
            ("9007199254740992", Some(1 << 53)),
            ("9007199254740993", None),
            ("9223372036854775808", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("-1", None),
            ("+5", None),
            ("", None),
            (" 5", None),
            ("5 ", None),
            ("5x", None),
            ("0x5", None),
            ("5e3", None),
            ("5.0", None),
            ("\u{0665}", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text:?}");
            let part_size = expected.filter(|number| *number <= MAX_PART_SIZE_BYTES);
            assert_eq!(parse_part_size(text), part_size, "{text:?}");
            let count = expected.filter(|number| *number <= u64::from(u32::MAX));
            assert_eq!(parse_count(text).map(u64::from), count, "{text:?}");
            assert_eq!(parse_seconds(text), count.map(Duration::from_secs), "{text:?}");
        }
        for (value, expected) in [
            (json!(0), Some(0)),
            (json!(1_u64 << 53), Some(1 << 53)),
            (json!((1_u64 << 53) + 1), None),
            (json!(u64::MAX), None),
            (json!(-1), None),
            (json!(5.0), None),
            (json!("5"), None),
            (Json::Null, None),
        ] {
            assert_eq!(json_size(&value), expected, "{value}");
            let part_size = expected.filter(|number| *number <= MAX_PART_SIZE_BYTES);
            assert_eq!(json_part_size(&value), part_size, "{value}");
        }
    }
}
