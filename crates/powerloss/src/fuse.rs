//! The FUSE interface: each request is one call of the model.
//!
//! Nothing is decided here: `arguments` translates requests, the model executes them, and `answer` translates the
//! results. File locks are left to the kernel.

mod arguments;
mod listings;
mod reply;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;

use crate::content::PAGE_BYTES;
use crate::shared::SharedModel;
use arguments::{fallocate, is_regular_file, is_synchronous, owner, rename, seek, system_time};
use listings::Listings;
use reply::{Opened, SendReply, errno, file_type};

/// Space that `statfs` reports without a limit.
const DEFAULT_SPACE_BYTES: u64 = 64 << 30;

/// The file system to mount.
pub struct PowerLoss {
    shared: Arc<SharedModel>,
    listings: Listings,
}

impl PowerLoss {
    pub fn new(shared: Arc<SharedModel>) -> Self {
        Self { shared, listings: Listings::new() }
    }
}

impl Filesystem for PowerLoss {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let requested = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP | InitFlags::FUSE_PARALLEL_DIROPS;
        let offered = requested & config.capabilities();
        config
            .add_capabilities(offered)
            .map_err(|refused| io::Error::other(format!("the kernel refused {refused:?}")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply.send(self.shared.with(|model| model.lookup(parent.0, name)));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.send(self.shared.with(|model| model.attributes(ino.0)));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.send(self.shared.with(|model| {
            if let Some(size) = size {
                model.set_len(ino.0, size)?;
            }
            if mode.is_some() || uid.is_some() || gid.is_some() {
                model.set_owner(ino.0, |owner| {
                    owner.mode = mode.map_or(owner.mode, |mode| mode & 0o7777);
                    owner.uid = uid.unwrap_or(owner.uid);
                    owner.gid = gid.unwrap_or(owner.gid);
                })?;
            }
            if atime.is_some() || mtime.is_some() {
                model.set_times(ino.0, atime.map(system_time), mtime.map(system_time))?;
            }
            model.attributes(ino.0)
        }));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let bytes = |target: &Path| target.as_os_str().as_encoded_bytes().to_vec();
        reply.send(self.shared.with(|model| model.read_link(ino.0).map(bytes)));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        reply.send(self.shared.with(|model| {
            if !is_regular_file(mode) {
                return Err(Errno::PERM);
            }
            model.create(parent.0, name, owner(request, mode, umask))
        }));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        reply.send(
            self.shared.with(|model| model.make_directory(parent.0, name, owner(request, mode, umask))),
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.send(self.shared.with(|model| model.unlink(parent.0, name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.send(self.shared.with(|model| model.remove_directory(parent.0, name)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        reply.send(self.shared.with(|model| model.symlink(parent.0, name, target, owner(request, 0o777, 0))));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name), (newparent.0, newname));
        reply.send(self.shared.with(|model| rename(model, from, to, flags)));
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        reply.send(self.shared.with(|model| model.link(ino.0, newparent.0, newname)));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.send(self.shared.with(|model| model.open(ino.0)).map(|()| Opened::File));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.send(self.shared.with(|model| {
            let attributes = model.create(parent.0, name, owner(request, mode, umask))?;
            model.open(attributes.ino)?;
            Ok(attributes)
        }));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.send(self.shared.with(|model| model.read(ino.0, offset, size as usize)));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.shared.with(|model| model.write(ino.0, offset, data)).and_then(|()| {
            if is_synchronous(flags) {
                self.shared.sync(ino.0, |model, mark| model.sync_file(ino.0, mark, true))?;
            }
            Ok(data.len() as u32)
        });
        reply.send(written);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.send(self.shared.with(|_| Ok(())));
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.send(self.shared.with(|model| model.close(ino.0)));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        reply.send(self.shared.sync(ino.0, |model, mark| model.sync_file(ino.0, mark, datasync)));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let found = self.shared.with(|model| model.list(ino.0));
        reply.send(found.map(|_| Opened::Directory(self.listings.open())));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let read = self.shared.with(|model| self.listings.read(model, ino.0, fh.0, offset));
        let listing = match read {
            Ok(listing) => listing,
            Err(error) => return reply.error(errno(error)),
        };
        for (i, (name, child, kind)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*child), i as u64 + 1, file_type(*kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.close(fh.0);
        reply.send(self.shared.with(|_| Ok(())));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.send(self.shared.sync(ino.0, |model, mark| model.sync_directory(ino.0, mark)));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.shared.with(|model| Ok((model.space(), model.inode_count() as u64))) {
            Ok(((used, limit), inodes)) => {
                let total = limit.unwrap_or(DEFAULT_SPACE_BYTES) / PAGE_BYTES;
                let free = total.saturating_sub(used / PAGE_BYTES);
                reply.statfs(
                    total,
                    free,
                    free,
                    inodes + (1 << 20),
                    1 << 20,
                    PAGE_BYTES as u32,
                    255,
                    PAGE_BYTES as u32,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn access(&self, _: &Request, ino: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.send(self.shared.with(|model| model.attributes(ino.0).map(|_| ())));
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.send(self.shared.with(|model| fallocate(model, ino.0, offset, length, mode)));
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        reply.send(self.shared.with(|model| seek(model, ino.0, offset, whence)));
    }
}
