//! What is asked of a store, and how that ends.

use std::time::Duration;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// An object's bytes, or some of them.
    Get,
    /// An object, written whole.
    Put,
    /// A part of an upload.
    Part,
    /// What is known of an object.
    Head,
    /// A page of objects, parts, uploads, or all buckets.
    List,
    /// An object goes.
    Delete,
    /// An object or a part made of bytes that the store holds.
    Copy,
    /// Tags are set.
    Tag,
    /// An upload begins, is completed or given up.
    Upload,
    /// A bucket is made, removed or looked for.
    Bucket,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the store.
    Read,
    /// To the store.
    Write,
}

impl Operation {
    /// Every one.
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

    /// Its name.
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

    /// Which way its bytes go; `None` where none go.
    #[must_use]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Get => Some(Direction::Read),
            Self::Put | Self::Part => Some(Direction::Write),
            _ => None,
        }
    }

    /// Whether how long it takes depends on a number of bytes. Of others all sizes are 0.
    #[must_use]
    pub const fn has_size(self) -> bool {
        self.direction().is_some() || matches!(self, Self::Copy)
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// How a request failed: by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The store is well and had no room for it now.
    Busy,
    /// The store could not be reached, or cannot be used now.
    Unavailable,
    /// Its deadline passed.
    Late,
    /// Bytes were not what was written.
    Corrupt,
    /// A defect.
    Internal,
}

impl Failure {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Busy, Self::Unavailable, Self::Late, Self::Corrupt, Self::Internal];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Late => "late",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// How a request ended. Only what was done says how long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was done.
    Done {
        /// Bytes that it carried.
        bytes: u64,
        /// How long the caller waited for it in all.
        service: Duration,
    },
    /// The store is well and said no, as it has to: not there, not allowed, a condition that did not hold.
    Refused,
    /// It failed.
    Failed(Failure),
    /// The caller let go of it: that is no failure, but whoever lost a race leaves no other trace.
    GivenUp {
        /// How long the caller had waited.
        waited: Duration,
    },
}

/// How requests ended, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Were done.
    pub done: u64,
    /// Were refused.
    pub refused: u64,
    /// Failed, in the order of [`Failure::ALL`].
    pub failed: [u64; Failure::ALL.len()],
    /// Were given up.
    pub given_up: u64,
    /// How long those that were given up had been waited for, together.
    pub given_up_after: Duration,
    /// How long requests waited inside this process before the store was asked, together, where the store tells.
    pub queued: Duration,
}

impl Outcomes {
    /// Failed, for any reason.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// All that ended, in whichever way.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.ended() + self.given_up
    }

    /// Failed for this reason, of those that came to an end.
    #[must_use]
    pub fn share(&self, failure: Failure) -> Option<f64> {
        share(self.failed[failure as usize], self.ended())
    }

    /// Failed for any reason, of those that came to an end. What fails is often fast: a store's times say nothing good of it
    /// where this is high.
    #[must_use]
    pub fn failed_share(&self) -> Option<f64> {
        share(self.failures(), self.ended())
    }

    fn ended(&self) -> u64 {
        self.done + self.refused + self.failures()
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share; beyond 2^53 requests it is as good")]
fn share(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}
