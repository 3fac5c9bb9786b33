//! Statistics of file accesses: call latencies and failures.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::result::Latencies;
use crate::record::{new_histogram, record_value};
use crate::result::LatencySummary;

/// Number of failures reported in full.
const MAX_FAILURE_SAMPLES: usize = 5;

/// A failed access of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// The kind by which failures are counted.
    pub kind: String,
    /// The full message.
    pub what: String,
    /// Every further access would fail too.
    pub is_for_all: bool,
}

/// Durations of the calls of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Took {
    pub open: Duration,
    /// From the start of `open` to the end of the first read or write.
    pub first: Duration,
    pub accesses: Duration,
    pub fsync: Option<Duration>,
    pub close: Duration,
}

impl Took {
    pub fn total(&self) -> Duration {
        self.open + self.accesses + self.fsync.unwrap_or_default() + self.close
    }
}

/// Statistics of one thread or of several. Histograms are in microseconds.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub files: u64,
    pub bytes: u64,
    /// Total time of all calls.
    pub calls: Duration,
    open: Histogram<u64>,
    first: Histogram<u64>,
    access: Histogram<u64>,
    fsync: Histogram<u64>,
    close: Histogram<u64>,
    file: Histogram<u64>,
    pub failures: BTreeMap<String, u64>,
    pub samples: Vec<String>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            files: 0,
            bytes: 0,
            calls: Duration::ZERO,
            open: new_histogram(),
            first: new_histogram(),
            access: new_histogram(),
            fsync: new_histogram(),
            close: new_histogram(),
            file: new_histogram(),
            failures: BTreeMap::new(),
            samples: Vec::new(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Tally {
    pub fn access(&mut self, took: Duration) {
        record_value(&mut self.access, micros(took), 1);
    }

    pub fn file(&mut self, took: &Took, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.calls += took.total();
        record_value(&mut self.open, micros(took.open), 1);
        record_value(&mut self.first, micros(took.first), 1);
        record_value(&mut self.close, micros(took.close), 1);
        record_value(&mut self.file, micros(took.total()), 1);
        if let Some(fsync) = took.fsync {
            record_value(&mut self.fsync, micros(fsync), 1);
        }
    }

    pub fn failure(&mut self, failed: &Failed) {
        *self.failures.entry(failed.kind.clone()).or_default() += 1;
        if self.samples.len() < MAX_FAILURE_SAMPLES {
            self.samples.push(failed.what.clone());
        }
    }

    /// Adds the statistics of another thread.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.calls += other.calls;
        for (mine, others) in [
            (&mut self.open, &other.open),
            (&mut self.first, &other.first),
            (&mut self.access, &other.access),
            (&mut self.fsync, &other.fsync),
            (&mut self.close, &other.close),
            (&mut self.file, &other.file),
        ] {
            // Cannot fail: the histograms resize automatically.
            let _ = mine.add(others);
        }
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
        let remaining = MAX_FAILURE_SAMPLES.saturating_sub(self.samples.len());
        self.samples.extend(other.samples.iter().take(remaining).cloned());
    }

    pub fn latencies(&self) -> Latencies {
        Latencies {
            open: LatencySummary::from_histogram(&self.open),
            first: LatencySummary::from_histogram(&self.first),
            access: LatencySummary::from_histogram(&self.access),
            fsync: (!self.fsync.is_empty()).then(|| LatencySummary::from_histogram(&self.fsync)),
            close: LatencySummary::from_histogram(&self.close),
            file: LatencySummary::from_histogram(&self.file),
        }
    }
}
