//! The workload of Postmark (Katz 1997; Wang 2012, section 5.3): small files that come and go, as a mail server has them. One
//! after the other, by default access, in calls of 4 KiB as buffered streams make them. Whatever is read is compared with
//! what was written and added.

pub mod plan;
pub mod result;

use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use self::plan::{Plan, Stage, Step};
use self::result::{Postmark, Steps};
use super::access::Manner;
use super::buffer::Buffer;
use super::form::Form;
use super::phase::Site;
use super::place::File;
use super::tally::Failed;
use crate::drive::Gauge;
use crate::record::{histogram, record};
use crate::result::Latency;
use crate::sizes::Sizes;
use crate::usage::Usage;

/// Bytes of a call.
const BLOCK: u64 = 4096;
/// More of the time in making and comparing contents than this makes the file system seem slower than it is.
const OWN: f64 = 0.1;
/// Failures that are told of in full.
const SAMPLES: usize = 5;

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The least and the largest size of a file.
    pub range: (u64, u64),
    /// Files that are there before the transactions.
    pub pool: u64,
    /// How many of those.
    pub transactions: u64,
}

/// Kinds of steps, as they are counted.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Create,
    Read,
    Append,
    Delete,
}

/// Steps of a kind.
#[derive(Debug)]
struct Count {
    alone: u64,
    mixed: u64,
    times: hdrhistogram::Histogram<u64>,
}

#[derive(Debug)]
struct Seen {
    kinds: [Count; 4],
    /// Of each stage: when it ended, since the beginning.
    ends: [Duration; 3],
    transactions: u64,
    calls: Duration,
    read_bytes: u64,
    written_bytes: u64,
    failures: std::collections::BTreeMap<String, u64>,
    samples: Vec<String>,
}

/// Runs the workload, the `repeat`-th time. With `fsync` what is made or added to is made durable before it is closed.
pub(super) fn run(
    site: &Site,
    workload: &Workload,
    fsync: bool,
    (seed, repeat): (u64, u32),
    gauge: &Gauge,
) -> Result<Postmark> {
    let generator = |e: std::io::Error| {
        Error::with_source(Reason::Io, format!("the generator cannot be measured: {e}"), e)
    };
    let mut buffer = Buffer::new(usize::try_from(workload.range.1).unwrap_or(usize::MAX).max(1));
    let manner = Manner { fsync, ..site.manner(Form::Default, BLOCK) };
    let behind = site.place.behind();
    let files = site.place.files(0, workload.pool + workload.transactions, 0)?;
    let (before, begin, began) =
        (Usage::now().map_err(generator)?, site.clock.now(), site.clock.wall().millis());
    let count = || Count { alone: 0, mixed: 0, times: histogram() };
    let mut is_broken = false;
    let mut seen = Seen {
        kinds: [count(), count(), count(), count()],
        ends: [Duration::ZERO; 3],
        transactions: 0,
        calls: Duration::ZERO,
        read_bytes: 0,
        written_bytes: 0,
        failures: std::collections::BTreeMap::new(),
        samples: Vec::new(),
    };
    for (stage, step) in Plan::new(workload.range, workload.pool, workload.transactions, seed) {
        if site.stop.is_asked() {
            break;
        }
        is_broken = seen.step(&manner, (stage, step), &files, &mut buffer, gauge);
        let end = site.clock.now().saturating_sub(begin);
        seen.ends.iter_mut().skip(stage as usize).for_each(|at| *at = end);
        if is_broken {
            break;
        }
    }
    let sync = site.sync(&behind).unwrap_or_else(|lost| {
        gauge.failure();
        seen.failed(lost);
        None
    });
    let usage = Usage::now().map_err(generator)?.since(&before);
    let mut postmark = seen.told(workload, (repeat, began), sync, &usage, is_broken || site.stop.is_asked());
    if is_broken {
        let note = "it ended early, since all that follows would fail too: the figures are of what was done until then";
        postmark.notes.push(note.to_owned());
    }
    Ok(postmark)
}

impl Seen {
    /// Does a step; whether no more can be done.
    fn step(
        &mut self,
        manner: &Manner<'_>,
        (stage, step): (Stage, Step),
        files: &[File],
        buffer: &mut Buffer,
        gauge: &Gauge,
    ) -> bool {
        let mut each = |_| {};
        let file =
            |number: u64, size: u64| File { size, ..files[usize::try_from(number).unwrap_or(usize::MAX)] };
        let (kind, done) = match step {
            Step::Create { number, size } => {
                (Kind::Create, manner.write(file(number, size), buffer, &mut each))
            }
            Step::Read { number, size } => (Kind::Read, manner.read(file(number, size), buffer, &mut each)),
            Step::Append { number, from, to } => {
                (Kind::Append, manner.append(file(number, to), from, buffer, &mut each))
            }
            Step::Delete { number } => (Kind::Delete, manner.remove(file(number, 0))),
        };
        // A transaction ends with it.
        self.transactions +=
            u64::from(stage == Stage::Transact && matches!(kind, Kind::Create | Kind::Delete));
        match done {
            Ok(done) => {
                let count = &mut self.kinds[kind as usize];
                *(if stage == Stage::Transact { &mut count.mixed } else { &mut count.alone }) += 1;
                let took = done.took.total();
                record(&mut count.times, u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1), 1);
                self.calls += took;
                match kind {
                    Kind::Read => self.read_bytes += done.bytes,
                    Kind::Create | Kind::Append => self.written_bytes += done.bytes,
                    Kind::Delete => {}
                }
                gauge.success(done.bytes);
                false
            }
            Err(failed) => {
                gauge.failure();
                self.failed(failed)
            }
        }
    }

    /// Whether all that follows would fail too. A step that could not be done makes those after it fail: they find another
    /// file than they should.
    fn failed(&mut self, failed: Failed) -> bool {
        *self.failures.entry(failed.kind).or_default() += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(failed.what);
        }
        failed.is_for_all
    }

    fn told(
        &self,
        workload: &Workload,
        (repeat, began): (u32, i64),
        sync: Option<Duration>,
        usage: &Usage,
        is_partial: bool,
    ) -> Postmark {
        let [filled, transacted, all] = self.ends.map(|end| end.as_secs_f64());
        let (transaction_seconds, clearing) = (transacted - filled, all - transacted);
        let per = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let steps = |kind: Kind, alone_seconds: f64| {
            let count = &self.kinds[kind as usize];
            Steps {
                count: count.alone + count.mixed,
                alone_per_second: per(count.alone, alone_seconds),
                mixed_per_second: per(count.mixed, transaction_seconds),
                latency_us: Latency::of(&count.times),
            }
        };
        let own = if all > 0.0 { (1.0 - self.calls.as_secs_f64() / all).max(0.0) } else { 0.0 };
        let mut notes = Vec::new();
        if own > OWN {
            notes.push(format!(
                "the generator was the bottleneck: {:.0} % of the time went into making and comparing contents; the file \
                 system may be faster",
                own * 100.0
            ));
        }
        Postmark {
            sizes: Sizes::Between(workload.range.0, workload.range.1),
            pool: workload.pool,
            transactions: workload.transactions,
            block: BLOCK,
            repeat,
            began,
            seconds: all,
            transaction_seconds,
            transactions_per_second: per(self.transactions, transaction_seconds),
            created: steps(Kind::Create, filled),
            read: steps(Kind::Read, 0.0),
            appended: steps(Kind::Append, 0.0),
            deleted: steps(Kind::Delete, clearing),
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            read_bytes_per_second: per(self.read_bytes, all),
            written_bytes_per_second: per(self.written_bytes, all),
            sync_seconds: sync.map(|time| time.as_secs_f64()),
            failures: self.failures.clone(),
            samples: self.samples.clone(),
            cpu_seconds: usage.total().as_secs_f64(),
            machine_busy: usage.machine(),
            partial: is_partial,
            notes,
        }
    }
}
