//! Results about mounted file systems, as they are kept: lines beside those about objects.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tradewind_core::quantity::ByteSize;

pub use super::amplification::Fit;
pub use super::form::Form;
pub use super::mount::Mount;
pub use super::policy::Policy;
pub use super::postmark::result::Postmark;
pub use crate::caches::Caches;
use crate::figures::{Latency, Rate};

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Measured {
    /// The first: under which conditions.
    Conditions(Box<Conditions>),
    /// The policy of a form of access.
    Policy(Box<Policy>),
    /// Files that were written or read.
    Access(Box<Access>),
    /// Transactions.
    Postmark(Box<Postmark>),
    /// A curve through the amplification ratios.
    Amplification(Amplification),
}

impl Measured {
    /// Calls that failed, or answered wrongly.
    #[must_use]
    pub fn failed(&self) -> u64 {
        match self {
            Self::Access(access) => access.failures.values().sum(),
            Self::Postmark(postmark) => postmark.failures.values().sum(),
            Self::Policy(policy) => u64::from(policy.failed.is_some()),
            Self::Conditions(_) | Self::Amplification(_) => 0,
        }
    }

    /// Whether nothing of it succeeded, though nobody ended it.
    #[must_use]
    pub fn has_nothing(&self) -> bool {
        match self {
            Self::Access(access) => !access.partial && access.files == 0,
            Self::Postmark(postmark) => !postmark.partial && postmark.steps() == 0,
            Self::Conditions(_) | Self::Policy(_) | Self::Amplification(_) => false,
        }
    }
}

/// Under which conditions it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// What the directory lies on.
    pub mount: Mount,
    /// What the time of a file that is written consists of.
    pub counted: String,
    /// How caches were dropped before reading.
    pub caches: Caches,
    /// Why not better, where they were not dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches_why: Option<String>,
    /// Forms of access that were to be measured and cannot be, and why.
    pub skipped: Vec<(Form, String)>,
    /// The interface whose bytes were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Bytes a second that it sent and received before anything was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<(f64, f64)>,
}

/// What a measurement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// One file in pieces of several sizes, the link idle otherwise.
    Unit,
    /// One whole file, the link idle otherwise.
    Single,
    /// Many whole files, of one or several threads.
    Batch,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unit => "unit",
            Self::Single => "single",
            Self::Batch => "batch",
        })
    }
}

/// Whether files are written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// New files.
    Write,
    /// Files that were written before, each byte compared with what was.
    Read,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// Files that were written or read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// What it belongs to.
    pub scope: Scope,
    /// What was done.
    pub phase: Phase,
    /// How files were opened.
    pub form: Form,
    /// Bytes of a file.
    pub size: u64,
    /// Bytes of a call, at the most.
    pub unit: u64,
    /// Threads, each with files of its own.
    pub threads: usize,
    /// Which of several of the same, from 1 on.
    pub repeat: u32,
    /// In milliseconds since 1970 UTC.
    pub began: i64,
    /// Files that were accessed without a failure.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it counted: of one file the time of its calls, of a batch until the first thread was done, or the last where
    /// they had few files each.
    pub seconds: f64,
    /// Within that.
    pub bytes_per_second: Rate,
    /// Within that.
    pub files_per_second: Rate,
    /// How long it took afterwards until the file system said that all was durable: what was written behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
    /// How long calls took.
    pub latency: Latencies,
    /// What the wire carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Some of those in full.
    pub samples: Vec<String>,
    /// Processor time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// The same by name of the threads.
    pub cpu_threads: BTreeMap<String, f64>,
    /// How much of the machine was busy, by whomever: 0 to 1.
    pub machine_busy: f64,
    /// The part of the threads' time that went into making and comparing contents: 0 to 1.
    pub own_share: f64,
    /// It was stopped before its end.
    pub partial: bool,
    /// What is to be known of the figures.
    pub notes: Vec<String>,
}

impl Access {
    /// What tells measurements apart.
    #[must_use]
    pub fn name(&self) -> String {
        let (scope, phase, form, size) = (self.scope, self.phase, self.form, ByteSize(self.size));
        match scope {
            Scope::Unit => format!("{phase} {form} by {}", ByteSize(self.unit)),
            Scope::Single => format!("{phase} {form} {size} alone"),
            Scope::Batch => format!("{phase} {form} {size} x {}", self.threads),
        }
    }

    /// Bytes on the wire, both ways, for each byte of the files: of one file all that it brought about, of a batch the sum of
    /// the rates over the throughput.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        let wire = self.wire.as_ref()?;
        let carried = if self.scope == Scope::Batch { wire.total } else { wire.settled };
        (self.bytes > 0).then(|| carried as f64 / self.bytes as f64)
    }
}

/// How long calls took, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Opening a file, which makes it where it is written.
    pub open: Latency,
    /// From the beginning of opening to the end of the first access.
    pub first: Latency,
    /// An access.
    pub access: Latency,
    /// Making a file durable, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync: Option<Latency>,
    /// Closing.
    pub close: Latency,
    /// All calls of a file together.
    pub file: Latency,
}

/// What the wire carried, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// While files were accessed.
    pub sent: u64,
    /// While files were accessed.
    pub received: u64,
    /// Both ways; of the loopback interface each byte once.
    pub total: u64,
    /// The same up to when all was durable and the wire was quiet.
    pub settled: u64,
}

/// A curve through the amplification ratios of several sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amplification {
    /// What the ratios are of: single files, or batches.
    pub scope: Scope,
    /// What was done.
    pub phase: Phase,
    /// How files were opened.
    pub form: Form,
    /// The form of the curve, in words.
    pub curve: String,
    /// Its constants.
    pub fit: Fit,
    /// How many ratios it was fitted to.
    pub points: usize,
}
