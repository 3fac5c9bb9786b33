//! Files below a directory, found on a thread of their own while those found before are carried.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason};

use super::draft::UNFINISHED;
use super::failed;
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

/// Finds every file below `root`, in the byte order of their names, as stores list keys: `a.txt` comes before `a/b`.
/// What is neither file, directory nor link is told of as a failure.
pub fn find(root: PathBuf, links: Links) -> mpsc::Receiver<FoundItem> {
    find_below(root, Path::new(""), links)
}

/// The same of a directory below `root`, with names that begin there.
pub fn find_below(root: PathBuf, below: &Path, links: Links) -> mpsc::Receiver<FoundItem> {
    let (found, items) = mpsc::channel(FOUND_AHEAD);
    let directory = root.join(below);
    tokio::task::spawn_blocking(move || {
        let walk = Walk { root, links, found };
        // Nobody listens any more where it ends early.
        let _ = walk.below(&directory);
    });
    items
}

/// Nobody takes what is found any more.
struct Abandoned;

struct Walk {
    root: PathBuf,
    links: Links,
    found: mpsc::Sender<FoundItem>,
}

/// An entry of a directory, with what it is ordered by: a directory's name ends with a slash, as in keys.
struct Entry {
    order: Vec<u8>,
    path: PathBuf,
    kind: fs::FileType,
}

impl Walk {
    fn below(&self, directory: &Path) -> Result<(), Abandoned> {
        let entries = match entries(directory) {
            Ok(entries) => entries,
            Err(e) => return self.fail(directory, failed("list", directory, e)),
        };
        for Entry { path, kind, .. } in entries {
            if kind.is_dir() {
                self.below(&path)?;
            } else {
                self.one(&path, kind)?;
            }
        }
        Ok(())
    }

    fn one(&self, path: &Path, kind: fs::FileType) -> Result<(), Abandoned> {
        let is_unfinished = |name: &OsStr| is_unfinished(name.as_encoded_bytes());
        if path.file_name().is_some_and(is_unfinished) {
            return Ok(());
        }
        if kind.is_symlink() && self.links == Links::Skip {
            return Ok(());
        }
        let metadata = if kind.is_symlink() { fs::metadata(path) } else { fs::symlink_metadata(path) };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(e) => return self.fail(path, failed("look at", path, e)),
        };
        if !metadata.is_file() {
            let what =
                if metadata.is_dir() { "a link to a directory" } else { "neither a file nor a directory" };
            let why = format!("{} is {what}: it is left out", path.display());
            return self.fail(path, Error::new(Reason::InvalidRequest, why));
        }
        match name_of(path.strip_prefix(&self.root).unwrap_or(path)) {
            Ok(name) => {
                let modified = metadata.modified().map(Timestamp::from).unwrap_or_default();
                self.tell(Ok(Item { name, size: metadata.len(), modified }))
            }
            Err(e) => self.fail(path, e),
        }
    }

    fn fail(&self, path: &Path, error: Error) -> Result<(), Abandoned> {
        self.tell(Err((path.display().to_string(), error)))
    }

    fn tell(&self, found: FoundItem) -> Result<(), Abandoned> {
        self.found.blocking_send(found).map_err(|_| Abandoned)
    }
}

fn entries(directory: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let mut order = entry.file_name().into_encoded_bytes();
        if kind.is_dir() {
            order.push(b'/');
        }
        entries.push(Entry { order, path: entry.path(), kind });
    }
    entries.sort_unstable_by(|a, b| a.order.cmp(&b.order));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    async fn all(root: &Path, links: Links) -> (Vec<String>, Vec<String>) {
        let mut items = find(root.to_owned(), links);
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
        let (_, failures) = all(&path("absent"), Links::Skip).await;
        assert!(failures[0].starts_with("cannot list "), "{failures:?}");
    }
}
