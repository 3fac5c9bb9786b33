//! Sectors: the units that a disk writes atomically, and the boundaries of torn writes.

use std::ops::Range;

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;

/// The sectors that a range touches.
pub fn sectors(offset: u64, length: u64) -> Range<u64> {
    if length == 0 { 0..0 } else { offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES) }
}

/// The part of a range within a sector, as start and end offsets.
pub fn overlap(sector: u64, offset: u64, length: u64) -> (u64, u64) {
    ((sector * SECTOR_BYTES).max(offset), ((sector + 1) * SECTOR_BYTES).min(offset + length))
}
