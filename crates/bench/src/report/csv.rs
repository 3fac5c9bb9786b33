//! Results as CSV (RFC 4180): one line per operation of each measurement, per file access, Postmark step, caching
//! policy and fitted curve. All lines have the same columns, empty where they do not apply. Existing columns keep
//! their position; new ones are appended. `docs/measuring.md` documents each column.

mod posix;

use serde::Serialize;

use super::ResultFile;
use crate::csv::quoted;
use crate::result::{LatencySummary, Measurement, OperationFigures};

const COLUMNS: [&str; 48] = [
    "result",
    "load",
    "mix",
    "sizes",
    "concurrency",
    "offered_requests_per_second",
    "concurrent_with",
    "round",
    "operation",
    "seconds",
    "requests_per_second",
    "bytes_per_second",
    "first_byte_p50_us",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
    "failures",
    "cpu_us_per_request",
    "machine_cpu_utilization",
    "end_reason",
    "record",
    "amplification",
    "wire_bytes",
    "scope",
    "form",
    "call_bytes",
    "files",
    "durable_seconds",
    "open_p50_us",
    "access_p50_us",
    "access_p99_us",
    "close_p50_us",
    "alone_per_second",
    "read_bytes_per_second",
    "written_bytes_per_second",
    "writes",
    "reads",
    "rereads",
    "model",
    "constant_kib",
    "per_byte",
    "r_squared",
    "max_relative_error",
    "points",
    "caches",
];

/// The values of a line, by column name.
type CsvFields = Vec<(&'static str, String)>;

/// Writes all measurements of all results.
pub(super) fn write_csv(results: &[ResultFile]) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for result in results {
        let objects = result.measurements.iter().flat_map(|measurement| {
            measurement
                .operations
                .iter()
                .map(move |(operation, figures)| fields(measurement, operation.name(), figures))
        });
        for fields in objects.chain(result.posix.iter().flat_map(posix::posix_lines)) {
            text += &line(&result.name, &fields);
        }
    }
    text
}

fn line(result: &str, fields: &CsvFields) -> String {
    debug_assert!(fields.iter().all(|(name, _)| COLUMNS.contains(name)), "a column is missing: {fields:?}");
    let value = |column: &str| match column {
        "result" => result,
        _ => fields.iter().find(|(name, _)| *name == column).map_or("", |(_, value)| value),
    };
    COLUMNS.map(|column| quoted(value(column))).join(",") + "\r\n"
}

/// The name of an enum variant in result files.
fn json_name(variant: &impl Serialize) -> String {
    serde_json::to_value(variant).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn fields(measurement: &Measurement, operation: &str, figures: &OperationFigures) -> CsvFields {
    let wire = measurement.network.total_bytes();
    // Local stores have no byte counts, and those of concurrent loads cannot be attributed to one of them.
    let wire = measurement.amplification().map(|_| wire);
    let mut fields = vec![
        ("record", "request".to_owned()),
        ("load", measurement.name()),
        ("mix", measurement.mix.to_string()),
        ("sizes", measurement.sizes.to_string()),
        ("concurrency", measurement.concurrency.to_string()),
        ("offered_requests_per_second", optional(measurement.requests_per_second)),
        ("concurrent_with", measurement.concurrent_with.join(" and ")),
        ("round", measurement.round.to_string()),
        ("operation", operation.to_owned()),
        ("seconds", measurement.measured_seconds.to_string()),
        ("requests_per_second", figures.requests_per_second.to_string()),
        ("bytes_per_second", figures.bytes_per_second.to_string()),
        ("first_byte_p50_us", known_figure(&figures.first_byte_us, |of| of.p50)),
        ("failures", figures.failures.values().sum::<u64>().to_string()),
        ("cpu_us_per_request", optional(measurement.cpu_us_per_operation())),
        ("machine_cpu_utilization", measurement.machine_cpu_utilization.to_string()),
        ("end_reason", json_name(&measurement.end_reason)),
        ("caches", json_name(&measurement.caches)),
        ("amplification", optional(measurement.amplification())),
        ("wire_bytes", wire.map_or_else(String::new, |bytes| bytes.to_string())),
    ];
    fields.extend(latencies(&figures.latency_us));
    fields
}

fn latencies(latency: &LatencySummary) -> CsvFields {
    vec![
        ("latency_mean_us", known_figure(latency, |of| of.mean)),
        ("latency_p50_us", known_figure(latency, |of| of.p50)),
        ("latency_p90_us", known_figure(latency, |of| of.p90)),
        ("latency_p99_us", known_figure(latency, |of| of.p99)),
        ("latency_p999_us", known_figure(latency, |of| of.p999)),
        ("latency_max_us", known_figure(latency, |of| of.max)),
    ]
}

/// A latency figure; empty if no latency was recorded.
fn known_figure<T: ToString>(latency: &LatencySummary, figure: fn(&LatencySummary) -> T) -> String {
    latency.figure_if_any(figure).map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::NetworkUsage;

    #[test]
    fn line_of_a_request_has_all_columns() {
        let mut measurement = crate::result::tests::measurement("get", 4, 1, 100.0);
        measurement.network = NetworkUsage { bytes_sent: 100_000, bytes_received: 719_200, connections: 4 };
        let (operation, figures) = measurement.operations.iter().next().unwrap();
        let fields = fields(&measurement, operation.name(), figures);
        let line = line("a", &fields);
        assert!(line.starts_with("a,get 4KiB x 4,get,4KiB,4,,,1,get,1,100,409600,20,20,20,30,"), "{line}");
        assert!(line.contains(",time_limit,request,2,819200,,,"), "{line}");
        assert_eq!(line.matches(',').count(), COLUMNS.len() - 1);
    }

    #[test]
    fn every_column_is_documented() {
        let documented = include_str!("../../../../docs/measuring.md");
        let missing: Vec<_> =
            COLUMNS.iter().filter(|column| !documented.contains(&format!("`{column}`"))).collect();
        assert_eq!(missing, [&""; 0]);
    }
}
