//! What makes work durable: syncs of files and of directories, and the one that is made to fail.
//!
//! A sync has two moments: its start takes a mark, its end makes durable what came before the mark.
//! What a program does between the two is not covered, as on a disk that is slow; a sync whose mark is
//! from before a power cut fails.

use rustix::io::Errno;

use super::faults::{FsyncFailure, FsyncFault};
use super::inode::Body;
use super::{Model, Result};
use crate::namespace::Ino;

/// How far a sync reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Power cuts before it was taken.
    epoch: u64,
    position: u64,
}

impl Model {
    /// Lets `successes` more syncs (of files and directories) succeed and the one after fail, once.
    /// Entry operations stay pending in either case.
    pub fn fail_fsync_after(&mut self, successes: u64, failure: FsyncFailure) {
        self.fsync_fault = Some(FsyncFault { successes_left: successes, failure });
    }

    /// The point that a sync of this inode, starting now, has to reach.
    pub fn mark(&self, ino: Ino) -> Result<Mark> {
        let position = match &self.get(ino)?.body {
            Body::File(file) => file.mark(),
            _ => self.names.mark(),
        };
        Ok(Mark { epoch: self.epoch, position })
    }

    /// `fsync` or `fdatasync` of a file: its data and length up to `mark` become durable.
    pub fn sync_file(&mut self, ino: Ino, mark: Mark, data_only: bool) -> Result<()> {
        if data_only {
            self.counters.fdatasyncs += 1;
        } else {
            self.counters.fsyncs += 1;
        }
        let position = self.reach(mark)?;
        let failure = FsyncFault::strike(&mut self.fsync_fault);
        self.counters.failed_syncs += u64::from(failure.is_some());
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let Body::File(file) = &mut inode.body else { return Err(Errno::INVAL) };
        match failure {
            None => {
                if let Some(freed) = file.sync(position) {
                    self.graveyard.bury(&inode.named_as, freed);
                }
            }
            Some(FsyncFailure::DropPending) => file.drop_pending(position),
            Some(FsyncFailure::KeepPending) => {}
        }
        failure.map_or(Ok(()), |_| Err(Errno::IO))
    }

    /// `fsync` of a directory: its entry operations up to `mark` become durable.
    pub fn sync_directory(&mut self, dir: Ino, mark: Mark) -> Result<()> {
        self.counters.directory_syncs += 1;
        let position = self.reach(mark)?;
        self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        if FsyncFault::strike(&mut self.fsync_fault).is_some() {
            self.counters.failed_syncs += 1;
            return Err(Errno::IO);
        }
        self.names.sync(dir, position);
        Ok(())
    }

    /// Writes and entry operations that wait for a sync.
    pub fn pending(&self) -> (usize, usize) {
        let files = self.inodes.values().map(|inode| match &inode.body {
            Body::File(file) => file.pending_changes(),
            _ => 0,
        });
        (files.sum(), self.names.pending_operations())
    }

    /// The position of a mark; EIO where the power was cut since, for what it was to reach is gone.
    fn reach(&self, mark: Mark) -> Result<u64> {
        if mark.epoch == self.epoch { Ok(mark.position) } else { Err(Errno::IO) }
    }
}
