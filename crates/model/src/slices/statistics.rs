//! Counts of a [`DiskScheduler`](super::DiskScheduler) for operators: waits, turns and bytes by kind of request and by
//! class.

use std::collections::BTreeMap;
use std::time::Duration;

/// The kind of a request for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// A read of a small object, of metadata or of a listing.
    Small,
    /// The first slice of a stream.
    StreamHead,
    /// A further slice of a stream.
    Stream,
    /// A change that is durable after a sync.
    Change,
}

impl RequestKind {
    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::StreamHead => "first_slice",
            Self::Stream => "stream",
            Self::Change => "change",
        }
    }
}

/// Requests that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestGroup {
    /// The kind of the requests.
    pub kind: RequestKind,
    /// The class with a share of the disk; `None` for all other classes, and for requests whose class is not known.
    pub class: Option<u8>,
}

/// Counts of a group since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupStatistics {
    /// Requests that got a turn.
    pub turns: u64,
    /// Sum of the times that they waited for it.
    pub waited: Duration,
    /// The longest of these times.
    pub max_wait: Duration,
    /// Requests that left the queue without a turn.
    pub abandoned: u64,
    /// Bytes that were read in turns.
    pub read_bytes: u64,
    /// Bytes that slices of writes were for.
    pub written_bytes: u64,
}

/// Counts since the start. At most four groups for each class with a share, and for all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStatistics {
    /// Counts of groups with requests.
    pub groups: BTreeMap<RequestGroup, GroupStatistics>,
    /// Requests that were rejected because the queue was full.
    pub rejected: u64,
}

/// Requests of a group that wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingRequests {
    /// Their number.
    pub count: usize,
    /// The longest time that one of them has waited.
    pub max_wait: Duration,
}

impl WaitingRequests {
    pub(super) fn add(&mut self, wait: Duration) {
        self.count += 1;
        self.max_wait = self.max_wait.max(wait);
    }
}

impl DiskStatistics {
    pub(super) const fn new() -> Self {
        Self { groups: BTreeMap::new(), rejected: 0 }
    }

    fn group(&mut self, group: RequestGroup) -> &mut GroupStatistics {
        self.groups.entry(group).or_default()
    }

    pub(super) fn record_wait(&mut self, group: RequestGroup, wait: Duration) {
        let counts = self.group(group);
        counts.turns += 1;
        counts.waited += wait;
        counts.max_wait = counts.max_wait.max(wait);
    }

    pub(super) fn record_abandoned(&mut self, group: RequestGroup) {
        self.group(group).abandoned += 1;
    }

    pub(super) fn record_read(&mut self, group: RequestGroup, bytes: u64) {
        self.group(group).read_bytes += bytes;
    }

    pub(super) fn record_written(&mut self, group: RequestGroup, bytes: u64) {
        self.group(group).written_bytes += bytes;
    }
}
