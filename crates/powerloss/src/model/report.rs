//! What a power cut did, for a test to print and to judge by.

use std::path::PathBuf;

use crate::file::FileFates;
use crate::namespace::EntryFates;

/// What a crash did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Fates of the pending changes of all files that are still there.
    pub writes: FileFates,
    /// Fates of the pending entry operations.
    pub entries: EntryFates,
    /// Files that programs saw before, under whatever name, and that are gone.
    pub vanished_files: u64,
    /// Files that had pending changes, by path after the crash.
    pub files: Vec<FileReport>,
}

/// What a crash did to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// A path of the file after the crash, from the root of the file system.
    pub path: PathBuf,
    /// Fates of its pending changes.
    pub fates: FileFates,
    /// Its length before, as programs saw it.
    pub seen_bytes: u64,
    /// Its length after.
    pub left_bytes: u64,
}

impl std::fmt::Display for CrashReport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (writes, entries) = (&self.writes, &self.entries);
        write!(
            out,
            "writes kept {} torn {} hollow {} dropped {}, garbage sectors {} (stale {}), entries kept {} dropped {}, files vanished {}",
            writes.kept,
            writes.torn,
            writes.hollow,
            writes.dropped,
            writes.garbage_sectors,
            writes.stale_sectors,
            entries.kept,
            entries.dropped,
            self.vanished_files
        )
    }
}
