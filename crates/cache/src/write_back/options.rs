//! Options of write-back.

use std::fmt;
use std::time::Duration;

use tradewind_core::Metadata;

/// The share of `max_dirty_bytes` that one object may have: larger ones are written through.
pub(super) const MAX_OBJECT_FRACTION: u64 = 8;

/// The default of [`WriteBackOptions::max_dirty_objects`].
pub const DEFAULT_MAX_DIRTY_OBJECTS: usize = 200_000;

/// Decides which writes may be acknowledged before the backing store has them.
pub trait WriteBackPolicy: fmt::Debug + Send + Sync + 'static {
    /// Returns true if a write of `size` bytes with this metadata may be acknowledged once it is in the journal.
    fn allows(&self, metadata: &Metadata, size: u64) -> bool;

    /// Returns false if no write is ever allowed: then a bucket without dirty data is not claimed.
    fn claims_buckets(&self) -> bool {
        true
    }
}

/// Allows all writes.
#[derive(Debug, Clone, Copy)]
pub struct AllowAll;

impl WriteBackPolicy for AllowAll {
    fn allows(&self, _: &Metadata, _: u64) -> bool {
        true
    }
}

/// Allows no write: for a volume that wrote back earlier and whose journal may still hold data.
#[derive(Debug, Clone, Copy)]
pub struct AllowNone;

impl WriteBackPolicy for AllowNone {
    fn allows(&self, _: &Metadata, _: u64) -> bool {
        false
    }

    fn claims_buckets(&self) -> bool {
        false
    }
}

/// Options of write-back.
#[derive(Debug, Clone)]
pub struct WriteBackOptions {
    /// Bytes of objects that may be in the journal only. Beyond it, writes go through.
    pub max_dirty_bytes: u64,
    /// The number of objects and deletions that may be in the journal only: each occupies a few hundred bytes of memory.
    pub max_dirty_objects: usize,
    /// The time for which an object stays in the journal, while there is room: one that is deleted or replaced earlier
    /// is never written to the backing store.
    pub delay: Duration,
    /// Objects that are written back concurrently while the dirty data is above three quarters of its limits, or while
    /// the store is closed. Below, a quarter of them.
    pub concurrency: usize,
    /// The time after which an access compares the owner of a bucket again.
    pub ownership_check: Duration,
    /// The time for which a request to the backing store whose outcome is unknown may still be applied. For this long its
    /// key is not written to the backing store again. Zero for a local store.
    pub uncertain_window: Duration,
    /// No other process writes the backing store. Without it, nothing is written back over a store without conditional
    /// writes, where another owner of a bucket would not be detected.
    pub is_sole_writer: bool,
    /// The longest time for which `close` writes dirty data back. What remains is written back after the next start.
    pub close_timeout: Duration,
}

impl Default for WriteBackOptions {
    fn default() -> Self {
        Self {
            max_dirty_bytes: 1 << 30,
            max_dirty_objects: DEFAULT_MAX_DIRTY_OBJECTS,
            delay: Duration::from_secs(2),
            concurrency: 16,
            ownership_check: Duration::from_secs(5),
            uncertain_window: Duration::ZERO,
            is_sole_writer: false,
            close_timeout: Duration::from_secs(20),
        }
    }
}
