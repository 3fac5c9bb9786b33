//! Files below a directory, found on a thread of their own while those found before are carried.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason};

use super::Tree;
use super::draft::UNFINISHED;
use crate::moves::FOUND_AHEAD;
use crate::names::name_of;
use crate::{FoundItem, Item};

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
pub fn find(tree: Tree, links: Links) -> mpsc::Receiver<FoundItem> {
    find_below(tree, Path::new(""), links)
}

/// The same of a directory of the tree, with names that begin at its root.
pub fn find_below(tree: Tree, below: &Path, links: Links) -> mpsc::Receiver<FoundItem> {
    let (found, items) = mpsc::channel(FOUND_AHEAD);
    let below = below.to_owned();
    tokio::task::spawn_blocking(move || {
        let walk = Walk { tree, links, found };
        // Nobody listens any more where it ends early.
        let _ = walk.below(&below);
    });
    items
}

/// The failure of a directory that cannot be opened, as a walk reports it.
pub(crate) fn found_failure(place: String, error: Error) -> mpsc::Receiver<FoundItem> {
    let (found, items) = mpsc::channel(1);
    // There is room for one, and the receiver is still here.
    let _ = found.try_send(Err((place, error)));
    items
}

/// Nobody takes what is found any more.
struct Abandoned;

struct Walk {
    tree: Tree,
    links: Links,
    found: mpsc::Sender<FoundItem>,
}

/// An entry of a directory, with what it is ordered by: a directory's name ends with a slash, as in keys.
struct Entry {
    order: Vec<u8>,
    name: OsString,
    kind: FileType,
}

impl Walk {
    fn below(&self, below: &Path) -> Result<(), Abandoned> {
        let listed = self.tree.listing(below).and_then(|directory| {
            let entries = entries(&directory)?;
            Ok((directory, entries))
        });
        let (directory, entries) = match listed {
            Ok(listed) => listed,
            Err(e) => {
                return self.fail(&self.tree.path().join(below), self.tree.failed("list", below, e));
            }
        };
        for Entry { name, kind, .. } in entries {
            if kind.is_dir() {
                self.below(&below.join(name))?;
            } else {
                self.one(&directory, below, &name, kind)?;
            }
        }
        Ok(())
    }

    fn one(&self, directory: &OwnedFd, below: &Path, name: &OsStr, kind: FileType) -> Result<(), Abandoned> {
        if is_unfinished(name.as_encoded_bytes()) || (kind.is_symlink() && self.links == Links::Skip) {
            return Ok(());
        }
        let below = below.join(name);
        let path = || self.tree.path().join(&below);
        let flags = if kind.is_symlink() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let found = match statat(directory, name, flags) {
            Ok(found) => found,
            Err(e) => return self.fail(&path(), self.tree.failed("look at", &below, e.into())),
        };
        let kind = FileType::from_raw_mode(found.st_mode);
        // It became a link since it was listed.
        if kind.is_symlink() && self.links == Links::Skip {
            return Ok(());
        }
        if !kind.is_file() {
            let what = if kind.is_dir() { "a link to a directory" } else { "neither a file nor a directory" };
            let why = format!("{} is {what}: it is left out", path().display());
            return self.fail(&path(), Error::new(Reason::InvalidRequest, why));
        }
        match name_of(&below) {
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

fn entries(directory: &OwnedFd) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Not every file system says it in its listing.
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => FileType::from_raw_mode(found.st_mode),
                // It was removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            },
            kind => kind,
        };
        let mut order = name.as_bytes().to_vec();
        if kind.is_dir() {
            order.push(b'/');
        }
        entries.push(Entry { order, name: name.to_owned(), kind });
    }
    entries.sort_unstable_by(|a, b| a.order.cmp(&b.order));
    Ok(entries)
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
