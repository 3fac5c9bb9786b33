//! Counters of the cache, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedCount {
    /// The name of its field in [`CacheCounters`].
    pub name: &'static str,
    /// The count since the cache was opened.
    pub count: u64,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: Counter,)* }

        /// The counters of a cache since it was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CacheCounters { $($(#[$doc])* pub $name: u64,)* }

        impl CacheCounters {
            /// All counters with their names, in a constant order.
            pub fn named(&self) -> impl Iterator<Item = NamedCount> {
                [$(NamedCount { name: stringify!($name), count: self.$name },)*].into_iter()
            }
        }

        impl Counters {
            pub fn snapshot(&self) -> CacheCounters {
                CacheCounters { $($name: self.$name.value(),)* }
            }
        }
    };
}

counters! {
    /// Reads whose bytes all came from memory.
    ram_hits,
    /// Reads whose bytes came from the cache, some of them from the SSD.
    ssd_hits,
    /// Reads that were forwarded because the object was not in the cache.
    misses,
    /// Reads of which some bytes came from the cache and some from the backing store.
    partial_hits,
    /// Reads that the cache does not serve: parts, versions and keys that are being changed.
    bypasses,
    /// Reads that waited for the miss of another reader.
    shared_misses,
    /// Comparisons with the backing store.
    validations,
    /// Comparisons that found another object.
    stale,
    /// Reads that were served without a comparison that was due, because the backing store does not respond.
    uncompared,
    /// Bytes served from memory.
    ram_bytes,
    /// Bytes served from the SSD.
    ssd_bytes,
    /// Bytes served from the backing store.
    backing_bytes,
    /// Bytes written to the SSD.
    ssd_written_bytes,
    /// Entries evicted from memory.
    ram_evictions,
    /// Extents evicted from the SSD.
    ssd_evictions,
    /// Extents that were stored.
    fills,
    /// Extents that were not stored because the SSD is switched off or fails, or has no space that can be freed
    /// quickly.
    fills_skipped,
    /// Extents that were not stored because the memory of fills that wait for the SSD was full.
    fills_queue_full,
    /// Extents that were not stored because of the budget of writes to the SSD.
    fills_over_budget,
    /// Extents that were not stored because all others have a higher priority.
    fills_bypassed,
    /// Removed objects whose space is freed by eviction only, because too many others were being removed or the SSD could
    /// not be read.
    removals_skipped,
    /// Entries that were not pinned because pins fill their share of the cache.
    pins_ignored,
    /// Extents on the SSD that were dropped by a read or in the background, because they are damaged or unreadable.
    ssd_corrupt,
    /// Bytes on the SSD that were verified in the background.
    ssd_verified_bytes,
    /// Errors of the SSD.
    ssd_errors,
    /// Times that the SSD was switched off because of errors.
    ssd_switched_off,
    /// Changes whose outcome is unknown.
    uncertain_changes,
}
