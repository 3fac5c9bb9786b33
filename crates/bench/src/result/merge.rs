//! Measurements that several machines made at the same time, as one. What can be added is added, histograms as histograms;
//! whatever follows from them is computed again from the sums. A percentile of percentiles means nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cell, Figures, Latency, rates, short};
use crate::drive::Ending;
use crate::operation::Operation;
use crate::record::SAMPLES;

/// Those who began further apart than this part of the time that counted did not run together.
const APART: f64 = 0.05;

/// What one of several machines had of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Which: where it was reached.
    pub agent: String,
    /// Processors that it may use.
    pub cores: usize,
    /// Requests a second.
    pub operations_per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How long it counted there.
    pub seconds: f64,
    /// Processor time that it took, in seconds.
    pub cpu_seconds: f64,
}

/// What a machine measured.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which: where it was reached.
    pub agent: String,
    /// Processors that it may use.
    pub cores: usize,
    /// What it measured.
    pub cell: Cell,
}

/// All of it as one measurement, of machines that may have begun so far apart; `None` where there is none. They were asked
/// the same: what tells cells apart is that of the first, and requests at a time and rates are those of all.
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

/// The part of a rate that counts. Loads of so many requests end each in its own time: together they took as long as the
/// longest. What ended with the time ran as long as all others, and as fast as it says.
fn weight(cell: &Cell, longest: f64) -> f64 {
    if cell.ending == Ending::Exhausted && longest > 0.0 { cell.seconds / longest } else { 1.0 }
}

/// One part alone, with its name on what is its own.
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

    /// What follows from the sums.
    fn conclude(&mut self, apart: Duration) {
        (self.operations_per_second, self.bytes_per_second) =
            rates(&self.operations, &self.tenths, self.seconds);
        let apart = apart.as_secs_f64();
        self.apart = Some(apart);
        if apart > APART * self.seconds {
            self.notes.push(format!(
                "the agents may have begun {:.1} ms apart, which is much of {:.1} s: measure longer",
                apart * 1e3,
                self.seconds
            ));
        }
    }
}

/// What is to be said of all where one ended so and another so.
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
    // Some of each, so that the first does not hide those of the others.
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

/// Requests, bytes, failures, the mean and the longest latency of two machines in one second.
fn second(one: [u64; 5], other: [u64; 5]) -> [u64; 5] {
    let [operations, bytes, failures] = [0, 1, 2].map(|n: usize| one[n].saturating_add(other[n]));
    let latencies = |of: [u64; 5]| u128::from(of[0]) * u128::from(of[3]);
    // Another machine may say whatever it likes.
    let sum = latencies(one).saturating_add(latencies(other));
    let mean = u64::try_from(sum / u128::from(operations.max(1))).unwrap_or(u64::MAX);
    [operations, bytes, failures, mean, one[4].max(other[4])]
}

fn added(one: &Latency, other: &Latency) -> Latency {
    let mut all = one.histogram();
    // It grows as it needs to.
    let _ = all.add(other.histogram());
    Latency::of(&all)
}

#[cfg(test)]
mod tests;
