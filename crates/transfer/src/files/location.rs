//! The location of a file in a tree, and the checks before an existing file is replaced.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, readlinkat, statat};
use rustix::io::{Errno, retry_on_intr};
use tradewind_core::error::{Error, Reason, Result};

use super::Tree;

/// A path below a directory, split into parent and name.
pub(super) struct FileLocation<'a> {
    /// Empty for a file in the root.
    pub parent: &'a Path,
    pub name: &'a OsStr,
}

impl<'a> FileLocation<'a> {
    pub fn split(relative: &'a Path) -> Result<Self> {
        match (relative.parent(), relative.file_name()) {
            (Some(parent), Some(name)) => Ok(Self { parent, name }),
            _ => Err(Error::new(Reason::InvalidKey, format!("{} is not a file name", relative.display()))),
        }
    }
}

/// Maximum number of attempts for an operation that fails when its directory is removed concurrently.
pub(super) const MAX_ATTEMPTS: u32 = 16;

/// Opens the directory of a file, and creates it if it is missing.
pub(super) fn create_parent(tree: &Tree, relative: &Path) -> Result<OwnedFd> {
    let parent = FileLocation::split(relative)?.parent;
    tree.create_directory(parent).map_err(|e| tree.error("create the directory", parent, e))
}

/// Rejects replacing anything but a file: a directory, a device, or a link to one or to an open descriptor, such as
/// `/dev/stdout`. Other links are replaced, never written through.
pub(super) fn check_replaceable(tree: &Tree, directory: &OwnedFd, relative: &Path) -> Result<()> {
    let name = FileLocation::split(relative)?.name;
    let reject = |what: &str| {
        let why = format!("{} {what}", tree.path().join(relative).display());
        Err(Error::new(Reason::InvalidKey, why))
    };
    let kind = |stat: Stat| FileType::from_raw_mode(stat.st_mode);
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(kind) {
        Err(Errno::NOENT) | Ok(FileType::RegularFile) => Ok(()),
        Err(e) => Err(tree.error("access", relative, e.into())),
        Ok(FileType::Symlink) => match statat(directory, name, AtFlags::empty()).map(kind) {
            Ok(_) if leads_to_descriptor(directory, name) => {
                reject("leads to an open file of a process; to write to standard output, name it -")
            }
            Ok(kind) if kind != FileType::RegularFile => reject("is a link to something that is not a file"),
            _ => Ok(()),
        },
        Ok(_) => reject("exists and is not a file"),
    }
}

/// Returns true if a link leads to an open descriptor, through a magic link such as those below `/proc/self/fd`.
fn leads_to_descriptor(directory: &OwnedFd, name: &OsStr) -> bool {
    let open = |resolve| retry_on_intr(|| openat2(directory, name, OFlags::PATH, Mode::empty(), resolve));
    match open(ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::LOOP) => true,
        // Without `openat2`, decide by the target's name.
        Err(Errno::NOSYS | Errno::PERM) => readlinkat(directory, name, Vec::new()).is_ok_and(|target| {
            let target = target.to_bytes();
            target.starts_with(b"/proc/") || target.starts_with(b"/dev/") || target.starts_with(b"pipe:")
        }),
        _ => false,
    }
}
