//! Classification of the errors of the index library (fjall), and the record of those that require a rebuild. If an index rebuilt from the log would avoid an error,
//! the index is broken, and the next open of the store rebuilds it.
//!
//! The file `index.doubts` carries that decision over a restart. Each of its bytes is one *doubt*: a reason to distrust
//! the index. With [`MAX_DOUBTS`] doubts it is rebuilt. An attempt to open the index adds a doubt before it begins and
//! clears all doubts when it returns, so a doubt that remains stands for an attempt that crashed the process. An index
//! that broke in use, or could not be read, gets [`MAX_DOUBTS`] doubts.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_core::error::{Error, Reason};

/// Number of doubts with which the next open of the store rebuilds the index.
pub(crate) const MAX_DOUBTS: usize = 2;

/// Free space below which the library's threads may have stopped for lack of space, so that their stop proves nothing.
const MIN_FREE_BYTES: u64 = super::JOURNAL_BYTES;

/// Classifies the errors of one index in use.
pub(crate) struct IndexTrust {
    directory: PathBuf,
    /// True once the index was found to be broken.
    is_known_broken: AtomicBool,
}

impl IndexTrust {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), is_known_broken: AtomicBool::new(false) }
    }

    /// The path of the doubts file of the index in a directory.
    pub fn doubts_path(directory: &Path) -> PathBuf {
        directory.with_extension("doubts")
    }

    /// Returns true if the index in a directory must be rebuilt instead of opened.
    pub fn must_rebuild(directory: &Path) -> bool {
        let doubts = std::fs::metadata(Self::doubts_path(directory)).map_or(0, |metadata| metadata.len());
        doubts >= MAX_DOUBTS as u64
    }

    /// Classifies the error of an index in use. If the index is broken, records that for the next open of the store,
    /// which might otherwise not notice: opening an index does not read all of it.
    pub fn classify_and_record(&self, what: &str, e: fjall::Error) -> Error {
        // The library's threads stop on corruption, or without free space.
        let is_stopped = matches!(e, fjall::Error::Poisoned);
        let error = index_error(what, e);
        let is_broken = error.reason() == Reason::CorruptData || (is_stopped && self.has_free_space());
        if is_broken && !self.is_known_broken.swap(true, Ordering::AcqRel) {
            let doubts = [b'.'; MAX_DOUBTS];
            if let Err(e) = std::fs::write(Self::doubts_path(&self.directory), doubts) {
                tracing::error!(error = %e, "the index is broken; remove it so that it is rebuilt");
            }
        }
        error
    }

    fn has_free_space(&self) -> bool {
        rustix::fs::statvfs(&self.directory)
            .is_ok_and(|found| found.f_bavail * found.f_frsize > MIN_FREE_BYTES)
    }
}

/// Converts an error of the index library. `CorruptData` if neither the device nor the system caused it: then the index
/// is broken, and can be rebuilt.
pub(super) fn index_error(what: &str, e: fjall::Error) -> Error {
    let system_error = match &e {
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => {
            Some(e).filter(|e| is_system_error(e)).map(std::io::Error::kind)
        }
        fjall::Error::Poisoned | fjall::Error::Locked => Some(ErrorKind::Other),
        _ => None,
    };
    let reason = match system_error {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Reason::Full,
        Some(_) => Reason::Io,
        None => Reason::CorruptData,
    };
    Error::with_source(reason, what.to_owned(), e)
}

/// Returns true if another index would fail, too. Errors without a code come from the library, which found a file to be
/// too short. Those in the list below come from the system, but only a broken index causes them.
fn is_system_error(e: &std::io::Error) -> bool {
    use ErrorKind::{AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let index_errors = [AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound];
    e.raw_os_error().is_some() && !index_errors.contains(&e.kind())
}
