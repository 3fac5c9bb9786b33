//! The directory of the SSD tier. It belongs to one volume and one process.
//!
//! | file | content |
//! |---|---|
//! | `volume` | format version, id of the cache, name of the volume |
//! | `extents` | the frames |
//! | `index` | the last checkpoint of the index |
//! | `session` | number of the open session; absent after a clean end |
//! | `pins` | the pinned prefixes |
//! | `lock` | locked by the process that uses the directory |
//!
//! A directory of an older format version is emptied, except for its pins: the cache is disposable.
//!
//! A *session* is the time from open to close. Heads name the session that stored them. Those of earlier sessions are not
//! trusted: between two sessions the backing store may have been written, restored or replaced.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use tradewind_core::{Error, Reason};

use super::checkpoint::{CheckpointHeader, read_checkpoint_header};

/// The version of the format of the directory.
const VERSION: u32 = 2;
const TITLE: &str = "tradewind-cache";

/// The reason for which a directory cannot be used.
#[derive(Debug)]
pub(crate) enum DirectoryError {
    /// It is not ours to use: a mistake in the settings.
    Rejected(Error),
    /// The SSD failed.
    Io(io::Error),
}

impl From<io::Error> for DirectoryError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// A directory in use by this process.
#[derive(Debug)]
pub(crate) struct CacheDirectory {
    path: PathBuf,
    /// The id in every extent.
    pub cache_id: u64,
    /// The number of this session.
    pub session: u64,
    /// True if there is a checkpoint to load.
    pub has_index: bool,
    /// True if the previous session did not end: the checkpoint may be older than the extents.
    pub is_after_crash: bool,
    /// `None` once this process no longer uses the directory.
    lock: Mutex<Option<File>>,
}

impl CacheDirectory {
    /// Opens or creates the directory for a volume.
    pub fn open(path: &Path, volume_id: &str) -> Result<Self, DirectoryError> {
        if volume_id.is_empty() || volume_id.chars().any(char::is_control) {
            return Err(rejected(format!("volume name {volume_id:?} must be text in one line")));
        }
        // Other users must not read the objects.
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let identity = read_identity(path, volume_id)?;
        let lock = lock(path)?;
        let index_path = path.join("index");
        let previous = read_session(path)?;
        let checkpoint = match identity {
            Identity::Current(id) => {
                read_checkpoint_header(&index_path).filter(|header| header.cache_id == id)
            }
            Identity::Absent | Identity::Outdated(_) => None,
        };
        let directory = match checkpoint {
            Some(header) => Self::continued(path, header, previous, lock),
            None => {
                // Extents of an index that is lost must never be taken for those of the new one.
                match fs::remove_file(&index_path) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                    _ => {}
                }
                let directory = path.display();
                match identity {
                    Identity::Absent => {}
                    Identity::Current(_) => {
                        tracing::warn!(%directory, "the index of the cache is missing or damaged; it starts empty");
                    }
                    Identity::Outdated(version) => {
                        tracing::warn!(
                            %directory,
                            "the cache has format version {version}, and this program has {VERSION}; it starts empty"
                        );
                    }
                }
                let cache_id = random()?;
                write_identity(path, cache_id, volume_id)?;
                Self {
                    path: path.to_owned(),
                    cache_id,
                    session: 1,
                    has_index: false,
                    is_after_crash: false,
                    lock: Mutex::new(Some(lock)),
                }
            }
        };
        replace(&path.join("session"), format!("{}\n", directory.session).as_bytes())?;
        Ok(directory)
    }

    fn continued(path: &Path, header: CheckpointHeader, previous: PreviousSession, lock: File) -> Self {
        let last_session = match previous {
            PreviousSession::Ended => header.session,
            PreviousSession::Open(session) => session.max(header.session),
        };
        let session = last_session + 1;
        Self {
            path: path.to_owned(),
            cache_id: header.cache_id,
            session,
            has_index: true,
            is_after_crash: matches!(previous, PreviousSession::Open(_)),
            lock: Mutex::new(Some(lock)),
        }
    }

    /// The file of the frames.
    pub fn extents_path(&self) -> PathBuf {
        self.path.join("extents")
    }

    /// The file of the index.
    pub fn index_path(&self) -> PathBuf {
        self.path.join("index")
    }

    /// The file of the pinned prefixes.
    pub fn pins_path(&self) -> PathBuf {
        self.path.join("pins")
    }

    /// The header of a checkpoint of this session.
    pub const fn checkpoint_header(&self) -> CheckpointHeader {
        CheckpointHeader { cache_id: self.cache_id, session: self.session }
    }

    /// Lets another process use the directory.
    pub fn release(&self) {
        drop(self.lock.lock().take());
    }

    /// Records a clean end. The last checkpoint must be durable: it has the number of the session.
    pub fn end_session(&self) -> io::Result<()> {
        fs::remove_file(self.path.join("session"))?;
        File::open(&self.path)?.sync_all()
    }
}

/// The end of the previous session.
#[derive(Debug, Clone, Copy)]
enum PreviousSession {
    Ended,
    /// It did not end, and had this number.
    Open(u64),
}

fn read_session(path: &Path) -> Result<PreviousSession, DirectoryError> {
    match fs::read_to_string(path.join("session")) {
        // In place of a number that cannot be read, one that no session has had.
        Ok(text) => Ok(PreviousSession::Open(text.trim().parse().or_else(|_| unused_number())?)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(PreviousSession::Ended),
        Err(e) if e.kind() == ErrorKind::InvalidData => Ok(PreviousSession::Open(unused_number()?)),
        Err(e) => Err(e.into()),
    }
}

/// The cache that a directory holds.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The directory is empty.
    Absent,
    /// A cache with this id.
    Current(u64),
    /// A cache of this older format version.
    Outdated(u32),
}

/// The cache in the directory. Rejects what is not a cache of this volume, and newer versions.
fn read_identity(path: &Path, volume_id: &str) -> Result<Identity, DirectoryError> {
    let shown = path.display();
    let text = match fs::read(path.join("volume")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let is_foreign = |name: &str| !["lock", "volume.unfinished"].contains(&name);
            for entry in fs::read_dir(path)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if is_foreign(&name) {
                    let message = format!("{shown} is not a cache directory: it holds {name:?}");
                    return Err(rejected(format!("{message}; name an empty directory")));
                }
            }
            return Ok(Identity::Absent);
        }
        Err(e) => return Err(e.into()),
    };
    let mut lines = text.lines();
    let mut value = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let damaged =
        || rejected(format!("{shown}/volume is damaged; remove the directory to start an empty cache"));
    let version: u32 = value(TITLE).and_then(|text| text.parse().ok()).ok_or_else(damaged)?;
    if version > VERSION {
        return Err(rejected(format!(
            "cache directory {shown} has format version {version}, which is newer than this program's {VERSION}"
        )));
    }
    let cache_id = value("id").and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or_else(damaged)?;
    let owner = value("volume").ok_or_else(damaged)?;
    if owner != volume_id {
        return Err(rejected(format!(
            "cache directory {shown} belongs to volume {owner:?}, not {volume_id:?}"
        )));
    }
    Ok(if version < VERSION { Identity::Outdated(version) } else { Identity::Current(cache_id) })
}

fn write_identity(path: &Path, cache_id: u64, volume_id: &str) -> io::Result<()> {
    let text = format!("{TITLE} {VERSION}\nid {cache_id:016x}\nvolume {volume_id}\n");
    replace(&path.join("volume"), text.as_bytes())
}

/// Writes a file durably, aside and renamed.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut file = create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates or truncates a file that other users cannot read.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn lock(path: &Path) -> Result<File, DirectoryError> {
    let file = create(&path.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(rejected(format!("cache directory {} is used by another process", path.display())))
        }
        Err(e) => Err(DirectoryError::Io(e.into())),
    }
}

/// A random number of 63 bits: it can be counted up from.
fn unused_number() -> io::Result<u64> {
    Ok(random()? >> 1)
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|e| io::Error::other(e.to_string()))
}

fn rejected(message: String) -> DirectoryError {
    DirectoryError::Rejected(Error::new(Reason::InvalidArgument, message))
}
