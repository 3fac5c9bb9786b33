//! The directory that is watched: the one that was there at the beginning, and no other.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use crate::files::{Tree, failed};

/// Which directory it is.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    identity: (u64, u64),
}

impl Root {
    pub fn of(path: &Path) -> Result<Self> {
        let found = fs::metadata(path).map_err(|e| failed("look at", path, e))?;
        Ok(Self { path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is at a path below it. No directory on the way is entered through a link: it may lead anywhere.
    pub fn look(&self, below: &Path) -> Result<Found> {
        let tree = Tree::open(&self.path).map_err(|_| gone(&self.path))?;
        match tree.metadata(below) {
            Ok(found) => Ok(Found::Itself(found)),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::LOOP) => match tree.first_link(below) {
                Some(link) => Ok(Found::BehindLink(link)),
                // It is a directory again by now: an event tells of that.
                None => Ok(Found::Nothing),
            },
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Found::Nothing)
            }
            Err(e) => Err(tree.failed("look at", below, e)),
        }
    }

    /// An error where it is gone. What is missing then was not removed: it is somewhere else.
    pub fn check(&self) -> Result<()> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            _ => Err(gone(&self.path)),
        }
    }
}

/// What is at a path.
#[derive(Debug)]
pub(super) enum Found {
    /// This, which may be a link itself.
    Itself(Metadata),
    /// Nothing.
    Nothing,
    /// This directory on the way is a link.
    BehindLink(PathBuf),
}

/// The directory is not where it was.
pub(super) fn gone(path: &Path) -> Error {
    let why = format!(
        "{} is no longer the directory that it was; nothing more is carried or removed for it",
        path.display()
    );
    Error::new(Reason::NoSuchKey, why)
}
