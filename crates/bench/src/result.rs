//! Results as they are kept: lines of JSON, the first of which says what ran where, and one for each measurement. Latencies
//! are whole histograms, so that results of several runs and machines can be added up and compared.

mod merge;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::merge::{Part, Share, merge};
use crate::arrivals::Spacing;
use crate::asked::Asked;
use crate::caches::Caches;
use crate::drive::{Ending, Outcome};
pub use crate::figures::{Latency, Rate};
use crate::load::{Load, Pace};
use crate::operation::{Mix, Operation};
use crate::record::Tally;
use crate::replay::{Replay, Traced};
use crate::samples::Sampled;
use crate::sizes::Sizes;
use crate::summary;
use crate::survey::Step;

/// The form of the lines. It changes where a reader of the one before would misread them.
pub const SCHEMA: &str = "tradewind-bench/1";

/// A line of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    /// The first: what ran where.
    Run(Box<Run>),
    /// A measurement.
    Cell(Box<Cell>),
    /// About a mounted file system.
    Posix(Box<crate::posix::result::Measured>),
    /// The last: whether all was measured that was to be.
    End {
        /// It was stopped before that.
        partial: bool,
        /// Where the store answered: each address that there was a connection to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        servers: Vec<String>,
    },
}

/// What ran where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// Of the generator.
    pub version: String,
    /// In milliseconds since 1970 UTC.
    pub started: i64,
    /// The machine that asked; where several did, the one that told them to.
    pub client: Client,
    /// The machines that asked, where they were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Agent>,
    /// What was asked: the place as it was given, and what kind of store it is.
    pub place: String,
    /// `s3`, `swift`, `local`.
    pub store: String,
    /// What the names of all objects that are made begin with.
    pub prefix: String,
    /// Where chance began.
    pub seed: u64,
    /// Each request had a connection of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
    /// The directory of the files that were uploaded and downloaded to; `None`: they were in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
}

/// One of several machines that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Where it was reached.
    pub agent: String,
    /// What it is.
    pub client: Client,
}

/// The machine that asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// What its processors call themselves.
    pub processor: String,
    /// How many of them this process may use.
    pub cores: usize,
    /// In bytes.
    pub memory: u64,
    /// Which Linux.
    pub kernel: String,
}

/// A measurement: one load on one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What was asked at the same time by others, as this cell is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// The trace that was replayed. Mix, sizes and rate are what that came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Traced>,
    /// What was asked.
    pub mix: Mix,
    /// How large the objects were.
    pub sizes: Sizes,
    /// Requests at a time; of an open loop the most.
    pub parallel: usize,
    /// Requests a second that were meant to start: an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// How those lay apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spacing: Option<Spacing>,
    /// Which of several of the same, from 1 on.
    pub repeat: u32,
    /// How caches of the machine that asked were dropped before it began.
    #[serde(default, skip_serializing_if = "Caches::are_kept")]
    pub caches: Caches,
    /// When the load began, in milliseconds since 1970 UTC: before the warm-up.
    pub began: i64,
    /// For so long nothing counted.
    pub warm_up: f64,
    /// How long it counted.
    pub seconds: f64,
    /// All requests a second, and how sure that is.
    pub operations_per_second: Rate,
    /// The same of bytes.
    pub bytes_per_second: Rate,
    /// By kind of request.
    pub operations: BTreeMap<Operation, Figures>,
    /// Requests and bytes in each tenth of a second. A request counts in each with the part of it that lies there.
    pub tenths: Vec<(f64, f64)>,
    /// Processor time of the generator, in seconds.
    pub cpu_seconds: f64,
    /// The same by name of the threads.
    pub cpu_threads: BTreeMap<String, f64>,
    /// How much of the machine was busy, by whomever: 0 to 1.
    pub machine_busy: f64,
    /// What the store's connections carried, those of others beside it as well: bytes out, bytes in, and how many connections
    /// were made. Nothing where it is no service.
    #[serde(default)]
    pub carried: (u64, u64, u64),
    /// How late an open loop released its requests: the generator's own doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_us: Option<Latency>,
    /// Reads of objects that had been read before.
    pub repeated_reads: u64,
    /// Requests that were meant to start and never did.
    pub abandoned: u64,
    /// Why it ended.
    pub ending: Ending,
    /// What is to be known of the figures.
    pub notes: Vec<String>,
    /// What became of its raw samples, where they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<Sampled>,
    /// What each of several machines had of it, where several asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Share>,
    /// How far apart those may have begun, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<f64>,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Those that ended with success while it counted.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests a second. One that was under way at either end of the time that counted is throughput with its part.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Those that were given up. They are among the latencies with as long as they had waited: they took longer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cut: u64,
    /// Those that failed, by kind, whether or not it counted then.
    pub failures: BTreeMap<String, u64>,
    /// Some of those in full.
    pub samples: Vec<String>,
    /// Up to the last byte.
    pub latency_us: Latency,
    /// Up to the first.
    pub first_byte_us: Latency,
    /// Second by second: requests, bytes, failures, the mean and the longest latency in microseconds.
    pub seconds: Vec<[u64; 5]>,
}

/// Whether there is none of something.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Figures {
    fn of(tally: &Tally, time: Duration) -> Self {
        let rate = |all: f64| if time.is_zero() { 0.0 } else { all / time.as_secs_f64() };
        let seconds = tally.seconds.iter().map(|second| {
            let mean = second.latency_sum / second.operations.max(1);
            [second.operations, second.bytes, second.failures, mean, second.latency_most]
        });
        Self {
            operations: tally.operations,
            bytes: tally.bytes,
            per_second: rate(tally.throughput.operations),
            bytes_per_second: rate(tally.throughput.bytes),
            cut: tally.cut,
            failures: tally.failures.clone(),
            samples: tally.samples.clone(),
            latency_us: Latency::of(&tally.latency),
            first_byte_us: Latency::of(&tally.first_byte),
            seconds: seconds.collect(),
        }
    }
}

/// A generator that used more than this part of the processors, or of one that one of its threads has, was the bottleneck.
const BUSY: f64 = 0.9;
/// Of requests that take longer than this part of the time that counts, too few end within it.
const WAVES: f64 = 5.0;
/// An open loop that released a request of a hundred so much later than it was meant to start was not the one that was
/// asked for.
const LATE: Duration = Duration::from_millis(5);

impl Cell {
    /// What came of a step beside others, on a machine with so many cores.
    #[must_use]
    pub fn of(step: &Step, beside: Vec<String>, outcome: &Outcome, cores: usize) -> Self {
        let load = &step.load;
        let seconds = outcome.time.as_secs_f64();
        let tallies = outcome.record.tallies();
        let figures: BTreeMap<Operation, Figures> =
            tallies.iter().map(|(kind, tally)| (*kind, Figures::of(tally, outcome.time))).collect();
        let tenths: Vec<(f64, f64)> =
            outcome.tenths.iter().map(|amount| (short(amount.operations), short(amount.bytes))).collect();
        let (operations_per_second, bytes_per_second) = rates(&figures, &tenths, seconds);
        let (rate, spacing) = match load.pace {
            Pace::Closed => (None, None),
            Pace::Open { per_second, spacing } => (Some(per_second), Some(spacing)),
        };
        let usage = &outcome.usage;
        Self {
            beside,
            trace: None,
            mix: load.mix.clone(),
            sizes: step.sizes.clone(),
            parallel: load.parallel,
            rate,
            spacing,
            repeat: step.repeat,
            caches: Caches::Kept,
            began: outcome.began.millis(),
            warm_up: load.warm_up.as_secs_f64(),
            seconds,
            operations_per_second,
            bytes_per_second,
            operations: figures,
            tenths,
            cpu_seconds: usage.total().as_secs_f64(),
            cpu_threads: (usage.by_name().into_iter())
                .map(|(name, time)| (name.to_owned(), time.as_secs_f64()))
                .collect(),
            machine_busy: usage.machine(),
            carried: (outcome.carried.sent, outcome.carried.received, outcome.carried.connections),
            lag_us: rate.map(|_| Latency::of(&outcome.lag)),
            repeated_reads: outcome.repeats,
            abandoned: outcome.abandoned,
            ending: outcome.ending,
            notes: notes(load, outcome, cores),
            samples: None,
            agents: Vec::new(),
            apart: None,
        }
    }

    /// What came of a replay, of which these things are to be known.
    #[must_use]
    pub fn of_replay(
        replay: &Replay,
        repeat: u32,
        (outcome, notes): (&Outcome, Vec<String>),
        cores: usize,
    ) -> Self {
        let (load, sizes) = (replay.load(), replay.planned().between());
        let cell = Self::of(&Step { load, sizes, objects: 0, repeat }, Vec::new(), outcome, cores);
        let notes = cell.notes.into_iter().chain(notes).collect();
        Self { trace: Some(replay.traced()), spacing: None, notes, ..cell }
    }

    /// The same where caches were dropped before, and requests were kept one by one.
    #[must_use]
    pub fn under(mut self, caches: Caches, samples: Option<Sampled>) -> Self {
        self.notes.extend(samples.iter().flat_map(Sampled::notes));
        Self { caches, samples, ..self }
    }

    /// What was asked; of a trace, what that came to.
    #[must_use]
    pub fn asked(&self) -> Asked {
        let pace = match (self.rate, self.spacing) {
            (Some(per_second), Some(spacing)) => Pace::Open { per_second, spacing },
            _ => Pace::Closed,
        };
        Asked { mix: self.mix.clone(), sizes: self.sizes.clone(), parallel: self.parallel, pace }
    }

    /// What tells it apart from others, in words.
    #[must_use]
    pub fn name(&self) -> String {
        let alone = match &self.trace {
            Some(trace) => trace.name(self.parallel),
            None => self.asked().to_string(),
        };
        self.beside.iter().fold(alone, |name, other| format!("{name} beside {other}"))
    }

    /// Processor time of the generator for each request, in microseconds. That of requests beside others is not known.
    #[must_use]
    pub fn cpu_us_per_operation(&self) -> Option<f64> {
        let operations = self.operations_per_second.mean * self.seconds;
        (operations > 0.0 && self.beside.is_empty()).then(|| self.cpu_seconds * 1e6 / operations)
    }

    /// Whether it ended before it was to: somebody stopped it, or it is void.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.ending == Ending::Stopped || self.is_void()
    }

    /// Whether what was asked for was not measured: the store was so far behind the rate, its own or that of a load beside it,
    /// that some requests could not even wait.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.ending == Ending::Overrun
    }

    /// Whether no request had any success while it counted.
    #[must_use]
    pub fn has_nothing(&self) -> bool {
        self.operations_per_second.mean <= 0.0
    }

    /// Bytes on the store's connections, both ways, over those of objects that were written and read. That of requests beside
    /// others is not known.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        let (sent, received, _) = self.carried;
        let payload = self.bytes_per_second.mean * self.seconds;
        (payload > 0.0 && sent + received > 0 && self.beside.is_empty())
            .then(|| (sent + received) as f64 / payload)
    }

    /// Whether the machine that asked had no processor time left, of so many processors; where several asked, one of them.
    #[must_use]
    pub fn was_busy(&self, cores: usize) -> bool {
        let is_used_up = |cpu: f64, cores: usize, seconds: f64| cpu > BUSY * cores as f64 * seconds;
        let is_one_busy = self.agents.iter().any(|one| is_used_up(one.cpu_seconds, one.cores, one.seconds));
        let is_busy = self.agents.is_empty() && is_used_up(self.cpu_seconds, cores, self.seconds);
        self.machine_busy > BUSY || is_one_busy || is_busy
    }

    /// Requests that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.operations.values().flat_map(|figures| figures.failures.values()).sum()
    }
}

/// Requests and bytes a second of all kinds together, and how sure that is from what was done in each tenth of a second.
fn rates(figures: &BTreeMap<Operation, Figures>, tenths: &[(f64, f64)], seconds: f64) -> (Rate, Rate) {
    let longest = figures.values().map(|figures| figures.latency_us.mean).fold(0.0, f64::max) / 1e6;
    // Without a latency they took longer than all that counted, and each stretch is a part of the same ones.
    let are_known = figures.values().all(|figures| figures.per_second <= 0.0 || figures.latency_us.count > 0);
    let batches = if are_known { summary::stretches(seconds, longest) } else { 0 };
    let rate = |mean: fn(&Figures) -> f64, of: fn(&(f64, f64)) -> f64| {
        let amounts: Vec<f64> = tenths.iter().map(of).collect();
        let within = summary::rate_of(&amounts, batches).map(|rate| rate.within * 10.0);
        Rate { mean: figures.values().map(mean).sum(), within }
    };
    (rate(|of| of.per_second, |tenth| tenth.0), rate(|of| of.bytes_per_second, |tenth| tenth.1))
}

/// To three digits behind the point.
fn short(amount: f64) -> f64 {
    (amount * 1e3).round() / 1e3
}

/// What makes the figures say something else than they seem to.
fn notes(load: &Load, outcome: &Outcome, cores: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let seconds = outcome.time.as_secs_f64().max(f64::MIN_POSITIVE);
    let used = outcome.usage.total().as_secs_f64() / seconds;
    let most = outcome.usage.busiest();
    if outcome.ending == Ending::Overrun {
        notes.push(format!(
            "this is void: {} requests waited for one of {} at a time and {} more were given up, so it ended after {seconds:.1} s; \
             the store is far behind the rate: ask for less",
            outcome.waiting, load.parallel, outcome.refused
        ));
    }
    if used > BUSY * cores as f64 {
        notes.push(format!(
            "the generator was the bottleneck: it used {used:.2} of {cores} processors; the store may be faster"
        ));
    } else if outcome.usage.machine() > BUSY {
        notes.push(format!(
            "this machine was busy ({:.0} %): the store may be faster from a machine of its own",
            outcome.usage.machine() * 100.0
        ));
    } else if let Some((name, time)) =
        most.filter(|(_, time)| time.as_secs_f64() > BUSY * seconds && cores > 1)
    {
        notes.push(format!("the thread {name:?} was busy for {:.2} s of {seconds:.2} s", time.as_secs_f64()));
    }
    let late = Duration::from_micros(outcome.lag.value_at_quantile(0.99));
    if late > LATE {
        notes.push(format!(
            "the generator was late: it released one request of a hundred more than {:.1} ms behind its moment",
            late.as_secs_f64() * 1e3
        ));
    }
    let tallies = outcome.record.tallies();
    let done: f64 = tallies.values().map(|tally| tally.throughput.operations).sum();
    let longest = tallies.values().map(|tally| tally.latency.max()).max().unwrap_or(0);
    let longest = Duration::from_micros(longest).as_secs_f64();
    let unknown = tallies
        .iter()
        .filter(|(_, tally)| tally.throughput.operations > 0.0 && tally.latency.is_empty())
        .map(|(kind, _)| kind.to_string());
    let unknown: Vec<String> = unknown.collect();
    if !unknown.is_empty() {
        notes.push(format!(
            "no {} began within the {seconds:.1} s that counted: they take longer, and how long is not known; measure longer",
            unknown.join(" and no ")
        ));
    }
    if done <= 0.0 {
        notes.push("nothing was measured: no request had success within the time that counted".to_owned());
    } else if longest > seconds / WAVES {
        notes.push(format!(
            "requests took up to {longest:.1} s of the {seconds:.1} s that counted: few of them lie in it, measure longer or more"
        ));
    }
    if outcome.ending != Ending::Overrun && outcome.waiting > load.parallel as u64 {
        notes.push(format!(
            "{} requests waited for one of {} at a time when it ended: the store, or so many at a time, cannot keep up \
             with the rate",
            outcome.waiting, load.parallel
        ));
    }
    if outcome.abandoned > 0 && outcome.ending != Ending::Overrun {
        notes.push(format!(
            "{} requests were meant to start and never did: the store was slower than the rate",
            outcome.abandoned
        ));
    }
    let cut: u64 = tallies.values().map(|tally| tally.cut).sum();
    if cut > 0 {
        notes.push(format!(
            "{cut} requests were given up: they are among the latencies with as long as they had waited, and took longer"
        ));
    }
    if outcome.repeats > 0 {
        notes.push(format!(
            "{} reads were of objects that had been read before: a cache may have helped",
            outcome.repeats
        ));
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cell_line(operation: &str, parallel: usize, repeat: u32, rate: f64) -> String {
        let latency = r#"{"count":3,"mean":20.0,"p50":20,"p90":30,"p99":30,"p999":30,"max":30,"counts":[[10,1],[20,1],[30,1]]}"#;
        let bytes = rate * 4096.0;
        let figures = format!(
            r#"{{"operations":3,"bytes":12288,"per_second":{rate},"bytes_per_second":{bytes},"failures":{{}},"samples":[],"latency_us":{latency},"first_byte_us":{latency},"seconds":[[3,12288,0,20,30]]}}"#
        );
        format!(
            r#"{{"line":"cell","mix":"{operation}","sizes":"4KiB","parallel":{parallel},"repeat":{repeat},"began":0,"warm_up":0.5,"seconds":1.0,"operations_per_second":{{"mean":{rate},"within":1.0}},"bytes_per_second":{{"mean":{bytes},"within":null}},"operations":{{"{operation}":{figures}}},"tenths":[[1.0,4096.0],[2.0,8192.0]],"cpu_seconds":0.1,"cpu_threads":{{}},"machine_busy":0.5,"repeated_reads":0,"abandoned":0,"ending":"time","notes":[]}}"#
        )
    }

    pub(crate) fn cell(operation: &str, parallel: usize, repeat: u32, rate: f64) -> Cell {
        match serde_json::from_str(&cell_line(operation, parallel, repeat, rate)).unwrap() {
            Line::Cell(cell) => *cell,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_requests_without_a_latency_it_is_not_known_how_sure_their_rate_is() {
        let mut operations = cell("get", 1, 1, 100.0).operations;
        let tenths = [(10.0, 1.0); 20];
        assert!(rates(&operations, &tenths, 2.0).0.within.is_some());
        operations.values_mut().for_each(|figures| figures.latency_us.count = 0);
        assert_eq!(rates(&operations, &tenths, 2.0).0.within, None);
    }
}
