//! Transfers of trees of files and objects. Listing and copying overlap, items are copied concurrently and verified,
//! and failures are collected into one outcome.

pub mod bundle;
mod byte_order;
mod checkpoint;
pub mod class_rules;
pub mod copy;
pub mod endpoint;
pub mod feed;
pub mod files;
pub mod filter;
pub mod freshness;
pub mod grep;
pub mod journal;
pub mod merge;
pub mod names;
pub mod objects;
pub mod preserve;
pub mod progress;
mod recheck;
mod unlisted;
mod versions;
pub mod watch;
pub mod workers;
pub mod writer;

pub use copy::Copier;
pub use endpoint::Endpoint;
pub use feed::Feed;
pub use progress::Progress;
pub use unlisted::{Extent, Unlisted};
pub use versions::{VersionFeed, VersionItem};
pub use workers::Outcome;

use tradewind_core::{Timestamp, VersionId};

use preserve::{FileTime, FileTimes};

/// A file or an object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its key relative to the listed location: components separated by `/`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write.
    pub modified: Timestamp,
    /// Time of the last change of a listed file's data or attributes (ctime), by this machine's clock. `None` for an object.
    pub changed: Option<Timestamp>,
    /// The parts of both times of a file below a millisecond.
    pub nanos: FileNanos,
    /// The version of the object; `None` for the current one, and for a file.
    pub version: Option<VersionId>,
}

/// The nanoseconds of a file's times after their milliseconds; zero for an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileNanos {
    /// Of the modification time.
    pub modified: u32,
    /// Of the ctime.
    pub changed: u32,
}

impl Item {
    /// This item with the times of a file.
    pub(crate) fn with_times(self, times: FileTimes) -> Self {
        let FileTimes { modified, changed } = times;
        let nanos = FileNanos { modified: modified.nanos_of_milli(), changed: changed.nanos_of_milli() };
        Self { modified: modified.to_timestamp(), changed: Some(changed.to_timestamp()), nanos, ..self }
    }

    /// The time of the last write, with its nanoseconds.
    pub(crate) fn modified_time(&self) -> FileTime {
        FileTime::from(self.modified).plus_nanos(self.nanos.modified)
    }

    /// The ctime, with its nanoseconds; `None` for an object.
    pub(crate) fn changed_time(&self) -> Option<FileTime> {
        Some(FileTime::from(self.changed?).plus_nanos(self.nanos.changed))
    }
}

/// The items of a listing, in order.
pub type ItemFeed = Feed<Item, Unlisted>;

/// An item of a listing, or a part of the tree that cannot be listed.
pub type ListedItem = Result<Item, Unlisted>;

/// The name or location that failed, and the error.
pub type NamedError = (String, tradewind_core::Error);
