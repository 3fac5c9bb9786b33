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

/// The behaviour of reads while the backing store does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageOptions {
    /// The time for which a read waits for the comparison of an object that it may serve without one: with
    /// [`Validation::Owner`] and [`Validation::SoleWriter`], an object that was compared since the cache was opened.
    pub max_comparison_wait: Duration,
    /// With [`Validation::Always`] and [`Validation::MaxAge`], objects that were compared since the cache was opened, and
    /// less than this time ago, are served without a comparison too. `None` for none.
    pub stale_if_unavailable: Option<Duration>,
}

/// The default of [`OutageOptions::max_comparison_wait`].
pub const DEFAULT_MAX_COMPARISON_WAIT: Duration = Duration::from_secs(2);

impl Default for OutageOptions {
    fn default() -> Self {
        Self { max_comparison_wait: DEFAULT_MAX_COMPARISON_WAIT, stale_if_unavailable: None }
    }
}

/// Options of the tiers of a cache, and of reads while the backing store does not respond.
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
    /// Reads while the backing store does not respond.
    pub outage: OutageOptions,
}

/// 100 GiB take about a week.
pub const DEFAULT_VERIFY_BYTES_PER_SECOND: u64 = 176 << 10;

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            eviction: Eviction::default(),
            verify_bytes_per_second: DEFAULT_VERIFY_BYTES_PER_SECOND,
            max_write_bytes_per_second: None,
            outage: OutageOptions::default(),
        }
    }
}
