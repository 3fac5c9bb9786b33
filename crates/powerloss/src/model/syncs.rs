//! What makes work durable: syncs of files and of directories, and the one that is made to fail.
//!
//! A sync has two moments: its start takes a mark, its end makes durable what came before the mark.
//! What a program does between the two is not covered, as on a disk that is slow.

use rustix::io::Errno;

use super::faults::{FsyncFailure, FsyncFault};
use super::inode::Body;
use super::{Model, Result};
use crate::namespace::Ino;

impl Model {
    /// Lets `successes` more syncs (of files and directories) succeed and the one after fail, once.
    /// Entry operations stay pending in either case.
    pub fn fail_fsync_after(&mut self, successes: u64, failure: FsyncFailure) {
        self.fsync_fault = Some(FsyncFault { successes_left: successes, failure });
    }

    /// The point that a sync of this inode, starting now, has to reach.
    pub fn mark(&self, ino: Ino) -> Result<u64> {
        match &self.get(ino)?.body {
            Body::File(file) => Ok(file.mark()),
            _ => Ok(self.names.mark()),
        }
    }

    /// `fsync` or `fdatasync` of a file: its data and length up to `mark` become durable.
    pub fn sync_file(&mut self, ino: Ino, mark: u64, data_only: bool) -> Result<()> {
        if data_only {
            self.counters.fdatasyncs += 1;
        } else {
            self.counters.fsyncs += 1;
        }
        let failure = FsyncFault::strike(&mut self.fsync_fault);
        self.counters.failed_syncs += u64::from(failure.is_some());
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let Body::File(file) = &mut inode.body else { return Err(Errno::INVAL) };
        match failure {
            None => {
                if let Some(freed) = file.sync(mark) {
                    self.graveyard.bury(&inode.named_as, freed);
                }
            }
            Some(FsyncFailure::DropPending) => file.drop_pending(mark),
            Some(FsyncFailure::KeepPending) => {}
        }
        failure.map_or(Ok(()), |_| Err(Errno::IO))
    }

    /// `fsync` of a directory: its entry operations up to `mark` become durable.
    pub fn sync_directory(&mut self, dir: Ino, mark: u64) -> Result<()> {
        self.counters.directory_syncs += 1;
        self.names.entries(dir).ok_or(Errno::NOTDIR)?;
        if FsyncFault::strike(&mut self.fsync_fault).is_some() {
            self.counters.failed_syncs += 1;
            return Err(Errno::IO);
        }
        self.names.sync(dir, mark);
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
}
