//! A file system that loses power: a test instrument.
//!
//! Programs run on a FUSE mount unmodified. The file system maintains two states: the volatile one that programs see,
//! and the durable one that only `fsync` and `fdatasync` advance. [`MountHandle::crash`] drops, tears and reorders
//! unsynced changes by a seed; the resulting tree is one that a disk could hold after a power failure. It is
//! deliberately stricter than ext4: syncing a file does not make its name durable, only syncing its directory does.
//!
//! ```no_run
//! # use std::path::Path;
//! use tradewind_powerloss::{CrashMode, PowerLossFs};
//!
//! let disk = PowerLossFs::mount(Path::new("mnt"), None)?;
//! // Start a server on `disk.path()`, load it, record what it acknowledges.
//! println!("{}", disk.crash(42, CrashMode::Random));
//! // Every sync fails from here on, so whatever is still acknowledged counts as well.
//! // Kill the server and wait for it.
//! disk.revive();
//! // Start the server again: everything acknowledged must be there.
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `model` is pure (no FUSE, no clock, no randomness of its own) and tested separately; `fuse` connects it to the
//! kernel, `mount` is the handle of a test, and `shared` is the state shared by these two.

mod content;
mod file;
mod fuse;
mod mode;
mod model;
mod mount;
mod namespace;
mod rng;
mod shared;
mod stale_contents;
mod tree;

pub use file::FileFates;
pub use mode::CrashMode;
pub use model::{Attributes, Counters, CrashReport, FileReport, FsyncFailure, InodeKind, Model, SyncMark};
pub use mount::{MountHandle, MountOptions, PowerLossFs, mount_unavailable};
pub use namespace::{EntryFates, Ino, ROOT};
pub use rustix::io::Errno;
