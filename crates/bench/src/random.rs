//! Deterministic pseudo-random numbers.

pub use tradewind_pattern::mix;

/// Maps a mixed number to the interval from 0 to below 1.
#[must_use]
pub fn unit_fraction(mixed: u64) -> f64 {
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}
