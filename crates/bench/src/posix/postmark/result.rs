//! The result of a Postmark run: the figures that Postmark prints, and the latencies of its steps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::result::LatencySummary;
use crate::size_distribution::SizeDistribution;

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Postmark {
    /// The range of file sizes.
    pub sizes: SizeDistribution,
    /// Files created before the transactions.
    pub pool: u64,
    /// Number of transactions: each is a read or an append, followed by a creation or a deletion.
    pub transactions: u64,
    /// Bytes per call.
    pub call_bytes: u64,
    /// The round, from 1.
    pub round: u32,
    /// Start, in milliseconds since 1970 UTC.
    pub started_ms: i64,
    /// Total time.
    pub seconds: f64,
    /// Time of the transactions.
    pub transaction_seconds: f64,
    /// Completed transactions per second.
    pub transactions_per_second: f64,
    /// Created files: in total, before the transactions and within them.
    pub created: StepFigures,
    /// Read files.
    pub read: StepFigures,
    /// Extended files.
    pub appended: StepFigures,
    /// Removed files: in total, after the transactions and within them.
    pub deleted: StepFigures,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read, divided by the total time.
    pub read_bytes_per_second: f64,
    /// Bytes written, divided by the total time.
    pub written_bytes_per_second: f64,
    /// Time after the last step until all data was durable. Absent if the sync failed or the run was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Some of the failures in full.
    pub failure_samples: Vec<String>,
    /// CPU time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// CPU utilization of the machine by all processes, 0 to 1.
    pub machine_cpu_utilization: f64,
    /// The run was stopped early.
    pub partial: bool,
    /// Caveats about the figures.
    pub notes: Vec<String>,
}

/// Statistics of the steps of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// Total number.
    pub count: u64,
    /// Steps per second outside of the transactions; 0 for kinds that occur only within them.
    pub alone_per_second: f64,
    /// Steps per second within the transactions.
    pub in_transactions_per_second: f64,
    /// Latency of a step: the sum of its calls.
    pub latency_us: LatencySummary,
}

impl Postmark {
    /// The identifying name of the measurement.
    #[must_use]
    pub fn name(&self) -> String {
        format!("postmark {}, {} files, {} transactions", self.sizes, self.pool, self.transactions)
    }

    /// Number of successful steps.
    pub(in crate::posix) const fn successful_steps(&self) -> u64 {
        self.created.count + self.read.count + self.appended.count + self.deleted.count
    }
}
