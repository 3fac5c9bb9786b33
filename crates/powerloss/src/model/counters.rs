//! How much programs asked of the file system, so that a test can tell that it was put to use.

/// What was asked of the file system since it was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// `fsync` calls on files, failed ones included.
    pub fsyncs: u64,
    /// `fdatasync` calls on files, failed ones included.
    pub fdatasyncs: u64,
    /// Syncs of directories.
    pub directory_syncs: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Syncs that were made to fail.
    pub failed_syncs: u64,
    /// Requests refused for want of space.
    pub out_of_space: u64,
}
