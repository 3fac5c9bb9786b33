//! The position of a record: a segment and an offset in it. Positions in log segments sort in the order in which the
//! log was written; bulk segments are filled concurrently.

use std::fmt;

/// A position in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    /// Number of the segment file.
    pub segment: u32,
    /// Offset of the record's first byte.
    pub offset: u32,
}

impl Position {
    /// A position from its parts.
    pub const fn new(segment: u32, offset: u32) -> Self {
        Self { segment, offset }
    }

    /// The position by which a void marks the lost end of a segment as accepted, given the end of what
    /// remains. It is odd, so no record starts there: a file that is restored later is complete.
    pub const fn accepted_end(segment: u32, bytes: u32) -> Self {
        Self { segment, offset: bytes | 1 }
    }

    /// Returns true for an [`accepted_end`](Self::accepted_end), which is not the position of a record.
    pub const fn is_accepted_end(self) -> bool {
        self.offset % 2 == 1
    }

    /// Segment and offset in one number, which sorts like the position.
    pub const fn pack(self) -> u64 {
        (self.segment as u64) << 32 | self.offset as u64
    }

    /// The inverse of [`Position::pack`].
    pub const fn unpack(packed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
        Self { segment: (packed >> 32) as u32, offset: packed as u32 }
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

impl fmt::Display for Position {
    /// The segment's number in hexadecimal, as in its file name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {:08x} offset {}", self.segment, self.offset)
    }
}
