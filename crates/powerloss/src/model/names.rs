//! The calls that create, move and remove names, each as atomic as a program expects.
//!
//! They return results of the volatile entries; the namespace decides when these become durable.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rustix::io::Errno;

use super::inode::{Attributes, Inode, InodeBody, InodeKind, Owner};
use super::{Model, Result};
use crate::file::FileState;
use crate::namespace::{Ino, ROOT};
use crate::stale_contents;

impl Model {
    /// The inode of a name.
    pub fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes> {
        self.attributes(self.find(dir, name)?)
    }

    /// Names, inodes and kinds in a directory, without `.` and `..`.
    pub fn list(&self, dir: Ino) -> Result<Vec<(OsString, Ino, InodeKind)>> {
        let entries = self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        entries.iter().map(|(name, &ino)| Ok((name.clone(), ino, self.attributes(ino)?.kind))).collect()
    }

    /// Creates an empty file; EEXIST if the name exists.
    pub fn create(&mut self, dir: Ino, name: &OsStr, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, InodeBody::File(FileState::default()), owner)
    }

    /// Creates a directory.
    pub fn make_directory(&mut self, dir: Ino, name: &OsStr, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, InodeBody::Directory { parent: dir }, owner)
    }

    /// Creates a symbolic link.
    pub fn symlink(&mut self, dir: Ino, name: &OsStr, target: &Path, owner: Owner) -> Result<Attributes> {
        self.make(dir, name, InodeBody::Symlink(target.to_owned()), Owner { mode: 0o777, ..owner })
    }

    /// Adds a name to a file.
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &OsStr) -> Result<Attributes> {
        self.check_vacant(dir, name)?;
        if matches!(self.get(ino)?.body, InodeBody::Directory { .. }) {
            return Err(Errno::PERM);
        }
        self.names.add(dir, name, ino, false);
        self.get_mut(ino)?.links += 1;
        self.update_times(&[ino], &[dir])?;
        self.attributes(ino)
    }

    /// Removes a name of a file.
    pub fn unlink(&mut self, dir: Ino, name: &OsStr) -> Result<()> {
        let ino = self.find(dir, name)?;
        if matches!(self.get(ino)?.body, InodeBody::Directory { .. }) {
            return Err(Errno::ISDIR);
        }
        self.names.remove(dir, name, None);
        self.update_times(&[ino], &[dir])?;
        self.drop_link(ino)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, dir: Ino, name: &OsStr) -> Result<()> {
        let ino = self.find(dir, name)?;
        if !self.names.entries(ino).ok_or(Errno::NOTDIR)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.names.remove(dir, name, Some(ino));
        self.update_times(&[], &[dir])?;
        self.drop_link(ino)
    }

    /// Moves a name, replacing an existing one unless `keep_existing`.
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
        self.set_parent(ino, to.0)?;
        self.get_mut(ino)?.file_kind = stale_contents::file_kind(to.1);
        self.update_times(&[ino], &[from.0, to.0])?;
        replaced.map_or(Ok(()), |old| self.drop_link(old))
    }

    /// Swaps two names (`RENAME_EXCHANGE`).
    pub fn exchange(&mut self, a: (Ino, &OsStr), b: (Ino, &OsStr)) -> Result<()> {
        let (first, second) = (self.find(a.0, a.1)?, self.find(b.0, b.1)?);
        if self.is_within(b.0, first)? || self.is_within(a.0, second)? {
            return Err(Errno::INVAL);
        }
        self.names.exchange((a.0, a.1, first), (b.0, b.1, second));
        self.set_parent(first, b.0)?;
        self.set_parent(second, a.0)?;
        self.update_times(&[first, second], &[a.0, b.0])
    }

    fn find(&self, dir: Ino, name: &OsStr) -> Result<Ino> {
        let entries = self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        entries.get(name).copied().ok_or(Errno::NOENT)
    }

    fn check_vacant(&self, dir: Ino, name: &OsStr) -> Result<()> {
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        let entries = self.names.entries(dir).ok_or(Errno::NOENT)?;
        if entries.contains_key(name) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn make(&mut self, dir: Ino, name: &OsStr, body: InodeBody, owner: Owner) -> Result<Attributes> {
        self.check_vacant(dir, name)?;
        let ino = self.next_ino;
        self.next_ino += 1;
        let directory = matches!(body, InodeBody::Directory { .. });
        let inode = Inode::new(body, name, owner, self.now);
        self.inodes.insert(ino, inode);
        self.names.add(dir, name, ino, directory);
        self.update_times(&[], &[dir])?;
        self.attributes(ino)
    }

    fn update_times(&mut self, renamed: &[Ino], directories: &[Ino]) -> Result<()> {
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

    fn set_parent(&mut self, ino: Ino, dir: Ino) -> Result<()> {
        if let InodeBody::Directory { parent } = &mut self.get_mut(ino)?.body {
            *parent = dir;
        }
        Ok(())
    }

    /// Returns true if `dir` is `ancestor` or below it.
    fn is_within(&self, mut dir: Ino, ancestor: Ino) -> Result<bool> {
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            match self.get(dir)?.body {
                InodeBody::Directory { parent } if dir != ROOT => dir = parent,
                _ => return Ok(false),
            }
        }
    }
}
