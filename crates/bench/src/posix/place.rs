//! The one directory that a measurement makes, in which everything else lies: nothing beside it is touched, and it can be
//! removed as a whole. A file is named and filled by its number, which no other file of the run has: what is left of an
//! earlier one never passes for it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::quantity::ByteSize;
use tradewind_pattern::ContentId;

use super::tally::Failed;

/// See the module.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    numbers: AtomicU64,
}

/// The file system, as it was opened before something is written: of what the kernel cannot write behind it is told here,
/// whoever else asks meanwhile.
#[derive(Debug)]
pub(super) struct Behind(rustix::io::Result<OwnedFd>);

/// A file of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    pub number: u64,
    /// Each thread has a directory: what is measured is not how they wait for one that they share.
    pub thread: usize,
    pub size: u64,
}

impl Place {
    /// Makes the directory `name` in `parent`.
    pub fn make(parent: &Path, name: &str) -> Result<Self> {
        let shown = parent.display();
        if !parent.is_dir() {
            let why = if parent.exists() { "it is no directory" } else { "there is no such directory" };
            return Err(Error::new(Reason::InvalidArgument, format!("{shown} cannot be measured: {why}")));
        }
        let directory = parent.join(name);
        fs::create_dir(&directory).map_err(|e| {
            Error::with_source(
                Reason::Io,
                format!("{shown} cannot be measured: nothing can be made in it: {e}"),
                e,
            )
        })?;
        Ok(Self { directory, numbers: AtomicU64::new(0) })
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self, file: File) -> PathBuf {
        self.directory.join(format!("{:02}", file.thread)).join(format!("{:08}", file.number))
    }

    /// What a file holds. It does not depend on its size, so that one that grows keeps what it has.
    pub(super) fn content(&self, file: File) -> ContentId {
        ContentId::of(&format!("{}/{:08}", self.directory.display(), file.number), 0)
    }

    /// Files of a thread that were not there before, with the directory they lie in.
    pub(super) fn files(&self, thread: usize, count: u64, size: u64) -> Result<Vec<File>> {
        let first = self.numbers.fetch_add(count, Ordering::Relaxed);
        let files: Vec<File> = (first..first + count).map(|number| File { number, thread, size }).collect();
        let directory = self.directory.join(format!("{thread:02}"));
        fs::create_dir_all(&directory).map_err(|e| {
            Error::with_source(Reason::Io, format!("{} cannot be made: {e}", directory.display()), e)
        })?;
        Ok(files)
    }

    /// One of the first thread.
    pub(super) fn file(&self, size: u64) -> Result<File> {
        Ok(self.files(0, 1, size)?[0])
    }

    /// To be had before something is written that is to be made durable.
    pub(super) fn behind(&self) -> Behind {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Behind(rustix::fs::open(&self.directory, flags, Mode::empty()))
    }

    /// Makes everything in the file system durable. It fails where something that was written since `behind` was had, or since
    /// it was asked the last time, could not be.
    pub(super) fn sync(&self, behind: &Behind) -> std::result::Result<(), Failed> {
        let synced = behind.0.as_ref().map_err(|e| *e).and_then(rustix::fs::syncfs);
        synced.map_err(|e| {
            let error = io::Error::from(e);
            let mut what = format!("cannot make durable what was written: {error}");
            if is_full(&error) {
                what.push_str(&self.room());
            }
            Failed { kind: "NotDurable".to_owned(), what, is_for_all: false }
        })
    }

    /// Why something could not be done to a file.
    pub(super) fn failed(&self, file: File, what: &str, error: &io::Error) -> Failed {
        use io::ErrorKind::{ReadOnlyFilesystem, StaleNetworkFileHandle};
        let kind = error.kind();
        let name = self.path(file);
        let name = name.strip_prefix(&self.directory).unwrap_or(&name).display();
        let mut text = format!("{what} {name}: {error}");
        if is_full(error) {
            text.push_str(&self.room());
        }
        let is_for_all = is_full(error) || matches!(kind, ReadOnlyFilesystem | StaleNetworkFileHandle);
        let kind = format!("{kind:?}");
        // What has no name of its own is told by its number.
        let kind =
            error.raw_os_error().filter(|_| kind == "Uncategorized").map_or(kind, |code| format!("Os{code}"));
        Failed { kind, what: text, is_for_all }
    }

    /// How full the file system is, in words.
    fn room(&self) -> String {
        let Ok(found) = rustix::fs::statvfs(&self.directory) else { return String::new() };
        let bytes = |blocks: u64| ByteSize(blocks.saturating_mul(found.f_frsize));
        let (free, all) = (bytes(found.f_bavail), bytes(found.f_blocks));
        format!(
            "; of the {all} of its file system {free} are free, and {} of {} files",
            found.f_favail, found.f_files
        )
    }

    /// Removes what was made so far and leaves the directory.
    pub(super) fn empty(&self) -> Result<()> {
        let removed = fs::read_dir(&self.directory)
            .and_then(|mut entries| entries.try_for_each(|entry| fs::remove_dir_all(entry?.path())));
        removed.map_err(|e| self.left(e))
    }

    /// Removes everything, the directory too.
    pub fn clean(&self) -> Result<()> {
        fs::remove_dir_all(&self.directory).map_err(|e| self.left(e))
    }

    fn left(&self, e: io::Error) -> Error {
        Error::with_source(Reason::Io, format!("{} cannot be removed: {e}", self.directory.display()), e)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("mine"), b"stays").unwrap();
        let place = Place::make(parent.path(), "own").unwrap();
        let file = place.files(3, 2, 10).unwrap()[1];
        fs::write(place.path(file), b"0123456789").unwrap();
        assert_ne!(place.content(file), place.content(place.file(10).unwrap()));
        place.empty().unwrap();
        assert!(place.directory().exists() && !place.path(file).exists());
        place.clean().unwrap();
        let left: Vec<_> =
            fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
        let error = Place::make(&parent.path().join("not-there"), "own").unwrap_err();
        assert!(error.to_string().contains("there is no such directory"), "{error}");
        let error = Place::make(&parent.path().join("mine"), "own").unwrap_err();
        assert!(error.to_string().contains("it is no directory"), "{error}");
    }
}
