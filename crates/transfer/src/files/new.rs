//! A file that is being written: without a name, or under one of its own, until it is whole. Then it takes the place of
//! whatever had its name. Dropped before that, it is removed, unless it is remembered and another transfer may go on
//! with it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, FsWord, Mode, StatFs, fallocate, fchmod, fstatfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum};
use tradewind_volume::Sink;

use super::draft::{Draft, UNFINISHED, can_do_without_name, usual_mode};
use super::failed;
use crate::journal::Entry;
use crate::preserve::Attributes;
use crate::progress::Progress;

/// Of larger files, which are written in several places at a time, the file system is told beforehand how large they
/// become.
const WORTH_PREALLOCATING: u64 = 8 << 20;
/// What `statfs` calls a file system in memory (`linux/magic.h`).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A directory that files are written into, and the directories below it that are known to be there.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Tells the unfinished files of one process and moment from those of others.
    mark: u64,
    count: AtomicU64,
    made: Mutex<HashSet<PathBuf>>,
    /// Whether files need no name while they are written; found out with the first.
    needs_no_name: OnceLock<bool>,
}

impl Directory {
    /// The directory need not be there.
    pub fn new(root: PathBuf) -> Result<Self> {
        let mark = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("the system gives no random bytes: {e}")))?;
        Ok(Self {
            root,
            mark,
            count: AtomicU64::new(0),
            made: Mutex::default(),
            needs_no_name: OnceLock::new(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes a file below the directory, and the directories above it that are empty then.
    pub fn remove(&self, below: &Path) -> Result<()> {
        let path = self.root.join(below);
        fs::remove_file(&path).map_err(|e| failed("remove", &path, e))?;
        let parents = below.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        for parent in parents {
            // One that is not empty stays, and so do those above it.
            if fs::remove_dir(self.root.join(parent)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Begins a file of `size` bytes at a path below the directory. A private one nobody else can open before it is
    /// finished: what it will allow others is not known to them yet.
    pub fn begin(
        &self,
        below: &Path,
        size: u64,
        progress: Arc<Progress>,
        is_private: bool,
    ) -> Result<NewFile> {
        self.begin_as(below, size, progress, (is_private, false))
    }

    fn begin_as(
        &self,
        below: &Path,
        size: u64,
        progress: Arc<Progress>,
        (is_private, is_named): (bool, bool),
    ) -> Result<NewFile> {
        let path = self.root.join(below);
        let Some(parent) = path.file_name().and(path.parent()) else {
            return Err(Error::new(Reason::InvalidKey, format!("{} is not a file's name", path.display())));
        };
        self.make(parent)?;
        let spare = self.spare_name();
        let unnamed = || {
            let may_be = !is_named && size <= WORTH_PREALLOCATING && self.needs_no_name(parent);
            // Another file system may begin below the root: what it cannot do is done with a name.
            may_be.then(|| Draft::unnamed(parent).ok()).flatten()
        };
        let draft = match unnamed() {
            // It is looked for a place when it gets its name.
            Some(draft) => draft,
            None => {
                check_place(&path)?;
                let unfinished = spare.beside(&path);
                let named = || Draft::named(unfinished.clone(), is_private);
                let mut draft = named();
                if draft.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
                    // Somebody removed the directory meanwhile.
                    self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(parent);
                    self.make(parent)?;
                    draft = named();
                }
                draft.map_err(|e| failed("make", &unfinished, e))?
            }
        };
        let (is_kept, turn) = (false, Mutex::default());
        let new = NewFile { draft, path, spare, size, is_private, is_kept, progress, resumable: None, turn };
        if size > WORTH_PREALLOCATING {
            new.preallocate()?;
        }
        Ok(new)
    }

    fn spare_name(&self) -> SpareName {
        SpareName { mark: self.mark, number: self.count.fetch_add(1, Ordering::Relaxed) }
    }

    /// Below one root nearly always the same.
    fn needs_no_name(&self, parent: &Path) -> bool {
        let spare = || self.spare_name().beside(&parent.join("try"));
        *self.needs_no_name.get_or_init(|| can_do_without_name(parent, spare()))
    }

    /// The same for a version of an object, going on with what an earlier transfer left of it.
    pub fn resume(
        &self,
        below: &Path,
        (size, version): (u64, &str),
        progress: Arc<Progress>,
        (journal, is_private): (Option<Entry>, bool),
    ) -> Result<NewFile> {
        let Some(mut journal) = journal else { return self.begin(below, size, progress, is_private) };
        let mut lines = journal.earlier::<Line>().into_iter();
        let begun = lines.next();
        if let Some(Line::Begun { version: earlier, size: earlier_size, unfinished }) = &begun
            && earlier == version
            && *earlier_size == size
            && let Ok(file) = OpenOptions::new().read(true).write(true).open(unfinished)
        {
            let unfinished = unfinished.clone();
            let chunks = lines.filter_map(|line| match line {
                Line::Chunk { offset, length, algorithm, checksum } => {
                    let algorithm: Algorithm = algorithm.parse().ok()?;
                    Some(((offset, length), Checksum::from_base64(algorithm, &checksum).ok()?))
                }
                Line::Begun { .. } => None,
            });
            let resumable = Some(Resumable { chunks: chunks.collect(), journal });
            let path = self.root.join(below);
            if is_private {
                fchmod(&file, Mode::RUSR | Mode::WUSR)
                    .map_err(|e| failed("change the mode of", &unfinished, e))?;
            }
            let draft = Draft { file, name: Some(unfinished) };
            let spare = self.spare_name();
            let (is_kept, turn) = (false, Mutex::default());
            return Ok(NewFile { draft, path, spare, size, is_private, is_kept, progress, resumable, turn });
        }
        if let Some(Line::Begun { unfinished, .. }) = begun
            && let Err(e) = fs::remove_file(&unfinished)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(error = %e, path = %unfinished.display(), "an unfinished file is left");
        }
        let mut new = self.begin_as(below, size, progress, (is_private, true))?;
        let unfinished = new.draft.name.clone().unwrap_or_else(|| new.spare.beside(&new.path));
        let unfinished = std::path::absolute(&unfinished).unwrap_or(unfinished);
        let begun = Line::Begun { version: version.to_owned(), size, unfinished };
        match journal.begin_anew().and_then(|()| journal.add(&begun)) {
            Ok(()) => new.resumable = Some(Resumable { chunks: HashMap::new(), journal }),
            Err(e) => tracing::warn!(error = %e, "a download is not remembered: killed, it would begin anew"),
        }
        Ok(new)
    }

    fn make(&self, directory: &Path) -> Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.contains(directory) {
            return Ok(());
        }
        fs::create_dir_all(directory).map_err(|e| failed("make the directory", directory, e))?;
        let below = directory.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let mut path = self.root.clone();
        for part in below.components() {
            path.push(part);
            let is_link = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink());
            if is_link {
                let why = format!(
                    "{} is a symbolic link: what is behind it is not below the destination",
                    path.display()
                );
                return Err(Error::new(Reason::InvalidKey, why));
            }
        }
        made.insert(directory.to_owned());
        Ok(())
    }
}

/// What tells the name of an unfinished file from those of all others.
#[derive(Debug, Clone, Copy)]
struct SpareName {
    mark: u64,
    number: u64,
}

impl SpareName {
    /// The name, in the place where a file is to be.
    fn beside(self, path: &Path) -> PathBuf {
        let Self { mark, number } = self;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Not the whole name: the two together may be too long for one.
        let name: String = name.chars().take(32).collect();
        path.with_file_name(format!(".{name}.{mark:016x}-{number}{UNFINISHED}"))
    }
}

/// An unfinished file.
#[derive(Debug)]
pub struct NewFile {
    draft: Draft,
    path: PathBuf,
    /// The name that it may take before its own.
    spare: SpareName,
    size: u64,
    is_private: bool,
    is_kept: bool,
    progress: Arc<Progress>,
    resumable: Option<Resumable>,
    /// Most file systems take one write at a time to a file. Whoever waits for that in the kernel keeps a processor busy.
    turn: Mutex<()>,
}

/// What is remembered of a file, for another transfer to go on.
#[derive(Debug)]
struct Resumable {
    /// Chunks that an earlier transfer wrote, with the checksums that they had.
    chunks: HashMap<(u64, u64), Checksum>,
    journal: Entry,
}

/// What the journal of a download says.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// Of which version of the object, and where its bytes are.
    Begun { version: String, size: u64, unfinished: PathBuf },
    /// A chunk is there.
    Chunk { offset: u64, length: u64, algorithm: String, checksum: String },
}

impl NewFile {
    fn preallocate(&self) -> Result<()> {
        let reserved = match fstatfs(&self.draft.file) {
            // In memory nothing lies side by side: to get all of it beforehand only keeps the first byte waiting.
            Ok(of) if of.f_type == TMPFS_MAGIC => has_room(&of, self.size),
            _ => fallocate(&self.draft.file, FallocateFlags::KEEP_SIZE, 0, self.size),
        };
        match reserved {
            // Better told now than after the bytes were fetched.
            Err(Errno::NOSPC) => Err(failed("reserve room for", &self.path, Errno::NOSPC)),
            // Some file systems cannot: the file grows then.
            _ => Ok(()),
        }
    }

    /// Of a mode, what new files of this process may have: what may not be read may not be executed.
    pub fn permitted(&self, mode: u32) -> Result<u32> {
        let usual = usual_mode().map_err(|e| failed("know the mode of", &self.path, e))?;
        Ok(mode & (usual | (usual & 0o444) >> 2))
    }

    /// Gives it its name, when all else of it is as it is to be.
    pub fn finish(&mut self, attributes: &Attributes) -> Result<()> {
        let usual = if self.is_private && attributes.mode.is_none() {
            Some(usual_mode().map_err(|e| failed("know the mode of", &self.path, e))?)
        } else {
            None
        };
        Attributes { mode: attributes.mode.or(usual), ..*attributes }
            .give(&self.draft.file)
            .map_err(|e| failed("set the time, mode or owner of", &self.path, e))?;
        let mut named = self.draft.publish(&self.path);
        if named.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists) {
            check_place(&self.path)?;
            named = self
                .draft
                .take_name(&self.spare.beside(&self.path))
                .and_then(|()| self.draft.publish(&self.path));
        }
        named.map_err(|e| failed("name", &self.path, e))?;
        self.is_kept = true;
        self.forget();
        Ok(())
    }

    /// Nobody will go on with it.
    pub fn forget(&mut self) {
        if let Some(Err(e)) = self.resumable.take().map(|resumable| resumable.journal.remove()) {
            tracing::warn!(error = %e, path = %self.path.display(), "a journal is left");
        }
    }
}

/// Whether a file system has room for so many bytes; one without a limit always.
fn has_room(of: &StatFs, bytes: u64) -> rustix::io::Result<()> {
    let free = of.f_bavail.saturating_mul(u64::try_from(of.f_bsize).unwrap_or(0));
    if of.f_blocks == 0 || bytes <= free { Ok(()) } else { Err(Errno::NOSPC) }
}

/// What is no file is not replaced by one.
fn check_place(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => {
            let why = format!("{} is there and is not a file", path.display());
            Err(Error::new(Reason::InvalidKey, why))
        }
        Ok(metadata) if metadata.is_symlink() && fs::metadata(path).is_ok_and(|to| !to.is_file()) => {
            let why = format!("{} is a link to what is not a file", path.display());
            Err(Error::new(Reason::InvalidKey, why))
        }
        _ => Ok(()),
    }
}

impl Sink for NewFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.draft.file.write_all_at(bytes, offset).map_err(|e| failed("write", &self.path, e))?;
        drop(turn);
        self.progress.carried(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// After a loss of power a journal may say more than the disk holds: what is there is read again.
    fn holds(&self, offset: u64, length: u64) -> Result<Option<Checksum>> {
        let noted = self.resumable.as_ref().and_then(|resumable| resumable.chunks.get(&(offset, length)));
        let Some(noted) = noted else { return Ok(None) };
        let mut hasher = Hasher::new(noted.algorithm());
        let mut buffer = vec![0; PIECE_BYTES];
        let mut at = offset;
        while at < offset + length {
            let wanted = usize::try_from(offset + length - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
            match self.draft.file.read_at(&mut buffer[..wanted], at) {
                Ok(0) => return Ok(None),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    at += read as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("read", &self.path, e)),
            }
        }
        let found = hasher.finish();
        if found != *noted {
            return Ok(None);
        }
        Ok(Some(found))
    }

    fn held(&self) -> Vec<(u64, u64)> {
        let chunks = self.resumable.as_ref().map(|resumable| resumable.chunks.keys().copied());
        let mut chunks: Vec<_> = chunks.into_iter().flatten().collect();
        chunks.sort_unstable();
        chunks
    }

    fn kept(&self, length: u64) {
        self.progress.carried(i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn finished(&self, offset: u64, length: u64, checksum: &Checksum) {
        let Some(resumable) = &self.resumable else { return };
        let (algorithm, checksum) = (checksum.algorithm().name().to_owned(), checksum.to_base64());
        if let Err(e) = resumable.journal.add(&Line::Chunk { offset, length, algorithm, checksum }) {
            tracing::warn!(error = %e, "a chunk is not remembered: killed, it would be fetched again");
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept
            && self.resumable.is_none()
            && let Some(unfinished) = &self.draft.name
            && let Err(e) = fs::remove_file(unfinished)
        {
            tracing::warn!(error = %e, path = %unfinished.display(), "an unfinished file is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_private_file_is_its_owners_until_it_is_finished() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // One without a name, and one with.
        for (name, size) in [("small", 1), ("large", WORTH_PREALLOCATING + 1)] {
            let mut file = directory.begin(Path::new(name), size, Arc::default(), true).unwrap();
            if let Some(unfinished) = &file.draft.name {
                assert_eq!(mode(unfinished), 0o600);
            }
            // Nobody said what mode it is to have.
            file.finish(&Attributes::default()).unwrap();
            assert_eq!(mode(&root.path().join(name)), usual_mode().unwrap());
        }
        let mut file = directory.begin(Path::new("small"), 1, Arc::default(), true).unwrap();
        file.finish(&Attributes { mode: Some(0o640), ..Attributes::default() }).unwrap();
        assert_eq!(mode(&root.path().join("small")), 0o640);
    }
}
