//! Inodes: body, owner, times, and `stat` attributes.
//!
//! Modes, owners and times are not part of the power model: a change of them is durable immediately.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::file::FileState;
use crate::namespace::Ino;
use crate::stale_contents;

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// The `stat` result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: InodeKind,
    /// Length in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of the inode; 1 for directories.
    pub links: u32,
    /// Last read, as set by `utimensat`; reads do not change it.
    pub accessed: SystemTime,
    /// Last change of the content.
    pub modified: SystemTime,
    /// Last change of the attributes.
    pub changed: SystemTime,
}

/// Owner and permissions of a new inode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// One file, directory or symbolic link, apart from its names.
#[derive(Debug, Clone)]
pub struct Inode {
    pub body: InodeBody,
    /// The kind of file according to its latest name.
    pub file_kind: OsString,
    pub owner: Owner,
    pub accessed: SystemTime,
    pub modified: SystemTime,
    pub changed: SystemTime,
    /// Volatile names.
    pub links: u32,
    pub opens: u32,
}

/// The contents of an inode; the entries of a directory are in the namespace.
#[derive(Debug, Clone)]
pub enum InodeBody {
    File(FileState),
    Directory { parent: Ino },
    Symlink(PathBuf),
}

impl Inode {
    /// A new inode with one name.
    pub fn new(body: InodeBody, name: &OsStr, owner: Owner, now: SystemTime) -> Self {
        let named_as = stale_contents::file_kind(name);
        Self {
            body,
            file_kind: named_as,
            owner,
            accessed: now,
            modified: now,
            changed: now,
            links: 1,
            opens: 0,
        }
    }

    /// The `stat` result under the number `ino`.
    pub fn attributes(&self, ino: Ino) -> Attributes {
        let (kind, size, allocated) = match &self.body {
            InodeBody::File(file) => (InodeKind::File, file.content().len(), file.content().allocated()),
            InodeBody::Directory { .. } => (InodeKind::Directory, 4096, 4096),
            InodeBody::Symlink(target) => (InodeKind::Symlink, target.as_os_str().len() as u64, 0),
        };
        Attributes {
            ino,
            kind,
            size,
            allocated,
            mode: self.owner.mode,
            uid: self.owner.uid,
            gid: self.owner.gid,
            links: if kind == InodeKind::Directory { 1 } else { self.links },
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
        }
    }
}
