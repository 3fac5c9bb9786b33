//! The file system without FUSE: inodes, names, faults, and the power cut.
//!
//! Every method is one system call's worth of work on the volatile state, answered with the errno
//! that a program would see. The current time is set from outside. After [`Model::crash`] everything
//! answers EIO until [`Model::revive`]; inode numbers are never used twice, so that a handle from
//! before a crash can reach nothing afterwards.

mod faults;
mod power;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::Counters;
use crate::content::Content;
use crate::file::FileState;
use crate::namespace::{Ino, Namespace, ROOT};

pub use faults::FsyncFailure;
pub use power::{CrashReport, FileReport};

type Result<T> = std::result::Result<T, Errno>;

/// Unlinks between two sweeps for inodes that nothing refers to.
const SWEEP_EVERY: u32 = 512;

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// What `stat` tells. Modes, owners and times are not part of the power model: they change at once
/// in both states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
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

#[derive(Debug, Clone)]
struct Inode {
    body: Body,
    owner: Owner,
    accessed: SystemTime,
    modified: SystemTime,
    changed: SystemTime,
    /// Volatile names.
    links: u32,
    opens: u32,
}

#[derive(Debug, Clone)]
enum Body {
    File(FileState),
    Directory { parent: Ino },
    Symlink(PathBuf),
}

/// The whole file system in memory.
#[derive(Debug, Clone)]
pub struct Model {
    inodes: HashMap<Ino, Inode>,
    names: Namespace,
    next_ino: Ino,
    now: SystemTime,
    allocated: u64,
    limit: Option<u64>,
    down: bool,
    fsync_fault: Option<faults::FsyncFault>,
    counters: Counters,
    unlinks_since_sweep: u32,
}

impl Model {
    /// An empty root directory.
    pub fn new() -> Self {
        let mut model = Self {
            inodes: HashMap::new(),
            names: Namespace::new(),
            next_ino: ROOT + 1,
            now: UNIX_EPOCH + Duration::from_secs(1),
            allocated: 0,
            limit: None,
            down: false,
            fsync_fault: None,
            counters: Counters::default(),
            unlinks_since_sweep: 0,
        };
        let root = model.inode(Body::Directory { parent: ROOT }, Owner { mode: 0o755, ..Owner::default() });
        model.inodes.insert(ROOT, root);
        model
    }

    /// Sets the time that later changes carry.
    pub fn set_time(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// EIO after a crash.
    pub fn check_power(&self) -> Result<()> {
        if self.down { Err(Errno::IO) } else { Ok(()) }
    }

    /// The power is back: requests are answered again.
    pub fn revive(&mut self) {
        self.down = false;
    }

    /// What was asked so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts from zero again.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// The inode behind a name.
    pub fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes> {
        self.attributes(self.find(dir, name)?)
    }

    /// What `stat` tells of an inode.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        let inode = self.get(ino)?;
        let (kind, size, allocated) = match &inode.body {
            Body::File(file) => (Kind::File, file.content().len(), file.content().allocated()),
            Body::Directory { .. } => (Kind::Directory, 4096, 4096),
            Body::Symlink(target) => (Kind::Symlink, target.as_os_str().len() as u64, 0),
        };
        Ok(Attributes {
            ino,
            kind,
            size,
            allocated,
            mode: inode.owner.mode,
            uid: inode.owner.uid,
            gid: inode.owner.gid,
            links: if kind == Kind::Directory { 1 } else { inode.links },
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        })
    }

    /// Changes the owner or the permission bits.
    pub fn set_owner(&mut self, ino: Ino, change: impl FnOnce(&mut Owner)) -> Result<()> {
        let now = self.now;
        let inode = self.get_mut(ino)?;
        change(&mut inode.owner);
        inode.changed = now;
        Ok(())
    }

    /// Sets the access and the modification time.
    pub fn set_times(
        &mut self,
        ino: Ino,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let now = self.now;
        let inode = self.get_mut(ino)?;
        inode.accessed = accessed.unwrap_or(inode.accessed);
        inode.modified = modified.unwrap_or(inode.modified);
        inode.changed = now;
        Ok(())
    }

    /// Names, inodes and kinds in a directory, without `.` and `..`.
    pub fn list(&self, dir: Ino) -> Result<Vec<(OsString, Ino, Kind)>> {
        let entries = self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        entries.iter().map(|(name, &ino)| Ok((name.clone(), ino, self.attributes(ino)?.kind))).collect()
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, ino: Ino) -> Result<&Path> {
        match &self.get(ino)?.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    /// Makes an empty file; EEXIST where the name is taken.
    pub fn create(&mut self, dir: Ino, name: &OsStr, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, Body::File(FileState::default()), owner)
    }

    /// Makes a directory.
    pub fn make_directory(&mut self, dir: Ino, name: &OsStr, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, Body::Directory { parent: dir }, owner)
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, dir: Ino, name: &OsStr, target: &Path, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, Body::Symlink(target.to_owned()), Owner { mode: 0o777, ..owner })
    }

    /// Gives a file another name.
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &OsStr) -> Result<Attributes> {
        self.vacant(dir, name)?;
        if matches!(self.get(ino)?.body, Body::Directory { .. }) {
            return Err(Errno::PERM);
        }
        self.names.add(dir, name, ino, false);
        self.get_mut(ino)?.links += 1;
        self.touch(&[ino], &[dir])?;
        self.attributes(ino)
    }

    /// Removes a name of a file.
    pub fn unlink(&mut self, dir: Ino, name: &OsStr) -> Result<()> {
        let ino = self.find(dir, name)?;
        if matches!(self.get(ino)?.body, Body::Directory { .. }) {
            return Err(Errno::ISDIR);
        }
        self.names.remove(dir, name, None);
        self.touch(&[ino], &[dir])?;
        self.drop_link(ino)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, dir: Ino, name: &OsStr) -> Result<()> {
        let ino = self.find(dir, name)?;
        if !self.names.entries(ino).ok_or(Errno::NOTDIR)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.names.remove(dir, name, Some(ino));
        self.touch(&[], &[dir])?;
        self.drop_link(ino)
    }

    /// Moves a name, replacing what is there unless `keep_existing`.
    pub fn rename(&mut self, from: (Ino, &OsStr), to: (Ino, &OsStr), keep_existing: bool) -> Result<()> {
        let ino = self.find(from.0, from.1)?;
        let replaced = self.names.entries(to.0).ok_or(Errno::NOTDIR)?.get(to.1).copied();
        if replaced.is_some() && keep_existing {
            return Err(Errno::EXIST);
        }
        if replaced == Some(ino) {
            return Ok(());
        }
        let directory = self.names.entries(ino).is_some();
        if directory && self.is_within(to.0, ino)? {
            return Err(Errno::INVAL);
        }
        let mut replaced_directory = None;
        if let Some(old) = replaced {
            match (directory, self.names.entries(old)) {
                (true, None) => return Err(Errno::NOTDIR),
                (false, Some(_)) => return Err(Errno::ISDIR),
                (true, Some(entries)) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
                (true, Some(_)) => replaced_directory = Some(old),
                (false, None) => {}
            }
        }
        self.names.rename(from, to, ino, replaced_directory);
        self.adopt(ino, to.0)?;
        self.touch(&[ino], &[from.0, to.0])?;
        replaced.map_or(Ok(()), |old| self.drop_link(old))
    }

    /// Swaps two names (`RENAME_EXCHANGE`).
    pub fn exchange(&mut self, a: (Ino, &OsStr), b: (Ino, &OsStr)) -> Result<()> {
        let (first, second) = (self.find(a.0, a.1)?, self.find(b.0, b.1)?);
        if self.is_within(b.0, first)? || self.is_within(a.0, second)? {
            return Err(Errno::INVAL);
        }
        self.names.exchange((a.0, a.1, first), (b.0, b.1, second));
        self.adopt(first, b.0)?;
        self.adopt(second, a.0)?;
        self.touch(&[first, second], &[a.0, b.0])
    }

    /// Keeps an inode alive until [`close`](Self::close), also without a name.
    pub fn open(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Ends one [`open`](Self::open); an inode from before a crash is gone already.
    pub fn close(&mut self, ino: Ino) -> Result<()> {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
            self.release_if_unseen(ino);
        }
        Ok(())
    }

    /// Up to `size` bytes; shorter at the end of the file.
    pub fn read(&mut self, ino: Ino, offset: u64, size: usize) -> Result<Vec<u8>> {
        let bytes = self.peek(ino, offset, size)?;
        self.counters.reads += 1;
        self.counters.read_bytes += bytes.len() as u64;
        Ok(bytes)
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

    /// The first data (or hole) at or after an offset; ENXIO where there is none.
    pub fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64> {
        let content = self.content(ino)?;
        let found = if hole { content.next_hole(offset) } else { content.next_data(offset) };
        found.ok_or(Errno::NXIO)
    }

    /// The point that a sync of this inode, starting now, has to reach.
    pub fn mark(&self, ino: Ino) -> Result<u64> {
        match &self.get(ino)?.body {
            Body::File(file) => Ok(file.mark()),
            _ => Ok(self.names.mark()),
        }
    }

    /// `fsync` or `fdatasync` of a file: its data and length up to `mark` become durable.
    pub fn sync_file(&mut self, ino: Ino, mark: u64, data_only: bool) -> Result<()> {
        if data_only {
            self.counters.fdatasyncs += 1;
        } else {
            self.counters.fsyncs += 1;
        }
        let failure = self.take_fsync_fault();
        self.counters.failed_syncs += u64::from(failure.is_some());
        let Body::File(file) = &mut self.get_mut(ino)?.body else { return Err(Errno::INVAL) };
        match failure {
            None => file.sync(mark),
            Some(FsyncFailure::DropPending) => file.drop_pending(),
            Some(FsyncFailure::KeepPending) => {}
        }
        failure.map_or(Ok(()), |_| Err(Errno::IO))
    }

    /// `fsync` of a directory: its entry operations up to `mark` become durable.
    pub fn sync_directory(&mut self, dir: Ino, mark: u64) -> Result<()> {
        self.counters.directory_syncs += 1;
        self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        if self.take_fsync_fault().is_some() {
            self.counters.failed_syncs += 1;
            return Err(Errno::IO);
        }
        self.names.sync(dir, mark);
        Ok(())
    }

    /// Writes and entry operations that wait for a sync.
    pub fn pending(&self) -> (usize, usize) {
        let files = self.inodes.values().map(|inode| match &inode.body {
            Body::File(file) => file.pending_changes(),
            _ => 0,
        });
        (files.sum(), self.names.pending_operations())
    }

    /// Inodes in memory.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    fn inode(&self, body: Body, owner: Owner) -> Inode {
        let now = self.now;
        Inode { body, owner, accessed: now, modified: now, changed: now, links: 1, opens: 0 }
    }

    fn get(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    fn content(&self, ino: Ino) -> Result<&Content> {
        match &self.get(ino)?.body {
            Body::File(file) => Ok(file.content()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            Body::Symlink(_) => Err(Errno::INVAL),
        }
    }

    fn find(&self, dir: Ino, name: &OsStr) -> Result<Ino> {
        let entries = self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        entries.get(name).copied().ok_or(Errno::NOENT)
    }

    fn vacant(&self, dir: Ino, name: &OsStr) -> Result<()> {
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        let entries = self.names.entries(dir).ok_or(Errno::NOENT)?;
        if entries.contains_key(name) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn make(&mut self, dir: Ino, name: &OsStr, body: Body, owner: Owner) -> Result<Attributes> {
        self.vacant(dir, name)?;
        let ino = self.next_ino;
        self.next_ino += 1;
        let directory = matches!(body, Body::Directory { .. });
        let inode = self.inode(body, owner);
        self.inodes.insert(ino, inode);
        self.names.add(dir, name, ino, directory);
        self.touch(&[], &[dir])?;
        self.attributes(ino)
    }

    /// Changes a file's content and keeps the account of space.
    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut FileState)) -> Result<()> {
        let now = self.now;
        let inode = self.get_mut(ino)?;
        let Body::File(file) = &mut inode.body else { return Err(Errno::ISDIR) };
        let before = file.content().allocated();
        change(file);
        let after = file.content().allocated();
        inode.modified = now;
        inode.changed = now;
        self.allocated = self.allocated - before + after;
        Ok(())
    }

    fn touch(&mut self, renamed: &[Ino], directories: &[Ino]) -> Result<()> {
        let now = self.now;
        for &ino in renamed {
            self.get_mut(ino)?.changed = now;
        }
        for &dir in directories {
            let inode = self.get_mut(dir)?;
            inode.modified = now;
            inode.changed = now;
        }
        Ok(())
    }

    fn adopt(&mut self, ino: Ino, dir: Ino) -> Result<()> {
        if let Body::Directory { parent } = &mut self.get_mut(ino)?.body {
            *parent = dir;
        }
        Ok(())
    }

    /// Whether `dir` is `ancestor` or lies below it.
    fn is_within(&self, mut dir: Ino, ancestor: Ino) -> Result<bool> {
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            match self.get(dir)?.body {
                Body::Directory { parent } if dir != ROOT => dir = parent,
                _ => return Ok(false),
            }
        }
    }

    fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.get_mut(ino)?.links -= 1;
        self.release_if_unseen(ino);
        self.unlinks_since_sweep += 1;
        if self.unlinks_since_sweep >= SWEEP_EVERY {
            self.sweep();
        }
        Ok(())
    }

    /// Frees the volatile bytes of a file without name and opener.
    fn release_if_unseen(&mut self, ino: Ino) {
        if let Some(Inode { body: Body::File(file), links: 0, opens: 0, .. }) = self.inodes.get_mut(&ino) {
            self.allocated -= file.content().allocated();
            file.release_volatile();
        }
    }

    /// Forgets inodes that no name, pending operation or opener refers to.
    fn sweep(&mut self) {
        self.unlinks_since_sweep = 0;
        let mut live = self.names.named();
        live.extend(self.inodes.iter().filter(|(_, inode)| inode.opens > 0).map(|(&ino, _)| ino));
        self.inodes.retain(|ino, _| live.contains(ino));
        self.names.retain(&live);
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
