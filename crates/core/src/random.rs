//! Randomness as an argument: decisions receive it from their callers, as they receive time.

/// A uniformly distributed number for jittering a delay. Constant if the system has no random bytes: then clients that
/// failed together retry together, and nothing worse.
#[must_use]
pub fn jitter_seed() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
