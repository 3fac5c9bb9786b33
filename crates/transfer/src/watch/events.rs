//! Changes below a directory, reported by inotify. Inotify watches single directories, so every directory in the tree
//! is watched, and a new one before its entries are listed; entries created before that are found by the listing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::thread_error;

use super::root::root_gone_error;
use crate::files::{self, Entry, entries, file_error, is_unfinished};
use crate::filter::Filter;
use crate::names::path_to_key;

/// Maximum number of queued events. Beyond it the kernel's queue fills, which reports its own overflow.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Interval at which the thread checks whether the receiver was dropped.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Size of the buffer into which events are read.
const BUFFER_BYTES: usize = 64 << 10;

/// A hint that something changed.
#[derive(Debug)]
pub enum FsEvent {
    /// A name was created, changed or removed.
    Touched(String),
    /// Anything below this prefix may have changed: `dir/`, or empty for the whole tree.
    TreeTouched(String),
    /// A directory cannot be watched, or a file name cannot be a key.
    Failed(String, Error),
    /// The watched directory is gone: files missing from now on were not removed.
    RootGone(Error),
}

/// The receiver was dropped, or the watched directory is gone.
struct Stopped;

/// Starts to watch everything below a directory. Every change after the return is reported. Changes of modes and times
/// count if `keeps_attributes` is set. Excluded directories are not watched, and failures of excluded names are not
/// reported.
pub fn watch(root: &Path, keeps_attributes: bool, filter: Filter) -> Result<mpsc::Receiver<FsEvent>> {
    let (events, heard) = mpsc::channel(MAX_QUEUED_EVENTS);
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let queue = queue.map_err(|e| file_error("watch", root, e))?;
    let mut flags = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR
        | WatchFlags::EXCL_UNLINK;
    if keeps_attributes {
        flags |= WatchFlags::ATTRIB;
    }
    let mut tree = Tree { root: root.to_owned(), queue, flags, filter, paths: HashMap::new(), events };
    tree.add_below(PathBuf::new())?;
    if tree.paths.is_empty() {
        return Err(root_gone_error(root));
    }
    let listen = move || {
        // It ends when the receiver is dropped, or after it has reported why.
        let _ = tree.listen();
    };
    let spawned = std::thread::Builder::new().name("watch".to_owned()).spawn(listen);
    spawned.map_err(thread_error)?;
    Ok(heard)
}

struct Tree {
    root: PathBuf,
    queue: OwnedFd,
    flags: WatchFlags,
    filter: Filter,
    /// Directories relative to the root, by watch descriptor.
    paths: HashMap<i32, PathBuf>,
    events: mpsc::Sender<FsEvent>,
}

impl Tree {
    /// Watches a directory. Returns false if it is gone again or cannot be opened; the listing reports the latter.
    fn add(&mut self, below: &Path) -> Result<bool> {
        let path = self.root.join(below);
        let self_mask =
            if below.as_os_str().is_empty() { WatchFlags::MOVE_SELF } else { WatchFlags::empty() };
        // By descriptor, because a component of the path may have been replaced by a link.
        let watched = self.open_tree().and_then(|tree| tree.directory(below)).and_then(|directory| {
            let open = format!("/proc/self/fd/{}", directory.as_raw_fd());
            Ok(inotify::add_watch(&self.queue, open, self.flags | self_mask)?)
        });
        match watched.map_err(|e| Errno::from_io_error(&e).ok_or(e)) {
            Ok(descriptor) => {
                self.paths.insert(descriptor, below.to_owned());
                Ok(true)
            }
            Err(Ok(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)) => Ok(false),
            Err(Ok(Errno::NOSPC)) => {
                let why = format!(
                    "cannot watch {}: the per-user limit is reached after {} directories; raise \
                     fs.inotify.max_user_watches, or run sync periodically without --watch",
                    path.display(),
                    self.paths.len(),
                );
                Err(Error::with_source(Reason::Full, why, Errno::NOSPC))
            }
            Err(Ok(e)) => Err(file_error("watch", &path, e)),
            Err(Err(e)) => Err(file_error("watch", &path, e)),
        }
    }

    /// Watches a directory and all directories below it.
    fn add_below(&mut self, below: PathBuf) -> Result<()> {
        let mut pending = vec![below];
        while let Some(directory) = pending.pop() {
            if !self.is_excluded(&directory) && self.add(&directory)? {
                pending.extend(self.directories(&directory));
            }
        }
        Ok(())
    }

    /// Returns true if no name below a directory is selected.
    fn is_excluded(&self, below: &Path) -> bool {
        !below.as_os_str().is_empty() && self.filter.excludes_all_below(&below.to_string_lossy())
    }

    /// The directories in a directory; empty if it cannot be listed, which the comparison reports.
    fn directories(&self, below: &Path) -> Vec<PathBuf> {
        let directories = self.entries(below).filter(|entry| entry.kind.is_dir());
        directories.map(|entry| below.join(entry.name)).collect()
    }

    fn entries(&self, below: &Path) -> impl Iterator<Item = Entry> + use<> {
        let entries = self.open_tree().and_then(|tree| entries(&tree, below));
        entries.into_iter().flatten()
    }

    /// Opens the root for one operation. Holding it open would prevent an unmount.
    fn open_tree(&self) -> io::Result<files::Tree> {
        files::Tree::open(&self.root)
    }

    /// Handles a new directory: entries created before it was watched are reported as changes.
    fn directory_appeared(&mut self, below: PathBuf) -> Result<(), Stopped> {
        let mut pending = vec![below];
        while let Some(directory) = pending.pop() {
            if self.is_excluded(&directory) {
                continue;
            }
            match self.add(&directory) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(e) => self.send(FsEvent::Failed(self.root.join(&directory).display().to_string(), e))?,
            }
            for entry in self.entries(&directory) {
                let path = directory.join(entry.name);
                if entry.kind.is_dir() {
                    pending.push(path);
                } else {
                    self.touched(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Handles a directory that was moved away: its watches would report changes under the old path.
    fn directory_left(&mut self, below: &Path) -> Result<(), Stopped> {
        let queue = &self.queue;
        self.paths.retain(|descriptor, path| {
            let stays = !path.starts_with(below);
            if !stays {
                // Fails if the kernel has removed the watch already.
                let _ = inotify::remove_watch(queue, *descriptor);
            }
            stays
        });
        match path_to_key(below) {
            Ok(name) => self.send(FsEvent::TreeTouched(format!("{name}/"))),
            // A directory whose name cannot be a key was never uploaded.
            Err(_) => Ok(()),
        }
    }

    fn touched(&self, below: &Path) -> Result<(), Stopped> {
        if below.file_name().is_some_and(|name| is_unfinished(name.as_encoded_bytes())) {
            return Ok(());
        }
        match path_to_key(below) {
            Ok(name) => self.send(FsEvent::Touched(name)),
            // A removed file whose name cannot be a key was never uploaded.
            Err(_) if fs::symlink_metadata(self.root.join(below)).is_err() => Ok(()),
            Err(_) if !self.filter.accepts(&below.to_string_lossy()) => Ok(()),
            Err(e) => self.send(FsEvent::Failed(self.root.join(below).display().to_string(), e)),
        }
    }

    fn send(&self, event: FsEvent) -> Result<(), Stopped> {
        self.events.blocking_send(event).map_err(|_| Stopped)
    }

    fn listen(mut self) -> Result<(), Stopped> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        loop {
            match poll(&mut [PollFd::new(&self.queue, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) if self.events.is_closed() => return Ok(()),
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return self.send(FsEvent::RootGone(file_error("watch", &self.root, e))),
            }
            for heard in read(&self.queue, &mut buffer) {
                match heard {
                    Ok((descriptor, mask, name)) => self.heard(descriptor, mask, name.as_deref())?,
                    Err(e) => return self.send(FsEvent::RootGone(file_error("watch", &self.root, e))),
                }
            }
        }
    }

    fn heard(&mut self, descriptor: i32, mask: ReadFlags, name: Option<&Path>) -> Result<(), Stopped> {
        if mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.queue_overflowed();
        }
        let Some(directory) = self.paths.get(&descriptor) else { return Ok(()) };
        let is_root = directory.as_os_str().is_empty();
        let self_mask =
            ReadFlags::IGNORED | ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT;
        if mask.intersects(self_mask) {
            if is_root {
                return self.root_gone(root_gone_error(&self.root));
            }
            if mask.contains(ReadFlags::UNMOUNT) {
                return self.unmounted(directory.clone());
            }
            if mask.contains(ReadFlags::IGNORED) {
                self.paths.remove(&descriptor);
            }
            return Ok(());
        }
        // An event without a name concerns the directory itself, which its parent's watch reports.
        let Some(name) = name else { return Ok(()) };
        let path = directory.join(name);
        if !mask.contains(ReadFlags::ISDIR) {
            return self.touched(&path);
        }
        if mask.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.directory_appeared(path);
        }
        if mask.contains(ReadFlags::MOVED_FROM) {
            return self.directory_left(&path);
        }
        Ok(())
    }

    /// Handles an unmount, which inotify reports for each watched directory of the file system. The directory that it
    /// hid is visible again, so everything is compared.
    fn unmounted(&mut self, below: PathBuf) -> Result<(), Stopped> {
        self.directory_appeared(below)?;
        self.send(FsEvent::TreeTouched(String::new()))
    }

    fn root_gone(&self, error: Error) -> Result<(), Stopped> {
        self.send(FsEvent::RootGone(error))?;
        Err(Stopped)
    }

    /// Handles an overflow of the kernel's queue: creations of directories may be lost, so all watches are rebuilt.
    fn queue_overflowed(&mut self) -> Result<(), Stopped> {
        let previous = std::mem::take(&mut self.paths);
        if let Err(e) = self.add_below(PathBuf::new()) {
            self.send(FsEvent::Failed(self.root.display().to_string(), e))?;
        }
        for descriptor in previous.keys().filter(|descriptor| !self.paths.contains_key(descriptor)) {
            // Fails if the kernel has removed the watch already.
            let _ = inotify::remove_watch(&self.queue, *descriptor);
        }
        self.send(FsEvent::TreeTouched(String::new()))
    }
}

type RawEvent = (i32, ReadFlags, Option<PathBuf>);

/// Reads the queued events, as many as fit into the buffer.
fn read(queue: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> Vec<Result<RawEvent, Errno>> {
    let (mut reader, mut all) = (Reader::new(queue, buffer), Vec::new());
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
                all.push(Ok((event.wd(), event.events(), name)));
            }
            Err(Errno::AGAIN | Errno::INTR) => return all,
            Err(e) => {
                all.push(Err(e));
                return all;
            }
        }
        if reader.is_buffer_empty() {
            return all;
        }
    }
}
