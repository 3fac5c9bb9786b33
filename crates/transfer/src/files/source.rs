//! A file as the source of an object. It is read again where a request failed, and must be the same file then.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_volume::Source;

use super::failed;
use crate::progress::Progress;

/// An open file.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    seen: Seen,
    progress: Arc<Progress>,
}

/// What tells whether a file was written to.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl FileSource {
    /// Opens a file.
    pub fn open(path: &Path, progress: Arc<Progress>) -> Result<Self> {
        let file = File::open(path).map_err(|e| failed("open", path, e))?;
        let metadata = file.metadata().map_err(|e| failed("look at", path, e))?;
        if !metadata.is_file() {
            return Err(Error::new(Reason::InvalidRequest, format!("{} is not a file", path.display())));
        }
        Ok(Self { file, path: path.to_owned(), seen: Seen::of(&metadata), progress })
    }

    /// Bytes in it.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.seen.size
    }

    /// When it was written last.
    #[must_use]
    pub fn modified(&self) -> Timestamp {
        let (seconds, nanos) = self.seen.modified;
        Timestamp::from_millis(seconds * 1000 + nanos / 1_000_000)
    }

    fn changed(&self) -> Error {
        Error::new(Reason::Conflict, format!("{} was written to while it was read", self.path.display()))
    }
}

impl Source for FileSource {
    fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut at = 0;
        while at < length {
            match self.file.read_at(&mut bytes[at..], offset + at as u64) {
                Ok(0) => return Err(self.changed()),
                Ok(read) => at += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("read", &self.path, e)),
            }
        }
        Ok(bytes)
    }

    fn sent(&self, bytes: i64) {
        self.progress.carried(bytes);
    }

    fn check(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|e| failed("look at", &self.path, e))?;
        if Seen::of(&metadata) == self.seen { Ok(()) } else { Err(self.changed()) }
    }
}
