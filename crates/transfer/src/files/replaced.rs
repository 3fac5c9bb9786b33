//! The mode and owner of a file that a transfer replaces. The new file is another inode, so it gets them before it takes the
//! name, as far as this process may.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FileType, Gid, Stat, Uid, fchown, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Links, Tree};

/// Read, write and execute for owner, group and others. Set-id bits are never kept.
const PERMISSION_BITS: u32 = 0o777;
const GROUP_BITS: u32 = 0o070;

/// The attributes of a regular file to be replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplacedFile {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl ReplacedFile {
    /// The file at a path of a tree; `None` if there is none. A link is replaced; its target does not matter.
    pub fn find(tree: &Tree, relative: &Path) -> Option<Self> {
        // An error is reported when the name is used.
        let found = tree.stat(relative, Links::Skip).ok()?;
        FileType::from_raw_mode(found.st_mode).is_file().then(|| Self::from_stat(&found))
    }

    const fn from_stat(stat: &Stat) -> Self {
        Self { mode: stat.st_mode & PERMISSION_BITS, uid: stat.st_uid, gid: stat.st_gid }
    }

    /// Gives the new file the owner and group, as far as permitted. Returns the mode to set. If the group differs, it has
    /// the permissions of others at most.
    pub fn give_owner(&self, file: &File) -> io::Result<u32> {
        let own = Self::from_stat(&fstat(file)?);
        let uid = Some(Uid::from_raw(self.uid)).filter(|_| own.uid != self.uid && geteuid().is_root());
        let gid = Some(Gid::from_raw(self.gid)).filter(|_| own.gid != self.gid);
        let mut has_group = true;
        if uid.is_some() || gid.is_some() {
            match fchown(file, uid, gid) {
                Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => has_group = gid.is_none(),
                given => given?,
            }
        }
        let others = (self.mode << 3) & GROUP_BITS;
        Ok(if has_group { self.mode } else { self.mode & (!GROUP_BITS | others) })
    }
}
