//! The location of a file in a tree, and the checks before an existing file is replaced.

use std::ffi::OsStr;
use std::io;
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
    create_directory(tree, FileLocation::split(relative)?.parent)
}

/// Opens a directory, and creates it if it is missing.
pub(super) fn create_directory(tree: &Tree, relative: &Path) -> Result<OwnedFd> {
    tree.create_directory(relative).map_err(|e| {
        let is_taken = matches!(e.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists);
        match tree.first_file(relative).filter(|_| is_taken) {
            Some(file) => {
                let (path, key) = (tree.path().join(&file), file.display().to_string());
                let why = format!(
                    "cannot create the directory {}: the key {key:?} took its place as a file; copy one of the two under \
                     another name",
                    path.display()
                );
                Error::with_source(Reason::InvalidKey, why, e)
            }
            None => tree.error("create the directory", relative, e),
        }
    })
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
        Ok(FileType::Directory) => {
            let key = relative.display().to_string();
            let what = format!(
                "exists and is a directory, so that the key {key:?} cannot be a file there; copy one of the two under \
                 another name"
            );
            reject(&what)
        }
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
