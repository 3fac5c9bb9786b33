//! What Postmark prints, and how long its steps took.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::result::Latency;
use crate::sizes::Sizes;

/// A run of the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Postmark {
    /// Between which sizes files are made.
    pub sizes: Sizes,
    /// Files that are there before the transactions.
    pub pool: u64,
    /// Transactions: a read or an append, and a file made or removed.
    pub transactions: u64,
    /// Bytes of a call.
    pub block: u64,
    /// Which of several of the same, from 1 on.
    pub repeat: u32,
    /// In milliseconds since 1970 UTC.
    pub began: i64,
    /// How long everything took.
    pub seconds: f64,
    /// How long the transactions took.
    pub transaction_seconds: f64,
    /// Of those that were begun.
    pub transactions_per_second: f64,
    /// Files that were made: in all, before the transactions and among them.
    pub created: Steps,
    /// Files that were read.
    pub read: Steps,
    /// Files that were added to.
    pub appended: Steps,
    /// Files that were removed: in all, after the transactions and among them.
    pub deleted: Steps,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes read by the time that everything took.
    pub read_bytes_per_second: f64,
    /// The same of those written.
    pub written_bytes_per_second: f64,
    /// How long it took afterwards until all was durable; no number where that is not known, since it could not be made so or
    /// nobody waited for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Some of those in full.
    pub samples: Vec<String>,
    /// Processor time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// How much of the machine was busy, by whomever: 0 to 1.
    pub machine_busy: f64,
    /// It was stopped before its end.
    pub partial: bool,
    /// What is to be known of the figures.
    pub notes: Vec<String>,
}

/// Steps of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// All of them.
    pub count: u64,
    /// A second, while nothing else is done; 0 of those that only come among transactions.
    pub alone_per_second: f64,
    /// A second, among transactions.
    pub mixed_per_second: f64,
    /// How long one took, its calls together.
    pub latency_us: Latency,
}

impl Postmark {
    /// What tells measurements apart.
    #[must_use]
    pub fn name(&self) -> String {
        format!("postmark {}, {} files, {} transactions", self.sizes, self.pool, self.transactions)
    }

    /// Steps that succeeded.
    pub(in crate::posix) const fn steps(&self) -> u64 {
        self.created.count + self.read.count + self.appended.count + self.deleted.count
    }
}
