//! What can be set about a local store.

use std::time::Duration;

/// Settings of a local store; the defaults suit one SSD or disk.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// A log or bulk segment takes no further records from this size on, in bytes. At most 2 GiB. Less on a device
    /// so small that it bounds the reserve.
    pub segment_bytes: u32,
    /// Objects up to this size, in bytes, are packed into the log beside their metadata; larger ones
    /// become extents. At most 1 MiB.
    pub inline_bytes: usize,
    /// While all writes together hold at most so many bytes, each may gather a full extent before it is written.
    /// This memory comes on top of the requests' windows.
    pub gather_bytes: usize,
    /// Beyond that, extents are written in pieces of this size, in bytes: a little dearer, with less in memory.
    pub piece_bytes: usize,
    /// The index is made durable after this many bytes of log: what a start after a power loss reads
    /// again at the most.
    pub checkpoint_bytes: u64,
    /// Free space, in bytes, below which writes are refused so that deletes and compaction still work:
    /// room to compact one segment of which nine tenths live. A quarter of it (at most 32 MiB) is a file of allocated
    /// blocks, which other programs cannot take. At most an eighth of the device.
    pub reserve_bytes: u64,
    /// Threads for file work that may wait for the device.
    pub io_threads: usize,
    /// Threads that compute MD5s of large uploads.
    pub hash_threads: usize,
    /// A sealed segment is compacted when less than this share of it is live. Where space is short the share
    /// grows: to nine tenths, from twice `reserve_bytes` down to where writes are refused.
    pub compact_below: f64,
    /// The most bytes a second that compaction writes, unless writes are about to be refused.
    pub compact_bytes_per_second: u64,
    /// How often it is looked whether a segment should be compacted.
    pub compact_interval: Duration,
    /// Opens the store although its index, or its log, proves that acknowledged changes are lost. Otherwise that is an
    /// error, and nothing is changed: the index is the only record of what is missing.
    pub accept_loss: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 512 << 20,
            inline_bytes: 128 << 10,
            gather_bytes: 24 << 20,
            piece_bytes: 256 << 10,
            checkpoint_bytes: 64 << 20,
            reserve_bytes: 640 << 20,
            io_threads: 4,
            hash_threads: 1,
            compact_below: 0.6,
            compact_bytes_per_second: 64 << 20,
            compact_interval: Duration::from_secs(10),
            accept_loss: false,
        }
    }
}
