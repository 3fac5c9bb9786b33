//! The mode, ACL and owner of a file that a transfer replaces. The new file is another inode, so it gets them before it takes the
//! name, as far as this process may.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{
    FileType, Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, fstat, lgetxattr,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::location::FileLocation;
use super::{Links, Tree};

/// Read, write and execute for owner, group and others. Set-id bits are never kept.
const PERMISSION_BITS: u32 = 0o777;
const GROUP_BITS: u32 = 0o070;
/// The permission bits, set-id bits and the sticky bit.
const ALL_MODE_BITS: u32 = 0o7777;
/// The POSIX access control list of a file (`acl(5)`). The group bits of a mode are then its mask.
const ACCESS_ACL: &str = "system.posix_acl_access";
/// Maximum size of the value of an extended attribute (`XATTR_SIZE_MAX`).
const MAX_ACL_BYTES: usize = 64 << 10;

/// The attributes of a regular file to be replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplacedFile {
    mode: u32,
    uid: u32,
    gid: u32,
}

/// The access control list of a file to be replaced.
#[derive(Debug)]
enum AccessAcl {
    Absent,
    Present(Vec<u8>),
    /// It cannot be read.
    Unknown,
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

    /// Gives the new file the owner and group, as far as permitted. Returns the mode to keep. If the group differs, it has
    /// the permissions of others at most.
    pub fn give_owner(&self, file: &File) -> io::Result<u32> {
        let own = Self::from_stat(&fstat(file)?);
        let uid = Some(Uid::from_raw(self.uid)).filter(|_| own.uid != self.uid && geteuid().is_root());
        let gid = Some(Gid::from_raw(self.gid)).filter(|_| own.gid != self.gid);
        let mut has_group = true;
        if uid.is_some() || gid.is_some() {
            match fchown(file, uid, gid) {
                Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::ACCESS) => {
                    has_group = gid.is_none();
                }
                given => given?,
            }
        }
        Ok(if has_group { self.mode } else { limit_group(self.mode) })
    }
}

/// Gives the new file the access control list of the file at a path of a tree. Returns the mode to keep of `mode`: without
/// the list, the group has the permissions of others at most, since the group bits are the mask of the list.
pub(super) fn keep_acl(tree: &Tree, relative: &Path, file: &File, mode: u32) -> u32 {
    let kept = match find_acl(tree, relative) {
        AccessAcl::Present(acl) => fsetxattr(file, ACCESS_ACL, &acl, XattrFlags::empty()),
        // The new file may have inherited one from its directory.
        AccessAcl::Absent => match fremovexattr(file, ACCESS_ACL) {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            removed => removed,
        },
        AccessAcl::Unknown => Err(Errno::OPNOTSUPP),
    };
    match kept {
        Ok(()) => mode,
        Err(e) => {
            let path = tree.path().join(relative);
            tracing::warn!(error = %e, path = %path.display(), "cannot keep the access control list of a file");
            limit_group(mode)
        }
    }
}

fn find_acl(tree: &Tree, relative: &Path) -> AccessAcl {
    let Ok(FileLocation { parent, name }) = FileLocation::split(relative) else { return AccessAcl::Unknown };
    let Ok(parent) = tree.directory(parent) else { return AccessAcl::Unknown };
    // By descriptor, because a component of the path may have been replaced by a link.
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
    let mut value = vec![0; MAX_ACL_BYTES];
    match lgetxattr(&path, ACCESS_ACL, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            AccessAcl::Present(value)
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => AccessAcl::Absent,
        // Without `/proc`, or if the file was removed in the meantime.
        Err(_) => AccessAcl::Unknown,
    }
}

/// A mode in which the group has the permissions of others at most.
const fn limit_group(mode: u32) -> u32 {
    mode & (!GROUP_BITS | (mode << 3) & GROUP_BITS)
}

/// Sets the mode of a file, unless it has it. Returns false if the file system does not let this process set it.
pub(super) fn set_mode(file: &File, mode: u32) -> io::Result<bool> {
    if fstat(file)?.st_mode & ALL_MODE_BITS == mode {
        return Ok(true);
    }
    match fchmod(file, Mode::from_raw_mode(mode)) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        set => Ok(set.map(|()| true)?),
    }
}

/// Sets the mode that a new file keeps of the replaced one. If that cannot be set, the file must not permit more.
pub(super) fn keep_mode(file: &File, mode: u32) -> io::Result<()> {
    if set_mode(file, mode)? {
        return Ok(());
    }
    let own = fstat(file)?.st_mode & ALL_MODE_BITS;
    if own & !mode != 0 {
        let why = format!("its mode {own:o} permits more than the mode {mode:o} of the replaced file");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    tracing::warn!("cannot keep the mode {mode:o} of a replaced file: the new file has {own:o}");
    Ok(())
}
