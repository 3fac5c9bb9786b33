//! Drops page caches, so that reads come from the storage. With root permission, the kernel drops those of the whole
//! machine. Otherwise it is advised that the pages of single files are not needed, which it may ignore. That is only
//! the fallback, because some file systems fetch a file when it is opened. Neither reaches user-space caches or those
//! of other machines.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use serde::{Deserialize, Serialize};

/// Drops the page cache, dentries and inodes.
const DROP_ALL: &[u8] = b"3\n";
const CONTROL_FILE: &str = "/proc/sys/vm/drop_caches";

/// The method by which caches were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheTreatment {
    /// The kernel dropped the page cache, dentries and inodes of the whole machine.
    Dropped,
    /// The kernel was advised per file that its pages are not needed. Dentries and inodes stay cached.
    Advised,
    /// Caches were not dropped.
    #[default]
    NotDropped,
}

impl CacheTreatment {
    /// Returns true if caches were not dropped.
    #[must_use]
    pub fn is_not_dropped(&self) -> bool {
        *self == Self::NotDropped
    }
}

impl fmt::Display for CacheTreatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dropped => "dropped by the kernel",
            Self::Advised => "the kernel was advised that the files' pages are not needed",
            Self::NotDropped => "not dropped",
        })
    }
}

/// The kernel interface that drops the caches of the whole machine.
#[derive(Debug, Clone)]
pub struct CacheDropper {
    control_file: PathBuf,
}

impl Default for CacheDropper {
    fn default() -> Self {
        Self::with_control_file(CONTROL_FILE)
    }
}

impl CacheDropper {
    /// Uses the given control file.
    pub fn with_control_file(file: impl Into<PathBuf>) -> Self {
        Self { control_file: file.into() }
    }

    /// Checks without dropping anything that this process may drop caches. Otherwise returns the reason.
    pub fn check_permission(&self) -> Result<(), String> {
        OpenOptions::new().write(true).open(&self.control_file).map(drop).map_err(|e| self.write_error(&e))
    }

    /// Drops all clean caches. Blocks.
    pub(crate) fn drop_all(&self) -> Result<(), String> {
        fs::write(&self.control_file, DROP_ALL).map_err(|e| self.write_error(&e))
    }

    /// Writes back all dirty pages of the machine, then drops all caches. Blocks until both are done.
    pub(crate) fn sync_and_drop_all(&self) -> Result<(), String> {
        rustix::fs::sync();
        self.drop_all()
    }

    fn write_error(&self, e: &io::Error) -> String {
        format!("cannot write {}: {e}; this needs root", self.control_file.display())
    }
}

/// Drops the caches of files that have been synced. If the kernel does not drop all caches, returns the reason.
pub(crate) fn drop_caches<'a>(
    files: impl Iterator<Item = impl AsRef<Path> + 'a>,
    may_use_kernel: bool,
) -> (CacheTreatment, Option<String>) {
    let reason = if may_use_kernel {
        match CacheDropper::default().drop_all() {
            Ok(()) => return (CacheTreatment::Dropped, None),
            Err(reason) => reason,
        }
    } else {
        "dropping the machine's caches was disabled".to_owned()
    };
    let mut is_advised = true;
    for path in files {
        let file = open(path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        is_advised &= file.and_then(|file| fadvise(file, 0, None, Advice::DontNeed)).is_ok();
    }
    (if is_advised { CacheTreatment::Advised } else { CacheTreatment::NotDropped }, Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_writes_the_control_file_or_reports_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let missing = CacheDropper::with_control_file(directory.path().join("none").join("drop_caches"));
        let reason = missing.check_permission().unwrap_err();
        assert!(reason.contains("cannot write ") && reason.contains("drop_caches: "), "{reason}");
        assert!(reason.contains("this needs root"), "{reason}");
        assert_eq!(missing.drop_all().unwrap_err(), reason);
        let file = directory.path().join("control");
        fs::write(&file, "").unwrap();
        let dropper = CacheDropper::with_control_file(&file);
        dropper.check_permission().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"", "the check drops nothing");
        dropper.drop_all().unwrap();
        assert_eq!(fs::read(&file).unwrap(), DROP_ALL);
    }
}
