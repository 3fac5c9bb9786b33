//! Listing of the files below a directory, on a thread of its own while earlier items are transferred.

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
use super::draft::UNFINISHED_SUFFIX;
use crate::names::path_to_key;
use crate::workers::MAX_QUEUED_ITEMS;
use crate::{Item, ItemFeed, ListedItem};

/// The treatment of symbolic links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Links {
    /// Links are skipped.
    #[default]
    Skip,
    /// Links to files count as files. Links to directories are reported as failures, because they could form a cycle.
    Follow,
}

/// Returns true for the name of an unfinished file, which an interrupted transfer left.
pub(crate) fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(UNFINISHED_SUFFIX.as_bytes())
}

/// Lists every file of a tree in byte order of names, like stores list keys: `a.txt` comes before `a/b`.
///
/// Anything but a file, directory or link is reported as a failure. Directories are opened through [`Tree`], so one
/// that is replaced by a link is not entered.
pub fn find(tree: Tree, links: Links) -> ItemFeed {
    find_below(tree, Path::new(""), links)
}

/// Like [`find`], but only below the directory `relative` of the tree; names are still relative to the root.
pub fn find_below(tree: Tree, relative: &Path, links: Links) -> ItemFeed {
    let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
    let (relative, location) = (relative.to_owned(), tree.path().join(relative).display().to_string());
    let task = tokio::task::spawn_blocking(move || {
        let walk = Walk { tree, links, sender };
        // An early end means that the receiver was dropped.
        let _ = walk.walk(&relative);
    });
    ItemFeed::new(items, location, task)
}

/// The receiver was dropped.
struct Abandoned;

struct Walk {
    tree: Tree,
    links: Links,
    sender: mpsc::Sender<ListedItem>,
}

/// An entry of a directory and its sort key: a directory's name ends with a slash, as in keys.
pub(crate) struct Entry {
    order: Vec<u8>,
    pub name: OsString,
    pub kind: FileType,
}

impl Walk {
    fn walk(&self, relative: &Path) -> Result<(), Abandoned> {
        let entries = match entries(&self.tree, relative) {
            Ok(entries) => entries,
            Err(e) => {
                return self.fail(&self.tree.path().join(relative), self.tree.error("list", relative, e));
            }
        };
        // Closed while subdirectories are walked: a deep tree would otherwise hold a descriptor per level.
        let mut directory = None;
        for Entry { name, kind, .. } in entries {
            let path = relative.join(&name);
            if kind.is_dir() {
                directory = None;
                self.walk(&path)?;
            } else if !(is_unfinished(name.as_bytes()) || kind.is_symlink() && self.links == Links::Skip) {
                let open = match directory.take().map_or_else(|| self.tree.directory(relative), Ok) {
                    Ok(open) => open,
                    Err(e) => {
                        self.fail(&self.tree.path().join(&path), self.tree.error("access", &path, e))?;
                        continue;
                    }
                };
                self.visit(&open, &path, &name, kind)?;
                directory = Some(open);
            }
        }
        Ok(())
    }

    fn visit(
        &self,
        directory: &OwnedFd,
        relative: &Path,
        name: &OsStr,
        listed: FileType,
    ) -> Result<(), Abandoned> {
        let path = || self.tree.path().join(relative);
        let flags = if listed.is_symlink() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = match statat(directory, name, flags) {
            Ok(stat) => stat,
            Err(e) => return self.fail(&path(), self.tree.error("access", relative, e.into())),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        // It was replaced by a link since it was listed.
        if kind.is_symlink() && self.links == Links::Skip {
            return Ok(());
        }
        if !kind.is_file() {
            let what = match (listed.is_symlink(), kind.is_dir()) {
                (true, true) => "a link to a directory",
                (false, true) => "now a directory",
                _ => "neither a file nor a directory",
            };
            let why = format!("{} is {what}: skipped", path().display());
            return self.fail(&path(), Error::new(Reason::InvalidRequest, why));
        }
        match path_to_key(relative) {
            Ok(name) => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
                let millis = stat.st_mtime.saturating_mul(1000).saturating_add(nanos / 1_000_000);
                self.send(Ok(Item { name, size, modified: Timestamp::from_millis(millis) }))
            }
            Err(e) => self.fail(&path(), e),
        }
    }

    fn fail(&self, path: &Path, error: Error) -> Result<(), Abandoned> {
        self.send(Err((path.display().to_string(), error)))
    }

    fn send(&self, item: ListedItem) -> Result<(), Abandoned> {
        self.sender.blocking_send(item).map_err(|_| Abandoned)
    }
}

/// The entries of a directory of a tree, in the byte order of keys.
pub(crate) fn entries(tree: &Tree, relative: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut listing = Dir::new(tree.listing(relative)?)?;
    let mut unknown = Vec::new();
    for entry in listing.by_ref() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        match entry.file_type() {
            _ if name == "." || name == ".." => {}
            // Some file systems do not report the type in listings.
            FileType::Unknown => unknown.push(name),
            kind => entries.push(Entry::new(name, kind)),
        }
    }
    for name in unknown {
        let found = statat(listing.fd()?, &name, AtFlags::SYMLINK_NOFOLLOW);
        // An inaccessible entry is reported when it is visited.
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
    async fn files_are_listed_in_key_order() {
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
    async fn non_files_are_reported_as_failures() {
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
