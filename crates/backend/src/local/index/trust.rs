//! Classification of the index library's errors: decides whether an index rebuilt from the log would avoid them, and
//! records that for the next start.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_core::error::{Error, Reason};

/// Number of recorded doubts at which the index is abandoned. Each stands for an attempt to open it that did not
/// return.
pub(crate) const MAX_DOUBTS: usize = 2;

/// Free space below which the library's threads stop although nothing is broken.
const MIN_FREE_BYTES: u64 = super::JOURNAL_BYTES;

/// Tracks whether an index in use is still trusted.
pub(crate) struct IndexTrust {
    directory: PathBuf,
    is_lost: AtomicBool,
}

impl IndexTrust {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), is_lost: AtomicBool::new(false) }
    }

    /// The file whose length counts the reasons not to trust the index in a directory.
    pub fn doubts_path(directory: &Path) -> PathBuf {
        directory.with_extension("doubts")
    }

    /// Classifies the error of an index in use. If the index is broken, the next start rebuilds it; that start alone
    /// might not detect damage that is read later.
    pub fn classify_error(&self, what: &str, e: fjall::Error) -> Error {
        // The library's threads stop on corruption, or without free space.
        let is_stopped = matches!(e, fjall::Error::Poisoned);
        let error = index_error(what, e);
        let is_broken = error.reason() == Reason::CorruptData || (is_stopped && self.has_free_space());
        if is_broken && !self.is_lost.swap(true, Ordering::AcqRel) {
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

/// An error that is caused neither by the device nor by the system means a broken index, which can be rebuilt.
pub(super) fn index_error(what: &str, e: fjall::Error) -> Error {
    let device = match &e {
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => {
            Some(e).filter(|e| is_system_error(e)).map(std::io::Error::kind)
        }
        fjall::Error::Poisoned | fjall::Error::Locked => Some(ErrorKind::Other),
        _ => None,
    };
    let reason = match device {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Reason::Full,
        Some(_) => Reason::Io,
        None => Reason::CorruptData,
    };
    Error::with_source(reason, what.to_owned(), e)
}

/// Returns true if another index would fail, too. A file that is too short, missing or unexpectedly present is
/// detected by the library, or by an error of the system that only a broken index causes.
fn is_system_error(e: &std::io::Error) -> bool {
    use ErrorKind::{AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let index_errors = [AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound];
    e.raw_os_error().is_some() && !index_errors.contains(&e.kind())
}
