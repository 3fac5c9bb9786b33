//! The directory that is watched: the one that was there at the beginning, and no other.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tradewind_core::error::{Error, Reason, Result};

use crate::files::failed;

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

    /// An error where it is gone. What is missing then was not removed: it is somewhere else.
    pub fn check(&self) -> Result<()> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            _ => Err(gone(&self.path)),
        }
    }
}

/// The directory is not where it was.
pub(super) fn gone(path: &Path) -> Error {
    let why = format!(
        "{} is no longer the directory that it was; nothing more is carried or removed for it",
        path.display()
    );
    Error::new(Reason::NoSuchKey, why)
}
