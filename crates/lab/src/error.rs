//! The error type of the lab: the failed action, its cause, and the required privileges.

use std::fmt;
use std::io;

/// An action that failed, with its cause.
#[derive(Debug)]
pub struct LabError {
    what: String,
    error: io::Error,
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.error)?;
        match self.error.kind() {
            io::ErrorKind::PermissionDenied => {
                f.write_str("; this needs root, or CAP_SYS_ADMIN (and CAP_NET_ADMIN for links)")
            }
            io::ErrorKind::ReadOnlyFilesystem => f.write_str("; this needs a writable /sys/fs/cgroup"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// For `map_err`: the action that failed, worded to follow "cannot".
pub(crate) fn cannot<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> LabError {
    |error| LabError { what: what.into(), error: error.into() }
}
