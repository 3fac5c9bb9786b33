//! Files as an endpoint of transfers: listed below a directory, read as sources, and published atomically, so that no
//! reader sees a partial file.

mod directory;
mod draft;
mod find;
mod location;
mod new_file;
mod replaced;
mod source;
mod tree;

pub(crate) use directory::FileOptions;
pub use directory::{Directory, ObjectVersion};
pub(crate) use find::{Entry, entries, is_unfinished};
pub use find::{Links, find, find_below};
pub use new_file::NewFile;
pub use source::FileSource;
pub use tree::{Overlap, Tree};

use std::io;
use std::path::Path;

use rustix::io::Errno;
use tradewind_core::error::{Error, Reason};

/// Returns true for a [`file_error`] of too many open files, of the process or of the machine.
pub(crate) fn lacks_descriptors(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    let code = cause.and_then(io::Error::raw_os_error);
    code.is_some_and(|code| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&code))
}

/// Converts an I/O error of a file into an [`Error`] with the message "cannot `what` `path`".
pub(crate) fn file_error(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let reason = match error.kind() {
        io::ErrorKind::NotFound => Reason::NoSuchKey,
        io::ErrorKind::PermissionDenied => Reason::AccessDenied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::Full,
        io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Reason::InvalidKey
        }
        // Not retryable: a failing disk keeps failing.
        _ => Reason::Defect,
    };
    let failed = Error::with_source(reason, format!("cannot {what} {}: {error}", path.display()), error);
    // Not retried: unlike a store, a full local disk has space again only after its owner frees some.
    if reason == Reason::Full { failed.without_retry() } else { failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_descriptors_is_known_of_files_only() {
        let error = |code: Errno| file_error("open", Path::new("file"), code);
        assert!(lacks_descriptors(&error(Errno::MFILE)) && lacks_descriptors(&error(Errno::NFILE)));
        assert!(!lacks_descriptors(&error(Errno::NOENT)));
        let request = Error::with_source(Reason::Io, "a request failed", error(Errno::MFILE));
        assert!(!lacks_descriptors(&request), "it may have been sent");
    }
}
