//! Counts of chunks and collections since the start, for operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tradewind_core::error::Result;

use super::{CollectionReport, DamagedObject, Deduplicated};

/// Counts of chunks since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeduplicationCounts {
    /// Chunks that were stored.
    pub stored_chunks: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Chunks of writes that were there already.
    pub found_chunks: u64,
    /// Their bytes.
    pub found_bytes: u64,
    /// Chunks that collections deleted.
    pub deleted_chunks: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
}

/// The collections since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectionHistory {
    /// Collections that ran to their end.
    pub completed: u64,
    /// Collections that ended with an error.
    pub failed: u64,
    /// The last one that ran to its end.
    pub last: Option<LastCollection>,
    /// The failure after it, if the newest collection failed.
    pub failure: Option<CollectionFailure>,
}

/// A collection that ended with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionFailure {
    /// The time of its end, by the clock of its context.
    pub ended_at: Duration,
    /// The message of the error, for operators.
    pub message: String,
}

/// A collection that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCollection {
    /// The time of its end, by the clock of its context.
    pub ended_at: Duration,
    /// Its duration.
    pub took: Duration,
    /// Its result.
    pub report: CollectionReport,
}

impl Deduplicated {
    /// The collections since the start.
    #[must_use]
    pub fn collections(&self) -> CollectionHistory {
        self.collections.lock().clone()
    }

    /// Objects, parts and uploads that the last collection could not read: at most 1,000. If the collection failed, it
    /// deleted no chunk because of them.
    #[must_use]
    pub fn damaged_objects(&self) -> Vec<DamagedObject> {
        self.store.damaged.lock().clone()
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> DeduplicationCounts {
        let counters = &self.store.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeduplicationCounts {
            stored_chunks: load(&counters.stored_chunks),
            stored_bytes: load(&counters.stored_bytes),
            found_chunks: load(&counters.found_chunks),
            found_bytes: load(&counters.found_bytes),
            deleted_chunks: load(&counters.deleted_chunks),
            deleted_bytes: load(&counters.deleted_bytes),
        }
    }

    /// Counts a collection. The times are those of the clock of its context.
    pub(super) fn record_collection(
        &self,
        collected: &Result<Option<CollectionReport>>,
        started_at: Duration,
        ended_at: Duration,
    ) {
        let mut collections = self.collections.lock();
        match collected {
            Ok(Some(report)) => {
                collections.completed += 1;
                let took = ended_at.saturating_sub(started_at);
                collections.last = Some(LastCollection { ended_at, took, report: *report });
                collections.failure = None;
            }
            Ok(None) => {}
            Err(error) => {
                collections.failed += 1;
                collections.failure =
                    Some(CollectionFailure { ended_at, message: error.message().to_owned() });
            }
        }
    }
}
