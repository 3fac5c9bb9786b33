//! Attributes of inodes, apart from names and contents.

use std::path::Path;
use std::time::SystemTime;

use rustix::io::Errno;

use super::inode::{Attributes, InodeBody, Owner};
use super::{Model, Result};
use crate::namespace::Ino;

impl Model {
    /// The `stat` result of an inode.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.get(ino)?.attributes(ino))
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

    /// The target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<&Path> {
        match &self.get(ino)?.body {
            InodeBody::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }
}
