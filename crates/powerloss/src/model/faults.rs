//! A sync that is made to fail.

/// What becomes of the pending changes when a sync of a file fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsyncFailure {
    /// Linux's way: writes are lost, programs go on seeing them, and the next sync succeeds. The disk
    /// may have taken some of their sectors.
    DropPending,
    /// They stay pending, and a later sync may still make them durable.
    KeepPending,
}

/// A failure that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub struct FsyncFault {
    pub successes_left: u64,
    pub failure: FsyncFailure,
}

impl FsyncFault {
    /// Counts one sync: none where it shall succeed, or else how it fails, and the fault is spent.
    pub fn strike(armed: &mut Option<Self>) -> Option<FsyncFailure> {
        let fault = armed.as_mut()?;
        if fault.successes_left > 0 {
            fault.successes_left -= 1;
            return None;
        }
        armed.take().map(|fault| fault.failure)
    }
}
