//! What an error of the index's library says of the index: whether another one, made anew from the log, would
//! fare better. That is left for the next start to read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_core::error::{Error, Reason};

/// Doubts (attempts to open the index that ended with the process, say) with which the index is given up.
pub(crate) const DOUBTS_TO_GIVE_UP: usize = 2;

/// Room without which the library's threads stop though nothing is broken.
const NEEDED_ROOM: u64 = super::JOURNAL_BYTES;

/// Whether an index in use is still trusted.
pub(crate) struct Trust {
    directory: PathBuf,
    is_lost: AtomicBool,
}

impl Trust {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), is_lost: AtomicBool::new(false) }
    }

    /// The file whose bytes count the reasons not to trust the index in a directory.
    pub fn doubts(directory: &Path) -> PathBuf {
        directory.with_extension("doubts")
    }

    /// The error of an index in use. What is broken is made anew by the next start, which would not find
    /// everything that is read later.
    pub fn failed(&self, what: &str, e: fjall::Error) -> Error {
        // Its threads stop where one of them found something bad, or no room.
        let is_stopped = matches!(e, fjall::Error::Poisoned);
        let error = index_error(what, e);
        let is_broken = error.reason() == Reason::CorruptData || (is_stopped && self.has_room());
        if is_broken && !self.is_lost.swap(true, Ordering::AcqRel) {
            let doubts = [b'.'; DOUBTS_TO_GIVE_UP];
            if let Err(e) = std::fs::write(Self::doubts(&self.directory), doubts) {
                tracing::error!(error = %e, "the index is broken; remove it to have it made anew");
            }
        }
        error
    }

    fn has_room(&self) -> bool {
        rustix::fs::statvfs(&self.directory).is_ok_and(|found| found.f_bavail * found.f_frsize > NEEDED_ROOM)
    }
}

/// What is not the device's doing, nor the system's, is a broken index, which can be made anew.
pub(super) fn index_error(what: &str, e: fjall::Error) -> Error {
    let device = match &e {
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => {
            Some(e).filter(|e| is_of_the_system(e)).map(std::io::Error::kind)
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

/// Whether another index would fare no better. A file that is too short, or not there, or there already, is
/// found out by the library itself or by the system's answer to what only a broken index asks for.
fn is_of_the_system(e: &std::io::Error) -> bool {
    use ErrorKind::{AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let of_the_index = [AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound];
    e.raw_os_error().is_some() && !of_the_index.contains(&e.kind())
}
