//! Moving trees of files and objects: found while they are carried, many at a time, verified, and told of at the end.

pub mod bundle;
pub mod copy;
pub mod ends;
pub mod feed;
pub mod files;
pub mod filter;
pub mod grep;
pub mod journal;
mod memory;
pub mod merge;
pub mod moves;
pub mod names;
pub mod objects;
pub mod preserve;
pub mod progress;
pub mod watch;
pub mod writer;

pub use copy::Copier;
pub use ends::End;
pub use feed::Feed;
pub use moves::Outcome;
pub use progress::Progress;

use tradewind_core::Timestamp;

/// A file or an object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name below the place that was looked into, as a key: parts divided by `/`.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// When it was written last.
    pub modified: Timestamp,
}

/// What is found in a place.
pub type Found = Feed<Item>;

/// What can be said of a name that was found: an item, or why it is none.
pub type FoundItem = Result<Item, FoundFailure>;

/// The place that a failure is about, and the failure.
pub type FoundFailure = (String, tradewind_core::Error);
