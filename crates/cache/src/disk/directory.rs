//! The directory of the SSD tier. It belongs to one volume and one process.
//!
//! | file | content |
//! |---|---|
//! | `volume` | format version, id of the cache, name of the volume ([`Identity`]) |
//! | `extents` | the frames |
//! | `index` | the last checkpoint of the index |
//! | `session` | whether the last session has ended ([`SessionRecord`]) |
//! | `pins` | the pinned prefixes |
//! | `lock` | locked by the process that uses the directory |
//!
//! A directory of an older format version, or whose file `volume` is damaged, is emptied, except for its pins: the cache
//! is disposable.
//!
//! A *session* is the time from open to close. Heads name the session that stored them. Those of earlier sessions are not
//! trusted: between two sessions the backing store may have been written, restored or replaced. The number of a session is
//! random and comes from no file, so that no older file makes a number return.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use tradewind_core::{Error, Reason};

use super::checkpoint::{CheckpointHeader, read_checkpoint_header};
use super::identity::{Identity, UNFINISHED, VERSION};
use super::session_record::{SessionRecord, SessionState};

/// The highest number that is never drawn for a session: 0 marks a head that was never compared, and 1 is the session of a
/// cache without a directory.
const MAX_RESERVED_SESSION: u64 = 1;

/// The name of the file of the frames.
pub(super) const EXTENTS: &str = "extents";

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
    /// The number of this session: random, and of no other session.
    pub session: u64,
    /// True if there is a checkpoint to load.
    pub has_index: bool,
    /// True unless the session that wrote the checkpoint has ended, and was the last one: the checkpoint may be older than
    /// the extents.
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
        Identity::read(path, volume_id)?;
        let lock = lock(path)?;
        // Again: another process may have used the directory until it was locked.
        let identity = Identity::read(path, volume_id)?;
        let (index_path, session_path) = (path.join("index"), path.join("session"));
        let checkpoint = match identity {
            Identity::Current(id) => {
                read_checkpoint_header(&index_path).filter(|header| header.cache_id == id)
            }
            Identity::Absent | Identity::Outdated(_) | Identity::Unreadable => None,
        };
        let cache_id = match checkpoint {
            Some(header) => header.cache_id,
            None => {
                warn_of_empty_start(path, identity, index_path.exists());
                // Extents of an index that is lost must never be taken for those of the new one.
                let cache_id = random()?;
                Identity::write(path, cache_id, volume_id)?;
                match fs::remove_file(&index_path) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                    _ => {}
                }
                cache_id
            }
        };
        let previous = SessionRecord::read(&session_path)?;
        let is_after_crash = checkpoint
            .is_some_and(|checkpoint| !previous.is_some_and(|previous| previous.is_end_of(&checkpoint)));
        let session = new_session()?;
        SessionRecord { state: SessionState::Open, cache_id, session }.write(&session_path)?;
        Ok(Self {
            path: path.to_owned(),
            cache_id,
            session,
            has_index: checkpoint.is_some(),
            is_after_crash,
            lock: Mutex::new(Some(lock)),
        })
    }

    /// The file of the frames.
    pub fn extents_path(&self) -> PathBuf {
        self.path.join(EXTENTS)
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
        let (cache_id, session) = (self.cache_id, self.session);
        SessionRecord { state: SessionState::Ended, cache_id, session }.write(&self.path.join("session"))
    }
}

/// Writes a file durably, aside and renamed.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension(UNFINISHED);
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

fn warn_of_empty_start(path: &Path, identity: Identity, has_index: bool) {
    let directory = path.display();
    match identity {
        Identity::Absent => {}
        Identity::Current(_) if has_index => {
            tracing::warn!(%directory, "the index of the cache is damaged; it starts empty");
        }
        Identity::Current(_) => {
            tracing::info!(%directory, "new cache: it was ended before its index was first written, or the index was removed");
        }
        Identity::Outdated(version) => {
            tracing::warn!(
                %directory,
                "the cache has format version {version}, and this program has {VERSION}; it starts empty"
            );
        }
        Identity::Unreadable => {
            tracing::warn!(%directory, "the file volume of the cache is missing or damaged; it starts empty");
        }
    }
}

/// The number of a new session.
fn new_session() -> io::Result<u64> {
    loop {
        let session = random()?;
        if session > MAX_RESERVED_SESSION {
            return Ok(session);
        }
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|e| io::Error::other(e.to_string()))
}

pub(super) fn rejected(message: String) -> DirectoryError {
    DirectoryError::Rejected(Error::new(Reason::InvalidArgument, message))
}
