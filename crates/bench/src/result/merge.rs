//! Merges the measurements that several machines made concurrently. Counters and histograms are summed, and derived
//! figures are recomputed from the sums: percentiles cannot be combined from percentiles.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LatencySummary, Measurement, OperationFigures, total_rates};
use crate::drive::EndReason;
use crate::operation::Operation;
use crate::record::MAX_FAILURE_SAMPLES;

/// Maximum start skew of agents, as a fraction of the measurement window. Beyond it they did not run concurrently.
const MAX_SKEW_FRACTION: f64 = 0.05;

/// The share of one agent in a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentShare {
    /// Address of the agent.
    pub address: String,
    /// CPUs that it may use.
    pub cores: usize,
    /// Request rate, in req/s.
    pub operations_per_second: f64,
    /// Throughput, in bytes per second.
    pub bytes_per_second: f64,
    /// Length of its measurement window, in seconds.
    pub measured_seconds: f64,
    /// CPU time that it used, in seconds.
    pub cpu_seconds: f64,
}

/// The measurement of one agent.
#[derive(Debug, Clone)]
pub struct AgentMeasurement {
    /// Address of the agent.
    pub address: String,
    /// CPUs that it may use.
    pub cores: usize,
    /// Its measurement.
    pub measurement: Measurement,
}

/// Merges the measurements of agents whose starts differ by at most `start_skew`; `None` if there are none. All parts
/// have the same load, so its description is taken from the first. Concurrency and rates are summed.
#[must_use]
pub fn merge_agents(parts: Vec<AgentMeasurement>, start_skew: Duration) -> Option<Measurement> {
    let max_seconds = parts.iter().map(|part| part.measurement.measured_seconds).fold(0.0, f64::max);
    let mut parts = parts.into_iter();
    let mut all = blank(parts.next()?, max_seconds);
    for part in parts {
        let other = blank(part, max_seconds);
        all.add(other);
    }
    all.conclude(start_skew);
    Some(all)
}

/// The weight of a part's rate. Loads with a request limit end at different times: their common duration is the
/// longest, so the rates of shorter ones are scaled down. Loads with a time limit all ran for the same time.
fn weight(measurement: &Measurement, max_seconds: f64) -> f64 {
    if measurement.end_reason == EndReason::Exhausted && max_seconds > 0.0 {
        measurement.measured_seconds / max_seconds
    } else {
        1.0
    }
}

/// Converts one part into a measurement with weighted rates, its own share, and the agent's name on texts and threads.
fn blank(part: AgentMeasurement, max_seconds: f64) -> Measurement {
    let AgentMeasurement { address, cores, mut measurement } = part;
    let weight = weight(&measurement, max_seconds);
    measurement.agents = vec![AgentShare {
        address: address.clone(),
        cores,
        operations_per_second: measurement.operations_per_second.mean,
        bytes_per_second: measurement.bytes_per_second.mean,
        measured_seconds: measurement.measured_seconds,
        cpu_seconds: measurement.cpu_seconds,
    }];
    for figures in measurement.operations.values_mut() {
        figures.requests_per_second *= weight;
        figures.bytes_per_second *= weight;
        figures.failure_samples.iter_mut().for_each(|sample| *sample = format!("{address}: {sample}"));
    }
    let threads = std::mem::take(&mut measurement.cpu_threads);
    measurement.cpu_threads =
        threads.into_iter().map(|(name, time)| (format!("{address}:{name}"), time)).collect();
    measurement.notes.iter_mut().for_each(|note| *note = format!("{address}: {note}"));
    measurement
}

impl Measurement {
    fn add(&mut self, other: Self) {
        self.concurrency = self.concurrency.saturating_add(other.concurrency);
        self.requests_per_second =
            self.requests_per_second.zip(other.requests_per_second).map(|(own, addend)| own + addend);
        self.started_ms = self.started_ms.min(other.started_ms);
        self.measured_seconds = self.measured_seconds.max(other.measured_seconds);
        for (operation, figures) in other.operations {
            add_figures(&mut self.operations, operation, figures);
        }
        if self.series_100ms.len() < other.series_100ms.len() {
            self.series_100ms.resize(other.series_100ms.len(), (0.0, 0.0));
        }
        for (own, addend) in self.series_100ms.iter_mut().zip(&other.series_100ms) {
            *own = (own.0 + addend.0, own.1 + addend.1);
        }
        self.cpu_seconds += other.cpu_seconds;
        self.cpu_threads.extend(other.cpu_threads);
        self.machine_cpu_utilization = self.machine_cpu_utilization.max(other.machine_cpu_utilization);
        self.network.add(other.network);
        self.schedule_lag_us = match (self.schedule_lag_us.take(), other.schedule_lag_us) {
            (Some(own), Some(addend)) => Some(added(&own, &addend)),
            (own, addend) => own.or(addend),
        };
        self.repeated_reads = self.repeated_reads.saturating_add(other.repeated_reads);
        self.never_started = self.never_started.saturating_add(other.never_started);
        self.end_reason = worse(self.end_reason, other.end_reason);
        self.notes.extend(other.notes);
        self.agents.extend(other.agents);
    }

    /// Recomputes the derived figures from the sums.
    fn conclude(&mut self, start_skew: Duration) {
        (self.operations_per_second, self.bytes_per_second) =
            total_rates(&self.operations, &self.series_100ms, self.measured_seconds);
        let start_skew = start_skew.as_secs_f64();
        self.start_skew_seconds = Some(start_skew);
        if start_skew > MAX_SKEW_FRACTION * self.measured_seconds {
            self.notes.push(format!(
                "the agents may have started {:.1} ms apart, too much for {:.1} s: measure longer",
                start_skew * 1e3,
                self.measured_seconds
            ));
        }
    }
}

/// The common ending of two parts: the more severe one.
const fn worse(one: EndReason, other: EndReason) -> EndReason {
    match (one, other) {
        (EndReason::Stopped, _) | (_, EndReason::Stopped) => EndReason::Stopped,
        (EndReason::Overrun, _) | (_, EndReason::Overrun) => EndReason::Overrun,
        (EndReason::TimeLimit, _) | (_, EndReason::TimeLimit) => EndReason::TimeLimit,
        (EndReason::Converged, _) | (_, EndReason::Converged) => EndReason::Converged,
        (EndReason::Exhausted, EndReason::Exhausted) => EndReason::Exhausted,
    }
}

fn add_figures(
    all: &mut BTreeMap<Operation, OperationFigures>,
    operation: Operation,
    other: OperationFigures,
) {
    let Some(merged) = all.get_mut(&operation) else {
        all.insert(operation, other);
        return;
    };
    merged.operations = merged.operations.saturating_add(other.operations);
    merged.bytes = merged.bytes.saturating_add(other.bytes);
    merged.requests_per_second += other.requests_per_second;
    merged.bytes_per_second += other.bytes_per_second;
    merged.cached.add(other.cached);
    merged.truncated = merged.truncated.saturating_add(other.truncated);
    for (kind, count) in other.failures {
        let sum = merged.failures.entry(kind).or_default();
        *sum = sum.saturating_add(count);
    }
    // Take samples from every part, so that those of the first do not displace the others.
    merged.failure_samples.truncate(
        MAX_FAILURE_SAMPLES.div_ceil(2).max(MAX_FAILURE_SAMPLES.saturating_sub(other.failure_samples.len())),
    );
    let capacity = MAX_FAILURE_SAMPLES.saturating_sub(merged.failure_samples.len());
    merged.failure_samples.extend(other.failure_samples.into_iter().take(capacity));
    merged.latency_us = added(&merged.latency_us, &other.latency_us);
    merged.first_byte_us = added(&merged.first_byte_us, &other.first_byte_us);
    if merged.series_1s.len() < other.series_1s.len() {
        merged.series_1s.resize(other.series_1s.len(), [0; 5]);
    }
    merged.series_1s.iter_mut().zip(&other.series_1s).for_each(|(own, addend)| *own = second(*own, *addend));
}

/// Merges one second of two machines: requests, bytes, failures, mean latency and maximum latency.
fn second(one: [u64; 5], other: [u64; 5]) -> [u64; 5] {
    let [operations, bytes, failures] = [0, 1, 2].map(|n: usize| one[n].saturating_add(other[n]));
    let latencies = |of: [u64; 5]| u128::from(of[0]) * u128::from(of[3]);
    // The numbers come from another machine and may be arbitrary.
    let sum = latencies(one).saturating_add(latencies(other));
    let mean = u64::try_from(sum / u128::from(operations.max(1))).unwrap_or(u64::MAX);
    [operations, bytes, failures, mean, one[4].max(other[4])]
}

fn added(one: &LatencySummary, other: &LatencySummary) -> LatencySummary {
    let mut all = one.to_histogram();
    // An auto-resizing histogram cannot fail here.
    let _ = all.add(other.to_histogram());
    LatencySummary::from_histogram(&all)
}

#[cfg(test)]
mod tests;
