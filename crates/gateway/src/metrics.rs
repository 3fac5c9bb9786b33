//! The gateway's metrics, declared with unit and labels, as a collector of `prometheus_client`.
//!
//! Counting is a few relaxed additions, without allocation or lock, on a handle that each request obtains once. The
//! only labels are operation names and status classes. Object keys, buckets and credentials never become labels, so the
//! number of series is bounded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tradewind_core::Budget;

/// Upper bounds of the latency histogram's buckets, in microseconds.
const LATENCY_BOUNDS_MICROS: [u64; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Values of the label `status`.
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const REQUESTS: Family =
    Family::counter("tradewind_s3_requests", "Completed requests, by operation and status class.");
const REQUEST_SECONDS: Family = Family {
    name: "tradewind_s3_request_seconds",
    kind: MetricType::Histogram,
    help: "Time from a request's head until the last buffer of its response is handed to the connection, in seconds, \
           by operation.",
};
const RECEIVED_BYTES: Family = Family::counter(
    "tradewind_s3_received_bytes",
    "Bytes of request bodies as announced by Content-Length, by operation.",
);
const SENT_BYTES: Family =
    Family::counter("tradewind_s3_sent_bytes", "Bytes of response bodies, by operation.");
const OPEN_CONNECTIONS: Family = Family::gauge("tradewind_s3_connections", "Open connections.");
const CONNECTIONS: Family = Family::counter("tradewind_s3_connections", "Accepted connections.");
const REFUSED_CONNECTIONS: Family = Family::counter(
    "tradewind_s3_connections_refused",
    "Connections refused at a limit, or turned away during a request to make room for others. \
     Evicted idle connections are not counted.",
);
const SLOW_CLIENTS: Family =
    Family::counter("tradewind_s3_slow_clients", "Connections closed because their client was too slow.");
const STALLED_CLIENTS: Family = Family::counter(
    "tradewind_s3_stalled_clients",
    "Requests aborted because their client made no progress while others waited for memory.",
);
const BUDGET_BYTES: Family = Family::gauge("tradewind_memory_budget_bytes", "Memory budget of all requests.");
const FREE_BYTES: Family =
    Family::gauge("tradewind_memory_free_bytes", "Part of the memory budget that is free.");
const EXCESS_BYTES: Family = Family::gauge(
    "tradewind_memory_excess_bytes",
    "Buffers beyond the memory budget: metadata of objects that requests read when the budget has no room.",
);
const RESIDENT_BYTES: Family = Family::gauge(
    "tradewind_memory_resident_bytes",
    "Memory of the process, with all that is outside of the budget: connections, indexes, caches and code.",
);
const WAITING_REQUESTS: Family =
    Family::gauge("tradewind_memory_waiting_requests", "Requests waiting for memory.");
const WAITS: Family = Family::counter("tradewind_memory_waits", "Requests that had to wait for memory.");

/// Bytes of memory that the process occupies; `None` if the system does not tell.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The declaration of a metric. The name of a counter is written with the suffix `_total`.
#[derive(Debug)]
pub struct Family {
    /// Name without suffix.
    pub name: &'static str,
    /// Type.
    pub kind: MetricType,
    /// Meaning, unit and labels.
    pub help: &'static str,
}

impl Family {
    /// A counter.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricType::Counter, help }
    }

    /// A gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricType::Gauge, help }
    }

    /// Writes the declaration. Samples follow through the returned encoder.
    pub fn describe<'a>(
        &'a self,
        encoder: &'a mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'a>, fmt::Error> {
        encoder.encode_descriptor(self.name, self.help, None, self.kind)
    }

    fn encode_value(&self, encoder: &mut DescriptorEncoder<'_>, value: u64) -> fmt::Result {
        let mut samples = self.describe(encoder)?;
        if matches!(self.kind, MetricType::Counter) {
            samples.encode_counter::<NoLabelSet, _, u64>(&value, None)
        } else {
            samples.encode_gauge(&value)
        }
    }
}

/// Writes a sample of a counter.
pub fn encode_count(
    samples: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: u64,
) -> fmt::Result {
    samples.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
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
    pub(crate) fn count(&self, status: StatusCode, duration: Duration, received: u64, sent: u64) {
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len()) - 1;
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.by_class[class].fetch_add(1, Ordering::Relaxed);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }

    fn encode_histogram(&self, operation: &str, samples: &mut MetricEncoder<'_>) -> fmt::Result {
        let bounds = LATENCY_BOUNDS_MICROS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let total = seconds(self.micros.load(Ordering::Relaxed));
        samples
            .encode_family(&[("operation", operation)])?
            .encode_histogram::<NoLabelSet>(total, count, &buckets, None)
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

    pub(crate) fn count_refused_connection(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_slow_client(&self) {
        self.slow.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_stalled_client(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let mut operations = self.operations.read().clone();
        operations.sort_by_key(|(name, _)| *name);
        let mut samples = REQUESTS.describe(encoder)?;
        for (operation, metrics) in &operations {
            for (class, count) in STATUS_CLASSES.iter().zip(&metrics.by_class) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    encode_count(&mut samples, &[("operation", *operation), ("status", *class)], count)?;
                }
            }
        }
        let mut samples = REQUEST_SECONDS.describe(encoder)?;
        for (operation, metrics) in &operations {
            metrics.encode_histogram(operation, &mut samples)?;
        }
        for (family, is_sent) in [(RECEIVED_BYTES, false), (SENT_BYTES, true)] {
            let mut samples = family.describe(encoder)?;
            for (operation, metrics) in &operations {
                let bytes = if is_sent { &metrics.sent } else { &metrics.received }.load(Ordering::Relaxed);
                encode_count(&mut samples, &[("operation", *operation)], bytes)?;
            }
        }
        OPEN_CONNECTIONS.encode_value(encoder, self.open.load(Ordering::Relaxed))?;
        CONNECTIONS.encode_value(encoder, self.opened.load(Ordering::Relaxed))?;
        REFUSED_CONNECTIONS.encode_value(encoder, self.refused.load(Ordering::Relaxed))?;
        SLOW_CLIENTS.encode_value(encoder, self.slow.load(Ordering::Relaxed))?;
        STALLED_CLIENTS.encode_value(encoder, self.stalled.load(Ordering::Relaxed))?;
        BUDGET_BYTES.encode_value(encoder, self.budget.capacity() as u64)?;
        FREE_BYTES.encode_value(encoder, self.budget.free() as u64)?;
        EXCESS_BYTES.encode_value(encoder, self.budget.excess() as u64)?;
        if let Some(bytes) = resident_bytes() {
            RESIDENT_BYTES.encode_value(encoder, bytes)?;
        }
        WAITING_REQUESTS.encode_value(encoder, self.budget.waiting() as u64)?;
        WAITS.encode_value(encoder, self.budget.total_waits())
    }
}

/// The metrics as Prometheus text.
#[cfg(test)]
pub(crate) fn to_text(metrics: &Arc<Metrics>) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    prometheus_client::encoding::prometheus_text::encode(&mut text, &registry).expect("text can be written");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_writes_prometheus_text() {
        let metrics = Metrics::new(Budget::new(8192));
        let get = metrics.operation("GetObject");
        get.count(StatusCode::OK, Duration::from_micros(100), 0, 4096);
        get.count(StatusCode::NOT_FOUND, Duration::from_micros(101), 0, 10);
        metrics.operation("GetObject").count(StatusCode::OK, Duration::from_secs(100), 0, 1);
        let text = to_text(&Arc::new(metrics));
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
