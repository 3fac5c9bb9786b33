//! A file as the source of an upload. Retries read it again, so each attempt checks before its commit that the file is
//! unchanged (`check_unchanged`).
//!
//! Its journal has the version of the file and the upload id, and the stored parts are compared with the file. Uploads
//! from other sources use `JournalCheckpoint`.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FsWord, SeekFrom, fstatfs, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tradewind_core::Timestamp;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::UploadId;
use tradewind_parallel::UploadSource;

use super::{Links, Tree, file_error};
use crate::journal::Journal;
use crate::names::key_to_path;
use crate::preserve::Attributes;
use crate::progress::Progress;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// The types of ext2 to ext4, XFS, Btrfs, tmpfs and F2FS in `statfs` (`linux/magic.h`).
const LOCAL_MAGICS: [FsWord; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// An open file.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    seen: FileVersion,
    attributes: Attributes,
    has_holes: bool,
    /// The file system reports holes correctly.
    trusts_holes: bool,
    progress: Arc<Progress>,
    journal: Mutex<Option<Journal>>,
    /// If set, the upload includes the file's attributes. An upload without them is not resumed.
    preserves: bool,
}

/// The record of an upload in its journal.
#[derive(Debug, Serialize, Deserialize)]
struct UploadRecord {
    seen: FileVersion,
    upload: String,
    part_bytes: u64,
    #[serde(default)]
    preserves: bool,
}

/// The version of a file; it differs after every write to the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileVersion {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl FileSource {
    /// Opens a file of a tree by its name. With [`Links::Skip`] no link in the path is followed, not even one created
    /// concurrently.
    pub fn open(tree: &Tree, name: &str, links: Links, progress: Arc<Progress>) -> Result<Self> {
        let relative = key_to_path(name)?;
        let path = tree.path().join(&relative);
        let file = tree.file(&relative, links).map_err(|e| tree.error("open", &relative, e))?;
        Self::from_file(file, path, progress)
    }

    fn from_file(file: File, path: PathBuf, progress: Arc<Progress>) -> Result<Self> {
        let metadata = file.metadata().map_err(|e| file_error("access", &path, e))?;
        if !metadata.is_file() {
            return Err(Error::new(Reason::InvalidRequest, format!("{} is not a file", path.display())));
        }
        let (seen, journal) = (FileVersion::from_metadata(&metadata), Mutex::default());
        let attributes = Attributes::from_metadata(&metadata);
        let has_holes = metadata.blocks().saturating_mul(BLOCK_BYTES) < metadata.len();
        let trusts_holes = has_holes && trusts_holes(&file);
        Ok(Self {
            file,
            path,
            seen,
            attributes,
            has_holes,
            trusts_holes,
            progress,
            journal,
            preserves: false,
        })
    }

    /// Records uploads in a journal. `preserves` states whether they include the file's attributes.
    #[must_use]
    pub fn with_journal(mut self, journal: Option<Journal>, preserves: bool) -> Self {
        self.journal = Mutex::new(journal);
        self.preserves = preserves;
        self
    }

    /// Removes the journal: the file is stored, or its upload cannot be resumed.
    pub fn remove_journal(&self) {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(e)) = journal.map(Journal::remove) {
            tracing::warn!(error = %e, path = %self.path.display(), "cannot remove a journal");
        }
    }

    /// Size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.seen.size
    }

    /// Returns true if the file occupies less space than its size: it may have holes.
    #[must_use]
    pub(crate) fn has_holes(&self) -> bool {
        self.has_holes
    }

    /// The first range at or after `offset` that must be read; `None` if the rest of the file is a hole. File systems of other
    /// machines, and OpenZFS, may report a hole where data was written: it is read, too.
    pub(crate) fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let size = self.seen.size;
        if offset >= size || !self.trusts_holes {
            return (offset < size).then_some(offset..size);
        }
        let start = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return None,
            Err(_) => return Some(offset..size),
        };
        data_range(offset..size, start, seek(&self.file, SeekFrom::Hole(start)).ok())
    }

    /// Modification time, mode and owner.
    #[must_use]
    pub const fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Modification time.
    #[must_use]
    pub fn modified(&self) -> Timestamp {
        let (seconds, nanos) = self.seen.modified;
        Timestamp::from_millis(seconds * 1000 + nanos / 1_000_000)
    }

    /// Hash of the file's version; it changes with every write to the file.
    #[must_use]
    pub fn version(&self) -> u64 {
        let FileVersion { inode, size, modified, changed } = self.seen;
        let numbers = [inode, size].map(u64::to_le_bytes);
        let times = [modified.0, modified.1, changed.0, changed.1].map(i64::to_le_bytes);
        crc64nvme([numbers.as_flattened(), times.as_flattened()].concat().as_slice())
    }

    /// Returns true if an earlier upload is of this version of the file, with the same choice of attributes.
    fn is_same(&self, record: &UploadRecord) -> bool {
        record.seen == self.seen && record.preserves == self.preserves
    }

    fn changed(&self) -> Error {
        Error::new(Reason::Conflict, format!("{} changed while it was read", self.path.display()))
    }
}

/// The data in the rest of a file, from the results of `SEEK_DATA` and `SEEK_HOLE`. Results that contradict themselves hide no
/// data.
fn data_range(rest: Range<u64>, start: u64, hole: Option<u64>) -> Option<Range<u64>> {
    let start = start.max(rest.start);
    let end = hole.filter(|hole| *hole > start).unwrap_or(rest.end).min(rest.end);
    (start < end).then_some(start..end)
}

/// Returns true for a local file system that reports no hole where data was written, even if the data is not on disk yet.
fn trusts_holes(file: &File) -> bool {
    fstatfs(file).is_ok_and(|stats| LOCAL_MAGICS.contains(&stats.f_type))
}

impl UploadSource for FileSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < buffer.len() {
            match self.file.read_at(&mut buffer[at..], offset + at as u64) {
                Ok(0) => return Err(self.changed()),
                Ok(read) => at += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(file_error("read", &self.path, e)),
            }
        }
        Ok(())
    }

    fn report_sent(&self, bytes: i64) {
        self.progress.add_bytes(bytes);
    }

    fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|e| file_error("access", &self.path, e))?;
        if FileVersion::from_metadata(&metadata) == self.seen { Ok(()) } else { Err(self.changed()) }
    }

    fn resumable_upload(&self) -> Option<(UploadId, u64)> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let record = journal.as_ref()?.records::<UploadRecord>().pop()?;
        self.is_same(&record).then_some((UploadId(record.upload), record.part_bytes))
    }

    fn stale_upload(&self) -> Option<UploadId> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let record = journal.as_ref()?.records::<UploadRecord>().pop()?;
        (!self.is_same(&record)).then_some(UploadId(record.upload))
    }

    fn upload_started(&self, upload: &UploadId, part_bytes: u64) -> bool {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = journal.as_mut() else { return false };
        let (seen, preserves) = (self.seen.clone(), self.preserves);
        let record = UploadRecord { seen, upload: upload.0.clone(), part_bytes, preserves };
        let added = journal.reset().and_then(|()| journal.append(&record));
        if let Err(e) = &added {
            tracing::warn!(error = %e, "cannot write the upload journal; if interrupted, this upload cannot resume");
        }
        added.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::JournalDirectory;
    use std::path::Path;

    #[test]
    fn reported_holes_hide_no_data_behind_a_contradiction() {
        assert_eq!(data_range(10..100, 20, Some(30)), Some(20..30));
        assert_eq!(data_range(10..100, 20, Some(300)), Some(20..100));
        assert_eq!(data_range(10..100, 20, None), Some(20..100));
        // Data before the offset, a hole where data was reported, and data after the known end.
        assert_eq!(data_range(10..100, 5, Some(30)), Some(10..30));
        assert_eq!(data_range(10..100, 20, Some(20)), Some(20..100));
        assert_eq!(data_range(10..100, 5, Some(7)), Some(10..100));
        assert_eq!(data_range(10..100, 100, Some(120)), None);
    }

    #[test]
    fn upload_with_other_attributes_is_not_resumed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let journal = JournalDirectory::new(directory.path().join("j"), "s".to_owned());
        let source = |preserves| {
            let source = FileSource::open(&tree, "file", Links::Skip, Arc::default()).unwrap();
            source.with_journal(journal.open("a", "b").unwrap(), preserves)
        };
        let id = UploadId("id".to_owned());
        assert!(source(false).upload_started(&id, 5));
        let plain = source(false);
        assert_eq!((plain.resumable_upload(), plain.stale_upload()), (Some((id.clone(), 5)), None));
        drop(plain);
        let preserving = source(true);
        assert_eq!((preserving.resumable_upload(), preserving.stale_upload()), (None, Some(id)));
    }

    #[test]
    fn links_in_the_path_are_followed_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let (root, outside) = (directory.path().join("root"), directory.path().join("outside"));
        for name in ["root/dir", "outside"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        for path in [root.join("dir/file"), outside.join("file")] {
            std::fs::write(path, "x").unwrap();
        }
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link(&outside, "away");
        link(Path::new("dir"), "within");
        link(Path::new("dir/file"), "file");
        let is_open = |root: &Path, name, links| {
            let tree = Tree::open(root).unwrap();
            FileSource::open(&tree, name, links, Arc::default()).map(|source| source.size())
        };
        for name in ["away/file", "within/file", "file"] {
            let refused = is_open(&root, name, Links::Skip).unwrap_err().to_string();
            assert!(refused.contains(&format!("cannot open {}: ", root.join(name).display())), "{refused}");
            assert_eq!(is_open(&root, name, Links::Follow).unwrap(), 1, "{name}");
        }
        // A link to the root itself is followed: the user named it.
        let named = directory.path().join("named");
        std::os::unix::fs::symlink(&root, &named).unwrap();
        assert_eq!(is_open(&named, "dir/file", Links::Skip).unwrap(), 1);
        let absent = is_open(&root, "dir/absent", Links::Skip).unwrap_err();
        assert_eq!(absent.reason(), Reason::NoSuchKey);
        for links in [Links::Skip, Links::Follow] {
            assert_eq!(is_open(&root, "../outside/file", links).unwrap_err().reason(), Reason::InvalidKey);
        }
    }
}
