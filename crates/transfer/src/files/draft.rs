//! A file that has not got its name yet: one without any where the file system can do that, so that nothing is left of it
//! whatever happens, or one under a name that nobody else uses.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;

/// What the name of an unfinished file ends with.
pub(super) const UNFINISHED: &str = ".tradewind-part";

/// The file, open to read and write.
#[derive(Debug)]
pub(super) struct Draft {
    pub file: File,
    /// `None`: it has none.
    pub name: Option<PathBuf>,
}

impl Draft {
    /// A file under a name that must be free; a private one nobody else can open.
    pub fn named(name: PathBuf, is_private: bool) -> io::Result<Self> {
        let mode = if is_private { 0o600 } else { EVERYBODYS };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&name)?;
        Ok(Self { file, name: Some(name) })
    }

    /// A file without a name in a directory (`O_TMPFILE`).
    pub fn unnamed(directory: &Path) -> io::Result<Self> {
        let flags = i32::try_from(OFlags::TMPFILE.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(directory)?;
        Ok(Self { file, name: None })
    }

    /// Gives it its name: whoever looks finds the whole of it, or what was there before. One without a name takes no
    /// place that is taken.
    pub fn publish(&self, to: &Path) -> io::Result<()> {
        self.name.as_ref().map_or_else(|| self.link(to), |name| fs::rename(name, to))
    }

    /// Takes a name that must be free, if it has none.
    pub fn take_name(&mut self, name: &Path) -> io::Result<()> {
        if self.name.is_none() {
            self.link(name)?;
            self.name = Some(name.to_owned());
        }
        Ok(())
    }

    fn link(&self, to: &Path) -> io::Result<()> {
        match linkat(&self.file, c"", CWD, to, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 that takes a privilege; the way through `/proc`, which is longer, takes none.
            Err(Errno::NOENT) => self.link_as_any(to),
            linked => Ok(linked?),
        }
    }

    fn link_as_any(&self, to: &Path) -> io::Result<()> {
        let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(linkat(CWD, open, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// What a new file's mode is before the umask takes from it.
const EVERYBODYS: u32 = 0o666;

/// The mode that new files of this process have.
pub(super) fn usual_mode() -> io::Result<u32> {
    let status = fs::read_to_string("/proc/self/status")?;
    let umask =
        status.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    let umask = umask.ok_or_else(|| io::Error::other("the system does not say the umask"))?;
    Ok(EVERYBODYS & !umask)
}

/// Whether files without a name can be made in a directory, and given one.
pub(super) fn can_do_without_name(directory: &Path, spare: PathBuf) -> bool {
    let made = Draft::unnamed(directory).and_then(|draft| draft.link(&spare));
    made.is_ok() && fs::remove_file(spare).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn both_kinds_get_their_name() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for (n, draft) in
            [Draft::named(path("spare"), false), Draft::unnamed(root.path())].into_iter().enumerate()
        {
            let mut draft = draft.unwrap();
            draft.file.write_all(b"new").unwrap();
            draft.publish(&path(&n.to_string())).unwrap();
        }
        assert!(can_do_without_name(root.path(), path("tried")));
        let mut left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["0", "1"]);
    }

    #[test]
    fn a_name_is_given_with_and_without_the_privilege() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (root.path().join("one"), root.path().join("other"));
        let mut draft = Draft::unnamed(root.path()).unwrap();
        draft.file.write_all(b"new").unwrap();
        draft.link(&one).unwrap();
        draft.link_as_any(&other).unwrap();
        assert_eq!((fs::read(&one).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"new".to_vec()));
        let nowhere = draft.link(&root.path().join("not there/one")).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_usual_mode_is_that_of_new_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let mode = |draft: Draft| draft.file.metadata().unwrap().permissions().mode() & 0o777;
        let named = |name, is_private| Draft::named(root.path().join(name), is_private).unwrap();
        assert_eq!(mode(named("a", false)), usual_mode().unwrap());
        assert_eq!(mode(Draft::unnamed(root.path()).unwrap()), usual_mode().unwrap());
        assert_eq!(mode(named("b", true)), 0o600);
    }

    #[test]
    fn one_without_a_name_replaces_nothing_before_it_has_one() {
        let root = tempfile::tempdir().unwrap();
        let (taken, spare) = (root.path().join("taken"), root.path().join("spare"));
        fs::write(&taken, "old").unwrap();
        let mut draft = Draft::unnamed(root.path()).unwrap();
        draft.file.write_all(b"new").unwrap();
        assert_eq!(draft.publish(&taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        draft.take_name(&spare).unwrap();
        assert_eq!(fs::read(&taken).unwrap(), b"old");
        draft.publish(&taken).unwrap();
        assert_eq!((fs::read(&taken).unwrap(), spare.exists()), (b"new".to_vec(), false));
    }
}
