//! What requests were like: latencies as histograms, operations and bytes second by second, failures by kind. Records of
//! several workers, processes and machines are added up as they are, never as averages of averages.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::operation::Operation;

/// Milliseconds of a tenth of a second.
const TENTH_MILLIS: u128 = 100;
/// Failures that are told of in full.
const SAMPLES: usize = 5;
/// Significant digits of latencies: within a thousandth.
const DIGITS: u8 = 3;

/// A request that has ended. Times are since the origin of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// When it was meant to start: in a closed loop when it did.
    pub intended: Duration,
    /// When the first byte of what was asked for was there; the answer, where it has no bytes.
    pub first: Duration,
    /// When all of it was.
    pub ended: Duration,
}

/// The time that counts. What ends in it is throughput; what was meant to start in it is latency, whenever it ends:
/// otherwise the slowest would be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Since the origin of the run.
    pub begin: Duration,
    /// The first moment that does not count.
    pub end: Duration,
}

impl Window {
    fn has(&self, at: Duration) -> bool {
        self.begin <= at && at < self.end
    }
}

/// A second of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Second {
    /// Requests that ended in it with success.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub failures: u64,
    /// The sum of their latencies, in microseconds.
    pub latency_sum: u64,
    /// The longest of them, in microseconds.
    pub latency_most: u64,
}

impl Second {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.failures += other.failures;
        self.latency_sum += other.latency_sum;
        self.latency_most = self.latency_most.max(other.latency_most);
    }
}

/// Requests of one kind.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Those that ended with success while it counted.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// In microseconds, of those that were meant to start while it counted.
    pub latency: Histogram<u64>,
    /// The same up to the first byte.
    pub first_byte: Histogram<u64>,
    /// From the beginning of the window on.
    pub seconds: Vec<Second>,
    /// How often each kind of failure came.
    pub failures: BTreeMap<String, u64>,
    /// Some of them in full.
    pub samples: Vec<String>,
}

/// An empty one.
pub(crate) fn histogram() -> Histogram<u64> {
    // It grows as it needs to. The digits are within what it takes.
    Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("{DIGITS} digits are possible"))
}

/// Adds a value so often. The histogram grows for it: to saturate would cut off what is slowest.
pub(crate) fn record(histogram: &mut Histogram<u64>, value: u64, count: u64) {
    // Every time that a clock can say fits.
    let _ = histogram.record_n(value, count);
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            operations: 0,
            bytes: 0,
            latency: histogram(),
            first_byte: histogram(),
            seconds: Vec::new(),
            failures: BTreeMap::new(),
            samples: Vec::new(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

impl Tally {
    fn second(&mut self, window: Window, at: Duration) -> &mut Second {
        let number = usize::try_from(at.saturating_sub(window.begin).as_secs()).unwrap_or(usize::MAX);
        if self.seconds.len() <= number {
            self.seconds.resize(number + 1, Second::default());
        }
        &mut self.seconds[number]
    }

    fn success(&mut self, window: Window, timing: Timing, bytes: u64) {
        let latency = micros(timing.ended.saturating_sub(timing.intended));
        if window.has(timing.intended) {
            record(&mut self.latency, latency, 1);
            record(&mut self.first_byte, micros(timing.first.saturating_sub(timing.intended)), 1);
        }
        if window.has(timing.ended) {
            self.operations += 1;
            self.bytes += bytes;
            let one =
                Second { operations: 1, bytes, failures: 0, latency_sum: latency, latency_most: latency };
            self.second(window, timing.ended).add(&one);
        }
    }

    /// It counts whenever it was: nothing wrong is left out because it came too early or too late.
    fn failure(&mut self, window: Window, ended: Duration, kind: &str, what: &str) {
        *self.failures.entry(kind.to_owned()).or_default() += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(what.to_owned());
        }
        if window.has(ended) {
            self.second(window, ended).failures += 1;
        }
    }

    /// Failures of all kinds.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Adds what others recorded in the same window.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        // They grow as they need to.
        let _ = self.latency.add(&other.latency);
        let _ = self.first_byte.add(&other.first_byte);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), Second::default());
        }
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(mine, others)| mine.add(others));
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
        let room = SAMPLES.saturating_sub(self.samples.len());
        self.samples.extend(other.samples.iter().take(room).cloned());
    }
}

/// What one worker saw.
#[derive(Debug, Clone, Default)]
pub struct Record {
    tallies: BTreeMap<Operation, Tally>,
    /// Requests that ended with success, and their bytes, in each tenth of a second of the window.
    tenths: Vec<(u64, u64)>,
}

impl Record {
    /// Counts a request that was answered rightly.
    pub fn success(&mut self, window: Window, operation: Operation, timing: Timing, bytes: u64) {
        self.tallies.entry(operation).or_default().success(window, timing, bytes);
        if window.has(timing.ended) {
            let tenth = (timing.ended - window.begin).as_millis() / TENTH_MILLIS;
            let tenth = usize::try_from(tenth).unwrap_or(usize::MAX);
            if self.tenths.len() <= tenth {
                self.tenths.resize(tenth + 1, (0, 0));
            }
            self.tenths[tenth].0 += 1;
            self.tenths[tenth].1 += bytes;
        }
    }

    /// Counts one that was not.
    pub fn failure(&mut self, window: Window, operation: Operation, ended: Duration, kind: &str, what: &str) {
        self.tallies.entry(operation).or_default().failure(window, ended, kind, what);
    }

    /// Adds what others saw.
    pub fn add(&mut self, other: &Self) {
        for (operation, tally) in &other.tallies {
            self.tallies.entry(*operation).or_default().add(tally);
        }
        if self.tenths.len() < other.tenths.len() {
            self.tenths.resize(other.tenths.len(), (0, 0));
        }
        for (mine, others) in self.tenths.iter_mut().zip(&other.tenths) {
            *mine = (mine.0 + others.0, mine.1 + others.1);
        }
    }

    /// By kind of request.
    #[must_use]
    pub const fn tallies(&self) -> &BTreeMap<Operation, Tally> {
        &self.tallies
    }

    /// Requests and bytes that ended in each whole tenth of a second of a window that was so long.
    #[must_use]
    pub fn tenths(&self, time: Duration) -> Vec<(u64, u64)> {
        let mut tenths = self.tenths.clone();
        tenths.resize(usize::try_from(time.as_millis() / TENTH_MILLIS).unwrap_or(0), (0, 0));
        tenths
    }
}
