//! Progress counters of a transfer, updated by its tasks and read concurrently by the display.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Counters of one transfer.
#[derive(Debug, Default)]
pub struct Progress {
    found_items: AtomicU64,
    found_bytes: AtomicU64,
    is_listing_complete: AtomicBool,
    done_items: AtomicU64,
    done_bytes: AtomicI64,
    failed_items: AtomicU64,
}

/// The values of the counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgressSnapshot {
    /// Items found so far.
    pub found_items: u64,
    /// Their size in bytes.
    pub found_bytes: u64,
    /// True if the listing is complete.
    pub is_listing_complete: bool,
    /// Items finished.
    pub done_items: u64,
    /// Bytes transferred, including those of items in flight.
    pub done_bytes: u64,
    /// Items that failed.
    pub failed_items: u64,
}

impl Progress {
    /// Counts one more item and its size.
    pub fn add_found(&self, bytes: u64) {
        self.found_items.fetch_add(1, Ordering::Relaxed);
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Marks the listing as complete.
    pub fn complete_listing(&self) {
        self.is_listing_complete.store(true, Ordering::Relaxed);
    }

    /// Counts bytes transferred; a negative number rolls back those of a failed attempt.
    pub fn add_bytes(&self, bytes: i64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a finished item.
    pub fn add_done(&self) {
        self.done_items.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed item.
    pub fn add_failed(&self) {
        self.failed_items.fetch_add(1, Ordering::Relaxed);
    }

    /// The current values.
    #[must_use]
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            found_items: self.found_items.load(Ordering::Relaxed),
            found_bytes: self.found_bytes.load(Ordering::Relaxed),
            is_listing_complete: self.is_listing_complete.load(Ordering::Relaxed),
            done_items: self.done_items.load(Ordering::Relaxed),
            done_bytes: u64::try_from(self.done_bytes.load(Ordering::Relaxed)).unwrap_or(0),
            failed_items: self.failed_items.load(Ordering::Relaxed),
        }
    }
}
