//! Injected failures of syncs and reads.

use std::ops::Range;

use crate::namespace::Ino;

/// The effect of a failed file sync on the pending changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsyncFailure {
    /// The behavior of Linux: writes are lost, programs still see them, and the next sync succeeds. Some of their
    /// sectors may be on disk.
    DropPending,
    /// The changes stay pending, and a later sync may still make them durable.
    KeepPending,
}

/// A scheduled failure.
#[derive(Debug, Clone, Copy)]
pub struct FsyncFault {
    pub successes_left: u64,
    pub failure: FsyncFailure,
}

impl FsyncFault {
    /// Counts one sync: returns `None` if it must succeed, otherwise the failure, which is then disarmed.
    pub fn next_sync(armed: &mut Option<Self>) -> Option<FsyncFailure> {
        let fault = armed.as_mut()?;
        if fault.successes_left > 0 {
            fault.successes_left -= 1;
            return None;
        }
        armed.take().map(|fault| fault.failure)
    }
}

/// Bytes of a file that cannot be read.
#[derive(Debug, Clone)]
pub struct UnreadableRange {
    pub ino: Ino,
    pub bytes: Range<u64>,
}

impl UnreadableRange {
    /// The number of bytes, at most `size`, that can be read from `offset` on; `None` if there is none.
    pub fn readable_bytes(&self, ino: Ino, offset: u64, size: usize) -> Option<usize> {
        if ino != self.ino || offset >= self.bytes.end || self.bytes.is_empty() {
            return Some(size);
        }
        let before = self.bytes.start.checked_sub(offset).filter(|before| *before > 0)?;
        Some(usize::try_from(before).map_or(size, |before| before.min(size)))
    }
}
