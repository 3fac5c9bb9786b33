//! Translation of the model's results to kernel replies, one implementation per reply type.
//!
//! Files are opened for direct I/O and nothing is cached, so that every write and every lookup reaches the model
//! immediately and no kernel state outlives a crash.

use std::time::Duration;

use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyWrite,
};
use rustix::io::Errno;

use crate::content::PAGE_BYTES;
use crate::model::{Attributes, InodeKind};

/// Cache lifetime of replies: the kernel asks again each time.
const UNCACHED: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);
/// Requests on an open file carry its inode number, which suffices.
const NO_HANDLE: FileHandle = FileHandle(0);

/// A reply with a `T` or an error.
pub trait SendReply<T> {
    fn send(self, outcome: Result<T, Errno>);
}

/// The opened object.
pub enum Opened {
    File,
    /// With the handle of its listing.
    Directory(u64),
}

impl SendReply<()> for ReplyEmpty {
    fn send(self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl SendReply<Attributes> for ReplyEntry {
    fn send(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => self.entry(&UNCACHED, &file_attr(&attributes), GENERATION),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl SendReply<Attributes> for ReplyAttr {
    fn send(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => self.attr(&UNCACHED, &file_attr(&attributes)),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl SendReply<Attributes> for ReplyCreate {
    fn send(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => {
                self.created(&UNCACHED, &file_attr(&attributes), GENERATION, NO_HANDLE, file_flags());
            }
            Err(error) => self.error(errno(error)),
        }
    }
}

impl SendReply<Opened> for ReplyOpen {
    fn send(self, outcome: Result<Opened, Errno>) {
        match outcome {
            Ok(Opened::File) => self.opened(NO_HANDLE, file_flags()),
            Ok(Opened::Directory(handle)) => self.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl SendReply<Vec<u8>> for ReplyData {
    fn send(self, outcome: Result<Vec<u8>, Errno>) {
        match outcome {
            Ok(bytes) => self.data(&bytes),
            Err(error) => self.error(errno(error)),
        }
    }
}

/// Bytes written.
impl SendReply<u32> for ReplyWrite {
    fn send(self, outcome: Result<u32, Errno>) {
        match outcome {
            Ok(size) => self.written(size),
            Err(error) => self.error(errno(error)),
        }
    }
}

/// An offset in a file.
impl SendReply<u64> for ReplyLseek {
    fn send(self, outcome: Result<u64, Errno>) {
        match outcome {
            Ok(offset) => self.offset(offset as i64),
            Err(error) => self.error(errno(error)),
        }
    }
}

pub fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
    }
}

fn file_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

fn file_attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.ino),
        size: attributes.size,
        blocks: attributes.allocated / 512,
        atime: attributes.accessed,
        mtime: attributes.modified,
        ctime: attributes.changed,
        crtime: attributes.changed,
        kind: file_type(attributes.kind),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        blksize: PAGE_BYTES as u32,
        flags: 0,
    }
}
