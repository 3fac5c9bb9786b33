//! Results about mounted file systems, as stored in a result file next to the lines about objects.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tradewind_core::quantity::ByteSize;

pub use super::access_form::AccessForm;
pub use super::amplification::AmplificationFit;
pub use super::cache_policy::{CachePolicy, PolicyFinding};
pub use super::mount::Mount;
pub use super::postmark::result::Postmark;
pub use crate::caches::CacheTreatment;
use crate::figures::{LatencySummary, Rate};

/// A line of a result file about a mounted file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum PosixRecord {
    /// The conditions of the run. The first line.
    Conditions(Box<PosixConditions>),
    /// The caching policy of an access form.
    Policy(Box<CachePolicy>),
    /// Writing or reading files.
    Access(Box<AccessResult>),
    /// A Postmark run.
    Postmark(Box<Postmark>),
    /// A curve fitted to the amplification ratios.
    Amplification(AmplificationCurve),
}

impl PosixRecord {
    /// The number of failed calls, including those that returned wrong data.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        match self {
            Self::Access(access) => access.failures.values().sum(),
            Self::Postmark(postmark) => postmark.failures.values().sum(),
            Self::Policy(policy) => u64::from(policy.failed.is_some()),
            Self::Conditions(_) | Self::Amplification(_) => 0,
        }
    }

    /// Returns true if nothing succeeded although the measurement was not stopped.
    #[must_use]
    pub fn has_no_success(&self) -> bool {
        match self {
            Self::Access(access) => !access.partial && access.files == 0,
            Self::Postmark(postmark) => !postmark.partial && postmark.successful_steps() == 0,
            Self::Conditions(_) | Self::Policy(_) | Self::Amplification(_) => false,
        }
    }
}

/// The conditions under which a run was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PosixConditions {
    /// The file system of the directory.
    pub mount: Mount,
    /// The calls that the time of a written file includes.
    pub timed_calls: String,
    /// Treatment of caches before reading.
    pub caches: CacheTreatment,
    /// The reason if caches were not dropped by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches_reason: Option<String>,
    /// Access forms that were requested but not measured, or only in part, with the reasons.
    pub skipped: Vec<SkippedForm>,
    /// The network interface whose bytes were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Idle traffic before the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_bytes_per_second: Option<IdleTraffic>,
}

/// An access form that was not measured, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedForm {
    /// The access form.
    pub form: AccessForm,
    /// The reason.
    pub reason: String,
}

/// Traffic of an interface before the first measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IdleTraffic {
    /// Bytes sent per second.
    pub sent: f64,
    /// Bytes received per second.
    pub received: f64,
}

/// The part of the benchmark that a measurement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessScope {
    /// One file in units of several sizes, on an otherwise idle link.
    Unit,
    /// One whole file, on an otherwise idle link.
    Single,
    /// Many whole files, from one thread or several.
    Batch,
}

impl fmt::Display for AccessScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unit => "unit",
            Self::Single => "single",
            Self::Batch => "batch",
        })
    }
}

/// The direction of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// New files are written.
    Write,
    /// Previously written files are read and every byte is compared.
    Read,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// The result of writing or reading files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccessResult {
    /// The part of the benchmark.
    pub scope: AccessScope,
    /// Writing or reading.
    pub phase: Direction,
    /// The access form.
    pub form: AccessForm,
    /// Bytes per file.
    pub size: u64,
    /// Maximum bytes per call.
    pub call_bytes: u64,
    /// Threads, each with files of its own.
    pub threads: usize,
    /// The round, from 1.
    pub round: u32,
    /// Start, in milliseconds since 1970 UTC.
    pub started_ms: i64,
    /// Files accessed successfully.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// The time that the rates cover. For one file, the sum of its calls; for a batch, until the first thread had
    /// finished, or until the last one if the threads have few files each.
    pub seconds: f64,
    /// Throughput within that time.
    pub bytes_per_second: Rate,
    /// Files per second within that time.
    pub files_per_second: Rate,
    /// Time after the last call until the file system reported all data durable: the write-back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
    /// Latencies of the calls.
    pub latency: CallLatencies,
    /// Bytes on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireBytes>,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Some of the failures in full.
    pub failure_samples: Vec<String>,
    /// CPU time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// CPU time by thread name, in seconds.
    pub cpu_threads: BTreeMap<String, f64>,
    /// CPU utilization of the machine by all processes, 0 to 1.
    pub machine_cpu_utilization: f64,
    /// Share of the threads' time spent on generating and comparing contents, 0 to 1.
    pub generator_share: f64,
    /// The measurement was stopped early.
    pub partial: bool,
    /// Caveats about the figures.
    pub notes: Vec<String>,
}

impl AccessResult {
    /// The identifying name of the measurement.
    #[must_use]
    pub fn name(&self) -> String {
        let (scope, phase, form, size) = (self.scope, self.phase, self.form, ByteSize(self.size));
        match scope {
            AccessScope::Unit => format!("{phase} {form} by {}", ByteSize(self.call_bytes)),
            AccessScope::Single => format!("{phase} {form} {size} alone"),
            AccessScope::Batch => format!("{phase} {form} {size} x {}", self.threads),
        }
    }

    /// Bytes on the wire in both directions per byte of the files. For one file, all traffic until everything was
    /// durable counts; for a batch, the traffic while files were accessed.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        let wire = self.wire.as_ref()?;
        let transferred =
            if self.scope == AccessScope::Batch { wire.total } else { wire.total_until_durable };
        (self.bytes > 0).then(|| transferred as f64 / self.bytes as f64)
    }
}

/// Latencies of calls, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallLatencies {
    /// `open`, which creates the file if it is written.
    pub open: LatencySummary,
    /// From the start of `open` to the end of the first read or write.
    pub first_access: LatencySummary,
    /// One read or write.
    pub access: LatencySummary,
    /// `fsync`, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync: Option<LatencySummary>,
    /// `close`.
    pub close: LatencySummary,
    /// The sum of all calls of a file.
    pub file: LatencySummary,
}

/// Bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBytes {
    /// Bytes sent while files were accessed.
    pub sent: u64,
    /// Bytes received while files were accessed.
    pub received: u64,
    /// Bytes in both directions while files were accessed; on the loopback interface each byte counts once.
    pub total: u64,
    /// Like `total`, but until all data was durable and the link was quiet.
    pub total_until_durable: u64,
}

/// A curve fitted to the amplification ratios of several sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AmplificationCurve {
    /// The kind of measurements: single files, or batches.
    pub scope: AccessScope,
    /// Writing or reading.
    pub phase: Direction,
    /// The access form.
    pub form: AccessForm,
    /// The formula of the curve.
    pub model: String,
    /// The fitted constants.
    pub fit: AmplificationFit,
    /// Number of ratios.
    pub points: usize,
}
