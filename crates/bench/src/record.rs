//! What requests were like: latencies as histograms, operations and bytes second by second, failures by kind. Records of
//! several workers, processes and machines are added up as they are, never as averages of averages. How a load goes over time
//! is kept once for all of its workers ([`timeline`]).

pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;

use self::timeline::Present;
use crate::operation::Operation;

/// Milliseconds of a tenth of a second.
const TENTH_MILLIS: u128 = 100;
/// Failures that are told of in full.
pub(crate) const SAMPLES: usize = 5;
/// Significant digits of latencies: within a thousandth.
const DIGITS: u8 = 3;

/// A request that has ended. Times are since the origin of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// When it was meant to start: in a closed loop when it did.
    pub intended: Duration,
    /// When it did start.
    pub begun: Duration,
    /// When the first byte of what was asked for was there; the answer, where it has no bytes.
    pub first: Duration,
    /// When all of it was.
    pub ended: Duration,
}

/// The time that counts. A request is throughput with the part of it that lies in the window, so that one that is long
/// counts neither whole nor not at all; what was meant to start in it is latency, whenever it ends: otherwise the slowest
/// would be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Since the origin of the run.
    pub begin: Duration,
    /// The first moment that does not count.
    pub end: Duration,
}

impl Window {
    /// Whether anything from one moment to another lies in it.
    pub(crate) fn touches(&self, from: Duration, to: Duration) -> bool {
        from < self.end && to >= self.begin
    }

    fn has(&self, at: Duration) -> bool {
        self.begin <= at && at < self.end
    }

    /// Which second of it a moment lies in.
    fn second(&self, at: Duration) -> usize {
        usize::try_from(at.saturating_sub(self.begin).as_secs()).unwrap_or(usize::MAX)
    }

    /// The parts of a request that lie in each tenth of a second of the window: the tenth, and how much of 1.
    fn parts(&self, timing: &Timing) -> impl Iterator<Item = (usize, f64)> + use<> {
        let begun = timing.begun.min(timing.ended);
        let since = |at: Duration| at.saturating_sub(self.begin).as_secs_f64() * 10.0;
        let (from, to) = (since(begun.max(self.begin)), since(timing.ended.min(self.end)));
        let whole = (timing.ended - begun).as_secs_f64() * 10.0;
        let is_seen = if whole > 0.0 { to > from } else { self.has(timing.ended) };
        let (first, last) = (from as usize, to as usize);
        (first..=last).take_while(move |_| is_seen).map(move |tenth| {
            let inside = to.min(tenth as f64 + 1.0) - from.max(tenth as f64);
            (tenth, if whole > 0.0 { inside.max(0.0) / whole } else { 1.0 })
        })
    }
}

/// An amount of throughput: requests, and their bytes. Parts of requests count as parts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Amount {
    /// Requests.
    pub operations: f64,
    /// Their bytes.
    pub bytes: f64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
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
    /// What was done while it counted.
    pub throughput: Amount,
    /// Those that were given up while they were under way or before they began: their latencies are at least what is
    /// recorded.
    pub cut: u64,
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
            throughput: Amount::default(),
            cut: 0,
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

/// One of many, of which there are as many as are needed for that.
fn nth<T: Clone + Default>(all: &mut Vec<T>, number: usize) -> &mut T {
    if all.len() <= number {
        all.resize(number + 1, T::default());
    }
    &mut all[number]
}

impl Tally {
    /// What it adds to the second that it ended in, where that counts.
    fn success(&mut self, window: Window, timing: Timing, bytes: u64) -> Option<Second> {
        let latency = micros(timing.ended.saturating_sub(timing.intended));
        if window.has(timing.intended) {
            record(&mut self.latency, latency, 1);
            record(&mut self.first_byte, micros(timing.first.saturating_sub(timing.intended)), 1);
        }
        window.has(timing.ended).then(|| {
            self.operations += 1;
            self.bytes += bytes;
            Second { operations: 1, bytes, failures: 0, latency_sum: latency, latency_most: latency }
        })
    }

    /// One that was meant to start while it counted had waited so long when it was given up.
    fn cut(&mut self, window: Window, intended: Duration, now: Duration) {
        if window.has(intended) {
            self.cut += 1;
            record(&mut self.latency, micros(now.saturating_sub(intended)), 1);
        }
    }

    /// It counts whenever it was: nothing wrong is left out because it came too early or too late.
    fn failure(&mut self, kind: &str, what: &str) {
        *self.failures.entry(kind.to_owned()).or_default() += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(what.to_owned());
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
        self.throughput += other.throughput;
        self.cut += other.cut;
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

/// What was seen, by one worker or by several.
#[derive(Debug, Clone, Default)]
pub struct Record {
    tallies: BTreeMap<Operation, Tally>,
    /// What was done in each tenth of a second of the window.
    tenths: Vec<Amount>,
    /// Of a worker of a load: its seconds and tenths are here, and those that are over are in the load's timeline.
    present: Option<Present>,
}

impl Record {
    /// Counts a request that was answered rightly.
    pub fn success(&mut self, window: Window, operation: Operation, timing: Timing, bytes: u64) {
        let mut done = Amount::default();
        for (tenth, part) in window.parts(&timing) {
            let amount = Amount { operations: part, bytes: part * bytes as f64 };
            done += amount;
            *self.tenth(tenth) += amount;
        }
        let tally = self.tallies.entry(operation).or_default();
        tally.throughput += done;
        if let Some(one) = tally.success(window, timing, bytes) {
            self.second(operation, window.second(timing.ended)).add(&one);
        }
    }

    /// Counts one that was given up at a moment.
    pub fn cut(&mut self, window: Window, operation: Operation, intended: Duration, now: Duration) {
        self.tallies.entry(operation).or_default().cut(window, intended, now);
    }

    /// Counts one that was not.
    pub fn failure(&mut self, window: Window, operation: Operation, ended: Duration, kind: &str, what: &str) {
        self.tallies.entry(operation).or_default().failure(kind, what);
        if window.has(ended) {
            self.second(operation, window.second(ended)).failures += 1;
        }
    }

    fn second(&mut self, operation: Operation, number: usize) -> &mut Second {
        match &mut self.present {
            Some(present) => present.second(operation, number),
            None => nth(&mut self.tallies.entry(operation).or_default().seconds, number),
        }
    }

    fn tenth(&mut self, number: usize) -> &mut Amount {
        match &mut self.present {
            Some(present) => present.tenth(number),
            None => nth(&mut self.tenths, number),
        }
    }

    /// Adds what others saw. Of a worker of a load that is without the seconds that it has handed to the load's timeline.
    pub fn add(&mut self, other: &Self) {
        for (operation, tally) in &other.tallies {
            self.tallies.entry(*operation).or_default().add(tally);
        }
        if self.tenths.len() < other.tenths.len() {
            self.tenths.resize(other.tenths.len(), Amount::default());
        }
        self.tenths.iter_mut().zip(&other.tenths).for_each(|(mine, others)| *mine += *others);
        if let Some(present) = &other.present {
            present.add_to(self);
        }
    }

    /// By kind of request.
    #[must_use]
    pub const fn tallies(&self) -> &BTreeMap<Operation, Tally> {
        &self.tallies
    }

    /// What was done in each whole tenth of a second of a window that was so long.
    #[must_use]
    pub fn tenths(&self, time: Duration) -> Vec<Amount> {
        let mut tenths = self.tenths.clone();
        tenths.resize(usize::try_from(time.as_millis() / TENTH_MILLIS).unwrap_or(0), Amount::default());
        tenths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn parts(begun: u32, ended: u32) -> Vec<(usize, f64)> {
        let window = Window { begin: 1000 * MILLI, end: 2000 * MILLI };
        let (begun, ended) = (begun * MILLI, ended * MILLI);
        let timing = Timing { intended: begun, begun, first: ended, ended };
        window.parts(&timing).filter(|(_, part)| *part > 1e-9).collect()
    }

    #[test]
    fn a_request_counts_with_what_lies_in_the_window() {
        let sum = |parts: Vec<(usize, f64)>| parts.iter().map(|(_, part)| part).sum::<f64>();
        assert!(parts(1110, 1120)[0].0 == 1 && (sum(parts(1110, 1120)) - 1.0).abs() < 1e-9);
        assert_eq!(parts(1500, 1500), [(5, 1.0)], "one that took no time");
        assert_eq!(parts(900, 999), []);
        assert_eq!(parts(2000, 2100), []);
        assert!((sum(parts(900, 1100)) - 0.5).abs() < 1e-9);
        assert!((sum(parts(1900, 2300)) - 0.25).abs() < 1e-9);
        assert!((sum(parts(0, 10_000)) - 0.1).abs() < 1e-9);
        assert_eq!(parts(0, 10_000).len(), 10);
    }

    proptest! {
        /// Requests one behind the other, whatever their lengths, are as many a second as they are.
        #[test]
        fn throughput_does_not_depend_on_where_the_window_lies(
            lengths in proptest::collection::vec(1_u32..900, 40..60),
            begin in 500_u32..2000,
        ) {
            let window = Window { begin: begin * MILLI, end: (begin + 3000) * MILLI };
            let (mut at, mut busy) = (0, 0.0);
            for length in lengths {
                let (begun, ended) = (at * MILLI, (at + length) * MILLI);
                let timing = Timing { intended: begun, begun, first: ended, ended };
                busy += window.parts(&timing).map(|(_, part)| part * f64::from(length)).sum::<f64>();
                at += length;
            }
            let within = f64::from((at.min(begin + 3000)).saturating_sub(begin));
            prop_assert!((busy - within).abs() < 1e-3, "{busy} of {within}");
        }
    }
}
