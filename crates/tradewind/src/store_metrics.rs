//! The metrics of stores, declared with unit and labels, as collectors of `prometheus_client`.
//!
//! Labels are the store's name in the settings, the operation, the outcome, the direction of bytes, and the size class.
//! That is at most about 800 series per store; only those with requests are written.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use tradewind_backend::local::LocalStore;
use tradewind_gateway::metrics::{Family, encode_count};
use tradewind_layers::{Instrumented, ReadAhead};
use tradewind_model::store_statistics::{
    Direction, Failure, LatencyHistogram, LatencySnapshot, Operation, SizeClass, SizeClassStats,
    StoreStatistics,
};

use crate::served_plan::ServedPlan;

const REQUESTS: Family = Family::counter(
    "tradewind_store_requests",
    "Completed requests to the store, by operation and outcome: done, rejected (a correct error response, such as not \
     found), cancelled (by the caller), or a failure: busy, unavailable, timeout, corrupt, internal.",
);
const IN_FLIGHT: Family =
    Family::gauge("tradewind_store_requests_in_flight", "Requests to the store in flight, by operation.");
const LATENCY: Family = Family::gauge(
    "tradewind_store_latency_seconds",
    "Latency of successful requests to the store over the last minute, in seconds, without time spent waiting for a \
     slow client, by operation, maximum size and quantile; NaN without requests.",
);
const LATENCY_SUM: Family = Family::counter(
    "tradewind_store_request_time_seconds",
    "Sum of the latencies of successful requests to the store, in seconds, by operation and maximum size.",
);
const LATENCY_COUNT: Family = Family::counter(
    "tradewind_store_successful_requests",
    "Successful requests to the store, by operation and maximum size.",
);
const FIRST_BYTE: Family = Family::gauge(
    "tradewind_store_first_byte_seconds",
    "Seconds until the first byte of a read, or from the last byte of a write to the response, over the last minute, by \
     operation, maximum size and quantile; NaN without requests.",
);
const FIRST_BYTE_SUM: Family = Family::counter(
    "tradewind_store_first_byte_time_seconds",
    "Sum of the times to the first byte, in seconds, by operation and maximum size.",
);
const FIRST_BYTE_COUNT: Family = Family::counter(
    "tradewind_store_first_bytes",
    "Requests that received a first byte, by operation and maximum size.",
);
const BYTES: Family = Family::counter(
    "tradewind_store_bytes",
    "Object bytes read from the store and written to it, by direction.",
);
const RATE: Family = Family::gauge(
    "tradewind_store_bytes_per_second",
    "Object bytes per second over the last five seconds, by direction.",
);
const SAMPLE_AGE: Family = Family::gauge(
    "tradewind_store_sample_age_seconds",
    "Seconds since the last completed request, by operation.",
);
const PLAN_CONCURRENCY: Family = Family::gauge(
    "tradewind_plan_concurrency",
    "Maximum concurrent data requests by maximum size. Label from: profile, extrapolated (from another profile), or \
     default.",
);
const READ_AHEAD_BYTES: Family = Family::gauge(
    "tradewind_read_ahead_bytes",
    "Bytes of large objects in memory that were read ahead of the client.",
);
const READ_ONLY: Family =
    Family::gauge("tradewind_store_read_only", "1 if a failed sync has made the local store read-only.");
const FREE_BYTES: Family =
    Family::gauge("tradewind_store_free_bytes", "Bytes free on the device of a local store.");

const QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

type Labels = Vec<(&'static str, String)>;

/// A store with its name in the settings, which is a label.
pub struct NamedStore<S> {
    /// The name.
    pub name: String,
    /// The store.
    pub store: Arc<S>,
}

/// The plan by which a store is read.
pub struct PlanOfStore {
    /// The store's name in the settings.
    pub name: String,
    /// The layer that reads ahead.
    pub layer: Arc<ReadAhead>,
    /// The plan.
    pub plan: Arc<ServedPlan>,
}

/// Collects the live statistics of all stores. A family is declared once, so one collector has all of its samples.
pub struct StoreCollector(pub Vec<NamedStore<Instrumented>>);

/// Collects the plans by which stores are read.
pub struct PlanCollector(pub Vec<PlanOfStore>);

/// Collects the state of local stores.
pub struct LocalCollector(pub Vec<NamedStore<LocalStore>>);

macro_rules! opaque {
    ($($type:ident),*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($type))
            }
        }
    )*};
}
opaque!(PlanOfStore, StoreCollector, PlanCollector, LocalCollector);

impl<S> fmt::Debug for NamedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshots: Vec<StatisticsSnapshot<'_>> = self
            .0
            .iter()
            .map(|named| StatisticsSnapshot::new(&named.name, named.store.statistics(), named.store.now()))
            .collect();
        encode_statistics(&snapshots, &mut encoder)
    }
}

impl Collector for PlanCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = PLAN_CONCURRENCY.describe(&mut encoder)?;
        for PlanOfStore { name, layer, plan } in &self.0 {
            for class in SizeClass::all() {
                let bytes = class.max_bytes().unwrap_or(u64::MAX);
                let labels = [
                    ("store", name.as_str()),
                    ("from", plan.source.label()),
                    ("up_to_bytes", &size_label(class)),
                ];
                samples.encode_family(&labels)?.encode_gauge(&layer.plan().concurrency_for(bytes))?;
            }
        }
        let mut samples = READ_AHEAD_BYTES.describe(&mut encoder)?;
        for PlanOfStore { name, layer, .. } in &self.0 {
            samples.encode_family(&[("store", name.as_str())])?.encode_gauge(&layer.held_bytes())?;
        }
        Ok(())
    }
}

impl Collector for LocalCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = READ_ONLY.describe(&mut encoder)?;
        for NamedStore { name, store } in &self.0 {
            let is_read_only = u64::from(store.is_read_only());
            samples.encode_family(&[("store", name.as_str())])?.encode_gauge(&is_read_only)?;
        }
        let mut samples = FREE_BYTES.describe(&mut encoder)?;
        for NamedStore { name, store } in &self.0 {
            if let Ok(free) = store.free_bytes() {
                samples.encode_family(&[("store", name.as_str())])?.encode_gauge(&free)?;
            }
        }
        Ok(())
    }
}

/// The statistics of a store at one time.
struct StatisticsSnapshot<'a> {
    name: &'a str,
    statistics: &'a StoreStatistics,
    now: Duration,
    /// The operations with requests.
    used: Vec<Operation>,
    latencies: Vec<(Operation, LatencySnapshot)>,
}

impl<'a> StatisticsSnapshot<'a> {
    fn new(name: &'a str, statistics: &'a StoreStatistics, now: Duration) -> Self {
        let used: Vec<Operation> =
            Operation::ALL.into_iter().filter(|operation| is_used(statistics, *operation)).collect();
        let latencies =
            used.iter().map(|operation| (*operation, statistics.latencies(now, *operation))).collect();
        Self { name, statistics, now, used, latencies }
    }

    fn labels(&self, operation: Operation) -> [(&'static str, &str); 2] {
        [("store", self.name), ("operation", operation.name())]
    }

    /// The size classes of each operation, with their labels.
    fn classes(&self) -> impl Iterator<Item = (Labels, &SizeClassStats)> {
        self.latencies.iter().flat_map(move |(operation, snapshot)| {
            snapshot.classes().iter().map(move |stats| (class_labels(self.name, *operation, stats), stats))
        })
    }
}

/// Writes the metrics of stores.
fn encode_statistics(
    snapshots: &[StatisticsSnapshot<'_>],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    encode_requests(snapshots, encoder)?;
    encode_latencies(snapshots, encoder)?;
    encode_throughput(snapshots, encoder)?;
    let mut samples = SAMPLE_AGE.describe(encoder)?;
    for snapshot in snapshots {
        for operation in &snapshot.used {
            if let Some(age) = snapshot.statistics.latest_sample_age(snapshot.now, *operation) {
                samples.encode_family(&snapshot.labels(*operation))?.encode_gauge(&age.as_secs_f64())?;
            }
        }
    }
    Ok(())
}

fn encode_requests(snapshots: &[StatisticsSnapshot<'_>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut samples = REQUESTS.describe(encoder)?;
    for snapshot in snapshots {
        for operation in &snapshot.used {
            let outcomes = snapshot.statistics.total_outcomes(*operation);
            let ends =
                [("done", outcomes.done), ("rejected", outcomes.rejected), ("cancelled", outcomes.cancelled)];
            let failed = Failure::ALL.map(|failure| (failure.name(), outcomes.failed[failure as usize]));
            for (outcome, count) in ends.into_iter().chain(failed).filter(|(_, count)| *count > 0) {
                let [store, operation] = snapshot.labels(*operation);
                encode_count(&mut samples, &[store, operation, ("outcome", outcome)], count)?;
            }
        }
    }
    let mut samples = IN_FLIGHT.describe(encoder)?;
    for snapshot in snapshots {
        for operation in &snapshot.used {
            let in_flight = snapshot.statistics.in_flight(*operation);
            samples.encode_family(&snapshot.labels(*operation))?.encode_gauge(&in_flight)?;
        }
    }
    Ok(())
}

fn encode_latencies(
    snapshots: &[StatisticsSnapshot<'_>],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let classes = || snapshots.iter().flat_map(StatisticsSnapshot::classes);
    let classes_with_responses = || classes().filter(|(_, stats)| stats.first_byte_total.count > 0);
    let mut samples = LATENCY.describe(encoder)?;
    for (labels, stats) in classes() {
        encode_quantiles(&mut samples, &labels, &stats.response_time)?;
    }
    let mut samples = LATENCY_SUM.describe(encoder)?;
    for (labels, stats) in classes() {
        encode_seconds(&mut samples, &labels, stats.response_time_total.time)?;
    }
    let mut samples = LATENCY_COUNT.describe(encoder)?;
    for (labels, stats) in classes() {
        encode_count(&mut samples, &labels, stats.response_time_total.count)?;
    }
    let mut samples = FIRST_BYTE.describe(encoder)?;
    for (labels, stats) in classes_with_responses() {
        encode_quantiles(&mut samples, &labels, &stats.first_byte)?;
    }
    let mut samples = FIRST_BYTE_SUM.describe(encoder)?;
    for (labels, stats) in classes_with_responses() {
        encode_seconds(&mut samples, &labels, stats.first_byte_total.time)?;
    }
    let mut samples = FIRST_BYTE_COUNT.describe(encoder)?;
    for (labels, stats) in classes_with_responses() {
        encode_count(&mut samples, &labels, stats.first_byte_total.count)?;
    }
    Ok(())
}

fn encode_throughput(
    snapshots: &[StatisticsSnapshot<'_>],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let directions = || snapshots.iter().flat_map(|each| Direction::ALL.map(|direction| (each, direction)));
    let mut samples = BYTES.describe(encoder)?;
    for (snapshot, direction) in directions() {
        let labels = [("store", snapshot.name), ("direction", direction.name())];
        encode_count(&mut samples, &labels, snapshot.statistics.total_bytes(direction))?;
    }
    let mut samples = RATE.describe(encoder)?;
    for (snapshot, direction) in directions() {
        let labels = [("store", snapshot.name), ("direction", direction.name())];
        let rate = snapshot.statistics.throughput(snapshot.now, direction).round();
        samples.encode_family(&labels)?.encode_gauge(&rate)?;
    }
    Ok(())
}

fn size_label(class: SizeClass) -> String {
    class.max_bytes().map_or("+Inf".to_owned(), |bytes| bytes.to_string())
}

fn is_used(statistics: &StoreStatistics, operation: Operation) -> bool {
    statistics.total_outcomes(operation) != Default::default() || statistics.in_flight(operation) > 0
}

/// Labels of a size class of an operation; without a size if the operation has none.
fn class_labels(name: &str, operation: Operation, stats: &SizeClassStats) -> Labels {
    let mut labels = vec![("store", name.to_owned()), ("operation", operation.name().to_owned())];
    if operation.has_size() {
        labels.push(("up_to_bytes", size_label(stats.size_class)));
    }
    labels
}

/// Writes the quantiles of the last minute. An unknown quantile is NaN.
fn encode_quantiles(
    samples: &mut MetricEncoder<'_>,
    labels: &Labels,
    times: &LatencyHistogram,
) -> fmt::Result {
    for (name, share) in QUANTILES {
        let seconds = times.quantile(share).map_or(f64::NAN, |time| time.as_secs_f64());
        let mut labels = labels.clone();
        labels.push(("quantile", name.to_owned()));
        samples.encode_family(&labels)?.encode_gauge(&seconds)?;
    }
    Ok(())
}

fn encode_seconds(samples: &mut MetricEncoder<'_>, labels: &Labels, time: Duration) -> fmt::Result {
    samples.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&time.as_secs_f64(), None)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_text;
    use prometheus_client::registry::Registry;
    use tradewind_model::store_statistics::RequestOutcome;

    use super::*;

    #[derive(Debug)]
    struct StatisticsCollector(Arc<StoreStatistics>, Duration);

    impl Collector for StatisticsCollector {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let other = StatisticsSnapshot::new("other", &self.0, self.1);
            let snapshots = [StatisticsSnapshot::new("a \"b\"", &self.0, self.1), other];
            encode_statistics(&snapshots, &mut encoder)
        }
    }

    fn ended(statistics: &StoreStatistics, operation: Operation, end: RequestOutcome) {
        let request = statistics.begin(operation);
        statistics.end(Duration::from_secs(1), request, end);
    }

    #[test]
    fn collector_writes_prometheus_text() {
        let (statistics, second) = (Arc::new(StoreStatistics::new()), Duration::from_secs(1));
        for bytes in [10, 4096, 1 << 30] {
            let request = statistics.begin(Operation::Get);
            statistics.record_first_byte(second, &request, bytes, Duration::from_millis(2), Duration::ZERO);
            statistics.record_bytes(second, Direction::Read, bytes);
            statistics.end(
                second,
                request,
                RequestOutcome::Done { bytes, response_time: Duration::from_millis(4) },
            );
        }
        ended(
            &statistics,
            Operation::Head,
            RequestOutcome::Done { bytes: 0, response_time: Duration::from_millis(1) },
        );
        ended(&statistics, Operation::Head, RequestOutcome::Failed(Failure::TimedOut));
        ended(&statistics, Operation::Put, RequestOutcome::Cancelled { waited: second });
        let in_flight = statistics.begin(Operation::List);
        let render = |now| {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(StatisticsCollector(statistics.clone(), now)));
            let mut text = String::new();
            prometheus_text::encode(&mut text, &registry).unwrap();
            text
        };
        let text = render(second);
        let store = "store=\"a \\\"b\\\"\"";
        for line in [
            "tradewind_store_requests_total{S,operation=\"get\",outcome=\"done\"} 3",
            "tradewind_store_requests_total{S,operation=\"head\",outcome=\"timeout\"} 1",
            "tradewind_store_requests_total{S,operation=\"put\",outcome=\"cancelled\"} 1",
            "tradewind_store_requests_in_flight{S,operation=\"list\"} 1",
            "tradewind_store_requests_in_flight{S,operation=\"get\"} 0",
            "tradewind_store_request_time_seconds_total{S,operation=\"get\",up_to_bytes=\"4096\"} 0.008",
            "tradewind_store_successful_requests_total{S,operation=\"get\",up_to_bytes=\"4096\"} 2",
            "tradewind_store_successful_requests_total{S,operation=\"get\",up_to_bytes=\"+Inf\"} 1",
            "tradewind_store_successful_requests_total{S,operation=\"head\"} 1",
            "tradewind_store_first_byte_time_seconds_total{S,operation=\"get\",up_to_bytes=\"4096\"} 0.004",
            "tradewind_store_bytes_total{S,direction=\"read\"} 1073745930",
            "tradewind_store_bytes_total{S,direction=\"write\"} 0",
            "tradewind_store_sample_age_seconds{S,operation=\"get\"} 0.0",
        ] {
            let line = line.replace('S', store);
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
            let other = line.replace(store, "store=\"other\"");
            assert!(text.lines().any(|l| l == other), "{other} is not in\n{text}");
        }
        let declared = text.lines().filter(|line| line.starts_with("# TYPE tradewind_store_requests_total "));
        assert_eq!(declared.count(), 1, "a family is declared once for all stores\n{text}");
        let quantile = |text: &str, of: &str| {
            let begin = format!("tradewind_store_{of},quantile=\"0.99\"}} ").replace('S', store);
            let line = text.lines().find_map(|line| line.strip_prefix(&begin).map(str::to_owned));
            line.unwrap_or_else(|| panic!("{begin} is not in\n{text}")).parse::<f64>().unwrap()
        };
        let get = "latency_seconds{S,operation=\"get\",up_to_bytes=\"4096\"";
        assert!((quantile(&text, get) - 0.004).abs() < 0.004 / 16.0);
        assert!(!text.contains("first_byte_seconds{store=\"a \\\"b\\\"\",operation=\"head\""));
        let later = render(Duration::from_secs(100));
        assert!(quantile(&later, get).is_nan(), "after a minute without requests it is unknown");
        assert!(later.contains(
            "successful_requests_total{store=\"a \\\"b\\\"\",operation=\"get\",up_to_bytes=\"4096\"} 2"
        ));
        statistics.end(second, in_flight, RequestOutcome::Rejected);
    }
}
