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

use crate::content::PAGE;
use crate::model::{Attributes, Kind};

/// Cache lifetime of replies: the kernel asks again each time.
const UNCACHED: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);
/// Requests on an open file carry its inode number, which suffices.
const NO_HANDLE: FileHandle = FileHandle(0);

/// A reply with a `T` or an error.
pub trait Answer<T> {
    fn answer(self, outcome: Result<T, Errno>);
}

/// The opened object.
pub enum Opened {
    File,
    /// With the handle of its listing.
    Directory(u64),
}

impl Answer<()> for ReplyEmpty {
    fn answer(self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Answer<Attributes> for ReplyEntry {
    fn answer(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => self.entry(&UNCACHED, &file_attr(&attributes), GENERATION),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Answer<Attributes> for ReplyAttr {
    fn answer(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => self.attr(&UNCACHED, &file_attr(&attributes)),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Answer<Attributes> for ReplyCreate {
    fn answer(self, outcome: Result<Attributes, Errno>) {
        match outcome {
            Ok(attributes) => {
                self.created(&UNCACHED, &file_attr(&attributes), GENERATION, NO_HANDLE, file_flags());
            }
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Answer<Opened> for ReplyOpen {
    fn answer(self, outcome: Result<Opened, Errno>) {
        match outcome {
            Ok(Opened::File) => self.opened(NO_HANDLE, file_flags()),
            Ok(Opened::Directory(handle)) => self.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Answer<Vec<u8>> for ReplyData {
    fn answer(self, outcome: Result<Vec<u8>, Errno>) {
        match outcome {
            Ok(bytes) => self.data(&bytes),
            Err(error) => self.error(errno(error)),
        }
    }
}

/// Bytes written.
impl Answer<u32> for ReplyWrite {
    fn answer(self, outcome: Result<u32, Errno>) {
        match outcome {
            Ok(size) => self.written(size),
            Err(error) => self.error(errno(error)),
        }
    }
}

/// An offset in a file.
impl Answer<u64> for ReplyLseek {
    fn answer(self, outcome: Result<u64, Errno>) {
        match outcome {
            Ok(offset) => self.offset(offset as i64),
            Err(error) => self.error(errno(error)),
        }
    }
}

pub fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
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
        blksize: PAGE as u32,
        flags: 0,
    }
}
