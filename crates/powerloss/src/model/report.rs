//! The report of a power cut, for tests.

use std::path::PathBuf;

use crate::file::FileFates;
use crate::namespace::EntryFates;

/// The effects of a crash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Fates of the pending changes of all remaining files.
    pub writes: FileFates,
    /// Fates of the pending entry operations.
    pub entries: EntryFates,
    /// Files that were visible before, under any name, and that are gone.
    pub vanished_files: u64,
    /// Files that had pending changes, by their path after the crash.
    pub files: Vec<FileReport>,
}

/// The effects of a crash on one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// A path of the file after the crash, relative to the root of the file system.
    pub path: PathBuf,
    /// Fates of its pending changes.
    pub fates: FileFates,
    /// Its volatile length before.
    pub volatile_bytes: u64,
    /// Its length after.
    pub remaining_bytes: u64,
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
