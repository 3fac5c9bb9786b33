//! Ranges: parsing of the header, and resolution to bytes of an object.

use tradewind_core::error::Reason;
use tradewind_core::range::{ByteRange, Span};

use super::input::Input;

/// Nine bytes make two sizes, the rest is a `Range` header. Compares its parsing, and its resolution for objects of
/// several sizes, with simple references.
pub fn range(data: &[u8]) {
    let mut input = Input::new(data);
    let sizes = [u64::from(input.byte()), input.read_u64(), 0, u64::MAX];
    if let Ok(header) = std::str::from_utf8(input.rest()) {
        let range = ByteRange::parse(header);
        assert_eq!(range, parse(header), "{header:?}");
        for size in sizes {
            range.into_iter().for_each(|range| check(range, size));
        }
    }
    // Numbers near the small size, which random headers rarely contain.
    let (small, near) = (sizes[0], sizes[1] % 300);
    check(ByteRange::From(near), small);
    check(ByteRange::Suffix(near), small);
    check(ByteRange::Inclusive { first: near.min(small), last: near.max(small) }, small);
    check(ByteRange::Inclusive { first: small / 2, last: small / 2 + near }, small);
}

/// Parses one range of bytes: two fields around a dash, of which one may be missing.
fn parse(header: &str) -> Option<ByteRange> {
    let (unit, spec) = header.trim().split_once('=')?;
    let fields: Vec<&str> = spec.split('-').collect();
    let legal = |field: &&str| field.chars().all(|c| c.is_ascii_digit());
    if unit.to_lowercase() != "bytes" || fields.len() != 2 || !fields.iter().all(legal) {
        return None;
    }
    // All digits: a number that does not fit is beyond the end of every object.
    let number = |field: &str| field.parse::<u64>().unwrap_or(u64::MAX);
    match (fields[0], fields[1]) {
        ("", "") => None,
        ("", length) => Some(ByteRange::Suffix(number(length))),
        (first, "") => Some(ByteRange::From(number(first))),
        (first, last) if number(first) > number(last) => None,
        (first, last) => Some(ByteRange::Inclusive { first: number(first), last: number(last) }),
    }
}

/// Compares the resolution with a reference: by testing every byte of a small object, otherwise with 128-bit numbers.
fn check(range: ByteRange, size: u64) {
    let (begin, end) = match range {
        ByteRange::Inclusive { first, last } => (u128::from(first), u128::from(last) + 1),
        ByteRange::From(first) => (u128::from(first), u128::from(size)),
        ByteRange::Suffix(length) => (u128::from(size.saturating_sub(length)), u128::from(size)),
    };
    let span = match size {
        0..1000 => {
            let is_in_range = |at: &u64| (begin..end).contains(&u128::from(*at));
            let bytes: Vec<u64> = (0..size).filter(is_in_range).collect();
            bytes.first().map(|first| Span { offset: *first, length: bytes.len() as u64 })
        }
        _ => {
            let end = end.min(size.into());
            let narrow = |number: u128| u64::try_from(number).unwrap();
            (begin < end).then(|| Span { offset: narrow(begin), length: narrow(end - begin) })
        }
    };
    match range.resolve(size) {
        Ok(found) => assert_eq!(Some(found), span, "{range:?} of {size} bytes"),
        Err(e) => assert_eq!((e.reason(), None), (Reason::InvalidRange, span), "{range:?} of {size} bytes"),
    }
}
