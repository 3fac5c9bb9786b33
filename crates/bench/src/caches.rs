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

/// How caches were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// The kernel dropped the page cache, dentries and inodes of the whole machine.
    Dropped,
    /// The kernel was advised per file that its pages are not needed. Dentries and inodes stay cached.
    Advised,
    /// Caches were not dropped.
    #[default]
    Kept,
}

impl Caches {
    /// Returns true if caches were not dropped.
    #[must_use]
    pub fn are_kept(&self) -> bool {
        *self == Self::Kept
    }
}

impl fmt::Display for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dropped => "dropped by the kernel",
            Self::Advised => "the kernel was advised that the files' pages are not needed",
            Self::Kept => "kept",
        })
    }
}

/// The kernel interface that drops the caches of the whole machine.
#[derive(Debug, Clone)]
pub struct Kernel {
    control_file: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::asked_by(CONTROL_FILE)
    }
}

impl Kernel {
    /// Uses the given control file.
    pub fn asked_by(file: impl Into<PathBuf>) -> Self {
        Self { control_file: file.into() }
    }

    /// Checks without dropping anything that this process may drop caches. Otherwise returns the reason.
    pub fn may_be_asked(&self) -> Result<(), String> {
        OpenOptions::new().write(true).open(&self.control_file).map(drop).map_err(|e| self.write_error(&e))
    }

    /// Drops all clean caches. Blocks.
    pub(crate) fn drop_all(&self) -> Result<(), String> {
        fs::write(&self.control_file, DROP_ALL).map_err(|e| self.write_error(&e))
    }

    /// Writes back all dirty pages of the machine, then drops all caches. Blocks until both are done.
    pub(crate) fn write_and_drop_all(&self) -> Result<(), String> {
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
    asks_kernel: bool,
) -> (Caches, Option<String>) {
    let why = if asks_kernel {
        match Kernel::default().drop_all() {
            Ok(()) => return (Caches::Dropped, None),
            Err(why) => why,
        }
    } else {
        "dropping the machine's caches was disabled".to_owned()
    };
    let mut is_advised = true;
    for path in files {
        let file = open(path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        is_advised &= file.and_then(|file| fadvise(file, 0, None, Advice::DontNeed)).is_ok();
    }
    (if is_advised { Caches::Advised } else { Caches::Kept }, Some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_writes_the_control_file_or_reports_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Kernel::asked_by(directory.path().join("none").join("drop_caches"));
        let why = missing.may_be_asked().unwrap_err();
        assert!(why.contains("cannot write ") && why.contains("drop_caches: "), "{why}");
        assert!(why.contains("this needs root"), "{why}");
        assert_eq!(missing.drop_all().unwrap_err(), why);
        let file = directory.path().join("control");
        fs::write(&file, "").unwrap();
        let kernel = Kernel::asked_by(&file);
        kernel.may_be_asked().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"", "the check drops nothing");
        kernel.drop_all().unwrap();
        assert_eq!(fs::read(&file).unwrap(), DROP_ALL);
    }
}
