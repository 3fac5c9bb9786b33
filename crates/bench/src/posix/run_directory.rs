//! The directory that a run creates for all its files. Nothing outside of it is touched, and it can be removed as a
//! whole. Name and contents of a file follow from its number, which is unique in the run, so a leftover of an earlier
//! file cannot be mistaken for it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::quantity::ByteSize;
use tradewind_pattern::ContentId;

use super::access_stats::FileFailure;

/// The directory of a run.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    next_number: AtomicU64,
}

/// A descriptor of the file system, opened before data is written. A later `syncfs` on it reports every write-back
/// error since then, even if another process has synced in between.
#[derive(Debug)]
pub(super) struct SyncHandle(rustix::io::Result<OwnedFd>);

/// A file of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunFile {
    pub number: u64,
    /// Each thread has a directory of its own, so that contention on a shared one is not measured.
    pub thread: usize,
    pub size: u64,
}

impl RunDirectory {
    /// Creates the directory `name` in `parent`.
    pub fn create(parent: &Path, name: &str) -> Result<Self> {
        let shown = parent.display();
        if !parent.is_dir() {
            let reason = if parent.exists() { "it is not a directory" } else { "there is no such directory" };
            return Err(Error::new(Reason::InvalidArgument, format!("cannot measure {shown}: {reason}")));
        }
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|e| {
            Error::with_source(
                Reason::Io,
                format!("cannot measure {shown}: cannot create a directory in it: {e}"),
                e,
            )
        })?;
        Ok(Self { path, next_number: AtomicU64::new(0) })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_path(&self, file: RunFile) -> PathBuf {
        self.path.join(format!("{:02}", file.thread)).join(format!("{:08}", file.number))
    }

    /// The contents of a file. They do not depend on its size, so that a file can grow.
    pub(super) fn content(&self, file: RunFile) -> ContentId {
        ContentId::new(&format!("{}/{:08}", self.path.display(), file.number), 0)
    }

    /// Allocates `count` new files of a thread and creates the thread's directory.
    pub(super) fn new_files(&self, thread: usize, count: u64, size: u64) -> Result<Vec<RunFile>> {
        let first = self.next_number.fetch_add(count, Ordering::Relaxed);
        let files: Vec<RunFile> =
            (first..first + count).map(|number| RunFile { number, thread, size }).collect();
        let directory = self.path.join(format!("{thread:02}"));
        fs::create_dir_all(&directory).map_err(|e| {
            Error::with_source(Reason::Io, format!("cannot create {}: {e}", directory.display()), e)
        })?;
        Ok(files)
    }

    /// Allocates one new file of the first thread.
    pub(super) fn new_file(&self, size: u64) -> Result<RunFile> {
        Ok(self.new_files(0, 1, size)?[0])
    }

    /// Opens the file system for a later [`sync`](Self::sync). Call it before writing.
    pub(super) fn open_for_sync(&self) -> SyncHandle {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        SyncHandle(rustix::fs::open(&self.path, flags, Mode::empty()))
    }

    /// Makes all data of the file system durable. Fails if data written since `sync_handle` was opened, or since its
    /// last sync, could not be written back.
    pub(super) fn sync(&self, sync_handle: &SyncHandle) -> std::result::Result<(), FileFailure> {
        let synced = sync_handle.0.as_ref().map_err(|e| *e).and_then(rustix::fs::syncfs);
        synced.map_err(|e| {
            let error = io::Error::from(e);
            let mut message = format!("cannot make durable what was written: {error}");
            if is_full(&error) {
                message.push_str(&self.free_space());
            }
            FileFailure { kind: "NotDurable".to_owned(), message, is_fatal: false }
        })
    }

    /// Describes a failed operation on a file.
    pub(super) fn file_error(&self, file: RunFile, action: &str, error: &io::Error) -> FileFailure {
        use io::ErrorKind::{ReadOnlyFilesystem, StaleNetworkFileHandle};
        let kind = error.kind();
        let name = self.file_path(file);
        let name = name.strip_prefix(&self.path).unwrap_or(&name).display();
        let mut message = format!("{action} {name}: {error}");
        if is_full(error) {
            message.push_str(&self.free_space());
        }
        let is_fatal = is_full(error) || matches!(kind, ReadOnlyFilesystem | StaleNetworkFileHandle);
        let kind = format!("{kind:?}");
        // Errors without a kind in std are named by their number.
        let kind =
            error.raw_os_error().filter(|_| kind == "Uncategorized").map_or(kind, |code| format!("Os{code}"));
        FileFailure { kind, message, is_fatal }
    }

    /// Free space and inodes of the file system, as a suffix for messages.
    fn free_space(&self) -> String {
        let Ok(found) = rustix::fs::statvfs(&self.path) else { return String::new() };
        let bytes = |blocks: u64| ByteSize(blocks.saturating_mul(found.f_frsize));
        let (free, all) = (bytes(found.f_bavail), bytes(found.f_blocks));
        format!(
            "; {free} of {all} of the file system and {} of {} inodes are free",
            found.f_favail, found.f_files
        )
    }

    /// Removes all files but keeps the directory.
    pub(super) fn remove_files(&self) -> Result<()> {
        let removed = fs::read_dir(&self.path)
            .and_then(|mut entries| entries.try_for_each(|entry| fs::remove_dir_all(entry?.path())));
        removed.map_err(|e| self.removal_error(e))
    }

    /// Removes the directory with all files.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(|e| self.removal_error(e))
    }

    fn removal_error(&self, e: io::Error) -> Error {
        Error::with_source(Reason::Io, format!("cannot remove {}: {e}", self.path.display()), e)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_removes_only_its_own_directory() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("mine"), b"stays").unwrap();
        let directory = RunDirectory::create(parent.path(), "own").unwrap();
        let file = directory.new_files(3, 2, 10).unwrap()[1];
        fs::write(directory.file_path(file), b"0123456789").unwrap();
        assert_ne!(directory.content(file), directory.content(directory.new_file(10).unwrap()));
        directory.remove_files().unwrap();
        assert!(directory.path().exists() && !directory.file_path(file).exists());
        directory.remove().unwrap();
        let left: Vec<_> =
            fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
        let error = RunDirectory::create(&parent.path().join("not-there"), "own").unwrap_err();
        assert!(error.to_string().contains("there is no such directory"), "{error}");
        let error = RunDirectory::create(&parent.path().join("mine"), "own").unwrap_err();
        assert!(error.to_string().contains("it is not a directory"), "{error}");
    }
}
