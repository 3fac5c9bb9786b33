//! Options of the cache.

use std::path::PathBuf;
use std::time::Duration;

use crate::policy::Eviction;

/// When a cached object is compared with the backing store before it is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Validation {
    /// Never: no other process writes the backing store while the cache is open. What an earlier session cached is compared
    /// once for each object: the backing store may have been written or restored in between.
    #[default]
    Owner,
    /// Like [`Self::Owner`], over a service: a request of an earlier session may still be applied. For ten minutes after the
    /// cache is opened, it is compared on every read.
    SoleWriter,
    /// If the last comparison is older than this. A change by another process is seen after this time at the latest.
    MaxAge(Duration),
    /// On every read: as linearizable as the backing store.
    Always,
}

/// Options of the cache.
#[derive(Debug, Clone)]
pub struct CachedOptions {
    /// The directory of the SSD tier; `None` for a cache in memory only.
    pub directory: Option<PathBuf>,
    /// Bytes of the SSD tier.
    pub disk_bytes: u64,
    /// Bytes of the memory tier, its overhead included. The index of the SSD tier is extra, and so are the fills that
    /// wait for the SSD: an eighth of it, from 9 to 64 MiB.
    pub memory_bytes: usize,
    /// When a cached object is compared with the backing store.
    pub validation: Validation,
    /// The name of the cached volume. A directory belongs to one volume.
    pub volume_id: String,
}

/// Options of the tiers of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierOptions {
    /// The eviction policy of both tiers.
    pub eviction: Eviction,
    /// Bytes per second at which all that the SSD stores is read and verified in the background, while there is no other
    /// I/O; 0 for never.
    pub verify_bytes_per_second: u64,
    /// Bytes per second that are written to the SSD on average, with a burst of five minutes; `None` for no limit. Checkpoints
    /// of the index are not counted.
    pub max_write_bytes_per_second: Option<u64>,
}

/// 100 GiB take about a week.
pub const DEFAULT_VERIFY_BYTES_PER_SECOND: u64 = 176 << 10;

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            eviction: Eviction::default(),
            verify_bytes_per_second: DEFAULT_VERIFY_BYTES_PER_SECOND,
            max_write_bytes_per_second: None,
        }
    }
}
