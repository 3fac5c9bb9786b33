//! Translation of the kernel's flags and numbers to the model's terms.

use std::ffi::OsStr;
use std::time::SystemTime;

use fuser::{OpenFlags, RenameFlags, Request, TimeOrNow};
use rustix::fs::{FallocateFlags, FileType, OFlags};
use rustix::io::Errno;

use crate::model::{Model, Owner};
use crate::namespace::Ino;

/// Owner and permissions of a new inode.
pub fn owner(request: &Request, mode: u32, umask: u32) -> Owner {
    Owner { uid: request.uid(), gid: request.gid(), mode: mode & !umask & 0o7777 }
}

/// The time set by a request.
pub fn system_time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

/// Returns true if `mknod` asks for a regular file.
pub fn is_regular_file(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile
}

/// Returns true if every write to a file opened with these flags is also a sync.
pub fn is_synchronous(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).intersects(OFlags::SYNC | OFlags::DSYNC)
}

/// `renameat2`: a move, a move that replaces nothing, or a swap.
pub fn rename(
    model: &mut Model,
    from: (Ino, &OsStr),
    to: (Ino, &OsStr),
    flags: RenameFlags,
) -> Result<(), Errno> {
    if flags.contains(RenameFlags::RENAME_WHITEOUT) {
        Err(Errno::INVAL)
    } else if flags.contains(RenameFlags::RENAME_EXCHANGE) {
        model.exchange(from, to)
    } else {
        model.rename(from, to, flags.contains(RenameFlags::RENAME_NOREPLACE))
    }
}

/// `fallocate`: allocates, frees or zeros a range.
pub fn fallocate(model: &mut Model, ino: Ino, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
    let flags = FallocateFlags::from_bits_retain(mode as u32);
    let keep_size = flags.contains(FallocateFlags::KEEP_SIZE);
    match flags - FallocateFlags::KEEP_SIZE {
        FallocateFlags::PUNCH_HOLE if keep_size => model.punch(ino, offset, length),
        FallocateFlags::ZERO_RANGE => {
            model.punch(ino, offset, length)?;
            model.allocate(ino, offset, length, keep_size)
        }
        rest if rest.is_empty() => model.allocate(ino, offset, length, keep_size),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// `lseek` for data or a hole; the kernel handles every other kind itself.
pub fn seek(model: &Model, ino: Ino, offset: i64, whence: i32) -> Result<u64, Errno> {
    const SEEK_DATA: i32 = 3;
    const SEEK_HOLE: i32 = 4;
    let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
    match whence {
        SEEK_DATA => model.seek(ino, offset, false),
        SEEK_HOLE => model.seek(ino, offset, true),
        _ => Err(Errno::INVAL),
    }
}
