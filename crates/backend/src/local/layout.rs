//! The files of a store's directory and their names: `FORMAT`, `LOCK`, `RESERVE`, `segments/`, `index/`,
//! `index.doubts`, `index.old/`, `index.ambiguous/`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tradewind_core::error::{Error, Reason, Result};

use super::index::trust::{IndexTrust, MAX_DOUBTS};
use super::io_threads::io_error;
use super::segment::sync_directory;

/// The format version that this program writes. Version 1 had no versions of objects, version 2 no transformed bytes,
/// version 3 no retentions and no parts whose description was rewritten.
const FORMAT_VERSION: u32 = 4;
/// The oldest format version that this program reads.
const MIN_FORMAT_VERSION: u32 = 1;

/// A store's directory, locked by this process.
pub(crate) struct Layout {
    root: PathBuf,
    /// Random number of the store, from its format file. It is part of the checksum of every segment header and every
    /// record head. Block CRCs do not include it: the head that contains them does.
    pub salt: u64,
    _lock: File,
}

impl Layout {
    /// Opens a directory, creating an empty store if it is empty or missing.
    pub fn open_or_create(root: &Path) -> Result<Self> {
        let create = || -> std::io::Result<()> {
            create_directories(root, PRIVATE_MODE)?;
            create_directory(&root.join("segments"), PRIVATE_MODE)
        };
        create().map_err(|e| io_error(&format!("a store could not be created in {}", root.display()), e))?;
        let lock = lock(root)?;
        let salt = match read_format(root)? {
            Some(format) => {
                if format.version < FORMAT_VERSION {
                    upgrade_format(root, format)?;
                }
                format.salt
            }
            None => {
                reject_orphans(root)?;
                create_format(root)?
            }
        };
        Ok(Self { root: root.to_owned(), salt, _lock: lock })
    }

    /// Opens a directory that must hold a store.
    pub fn open(root: &Path) -> Result<Self> {
        read_salt(root)?;
        Self::open_or_create(root)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn segments(&self) -> PathBuf {
        self.root.join("segments")
    }

    pub fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    /// The file of reserved blocks for a full device.
    pub fn reserve(&self) -> PathBuf {
        self.root.join("RESERVE")
    }

    /// Returns true if the index must be rebuilt instead of opened.
    pub fn must_rebuild_index(&self) -> bool {
        IndexTrust::must_rebuild(&self.index())
    }

    /// Adds a doubt before an attempt to open the index, because the index library (fjall) may crash the process.
    /// [`clear_doubts`](Self::clear_doubts) removes it when the attempt returns.
    pub fn add_doubt(&self) {
        let path = IndexTrust::doubts_path(&self.index());
        let add = || OpenOptions::new().append(true).create(true).open(&path)?.write_all(b".");
        if let Err(e) = add() {
            // A full device must not keep the store from being opened.
            tracing::warn!(error = %e, path = %path.display(), "an attempt to open the index is not counted");
        }
    }

    /// Ensures that the existing index is rebuilt and not opened again, even if the rebuild is interrupted.
    pub fn abandon_index(&self) {
        let path = IndexTrust::doubts_path(&self.index());
        if let Err(e) = std::fs::write(&path, [b'.'; MAX_DOUBTS]) {
            tracing::warn!(error = %e, path = %path.display(), "the unreadable index may be opened again when the store is opened next");
        }
    }

    /// Clears all doubts, because the index is open or is being replaced.
    pub fn clear_doubts(&self) {
        // If the file remains, the next open of the store may rebuild the index unnecessarily.
        let _ = std::fs::remove_file(IndexTrust::doubts_path(&self.index()));
    }

    /// Removes the index directory, to be rebuilt from the log. An interrupted removal leaves no partial index: the
    /// directory is renamed first.
    pub fn remove_index(&self) -> Result<()> {
        let (index, old) = (self.index(), self.old_index());
        let remove = || -> std::io::Result<()> {
            if old.exists() {
                std::fs::remove_dir_all(&old)?;
            }
            if index.exists() {
                std::fs::rename(&index, &old)?;
                // Without this, files may be removed before the rename is durable: an incomplete index would remain.
                sync_directory(&self.root)?;
                std::fs::remove_dir_all(&old)?;
            }
            Ok(())
        };
        remove().map_err(|e| io_error("the old index could not be removed", e))
    }

    /// Renames the index directory to `index.ambiguous`, for inspection or removal by the user. Replaces an earlier
    /// directory of that name.
    pub fn set_index_aside(&self) -> Result<()> {
        let (index, aside) = (self.index(), self.root.join("index.ambiguous"));
        let put = || -> std::io::Result<()> {
            if aside.exists() {
                std::fs::remove_dir_all(&aside)?;
            }
            std::fs::rename(&index, &aside)?;
            sync_directory(&self.root)
        };
        put().map_err(|e| io_error(&format!("the index could not be moved to {}", aside.display()), e))
    }

    /// Removes the remains of an interrupted index removal.
    pub fn remove_old_index(&self) {
        let old = self.old_index();
        if old.exists()
            && let Err(e) = std::fs::remove_dir_all(&old)
        {
            tracing::warn!(error = %e, path = %old.display(), "an old index could not be removed");
        }
    }

    fn old_index(&self) -> PathBuf {
        self.root.join("index.old")
    }
}

/// Mode of a store's directories: objects are private to this user.
const PRIVATE_MODE: u32 = 0o700;
/// Mode of parent directories, subject to the umask.
const DEFAULT_MODE: u32 = 0o777;

fn create_directory(path: &Path, mode: u32) -> std::io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Creates a directory and its parents, and makes their names durable.
fn create_directories(path: &Path, mode: u32) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if parent != path {
        create_directories(parent, DEFAULT_MODE)?;
    }
    create_directory(path, mode)?;
    sync_directory(parent)
}

fn lock(root: &Path) -> Result<File> {
    let path = root.join("LOCK");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| io_error(&format!("{} could not be opened", path.display()), e))?;
    take_lock(root, &mut file, FlockOperation::NonBlockingLockExclusive)?;
    let mut name = || -> std::io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(std::process::id().to_string().as_bytes())
    };
    if let Err(e) = name() {
        // The lock is held nevertheless; only its owner's PID is unknown to other processes. A full device must not
        // keep the store from being opened.
        tracing::warn!(error = %e, "the lock file could not be written");
    }
    Ok(file)
}

/// Locks a store for read-only inspection, shared with other inspections. `None` if there is no lock file, as in a
/// copy: then no process has the store open.
pub(super) fn lock_for_reading(root: &Path) -> Result<Option<File>> {
    let path = root.join("LOCK");
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&format!("{} could not be opened", path.display()), e)),
    };
    // An exclusive lock needs a writable file on some network file systems.
    take_lock(root, &mut file, FlockOperation::NonBlockingLockShared)?;
    Ok(Some(file))
}

fn take_lock(root: &Path, file: &mut File, operation: FlockOperation) -> Result<()> {
    match rustix::fs::flock(&*file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            let holder_pid =
                file.read_to_string(&mut holder).ok().and_then(|_| holder.trim().parse::<i32>().ok());
            // An inspection leaves the PID of an earlier owner in place.
            let is_running = |pid: &i32| Path::new("/proc").join(pid.to_string()).exists();
            let who = match holder_pid.filter(is_running) {
                Some(pid) => format!("process {pid}"),
                None => "another process".to_owned(),
            };
            Err(Error::new(
                Reason::Overloaded,
                format!("{} is in use by {who}; only one process can open a store", root.display()),
            ))
        }
        Err(e) => Err(io_error("the store could not be locked", e.into())),
    }
}

/// The salt of the existing store in `root`.
pub(super) fn read_salt(root: &Path) -> Result<u64> {
    if let Some(format) = read_format(root)? {
        return Ok(format.salt);
    }
    reject_orphans(root)?;
    Err(Error::new(
        Reason::InvalidArgument,
        format!("{} is not a store: it has no FORMAT file", root.display()),
    ))
}

/// The contents of the format file.
#[derive(Clone, Copy)]
struct Format {
    version: u32,
    salt: u64,
}

impl Format {
    fn to_text(self) -> String {
        format!("tradewind local store\nformat {}\nsalt {:016x}\n", self.version, self.salt)
    }
}

fn read_format(root: &Path) -> Result<Option<Format>> {
    let path = root.join("FORMAT");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&format!("{} could not be read", path.display()), e)),
    };
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = field("format ").and_then(|v| v.parse::<u32>().ok());
    let Some(version) = version else {
        return Err(Error::new(
            Reason::CorruptData,
            format!(
                "{} is damaged: it names no format version; restore it from a backup, or write it again with the salt \
                 from a segment's header",
                path.display()
            ),
        ));
    };
    if !(MIN_FORMAT_VERSION..=FORMAT_VERSION).contains(&version) {
        return Err(Error::new(
            Reason::InvalidArgument,
            format!(
                "{} has an unknown format version (supported: {MIN_FORMAT_VERSION} to {FORMAT_VERSION}); use the \
                 program that wrote the store, or restore FORMAT if it is damaged",
                root.display()
            ),
        ));
    }
    let salt = field("salt ").and_then(|v| u64::from_str_radix(v, 16).ok());
    salt.map(|salt| Some(Format { version, salt })).ok_or_else(|| {
        Error::new(
            Reason::CorruptData,
            format!("{} names no salt; restore it from a segment's header", path.display()),
        )
    })
}

/// A store that lost its format file must be taken neither for an empty one nor for no store.
fn reject_orphans(root: &Path) -> Result<()> {
    for name in ["segments", "index"] {
        let has_entries = match std::fs::read_dir(root.join(name)) {
            Ok(mut entries) => entries.next().is_some(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(io_error(&format!("{}/{name} could not be read", root.display()), e)),
        };
        if has_entries {
            let root = root.display();
            let why = format!(
                "{root} holds files in {name} but no FORMAT file; restore FORMAT before opening the store"
            );
            return Err(Error::new(Reason::CorruptData, why));
        }
    }
    Ok(())
}

/// Raises the version in the format file, after which older programs reject the store. Nothing else is rewritten: the
/// new format only adds fields. The file is overwritten in place, where only one digit differs: a crash leaves one of the
/// two, and a full device has room for it.
fn upgrade_format(root: &Path, format: Format) -> Result<()> {
    let text = Format { version: FORMAT_VERSION, ..format }.to_text();
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(root.join("FORMAT"))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| io_error("the store's format file could not be upgraded", e))?;
    tracing::info!(root = %root.display(), from = format.version, to = FORMAT_VERSION, "the store's format was upgraded");
    Ok(())
}

fn create_format(root: &Path) -> Result<u64> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| {
        Error::with_source(
            Reason::Io,
            "the system's random number generator failed",
            std::io::Error::other(e.to_string()),
        )
    })?;
    let salt = u64::from_le_bytes(random);
    let write = || -> std::io::Result<()> {
        // The entry of an existing directory may never have been made durable.
        sync_directory(&root.join(".."))?;
        let temporary = root.join("FORMAT.new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(Format { version: FORMAT_VERSION, salt }.to_text().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, root.join("FORMAT"))?;
        // Before there is an index or a segment: either of them without it means that it was lost.
        sync_directory(root)
    };
    write().map_err(|e| io_error("the store's format file could not be written", e))?;
    Ok(salt)
}
