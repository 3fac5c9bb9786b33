//! Options of write-back.

use std::fmt;
use std::time::Duration;

use tradewind_core::Metadata;
use tradewind_model::admission::WriteRank;

/// The share of `max_dirty_bytes` that one object may have: larger ones are written through.
pub(super) const MAX_OBJECT_FRACTION: u64 = 8;

/// Memory for the bytes of one object that is written back.
pub(super) const DRAIN_WINDOW_BYTES: usize = 1 << 20;

/// Memory of one entry of the dirty index, with a key of about 100 bytes. A longer key adds its own bytes.
const INDEX_ENTRY_BYTES: u64 = 512;

/// The least memory with which write-back works: a few objects at once, and an index of 8,192 entries.
pub const MIN_WRITE_BACK_MEMORY_BYTES: u64 = 8 << 20;

/// The default of [`WriteBackOptions::max_dirty_objects`].
pub const DEFAULT_MAX_DIRTY_OBJECTS: usize = 200_000;

/// Decides which writes may be acknowledged before the backing store has them.
pub trait WriteBackPolicy: fmt::Debug + Send + Sync + 'static {
    /// The rank of a write of `size` bytes with this metadata for room in the journal. `None` if it must go to the backing
    /// store before it is acknowledged.
    fn rank(&self, metadata: &Metadata, size: u64) -> Option<WriteRank>;

    /// Returns false if no write is ever allowed: then a bucket without dirty data is not claimed.
    fn claims_buckets(&self) -> bool {
        true
    }
}

/// Allows all writes, with the same rank.
#[derive(Debug, Clone, Copy)]
pub struct AllowAll;

impl WriteBackPolicy for AllowAll {
    fn rank(&self, _: &Metadata, _: u64) -> Option<WriteRank> {
        Some(WriteRank::HIGHEST)
    }
}

/// Allows no write: for a volume that wrote back earlier and whose journal may still hold data.
#[derive(Debug, Clone, Copy)]
pub struct AllowNone;

impl WriteBackPolicy for AllowNone {
    fn rank(&self, _: &Metadata, _: u64) -> Option<WriteRank> {
        None
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
    /// the store is closed. Below, a quarter of them, or all if they are small.
    pub concurrency: usize,
    /// The oldest first, also under pressure; it does not wait for clients' writes.
    pub is_drained_by_age: bool,
    /// The time after which an access compares the owner of a bucket again.
    pub ownership_check: Duration,
    /// The time for which a request to the backing store whose outcome is unknown may still be applied. For this long its
    /// key is not written to the backing store again. Zero for a local store.
    pub uncertain_window: Duration,
    /// No other process writes the backing store. Without it, nothing is written back over a store without conditional
    /// writes, where another owner of a bucket would not be detected.
    pub is_sole_writer: bool,
    /// False if the journal must not have data of an earlier start: opening it fails then.
    pub may_have_data: bool,
    /// The longest time for which `close` writes dirty data back. What remains is written back after the next start.
    pub close_timeout: Duration,
}

impl WriteBackOptions {
    /// Lowers concurrency and the number of dirty objects to what fits into `memory_bytes`: up to half of it for bytes that
    /// are written back, the rest for the index.
    #[must_use]
    pub fn within_memory(self, memory_bytes: u64) -> Self {
        let windows = usize::try_from(memory_bytes / 2).unwrap_or(usize::MAX) / DRAIN_WINDOW_BYTES;
        let concurrency = self.concurrency.min(windows).max(1);
        let window_bytes = (concurrency * DRAIN_WINDOW_BYTES) as u64;
        let entries = memory_bytes.saturating_sub(window_bytes) / INDEX_ENTRY_BYTES;
        let max_dirty_objects = self.max_dirty_objects.min(usize::try_from(entries).unwrap_or(usize::MAX));
        Self { concurrency, max_dirty_objects, ..self }
    }
}

impl Default for WriteBackOptions {
    fn default() -> Self {
        Self {
            max_dirty_bytes: 1 << 30,
            max_dirty_objects: DEFAULT_MAX_DIRTY_OBJECTS,
            delay: Duration::from_secs(2),
            concurrency: 16,
            is_drained_by_age: false,
            ownership_check: Duration::from_secs(5),
            uncertain_window: Duration::ZERO,
            is_sole_writer: false,
            may_have_data: true,
            close_timeout: Duration::from_secs(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limits_concurrency_and_dirty_objects() {
        for (mebibytes, concurrency, max_dirty_objects) in
            [(8, 4, 8192), (32, 16, 32_768), (1024, 16, DEFAULT_MAX_DIRTY_OBJECTS)]
        {
            let options = WriteBackOptions::default().within_memory(mebibytes << 20);
            assert_eq!((options.concurrency, options.max_dirty_objects), (concurrency, max_dirty_objects));
        }
        assert_eq!(WriteBackOptions::default().within_memory(0).concurrency, 1);
    }
}
