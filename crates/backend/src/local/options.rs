//! Settings of a local store.

use std::time::Duration;

/// Settings of a local store; the defaults suit one SSD or disk.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// Size in bytes at which a log or bulk segment takes no further records. At most 2 GiB; less on a device so
    /// small that it limits the reserve.
    pub segment_bytes: u32,
    /// Objects up to this size, in bytes, are stored in the log with their metadata; larger ones in extents. At most
    /// 1 MiB.
    pub inline_bytes: usize,
    /// Total bytes that writes may buffer in order to write full extents. They are not reserved from the requests'
    /// windows. A threshold, not a hard limit: beyond it, each write still buffers `write_bytes`.
    pub max_buffered_bytes: usize,
    /// While `max_buffered_bytes` is exceeded, extents are written in units of this size, in bytes: slightly slower,
    /// with less memory.
    pub write_bytes: usize,
    /// The index is made durable after this many bytes of log, which bounds the replay after a power loss.
    pub checkpoint_bytes: u64,
    /// Free space, in bytes, below which writes are rejected so that deletes and compaction still work: room to
    /// compact one segment of which 90 % is live. A quarter of it (at most 32 MiB) is a file of allocated blocks,
    /// which other programs cannot take. At most 1/8 of the device.
    pub reserve_bytes: u64,
    /// Number of I/O threads, for work that may wait for the device.
    pub io_threads: usize,
    /// Number of threads that compute the MD5s of large uploads.
    pub hash_threads: usize,
    /// A sealed segment is compacted when less than this fraction of it is live. When space is short the fraction
    /// grows: up to 0.9, from twice `reserve_bytes` of free space down to the rejection of writes.
    pub compact_below_fraction: f64,
    /// Maximum bytes per second that compaction writes, unless writes are about to be rejected.
    pub compact_bytes_per_second: u64,
    /// The interval between rounds of upkeep.
    pub compact_interval: Duration,
    /// Opens the store although its index or log proves the loss of acknowledged changes. Otherwise that is an error,
    /// and nothing is changed: the index is the only record of what is missing.
    pub accept_loss: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 512 << 20,
            inline_bytes: 128 << 10,
            max_buffered_bytes: 24 << 20,
            write_bytes: 256 << 10,
            checkpoint_bytes: 64 << 20,
            reserve_bytes: 640 << 20,
            io_threads: 4,
            hash_threads: 1,
            compact_below_fraction: 0.6,
            compact_bytes_per_second: 64 << 20,
            compact_interval: Duration::from_secs(10),
            accept_loss: false,
        }
    }
}
