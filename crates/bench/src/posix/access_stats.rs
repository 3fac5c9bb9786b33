//! Statistics of file accesses: call latencies and failures.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::result::CallLatencies;
use crate::record::{new_histogram, record_value};
use crate::result::LatencySummary;

/// Number of failures reported in full.
const MAX_FAILURE_SAMPLES: usize = 5;

/// A failed access of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileFailure {
    /// The kind by which failures are counted.
    pub kind: String,
    /// The full message.
    pub message: String,
    /// Every further access would fail too.
    pub is_fatal: bool,
}

/// Durations of the calls of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CallTimes {
    pub open: Duration,
    /// From the start of `open` to the end of the first read or write.
    pub first: Duration,
    pub accesses: Duration,
    pub fsync: Option<Duration>,
    pub close: Duration,
}

impl CallTimes {
    pub fn total(&self) -> Duration {
        self.open + self.accesses + self.fsync.unwrap_or_default() + self.close
    }
}

/// Statistics of one thread or of several. Histograms are in microseconds.
#[derive(Debug, Clone)]
pub(super) struct AccessStats {
    pub files: u64,
    pub bytes: u64,
    /// Total time of all calls.
    pub call_time: Duration,
    open: Histogram<u64>,
    first: Histogram<u64>,
    call: Histogram<u64>,
    fsync: Histogram<u64>,
    close: Histogram<u64>,
    record_file: Histogram<u64>,
    pub failures: BTreeMap<String, u64>,
    pub failure_samples: Vec<String>,
}

impl Default for AccessStats {
    fn default() -> Self {
        Self {
            files: 0,
            bytes: 0,
            call_time: Duration::ZERO,
            open: new_histogram(),
            first: new_histogram(),
            call: new_histogram(),
            fsync: new_histogram(),
            close: new_histogram(),
            record_file: new_histogram(),
            failures: BTreeMap::new(),
            failure_samples: Vec::new(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl AccessStats {
    pub fn record_call(&mut self, duration: Duration) {
        record_value(&mut self.call, micros(duration), 1);
    }

    pub fn file(&mut self, times: &CallTimes, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.call_time += times.total();
        record_value(&mut self.open, micros(times.open), 1);
        record_value(&mut self.first, micros(times.first), 1);
        record_value(&mut self.close, micros(times.close), 1);
        record_value(&mut self.record_file, micros(times.total()), 1);
        if let Some(fsync) = times.fsync {
            record_value(&mut self.fsync, micros(fsync), 1);
        }
    }

    pub fn record_failure(&mut self, failure: &FileFailure) {
        *self.failures.entry(failure.kind.clone()).or_default() += 1;
        if self.failure_samples.len() < MAX_FAILURE_SAMPLES {
            self.failure_samples.push(failure.message.clone());
        }
    }

    /// Adds the statistics of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.call_time += other.call_time;
        for (own, added) in [
            (&mut self.open, &other.open),
            (&mut self.first, &other.first),
            (&mut self.call, &other.call),
            (&mut self.fsync, &other.fsync),
            (&mut self.close, &other.close),
            (&mut self.record_file, &other.record_file),
        ] {
            // Cannot fail: the histograms resize automatically.
            let _ = own.add(added);
        }
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
        let remaining = MAX_FAILURE_SAMPLES.saturating_sub(self.failure_samples.len());
        self.failure_samples.extend(other.failure_samples.iter().take(remaining).cloned());
    }

    pub fn latencies(&self) -> CallLatencies {
        CallLatencies {
            open: LatencySummary::from_histogram(&self.open),
            first_access: LatencySummary::from_histogram(&self.first),
            access: LatencySummary::from_histogram(&self.call),
            fsync: (!self.fsync.is_empty()).then(|| LatencySummary::from_histogram(&self.fsync)),
            close: LatencySummary::from_histogram(&self.close),
            file: LatencySummary::from_histogram(&self.record_file),
        }
    }
}
