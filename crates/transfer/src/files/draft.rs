//! Unfinished files: unnamed (`O_TMPFILE`) where the file system supports it, so that a crash leaves nothing behind;
//! otherwise under a temporary name that no other transfer uses.
//!
//! Names are created and removed relative to open directories. Others may write into those, so a file found under the
//! name of an unfinished file is used only if its identity matches.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::UNIX_EPOCH;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, linkat, openat, renameat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::tree::FileId;

/// The suffix of the name of an unfinished file.
pub(super) const UNFINISHED_SUFFIX: &str = ".tradewind-part";

/// Mode of files that only their owner may access.
pub(super) const PRIVATE_MODE: u32 = 0o600;
/// Mode of new files before the umask.
const FILE_MODE: u32 = 0o666;

/// The descriptor and name of an unfinished file, open to read and write.
#[derive(Debug)]
pub(super) struct Draft {
    pub file: File,
    /// The name and its directory; `None` for an unnamed file.
    location: Option<NamedLocation>,
}

#[derive(Debug)]
struct NamedLocation {
    directory: OwnedFd,
    name: OsString,
}

/// Identity of an unfinished file in its directory, across processes.
///
/// It excludes the device number, which many file systems change with each mount. The birth time, if the file system
/// records one, distinguishes the file from a later one with a reused inode number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DraftId {
    inode: u64,
    owner: u32,
    born_nanos: Option<u64>,
}

impl DraftId {
    fn from_metadata(metadata: &fs::Metadata) -> Self {
        let birth = metadata.created().ok().and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let born_nanos = birth.and_then(|birth| u64::try_from(birth.as_nanos()).ok());
        Self { inode: metadata.ino(), owner: metadata.uid(), born_nanos }
    }
}

impl Draft {
    /// Creates a file under a temporary name that must be free. A private file is accessible by its owner only.
    pub fn named(directory: OwnedFd, name: OsString, is_private: bool) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(if is_private { PRIVATE_MODE } else { FILE_MODE });
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = retry_on_intr(|| openat(&directory, &name, flags, mode))?.into();
        Ok(Self { file, location: Some(NamedLocation { directory, name }) })
    }

    /// Creates an unnamed file (`O_TMPFILE`).
    pub fn unnamed(directory: &OwnedFd) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = retry_on_intr(|| openat(directory, ".", flags, Mode::from_raw_mode(FILE_MODE)))?.into();
        Ok(Self { file, location: None })
    }

    /// Opens the unfinished file of an earlier transfer: a regular file with one name and the recorded identity.
    /// `None` if there is no such file or anything else under the name.
    pub fn reopen(directory: OwnedFd, name: OsString, id: &DraftId) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = match retry_on_intr(|| openat(&directory, &name, flags, Mode::empty())) {
            Ok(file) => file.into(),
            Err(
                Errno::NOENT
                | Errno::LOOP
                | Errno::ISDIR
                | Errno::NXIO
                | Errno::ACCESS
                | Errno::PERM
                | Errno::AGAIN,
            ) => {
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        let metadata = file.metadata()?;
        let is_recorded =
            metadata.is_file() && metadata.nlink() == 1 && DraftId::from_metadata(&metadata) == *id;
        Ok(is_recorded.then_some(Self { file, location: Some(NamedLocation { directory, name }) }))
    }

    /// The identity to record, for [`reopen`](Self::reopen).
    pub fn id(&self) -> io::Result<DraftId> {
        Ok(DraftId::from_metadata(&self.file.metadata()?))
    }

    /// The name of the file; `None` if it is unnamed.
    pub fn name(&self) -> Option<&OsStr> {
        self.location.as_ref().map(|location| &*location.name)
    }

    /// Gives the file its final name atomically: readers find the complete file or the previous one.
    ///
    /// An unnamed file cannot replace an existing one (`AlreadyExists`). Fails if another program has replaced the
    /// unfinished file.
    pub fn publish(&self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let Some(location) = &self.location else { return self.link(directory, name) };
        let is_replaced = || io::Error::other("another program replaced the unfinished file; retry");
        let own = FileId::from_stat(&fstat(&self.file)?);
        let found = statat(&location.directory, &location.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileId::from_stat(&found) != own {
            return Err(is_replaced());
        }
        renameat(&location.directory, &location.name, directory, name)?;
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It was replaced between the two calls. A regular file with another id is accepted: a concurrent transfer
            // may have published its own.
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_symlink() => Err(is_replaced()),
            _ => Ok(()),
        }
    }

    /// Gives an unnamed file a temporary name that must be free.
    pub fn take_name(&mut self, directory: OwnedFd, name: OsString) -> io::Result<()> {
        if self.location.is_none() {
            self.link(&directory, &name)?;
            self.location = Some(NamedLocation { directory, name });
        }
        Ok(())
    }

    /// Removes the temporary name, if any, and with it the file.
    pub fn discard(&self) -> io::Result<()> {
        let Some(location) = &self.location else { return Ok(()) };
        match unlinkat(&location.directory, &location.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn link(&self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match linkat(&self.file, c"", directory, name, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10, `AT_EMPTY_PATH` requires a privilege; the slower path through `/proc` does not.
            Err(Errno::NOENT) => self.link_via_proc(directory, name),
            linked => Ok(linked?),
        }
    }

    fn link_via_proc(&self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(linkat(CWD, open, directory, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// A unique temporary name for an unfinished file.
#[derive(Debug, Clone, Copy)]
pub(super) struct TempName {
    pub random_id: u64,
    pub number: u64,
}

impl TempName {
    /// The temporary name for the file `name`, in the same directory.
    pub fn for_file(self, name: &OsStr) -> OsString {
        let Self { random_id, number } = self;
        // Truncated, because the combined name may exceed the limit.
        let name: String = name.to_string_lossy().chars().take(32).collect();
        format!(".{name}.{random_id:016x}-{number}{UNFINISHED_SUFFIX}").into()
    }
}

/// The mode of new files of this process: `0o666` without the umask.
pub(super) fn default_file_mode() -> io::Result<u32> {
    let status = fs::read_to_string("/proc/self/status")?;
    let umask =
        status.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    let umask = umask.ok_or_else(|| io::Error::other("/proc/self/status has no umask"))?;
    Ok(FILE_MODE & !umask)
}

/// Returns true if a directory's file system supports unnamed files that can be named later.
pub(super) fn supports_unnamed_files(directory: &OwnedFd, temp_name: &OsStr) -> bool {
    let linked = Draft::unnamed(directory).and_then(|draft| draft.link(directory, temp_name));
    linked.is_ok() && unlinkat(directory, temp_name, AtFlags::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Tree;
    use std::io::Write as _;
    use std::path::Path;

    fn open(root: &Path) -> OwnedFd {
        Tree::open(root).unwrap().directory(Path::new("")).unwrap()
    }

    #[test]
    fn named_and_unnamed_drafts_are_published() {
        let root = tempfile::tempdir().unwrap();
        let directory = || open(root.path());
        for (n, draft) in
            [Draft::named(directory(), "unfinished".into(), false), Draft::unnamed(&directory())]
                .into_iter()
                .enumerate()
        {
            let mut draft = draft.unwrap();
            draft.file.write_all(b"new").unwrap();
            draft.publish(&directory(), OsStr::new(&n.to_string())).unwrap();
        }
        assert!(supports_unnamed_files(&directory(), OsStr::new("tried")));
        let mut left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["0", "1"]);
    }

    #[test]
    fn unnamed_file_is_linked_directly_and_through_proc() {
        let root = tempfile::tempdir().unwrap();
        let directory = open(root.path());
        let mut draft = Draft::unnamed(&directory).unwrap();
        draft.file.write_all(b"new").unwrap();
        draft.link(&directory, OsStr::new("one")).unwrap();
        draft.link_via_proc(&directory, OsStr::new("other")).unwrap();
        let read = |name: &str| fs::read(root.path().join(name)).unwrap();
        assert_eq!((read("one"), read("other")), (b"new".to_vec(), b"new".to_vec()));
        let nowhere = draft.link(&directory, OsStr::new("not there/one")).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn default_mode_matches_new_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let mode = |draft: Draft| draft.file.metadata().unwrap().permissions().mode() & 0o777;
        let named =
            |name: &str, is_private| Draft::named(open(root.path()), name.into(), is_private).unwrap();
        assert_eq!(mode(named("a", false)), default_file_mode().unwrap());
        assert_eq!(mode(Draft::unnamed(&open(root.path())).unwrap()), default_file_mode().unwrap());
        assert_eq!(mode(named("b", true)), 0o600);
    }

    #[test]
    fn unnamed_draft_replaces_a_file_only_once_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (taken, unfinished) = (root.path().join("taken"), root.path().join("unfinished"));
        fs::write(&taken, "old").unwrap();
        let directory = open(root.path());
        let mut draft = Draft::unnamed(&directory).unwrap();
        draft.file.write_all(b"new").unwrap();
        let rejected = draft.publish(&directory, OsStr::new("taken")).unwrap_err();
        assert_eq!(rejected.kind(), io::ErrorKind::AlreadyExists);
        draft.take_name(open(root.path()), "unfinished".into()).unwrap();
        assert_eq!(fs::read(&taken).unwrap(), b"old");
        draft.publish(&directory, OsStr::new("taken")).unwrap();
        assert_eq!((fs::read(&taken).unwrap(), unfinished.exists()), (b"new".to_vec(), false));
    }

    #[test]
    fn only_the_recorded_file_is_reopened() {
        let root = tempfile::tempdir().unwrap();
        let (unfinished, victim) = (root.path().join("unfinished"), root.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let id = Draft::named(open(root.path()), "unfinished".into(), false).unwrap().id().unwrap();
        let reopen =
            |id: &DraftId| Draft::reopen(open(root.path()), "unfinished".into(), id).unwrap().is_some();
        assert!(reopen(&id));
        fs::hard_link(&unfinished, root.path().join("second name")).unwrap();
        assert!(!reopen(&id), "others could write to it under its second name");
        fs::remove_file(root.path().join("second name")).unwrap();
        assert!(reopen(&id));
        assert!(!reopen(&DraftId { born_nanos: Some(1), ..id.clone() }));
        fs::remove_file(&unfinished).unwrap();
        assert!(!reopen(&id));
        let victim_id = DraftId::from_metadata(&fs::metadata(&victim).unwrap());
        std::os::unix::fs::symlink(&victim, &unfinished).unwrap();
        assert!(!reopen(&id) && !reopen(&victim_id));
        fs::remove_file(&unfinished).unwrap();
        fs::hard_link(&victim, &unfinished).unwrap();
        assert!(!reopen(&id) && !reopen(&victim_id));
        fs::remove_file(&unfinished).unwrap();
        rustix::fs::mknodat(CWD, &unfinished, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(!reopen(&id));
    }

    #[test]
    fn replacement_of_an_unfinished_file_is_not_published() {
        let root = tempfile::tempdir().unwrap();
        let unfinished = root.path().join("unfinished");
        let draft = Draft::named(open(root.path()), "unfinished".into(), false).unwrap();
        fs::remove_file(&unfinished).unwrap();
        std::os::unix::fs::symlink("elsewhere", &unfinished).unwrap();
        assert!(draft.publish(&open(root.path()), OsStr::new("final")).is_err());
        assert!(
            !root.path().join("final").exists() && fs::symlink_metadata(root.path().join("final")).is_err()
        );
    }
}
