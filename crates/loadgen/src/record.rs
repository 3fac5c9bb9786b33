//! The results of a run: latencies, bytes and errors by kind, and their JSON form.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

const MAX_ERROR_SAMPLES: usize = 5;
const MAX_LATENCY_MICROS: u64 = 600_000_000;

/// The reason why a request failed.
#[derive(Debug)]
pub struct Failure {
    /// A short, stable name by which failures are counted, such as `status_503` or `content`.
    pub kind: String,
    /// The details.
    pub detail: String,
}

impl Failure {
    /// A failure of `kind`.
    pub fn new(kind: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: kind.into(), detail: detail.into() }
    }
}

/// The results of one connection, or of several merged. Latencies are recorded in microseconds.
#[derive(Debug)]
pub struct Tally {
    latency: Histogram<u64>,
    operations: u64,
    bytes: u64,
    errors: BTreeMap<String, u64>,
    samples: Vec<String>,
}

impl Tally {
    /// An empty record.
    pub fn new() -> anyhow::Result<Self> {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_MICROS, 3).context("histogram")?;
        Ok(Self { latency, operations: 0, bytes: 0, errors: BTreeMap::new(), samples: Vec::new() })
    }

    /// Counts a request with a correct response.
    pub fn record_success(&mut self, latency: Duration, bytes: u64) {
        self.operations += 1;
        self.bytes += bytes;
        self.latency.saturating_record((latency.as_micros() as u64).max(1));
    }

    /// Counts a failed request. `subject` names its object or query.
    pub fn record_failure(&mut self, failure: &Failure, subject: &str) {
        *self.errors.entry(failure.kind.clone()).or_default() += 1;
        if self.samples.len() < MAX_ERROR_SAMPLES {
            self.samples.push(format!("{}: {subject}: {}", failure.kind, failure.detail));
        }
    }

    /// Number of failed requests.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds the results of another connection.
    pub fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        self.latency.add(&other.latency).context("merging histograms")?;
        self.operations += other.operations;
        self.bytes += other.bytes;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.samples.extend(other.samples);
        self.samples.truncate(MAX_ERROR_SAMPLES);
        Ok(())
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Report {
    operation: &'static str,
    tally: Tally,
    elapsed: Duration,
}

impl Report {
    /// A report on the results in `tally` over the time `elapsed`.
    pub fn new(operation: &'static str, tally: Tally, elapsed: Duration) -> Self {
        Self { operation, tally, elapsed }
    }

    /// Returns true if there was at least one request and all succeeded.
    pub fn is_clean(&self) -> bool {
        self.tally.failures() == 0 && self.tally.operations > 0
    }

    /// The report as one JSON object; `MB` is 1,000,000 bytes.
    pub fn to_json(&self) -> Value {
        let seconds = self.elapsed.as_secs_f64();
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let latency = &self.tally.latency;
        json!({
            "operation": self.operation,
            "seconds": seconds,
            "operations": self.tally.operations,
            "bytes": self.tally.bytes,
            "operations_per_second": rate(self.tally.operations as f64),
            "megabytes_per_second": rate(self.tally.bytes as f64 / 1e6),
            "errors_total": self.tally.failures(),
            "errors": self.tally.errors,
            "error_samples": self.tally.samples,
            "latency_us": {
                "mean": latency.mean(),
                "p50": latency.value_at_quantile(0.5),
                "p90": latency.value_at_quantile(0.9),
                "p99": latency.value_at_quantile(0.99),
                "p99.9": latency.value_at_quantile(0.999),
                "max": latency.max(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_operations_or_with_errors_is_not_clean() {
        let mut tally = Tally::new().expect("tally");
        assert!(!Report::new("get", Tally::new().expect("tally"), Duration::ZERO).is_clean());
        tally.record_success(Duration::from_micros(250), 10);
        let mut failed = Tally::new().expect("tally");
        failed.record_failure(&Failure::new("status_403", "Forbidden"), "key");
        let mut merged = Tally::new().expect("tally");
        merged.merge(tally).expect("merge");
        assert!(merged.failures() == 0);
        merged.merge(failed).expect("merge");
        let report = Report::new("get", merged, Duration::from_secs(2));
        assert!(!report.is_clean());
        let json = report.to_json();
        assert_eq!(json["operations"], 1);
        assert_eq!(json["errors"]["status_403"], 1);
        assert_eq!(json["operations_per_second"], 0.5);
        assert_eq!(json["latency_us"]["p50"], 250);
    }
}
