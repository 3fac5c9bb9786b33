//! What a request learned about the store that served it. Every response carries one. `observed` tells the
//! store model how long it was queued, and measures itself how long the caller waited.

use std::sync::Arc;
use std::time::Duration;

/// One request as seen from this side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Who answered: an address for remote stores, `None` for stores in this process.
    pub peer: Option<Arc<str>>,
    /// Whether the connection had served before; `None` without connections.
    pub reused: Option<bool>,
    /// Time spent waiting inside this process before the store was asked.
    pub queued: Duration,
    /// From asking until the first byte of the answer.
    pub first_byte: Duration,
    /// Bytes that crossed the wire (or the device interface) so far, payload and overhead, both ways.
    pub wire_bytes: u64,
}
