//! What opening a store had to do.

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
}
