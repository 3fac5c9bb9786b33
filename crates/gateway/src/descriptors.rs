//! The process's open files and their limit. Client connections must leave enough descriptors to the store and the
//! admin listener.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Directories that list a process's open files: on Linux, and on other systems.
const DIRECTORIES: [&str; 2] = ["/proc/self/fd", "/dev/fd"];

/// The number of files that the process has open.
///
/// # Errors
/// No directory lists the open files.
pub fn open_files() -> io::Result<usize> {
    let mut failed = io::ErrorKind::NotFound.into();
    for directory in DIRECTORIES {
        match count(directory) {
            Ok(count) => return Ok(count),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

fn count(directory: &str) -> io::Result<usize> {
    // Since version 6.2, Linux reports the number as the directory's size.
    let size = fs::metadata(directory)?.len();
    match usize::try_from(size) {
        Ok(count) if count > 0 && directory == DIRECTORIES[0] => Ok(count),
        // The directory itself is open while it is read.
        _ => Ok(fs::read_dir(directory)?.count().saturating_sub(1)),
    }
}

/// The limit on the process's open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The maximum number of open files.
    pub limit: usize,
    /// Files that connections leave to the store and the admin listener.
    pub reserve: usize,
}

/// The number of connections that may use the reserve if the store has grown into it, so that the store stays
/// reachable. Half of the remaining descriptors stay free in any case.
const MIN_CONNECTIONS: usize = 8;

impl DescriptorLimit {
    /// The number of connections allowed while `others` other files are open.
    #[must_use]
    pub fn max_connections(&self, others: usize) -> usize {
        let left = self.limit.saturating_sub(others);
        left.saturating_sub(self.reserve).max(MIN_CONNECTIONS.min(left / 2))
    }
}

/// The open files of the process, counted from time to time, and their limit.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// `None` if unlimited.
    limit: Option<DescriptorLimit>,
    /// Open files other than connections, as of the last count.
    others: AtomicUsize,
}

impl Descriptors {
    pub(crate) fn new(limit: Option<DescriptorLimit>) -> Self {
        let descriptors = Self { limit, others: AtomicUsize::new(0) };
        descriptors.refresh(0);
        descriptors
    }

    /// Updates the count of open files other than the `connections` open connections. Returns the number of connections
    /// that exceed the limit.
    pub(crate) fn refresh(&self, connections: usize) -> usize {
        let Some(limit) = self.limit else { return 0 };
        // If the files cannot be counted, the last count remains in force.
        let Ok(open) = open_files() else { return 0 };
        let others = open.saturating_sub(connections);
        self.others.store(others, Ordering::Relaxed);
        connections.saturating_sub(limit.max_connections(others))
    }

    /// Returns true if `connections` connections are allowed, by the last count of other open files.
    pub(crate) fn allow_connections(&self, connections: usize) -> bool {
        let others = self.others.load(Ordering::Relaxed);
        self.limit.is_none_or(|limit| connections <= limit.max_connections(others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn open_files_are_counted() {
        let before = open_files().unwrap();
        let files: Vec<_> = (0..50).map(|_| File::open("/dev/null").unwrap()).collect();
        // Other tests open and close files concurrently.
        assert!(open_files().unwrap().abs_diff(before + files.len()) < 40);
        assert!(count(DIRECTORIES[1]).unwrap().abs_diff(before + files.len()) < 40);
    }

    #[test]
    fn other_open_files_reduce_the_allowed_connections() {
        let limit = DescriptorLimit { limit: 64, reserve: 24 };
        let connections = [0, 17, 30, 35, 47, 60, 63, 100].map(|others| limit.max_connections(others));
        assert_eq!(connections, [40, 23, 10, 8, 8, 2, 0, 0]);
        let descriptors = Descriptors::new(Some(DescriptorLimit { limit: 1 << 20, reserve: 100 }));
        assert_eq!(descriptors.refresh(0), 0);
        assert!(descriptors.allow_connections(1000) && !descriptors.allow_connections(1 << 20));
        let descriptors = Descriptors::new(Some(DescriptorLimit { limit: 1, reserve: 1 }));
        assert!(!descriptors.allow_connections(1));
        assert!(descriptors.refresh(open_files().unwrap()) > 0);
        assert!(Descriptors::new(None).allow_connections(1 << 30));
    }
}
