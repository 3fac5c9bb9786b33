//! Timing of a request and the peer that served it; part of every response. The `instrumented` layer reports the queueing
//! time to the store model, and measures the caller's waiting time itself.

use std::sync::Arc;
use std::time::Duration;

/// One request as observed by this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// The address of the peer for remote stores, `None` for stores in this process.
    pub peer: Option<Arc<str>>,
    /// True if the connection had been used before; `None` for stores without connections.
    pub reused: Option<bool>,
    /// Time spent queueing in this process before the request was sent.
    pub queued: Duration,
    /// Time from sending the request to the first byte of the response.
    pub first_byte: Duration,
    /// Bytes that crossed the wire (or the device interface) so far, payload and overhead, in both directions.
    pub wire_bytes: u64,
}
