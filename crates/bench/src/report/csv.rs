//! Results as CSV (RFC 4180): one line per operation of each measurement, per file access, Postmark step, caching
//! policy and fitted curve. All lines have the same columns, empty where they do not apply. Existing columns keep
//! their position; new ones are appended. `docs/measuring.md` documents each column.

mod posix;

use super::ResultFile;
use crate::csv::quoted;
use crate::result::{LatencySummary, Measurement, OperationFigures};

const COLUMNS: [&str; 48] = [
    "result",
    "load",
    "mix",
    "sizes",
    "parallel",
    "rate",
    "beside",
    "repeat",
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
    "machine_busy",
    "ending",
    "what",
    "amplification",
    "wire_bytes",
    "scope",
    "form",
    "unit_bytes",
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
    "reads_again",
    "curve",
    "constant_kib",
    "per_byte",
    "explained",
    "worst",
    "points",
    "caches",
];

/// The values of a line, by column name.
type CsvFields = Vec<(&'static str, String)>;

/// Writes all measurements of all results.
pub(super) fn write_csv(results: &[ResultFile]) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for result in results {
        let objects = result.measurements.iter().flat_map(|cell| {
            cell.operations.iter().map(move |(kind, figures)| fields(cell, kind.name(), figures))
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

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn fields(cell: &Measurement, operation: &str, figures: &OperationFigures) -> CsvFields {
    let ending = format!("{:?}", cell.end_reason).to_lowercase();
    let (sent, received, _) = cell.network;
    // Local stores have no byte counts, and those of concurrent loads cannot be attributed to one of them.
    let wire = cell.amplification().map(|_| sent + received);
    let mut fields = vec![
        ("what", "request".to_owned()),
        ("load", cell.name()),
        ("mix", cell.mix.to_string()),
        ("sizes", cell.sizes.to_string()),
        ("parallel", cell.concurrency.to_string()),
        ("rate", optional(cell.requests_per_second)),
        ("beside", cell.concurrent_with.join(" and ")),
        ("repeat", cell.round.to_string()),
        ("operation", operation.to_owned()),
        ("seconds", cell.measured_seconds.to_string()),
        ("requests_per_second", figures.requests_per_second.to_string()),
        ("bytes_per_second", figures.bytes_per_second.to_string()),
        ("first_byte_p50_us", known_figure(&figures.first_byte_us, |of| of.p50)),
        ("failures", figures.failures.values().sum::<u64>().to_string()),
        ("cpu_us_per_request", optional(cell.cpu_us_per_operation())),
        ("machine_busy", cell.machine_cpu_utilization.to_string()),
        ("ending", ending),
        ("caches", format!("{:?}", cell.caches).to_lowercase()),
        ("amplification", optional(cell.amplification())),
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

    #[test]
    fn line_of_a_request_has_all_columns() {
        let mut cell = crate::result::tests::measurement("get", 4, 1, 100.0);
        cell.network = (100_000, 719_200, 4);
        let (operation, figures) = cell.operations.iter().next().unwrap();
        let fields = fields(&cell, operation.name(), figures);
        let line = line("a", &fields);
        assert!(line.starts_with("a,get 4KiB x 4,get,4KiB,4,,,1,get,1,100,409600,20,20,20,30,"), "{line}");
        assert!(line.contains(",time,request,2,819200,,,"), "{line}");
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
