//! Runs a load against a store and records latencies, throughput and failures.

mod crew;
mod due;
mod pacer;
pub(crate) mod request;
pub(crate) mod shared;
mod steady;
mod worker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::traffic::TrafficCounts;
use tradewind_core::{BucketName, Budget, Clock, Context, ObjectStore, Timestamp, Traffic};
use tradewind_pattern::Content;

pub use self::crew::Crew;
use self::pacer::Pacer;
use self::shared::Shared;
pub use self::shared::{Gauge, Stop};
use self::steady::Steady;
use self::worker::Worker;
use crate::arrivals::Arrivals;
use crate::files::Files;
use crate::load::{Load, Pace};
use crate::operation::Operation;
use crate::random::mix;
use crate::record::{Amount, Record};
use crate::samples::{About, Handled, Subject};
use crate::stock::Stock;
use crate::usage::Usage;

/// Interval at which the stop condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the throughput series.
const SERIES_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait for requests in flight at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Like [`DRAIN_TIMEOUT`], but for a load that was stopped.
pub(crate) const DRAIN_STOPPED: Duration = Duration::from_secs(3);

/// Error kind that the sample of a scheduled but never started request records.
const NEVER_STARTED: &str = "NeverStarted";

/// The future of a running worker.
pub(crate) type Working<W> = BoxFuture<'static, (Record, W)>;

/// The environment of a load: store, bucket, clock, memory and worker threads.
#[derive(Debug, Clone)]
pub struct Bed {
    /// The store under test.
    pub store: Arc<dyn ObjectStore>,
    /// The bucket that requests use.
    pub bucket: BucketName,
    /// Generator of object contents.
    pub content: Arc<Content>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Memory budget of the requests.
    pub budget: Budget,
    /// Byte and connection counters of the store's connections.
    pub traffic: Arc<Traffic>,
    /// Source files of uploads and targets of downloads; `None` to use memory.
    pub files: Option<Arc<Files>>,
    /// Threads that workers run on.
    pub crew: Crew,
}

/// The result of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Start of the load, before any warm-up. Arrival times are relative to it.
    pub began: Timestamp,
    /// Length of the measurement window.
    pub time: Duration,
    /// Latencies, throughput and failures.
    pub record: Record,
    /// CPU time used during the window.
    pub usage: Usage,
    /// Traffic of the store's connections during the window.
    pub carried: TrafficCounts,
    /// Delay between scheduled and actual release of open-loop requests, in microseconds. The generator causes it.
    pub lag: Histogram<u64>,
    /// Work done per 100 ms.
    pub tenths: Vec<Amount>,
    /// Reads of objects that had been read before.
    pub repeats: u64,
    /// Scheduled requests that never started.
    pub abandoned: u64,
    /// Those of `abandoned` that were dropped because the queue was full. They are in no latency histogram.
    pub refused: u64,
    /// Open-loop requests that were queued for a worker at the end.
    pub waiting: u64,
    /// Reason for the end.
    pub ending: Ending,
}

/// The reason why a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// The measurement window elapsed.
    Time,
    /// The confidence interval of throughput reached its target.
    Stable,
    /// The request limit was reached, or no object was left to read or delete.
    Exhausted,
    /// It was stopped from outside.
    Stopped,
    /// The queue of due open-loop requests overflowed, its own or that of a concurrent load. The requested rate was not
    /// measured.
    Overrun,
}

/// Runs a load until its stop condition or until `stop`. Objects that it creates and does not delete stay in `stock`.
/// Waits for the requests in flight at the end. Dropping the future cancels the load.
pub async fn drive(
    bed: &Bed,
    stock: &Arc<Stock>,
    load: &Load,
    stop: &Stop,
    gauge: &Arc<Gauge>,
) -> Result<Outcome> {
    let workers = (load.parallel, load.until.requests);
    let shared = Arc::new(Shared::new(bed.clock.clone(), workers, gauge.clone(), stock.clone()));
    let mut workers = Vec::new();
    // A delete-only load ends with its objects. A common pool keeps the concurrency constant up to the last object.
    let deal = if load.mix.has_only(Operation::Delete) { Stock::heap } else { Stock::deal };
    for (n, hand) in deal(stock, load.parallel, load.seed).into_iter().enumerate() {
        let share = (shared.clone(), load.pace != Pace::Closed);
        let worker = Worker::new(bed.clone(), stock.clone(), hand, share, context(bed).await?);
        workers.push(worker.run(load.mix.clone(), load.seed, shared.sampler(Some(n))).boxed());
    }
    let starts = match load.pace {
        Pace::Closed => None,
        Pace::Open { per_second, spacing } => {
            let starts =
                Arrivals::new(spacing, per_second, load.seed).earlier(load.phase).take(shared.most());
            Some(starts.map(|start| (start, ())))
        }
    };
    let subject = |number, ()| {
        let operation = load.mix.draw(mix(load.seed ^ mix(number)));
        Subject { operation, about: About::Nothing, size: None }
    };
    let (mut outcome, hands) = conduct(bed, &shared, (starts, workers), load, stop, subject).await?;
    for hand in hands {
        outcome.repeats += hand.repeats;
        stock.give_back(hand);
    }
    Ok(outcome)
}

/// Returns a context for the requests of one worker: no deadline, no reserved memory.
pub(crate) async fn context(bed: &Bed) -> Result<Context> {
    let window = bed.budget.admit(0, &Deadline::none(bed.clock.clone())).await?;
    Ok(Context::new(Deadline::none(bed.clock.clone()), window))
}

/// Starts the workers and, for an open loop, the pacer with the scheduled starts, then waits for the end. Returns the
/// outcome and the result of each worker. `subject` describes a request that never started.
pub(crate) async fn conduct<T: Send + 'static, W: Send + 'static>(
    bed: &Bed,
    shared: &Arc<Shared<T>>,
    (starts, workers): (Option<impl Iterator<Item = (Duration, T)> + Send + 'static>, Vec<Working<W>>),
    load: &Load,
    stop: &Stop,
    subject: impl Fn(u64, T) -> Subject,
) -> Result<(Outcome, Vec<W>)> {
    // Without a warm-up the window must open before the first request is released.
    let before = CounterSnapshot::now(bed)?;
    let begun = load.warm_up.is_zero().then(|| shared.begin());
    let began = bed.clock.wall();
    let pacer = starts.map(|starts| Pacer::start(shared.clone(), starts)).transpose().map_err(usage_error)?;
    let is_open = pacer.is_some();
    let mut workers = bed.crew.set(workers);
    let (begin, before) = match begun {
        Some(begin) => (begin, before),
        None => {
            wait_until(shared, stop, shared.now() + load.warm_up).await;
            (shared.begin(), CounterSnapshot::now(bed)?)
        }
    };
    let ending = wait_for_end(shared, stop, load, begin).await;
    let mut ended = None;
    if ending != Ending::Exhausted {
        ended = Some((shared.end(), CounterSnapshot::now(bed)?));
    }
    // If no object is left, queued requests are not waiting for the store.
    let ran_out = ending == Ending::Exhausted && shared.is_deserted();
    let waiting = if ran_out { 0 } else { shared.left() };
    let lag = match pacer {
        // Joining the pacer thread may block briefly; concurrent loads must not stall.
        Some(pacer) => {
            let stopping = move || pacer.stop(ending == Ending::Exhausted);
            let stopped = tokio::task::spawn_blocking(stopping).await;
            stopped.map_err(|e| Error::with_source(Reason::Defect, "the pacer failed", e))?
        }
        None => shared::micros(),
    };
    let is_overrun = shared.refused() > 0 && ending != Ending::Stopped;
    let ending = if is_overrun { Ending::Overrun } else { ending };
    if is_overrun {
        shared.begin_no_more();
    } else {
        // Requests that are already due still start, although late.
        shared.last();
    }
    let mut outcome = Outcome {
        began,
        time: Duration::ZERO,
        record: Record::default(),
        usage: Usage::default(),
        carried: TrafficCounts::default(),
        lag,
        tenths: Vec::new(),
        repeats: 0,
        abandoned: shared.refused(),
        refused: shared.refused(),
        waiting,
        ending,
    };
    // A load with a request limit ends with the last request or with its time limit. Without a time limit, the timeouts
    // of the store's client bound each request.
    let mut is_counting = ending == Ending::Exhausted;
    let time_left = begin.saturating_add(load.until.time).saturating_sub(shared.now());
    let timeout = tokio::time::sleep(if is_counting { time_left } else { DRAIN_TIMEOUT });
    let stopped = stop.patience(DRAIN_STOPPED);
    tokio::pin!(timeout, stopped);
    let mut all = Vec::new();
    loop {
        let done = tokio::select! {
            done = workers.join_next() => done,
            () = &mut timeout, if !shared.over.is_cancelled() => {
                if std::mem::take(&mut is_counting) {
                    ended = Some((shared.end(), CounterSnapshot::now(bed)?));
                    outcome.ending = Ending::Time;
                    timeout.as_mut().reset(tokio::time::Instant::now() + DRAIN_TIMEOUT);
                } else {
                    shared.give_up();
                }
                continue;
            }
            () = &mut stopped, if !shared.over.is_cancelled() => {
                outcome.ending = Ending::Stopped;
                shared.give_up();
                continue;
            }
        };
        let Some(done) = done else { break };
        let (record, result) = done.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?;
        outcome.record.add(&record);
        all.push(result);
    }
    outcome.record.add(&shared.timeline.take());
    let (end, after) = match ended {
        Some(ended) => ended,
        None => (shared.end_with_the_last().max(begin), CounterSnapshot::now(bed)?),
    };
    outcome.time = end - begin;
    outcome.tenths = outcome.record.tenths(outcome.time);
    outcome.usage = after.usage.since(&before.usage);
    outcome.carried = after.carried.since(&before.carried);
    let (window, now) = (shared.window(), shared.now());
    let mut samples = shared.sampler(None);
    // Requests of a closed loop have no scheduled start, so none of them can miss it.
    for ((intended, request), number) in shared.abandoned().filter(|_| is_open && !ran_out) {
        outcome.abandoned += 1;
        let subject = subject(number, request);
        outcome.record.cut(window, subject.operation, intended, now);
        if let Some(samples) = &mut samples {
            let answer = Err(NEVER_STARTED.to_owned());
            samples.take(window, &Handled { intended, begun: None, ended: now, answer }, subject);
        }
    }
    Ok((outcome, all))
}

/// CPU and traffic counters at one end of the measurement window.
struct CounterSnapshot {
    usage: Usage,
    carried: TrafficCounts,
}

impl CounterSnapshot {
    fn now(bed: &Bed) -> Result<Self> {
        Ok(Self { usage: Usage::now().map_err(usage_error)?, carried: bed.traffic.counts() })
    }
}

fn usage_error(e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("cannot measure the generator's CPU time: {e}"), e)
}

async fn wait_until<T>(shared: &Shared<T>, stop: &Stop, until: Duration) {
    let is_over = || stop.is_asked() || shared.is_over() || shared.refused() > 0;
    while shared.now() < until && !is_over() {
        tokio::time::sleep(POLL_INTERVAL.min(until.saturating_sub(shared.now()))).await;
    }
}

async fn wait_for_end<T>(shared: &Shared<T>, stop: &Stop, load: &Load, begin: Duration) -> Ending {
    let until = begin + load.until.time;
    let mut steady = load.until.stable.map(Steady::new);
    let (mut counted, mut next) = (shared.gauge.read().0, begin + SERIES_INTERVAL);
    loop {
        if stop.is_asked() {
            return Ending::Stopped;
        }
        if shared.refused() > 0 {
            return Ending::Overrun;
        }
        if shared.is_over() {
            return Ending::Exhausted;
        }
        let now = shared.now();
        if now >= next {
            let (ended, ..) = shared.gauge.read();
            let amount = (ended - counted) as f64;
            (counted, next) = (ended, next + SERIES_INTERVAL);
            if steady.as_mut().is_some_and(|steady| steady.is_known_with(amount)) {
                return Ending::Stable;
            }
        }
        if now >= until {
            return Ending::Time;
        }
        tokio::time::sleep(POLL_INTERVAL.min(until - now)).await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
