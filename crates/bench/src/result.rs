//! The result file format: lines of JSON. The first describes the run; each measurement is one more line. Latencies are
//! stored as complete histograms, so that results of several runs and machines can be merged and compared.

mod merge;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::merge::{AgentMeasurement, AgentShare, merge_agents};
use crate::arrivals::Spacing;
use crate::batch_means;
use crate::caches::CacheTreatment;
use crate::drive::{EndReason, LoadOutcome};
pub use crate::figures::{LatencySummary, Rate};
use crate::load::{ArrivalMode, Load};
use crate::load_spec::LoadSpec;
use crate::operation::{Mix, Operation};
use crate::record::{CacheCounts, OperationStats};
use crate::replay::{Replay, TraceInfo};
use crate::samples::SampleCounts;
use crate::size_distribution::SizeDistribution;
use crate::test_plan::Step;

/// The schema of the lines. It changes when a reader of the previous schema would misread them.
pub const SCHEMA: &str = "tradewind-bench/2";

/// A line of a result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum ResultLine {
    /// The first line: the run and its environment.
    Run(Box<Run>),
    /// A measurement.
    Measurement(Box<Measurement>),
    /// A measurement of a mounted file system.
    Posix(Box<crate::posix::result::PosixRecord>),
    /// The last line.
    End {
        /// True if the run was stopped before everything was measured.
        partial: bool,
        /// Addresses of the store that connections were opened to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        servers: Vec<String>,
    },
}

/// A run and its environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the generator.
    pub version: String,
    /// Start time, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// The machine that generated the load; with agents, the coordinator.
    pub client: ClientMachine,
    /// The agents, if several machines generated the load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentInfo>,
    /// Location under test, as given by the user.
    pub location: String,
    /// Kind of store: `s3`, `swift` or `local`.
    pub store: String,
    /// Prefix of the names of all created objects.
    pub prefix: String,
    /// Random seed.
    pub seed: u64,
    /// True if each request used a new connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_connections: bool,
    /// Directory of the files that were uploaded and downloaded; `None` if they were in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_dir: Option<String>,
}

/// One of several machines that generated the load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Address of the agent.
    pub address: String,
    /// Its machine.
    pub client: ClientMachine,
}

/// A machine that generates load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientMachine {
    /// Host name.
    pub hostname: String,
    /// CPU model.
    pub cpu_model: String,
    /// Number of CPUs that this process may use.
    pub cores: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Version of the Linux kernel.
    pub kernel: String,
}

/// A measurement: one load on one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Names of the concurrent loads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrent_with: Vec<String>,
    /// The trace that was replayed. Mix, sizes and rate then describe the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceInfo>,
    /// Kinds of requests and their shares.
    pub mix: Mix,
    /// Object sizes.
    pub sizes: SizeDistribution,
    /// Concurrent requests; the maximum for an open loop.
    pub concurrency: usize,
    /// Arrival rate of an open loop, in req/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<f64>,
    /// Distribution of the interarrival times of an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spacing: Option<Spacing>,
    /// Round number, counted from 1.
    pub round: u32,
    /// Treatment of the client's caches before the start.
    #[serde(default, skip_serializing_if = "CacheTreatment::is_not_dropped")]
    pub caches: CacheTreatment,
    /// Start of the load, before the warm-up, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// Length of the warm-up, in seconds.
    pub warm_up_seconds: f64,
    /// Length of the measurement window, in seconds.
    pub measured_seconds: f64,
    /// Rate of all requests, in req/s.
    pub operations_per_second: Rate,
    /// Throughput, in bytes per second.
    pub bytes_per_second: Rate,
    /// Figures by kind of request.
    pub operations: BTreeMap<Operation, OperationFigures>,
    /// Requests that completed and bytes that passed, per 100 ms.
    pub series_100ms: Vec<(f64, f64)>,
    /// CPU time of the generator, in seconds.
    pub cpu_seconds: f64,
    /// CPU time by thread name, in seconds.
    pub cpu_threads: BTreeMap<String, f64>,
    /// CPU utilization of the whole machine, 0 to 1.
    pub machine_cpu_utilization: f64,
    /// Traffic of the store's connections, including that of concurrent loads. Zero for local stores.
    #[serde(default)]
    pub network: NetworkUsage,
    /// Delay between scheduled and actual release of open-loop requests. The generator causes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_lag_us: Option<LatencySummary>,
    /// Reads of objects that had been read before.
    pub repeated_reads: u64,
    /// Scheduled requests that never started.
    pub never_started: u64,
    /// Reason for the end.
    pub end_reason: EndReason,
    /// Warnings about the figures.
    pub notes: Vec<String>,
    /// State of the raw samples, if they were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<SampleCounts>,
    /// Shares of the agents, if several machines generated the load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentShare>,
    /// Maximum skew between the starts of the agents, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_skew_seconds: Option<f64>,
}

/// Traffic of a store's connections, without the headers of TCP and IP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Connections opened.
    pub connections: u64,
}

impl NetworkUsage {
    /// Bytes in both directions.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.bytes_sent.saturating_add(self.bytes_received)
    }

    const fn add(&mut self, other: Self) {
        self.bytes_sent = self.bytes_sent.saturating_add(other.bytes_sent);
        self.bytes_received = self.bytes_received.saturating_add(other.bytes_received);
        self.connections = self.connections.saturating_add(other.connections);
    }
}

/// Figures of one kind of request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationFigures {
    /// Successful requests that completed within the measurement window.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rate of the requests that completed within the window, in req/s.
    pub requests_per_second: f64,
    /// Throughput, in bytes per second: bytes that passed within the window, also those of requests that began before
    /// it or completed after it.
    pub bytes_per_second: f64,
    /// Reads by what the caches of the store said of them.
    #[serde(default, skip_serializing_if = "CacheCounts::is_empty")]
    pub cached: CacheCounts,
    /// Cancelled requests. They are in the latency histogram with the time waited, which is a lower bound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub truncated: u64,
    /// Failed requests by kind, including those outside the window.
    pub failures: BTreeMap<String, u64>,
    /// Messages of some failures.
    pub failure_samples: Vec<String>,
    /// Latency to the last byte, in microseconds.
    pub latency_us: LatencySummary,
    /// Latency to the first byte, in microseconds.
    pub first_byte_us: LatencySummary,
    /// For each second: requests, bytes, failures, mean latency and maximum latency in microseconds.
    pub series_1s: Vec<[u64; 5]>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl OperationFigures {
    fn from_stats(stats: &OperationStats, duration: Duration) -> Self {
        let rate = |all: f64| if duration.is_zero() { 0.0 } else { all / duration.as_secs_f64() };
        let seconds = stats.seconds.iter().map(|second| {
            let mean = second.latency_sum_us / second.operations.max(1);
            [second.operations, second.bytes, second.failures, mean, second.max_latency_us]
        });
        Self {
            operations: stats.operations,
            bytes: stats.bytes,
            requests_per_second: rate(stats.operations as f64),
            bytes_per_second: rate(stats.passed_bytes as f64),
            cached: stats.cached,
            truncated: stats.truncated,
            failures: stats.failures.clone(),
            failure_samples: stats.failure_samples.clone(),
            latency_us: LatencySummary::from_histogram(&stats.latency),
            first_byte_us: LatencySummary::from_histogram(&stats.first_byte),
            series_1s: seconds.collect(),
        }
    }
}

/// CPU utilization, of all CPUs or of one thread, above which the generator was the bottleneck.
const MAX_CPU_UTILIZATION: f64 = 0.9;
/// Minimum length of the measurement window in units of the longest latency. With less, too few requests complete in
/// it.
const MIN_WINDOW_LATENCIES: f64 = 5.0;
/// 99th percentile of the release delay above which an open loop did not produce the requested schedule.
const MAX_SCHEDULE_LAG: Duration = Duration::from_millis(5);

impl Measurement {
    /// Creates the measurement of a step that ran concurrently with `concurrent_with`, on a machine with `cores` CPUs.
    #[must_use]
    pub fn new(step: &Step, concurrent_with: Vec<String>, outcome: &LoadOutcome, cores: usize) -> Self {
        let load = &step.load;
        let measured_seconds = outcome.duration.as_secs_f64();
        let stats_by_operation = outcome.record.stats_by_operation();
        let operations: BTreeMap<Operation, OperationFigures> = stats_by_operation
            .iter()
            .map(|(operation, stats)| (*operation, OperationFigures::from_stats(stats, outcome.duration)))
            .collect();
        let series_100ms: Vec<(f64, f64)> = outcome
            .series_100ms
            .iter()
            .map(|amount| (amount.operations as f64, amount.bytes as f64))
            .collect();
        let (operations_per_second, bytes_per_second) =
            total_rates(&operations, &series_100ms, measured_seconds);
        let (requests_per_second, spacing) = match load.arrival_mode {
            ArrivalMode::Closed => (None, None),
            ArrivalMode::Open { requests_per_second, spacing } => (Some(requests_per_second), Some(spacing)),
        };
        let usage = &outcome.usage;
        Self {
            concurrent_with,
            trace: None,
            mix: load.mix.clone(),
            sizes: step.sizes.clone(),
            concurrency: load.concurrency,
            requests_per_second,
            spacing,
            round: step.round,
            caches: CacheTreatment::NotDropped,
            started_ms: outcome.started.millis(),
            warm_up_seconds: load.warm_up.as_secs_f64(),
            measured_seconds,
            operations_per_second,
            bytes_per_second,
            operations,
            series_100ms,
            cpu_seconds: usage.total().as_secs_f64(),
            cpu_threads: (usage.by_name().into_iter())
                .map(|(name, time)| (name.to_owned(), time.as_secs_f64()))
                .collect(),
            machine_cpu_utilization: usage.machine_utilization(),
            network: NetworkUsage {
                bytes_sent: outcome.traffic.sent_bytes,
                bytes_received: outcome.traffic.received_bytes,
                connections: outcome.traffic.connections,
            },
            schedule_lag_us: requests_per_second
                .map(|_| LatencySummary::from_histogram(&outcome.schedule_lag)),
            repeated_reads: outcome.repeated_reads,
            never_started: outcome.never_started,
            end_reason: outcome.end_reason,
            notes: notes(load, outcome, cores),
            samples: None,
            agents: Vec::new(),
            start_skew_seconds: None,
        }
    }

    /// Creates the measurement of a replay. The outcome comes with additional notes.
    #[must_use]
    pub fn from_replay(
        replay: &Replay,
        round: u32,
        (outcome, notes): (&LoadOutcome, Vec<String>),
        cores: usize,
    ) -> Self {
        let (load, sizes) = (replay.load(), replay.trace_summary().size_range());
        let measurement = Self::new(&Step { load, sizes, objects: 0, round }, Vec::new(), outcome, cores);
        let notes = measurement.notes.into_iter().chain(notes).collect();
        Self { trace: Some(replay.trace_info()), spacing: None, notes, ..measurement }
    }

    /// Sets the cache treatment and the state of the raw samples.
    #[must_use]
    pub fn with_context(mut self, caches: CacheTreatment, samples: Option<SampleCounts>) -> Self {
        self.notes.extend(samples.iter().flat_map(SampleCounts::notes));
        Self { caches, samples, ..self }
    }

    /// The load in its text form; for a trace, the equivalent load.
    #[must_use]
    pub fn load_spec(&self) -> LoadSpec {
        let arrival_mode = match (self.requests_per_second, self.spacing) {
            (Some(requests_per_second), Some(spacing)) => ArrivalMode::Open { requests_per_second, spacing },
            _ => ArrivalMode::Closed,
        };
        LoadSpec {
            mix: self.mix.clone(),
            sizes: self.sizes.clone(),
            concurrency: self.concurrency,
            arrival_mode,
        }
    }

    /// The display name, unique among the measurements of a round.
    #[must_use]
    pub fn name(&self) -> String {
        let alone = match &self.trace {
            Some(trace) => trace.name(self.concurrency),
            None => self.load_spec().to_string(),
        };
        self.concurrent_with.iter().fold(alone, |name, other| format!("{name} with {other}"))
    }

    /// CPU time of the generator per request, in microseconds. `None` with concurrent loads: they share the CPU time.
    #[must_use]
    pub fn cpu_us_per_operation(&self) -> Option<f64> {
        let operations = self.operations_per_second.mean * self.measured_seconds;
        (operations > 0.0 && self.concurrent_with.is_empty()).then(|| self.cpu_seconds * 1e6 / operations)
    }

    /// Returns true if it ended early: it was stopped or is void.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.end_reason == EndReason::Stopped || self.is_void()
    }

    /// Returns true if the requested rate was not measured: the store fell so far behind that the queue of due requests
    /// overflowed, here or in a concurrent load.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.end_reason == EndReason::Overrun
    }

    /// Returns true if no request succeeded within the measurement window, and none that succeeded later progressed in
    /// it.
    #[must_use]
    pub fn has_no_success(&self) -> bool {
        self.operations_per_second.mean <= 0.0 && self.bytes_per_second.mean <= 0.0
    }

    /// Network amplification: bytes on the store's connections in both directions, divided by the bytes of objects
    /// written and read. `None` with concurrent loads.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        let wire = self.network.total_bytes();
        let payload = self.bytes_per_second.mean * self.measured_seconds;
        (payload > 0.0 && wire > 0 && self.concurrent_with.is_empty()).then(|| wire as f64 / payload)
    }

    /// Returns true if the generator was CPU-bound on a machine with `cores` CPUs; with agents, if any of them was.
    #[must_use]
    pub fn was_generator_cpu_bound(&self, cores: usize) -> bool {
        let is_cpu_bound =
            |cpu: f64, cores: usize, seconds: f64| cpu > MAX_CPU_UTILIZATION * cores as f64 * seconds;
        let is_any_agent = self
            .agents
            .iter()
            .any(|agent| is_cpu_bound(agent.cpu_seconds, agent.cores, agent.measured_seconds));
        let is_this_client =
            self.agents.is_empty() && is_cpu_bound(self.cpu_seconds, cores, self.measured_seconds);
        self.machine_cpu_utilization > MAX_CPU_UTILIZATION || is_any_agent || is_this_client
    }

    /// The number of failed requests.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.operations.values().flat_map(|figures| figures.failures.values()).sum()
    }
}

/// Total request rate and throughput with confidence intervals, which follow from the variation per 100 ms.
fn total_rates(
    operations: &BTreeMap<Operation, OperationFigures>,
    series: &[(f64, f64)],
    measured_seconds: f64,
) -> (Rate, Rate) {
    let max_latency = operations.values().map(|figures| figures.latency_us.mean).fold(0.0, f64::max) / 1e6;
    // Without a latency, requests took longer than the window: all batches are progress of the same requests.
    let has_latencies = operations.values().all(|figures| {
        let is_idle = figures.requests_per_second <= 0.0 && figures.bytes_per_second <= 0.0;
        is_idle || figures.latency_us.count > 0
    });
    let batches = if has_latencies { batch_means::interval_count(measured_seconds, max_latency) } else { 0 };
    let rate = |mean: fn(&OperationFigures) -> f64, of: fn(&(f64, f64)) -> f64| {
        let amounts: Vec<f64> = series.iter().map(of).collect();
        let ci95_half_width = batch_means::estimate_rate_with_batches(&amounts, batches)
            .map(|rate| rate.ci95_half_width * 10.0);
        Rate { mean: operations.values().map(mean).sum(), ci95_half_width }
    };
    (
        rate(|of| of.requests_per_second, |interval| interval.0),
        rate(|of| of.bytes_per_second, |interval| interval.1),
    )
}

/// Returns warnings about conditions that make the figures misleading.
fn notes(load: &Load, outcome: &LoadOutcome, cores: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let seconds = outcome.duration.as_secs_f64().max(f64::MIN_POSITIVE);
    let used_cpus = outcome.usage.total().as_secs_f64() / seconds;
    let busiest = outcome.usage.busiest();
    if outcome.end_reason == EndReason::Overrun {
        notes.push(format!(
            "this is void: {} requests were queued for {} concurrent ones and {} more were dropped, so the load ended \
             after {seconds:.1} s; the store is far slower than the rate: use a lower rate",
            outcome.queued, load.concurrency, outcome.dropped
        ));
    }
    if used_cpus > MAX_CPU_UTILIZATION * cores as f64 {
        notes.push(format!(
            "the generator was the bottleneck: it used {used_cpus:.2} of {cores} CPUs; the store may be faster"
        ));
    } else if outcome.usage.machine_utilization() > MAX_CPU_UTILIZATION {
        notes.push(format!(
            "this machine was busy ({:.0} %): the store may be faster from a dedicated client machine",
            outcome.usage.machine_utilization() * 100.0
        ));
    } else if let Some((name, time)) =
        busiest.filter(|(_, time)| time.as_secs_f64() > MAX_CPU_UTILIZATION * seconds && cores > 1)
    {
        notes.push(format!("the thread {name:?} was busy for {:.2} s of {seconds:.2} s", time.as_secs_f64()));
    }
    let schedule_lag = Duration::from_micros(outcome.schedule_lag.value_at_quantile(0.99));
    if schedule_lag > MAX_SCHEDULE_LAG {
        notes.push(format!(
            "the generator was late: it released 1 % of the requests more than {:.1} ms after their scheduled time",
            schedule_lag.as_secs_f64() * 1e3
        ));
    }
    let stats_by_operation = outcome.record.stats_by_operation();
    let has_work = |stats: &OperationStats| stats.operations > 0 || stats.passed_bytes > 0;
    let max_latency = stats_by_operation.values().map(|stats| stats.latency.max()).max().unwrap_or(0);
    let max_latency = Duration::from_micros(max_latency).as_secs_f64();
    let without_latency = stats_by_operation
        .iter()
        .filter(|(_, stats)| has_work(stats) && stats.latency.is_empty())
        .map(|(operation, _)| operation.to_string());
    let without_latency: Vec<String> = without_latency.collect();
    if !without_latency.is_empty() {
        notes.push(format!(
            "no {} started within the measured {seconds:.1} s: they take longer and have no latency; measure longer",
            without_latency.join(" and no ")
        ));
    }
    if !stats_by_operation.values().any(has_work) {
        notes.push("nothing was measured: no request succeeded within the measured time".to_owned());
    } else if max_latency > seconds / MIN_WINDOW_LATENCIES {
        notes.push(format!(
            "requests took up to {max_latency:.1} s of the measured {seconds:.1} s, so few are in it: measure longer"
        ));
    }
    if outcome.end_reason != EndReason::Overrun && outcome.queued > load.concurrency as u64 {
        notes.push(format!(
            "{} requests were queued for {} concurrent ones at the end: the store, or this concurrency, cannot keep up \
             with the rate",
            outcome.queued, load.concurrency
        ));
    }
    if outcome.never_started > 0 && outcome.end_reason != EndReason::Overrun {
        notes.push(format!(
            "{} scheduled requests never started: the store was slower than the rate",
            outcome.never_started
        ));
    }
    let truncated: u64 = stats_by_operation.values().map(|stats| stats.truncated).sum();
    if truncated > 0 {
        notes.push(format!(
            "{truncated} requests were cancelled: the latencies include them with the time waited, so they are too low"
        ));
    }
    if outcome.repeated_reads > 0 {
        notes.push(format!(
            "{} reads were of objects that had been read before: caches may have made them faster",
            outcome.repeated_reads
        ));
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measurement_line(operation: &str, concurrency: usize, round: u32, rate: f64) -> String {
        let latency = r#"{"count":3,"mean":20.0,"p50":20,"p90":30,"p99":30,"p999":30,"max":30,"histogram_counts":[[10,1],[20,1],[30,1]]}"#;
        let bytes = rate * 4096.0;
        let figures = format!(
            r#"{{"operations":3,"bytes":12288,"requests_per_second":{rate},"bytes_per_second":{bytes},"failures":{{}},"failure_samples":[],"latency_us":{latency},"first_byte_us":{latency},"series_1s":[[3,12288,0,20,30]]}}"#
        );
        format!(
            r#"{{"line":"measurement","mix":"{operation}","sizes":"4KiB","concurrency":{concurrency},"round":{round},"started_ms":0,"warm_up_seconds":0.5,"measured_seconds":1.0,"operations_per_second":{{"mean":{rate},"ci95_half_width":1.0}},"bytes_per_second":{{"mean":{bytes},"ci95_half_width":null}},"operations":{{"{operation}":{figures}}},"series_100ms":[[1.0,4096.0],[2.0,8192.0]],"cpu_seconds":0.1,"cpu_threads":{{}},"machine_cpu_utilization":0.5,"repeated_reads":0,"never_started":0,"end_reason":"time_limit","notes":[]}}"#
        )
    }

    pub(crate) fn measurement(operation: &str, concurrency: usize, round: u32, rate: f64) -> Measurement {
        match serde_json::from_str(&measurement_line(operation, concurrency, round, rate)).unwrap() {
            ResultLine::Measurement(measurement) => *measurement,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rate_of_requests_without_latency_has_no_interval() {
        let mut operations = measurement("get", 1, 1, 100.0).operations;
        let series = [(10.0, 1.0); 20];
        assert!(total_rates(&operations, &series, 2.0).0.ci95_half_width.is_some());
        operations.values_mut().for_each(|figures| figures.latency_us.count = 0);
        assert_eq!(total_rates(&operations, &series, 2.0).0.ci95_half_width, None);
    }
}
