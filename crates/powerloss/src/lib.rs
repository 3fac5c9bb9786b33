//! A file system that loses power: a test instrument.
//!
//! Programs run on a FUSE mount unmodified. The file system keeps two states of everything: the
//! volatile one that programs see, and the durable one that only `fsync` and `fdatasync` advance.
//! [`Handle::crash`] drops, tears and reorders what was not synced, by a seed; the tree that results
//! is what a disk could hold after the power was cut. It is deliberately stricter than ext4: syncing
//! a file does not make its name durable, only syncing its directory does.
//!
//! ```no_run
//! # use std::path::Path;
//! use tradewind_powerloss::{Mode, PowerLossFs};
//!
//! let disk = PowerLossFs::mount(Path::new("mnt"), None)?;
//! // Start a server on `disk.path()`, load it, note what it acknowledges.
//! println!("{}", disk.crash(42, Mode::Random));
//! // Every sync fails from here on, so whatever is still acknowledged counts as well.
//! // Kill the server and wait for it.
//! disk.revive();
//! // Start the server again: all that was acknowledged must be there.
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `model` is pure (no FUSE, no clock, no randomness of its own) and tested by itself; `fuse` is the
//! glue and `mount` the handle that a test holds.

mod content;
mod file;
mod fuse;
mod model;
mod mount;
mod namespace;
mod rng;
mod tree;

pub use file::FileFates;
pub use model::{Attributes, CrashReport, FileReport, FsyncFailure, Kind, Model};
pub use mount::{Handle, Options, PowerLossFs, unavailable};
pub use namespace::{EntryFates, Ino, ROOT};
pub use rustix::io::Errno;

/// What a power cut does with the work that no sync made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All of it is lost.
    DropAll,
    /// All of it is on disk, as if the machine had synced everything at the last moment.
    KeepAll,
    /// A seeded part of it is on disk: writes dropped, torn, reordered; entries in part.
    Random,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "drop-all" => Ok(Self::DropAll),
            "keep-all" => Ok(Self::KeepAll),
            "random" => Ok(Self::Random),
            _ => Err(format!("unknown mode {text:?}: drop-all, keep-all or random")),
        }
    }
}

/// What was asked of the file system since it was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// `fsync` calls on files, failed ones included.
    pub fsyncs: u64,
    /// `fdatasync` calls on files, failed ones included.
    pub fdatasyncs: u64,
    /// Syncs of directories.
    pub directory_syncs: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Syncs that were made to fail.
    pub failed_syncs: u64,
    /// Requests refused for want of space.
    pub out_of_space: u64,
}
