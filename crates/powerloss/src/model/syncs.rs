//! Syncs of files and directories, and injected failures.
//!
//! A sync has two moments: its start takes a mark, its end makes everything before the mark durable. Changes between
//! the two are not covered, as on a slow disk; a sync whose mark is from before a power cut fails.

use rustix::io::Errno;

use super::faults::{FsyncFailure, FsyncFault};
use super::inode::InodeBody;
use super::{Model, Result};
use crate::namespace::Ino;

/// The extent of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncMark {
    /// Number of power cuts before it was taken.
    epoch: u64,
    position: u64,
}

impl Model {
    /// Lets `successes` further syncs (of files and directories) succeed and the next one fail, once. Entry
    /// operations stay pending in either case.
    pub fn fail_fsync_after(&mut self, successes: u64, failure: FsyncFailure) {
        self.fsync_fault = Some(FsyncFault { successes_left: successes, failure });
    }

    /// The mark for a sync of this inode that starts now.
    pub fn mark(&self, ino: Ino) -> Result<SyncMark> {
        let position = match &self.get(ino)?.body {
            InodeBody::File(file) => file.mark(),
            _ => self.names.mark(),
        };
        Ok(SyncMark { epoch: self.epoch, position })
    }

    /// `fsync` or `fdatasync` of a file: its data and length up to `mark` become durable.
    pub fn sync_file(&mut self, ino: Ino, mark: SyncMark, data_only: bool) -> Result<()> {
        if data_only {
            self.counters.fdatasyncs += 1;
        } else {
            self.counters.fsyncs += 1;
        }
        let position = self.position_of(mark)?;
        let failure = FsyncFault::next_sync(&mut self.fsync_fault);
        self.counters.failed_syncs += u64::from(failure.is_some());
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let InodeBody::File(file) = &mut inode.body else { return Err(Errno::INVAL) };
        match failure {
            None => {
                if let Some(freed) = file.sync(position) {
                    self.graveyard.retain(&inode.file_kind, freed);
                }
            }
            Some(FsyncFailure::DropPending) => file.drop_pending(position),
            Some(FsyncFailure::KeepPending) => {}
        }
        failure.map_or(Ok(()), |_| Err(Errno::IO))
    }

    /// `fsync` of a directory: its entry operations up to `mark` become durable.
    pub fn sync_directory(&mut self, dir: Ino, mark: SyncMark) -> Result<()> {
        self.counters.directory_syncs += 1;
        let position = self.position_of(mark)?;
        self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        if FsyncFault::next_sync(&mut self.fsync_fault).is_some() {
            self.counters.failed_syncs += 1;
            return Err(Errno::IO);
        }
        self.names.sync(dir, position);
        Ok(())
    }

    /// Numbers of unsynced file changes and entry operations.
    pub fn pending(&self) -> (usize, usize) {
        let files = self.inodes.values().map(|inode| match &inode.body {
            InodeBody::File(file) => file.pending_changes(),
            _ => 0,
        });
        (files.sum(), self.names.pending_operations())
    }

    /// The position of a mark; EIO if the power was cut since, because its changes are gone.
    fn position_of(&self, mark: SyncMark) -> Result<u64> {
        if mark.epoch == self.epoch { Ok(mark.position) } else { Err(Errno::IO) }
    }
}
