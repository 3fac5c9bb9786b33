//! What opening a store had to do.

use super::loss::{Loss, Names};

/// What opening did, for logs and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The index was made anew from the whole log.
    pub reindexed: bool,
    /// Commit records replayed into the index.
    pub replayed: u64,
    /// Bytes of log that were neither record nor torn tail: damage.
    pub damaged_bytes: u64,
    /// Torn commit records that were voided.
    pub voided: u64,
    /// Acknowledged changes that were lost, which was accepted.
    pub loss: Option<Loss>,
    /// Objects, and parts of unfinished uploads, whose data the making of the index did not find: it is damaged or
    /// gone, and they cannot be read.
    pub unreadable: Names,
}
