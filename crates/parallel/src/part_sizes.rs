//! The sizes of the parts of a stream, whose end is unknown. Larger parts later allow a longer stream than the store's limit of
//! parts of the first size. Some stores accept parts of one size only.

use tradewind_core::multipart::MAX_PART_NUMBER;
use tradewind_model::plan::MIN_PART_BYTES;

/// Parts of one size, after which the part size doubles. S3's limit of 10,000 parts then allows more than 400 GiB.
const PARTS_PER_SIZE: u16 = 2000;
/// The multiple of part sizes that follow from an expected size.
const SIZE_STEP_BYTES: u64 = 1 << 20;
/// Largest part of S3.
const MAX_PART_BYTES: u64 = 5 << 30;

/// The position of a part.
#[derive(Debug, Clone, Copy)]
pub struct PartPosition {
    /// Its number, from 1.
    pub number: u16,
    /// Bytes of the stream before it.
    pub offset: u64,
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct PartSizes {
    first_bytes: u64,
    /// The size of the stream if the user expects one.
    expected_bytes: Option<u64>,
    /// All parts but the last have one size.
    are_equal: bool,
    parts_per_size: u16,
    max_parts: u16,
}

impl PartSizes {
    /// Sizes from `chunk_bytes` on. With `are_equal`, the size never changes.
    pub fn new(chunk_bytes: u64, are_equal: bool) -> Self {
        Self {
            first_bytes: chunk_bytes.max(MIN_PART_BYTES),
            expected_bytes: None,
            are_equal,
            parts_per_size: PARTS_PER_SIZE,
            max_parts: MAX_PART_NUMBER,
        }
    }

    /// Chooses the size beforehand, so that `bytes` fit into the store's limit of parts. More bytes than that are no error.
    #[must_use]
    pub fn with_expected_bytes(self, bytes: u64) -> Self {
        let needed = bytes.div_ceil(self.max_parts.into()).div_ceil(SIZE_STEP_BYTES) * SIZE_STEP_BYTES;
        let first_bytes = self.first_bytes.max(needed.min(MAX_PART_BYTES));
        Self { first_bytes, expected_bytes: Some(bytes), ..self }
    }

    /// Lower limits, for tests.
    #[cfg(test)]
    pub fn with_limits(self, parts_per_size: u16, max_parts: u16) -> Self {
        Self { parts_per_size, max_parts, ..self }
    }

    /// The size of a part.
    pub fn part_bytes(&self, part: PartPosition) -> u64 {
        let is_expected = self.expected_bytes.is_some_and(|expected| part.offset < expected);
        if self.are_equal || is_expected {
            return self.first_bytes;
        }
        let doublings = u32::from(part.number / self.parts_per_size).min(u64::BITS / 2);
        self.first_bytes.saturating_mul(1 << doublings).min(MAX_PART_BYTES.max(self.first_bytes))
    }

    /// Returns true if a store has no part of this number.
    pub const fn is_beyond_end(&self, number: u16) -> bool {
        number > self.max_parts
    }

    /// The size of the first parts.
    pub const fn first_bytes(&self) -> u64 {
        self.first_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The bytes of a stream of 10,000 parts.
    fn capacity(sizes: &PartSizes) -> u64 {
        (1..=MAX_PART_NUMBER)
            .fold(0, |offset, number| offset + sizes.part_bytes(PartPosition { number, offset }))
    }

    #[test]
    fn part_sizes_double_unless_they_must_be_equal() {
        assert!(capacity(&PartSizes::new(8 * MIB, false)) > 400 << 30);
        assert_eq!(capacity(&PartSizes::new(8 * MIB, true)), 10_000 * 8 * MIB);
        assert_eq!(PartSizes::new(1, true).part_bytes(PartPosition { number: 1, offset: 0 }), MIN_PART_BYTES);
        assert!(PartSizes::new(MIB, true).is_beyond_end(10_001));
        assert!(!PartSizes::new(MIB, true).is_beyond_end(10_000));
    }

    #[test]
    fn expected_size_fits_into_the_parts() {
        for expected in [0, 1, 10 * MIB, 80_000 * MIB, 80_000 * MIB + 1, 160 << 30, 5 << 40] {
            for are_equal in [false, true] {
                let sizes = PartSizes::new(8 * MIB, are_equal).with_expected_bytes(expected);
                assert!(capacity(&sizes) >= expected, "{expected}");
                let first = sizes.first_bytes();
                assert!(first == 8 * MIB || (first - MIB) * 10_000 < expected, "{expected}: {first}");
                let last = PartPosition { number: 10_000, offset: expected.saturating_sub(1) };
                assert!(expected == 0 || sizes.part_bytes(last) == first, "{expected}");
            }
        }
        // A stream that is longer than expected ends as late as without the expectation.
        assert!(capacity(&PartSizes::new(8 * MIB, false).with_expected_bytes(MIB)) > 400 << 30);
    }
}
