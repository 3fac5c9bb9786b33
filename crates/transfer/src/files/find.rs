//! Listing of the files below a directory, on threads of the blocking pool while earlier items are transferred.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};

use super::Tree;
use super::draft::UNFINISHED_SUFFIX;
use crate::filter::Filter;
use crate::names::path_to_key;
use crate::preserve::FileTimes;
use crate::workers::MAX_QUEUED_ITEMS;
use crate::{Extent, FileNanos, Item, ItemFeed, ListedItem, Unlisted};

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
///
/// Excluded directories are not entered, and failures of excluded names are not reported. Files are listed whether
/// excluded or not. If there are only excluded directories, and a file is in one of them, the listing has an excluded
/// [`Unlisted`] part instead: the tree is not empty.
pub fn find(tree: Tree, links: Links, filter: &Filter) -> ItemFeed {
    find_below(tree, Path::new(""), links, filter)
}

/// Like [`find`], but only below the directory `relative` of the tree; names are still relative to the root.
pub fn find_below(tree: Tree, relative: &Path, links: Links, filter: &Filter) -> ItemFeed {
    let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
    let location = tree.path().join(relative).display().to_string();
    let mut walk = Walk::new(tree, links, filter.clone());
    walk.enter(relative.to_owned());
    let name = location.clone();
    let task = tokio::spawn(async move {
        if let Err(error) = send_walk(walk, &sender).await {
            // Sending fails only if the receiver was dropped.
            let _ = sender.send(Err((name, error).into())).await;
        }
    });
    ItemFeed::new(items, location, task)
}

/// Walks in batches, each on a thread of the blocking pool, and sends them from this task: a thread that waits for a receiver
/// could be the only one of the pool. Ends early if the receiver is dropped.
async fn send_walk(mut walk: Walk, sender: &mpsc::Sender<ListedItem>) -> Result<()> {
    while !walk.has_ended {
        let next = tokio::task::spawn_blocking(move || {
            walk.find_batch();
            walk
        });
        let failed = |e| Error::with_source(Reason::Defect, "incomplete: the task that lists it failed", e);
        walk = next.await.map_err(failed)?;
        for item in walk.found.drain(..) {
            if sender.send(item).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Maximum number of excluded directories that are searched for a file if nothing else is found.
const MAX_SKIPPED: usize = 1024;
/// Entries that are visited before the found items are sent.
const BATCH_ENTRIES: usize = 256;

struct Walk {
    tree: Tree,
    links: Links,
    filter: Filter,
    /// The directories that are being walked, each in its parent.
    entered: Vec<Entered>,
    /// The last one of them, while its files are visited. A deep tree would otherwise hold a descriptor per level.
    open: Option<OwnedFd>,
    /// Items and failures that are not yet sent.
    found: Vec<ListedItem>,
    has_ended: bool,
    /// An item or a failure was found.
    has_found: bool,
    /// Excluded directories, as long as nothing was found.
    skipped: Vec<PathBuf>,
}

/// A directory that is being walked.
struct Entered {
    relative: PathBuf,
    /// The entries that are not yet visited.
    rest: std::vec::IntoIter<Entry>,
}

/// An entry of a directory and its sort key: a directory's name ends with a slash, as in keys.
pub(crate) struct Entry {
    order: Vec<u8>,
    pub name: OsString,
    pub kind: FileType,
}

impl Walk {
    const fn new(tree: Tree, links: Links, filter: Filter) -> Self {
        Self {
            tree,
            links,
            filter,
            entered: Vec::new(),
            open: None,
            found: Vec::new(),
            has_ended: false,
            has_found: false,
            skipped: Vec::new(),
        }
    }

    /// Visits the next entries, up to [`BATCH_ENTRIES`].
    fn find_batch(&mut self) {
        for _ in 0..BATCH_ENTRIES {
            let Some(directory) = self.entered.last_mut() else {
                self.report_skipped();
                self.has_ended = true;
                return;
            };
            match directory.rest.next() {
                Some(entry) => {
                    let path = directory.relative.join(&entry.name);
                    self.visit_entry(path, &entry);
                }
                None => {
                    self.open = None;
                    self.entered.pop();
                }
            }
        }
    }

    /// Starts to walk a directory, unless everything below it is excluded.
    fn enter(&mut self, relative: PathBuf) {
        self.open = None;
        if !relative.as_os_str().is_empty() && self.filter.excludes_all_below(&relative.to_string_lossy()) {
            if !self.has_found && self.skipped.len() < MAX_SKIPPED {
                self.skipped.push(relative);
            }
            return;
        }
        match entries(&self.tree, &relative) {
            Ok(entries) => self.entered.push(Entered { relative, rest: entries.into_iter() }),
            Err(e) => self.fail(&relative, self.tree.error("list", &relative, e), true),
        }
    }

    fn visit_entry(&mut self, path: PathBuf, Entry { name, kind, .. }: &Entry) {
        if kind.is_dir() {
            self.enter(path);
        } else if !(is_unfinished(name.as_bytes()) || kind.is_symlink() && self.links == Links::Skip) {
            let parent = path.parent().unwrap_or(Path::new(""));
            match self.open.take().map_or_else(|| self.tree.directory(parent), Ok) {
                Ok(open) => {
                    self.visit(&open, &path, name, *kind);
                    self.open = Some(open);
                }
                Err(e) => self.fail(&path, self.tree.error("access", &path, e), true),
            }
        }
    }

    fn visit(&mut self, directory: &OwnedFd, relative: &Path, name: &OsStr, listed: FileType) {
        let flags = if listed.is_symlink() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = match statat(directory, name, flags) {
            Ok(stat) => stat,
            Err(e) => {
                // A link that leads nowhere, or a file that was removed since it was listed.
                let may_be_directory = e != Errno::NOENT;
                return self.fail(relative, self.tree.error("access", relative, e.into()), may_be_directory);
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        // It was replaced by a link since it was listed.
        if kind.is_symlink() && self.links == Links::Skip {
            return;
        }
        if !kind.is_file() {
            let what = match (listed.is_symlink(), kind.is_dir()) {
                (true, true) => "a link to a directory",
                (false, true) => "now a directory",
                _ => "neither a file nor a directory",
            };
            let why = format!("{} is {what}: skipped", self.tree.path().join(relative).display());
            return self.fail(relative, Error::new(Reason::InvalidRequest, why), kind.is_dir());
        }
        match path_to_key(relative) {
            Ok(name) => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let times = FileTimes::from_stat(&stat);
                let item = Item {
                    name,
                    size,
                    modified: Timestamp::default(),
                    changed: None,
                    nanos: FileNanos::default(),
                    version: None,
                };
                self.add(Ok(item.with_times(times)));
            }
            Err(e) => self.fail(relative, e, false),
        }
    }

    /// Sends a part that cannot be listed. It counts as excluded only if no name in it can be selected: a pattern that
    /// matches the name of a directory need not match the names of its files.
    fn fail(&mut self, relative: &Path, error: Error, may_be_directory: bool) {
        let name = relative.to_string_lossy();
        let has_excluded_name = !name.is_empty() && !self.filter.accepts(&name);
        let is_excluded = has_excluded_name && (!may_be_directory || self.filter.excludes_all_below(&name));
        let extent = if is_excluded { Extent::Nothing } else { Extent::of_path(relative) };
        let location = self.tree.path().join(relative).display().to_string();
        let error = Box::new(error);
        self.add(Err(Unlisted { location, error, extent, is_excluded }));
    }

    /// If nothing was found, reports whether an excluded directory has a file.
    fn report_skipped(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        let Some(relative) = skipped.iter().find(|relative| !self.has_found && self.has_entry(relative))
        else {
            return;
        };
        let location = self.tree.path().join(relative).display().to_string();
        let error = Box::new(Error::new(Reason::InvalidRequest, "excluded"));
        self.add(Err(Unlisted { location, error, extent: Extent::Nothing, is_excluded: true }));
    }

    /// Returns true if there is an item or a part that cannot be listed at or below a directory.
    fn has_entry(&self, relative: &Path) -> bool {
        let mut pending = vec![relative.to_owned()];
        while let Some(directory) = pending.pop() {
            let Ok(entries) = entries(&self.tree, &directory) else { return true };
            for Entry { name, kind, .. } in entries {
                if kind.is_dir() {
                    pending.push(directory.join(name));
                } else if !(is_unfinished(name.as_bytes()) || kind.is_symlink() && self.links == Links::Skip)
                {
                    return true;
                }
            }
        }
        false
    }

    fn add(&mut self, item: ListedItem) {
        self.has_found = true;
        self.skipped = Vec::new();
        self.found.push(item);
    }
}

/// Returns true if a directory of a tree has no entries.
pub(super) fn is_empty(tree: &Tree, relative: &Path) -> io::Result<bool> {
    for entry in Dir::new(tree.listing(relative)?)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
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
    use std::fs::{self, File};
    use std::time::Duration;

    use tokio::runtime::Builder;

    async fn all(root: &Path, links: Links) -> (Vec<String>, Vec<String>) {
        all_of(root, links, &Filter::accept_all()).await
    }

    async fn all_of(root: &Path, links: Links, filter: &Filter) -> (Vec<String>, Vec<String>) {
        let mut items = find(Tree::open(root).unwrap(), links, filter);
        let (mut names, mut failures) = (Vec::new(), Vec::new());
        while let Some(item) = items.recv().await {
            match item {
                Ok(item) => names.push(item.name),
                Err(part) if part.is_excluded => failures.push(format!("excluded {:?}", part.extent)),
                Err(part) => failures.push(part.error.to_string()),
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

    /// Both walks need the only thread of the pool, and each finds more items than its channel holds.
    #[test]
    fn two_walks_share_one_blocking_thread() {
        let root = tempfile::tempdir().unwrap();
        let count = 2 * MAX_QUEUED_ITEMS + 10;
        for number in 0..count {
            let directory = root.path().join(format!("{}", number / 700));
            fs::create_dir_all(&directory).unwrap();
            File::create(directory.join(number.to_string())).unwrap();
        }
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let walk = || find(Tree::open(root.path()).unwrap(), Links::Skip, &Filter::accept_all());
            let (mut one, mut other) = (walk(), walk());
            for _ in 0..count {
                let next = tokio::time::timeout(Duration::from_secs(20), async {
                    (one.recv().await, other.recv().await)
                });
                let (from_one, from_other) = next.await.unwrap();
                assert_eq!(from_one.unwrap().unwrap(), from_other.unwrap().unwrap());
            }
            assert!(one.recv().await.is_none() && other.recv().await.is_none());
        });
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
        let (tree, filter) = (Tree::open(root.path()).unwrap(), Filter::accept_all());
        let mut absent = find_below(tree, Path::new("absent"), Links::Skip, &filter);
        let part = absent.recv().await.unwrap().unwrap_err();
        assert!(part.error.to_string().starts_with("cannot list "), "{part:?}");
        assert_eq!(part.extent, Extent::Tree("absent".to_owned()));
    }

    fn excluding(patterns: &[&str]) -> Filter {
        let mut filter = Filter::accept_all();
        patterns.iter().for_each(|pattern| filter.add(pattern, false).unwrap());
        filter
    }

    #[tokio::test]
    async fn excluded_directories_and_failures_are_not_reported() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("d/e")).unwrap();
        fs::write(path("d/e/file"), "x").unwrap();
        fs::write(path("file"), "x").unwrap();
        fs::write(path("d").join(std::ffi::OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("d", path("link")).unwrap();
        let found = |links, patterns: &'static [&'static str]| {
            let root = root.path().to_owned();
            async move { all_of(&root, links, &excluding(patterns)).await }
        };
        let (names, failures) = found(Links::Skip, &[]).await;
        assert_eq!((names, failures.len()), (vec!["d/e/file".to_owned(), "file".to_owned()], 2));
        let (names, failures) = found(Links::Skip, &["socket", "d/*"]).await;
        assert_eq!((names, failures), (vec!["file".to_owned()], vec!["excluded Nothing".to_owned()]));
        let (names, failures) = found(Links::Skip, &["socket", "d/caf*"]).await;
        assert_eq!(names, ["d/e/file", "file"], "{failures:?}");
        assert!(failures.iter().all(|failure| failure == "excluded Nothing"), "{failures:?}");
        // Names below the link to a directory are not excluded by its name.
        let (_, failures) = found(Links::Follow, &["socket", "d/*", "link"]).await;
        assert!(
            failures.len() == 2 && failures[0].ends_with("link is a link to a directory: skipped"),
            "{failures:?}"
        );
        let (_, failures) = found(Links::Follow, &["socket", "d/*", "link*"]).await;
        assert_eq!(failures, ["excluded Nothing"; 2]);
        fs::remove_dir_all(path("d")).unwrap();
        let (_, failures) = found(Links::Follow, &["socket", "link"]).await;
        assert_eq!(failures, ["excluded Nothing"; 2], "the link leads nowhere");
    }

    /// A directory that cannot be listed, by a name that a pattern excludes although its files may be selected.
    #[tokio::test]
    async fn unlisted_directory_with_selected_files_is_reported() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "x").unwrap();
        let listed = |patterns: &[&str]| {
            let (filter, tree) = (excluding(patterns), Tree::open(root.path()).unwrap());
            // It is missing, which fails for every user like a directory without permissions.
            let mut items = find_below(tree, Path::new("conf.d"), Links::Skip, &filter);
            async move { items.recv().await.unwrap().unwrap_err() }
        };
        let part = listed(&["*.d"]).await;
        assert!(!part.is_excluded && part.extent == Extent::Tree("conf.d".to_owned()), "{part:?}");
        assert!(part.error.to_string().starts_with("cannot list "), "{part:?}");
    }

    #[tokio::test]
    async fn tree_of_excluded_files_is_not_empty() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("d/e")).unwrap();
        let filter = excluding(&["d/*"]);
        let excluded = || all_of(root.path(), Links::Skip, &filter);
        assert_eq!(excluded().await, (vec![], vec![]));
        fs::write(root.path().join("d/e/file"), "x").unwrap();
        assert_eq!(excluded().await, (vec![], vec!["excluded Nothing".to_owned()]));
    }
}
