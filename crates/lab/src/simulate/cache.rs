//! Caches: eviction policies compared by the requests of a trace.
//!
//! Each request is for one block. It is a hit if the block is in the cache; otherwise the block is inserted if the policy
//! admits it. There is no time: a cache of a given size and policy has one miss ratio for one trace, on every machine.

pub mod system;
#[cfg(test)]
mod tests;
mod trace;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tradewind_model::eviction::{
    AdaptiveWindow, Capacity, Entry, EvictionPolicy, KeyedCache, Lookup, Lru, MAX_SLOTS, S3Fifo,
};

pub use self::trace::{Trace, TraceError};

/// An eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Least recently used.
    Lru,
    /// S3-FIFO as published.
    S3Fifo,
    /// The default of Tradewind's cache.
    AdaptiveWindow,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Lru, Self::S3Fifo, Self::AdaptiveWindow];

    /// Name in the output and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::AdaptiveWindow => "adaptive-window",
        }
    }

    fn build(self, capacity: Capacity) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::new(Lru::new(capacity)),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::AdaptiveWindow => Box::new(AdaptiveWindow::new(capacity)),
        }
    }
}

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// In blocks, at least 1.
    Blocks(u64),
    /// In percent of the distinct blocks of the trace, rounded down to at least one block.
    Percent(f64),
}

impl CacheSize {
    /// The size in blocks for a trace. At most [`MAX_SLOTS`], which is more than any trace has distinct blocks.
    #[must_use]
    pub fn blocks(self, trace: &Trace) -> u64 {
        let blocks = match self {
            Self::Blocks(blocks) => blocks,
            Self::Percent(percent) => (f64::from(trace.distinct_blocks()) * percent / 100.0) as u64,
        };
        blocks.clamp(1, u64::from(MAX_SLOTS))
    }
}

/// The result of one policy in a cache of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheReport {
    /// The policy.
    pub policy: Policy,
    /// Size of the cache in blocks.
    pub cache_blocks: u64,
    /// Number of requests.
    pub requests: u64,
    /// Requests for blocks that were not in the cache.
    pub misses: u64,
    /// CPU time in seconds.
    pub cpu_seconds: f64,
}

impl CacheReport {
    /// Misses divided by requests; 0 without requests.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.requests.max(1) as f64
    }

    /// CPU time per request in nanoseconds; 0 without requests.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_seconds * 1e9 / self.requests.max(1) as f64
    }
}

/// Simulates a cache of `size` with the requests of a trace.
#[must_use]
pub fn simulate(trace: &Trace, size: CacheSize, policy: Policy) -> CacheReport {
    let cache_blocks = size.blocks(trace);
    // More slots than the trace has blocks would never be used.
    let slots = cache_blocks.min(u64::from(trace.distinct_blocks()).max(1));
    let capacity = Capacity { blocks: cache_blocks, ..Capacity::of_unit_entries(slots) };
    let mut cache = KeyedCache::new(capacity, policy.build(capacity));
    let mut misses = 0;
    let started = cpu_seconds();
    for &block in trace.requests() {
        let entry = Entry { key: hash(block), blocks: 1, class: 0 };
        misses += u64::from(cache.request(&entry) != Lookup::Hit);
    }
    CacheReport {
        policy,
        cache_blocks,
        requests: trace.requests().len() as u64,
        misses,
        cpu_seconds: cpu_seconds() - started,
    }
}

/// A hash with uniformly distributed bits (SplitMix64).
fn hash(block: u32) -> u64 {
    let seeded = u64::from(block).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (seeded ^ seeded >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// CPU time of this thread.
fn cpu_seconds() -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    tv_sec as f64 + tv_nsec as f64 / 1e9
}
