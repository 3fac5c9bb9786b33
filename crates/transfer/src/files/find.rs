//! Files below a directory, found on a thread of their own while those found before are carried.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, statat};
use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason};

use super::Tree;
use super::draft::UNFINISHED;
use crate::moves::FOUND_AHEAD;
use crate::names::name_of;
use crate::{Found, FoundItem, Item};

/// What is done about symbolic links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Links {
    /// They are passed over.
    #[default]
    Skip,
    /// Those to files are files. Those to directories are told of as failures: they could lead in a circle.
    Follow,
}

/// What a transfer that was killed left is no file of anybody's.
pub(crate) fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(UNFINISHED.as_bytes())
}

/// Finds every file of a tree, in the byte order of their names, as stores list keys: `a.txt` comes before `a/b`.
/// What is neither file, directory nor link is reported as a failure. Directories are opened as [`Tree`] does: one that becomes a
/// link meanwhile is not entered.
pub fn find(tree: Tree, links: Links) -> Found {
    find_below(tree, Path::new(""), links)
}

/// The same of a directory of the tree, with names that begin at its root.
pub fn find_below(tree: Tree, below: &Path, links: Links) -> Found {
    let (found, items) = mpsc::channel(FOUND_AHEAD);
    let (below, place) = (below.to_owned(), tree.path().join(below).display().to_string());
    let task = tokio::task::spawn_blocking(move || {
        let walk = Walk { tree, links, found };
        // Nobody listens any more where it ends early.
        let _ = walk.below(&below);
    });
    Found::new(items, place, task)
}

/// Nobody takes what is found any more.
struct Abandoned;

struct Walk {
    tree: Tree,
    links: Links,
    found: mpsc::Sender<FoundItem>,
}

/// An entry of a directory, with what it is ordered by: a directory's name ends with a slash, as in keys.
pub(crate) struct Entry {
    order: Vec<u8>,
    pub name: OsString,
    pub kind: FileType,
}

impl Walk {
    fn below(&self, below: &Path) -> Result<(), Abandoned> {
        let entries = match entries(&self.tree, below) {
            Ok(entries) => entries,
            Err(e) => {
                return self.fail(&self.tree.path().join(below), self.tree.failed("list", below, e));
            }
        };
        // Not held while directories in it are walked: a deep tree would take a descriptor for each level.
        let mut directory = None;
        for Entry { name, kind, .. } in entries {
            let path = below.join(&name);
            if kind.is_dir() {
                directory = None;
                self.below(&path)?;
            } else if !(is_unfinished(name.as_bytes()) || kind.is_symlink() && self.links == Links::Skip) {
                let open = match directory.take().map_or_else(|| self.tree.directory(below), Ok) {
                    Ok(open) => open,
                    Err(e) => {
                        self.fail(&self.tree.path().join(&path), self.tree.failed("look at", &path, e))?;
                        continue;
                    }
                };
                self.one(&open, &path, &name, kind)?;
                directory = Some(open);
            }
        }
        Ok(())
    }

    fn one(
        &self,
        directory: &OwnedFd,
        below: &Path,
        name: &OsStr,
        listed: FileType,
    ) -> Result<(), Abandoned> {
        let path = || self.tree.path().join(below);
        let flags = if listed.is_symlink() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let found = match statat(directory, name, flags) {
            Ok(found) => found,
            Err(e) => return self.fail(&path(), self.tree.failed("look at", below, e.into())),
        };
        let kind = FileType::from_raw_mode(found.st_mode);
        // It became a link since it was listed.
        if kind.is_symlink() && self.links == Links::Skip {
            return Ok(());
        }
        if !kind.is_file() {
            let what = match (listed.is_symlink(), kind.is_dir()) {
                (true, true) => "a link to a directory",
                (false, true) => "a directory since a moment ago",
                _ => "neither a file nor a directory",
            };
            let why = format!("{} is {what}: it is left out", path().display());
            return self.fail(&path(), Error::new(Reason::InvalidRequest, why));
        }
        match name_of(below) {
            Ok(name) => {
                let size = u64::try_from(found.st_size).unwrap_or(0);
                let nanos = i64::try_from(found.st_mtime_nsec).unwrap_or(0);
                let millis = found.st_mtime.saturating_mul(1000).saturating_add(nanos / 1_000_000);
                self.send(Ok(Item { name, size, modified: Timestamp::from_millis(millis) }))
            }
            Err(e) => self.fail(&path(), e),
        }
    }

    fn fail(&self, path: &Path, error: Error) -> Result<(), Abandoned> {
        self.send(Err((path.display().to_string(), error)))
    }

    fn send(&self, found: FoundItem) -> Result<(), Abandoned> {
        self.found.blocking_send(found).map_err(|_| Abandoned)
    }
}

/// What is in a directory of a tree, in the byte order of keys.
pub(crate) fn entries(tree: &Tree, below: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut listing = Dir::new(tree.listing(below)?)?;
    let mut unknown = Vec::new();
    for entry in listing.by_ref() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        match entry.file_type() {
            _ if name == "." || name == ".." => {}
            // Not every file system says it in its listing.
            FileType::Unknown => unknown.push(name),
            kind => entries.push(Entry::new(name, kind)),
        }
    }
    for name in unknown {
        let found = statat(listing.fd()?, &name, AtFlags::SYMLINK_NOFOLLOW);
        // What cannot be looked at is reported when its turn comes.
        let kind = found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode));
        entries.push(Entry::new(name, kind));
    }
    entries.sort_unstable_by(|a, b| a.order.cmp(&b.order));
    Ok(entries)
}

impl Entry {
    fn new(name: OsString, kind: FileType) -> Self {
        let mut order = name.as_bytes().to_vec();
        if kind.is_dir() {
            order.push(b'/');
        }
        Self { order, name, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn all(root: &Path, links: Links) -> (Vec<String>, Vec<String>) {
        let mut items = find(Tree::open(root).unwrap(), links);
        let (mut names, mut failures) = (Vec::new(), Vec::new());
        while let Some(item) = items.recv().await {
            match item {
                Ok(item) => names.push(item.name),
                Err((_, e)) => failures.push(e.to_string()),
            }
        }
        (names, failures)
    }

    #[tokio::test]
    async fn files_come_in_the_order_of_keys() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/b", "a.txt", "a-b", "a0", "b/c/d", "b/c.x", "\u{e9}"] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let (names, failures) = all(root.path(), Links::Skip).await;
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(names, sorted);
        assert_eq!((names.len(), failures.len()), (7, 0));
    }

    #[tokio::test]
    async fn what_is_no_file_is_told_of() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("file"), "x").unwrap();
        fs::write(path(".file.0123-1.tradewind-part"), "x").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink(".", path("circle")).unwrap();
        fs::write(root.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let (names, failures) = all(root.path(), Links::Skip).await;
        assert_eq!(names, ["file"]);
        assert_eq!(failures.len(), 2, "{failures:?}");
        let (names, failures) = all(root.path(), Links::Follow).await;
        assert_eq!(names, ["file", "link"]);
        assert_eq!(failures.len(), 3, "{failures:?}");
        let mut absent = find_below(Tree::open(root.path()).unwrap(), Path::new("absent"), Links::Skip);
        let (_, failure) = absent.recv().await.unwrap().unwrap_err();
        assert!(failure.to_string().starts_with("cannot list "), "{failure}");
    }
}
