//! A directory tree in which names are resolved without following a link and without leaving it
//! (`openat2(2)` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`), even if others change it concurrently.
//!
//! The root is opened once and may itself be reached through a link: the user named it. Everything below it is opened,
//! created and removed relative to that descriptor, so that replacing a directory by a link cannot redirect an
//! operation.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, mkdirat, openat, openat2,
    statat, statx,
};
use rustix::io::{Errno, retry_on_intr};
use tradewind_core::error::{Error, Reason};

use super::location::MAX_ATTEMPTS;
use super::{Links, file_error};

/// Flags of a directory descriptor that paths are resolved against; nothing is read through it.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// The mode of new directories, before the umask.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// An open directory and what lies below it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tree {
    path: Arc<Path>,
    root: Arc<OwnedFd>,
}

/// Identity of a file, independent of its name: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn from_stat(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// The relation of two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Neither contains the other.
    Disjoint,
    /// They are one directory.
    Same,
    /// The first lies below the second.
    Within,
    /// The first contains the second.
    Contains,
}

impl Tree {
    /// Opens an existing directory. Links in its path are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let own = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let root = retry_on_intr(|| openat(CWD, own, DIRECTORY, Mode::empty()))?;
        Ok(Self { path: own.into(), root: Arc::new(root) })
    }

    /// Opens a directory, and creates it and its parents if they are missing.
    pub fn create(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Self::open(path)
    }

    /// The path that the root was opened with, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory of the tree; an empty path is the root. A link anywhere in `relative` is an error (`ELOOP`).
    pub(crate) fn directory(&self, relative: &Path) -> io::Result<OwnedFd> {
        Ok(self.resolve(relative, DIRECTORY)?)
    }

    /// Like [`directory`](Self::directory), but creates missing directories.
    pub(crate) fn create_directory(&self, relative: &Path) -> io::Result<OwnedFd> {
        let mut attempt = 1;
        loop {
            match self.resolve(relative, DIRECTORY) {
                Err(Errno::NOENT) => {}
                opened => return Ok(opened?),
            }
            match self.create_stepwise(relative) {
                // Another transfer removed one of them concurrently; no name can be created in a removed directory.
                Err(Errno::NOENT) if attempt < MAX_ATTEMPTS => attempt += 1,
                made => return Ok(made?),
            }
        }
    }

    fn create_stepwise(&self, relative: &Path) -> rustix::io::Result<OwnedFd> {
        let mut directory = None;
        for part in relative {
            directory = Some(create_one(directory.as_ref().unwrap_or(&self.root), part)?);
        }
        directory.map_or_else(|| self.resolve(Path::new(""), DIRECTORY), Ok)
    }

    /// The status of a path. If the last component is a link: of the link, or with [`Links::Follow`] of its target.
    pub(crate) fn stat(&self, relative: &Path, links: Links) -> io::Result<Stat> {
        let found = match links {
            Links::Skip => fstat(self.resolve(relative, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?),
            Links::Follow => statat(&self.root, relative, AtFlags::empty()),
        };
        Ok(found?)
    }

    /// The metadata of a path; if the last component is a link, of the link itself.
    pub(crate) fn metadata(&self, relative: &Path) -> io::Result<fs::Metadata> {
        File::from(self.resolve(relative, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?).metadata()
    }

    /// Opens a file for reading. With [`Links::Skip`] a link anywhere in `relative` is an error.
    pub(crate) fn file(&self, relative: &Path, links: Links) -> io::Result<File> {
        // Non-blocking, because opening a pipe that replaced the file would block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match links {
            Links::Skip => self.resolve(relative, flags),
            Links::Follow => retry_on_intr(|| openat(&self.root, relative, flags, Mode::empty())),
        };
        match opened {
            Err(Errno::AGAIN) => self.file_under_lease(relative, links),
            opened => Ok(opened?.into()),
        }
    }

    /// Opens a file on which another process holds a lease, as file servers do. Waits until the lease is released.
    fn file_under_lease(&self, relative: &Path, links: Links) -> io::Result<File> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = match links {
            Links::Skip => self.resolve(relative, flags)?,
            Links::Follow => retry_on_intr(|| openat(&self.root, relative, flags, Mode::empty()))?,
        };
        if !FileType::from_raw_mode(fstat(&found)?.st_mode).is_file() {
            return Err(Errno::AGAIN.into());
        }
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
    }

    /// Opens a directory of the tree for listing.
    pub(crate) fn listing(&self, relative: &Path) -> io::Result<OwnedFd> {
        Ok(self.resolve(relative, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?)
    }

    fn resolve(&self, relative: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match retry_on_intr(|| openat2(&self.root, relative, flags, Mode::empty(), resolve)) {
            // Before Linux 5.6, or rejected by a system call filter.
            Err(Errno::NOSYS | Errno::PERM) => self.resolve_stepwise(relative, flags),
            opened => opened,
        }
    }

    /// [`resolve`](Self::resolve) without `openat2`: component by component, none of which may be a link.
    fn resolve_stepwise(&self, relative: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut parts = relative.iter();
        let last = parts.next_back().unwrap_or(OsStr::new("."));
        let mut directory = None;
        for part in parts {
            directory = Some(open_one(directory.as_ref().unwrap_or(&self.root), part, DIRECTORY)?);
        }
        open_one(directory.as_ref().unwrap_or(&self.root), last, flags)
    }

    /// Converts an I/O error of a path in the tree. If a link caused it, the message names the link.
    pub(crate) fn error(&self, what: &str, relative: &Path, error: io::Error) -> Error {
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
            && let Some(link) = self.first_link(relative)
        {
            let why = format!(
                "cannot {what} {}: {} is a symbolic link, and links below a directory are not followed",
                self.path.join(relative).display(),
                link.display()
            );
            return Error::with_source(Reason::InvalidKey, why, error);
        }
        file_error(what, &self.path.join(relative), error)
    }

    /// The first link among the components of a path.
    pub(crate) fn first_link(&self, relative: &Path) -> Option<PathBuf> {
        let mut path = self.path.to_path_buf();
        relative.iter().find_map(|part| {
            path.push(part);
            fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()).then(|| path.clone())
        })
    }

    /// The shortest part of a path that is neither a directory nor a link.
    pub(crate) fn first_file(&self, relative: &Path) -> Option<PathBuf> {
        let mut part = PathBuf::new();
        relative.iter().find_map(|name| {
            part.push(name);
            let found = self.metadata(&part).ok()?;
            (!found.is_dir() && !found.is_symlink()).then(|| part.clone())
        })
    }

    /// Compares two trees by device and inode of all their ancestors, since their paths may contain links or mounts.
    pub fn overlap(&self, other: &Self) -> io::Result<Overlap> {
        let (own, others) = (ancestry(&self.root)?, ancestry(&other.root)?);
        let [Some(self_id), Some(other_id)] = [own.first(), others.first()] else {
            return Ok(Overlap::Disjoint);
        };
        Ok(match (own.contains(other_id), others.contains(self_id)) {
            _ if self_id == other_id => Overlap::Same,
            (true, _) => Overlap::Within,
            (_, true) => Overlap::Contains,
            _ => Overlap::Disjoint,
        })
    }
}

/// Opens one component, which must not be a link.
fn open_one(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let opened = retry_on_intr(|| openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty()));
    match opened {
        // With `O_DIRECTORY` a link is reported as `ENOTDIR`.
        Err(Errno::NOTDIR) if is_link(directory, name) => Err(Errno::LOOP),
        opened => opened,
    }
}

fn create_one(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match open_one(directory, name, DIRECTORY) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    match mkdirat(directory, name, DIRECTORY_MODE) {
        // Another transfer may have created it concurrently.
        Ok(()) | Err(Errno::EXIST) => open_one(directory, name, DIRECTORY),
        Err(e) => Err(e),
    }
}

fn is_link(directory: &OwnedFd, name: &OsStr) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_symlink())
}

/// The ids of a directory and its ancestors, up to the root or to one that this user may not search. No path of this
/// user can lead here from above the latter.
fn ancestry(directory: impl AsFd) -> io::Result<Vec<FileId>> {
    let mut all = vec![FileId::from_stat(&fstat(&directory)?)];
    let above =
        |directory: &dyn AsFd| retry_on_intr(|| openat(directory.as_fd(), "..", DIRECTORY, Mode::empty()));
    let (mut mount, mut next) = (mount_id(&directory), above(&directory));
    loop {
        let opened = match next {
            Err(Errno::ACCESS) => return Ok(all),
            opened => opened?,
        };
        let (id, own_mount) = (FileId::from_stat(&fstat(&opened)?), mount_id(&opened));
        // The root is its own parent. The same inode in another mount is a directory that is bind-mounted into itself.
        if all.last() == Some(&id) && mount == own_mount {
            return Ok(all);
        }
        all.push(id);
        mount = own_mount;
        next = above(&opened);
    }
}

/// The mount that a descriptor was opened through; 0 before Linux 5.8.
fn mount_id(descriptor: impl AsFd) -> u64 {
    let found = statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    found.map_or(0, |found| found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    /// `root/dir/file` and `outside/file`, with links in `root` that lead to both.
    fn scene() -> (tempfile::TempDir, Tree) {
        let scene = tempfile::tempdir().unwrap();
        let path = |name: &str| scene.path().join(name);
        for name in ["root/dir", "outside"] {
            fs::create_dir_all(path(name)).unwrap();
            fs::write(path(name).join("file"), name).unwrap();
        }
        symlink(path("outside"), path("root/away")).unwrap();
        symlink("dir", path("root/inside")).unwrap();
        symlink("dir/file", path("root/link")).unwrap();
        let tree = Tree::open(&path("root")).unwrap();
        (scene, tree)
    }

    #[test]
    fn both_resolvers_reject_links() {
        let (_scene, tree) = scene();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        type Resolve = fn(&Tree, &Path, OFlags) -> rustix::io::Result<OwnedFd>;
        for resolve in [Tree::resolve as Resolve, Tree::resolve_stepwise as Resolve] {
            let open = |name: &str| resolve(&tree, Path::new(name), flags);
            let mut text = String::new();
            File::from(open("dir/file").unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "root/dir");
            for name in ["away/file", "inside/file", "link", "away"] {
                assert_eq!(open(name).unwrap_err(), Errno::LOOP, "{name}");
            }
            assert_eq!(open("dir/absent").unwrap_err(), Errno::NOENT);
            assert_eq!(open("dir/file/x").unwrap_err(), Errno::NOTDIR);
            assert!(resolve(&tree, Path::new("."), DIRECTORY).is_ok());
        }
        assert_eq!(tree.resolve(Path::new("../outside/file"), flags).unwrap_err(), Errno::XDEV);
    }

    #[test]
    fn directories_are_not_created_through_links() {
        let (scene, tree) = scene();
        tree.create_directory(Path::new("dir/new/deep")).unwrap();
        assert!(scene.path().join("root/dir/new/deep").is_dir());
        let refused = tree.create_directory(Path::new("away/new/deep")).unwrap_err();
        let message = tree.error("create", Path::new("away/new/deep"), refused).to_string();
        assert!(message.contains("root/away is a symbolic link"), "{message}");
        assert!(!scene.path().join("outside/new").exists());
        symlink("nowhere", scene.path().join("root/dangling")).unwrap();
        assert!(tree.create_directory(Path::new("dangling/x")).is_err());
        assert!(!scene.path().join("root/nowhere").exists());
    }

    #[test]
    fn opening_a_pipe_does_not_block() {
        let (scene, tree) = scene();
        let pipe = scene.path().join("root/pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(!tree.file(Path::new("pipe"), Links::Skip).unwrap().metadata().unwrap().is_file());
    }

    #[test]
    fn replaced_root_path_is_not_resolved_again() {
        let (scene, tree) = scene();
        let path = |name: &str| scene.path().join(name);
        fs::rename(path("root"), path("moved")).unwrap();
        symlink(path("outside"), path("root")).unwrap();
        tree.create_directory(Path::new("new")).unwrap();
        assert!(path("moved/new").is_dir() && !path("outside/new").exists());
    }

    #[test]
    fn overlap_is_detected_through_links_and_dots() {
        let (scene, root) = scene();
        let overlap =
            |a: &Tree, name: &str| a.overlap(&Tree::open(&scene.path().join(name)).unwrap()).unwrap();
        assert_eq!(overlap(&root, "root"), Overlap::Same);
        assert_eq!(overlap(&root, "root/dir/.."), Overlap::Same);
        assert_eq!(overlap(&root, "root/dir"), Overlap::Contains);
        assert_eq!(overlap(&root, "root/inside"), Overlap::Contains);
        assert_eq!(overlap(&root, ""), Overlap::Within);
        assert_eq!(overlap(&root, "outside"), Overlap::Disjoint);
        assert_eq!(overlap(&root, "root/away"), Overlap::Disjoint);
    }

    /// File servers take leases on files that their clients have open.
    #[test]
    fn leased_file_opens_once_the_lease_is_released() {
        use std::os::fd::AsRawFd as _;
        let (scene, tree) = scene();
        let held = File::options().write(true).open(scene.path().join("root/dir/file")).unwrap();
        // SAFETY: the descriptor is open, and the command takes a number.
        let taken = unsafe { libc::fcntl(held.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken != 0 {
            println!("skipped: leases: {}", io::Error::last_os_error());
            return;
        }
        // `fcntl.h` of Linux. Its default, SIGIO, would end this process.
        const F_SETSIG: libc::c_int = 10;
        // SAFETY: the descriptor is open, and the command takes the number of a signal, which is ignored by default.
        unsafe { libc::fcntl(held.as_raw_fd(), F_SETSIG, libc::SIGURG) };
        let opener = std::thread::spawn(move || tree.file(Path::new("dir/file"), Links::Skip));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!opener.is_finished(), "opening waits for the lease");
        drop(held);
        assert!(opener.join().unwrap().is_ok());
    }

    #[test]
    fn directory_mounted_in_itself_hides_no_ancestor() {
        let scene = tempfile::tempdir().unwrap();
        let path = |name: &str| scene.path().join(name);
        fs::create_dir_all(path("p/c")).unwrap();
        if let Err(e) = rustix::mount::mount_bind(path("p"), path("p/c")) {
            println!("skipped: bind mounts: {e}");
            return;
        }
        fs::create_dir_all(path("p/x/y")).unwrap();
        let overlap =
            Tree::open(&path("p/c/x/y")).and_then(|deep| deep.overlap(&Tree::open(scene.path()).unwrap()));
        rustix::mount::unmount(path("p/c"), rustix::mount::UnmountFlags::empty()).unwrap();
        assert_eq!(overlap.unwrap(), Overlap::Within);
    }
}
