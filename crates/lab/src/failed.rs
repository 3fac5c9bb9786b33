//! What could not be done, and what it may need.

use std::fmt;
use std::io;

/// See the module.
#[derive(Debug)]
pub struct Failed {
    what: String,
    error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.error)?;
        match self.error.kind() {
            io::ErrorKind::PermissionDenied => {
                f.write_str("; it needs root, or CAP_SYS_ADMIN and, for a link, CAP_NET_ADMIN")
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                f.write_str("; it needs a /sys/fs/cgroup that can be written")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What was tried, for `map_err`: it stands behind "cannot".
pub(crate) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Failed {
    |error| Failed { what: what.into(), error: error.into() }
}
