//! The glue between the kernel and the model.
//!
//! Files are opened for direct I/O and nothing is cached for any time, so that every write and every
//! lookup reaches the model at once and nothing outlives a crash in the kernel. File locks are not
//! answered here: the kernel keeps them itself. One lock guards the model; no request holds it
//! while it waits or copies to the kernel.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::content::PAGE;
use crate::model::{Attributes, Kind, Model, Owner};
use crate::namespace::Ino;

/// The kernel asks anew each time.
const UNCACHED: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);
/// Space that `statfs` tells of where no cap is set.
const ROOMY: u64 = 64 << 30;

type Listing = Arc<Vec<(OsString, Ino, Kind)>>;

/// What the mount's threads and the handle of the test share.
pub struct Shared {
    model: Mutex<Model>,
    sync_delay_nanos: AtomicU64,
    listings: Mutex<HashMap<u64, Listing>>,
    next_handle: AtomicU64,
}

impl Shared {
    pub fn new(model: Model) -> Self {
        Self {
            model: Mutex::new(model),
            sync_delay_nanos: AtomicU64::new(0),
            listings: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// The model, also while the power is off.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock()
    }

    pub fn set_sync_delay(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.sync_delay_nanos.store(nanos, Ordering::Relaxed);
    }

    /// The model with the current time, or EIO while the power is off.
    fn powered(&self) -> Result<MutexGuard<'_, Model>, Errno> {
        let mut model = self.model.lock();
        model.check_power()?;
        model.set_time(SystemTime::now());
        Ok(model)
    }

    /// A sync covers what was written before it began, and is done when the disk has taken its time.
    fn sync(&self, ino: Ino, commit: impl FnOnce(&mut Model, u64) -> Result<(), Errno>) -> Result<(), Errno> {
        let mark = self.powered()?.mark(ino)?;
        let delay = self.sync_delay_nanos.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_nanos(delay));
        }
        commit(&mut *self.powered()?, mark)
    }

    fn list(&self, dir: Ino, handle: u64, offset: u64) -> Result<Listing, Errno> {
        let model = self.powered()?;
        if offset > 0
            && let Some(listing) = self.listings.lock().get(&handle)
        {
            return Ok(listing.clone());
        }
        let mut entries = vec![(".".into(), dir, Kind::Directory), ("..".into(), dir, Kind::Directory)];
        entries.extend(model.list(dir)?);
        let listing = Arc::new(entries);
        self.listings.lock().insert(handle, listing.clone());
        Ok(listing)
    }
}

/// The file system as the kernel calls it.
pub struct PowerLoss(pub Arc<Shared>);

impl PowerLoss {
    fn with<T>(&self, work: impl FnOnce(&mut Model) -> Result<T, Errno>) -> Result<T, fuser::Errno> {
        self.0.powered().and_then(|mut model| work(&mut model)).map_err(errno)
    }

    fn entry(&self, reply: ReplyEntry, work: impl FnOnce(&mut Model) -> Result<Attributes, Errno>) {
        match self.with(work) {
            Ok(attributes) => reply.entry(&UNCACHED, &file_attr(&attributes), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn empty(&self, reply: ReplyEmpty, work: impl FnOnce(&mut Model) -> Result<(), Errno>) {
        match self.with(work) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

impl Filesystem for PowerLoss {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP | InitFlags::FUSE_PARALLEL_DIROPS;
        let offered = wanted & config.capabilities();
        config
            .add_capabilities(offered)
            .map_err(|refused| io::Error::other(format!("kernel refused {refused:?}")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |model| model.lookup(parent.0, name));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.with(|model| model.attributes(ino.0)) {
            Ok(attributes) => reply.attr(&UNCACHED, &file_attr(&attributes)),
            Err(error) => reply.error(error),
        }
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
        let changed = self.with(|model| {
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
                model.set_times(ino.0, atime.map(moment), mtime.map(moment))?;
            }
            model.attributes(ino.0)
        });
        match changed {
            Ok(attributes) => reply.attr(&UNCACHED, &file_attr(&attributes)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.with(|model| model.read_link(ino.0).map(Path::to_owned)) {
            Ok(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            Err(error) => reply.error(error),
        }
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
        let regular = rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::RegularFile;
        self.entry(reply, |model| {
            if !regular {
                return Err(Errno::PERM);
            }
            model.create(parent.0, name, owner(request, mode, umask))
        });
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
        self.entry(reply, |model| model.make_directory(parent.0, name, owner(request, mode, umask)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |model| model.unlink(parent.0, name));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |model| model.remove_directory(parent.0, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.entry(reply, |model| model.symlink(parent.0, name, target, owner(request, 0o777, 0)));
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
        self.empty(reply, |model| {
            if flags.contains(RenameFlags::RENAME_WHITEOUT) {
                Err(Errno::INVAL)
            } else if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                model.exchange(from, to)
            } else {
                model.rename(from, to, flags.contains(RenameFlags::RENAME_NOREPLACE))
            }
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |model| model.link(ino.0, newparent.0, newname));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.with(|model| model.open(ino.0)) {
            Ok(()) => reply.opened(FileHandle(0), open_flags()),
            Err(error) => reply.error(error),
        }
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
        let created = self.with(|model| {
            let attributes = model.create(parent.0, name, owner(request, mode, umask))?;
            model.open(attributes.ino)?;
            Ok(attributes)
        });
        match created {
            Ok(attributes) => {
                reply.created(&UNCACHED, &file_attr(&attributes), GENERATION, FileHandle(0), open_flags());
            }
            Err(error) => reply.error(error),
        }
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
        match self.with(|model| model.read(ino.0, offset, size as usize)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
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
        let synchronous = rustix::fs::OFlags::SYNC | rustix::fs::OFlags::DSYNC;
        let flags = rustix::fs::OFlags::from_bits_retain(flags.0 as u32);
        let written = self.with(|model| model.write(ino.0, offset, data)).and_then(|()| {
            if flags.intersects(synchronous) {
                self.0.sync(ino.0, |model, mark| model.sync_file(ino.0, mark, true)).map_err(errno)?;
            }
            Ok(data.len() as u32)
        });
        match written {
            Ok(size) => reply.written(size),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.empty(reply, |_| Ok(()));
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
        self.empty(reply, |model| model.close(ino.0));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        match self.0.sync(ino.0, |model, mark| model.sync_file(ino.0, mark, datasync)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.with(|model| model.list(ino.0).map(|_| ())) {
            Ok(()) => {
                let handle = self.0.next_handle.fetch_add(1, Ordering::Relaxed);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listing = match self.0.list(ino.0, fh.0, offset) {
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
        self.0.listings.lock().remove(&fh.0);
        self.empty(reply, |_| Ok(()));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.0.sync(ino.0, |model, mark| model.sync_directory(ino.0, mark)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.with(|model| Ok((model.space(), model.inode_count() as u64))) {
            Ok(((used, limit), inodes)) => {
                let total = limit.unwrap_or(ROOMY) / PAGE;
                let free = total.saturating_sub(used / PAGE);
                reply.statfs(total, free, free, inodes + (1 << 20), 1 << 20, PAGE as u32, 255, PAGE as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn access(&self, _: &Request, ino: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        self.empty(reply, |model| model.attributes(ino.0).map(|_| ()));
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
        use rustix::fs::FallocateFlags as Flags;
        let flags = Flags::from_bits_retain(mode as u32);
        let keep_size = flags.contains(Flags::KEEP_SIZE);
        self.empty(reply, |model| match flags - Flags::KEEP_SIZE {
            Flags::PUNCH_HOLE if keep_size => model.punch(ino.0, offset, length),
            Flags::ZERO_RANGE => {
                model.punch(ino.0, offset, length)?;
                model.allocate(ino.0, offset, length, keep_size)
            }
            rest if rest.is_empty() => model.allocate(ino.0, offset, length, keep_size),
            _ => Err(Errno::OPNOTSUPP),
        });
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let found = self.with(|model| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            match whence {
                SEEK_DATA => model.seek(ino.0, offset, false),
                SEEK_HOLE => model.seek(ino.0, offset, true),
                _ => Err(Errno::INVAL),
            }
        });
        match found {
            Ok(offset) => reply.offset(offset as i64),
            Err(error) => reply.error(error),
        }
    }
}

fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

fn owner(request: &Request, mode: u32, umask: u32) -> Owner {
    Owner { uid: request.uid(), gid: request.gid(), mode: mode & !umask & 0o7777 }
}

fn moment(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
    }
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
