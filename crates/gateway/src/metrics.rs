//! The gateway's metrics, declared with unit and labels, and rendered as Prometheus text.
//!
//! Counting is a few relaxed additions on a handle obtained once per request, without allocation. The only
//! labels are operation names and status classes. Object keys, buckets and credentials never become labels, so the
//! number of series is bounded.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::RwLock;
use tradewind_core::Budget;

/// Upper bounds of the latency histogram's buckets, in microseconds.
const LATENCY_BOUNDS_MICROS: [u64; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Values of the label `status`.
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const REQUESTS_TOTAL: Metric =
    Metric::counter("tradewind_s3_requests_total", "Completed requests, by operation and status class.");
const REQUEST_SECONDS: Metric = Metric {
    name: "tradewind_s3_request_seconds",
    kind: "histogram",
    help: "Time from a request's head to the last byte of its response, in seconds, by operation.",
};
const RECEIVED_BYTES_TOTAL: Metric = Metric::counter(
    "tradewind_s3_received_bytes_total",
    "Bytes of request bodies as announced by Content-Length, by operation.",
);
const SENT_BYTES_TOTAL: Metric =
    Metric::counter("tradewind_s3_sent_bytes_total", "Bytes of response bodies, by operation.");
const CONNECTIONS_OPEN: Metric = Metric::gauge("tradewind_s3_connections", "Open connections.");
const CONNECTIONS_TOTAL: Metric = Metric::counter("tradewind_s3_connections_total", "Accepted connections.");
const CONNECTIONS_REFUSED_TOTAL: Metric = Metric::counter(
    "tradewind_s3_connections_refused_total",
    "Connections rejected at a limit or closed in favour of others.",
);
const SLOW_CLIENTS_TOTAL: Metric = Metric::counter(
    "tradewind_s3_slow_clients_total",
    "Connections closed because their client was too slow.",
);
const STALLED_CLIENTS_TOTAL: Metric = Metric::counter(
    "tradewind_s3_stalled_clients_total",
    "Requests aborted because their client made no progress while others waited for memory.",
);
const BUDGET_BYTES: Metric = Metric::gauge("tradewind_memory_budget_bytes", "Memory budget of all requests.");
const BUDGET_FREE_BYTES: Metric =
    Metric::gauge("tradewind_memory_free_bytes", "Part of the memory budget that is free.");
const BUDGET_WAITERS: Metric =
    Metric::gauge("tradewind_memory_waiting_requests", "Requests waiting for memory.");
const BUDGET_WAITS_TOTAL: Metric =
    Metric::counter("tradewind_memory_waits_total", "Requests that had to wait for memory.");

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

impl Metric {
    const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "counter", help }
    }

    const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "gauge", help }
    }

    fn write_head(&self, out: &mut String) {
        let Self { name, kind, help } = self;
        let _never = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write_value(&self, out: &mut String, value: u64) {
        self.write_head(out);
        let _never = writeln!(out, "{} {value}", self.name);
    }
}

/// All metrics of a gateway.
#[derive(Debug)]
pub struct Metrics {
    operations: RwLock<Vec<(&'static str, Arc<OperationMetrics>)>>,
    open: AtomicU64,
    opened: AtomicU64,
    refused: AtomicU64,
    slow: AtomicU64,
    stalled: AtomicU64,
    budget: Budget,
}

/// The metrics of one operation.
#[derive(Debug, Default)]
pub(crate) struct OperationMetrics {
    by_class: [AtomicU64; STATUS_CLASSES.len()],
    /// One per bound, and one for all longer requests.
    buckets: [AtomicU64; LATENCY_BOUNDS_MICROS.len() + 1],
    micros: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl OperationMetrics {
    /// Counts one completed request.
    pub(crate) fn count(&self, status: StatusCode, took: Duration, received: u64, sent: u64) {
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len()) - 1;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.by_class[class].fetch_add(1, Ordering::Relaxed);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }

    fn write_histogram(&self, operation: &str, out: &mut String) {
        let name = REQUEST_SECONDS.name;
        let mut sum = 0;
        for (i, bucket) in self.buckets.iter().enumerate() {
            sum += bucket.load(Ordering::Relaxed);
            let bound =
                LATENCY_BOUNDS_MICROS.get(i).map_or("+Inf".to_owned(), |bound| seconds(*bound).to_string());
            let _never = writeln!(out, "{name}_bucket{{operation=\"{operation}\",le=\"{bound}\"}} {sum}");
        }
        let total = seconds(self.micros.load(Ordering::Relaxed));
        let _never = writeln!(
            out,
            "{name}_sum{{operation=\"{operation}\"}} {total}\n{name}_count{{operation=\"{operation}\"}} {sum}"
        );
    }
}

#[allow(clippy::cast_precision_loss, reason = "a sum of seconds in text; 2^53 us are 285 years")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

impl Metrics {
    /// Metrics at zero. The memory metrics are those of `budget`.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            operations: RwLock::default(),
            open: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            budget,
        }
    }

    /// The metrics of an operation. Names are literals, so their number is bounded.
    pub(crate) fn operation(&self, name: &'static str) -> Arc<OperationMetrics> {
        if let Some((_, metrics)) = self.operations.read().iter().find(|(known, _)| *known == name) {
            return metrics.clone();
        }
        let mut operations = self.operations.write();
        if let Some((_, metrics)) = operations.iter().find(|(known, _)| *known == name) {
            return metrics.clone();
        }
        let metrics = Arc::<OperationMetrics>::default();
        operations.push((name, metrics.clone()));
        metrics
    }

    pub(crate) fn count_opened_connection(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_closed_connection(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count_rejected_connection(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_slow_client(&self) {
        self.slow.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_stalled_client(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    /// Appends all metrics as Prometheus text.
    pub fn render(&self, out: &mut String) {
        let mut operations = self.operations.read().clone();
        operations.sort_by_key(|(name, _)| *name);
        REQUESTS_TOTAL.write_head(out);
        for (operation, metrics) in &operations {
            for (class, count) in STATUS_CLASSES.iter().zip(&metrics.by_class) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let name = REQUESTS_TOTAL.name;
                    let _never =
                        writeln!(out, "{name}{{operation=\"{operation}\",status=\"{class}\"}} {count}");
                }
            }
        }
        REQUEST_SECONDS.write_head(out);
        for (operation, metrics) in &operations {
            metrics.write_histogram(operation, out);
        }
        for (metric, is_sent) in [(RECEIVED_BYTES_TOTAL, false), (SENT_BYTES_TOTAL, true)] {
            metric.write_head(out);
            for (operation, metrics) in &operations {
                let bytes = if is_sent { &metrics.sent } else { &metrics.received }.load(Ordering::Relaxed);
                let _never = writeln!(out, "{}{{operation=\"{operation}\"}} {bytes}", metric.name);
            }
        }
        CONNECTIONS_OPEN.write_value(out, self.open.load(Ordering::Relaxed));
        CONNECTIONS_TOTAL.write_value(out, self.opened.load(Ordering::Relaxed));
        CONNECTIONS_REFUSED_TOTAL.write_value(out, self.refused.load(Ordering::Relaxed));
        SLOW_CLIENTS_TOTAL.write_value(out, self.slow.load(Ordering::Relaxed));
        STALLED_CLIENTS_TOTAL.write_value(out, self.stalled.load(Ordering::Relaxed));
        BUDGET_BYTES.write_value(out, self.budget.capacity() as u64);
        BUDGET_FREE_BYTES.write_value(out, self.budget.free() as u64);
        BUDGET_WAITERS.write_value(out, self.budget.waiting() as u64);
        BUDGET_WAITS_TOTAL.write_value(out, self.budget.total_waits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_writes_prometheus_text() {
        let metrics = Metrics::new(Budget::new(8192));
        let get = metrics.operation("GetObject");
        get.count(StatusCode::OK, Duration::from_micros(100), 0, 4096);
        get.count(StatusCode::NOT_FOUND, Duration::from_micros(101), 0, 10);
        metrics.operation("GetObject").count(StatusCode::OK, Duration::from_secs(100), 0, 1);
        let mut text = String::new();
        metrics.render(&mut text);
        for line in [
            "tradewind_s3_requests_total{operation=\"GetObject\",status=\"2xx\"} 2",
            "tradewind_s3_requests_total{operation=\"GetObject\",status=\"4xx\"} 1",
            "tradewind_s3_request_seconds_bucket{operation=\"GetObject\",le=\"0.0001\"} 1",
            "tradewind_s3_request_seconds_bucket{operation=\"GetObject\",le=\"60\"} 2",
            "tradewind_s3_request_seconds_bucket{operation=\"GetObject\",le=\"+Inf\"} 3",
            "tradewind_s3_request_seconds_count{operation=\"GetObject\"} 3",
            "tradewind_s3_sent_bytes_total{operation=\"GetObject\"} 4107",
            "tradewind_memory_free_bytes 8192",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
