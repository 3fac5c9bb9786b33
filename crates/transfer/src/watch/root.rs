//! The watched directory, identified by device and inode: a directory that replaces it at the same path does not count.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use crate::files::{Tree, file_error};

/// The path and identity of the directory.
#[derive(Debug)]
pub(super) struct WatchedRoot {
    path: PathBuf,
    identity: (u64, u64),
}

impl WatchedRoot {
    pub fn open(path: &Path) -> Result<Self> {
        let found = fs::metadata(path).map_err(|e| file_error("access", path, e))?;
        Ok(Self { path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks up a path below the directory. No component is followed through a link, which could lead out of it.
    pub fn lookup(&self, below: &Path) -> Result<Lookup> {
        let tree = Tree::open(&self.path).map_err(|_| root_gone_error(&self.path))?;
        match tree.metadata(below) {
            Ok(found) => Ok(Lookup::Entry(found)),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::LOOP) => match tree.first_link(below) {
                Some(link) => Ok(Lookup::ThroughLink(link)),
                // The link was replaced by a directory again; an event will report that.
                None => Ok(Lookup::Missing),
            },
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Lookup::Missing)
            }
            Err(e) => Err(tree.error("access", below, e)),
        }
    }

    /// Fails if the directory is gone or replaced: files missing then were not removed.
    pub fn check(&self) -> Result<()> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            _ => Err(root_gone_error(&self.path)),
        }
    }
}

/// The result of looking up a path.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The metadata of the entry, which may be a link itself.
    Entry(Metadata),
    /// No entry.
    Missing,
    /// The path leads through this link.
    ThroughLink(PathBuf),
}

/// The error for a watched directory that is gone or replaced.
pub(super) fn root_gone_error(path: &Path) -> Error {
    let why = format!(
        "{} is no longer the directory that was watched; nothing more is copied or removed",
        path.display()
    );
    Error::new(Reason::NoSuchKey, why)
}
