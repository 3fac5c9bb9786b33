//! Reading and changing file contents, and the accounting of their space.

use std::ops::Range;

use rustix::io::Errno;

use super::faults::UnreadableRange;
use super::inode::InodeBody;
use super::{Model, Result};
use crate::content::Content;
use crate::file::FileState;
use crate::namespace::Ino;

impl Model {
    /// Up to `size` bytes; shorter at the end of the file, and before an unreadable range.
    pub fn read(&mut self, ino: Ino, offset: u64, size: usize) -> Result<Vec<u8>> {
        let size = match &self.unreadable {
            Some(range) => range.readable_bytes(ino, offset, size).ok_or(Errno::IO)?,
            None => size,
        };
        let bytes = self.peek(ino, offset, size)?;
        self.counters.reads += 1;
        self.counters.read_bytes += bytes.len() as u64;
        Ok(bytes)
    }

    /// Lets reads of these bytes of a file fail with EIO, instead of those of an earlier call.
    pub fn fail_reads(&mut self, ino: Ino, bytes: Range<u64>) {
        self.unreadable = Some(UnreadableRange { ino, bytes });
    }

    /// Reads without counting.
    pub fn peek(&self, ino: Ino, offset: u64, size: usize) -> Result<Vec<u8>> {
        Ok(self.content(ino)?.read(offset, size))
    }

    /// Writes all of `data`, or nothing and ENOSPC.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let missing = self.content(ino)?.missing(offset, data.len() as u64);
        self.reserve(missing)?;
        self.counters.writes += 1;
        self.counters.written_bytes += data.len() as u64;
        self.change(ino, |file| file.write(offset, data))
    }

    /// Truncates or extends a file.
    pub fn set_len(&mut self, ino: Ino, len: u64) -> Result<()> {
        self.change(ino, |file| file.set_len(len))
    }

    /// Allocates a range, extending the file unless `keep_size`.
    pub fn allocate(&mut self, ino: Ino, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let missing = self.content(ino)?.missing(offset, length);
        self.reserve(missing)?;
        self.change(ino, |file| file.allocate(offset, length, keep_size))
    }

    /// Frees a range, which reads as zeros afterwards; the length stays.
    pub fn punch(&mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        self.change(ino, |file| file.zero(offset, length))
    }

    /// The first data (or hole) at or after an offset; ENXIO if there is none.
    pub fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64> {
        let content = self.content(ino)?;
        let found = if hole { content.next_hole(offset) } else { content.next_data(offset) };
        found.ok_or(Errno::NXIO)
    }

    /// Limits the allocated bytes of all files; writes beyond it return ENOSPC.
    pub fn limit_bytes(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Allocated bytes of all visible files, and the limit.
    pub fn space(&self) -> (u64, Option<u64>) {
        (self.allocated, self.limit)
    }

    fn content(&self, ino: Ino) -> Result<&Content> {
        match &self.get(ino)?.body {
            InodeBody::File(file) => Ok(file.content()),
            InodeBody::Directory { .. } => Err(Errno::ISDIR),
            InodeBody::Symlink(_) => Err(Errno::INVAL),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes > 0 && self.limit.is_some_and(|limit| self.allocated + bytes > limit) {
            self.counters.out_of_space += 1;
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// Changes a file's content and updates the space accounting.
    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut FileState)) -> Result<()> {
        let now = self.now;
        let inode = self.get_mut(ino)?;
        let InodeBody::File(file) = &mut inode.body else { return Err(Errno::ISDIR) };
        let before = file.content().allocated();
        change(file);
        let after = file.content().allocated();
        inode.modified = now;
        inode.changed = now;
        self.allocated = self.allocated - before + after;
        Ok(())
    }
}
