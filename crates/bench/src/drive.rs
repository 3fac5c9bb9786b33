//! Drives a load against a store, and records what came of it.

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
use tradewind_core::traffic::Carried;
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

/// How often it is looked whether it is enough.
const LOOK: Duration = Duration::from_millis(20);
/// Throughput is looked at in stretches of this.
const TENTH: Duration = Duration::from_millis(100);
/// What is under way at the end is waited for so long.
const DRAIN: Duration = Duration::from_secs(60);
/// The same of one that was stopped.
pub(crate) const DRAIN_STOPPED: Duration = Duration::from_secs(3);

/// What became of a request that was meant to start, as its sample has it.
const NEVER_STARTED: &str = "NeverStarted";

/// A worker at its work.
pub(crate) type Working<W> = BoxFuture<'static, (Record, W)>;

/// Where a load runs.
#[derive(Debug, Clone)]
pub struct Bed {
    /// What is asked.
    pub store: Arc<dyn ObjectStore>,
    /// In which bucket.
    pub bucket: BucketName,
    /// What objects hold.
    pub content: Arc<Content>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Memory that requests may hold.
    pub budget: Budget,
    /// What the store's connections carry.
    pub traffic: Arc<Traffic>,
    /// Where uploads come from and downloads go to; memory, where there are none.
    pub files: Option<Arc<Files>>,
    /// Who asks.
    pub crew: Crew,
}

/// What came of a load.
#[derive(Debug)]
pub struct Outcome {
    /// When the load began, before any warm-up: what arrivals are counted from.
    pub began: Timestamp,
    /// How long it counted.
    pub time: Duration,
    /// What was seen.
    pub record: Record,
    /// What the generator took meanwhile.
    pub usage: Usage,
    /// What the store's connections carried meanwhile.
    pub carried: Carried,
    /// How late requests of an open loop were released, in microseconds: that is the generator's own doing.
    pub lag: Histogram<u64>,
    /// What was done in each tenth of a second.
    pub tenths: Vec<Amount>,
    /// Reads of objects that had been read before.
    pub repeats: u64,
    /// Requests that were meant to start and never did.
    pub abandoned: u64,
    /// Those of them that did not even wait, since too many did. They are in no latency.
    pub refused: u64,
    /// Requests of an open loop that waited for a worker when it ended.
    pub waiting: u64,
    /// Why it ended.
    pub ending: Ending,
}

/// Why a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Its time was over.
    Time,
    /// Its throughput was known well enough.
    Stable,
    /// All requests were made that were to be, or no object was left to read or remove.
    Exhausted,
    /// Somebody stopped it.
    Stopped,
    /// So many requests of an open loop waited that no more could, its own or those of a load beside it: what was asked for
    /// was not measured.
    Overrun,
}

/// Runs a load to its end, or until it is stopped. Objects that it makes and leaves are in `stock`. What was under way at
/// the end is waited for; dropping the future breaks it off.
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
    // Requests that only remove end with their objects: of a heap the last ones go as many at a time as the first.
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

/// What requests of one worker run in: no deadline, and no memory of their own.
pub(crate) async fn context(bed: &Bed) -> Result<Context> {
    let window = bed.budget.admit(0, &Deadline::none(bed.clock.clone())).await?;
    Ok(Context::new(Deadline::none(bed.clock.clone()), window))
}

/// Sets workers to their work, of an open loop with the moments at which requests are meant to start, and waits for the end.
/// What was seen, and what each of them came to. `subject` says of a request that never started what it would have been.
pub(crate) async fn conduct<T: Send + 'static, W: Send + 'static>(
    bed: &Bed,
    shared: &Arc<Shared<T>>,
    (starts, workers): (Option<impl Iterator<Item = (Duration, T)> + Send + 'static>, Vec<Working<W>>),
    load: &Load,
    stop: &Stop,
    subject: impl Fn(u64, T) -> Subject,
) -> Result<(Outcome, Vec<W>)> {
    // Without a warm-up the first request counts, whenever it is released.
    let before = Seen::now(bed)?;
    let begun = load.warm_up.is_zero().then(|| shared.begin());
    let began = bed.clock.wall();
    let pacer = starts.map(|starts| Pacer::start(shared.clone(), starts)).transpose().map_err(failed)?;
    let is_open = pacer.is_some();
    let mut workers = bed.crew.set(workers);
    let (begin, before) = match begun {
        Some(begin) => (begin, before),
        None => {
            wait_until(shared, stop, shared.now() + load.warm_up).await;
            (shared.begin(), Seen::now(bed)?)
        }
    };
    let ending = wait_for_end(shared, stop, load, begin).await;
    let mut ended = None;
    if ending != Ending::Exhausted {
        ended = Some((shared.end(), Seen::now(bed)?));
    }
    // Where no object is left, what waits does not wait for the store.
    let ran_out = ending == Ending::Exhausted && shared.is_deserted();
    let waiting = if ran_out { 0 } else { shared.left() };
    let lag = match pacer {
        // It may look up only a moment later; loads beside this one go on meanwhile.
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
        // Those whose moment has come still start, late as they are.
        shared.last();
    }
    let mut outcome = Outcome {
        began,
        time: Duration::ZERO,
        record: Record::default(),
        usage: Usage::default(),
        carried: Carried::default(),
        lag,
        tenths: Vec::new(),
        repeats: 0,
        abandoned: shared.refused(),
        refused: shared.refused(),
        waiting,
        ending,
    };
    // A load of so many requests ends with the last of them or with its time. Without one it takes however long that takes:
    // the store's client knows when to give one up.
    let mut is_counting = ending == Ending::Exhausted;
    let time_left = begin.saturating_add(load.until.time).saturating_sub(shared.now());
    let patience = tokio::time::sleep(if is_counting { time_left } else { DRAIN });
    let stopped = stop.patience(DRAIN_STOPPED);
    tokio::pin!(patience, stopped);
    let mut all = Vec::new();
    loop {
        let done = tokio::select! {
            done = workers.join_next() => done,
            () = &mut patience, if !shared.over.is_cancelled() => {
                if std::mem::take(&mut is_counting) {
                    ended = Some((shared.end(), Seen::now(bed)?));
                    outcome.ending = Ending::Time;
                    patience.as_mut().reset(tokio::time::Instant::now() + DRAIN);
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
        let (record, came) = done.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?;
        outcome.record.add(&record);
        all.push(came);
    }
    outcome.record.add(&shared.timeline.take());
    let (end, after) = match ended {
        Some(ended) => ended,
        None => (shared.end_with_the_last().max(begin), Seen::now(bed)?),
    };
    outcome.time = end - begin;
    outcome.tenths = outcome.record.tenths(outcome.time);
    outcome.usage = after.usage.since(&before.usage);
    outcome.carried = after.carried.since(&before.carried);
    let (window, now) = (shared.window(), shared.now());
    let mut samples = shared.sampler(None);
    // What nobody began in a closed loop was not meant to start at any moment.
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

/// What can be seen at either end of the time that counts.
struct Seen {
    usage: Usage,
    carried: Carried,
}

impl Seen {
    fn now(bed: &Bed) -> Result<Self> {
        Ok(Self { usage: Usage::now().map_err(failed)?, carried: bed.traffic.carried() })
    }
}

fn failed(e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("the generator cannot be measured: {e}"), e)
}

async fn wait_until<T>(shared: &Shared<T>, stop: &Stop, until: Duration) {
    let is_over = || stop.is_asked() || shared.is_over() || shared.refused() > 0;
    while shared.now() < until && !is_over() {
        tokio::time::sleep(LOOK.min(until.saturating_sub(shared.now()))).await;
    }
}

async fn wait_for_end<T>(shared: &Shared<T>, stop: &Stop, load: &Load, begin: Duration) -> Ending {
    let until = begin + load.until.time;
    let mut steady = load.until.stable.map(Steady::new);
    let (mut counted, mut next) = (shared.gauge.read().0, begin + TENTH);
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
            (counted, next) = (ended, next + TENTH);
            if steady.as_mut().is_some_and(|steady| steady.is_known_with(amount)) {
                return Ending::Stable;
            }
        }
        if now >= until {
            return Ending::Time;
        }
        tokio::time::sleep(LOOK.min(until - now)).await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
