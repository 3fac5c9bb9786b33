//! JSON lines of probes and inferred values.

use std::io::{self, Write as _};

use serde_json::json;
use tradewind_bench::tune::ProbeResult;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::{OperatingPoint, Surface};

use crate::commands::plan_output::direction_name;

/// Prints the measurements of a probe.
pub(super) fn print_probe(probed: &ProbeResult) {
    let line = json!({
        "line": "probe",
        "direction": direction_name(probed.direction),
        "size": probed.point.bytes,
        "concurrency": probed.point.concurrency,
        "latency_seconds": probed.sample.map(|sample| sample.latency),
        "error": probed.sample.map(|sample| sample.relative_error),
        "bytes_per_second": probed.sample.map(|sample| sample.throughput()),
        "requests": probed.requests,
        "failures": probed.failures,
        "failure": probed.failure,
        "p95_seconds": probed.tail.p95,
        "p99_seconds": probed.tail.p99,
        "cpu_seconds_per_request": probed.cpu_seconds_per_request,
        "cpu_utilization": probed.cpu_utilization,
        "bytes": probed.bytes,
        "seconds": probed.time.as_secs_f64(),
    });
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints the inferred values of each operating point.
pub(super) fn print_surface(direction: Direction, points: &[OperatingPoint], surface: &Surface) {
    for point in points {
        let prediction = surface.predict(*point);
        let line = json!({
            "line": "inferred",
            "direction": direction_name(direction),
            "size": point.bytes,
            "concurrency": point.concurrency,
            "latency_seconds": prediction.latency,
            "bytes_per_second": prediction.throughput(),
            "std_dev": prediction.std_dev,
        });
        let _ = writeln!(io::stdout(), "{line}");
    }
}
