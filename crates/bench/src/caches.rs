//! Drops caches, so that what is read comes from where it lies. The kernel drops those of the whole machine for whoever may
//! ask it to. Anybody may advise it of the pages of single files, which it need not heed; that is done only where it must
//! be, since some file systems fetch a file when it is opened. What a process keeps for itself, and caches of other machines,
//! are reached by neither.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use serde::{Deserialize, Serialize};

/// Pages, names and attributes.
const ALL: &[u8] = b"3\n";
const ASK: &str = "/proc/sys/vm/drop_caches";

/// How caches were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// The kernel gave up pages, names and attributes, of the whole machine.
    Dropped,
    /// It was told of each file that its pages are not needed; names and attributes are kept.
    Advised,
    /// They were left alone.
    #[default]
    Kept,
}

impl Caches {
    /// Whether they were left alone.
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

/// The kernel, as it is asked to drop the caches of the whole machine.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The file that it is asked by.
    ask: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::asked_by(ASK)
    }
}

impl Kernel {
    /// Asked by writing to this file.
    pub fn asked_by(file: impl Into<PathBuf>) -> Self {
        Self { ask: file.into() }
    }

    /// Whether this process may ask it; nothing is dropped. If not, why, in words.
    pub fn may_be_asked(&self) -> Result<(), String> {
        OpenOptions::new().write(true).open(&self.ask).map(drop).map_err(|e| self.refused(&e))
    }

    /// Drops all of them that hold nothing that is still to be written. Blocks.
    pub(crate) fn drop_all(&self) -> Result<(), String> {
        fs::write(&self.ask, ALL).map_err(|e| self.refused(&e))
    }

    /// The same after everything has been written. Blocks, as long as that takes.
    pub(crate) fn write_and_drop_all(&self) -> Result<(), String> {
        rustix::fs::sync();
        self.drop_all()
    }

    fn refused(&self, e: &io::Error) -> String {
        format!("{} cannot be written: {e}; it takes root", self.ask.display())
    }
}

/// Drops what it may of files whose writes have been made durable. Where the kernel does not drop all, why.
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
        "the machine's caches were to be left alone".to_owned()
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
    fn who_may_not_ask_the_kernel_is_told_why() {
        let directory = tempfile::tempdir().unwrap();
        let nowhere = Kernel::asked_by(directory.path().join("none").join("drop_caches"));
        let why = nowhere.may_be_asked().unwrap_err();
        assert!(why.contains("drop_caches cannot be written: ") && why.contains("it takes root"), "{why}");
        assert_eq!(nowhere.drop_all().unwrap_err(), why);
        let file = directory.path().join("ask");
        fs::write(&file, "").unwrap();
        let kernel = Kernel::asked_by(&file);
        kernel.may_be_asked().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"", "nothing is dropped by asking whether it may be");
        kernel.drop_all().unwrap();
        assert_eq!(fs::read(&file).unwrap(), ALL);
    }
}
