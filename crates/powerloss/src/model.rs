//! The file system without FUSE: inodes, names, faults, and the power cut.
//!
//! Every method performs one system call on the volatile state and returns the errno that a program would see; each
//! submodule has the calls of one kind. The current time is set from outside. After [`Model::crash`] every call
//! returns EIO until [`Model::revive`]; inode numbers are never reused, so that a handle from before a crash can
//! reach nothing afterwards.

mod attributes;
mod contents;
mod counters;
mod faults;
mod inode;
mod lifetime;
mod names;
mod power;
mod report;
mod syncs;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::namespace::{Ino, Namespace, ROOT};
use crate::stale_contents::StaleContents;
use faults::{FsyncFault, UnreadableRange};
use inode::{Inode, InodeBody};

pub use counters::Counters;
pub use faults::FsyncFailure;
pub use inode::{Attributes, InodeKind, Owner};
pub use report::{CrashReport, FileReport};
pub use syncs::SyncMark;

type Result<T> = std::result::Result<T, Errno>;

/// The whole file system in memory.
#[derive(Debug, Clone)]
pub struct Model {
    inodes: HashMap<Ino, Inode>,
    names: Namespace,
    graveyard: StaleContents,
    next_ino: Ino,
    now: SystemTime,
    allocated: u64,
    limit: Option<u64>,
    down: bool,
    /// Number of power cuts.
    epoch: u64,
    fsync_fault: Option<FsyncFault>,
    unreadable: Option<UnreadableRange>,
    counters: Counters,
    unlinks_since_sweep: u64,
}

impl Model {
    /// An empty root directory.
    pub fn new() -> Self {
        let mut model = Self {
            inodes: HashMap::new(),
            names: Namespace::new(),
            graveyard: StaleContents::default(),
            next_ino: ROOT + 1,
            now: UNIX_EPOCH + Duration::from_secs(1),
            allocated: 0,
            limit: None,
            down: false,
            epoch: 0,
            fsync_fault: None,
            unreadable: None,
            counters: Counters::default(),
            unlinks_since_sweep: 0,
        };
        let owner = Owner { mode: 0o755, ..Owner::default() };
        let root = Inode::new(InodeBody::Directory { parent: ROOT }, OsStr::new(""), owner, model.now);
        model.inodes.insert(ROOT, root);
        model
    }

    /// Sets the time recorded by later changes.
    pub fn set_time(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// The request counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Resets the counters.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    fn get(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
