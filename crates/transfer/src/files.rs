//! Files: found below a directory, read as sources, and written so that nobody sees half of one.

mod directory;
mod draft;
mod find;
mod new;
mod place;
mod source;
mod tree;

pub use directory::{Directory, Version};
pub(crate) use find::{Entry, entries, is_unfinished};
pub use find::{Links, find, find_below};
pub use new::NewFile;
pub use source::FileSource;
pub use tree::{Overlap, Tree};

use std::io;
use std::path::Path;

use tradewind_core::error::{Error, Reason};

/// What went wrong with a file, in the port's words.
pub(crate) fn failed(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let reason = match error.kind() {
        io::ErrorKind::NotFound => Reason::NoSuchKey,
        io::ErrorKind::PermissionDenied => Reason::AccessDenied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::Full,
        io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Reason::InvalidKey
        }
        // Not one to try again: a disk that fails goes on failing.
        _ => Reason::Defect,
    };
    let failed = Error::with_source(reason, format!("cannot {what} {}: {error}", path.display()), error);
    // A store may have room again after a moment; whoever owns this disk makes some, or nobody does.
    if reason == Reason::Full { failed.after_retries() } else { failed }
}
