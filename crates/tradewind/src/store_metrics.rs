//! The metrics of stores, declared with unit and labels, and rendered as Prometheus text.
//!
//! Labels are the store's name in the settings, the operation, the outcome, the direction of bytes, and the size class.
//! That is at most about 800 series per store; only those with requests are rendered.

use std::fmt::Write as _;
use std::time::Duration;

use tradewind_model::store_model::{
    Direction, Failure, LatencyHistogram, LatencySnapshot, Operation, SizeClass, SizeClassStats, StoreModel,
    Total,
};
use tradewind_volume::ReadAhead;

use crate::served_plan::PlanSource;

const REQUESTS_TOTAL: Metric = Metric {
    name: "tradewind_store_requests_total",
    kind: "counter",
    help: "Completed requests to the store, by operation and outcome: done, refused (a correct error response, such as \
           not found), given_up (cancelled by the caller), or a failure: busy, unavailable, late (timed out), corrupt, \
           internal.",
};
const IN_FLIGHT: Metric = Metric {
    name: "tradewind_store_requests_in_flight",
    kind: "gauge",
    help: "Requests to the store in flight, by operation.",
};
const REQUEST_SECONDS: Metric = Metric {
    name: "tradewind_store_request_seconds",
    kind: "summary",
    help: "Latency of successful requests to the store in seconds, without time spent waiting for a slow client, by \
           operation and maximum size; quantiles are over the last minute.",
};
const FIRST_BYTE: Metric = Metric {
    name: "tradewind_store_first_byte_seconds",
    kind: "summary",
    help: "Seconds until the first byte of a read, or from the last byte of a write to the response, by operation and \
           maximum size; quantiles are over the last minute.",
};
const BYTES: Metric = Metric {
    name: "tradewind_store_bytes_total",
    kind: "counter",
    help: "Object bytes read from the store and written to it, by direction.",
};
const RATE: Metric = Metric {
    name: "tradewind_store_bytes_per_second",
    kind: "gauge",
    help: "Object bytes per second over the last five seconds, by direction.",
};
const SAMPLE_AGE: Metric = Metric {
    name: "tradewind_store_sample_age_seconds",
    kind: "gauge",
    help: "Seconds since the last completed request, by operation.",
};

const PLAN_CONCURRENCY: Metric = Metric {
    name: "tradewind_plan_requests",
    kind: "gauge",
    help: "Maximum concurrent data requests by maximum size. Label from: profile, scaled (a scaled profile), or default.",
};
const READ_AHEAD_BYTES: Metric = Metric {
    name: "tradewind_plan_ahead_bytes",
    kind: "gauge",
    help: "Bytes of large objects in memory that were read ahead of the client.",
};

const QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

impl Metric {
    fn write_header(&self, out: &mut String) {
        let Self { name, kind, help } = self;
        let _never = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write_sample(&self, out: &mut String, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        let _never = writeln!(out, "{}{suffix}{{{labels}}} {value}", self.name);
    }
}

/// Appends the metrics of the store with this name at the time `now`.
pub fn render(name: &str, model: &StoreModel, now: Duration, out: &mut String) {
    let store = format!("store=\"{}\"", escape_label(name));
    let used: Vec<Operation> = Operation::ALL.into_iter().filter(|kind| is_used(model, *kind)).collect();
    let of = |operation: Operation| format!("{store},operation=\"{}\"", operation.name());

    REQUESTS_TOTAL.write_header(out);
    for operation in &used {
        let outcomes = model.total_outcomes(*operation);
        let ends =
            [("done", outcomes.done), ("refused", outcomes.rejected), ("given_up", outcomes.cancelled)];
        let failed = Failure::ALL.map(|failure| (failure.name(), outcomes.failed[failure as usize]));
        for (end, count) in ends.into_iter().chain(failed).filter(|(_, count)| *count > 0) {
            REQUESTS_TOTAL.write_sample(out, "", &format!("{},outcome=\"{end}\"", of(*operation)), count);
        }
    }
    IN_FLIGHT.write_header(out);
    for operation in &used {
        IN_FLIGHT.write_sample(out, "", &of(*operation), model.in_flight(*operation));
    }
    let times: Vec<(String, LatencySnapshot)> = used
        .iter()
        .map(|operation| (size_labels(*operation, of(*operation)), model.latencies(now, *operation)))
        .collect();
    REQUEST_SECONDS.write_header(out);
    for (labels, alike) in each_class(&times) {
        write_summary(&REQUEST_SECONDS, out, labels, alike, &alike.service, alike.service_total);
    }
    FIRST_BYTE.write_header(out);
    for (labels, alike) in each_class(&times).filter(|(_, alike)| alike.first_byte_total.count > 0) {
        write_summary(&FIRST_BYTE, out, labels, alike, &alike.first_byte, alike.first_byte_total);
    }
    for (metric, value) in [(BYTES, None), (RATE, Some(now))] {
        metric.write_header(out);
        for direction in Direction::ALL {
            let labels = format!("{store},direction=\"{}\"", direction.name());
            match value {
                None => metric.write_sample(out, "", &labels, model.total_bytes(direction)),
                Some(now) => metric.write_sample(out, "", &labels, model.throughput(now, direction).round()),
            }
        }
    }
    SAMPLE_AGE.write_header(out);
    for operation in &used {
        if let Some(age) = model.latest_sample_age(now, *operation) {
            SAMPLE_AGE.write_sample(out, "", &of(*operation), age.as_secs_f64());
        }
    }
}

/// Appends the metrics of the plan by which the store with this name is read.
pub fn render_plan(name: &str, planned: &ReadAhead, source: &PlanSource, out: &mut String) {
    let store = format!("store=\"{}\"", escape_label(name));
    PLAN_CONCURRENCY.write_header(out);
    for sizes in SizeClass::all() {
        let (size, bytes) = (size_label(sizes), sizes.max_bytes().unwrap_or(u64::MAX));
        let labels = format!("{store},from=\"{}\",up_to_bytes=\"{size}\"", source.label());
        PLAN_CONCURRENCY.write_sample(out, "", &labels, planned.plan().concurrency_for(bytes));
    }
    READ_AHEAD_BYTES.write_header(out);
    READ_AHEAD_BYTES.write_sample(out, "", &store, planned.held_bytes());
}

fn size_label(sizes: SizeClass) -> String {
    sizes.max_bytes().map_or("+Inf".to_owned(), |most| most.to_string())
}

fn is_used(model: &StoreModel, operation: Operation) -> bool {
    model.total_outcomes(operation) != Default::default() || model.in_flight(operation) > 0
}

/// Labels of an operation, ending in `up_to_bytes=` if the operation has a size.
fn size_labels(operation: Operation, labels: String) -> String {
    if operation.has_size() { format!("{labels},up_to_bytes=") } else { labels }
}

fn each_class(times: &[(String, LatencySnapshot)]) -> impl Iterator<Item = (&str, &SizeClassStats)> {
    times.iter().flat_map(|(labels, times)| times.classes().iter().map(move |alike| (labels.as_str(), alike)))
}

/// Writes a summary. An unknown quantile is NaN, as Prometheus requires.
fn write_summary(
    metric: &Metric,
    out: &mut String,
    labels: &str,
    alike: &SizeClassStats,
    times: &LatencyHistogram,
    total: Total,
) {
    let labels = if labels.ends_with('=') {
        format!("{labels}\"{}\"", size_label(alike.size_class))
    } else {
        labels.to_owned()
    };
    for (name, share) in QUANTILES {
        let time = times.quantile(share).map_or(f64::NAN, |time| time.as_secs_f64());
        metric.write_sample(out, "", &format!("{labels},quantile=\"{name}\""), time);
    }
    metric.write_sample(out, "_sum", &labels, total.time.as_secs_f64());
    metric.write_sample(out, "_count", &labels, total.count);
}

/// Escapes the value of a label.
fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_model::store_model::RequestOutcome;

    fn ended(model: &StoreModel, operation: Operation, end: RequestOutcome) {
        let request = model.begin(operation);
        model.end(Duration::from_secs(1), request, end);
    }

    #[test]
    fn render_writes_prometheus_text() {
        let (model, second) = (StoreModel::new(), Duration::from_secs(1));
        for bytes in [10, 4096, 1 << 30] {
            let request = model.begin(Operation::Get);
            model.record_first_byte(second, &request, bytes, Duration::from_millis(2), Duration::ZERO);
            model.record_bytes(second, Direction::Read, bytes);
            model.end(second, request, RequestOutcome::Done { bytes, service: Duration::from_millis(4) });
        }
        ended(&model, Operation::Head, RequestOutcome::Done { bytes: 0, service: Duration::from_millis(1) });
        ended(&model, Operation::Head, RequestOutcome::Failed(Failure::TimedOut));
        ended(&model, Operation::Put, RequestOutcome::Cancelled { waited: second });
        let underway = model.begin(Operation::List);
        let render = |now| {
            let mut text = String::new();
            super::render("a \"b\"", &model, now, &mut text);
            text
        };
        let text = render(second);
        let store = "store=\"a \\\"b\\\"\"";
        for line in [
            "tradewind_store_requests_total{S,operation=\"get\",outcome=\"done\"} 3",
            "tradewind_store_requests_total{S,operation=\"head\",outcome=\"late\"} 1",
            "tradewind_store_requests_total{S,operation=\"put\",outcome=\"given_up\"} 1",
            "tradewind_store_requests_in_flight{S,operation=\"list\"} 1",
            "tradewind_store_requests_in_flight{S,operation=\"get\"} 0",
            "tradewind_store_request_seconds_sum{S,operation=\"get\",up_to_bytes=\"4096\"} 0.008",
            "tradewind_store_request_seconds_count{S,operation=\"get\",up_to_bytes=\"4096\"} 2",
            "tradewind_store_request_seconds_count{S,operation=\"get\",up_to_bytes=\"+Inf\"} 1",
            "tradewind_store_request_seconds_count{S,operation=\"head\"} 1",
            "tradewind_store_first_byte_seconds_sum{S,operation=\"get\",up_to_bytes=\"4096\"} 0.004",
            "tradewind_store_bytes_total{S,direction=\"read\"} 1073745930",
            "tradewind_store_bytes_total{S,direction=\"write\"} 0",
            "tradewind_store_sample_age_seconds{S,operation=\"get\"} 0",
        ] {
            let line = line.replace('S', store);
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let quantile = |text: &str, of: &str| {
            let begin = format!("tradewind_store_{of},quantile=\"0.99\"}} ").replace('S', store);
            let line = text.lines().find_map(|line| line.strip_prefix(&begin).map(str::to_owned));
            line.unwrap_or_else(|| panic!("{begin} is not in\n{text}")).parse::<f64>().unwrap()
        };
        let get = "request_seconds{S,operation=\"get\",up_to_bytes=\"4096\"";
        assert!((quantile(&text, get) - 0.004).abs() < 0.004 / 16.0);
        assert!(!text.contains("first_byte_seconds{store=\"a \\\"b\\\"\",operation=\"head\""));
        let later = render(Duration::from_secs(100));
        assert!(quantile(&later, get).is_nan(), "after a minute without requests it is unknown");
        assert!(later.contains("_count{store=\"a \\\"b\\\"\",operation=\"get\",up_to_bytes=\"4096\"} 2"));
        model.end(second, underway, RequestOutcome::Rejected);
    }
}
