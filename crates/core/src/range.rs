//! Byte ranges: as requested ([`ByteRange`]) and as resolved for an object of a known size
//! ([`Span`]). RFC 9110 section 14.

use crate::error::{Error, Reason, Result};

/// A range as requested, before the object's size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// `bytes=first-last`, both inclusive.
    Inclusive {
        /// First byte.
        first: u64,
        /// Last byte, not before `first`.
        last: u64,
    },
    /// `bytes=first-`: to the end.
    From(u64),
    /// `bytes=-length`: the last `length` bytes.
    Suffix(u64),
}

/// A resolved range within one object: `offset..offset + length`, never beyond the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; zero only for an empty object.
    pub length: u64,
}

impl Span {
    /// The span of a whole object of `size` bytes.
    #[must_use]
    pub const fn whole(size: u64) -> Self {
        Self { offset: 0, length: size }
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset + self.length
    }
}

impl ByteRange {
    /// Parses a `Range` header. `None` if the header must be ignored and the whole object served:
    /// another unit, a malformed range, or several ranges (S3 then serves the whole object).
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let (unit, spec) = header.trim().split_once('=')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        // `digits` accepts neither a blank nor the comma of several ranges.
        match spec.split_once('-')? {
            ("", "") => None,
            ("", suffix) => Some(Self::Suffix(digits(suffix)?)),
            (first, "") => Some(Self::From(digits(first)?)),
            (first, last) => {
                let (first, last) = (digits(first)?, digits(last)?);
                (first <= last).then_some(Self::Inclusive { first, last })
            }
        }
    }

    /// Resolves the range for an object of `size` bytes. Fails with [`Reason::InvalidRange`] if it contains no byte of
    /// the object.
    pub fn resolve(self, size: u64) -> Result<Span> {
        let reject = || {
            Err(Error::for_client(
                Reason::InvalidRange,
                format!("the range holds no byte of this object, which has {size} bytes"),
            ))
        };
        match self {
            Self::Inclusive { first, .. } | Self::From(first) if first >= size => reject(),
            Self::Inclusive { first, last } => {
                Ok(Span { offset: first, length: last.min(size - 1) - first + 1 })
            }
            Self::From(first) => Ok(Span { offset: first, length: size - first }),
            Self::Suffix(0) => reject(),
            Self::Suffix(_) if size == 0 => reject(),
            Self::Suffix(length) => {
                let length = length.min(size);
                Ok(Span { offset: size - length, length })
            }
        }
    }
}

/// Parses decimal digits only. A value over `u64::MAX` saturates: it is beyond every object's end.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.bytes().fold(0_u64, |n, b| n.saturating_mul(10).saturating_add(u64::from(b - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers() {
        assert_eq!(ByteRange::parse("bytes=0-9"), Some(ByteRange::Inclusive { first: 0, last: 9 }));
        assert_eq!(ByteRange::parse("bytes=5-"), Some(ByteRange::From(5)));
        assert_eq!(ByteRange::parse("bytes=-5"), Some(ByteRange::Suffix(5)));
        for ignored in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=9-0",
            "bytes=0-1,3-4",
            "items=0-1",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes= -1",
            "bytes= 1-2",
            "bytes=1 -2",
            "bytes=1- 2",
            "bytes=- 1",
            "bytes =1-2",
        ] {
            assert_eq!(ByteRange::parse(ignored), None, "{ignored}");
        }
        assert_eq!(ByteRange::parse("bytes=99999999999999999999999-"), Some(ByteRange::From(u64::MAX)));
    }

    #[test]
    fn empty_object() {
        for range in [ByteRange::From(0), ByteRange::Suffix(1), ByteRange::Inclusive { first: 0, last: 0 }] {
            assert_eq!(range.resolve(0).unwrap_err().reason(), Reason::InvalidRange);
        }
    }

    proptest! {
        #[test]
        fn a_resolved_range_lies_within_the_object(size in 0_u64..1000, a in 0_u64..1200, b in 0_u64..1200) {
            let ranges = [ByteRange::Inclusive { first: a.min(b), last: a.max(b) }, ByteRange::From(a), ByteRange::Suffix(a)];
            for range in ranges {
                match range.resolve(size) {
                    Ok(span) => prop_assert!(span.length > 0 && span.end() <= size),
                    Err(e) => prop_assert_eq!(e.reason(), Reason::InvalidRange),
                }
            }
        }

        #[test]
        fn parsing_never_panics(header in ".*") {
            let _ = ByteRange::parse(&header);
        }
    }
}
