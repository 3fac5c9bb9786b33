//! Merges the measurements that several machines made concurrently. Counters and histograms are summed, and derived
//! figures are recomputed from the sums: percentiles cannot be combined from percentiles.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cell, Figures, Latency, rates, short};
use crate::drive::Ending;
use crate::operation::Operation;
use crate::record::SAMPLES;

/// Maximum start skew of agents, as a fraction of the measurement window. Beyond it they did not run concurrently.
const MAX_SKEW_FRACTION: f64 = 0.05;

/// The share of one agent in a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Address of the agent.
    pub agent: String,
    /// CPUs that it may use.
    pub cores: usize,
    /// Request rate, in req/s.
    pub operations_per_second: f64,
    /// Throughput, in bytes per second.
    pub bytes_per_second: f64,
    /// Length of its measurement window, in seconds.
    pub seconds: f64,
    /// CPU time that it used, in seconds.
    pub cpu_seconds: f64,
}

/// The measurement of one agent.
#[derive(Debug, Clone)]
pub struct Part {
    /// Address of the agent.
    pub agent: String,
    /// CPUs that it may use.
    pub cores: usize,
    /// Its measurement.
    pub cell: Cell,
}

/// Merges the measurements of agents whose starts differ by at most `apart`; `None` if there are none. All parts have
/// the same load, so its description is taken from the first. Concurrency and rates are summed.
#[must_use]
pub fn merge(parts: Vec<Part>, apart: Duration) -> Option<Cell> {
    let longest = parts.iter().map(|part| part.cell.seconds).fold(0.0, f64::max);
    let mut parts = parts.into_iter();
    let mut all = blank(parts.next()?, longest);
    for part in parts {
        let other = blank(part, longest);
        all.add(other);
    }
    all.conclude(apart);
    Some(all)
}

/// The weight of a part's rate. Loads with a request limit end at different times: their common duration is the
/// longest, so the rates of shorter ones are scaled down. Loads with a time limit all ran for the same time.
fn weight(cell: &Cell, longest: f64) -> f64 {
    if cell.ending == Ending::Exhausted && longest > 0.0 { cell.seconds / longest } else { 1.0 }
}

/// Converts one part into a measurement with weighted rates, its own share, and the agent's name on texts and threads.
fn blank(part: Part, longest: f64) -> Cell {
    let Part { agent, cores, mut cell } = part;
    let weight = weight(&cell, longest);
    cell.agents = vec![Share {
        agent: agent.clone(),
        cores,
        operations_per_second: cell.operations_per_second.mean,
        bytes_per_second: cell.bytes_per_second.mean,
        seconds: cell.seconds,
        cpu_seconds: cell.cpu_seconds,
    }];
    for figures in cell.operations.values_mut() {
        figures.per_second *= weight;
        figures.bytes_per_second *= weight;
        figures.samples.iter_mut().for_each(|sample| *sample = format!("{agent}: {sample}"));
    }
    let threads = std::mem::take(&mut cell.cpu_threads);
    cell.cpu_threads = threads.into_iter().map(|(name, time)| (format!("{agent}:{name}"), time)).collect();
    cell.notes.iter_mut().for_each(|note| *note = format!("{agent}: {note}"));
    cell
}

impl Cell {
    fn add(&mut self, other: Self) {
        self.parallel = self.parallel.saturating_add(other.parallel);
        self.rate = self.rate.zip(other.rate).map(|(mine, others)| mine + others);
        self.began = self.began.min(other.began);
        self.seconds = self.seconds.max(other.seconds);
        for (operation, figures) in other.operations {
            add_figures(&mut self.operations, operation, figures);
        }
        if self.tenths.len() < other.tenths.len() {
            self.tenths.resize(other.tenths.len(), (0.0, 0.0));
        }
        for (mine, others) in self.tenths.iter_mut().zip(&other.tenths) {
            *mine = (short(mine.0 + others.0), short(mine.1 + others.1));
        }
        self.cpu_seconds += other.cpu_seconds;
        self.cpu_threads.extend(other.cpu_threads);
        self.machine_busy = self.machine_busy.max(other.machine_busy);
        let (mine, others) = (self.carried, other.carried);
        self.carried = (
            mine.0.saturating_add(others.0),
            mine.1.saturating_add(others.1),
            mine.2.saturating_add(others.2),
        );
        self.lag_us = match (self.lag_us.take(), other.lag_us) {
            (Some(mine), Some(others)) => Some(added(&mine, &others)),
            (mine, others) => mine.or(others),
        };
        self.repeated_reads = self.repeated_reads.saturating_add(other.repeated_reads);
        self.abandoned = self.abandoned.saturating_add(other.abandoned);
        self.ending = worse(self.ending, other.ending);
        self.notes.extend(other.notes);
        self.agents.extend(other.agents);
    }

    /// Recomputes the derived figures from the sums.
    fn conclude(&mut self, apart: Duration) {
        (self.operations_per_second, self.bytes_per_second) =
            rates(&self.operations, &self.tenths, self.seconds);
        let apart = apart.as_secs_f64();
        self.apart = Some(apart);
        if apart > MAX_SKEW_FRACTION * self.seconds {
            self.notes.push(format!(
                "the agents may have started {:.1} ms apart, too much for {:.1} s: measure longer",
                apart * 1e3,
                self.seconds
            ));
        }
    }
}

/// The common ending of two parts: the more severe one.
const fn worse(one: Ending, other: Ending) -> Ending {
    match (one, other) {
        (Ending::Stopped, _) | (_, Ending::Stopped) => Ending::Stopped,
        (Ending::Overrun, _) | (_, Ending::Overrun) => Ending::Overrun,
        (Ending::Time, _) | (_, Ending::Time) => Ending::Time,
        (Ending::Stable, _) | (_, Ending::Stable) => Ending::Stable,
        (Ending::Exhausted, Ending::Exhausted) => Ending::Exhausted,
    }
}

fn add_figures(all: &mut BTreeMap<Operation, Figures>, operation: Operation, other: Figures) {
    let Some(mine) = all.get_mut(&operation) else {
        all.insert(operation, other);
        return;
    };
    mine.operations = mine.operations.saturating_add(other.operations);
    mine.bytes = mine.bytes.saturating_add(other.bytes);
    mine.per_second += other.per_second;
    mine.bytes_per_second += other.bytes_per_second;
    mine.cut = mine.cut.saturating_add(other.cut);
    for (kind, count) in other.failures {
        let sum = mine.failures.entry(kind).or_default();
        *sum = sum.saturating_add(count);
    }
    // Take samples from every part, so that those of the first do not displace the others.
    mine.samples.truncate(SAMPLES.div_ceil(2).max(SAMPLES.saturating_sub(other.samples.len())));
    let room = SAMPLES.saturating_sub(mine.samples.len());
    mine.samples.extend(other.samples.into_iter().take(room));
    mine.latency_us = added(&mine.latency_us, &other.latency_us);
    mine.first_byte_us = added(&mine.first_byte_us, &other.first_byte_us);
    if mine.seconds.len() < other.seconds.len() {
        mine.seconds.resize(other.seconds.len(), [0; 5]);
    }
    mine.seconds.iter_mut().zip(&other.seconds).for_each(|(mine, others)| *mine = second(*mine, *others));
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

fn added(one: &Latency, other: &Latency) -> Latency {
    let mut all = one.histogram();
    // An auto-resizing histogram cannot fail here.
    let _ = all.add(other.histogram());
    Latency::of(&all)
}

#[cfg(test)]
mod tests;
