//! The messages between balancer and agent.

use serde::{Deserialize, Serialize};

use crate::counters::ReadCounters;
use crate::device::DeviceCounters;
use crate::host::HostCounters;

/// Version of the messages. Others are rejected.
pub(super) const VERSION: u32 = 1;
/// Maximum size of a request.
pub(super) const MAX_REQUEST_BYTES: usize = 256 << 10;
/// Maximum size of a response.
pub(super) const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Maximum number of OSDs in a request.
pub(super) const MAX_OSDS: usize = 1024;

/// The counters that a balancer wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub version: u32,
    pub osds: Vec<OsdQuery>,
}

/// An OSD to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdQuery {
    /// Its id.
    pub osd: u32,
    /// Its data device, if known.
    pub device: Option<String>,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Response {
    /// The counters, in the order of the request.
    Counters { host: HostCounters, osds: Vec<OsdResponse> },
    /// Why there are none.
    Failed(String),
}

/// The counters of an OSD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OsdResponse {
    /// Its reads, or why they are not known.
    pub reads: Result<ReadCounters, String>,
    pub device: Option<DeviceCounters>,
    /// Time between the reading of the counters and the response: other OSDs may have been slow to respond.
    pub age_micros: u64,
}
