//! Timing of a request and the peer that served it, as reported by a store with each response. The `instrumented` layer
//! passes the queueing time on to the store's live statistics. It measures all other times itself.

use std::sync::Arc;
use std::time::Duration;

/// One request as measured by the store that served it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// The endpoint of a remote store; `None` for stores in this process.
    pub peer: Option<Arc<str>>,
    /// True if the connection had been used before; `None` for stores without connections.
    pub reused: Option<bool>,
    /// Time spent queueing in this process before the request was sent.
    pub queued: Duration,
    /// For a remote store: time from the start of sending the request to the head of its response, including the upload
    /// of the request's body. For the local store: time until a read has its object's record (with the bytes of an
    /// inline object), or the duration of a commit.
    pub first_byte: Duration,
    /// For a remote store: the length of the request's body. For the local store: the selected bytes of a read or the
    /// size of a staged write. Headers, protocol overhead and a remote store's response bodies are not counted.
    pub body_bytes: u64,
}
