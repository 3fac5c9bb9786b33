//! A file that is being written: under a name of its own until it is whole. Then it takes the place of whatever had its
//! name. Dropped before that, it is removed.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_volume::Sink;

use super::failed;
use crate::progress::Progress;

/// From this size on the file system is told beforehand how large the file becomes.
const WORTH_PREALLOCATING: u64 = 1 << 20;
/// What the name of an unfinished file ends with.
const UNFINISHED: &str = ".tradewind-part";

/// A directory that files are written into, and the directories below it that are known to be there.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Tells the unfinished files of one process and moment from those of others.
    mark: u64,
    count: AtomicU64,
    made: Mutex<HashSet<PathBuf>>,
}

impl Directory {
    /// The directory need not be there.
    pub fn new(root: PathBuf) -> Result<Self> {
        let mark = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("the system gives no random bytes: {e}")))?;
        Ok(Self { root, mark, count: AtomicU64::new(0), made: Mutex::default() })
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes a file below the directory, and the directories above it that are empty then.
    pub fn remove(&self, below: &Path) -> Result<()> {
        let path = self.root.join(below);
        fs::remove_file(&path).map_err(|e| failed("remove", &path, e))?;
        let parents = below.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        for parent in parents {
            // One that is not empty stays, and so do those above it.
            if fs::remove_dir(self.root.join(parent)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Begins a file of `size` bytes at a path below the directory.
    pub fn begin(&self, below: &Path, size: u64, progress: Arc<Progress>) -> Result<NewFile> {
        let path = self.root.join(below);
        let Some((parent, name)) = path.parent().zip(path.file_name()) else {
            return Err(Error::new(Reason::InvalidKey, format!("{} is not a file's name", path.display())));
        };
        self.make(parent)?;
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut unfinished = OsString::from(".");
        // Not the whole name: the two together may be too long for one.
        unfinished.push(&*name.to_string_lossy().chars().take(32).collect::<String>());
        unfinished.push(format!(".{:016x}-{number}{UNFINISHED}", self.mark));
        let unfinished = parent.join(unfinished);
        let open = OpenOptions::new().write(true).create_new(true).open(&unfinished);
        let file = open.map_err(|e| failed("make", &unfinished, e))?;
        let new = NewFile { file, path, unfinished, size, is_kept: false, progress };
        if size >= WORTH_PREALLOCATING {
            new.preallocate()?;
        }
        Ok(new)
    }

    fn make(&self, directory: &Path) -> Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.contains(directory) {
            return Ok(());
        }
        fs::create_dir_all(directory).map_err(|e| failed("make the directory", directory, e))?;
        made.insert(directory.to_owned());
        Ok(())
    }
}

/// An unfinished file.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    unfinished: PathBuf,
    size: u64,
    is_kept: bool,
    progress: Arc<Progress>,
}

impl NewFile {
    fn preallocate(&self) -> Result<()> {
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, self.size) {
            // Better told now than after the bytes were fetched.
            Err(rustix::io::Errno::NOSPC) => {
                Err(failed("reserve room for", &self.path, rustix::io::Errno::NOSPC))
            }
            // Some file systems cannot: the file grows then.
            _ => Ok(()),
        }
    }

    /// Gives it its name, and the time it was written at.
    pub fn finish(&mut self, modified: Timestamp) -> Result<()> {
        self.file.set_modified(modified.to_system_time()).map_err(|e| failed("date", &self.unfinished, e))?;
        fs::rename(&self.unfinished, &self.path).map_err(|e| failed("name", &self.path, e))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Sink for NewFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|e| failed("write", &self.unfinished, e))?;
        self.progress.carried(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(e) = fs::remove_file(&self.unfinished)
        {
            tracing::warn!(error = %e, path = %self.unfinished.display(), "an unfinished file is left");
        }
    }
}
