//! Request counters, by which a test can verify that the file system was used.

/// Requests since the mount.
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
    /// Syncs that failed by an injected fault.
    pub failed_syncs: u64,
    /// Requests rejected for lack of space.
    pub out_of_space: u64,
}
