//! A file that is being written: without a name, or under one of its own, until it is whole. Then it takes the place of
//! whatever had its name. Dropped before that, it is removed, unless it is remembered and another transfer may go on
//! with it.

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
use tradewind_volume::Sink;

use super::draft::{Draft, DraftId, SpareName, usual_mode};
use super::place::{FilePlace, MAX_ATTEMPTS, check_replaceable, make_parent};
use super::{Tree, failed};
use crate::journal::Entry;
use crate::preserve::Attributes;
use crate::progress::Progress;

/// Of larger files, which are written in several places at a time, the file system is told beforehand how large they
/// become.
pub(super) const WORTH_PREALLOCATING: u64 = 8 << 20;
/// What `statfs` calls a file system in memory (`linux/magic.h`).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// An unfinished file.
#[derive(Debug)]
pub struct NewFile {
    pub(super) draft: Draft,
    pub(super) tree: Tree,
    /// Where it goes in the tree.
    pub(super) below: PathBuf,
    /// The same, for messages.
    pub(super) path: PathBuf,
    /// The name that it may take before its own.
    pub(super) spare: SpareName,
    pub(super) size: u64,
    pub(super) is_private: bool,
    pub(super) is_kept: bool,
    pub(super) progress: Arc<Progress>,
    pub(super) resumable: Option<Resumable>,
    /// Most file systems take one write at a time to a file. Whoever waits for that in the kernel keeps a processor busy.
    pub(super) turn: Mutex<()>,
}

/// What is remembered of a file, for another transfer to go on.
#[derive(Debug)]
pub(super) struct Resumable {
    /// Chunks that an earlier transfer wrote, with the checksums that they had.
    pub chunks: HashMap<(u64, u64), Checksum>,
    pub journal: Entry,
}

/// What the journal of a download says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// Of which version of the object, and which file beside the destination has its bytes.
    Begun {
        version: String,
        size: u64,
        unfinished: PathBuf,
        #[serde(default)]
        id: Option<DraftId>,
    },
    /// A chunk is there.
    Chunk { offset: u64, length: u64, algorithm: String, checksum: String },
}

impl NewFile {
    /// Reserves room for all of it. The free space is looked at first: a file system may give away all it has before it says
    /// that this is too little.
    pub(super) fn preallocate(&self) -> Result<()> {
        let of = fstatfs(&self.draft.file).ok();
        if let Some(of) = &of
            && !has_room(of, self.size)
        {
            let free = free_bytes(of);
            let why =
                format!("{} needs {} bytes, and its disk has {free} free", self.path.display(), self.size);
            return Err(Error::new(Reason::Full, why).after_retries());
        }
        // In memory nothing lies side by side: to get all of it beforehand only keeps the first byte waiting.
        if of.is_some_and(|of| of.f_type == TMPFS_MAGIC) {
            return Ok(());
        }
        match fallocate(&self.draft.file, FallocateFlags::KEEP_SIZE, 0, self.size) {
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
        self.publish()?;
        self.is_kept = true;
        self.forget();
        Ok(())
    }

    /// Gives the file its name. A removal may take the directory as long as nothing in it has one.
    fn publish(&mut self) -> Result<()> {
        let mut attempt = 1;
        loop {
            match self.try_to_publish() {
                Err(e) if e.reason() == Reason::NoSuchKey && attempt < MAX_ATTEMPTS => attempt += 1,
                published => return published,
            }
        }
    }

    /// The directory is opened again: it may have been removed with its last file, or be a link by now.
    fn try_to_publish(&mut self) -> Result<()> {
        let name = FilePlace::of(&self.below)?.name.to_owned();
        let directory = make_parent(&self.tree, &self.below)?;
        if self.draft.name().is_some() {
            check_replaceable(&self.tree, &directory, &self.below)?;
        }
        let mut named = self.draft.publish(&directory, &name);
        if named.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists) {
            check_replaceable(&self.tree, &directory, &self.below)?;
            let spare = self.spare.beside(&name);
            named = directory
                .try_clone()
                .and_then(|own| self.draft.take_name(own, spare))
                .and_then(|()| self.draft.publish(&directory, &name));
        }
        named.map_err(|e| self.tree.failed("name", &self.below, e))
    }

    /// Nobody will go on with it.
    pub fn forget(&mut self) {
        if let Some(Err(e)) = self.resumable.take().map(|resumable| resumable.journal.remove()) {
            tracing::warn!(error = %e, path = %self.path.display(), "a journal is left");
        }
    }
}

/// Whether a file system may have room for a number of bytes. One without a limit has; one that calls nothing available although some
/// is free (btrfs) does not say.
fn has_room(of: &StatFs, bytes: u64) -> bool {
    of.f_blocks == 0 || (of.f_bavail == 0 && of.f_bfree > 0) || bytes <= free_bytes(of)
}

/// Bytes that this process may take. Some are reserved for root.
fn free_bytes(of: &StatFs) -> u64 {
    let blocks = if geteuid().is_root() { of.f_bfree } else { of.f_bavail };
    blocks.saturating_mul(u64::try_from(of.f_bsize).unwrap_or(0))
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
            && let Err(e) = self.draft.discard()
        {
            tracing::warn!(error = %e, path = %self.path.display(), "an unfinished file is left beside it");
        }
    }
}

#[cfg(test)]
mod tests;
