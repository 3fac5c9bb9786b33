//! Changes below a directory, as inotify tells them: of each directory by itself, so that every one below is watched, and
//! every new one before it is looked into. What happened before that is found by looking.

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

use super::root::gone;
use crate::files::{self, Entry, entries, failed, is_unfinished};
use crate::names::name_of;

/// Events that wait to be heard, at the most; behind them the kernel's own queue fills, and says when it ran over.
const EVENTS_AHEAD: usize = 1024;
/// How long it takes at the most to notice that nobody listens any more.
const LOOK_UP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Events that are read at once, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// A hint that something changed.
#[derive(Debug)]
pub enum Event {
    /// A name that came, changed or went.
    Touched(String),
    /// Below this, `dir/` or everything, anything may have changed.
    Tree(String),
    /// Something cannot be watched, or cannot be a name.
    Failed(String, Error),
    /// The directory is gone: what is not found from now on was not removed.
    Gone(Error),
}

/// Nobody listens any more, or there is nothing left to tell.
struct Over;

/// Begins to watch everything below a directory. What changes after this has returned is told of; modes and times are
/// changes where somebody keeps them.
pub fn watch(root: &Path, keeps_attributes: bool) -> Result<mpsc::Receiver<Event>> {
    let (events, heard) = mpsc::channel(EVENTS_AHEAD);
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let queue = queue.map_err(|e| failed("watch", root, e))?;
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
    let mut tree = Tree { root: root.to_owned(), queue, flags, paths: HashMap::new(), events };
    tree.add_below(PathBuf::new())?;
    if tree.paths.is_empty() {
        return Err(gone(root));
    }
    let listen = move || {
        // Whoever does not listen any more need not be told why it ends.
        let _ = tree.listen();
    };
    let begun = std::thread::Builder::new().name("watch".to_owned()).spawn(listen);
    begun.map_err(|e| Error::with_source(Reason::Defect, format!("cannot begin a thread: {e}"), e))?;
    Ok(heard)
}

struct Tree {
    root: PathBuf,
    queue: OwnedFd,
    flags: WatchFlags,
    /// Directories by the number of their watch, as paths below the root.
    paths: HashMap<i32, PathBuf>,
    events: mpsc::Sender<Event>,
}

impl Tree {
    /// Watches a directory; `false` where it is gone again, or cannot be looked into, which whoever lists it tells.
    fn add(&mut self, below: &Path) -> Result<bool> {
        let path = self.root.join(below);
        let own = if below.as_os_str().is_empty() { WatchFlags::MOVE_SELF } else { WatchFlags::empty() };
        // Through its descriptor: no directory on the way may have become a link.
        let watched = self.open_tree().and_then(|tree| tree.directory(below)).and_then(|directory| {
            let open = format!("/proc/self/fd/{}", directory.as_raw_fd());
            Ok(inotify::add_watch(&self.queue, open, self.flags | own)?)
        });
        match watched.map_err(|e| Errno::from_io_error(&e).ok_or(e)) {
            Ok(number) => {
                self.paths.insert(number, below.to_owned());
                Ok(true)
            }
            Err(Ok(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)) => Ok(false),
            Err(Ok(Errno::NOSPC)) => {
                let why = format!(
                    "cannot watch {}: the system watches no more directories than {} for one user; raise \
                     fs.inotify.max_user_watches, or run sync without --watch from time to time",
                    path.display(),
                    self.paths.len(),
                );
                Err(Error::with_source(Reason::Full, why, Errno::NOSPC))
            }
            Err(Ok(e)) => Err(failed("watch", &path, e)),
            Err(Err(e)) => Err(failed("watch", &path, e)),
        }
    }

    /// Watches a directory and all below it.
    fn add_below(&mut self, below: PathBuf) -> Result<()> {
        let mut waiting = vec![below];
        while let Some(directory) = waiting.pop() {
            if self.add(&directory)? {
                waiting.extend(self.directories(&directory));
            }
        }
        Ok(())
    }

    /// Directories in a directory. One that cannot be listed has none: whoever compares tells of it.
    fn directories(&self, below: &Path) -> Vec<PathBuf> {
        let directories = self.entries(below).filter(|entry| entry.kind.is_dir());
        directories.map(|entry| below.join(entry.name)).collect()
    }

    fn entries(&self, below: &Path) -> impl Iterator<Item = Entry> + use<> {
        let entries = self.open_tree().and_then(|tree| entries(&tree, below));
        entries.into_iter().flatten()
    }

    /// Not held open: nobody could unmount it.
    fn open_tree(&self) -> io::Result<files::Tree> {
        files::Tree::open(&self.root)
    }

    /// A new directory: what was put into it before it was watched is told of as if it were put there now.
    fn appeared(&mut self, below: PathBuf) -> Result<(), Over> {
        let mut waiting = vec![below];
        while let Some(directory) = waiting.pop() {
            match self.add(&directory) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(e) => self.tell(Event::Failed(self.root.join(&directory).display().to_string(), e))?,
            }
            for entry in self.entries(&directory) {
                let path = directory.join(entry.name);
                if entry.kind.is_dir() {
                    waiting.push(path);
                } else {
                    self.touched(&path)?;
                }
            }
        }
        Ok(())
    }

    /// A directory that went somewhere else: what is heard of it is not of this path any more.
    fn left(&mut self, below: &Path) -> Result<(), Over> {
        let queue = &self.queue;
        self.paths.retain(|number, path| {
            let stays = !path.starts_with(below);
            if !stays {
                // It may be gone by itself.
                let _ = inotify::remove_watch(queue, *number);
            }
            stays
        });
        match name_of(below) {
            Ok(name) => self.tell(Event::Tree(format!("{name}/"))),
            // Nothing of it can have been carried.
            Err(_) => Ok(()),
        }
    }

    fn touched(&self, below: &Path) -> Result<(), Over> {
        if below.file_name().is_some_and(|name| is_unfinished(name.as_encoded_bytes())) {
            return Ok(());
        }
        match name_of(below) {
            Ok(name) => self.tell(Event::Touched(name)),
            // Nothing of it can have been carried.
            Err(_) if fs::symlink_metadata(self.root.join(below)).is_err() => Ok(()),
            Err(e) => self.tell(Event::Failed(self.root.join(below).display().to_string(), e)),
        }
    }

    fn tell(&self, event: Event) -> Result<(), Over> {
        self.events.blocking_send(event).map_err(|_| Over)
    }

    fn listen(mut self) -> Result<(), Over> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        loop {
            match poll(&mut [PollFd::new(&self.queue, PollFlags::IN)], Some(&LOOK_UP)) {
                Ok(0) | Err(Errno::INTR) if self.events.is_closed() => return Ok(()),
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return self.tell(Event::Gone(failed("watch", &self.root, e))),
            }
            for heard in read(&self.queue, &mut buffer) {
                match heard {
                    Ok((number, what, name)) => self.heard(number, what, name.as_deref())?,
                    Err(e) => return self.tell(Event::Gone(failed("watch", &self.root, e))),
                }
            }
        }
    }

    fn heard(&mut self, number: i32, what: ReadFlags, name: Option<&Path>) -> Result<(), Over> {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.ran_over();
        }
        let Some(directory) = self.paths.get(&number) else { return Ok(()) };
        let is_root = directory.as_os_str().is_empty();
        let own = ReadFlags::IGNORED | ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT;
        if what.intersects(own) {
            if is_root {
                return self.over(gone(&self.root));
            }
            if what.contains(ReadFlags::UNMOUNT) {
                return self.unmounted(directory.clone());
            }
            if what.contains(ReadFlags::IGNORED) {
                self.paths.remove(&number);
            }
            return Ok(());
        }
        // Of a directory itself, its parent tells.
        let Some(name) = name else { return Ok(()) };
        let path = directory.join(name);
        if !what.contains(ReadFlags::ISDIR) {
            return self.touched(&path);
        }
        if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.appeared(path);
        }
        if what.contains(ReadFlags::MOVED_FROM) {
            return self.left(&path);
        }
        Ok(())
    }

    /// The file system of a directory was unmounted, which is told of each of its directories: what it hid is there again,
    /// and everything is compared.
    fn unmounted(&mut self, below: PathBuf) -> Result<(), Over> {
        self.appeared(below)?;
        self.tell(Event::Tree(String::new()))
    }

    fn over(&self, error: Error) -> Result<(), Over> {
        self.tell(Event::Gone(error))?;
        Err(Over)
    }

    /// Events were lost, and directories among them: all are looked for again.
    fn ran_over(&mut self) -> Result<(), Over> {
        let known = std::mem::take(&mut self.paths);
        if let Err(e) = self.add_below(PathBuf::new()) {
            self.tell(Event::Failed(self.root.display().to_string(), e))?;
        }
        for number in known.keys().filter(|number| !self.paths.contains_key(number)) {
            // It may be gone by itself.
            let _ = inotify::remove_watch(&self.queue, *number);
        }
        self.tell(Event::Tree(String::new()))
    }
}

type Heard = (i32, ReadFlags, Option<PathBuf>);

/// What waits in the queue, as far as the buffer holds it.
fn read(queue: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> Vec<Result<Heard, Errno>> {
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
