//! The result of opening a store.

use super::loss::{Loss, NameList};

/// Actions taken while opening, for logs and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The index was rebuilt from the whole log.
    pub reindexed: bool,
    /// Log records replayed into the index.
    pub replayed_records: u64,
    /// Damaged bytes of the log: neither a record nor a torn tail.
    pub damaged_bytes: u64,
    /// Voids to be written: for torn records and the torn bytes between them.
    pub voided_records: u64,
    /// Acknowledged changes that were lost, with the loss accepted.
    pub loss: Option<Loss>,
    /// Objects, and parts of unfinished uploads, whose data the rebuild did not find: it is damaged or missing, and
    /// they cannot be read.
    pub unreadable: NameList,
}
