//! A cache in RAM and on an SSD in front of any [`ObjectStore`](tradewind_core::ObjectStore): the layer [`Cached`].
//!
//! Reads are served from memory, from the SSD or from the backing store, which fills the cache; writes go through. The
//! answers are those of the backing store: see [`Validation`]. The loss of the cache costs only time.

mod aligned;
mod cached;
mod changes;
mod claims;
mod classes;
mod counters;
mod disk;
mod extent;
mod fields;
mod fill;
mod fingerprint;
mod flights;
mod head;
mod io_threads;
mod options;
mod pins;
mod policy;
mod ram;
mod read_only;
mod reader;
mod retained;
mod stamps;
mod tiers;
mod write_back;

pub use cached::{Cached, CachedPart, OccupiedClass};
pub use counters::{CacheCounters, NamedCount};
pub use disk::{LackOfSpace, MAX_SSD_BYTES, lack_of_space};
pub use options::{
    CachedOptions, DEFAULT_MAX_COMPARISON_WAIT, DEFAULT_VERIFY_BYTES_PER_SECOND, OutageOptions, TierOptions,
    Validation,
};
pub use pins::PinnedPrefix;
pub use policy::Eviction;
pub use read_only::ReadOnly;
pub use write_back::{
    AllowAll, AllowNone, DEFAULT_MAX_DIRTY_OBJECTS, MARKER_KEY, MIN_WRITE_BACK_MEMORY_BYTES, WriteBack,
    WriteBackOptions, WriteBackPause, WriteBackPolicy, WriteBackStatus,
};
