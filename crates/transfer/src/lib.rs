//! Transfers of trees of files and objects. Listing and copying overlap, items are copied concurrently and verified,
//! and failures are collected into one outcome.

pub mod bundle;
mod checkpoint;
pub mod copy;
pub mod endpoint;
pub mod feed;
pub mod files;
pub mod filter;
pub mod grep;
pub mod journal;
pub mod merge;
pub mod names;
pub mod objects;
pub mod preserve;
pub mod progress;
pub mod watch;
pub mod workers;
pub mod writer;

pub use copy::Copier;
pub use endpoint::Endpoint;
pub use feed::Feed;
pub use progress::Progress;
pub use workers::Outcome;

use tradewind_core::Timestamp;

/// A file or an object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its key relative to the listed location: components separated by `/`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write.
    pub modified: Timestamp,
}

/// The items of a listing, in order.
pub type ItemFeed = Feed<Item>;

/// An item of a listing, or the reason why a part of it cannot be listed.
pub type ListedItem = Result<Item, NamedError>;

/// The name or location that failed, and the error.
pub type NamedError = (String, tradewind_core::Error);
