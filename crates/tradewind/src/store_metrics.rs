//! What is known of stores, declared here with unit and labels, and written as Prometheus text.
//!
//! Labels are the store's name in the settings, the kind of request, how it ended, which way bytes go and the class of
//! sizes: at most some 800 series of a store, of which only those come that there were requests for.

use std::fmt::Write as _;
use std::time::Duration;

use tradewind_model::store_model::{
    Alike, Direction, Failure, Operation, SizeClass, Spread, StoreModel, Times, Total,
};
use tradewind_volume::Planned;

use crate::plans::Source;

const REQUESTS: Metric = Metric {
    name: "tradewind_store_requests_total",
    kind: "counter",
    help: "Requests to the store that ended, by kind and by how: done, refused (as it has to be), given_up by \
           whoever asked, or failed: busy, unavailable, late, corrupt, internal.",
};
const IN_FLIGHT: Metric = Metric {
    name: "tradewind_store_requests_in_flight",
    kind: "gauge",
    help: "Requests to the store under way, by kind.",
};
const SECONDS: Metric = Metric {
    name: "tradewind_store_request_seconds",
    kind: "summary",
    help: "How long requests that were done were waited for, in seconds, by kind and largest size; quantiles are \
           those of the last minute.",
};
const FIRST_BYTE: Metric = Metric {
    name: "tradewind_store_first_byte_seconds",
    kind: "summary",
    help: "How long the first byte of a read, or the answer behind the last byte of a write, was waited for, in \
           seconds, by kind and largest size; quantiles are those of the last minute.",
};
const BYTES: Metric = Metric {
    name: "tradewind_store_bytes_total",
    kind: "counter",
    help: "Bytes of objects read from the store and written to it.",
};
const RATE: Metric = Metric {
    name: "tradewind_store_bytes_per_second",
    kind: "gauge",
    help: "Bytes of objects a second over the last five seconds, read and written.",
};
const AGE: Metric = Metric {
    name: "tradewind_store_sample_age_seconds",
    kind: "gauge",
    help: "Seconds since a request last told how long it takes, by kind.",
};

const AT_A_TIME: Metric = Metric {
    name: "tradewind_plan_requests",
    kind: "gauge",
    help: "Requests that carry objects at a time, at the most, by largest size and by what that follows from: a \
           profile of the store, one that is scaled, or the default where nothing is known.",
};
const AHEAD: Metric = Metric {
    name: "tradewind_plan_ahead_bytes",
    kind: "gauge",
    help: "Bytes of large objects that are held now, fetched ahead of whoever reads them.",
};

const QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

impl Metric {
    fn head(&self, out: &mut String) {
        let Self { name, kind, help } = self;
        let _never = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&self, out: &mut String, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        let _never = writeln!(out, "{}{suffix}{{{labels}}} {value}", self.name);
    }
}

/// Appends what the model knows at `now` of the store of this name.
pub fn render(name: &str, model: &StoreModel, now: Duration, out: &mut String) {
    let store = format!("store=\"{}\"", escaped(name));
    let used: Vec<Operation> = Operation::ALL.into_iter().filter(|kind| is_used(model, *kind)).collect();
    let of = |operation: Operation| format!("{store},operation=\"{}\"", operation.name());

    REQUESTS.head(out);
    for operation in &used {
        let outcomes = model.all_outcomes(*operation);
        let ends = [("done", outcomes.done), ("refused", outcomes.refused), ("given_up", outcomes.given_up)];
        let failed = Failure::ALL.map(|failure| (failure.name(), outcomes.failed[failure as usize]));
        for (end, count) in ends.into_iter().chain(failed).filter(|(_, count)| *count > 0) {
            REQUESTS.line(out, "", &format!("{},outcome=\"{end}\"", of(*operation)), count);
        }
    }
    IN_FLIGHT.head(out);
    for operation in &used {
        IN_FLIGHT.line(out, "", &of(*operation), model.in_flight(*operation));
    }
    let times: Vec<(String, Times)> = used
        .iter()
        .map(|operation| (sized(*operation, of(*operation)), model.times(now, *operation)))
        .collect();
    SECONDS.head(out);
    for (labels, alike) in each(&times) {
        summary(&SECONDS, out, labels, alike, &alike.service, alike.done);
    }
    FIRST_BYTE.head(out);
    for (labels, alike) in each(&times).filter(|(_, alike)| alike.answered.count > 0) {
        summary(&FIRST_BYTE, out, labels, alike, &alike.first_byte, alike.answered);
    }
    for (metric, value) in [(BYTES, None), (RATE, Some(now))] {
        metric.head(out);
        for direction in Direction::ALL {
            let labels = format!("{store},direction=\"{}\"", direction.name());
            match value {
                None => metric.line(out, "", &labels, model.all_moved(direction)),
                Some(now) => metric.line(out, "", &labels, model.throughput(now, direction).round()),
            }
        }
    }
    AGE.head(out);
    for operation in &used {
        if let Some(age) = model.age(now, *operation) {
            AGE.line(out, "", &of(*operation), age.as_secs_f64());
        }
    }
}

/// Appends the plan that the store of this name is read under.
pub fn render_plan(name: &str, planned: &Planned, source: &Source, out: &mut String) {
    let store = format!("store=\"{}\"", escaped(name));
    AT_A_TIME.head(out);
    for sizes in SizeClass::all() {
        let (size, bytes) = (of_class(sizes), sizes.most_bytes().unwrap_or(u64::MAX));
        let labels = format!("{store},from=\"{}\",up_to_bytes=\"{size}\"", source.word());
        AT_A_TIME.line(out, "", &labels, planned.plan().parallel(bytes));
    }
    AHEAD.head(out);
    AHEAD.line(out, "", &store, planned.held_ahead());
}

fn of_class(sizes: SizeClass) -> String {
    sizes.most_bytes().map_or("+Inf".to_owned(), |most| most.to_string())
}

fn is_used(model: &StoreModel, operation: Operation) -> bool {
    model.all_outcomes(operation) != Default::default() || model.in_flight(operation) > 0
}

/// The beginning of labels, where a size follows or not.
fn sized(operation: Operation, labels: String) -> String {
    if operation.has_size() { format!("{labels},up_to_bytes=") } else { labels }
}

fn each(times: &[(String, Times)]) -> impl Iterator<Item = (&str, &Alike)> {
    times.iter().flat_map(|(labels, times)| times.classes().iter().map(move |alike| (labels.as_str(), alike)))
}

/// A quantile that nothing is known of is not a number, as Prometheus has it.
fn summary(metric: &Metric, out: &mut String, labels: &str, alike: &Alike, times: &Spread, total: Total) {
    let labels = if labels.ends_with('=') {
        format!("{labels}\"{}\"", of_class(alike.sizes))
    } else {
        labels.to_owned()
    };
    for (name, share) in QUANTILES {
        let time = times.quantile(share).map_or(f64::NAN, |time| time.as_secs_f64());
        metric.line(out, "", &format!("{labels},quantile=\"{name}\""), time);
    }
    metric.line(out, "_sum", &labels, total.time.as_secs_f64());
    metric.line(out, "_count", &labels, total.count);
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_model::store_model::End;

    fn ended(model: &StoreModel, operation: Operation, end: End) {
        let request = model.begin(operation);
        model.end(Duration::from_secs(1), request, end);
    }

    #[test]
    fn text_form() {
        let (model, second) = (StoreModel::new(), Duration::from_secs(1));
        for bytes in [10, 4096, 1 << 30] {
            let request = model.begin(Operation::Get);
            model.answered(second, &request, bytes, Duration::from_millis(2), Duration::ZERO);
            model.moved(second, Direction::Read, bytes);
            model.end(second, request, End::Done { bytes, service: Duration::from_millis(4) });
        }
        ended(&model, Operation::Head, End::Done { bytes: 0, service: Duration::from_millis(1) });
        ended(&model, Operation::Head, End::Failed(Failure::Late));
        ended(&model, Operation::Put, End::GivenUp { waited: second });
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
        assert!(quantile(&later, get).is_nan(), "a minute later nobody knows");
        assert!(later.contains("_count{store=\"a \\\"b\\\"\",operation=\"get\",up_to_bytes=\"4096\"} 2"));
        model.end(second, underway, End::Refused);
    }
}
