//! Randomness as an argument: decisions get it from whoever carries them out, as they get time.

/// A number to draw a delay with, uniform over all of its values. Where the system gives no random bytes, delays are not
/// drawn at random: clients that failed together come back together, and nothing worse.
#[must_use]
pub fn for_delay() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
