//! Writing of a destination file. The unfinished file is unnamed or has a temporary name until it is complete, and then
//! atomically replaces the file of its final name. Dropped before that, it is removed, unless a journal records it for
//! another transfer.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FsWord, StatFs, fallocate, fstatfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tradewind_core::Checksum;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_parallel::Sink;

use super::draft::{Draft, DraftId, TempName, default_file_mode};
use super::location::{FileLocation, MAX_ATTEMPTS, check_replaceable, create_parent};
use super::replaced::{ReplacedFile, keep_acl, keep_mode, set_mode};
use super::{Tree, file_error};
use crate::journal::Journal;
use crate::preserve::Attributes;
use crate::progress::Progress;

/// Files above this size, which are written at several offsets concurrently, are preallocated.
pub(super) const MIN_PREALLOCATE_BYTES: u64 = 8 << 20;
/// The type of tmpfs in `statfs` (`linux/magic.h`).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Buffer size for reading a file back.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// A destination file of a transfer: writes an unfinished file, then publishes it.
#[derive(Debug)]
pub struct NewFile {
    pub(super) draft: Draft,
    pub(super) tree: Tree,
    /// The final path, relative to the tree.
    pub(super) relative: PathBuf,
    /// The full path, for messages.
    pub(super) path: PathBuf,
    /// The name that an unnamed file takes if it has to replace a file.
    pub(super) temp_name: TempName,
    pub(super) size: u64,
    pub(super) is_private: bool,
    pub(super) is_published: bool,
    pub(super) progress: Arc<Progress>,
    pub(super) resume_state: Option<ResumeState>,
    /// Serializes writes. Most file systems serialize writes to one file anyway, and waiting in the kernel spins a CPU.
    pub(super) write_lock: Mutex<()>,
}

/// The journal of a file, from which another transfer resumes.
#[derive(Debug)]
pub(super) struct ResumeState {
    /// Ranges that an earlier transfer wrote, by offset and length, with their checksums.
    pub ranges: HashMap<(u64, u64), Checksum>,
    pub journal: Journal,
}

/// A record in the journal of a download, one JSON line. The serialized names are the file format.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum DownloadRecord {
    /// The version of the object, and the unfinished file in the destination's directory.
    #[serde(rename = "Begun")]
    Started {
        version: String,
        size: u64,
        unfinished: PathBuf,
        #[serde(default)]
        id: Option<DraftId>,
    },
    /// A range that was written.
    #[serde(rename = "Chunk")]
    Range { offset: u64, length: u64, algorithm: String, checksum: String },
}

impl NewFile {
    /// Reserves space for the whole file. The free space is checked first, because a file system may allocate all of it
    /// before it reports that it is too little.
    pub(super) fn preallocate(&self) -> Result<()> {
        let stats = fstatfs(&self.draft.file).ok();
        if let Some(stats) = &stats
            && !has_space(stats, self.size)
        {
            let free = free_bytes(stats);
            let why =
                format!("{} needs {} bytes, but its disk has {free} free", self.path.display(), self.size);
            return Err(Error::new(Reason::Full, why).without_retry());
        }
        // In memory, contiguous allocation has no benefit and would only delay the first write.
        if stats.is_some_and(|stats| stats.f_type == TMPFS_MAGIC) {
            return Ok(());
        }
        match fallocate(&self.draft.file, FallocateFlags::KEEP_SIZE, 0, self.size) {
            Err(Errno::NOSPC) => Err(file_error("reserve space for", &self.path, Errno::NOSPC)),
            // Some file systems do not support it; the file grows with each write then.
            _ => Ok(()),
        }
    }

    /// Restricts a mode to the permissions of new files of this process. Execute permission requires read permission.
    pub fn restrict_mode(&self, mode: u32) -> Result<u32> {
        let default_mode =
            default_file_mode().map_err(|e| file_error("determine the mode of", &self.path, e))?;
        Ok(mode & (default_mode | (default_mode & 0o444) >> 2))
    }

    /// Sets the attributes, and then publishes the file under its final name. A file that it replaces decides about the mode
    /// and owner that `attributes` leave open.
    pub fn finish(&mut self, attributes: &Attributes) -> Result<()> {
        let cannot_set = |e| file_error("set the time, mode or owner of", &self.path, e);
        let file = &self.draft.file;
        let replaced = ReplacedFile::find(&self.tree, &self.relative).filter(|_| attributes.owner.is_none());
        let kept_mode = replaced.map(|replaced| replaced.give_owner(file).map_err(cannot_set)).transpose()?;
        attributes.apply_to(file).map_err(cannot_set)?;
        match (attributes.mode, kept_mode) {
            (Some(_), _) => {}
            (None, Some(mode)) => {
                let mode = keep_acl(&self.tree, &self.relative, file, mode);
                keep_mode(file, mode).map_err(cannot_set)?;
            }
            (None, None) if self.is_private => self.set_default_mode()?,
            (None, None) => {}
        }
        self.publish()?;
        self.is_published = true;
        self.remove_journal();
        Ok(())
    }

    /// Opens a private file to the users whom new files of this process are open to. If their mode is unknown, it remains private.
    fn set_default_mode(&self) -> Result<()> {
        let is_set = match default_file_mode() {
            Ok(mode) => {
                set_mode(&self.draft.file, mode).map_err(|e| file_error("set the mode of", &self.path, e))?
            }
            Err(e) => {
                tracing::warn!(error = %e, path = %self.path.display(), "cannot determine the mode of a new file");
                return Ok(());
            }
        };
        if !is_set {
            tracing::warn!(path = %self.path.display(), "cannot set the mode of a new file");
        }
        Ok(())
    }

    /// Publishes the file. Retries, because a concurrent removal may delete a directory without named files.
    fn publish(&mut self) -> Result<()> {
        let mut attempt = 1;
        loop {
            match self.try_publish() {
                Err(e) if e.reason() == Reason::NoSuchKey && attempt < MAX_ATTEMPTS => attempt += 1,
                published => return published,
            }
        }
    }

    /// Publishes the file once. The directory is opened again: it may have been removed with its last file, or
    /// replaced by a link.
    fn try_publish(&mut self) -> Result<()> {
        let name = FileLocation::split(&self.relative)?.name.to_owned();
        let directory = create_parent(&self.tree, &self.relative)?;
        if self.draft.name().is_some() {
            check_replaceable(&self.tree, &directory, &self.relative)?;
        }
        let mut published = self.draft.publish(&directory, &name);
        if published.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists) {
            check_replaceable(&self.tree, &directory, &self.relative)?;
            let temp_name = self.temp_name.for_file(&name);
            published = directory
                .try_clone()
                .and_then(|directory| self.draft.take_name(directory, temp_name))
                .and_then(|()| self.draft.publish(&directory, &name));
        }
        published.or_else(|e| {
            // A directory may have been created there in the meantime.
            check_replaceable(&self.tree, &directory, &self.relative)?;
            Err(self.tree.error("create", &self.relative, e))
        })
    }

    /// Counts bytes that are not written, because they are in a hole.
    pub(crate) fn skip_hole(&self, length: u64) {
        self.progress.add_bytes(i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// Ends the file at its size, which a hole at its end does not.
    pub(crate) fn set_size(&self) -> Result<()> {
        self.draft.file.set_len(self.size).map_err(|e| file_error("write", &self.path, e))
    }

    /// Removes the journal: the file will not be resumed.
    pub fn remove_journal(&mut self) {
        if let Some(Err(e)) = self.resume_state.take().map(|state| state.journal.remove()) {
            tracing::warn!(error = %e, path = %self.path.display(), "cannot remove a journal");
        }
    }
}

/// Returns true if a file system may have space for `bytes`. Zero blocks mean no limit; nothing available although
/// blocks are free (btrfs) means unknown.
fn has_space(stats: &StatFs, bytes: u64) -> bool {
    stats.f_blocks == 0 || (stats.f_bavail == 0 && stats.f_bfree > 0) || bytes <= free_bytes(stats)
}

/// Bytes that this process may use. Some free blocks are reserved for root.
fn free_bytes(stats: &StatFs) -> u64 {
    let blocks = if geteuid().is_root() { stats.f_bfree } else { stats.f_bavail };
    blocks.saturating_mul(u64::try_from(stats.f_bsize).unwrap_or(0))
}

impl Sink for NewFile {
    fn bytes_discarded(&self, bytes: u64) {
        self.progress.add_bytes(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.draft.file.write_all_at(bytes, offset).map_err(|e| file_error("write", &self.path, e))?;
        drop(guard);
        self.progress.add_bytes(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Verifies a recorded range by reading it back: after a power loss the journal may list data that is not on disk.
    fn verify_stored_range(&self, offset: u64, length: u64) -> Result<Option<Checksum>> {
        let recorded = self.resume_state.as_ref().and_then(|state| state.ranges.get(&(offset, length)));
        let Some(recorded) = recorded else { return Ok(None) };
        let mut hasher = Hasher::new(recorded.algorithm());
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut at = offset;
        while at < offset + length {
            let wanted = usize::try_from(offset + length - at).unwrap_or(usize::MAX).min(READ_BUFFER_BYTES);
            match self.draft.file.read_at(&mut buffer[..wanted], at) {
                Ok(0) => return Ok(None),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    at += read as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(file_error("read", &self.path, e)),
            }
        }
        let checksum = hasher.finish();
        Ok((checksum == *recorded).then_some(checksum))
    }

    fn stored_ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.resume_state.as_ref().map(|state| state.ranges.keys().copied());
        let mut ranges: Vec<_> = ranges.into_iter().flatten().collect();
        ranges.sort_unstable();
        ranges
    }

    fn range_reused(&self, length: u64) {
        self.progress.add_bytes(i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn range_finished(&self, offset: u64, length: u64, checksum: &Checksum) {
        let Some(state) = &self.resume_state else { return };
        let (algorithm, checksum) = (checksum.algorithm().name().to_owned(), checksum.to_base64());
        if let Err(e) = state.journal.append(&DownloadRecord::Range { offset, length, algorithm, checksum }) {
            tracing::warn!(error = %e, "cannot record a range in the journal; a resumed download repeats it");
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_published
            && self.resume_state.is_none()
            && let Err(e) = self.draft.discard()
        {
            tracing::warn!(error = %e, path = %self.path.display(), "cannot remove an unfinished file");
        }
    }
}

#[cfg(test)]
mod tests;
