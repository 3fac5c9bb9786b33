//! Faults that can be switched on: a sync that fails, and a disk that is full.

use rustix::io::Errno;

use super::{Model, Result};

/// What becomes of the pending changes when a sync of a file fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsyncFailure {
    /// Linux's way: they are lost, programs go on seeing them, and the next sync succeeds.
    DropPending,
    /// They stay pending, and a later sync may still make them durable.
    KeepPending,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FsyncFault {
    successes_left: u64,
    failure: FsyncFailure,
}

impl Model {
    /// Lets `successes` more syncs (of files and directories) succeed and the one after fail, once.
    /// Entry operations stay pending in either case.
    pub fn fail_fsync_after(&mut self, successes: u64, failure: FsyncFailure) {
        self.fsync_fault = Some(FsyncFault { successes_left: successes, failure });
    }

    /// Caps the allocated bytes of all files; writes beyond it answer ENOSPC.
    pub fn limit_bytes(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Allocated bytes of all files that programs can see, and the cap.
    pub fn space(&self) -> (u64, Option<u64>) {
        (self.allocated, self.limit)
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes > 0 && self.limit.is_some_and(|limit| self.allocated + bytes > limit) {
            self.counters.out_of_space += 1;
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    pub(super) fn take_fsync_fault(&mut self) -> Option<FsyncFailure> {
        let fault = self.fsync_fault.as_mut()?;
        if fault.successes_left > 0 {
            fault.successes_left -= 1;
            return None;
        }
        self.fsync_fault.take().map(|fault| fault.failure)
    }
}
