//! How far a transfer has come: counters that whoever shows them reads when it likes.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Counters of one transfer.
#[derive(Debug, Default)]
pub struct Progress {
    found_items: AtomicU64,
    found_bytes: AtomicU64,
    is_found: AtomicBool,
    done_items: AtomicU64,
    done_bytes: AtomicI64,
    failed_items: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Items found so far.
    pub found_items: u64,
    /// Bytes in them.
    pub found_bytes: u64,
    /// There are no more.
    pub is_found: bool,
    /// Items that are where they belong.
    pub done_items: u64,
    /// Bytes carried, those of items under way among them.
    pub done_bytes: u64,
    /// Items that failed.
    pub failed_items: u64,
}

impl Progress {
    /// One more item, of so many bytes.
    pub fn found(&self, bytes: u64) {
        self.found_items.fetch_add(1, Ordering::Relaxed);
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// No more will be found.
    pub fn found_all(&self) {
        self.is_found.store(true, Ordering::Relaxed);
    }

    /// Bytes were carried; a negative number takes them back.
    pub fn carried(&self, bytes: i64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An item is where it belongs.
    pub fn done(&self) {
        self.done_items.fetch_add(1, Ordering::Relaxed);
    }

    /// An item failed.
    pub fn failed(&self) {
        self.failed_items.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            found_items: self.found_items.load(Ordering::Relaxed),
            found_bytes: self.found_bytes.load(Ordering::Relaxed),
            is_found: self.is_found.load(Ordering::Relaxed),
            done_items: self.done_items.load(Ordering::Relaxed),
            done_bytes: u64::try_from(self.done_bytes.load(Ordering::Relaxed)).unwrap_or(0),
            failed_items: self.failed_items.load(Ordering::Relaxed),
        }
    }
}
