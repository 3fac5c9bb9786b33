//! A listing in memory. Pages are rolled up from it here if the service computes common prefixes differently, or not
//! at all.

use std::collections::BTreeMap;

use tradewind_core::error::Result;
use tradewind_core::listing::{KeyCursor, ObjectSummary};

/// A cursor over entries in memory, sorted by key.
pub(crate) struct SortedEntries {
    entries: Vec<(String, ObjectSummary)>,
    index: usize,
}

impl SortedEntries {
    /// Sorts the entries. Of entries with the same key, the last counts.
    pub fn new(entries: impl IntoIterator<Item = (String, ObjectSummary)>) -> Self {
        let sorted: BTreeMap<_, _> = entries.into_iter().collect();
        Self { entries: sorted.into_iter().collect(), index: 0 }
    }
}

impl KeyCursor for SortedEntries {
    type Item = ObjectSummary;

    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        self.index = self.entries.partition_point(|(key, _)| key.as_bytes() < bytes);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ObjectSummary)>> {
        let entry = self.entries.get(self.index).cloned();
        self.index += usize::from(entry.is_some());
        Ok(entry)
    }
}
