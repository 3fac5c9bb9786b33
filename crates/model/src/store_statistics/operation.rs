//! Operations of a store, and the outcomes of requests.

use std::time::Duration;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Reads an object or a range of it.
    Get,
    /// Writes a whole object.
    Put,
    /// Writes a part of an upload.
    Part,
    /// Reads the metadata of an object.
    Head,
    /// Lists a page of objects, parts, uploads or buckets.
    List,
    /// Deletes an object.
    Delete,
    /// Creates an object or a part from bytes that the store holds.
    Copy,
    /// Sets tags.
    Tag,
    /// Creates, completes or aborts an upload.
    Upload,
    /// Creates, deletes or looks up a bucket.
    Bucket,
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the store.
    Read,
    /// To the store.
    Write,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::Put,
        Self::Part,
        Self::Head,
        Self::List,
        Self::Delete,
        Self::Copy,
        Self::Tag,
        Self::Upload,
        Self::Bucket,
    ];

    /// The name of the operation, as in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Part => "part",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Copy => "copy",
            Self::Tag => "tag",
            Self::Upload => "upload",
            Self::Bucket => "bucket",
        }
    }

    /// The direction of its bytes; `None` if it carries none.
    #[must_use]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Get => Some(Direction::Read),
            Self::Put | Self::Part => Some(Direction::Write),
            _ => None,
        }
    }

    /// Returns true if its latency depends on a number of bytes. All other operations count as 0 bytes.
    #[must_use]
    pub const fn has_size(self) -> bool {
        self.direction().is_some() || matches!(self, Self::Copy)
    }
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// The name of the direction.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The cause of a failed request, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The store works but had no capacity.
    Busy,
    /// The store could not be reached or cannot be used now.
    Unavailable,
    /// The deadline passed.
    TimedOut,
    /// Bytes differ from what was written.
    Corrupt,
    /// A defect.
    Internal,
}

impl Failure {
    /// All causes.
    pub const ALL: [Self; 5] = [Self::Busy, Self::Unavailable, Self::TimedOut, Self::Corrupt, Self::Internal];

    /// The name of the cause, as in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timeout",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// The outcome of a request. Only successful requests count towards latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Success.
    Done {
        /// Bytes transferred.
        bytes: u64,
        /// Response time: total time that the caller waited, including any queueing.
        response_time: Duration,
    },
    /// The store works and rejected the request correctly: not found, access denied, or a failed precondition.
    Rejected,
    /// Failure.
    Failed(Failure),
    /// The caller cancelled it. That is no failure, but the only trace of a request that lost a race.
    Cancelled {
        /// Time that the caller had waited.
        waited: Duration,
    },
}

/// Number of requests by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Successful requests.
    pub done: u64,
    /// Rejected requests.
    pub rejected: u64,
    /// Failed requests, in the order of [`Failure::ALL`].
    pub failed: [u64; Failure::ALL.len()],
    /// Cancelled requests.
    pub cancelled: u64,
    /// Total time that callers had waited for requests that they cancelled.
    pub cancelled_after: Duration,
    /// Total time that requests waited inside this process before they were sent, as far as the store reports it.
    pub queue_time: Duration,
}

impl OutcomeCounts {
    /// Failed requests, for any cause.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// All requests that ended, including cancelled ones.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ended() + self.cancelled
    }

    /// Fraction of the requests that ended, without cancelled ones, that failed for this cause.
    #[must_use]
    pub fn failure_ratio(&self, failure: Failure) -> Option<f64> {
        ratio(self.failed[failure as usize], self.ended())
    }

    /// Fraction of the requests that ended, without cancelled ones, that failed. Failures are often fast, so low
    /// latency means little if this is high.
    #[must_use]
    pub fn total_failure_ratio(&self) -> Option<f64> {
        ratio(self.failures(), self.ended())
    }

    fn ended(&self) -> u64 {
        self.done + self.rejected + self.failures()
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share; beyond 2^53 requests it is as good")]
fn ratio(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}
