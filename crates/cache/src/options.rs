//! Options of the cache.

use std::path::PathBuf;
use std::time::Duration;

/// When a cached object is compared with the backing store before it is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Validation {
    /// Never: no other process writes the backing store while the cache is open. What an earlier session cached is compared
    /// once for each object: the backing store may have been written or restored in between.
    #[default]
    Owner,
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
    /// Bytes of the memory tier, its overhead included. The index of the SSD tier and the buffers of fills are extra.
    pub memory_bytes: usize,
    /// When a cached object is compared with the backing store.
    pub validation: Validation,
    /// The name of the cached volume. A directory belongs to one volume.
    pub volume_id: String,
}
