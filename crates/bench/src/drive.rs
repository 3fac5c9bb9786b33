//! Runs a load against a store and records latencies, throughput and failures.

mod convergence;
mod due_queue;
mod live_window;
pub(crate) mod load_state;
mod pacer;
mod payload_meter;
pub(crate) mod request;
mod worker;
mod worker_pool;

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

use self::convergence::ConvergenceCheck;
use self::load_state::LoadState;
pub use self::load_state::{Progress, StopSignal};
use self::pacer::Pacer;
use self::worker::Worker;
pub use self::worker_pool::WorkerPool;
use crate::arrivals::Arrivals;
use crate::cpu_usage::CpuUsage;
use crate::files::LocalFiles;
use crate::load::{ArrivalMode, Load};
use crate::object_set::ObjectSet;
use crate::operation::Operation;
use crate::random::mix;
use crate::record::{LoadRecord, WorkAmount};
use crate::samples::{FinishedRequest, RequestSubject, SubjectKey};

/// Interval at which the stop condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the throughput series.
const SERIES_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait for requests in flight at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Like [`DRAIN_TIMEOUT`], but for a load that was stopped.
pub(crate) const STOPPED_DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Error kind that the sample of a scheduled but never started request records.
const NEVER_STARTED: &str = "NeverStarted";

/// The future of a running worker.
pub(crate) type WorkerFuture<W> = BoxFuture<'static, (LoadRecord, W)>;

/// The environment of a load: store, bucket, clock, memory and worker threads.
#[derive(Debug, Clone)]
pub struct BenchEnv {
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
    pub files: Option<Arc<LocalFiles>>,
    /// Threads that workers run on.
    pub worker_pool: WorkerPool,
}

/// The result of a load.
#[derive(Debug)]
pub struct LoadOutcome {
    /// Start of the load, before any warm-up. Arrival times are relative to it.
    pub started: Timestamp,
    /// Length of the measurement window.
    pub duration: Duration,
    /// Latencies, throughput and failures.
    pub record: LoadRecord,
    /// CPU time used during the window.
    pub usage: CpuUsage,
    /// Traffic of the store's connections during the window.
    pub traffic: TrafficCounts,
    /// Delay between scheduled and actual release of open-loop requests, in microseconds. The generator causes it.
    pub schedule_lag: Histogram<u64>,
    /// Work done per 100 ms.
    pub series_100ms: Vec<WorkAmount>,
    /// Reads of objects that had been read before.
    pub repeated_reads: u64,
    /// Scheduled requests that never started.
    pub never_started: u64,
    /// Those of `never_started` that were dropped because the queue was full. They are in no latency histogram.
    pub dropped: u64,
    /// Open-loop requests that were queued for a worker at the end.
    pub queued: u64,
    /// Reason for the end.
    pub end_reason: EndReason,
}

/// The reason why a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The measurement window elapsed.
    TimeLimit,
    /// The confidence interval of throughput reached its target.
    Converged,
    /// The request limit was reached, or no object was left to read or delete.
    Exhausted,
    /// It was stopped from outside.
    Stopped,
    /// The queue of due open-loop requests overflowed, its own or that of a concurrent load. The requested rate was not
    /// measured.
    Overrun,
}

/// Runs a load until its stop condition or until `stop`. Objects that it creates and does not delete stay in
/// `object_set`. Waits for the requests in flight at the end. Dropping the future cancels the load.
pub async fn run_load(
    env: &BenchEnv,
    object_set: &Arc<ObjectSet>,
    load: &Load,
    stop: &StopSignal,
    progress: &Arc<Progress>,
) -> Result<LoadOutcome> {
    let workers = (load.concurrency, load.stop_condition.max_requests);
    let shared = Arc::new(LoadState::new(env.clock.clone(), workers, progress.clone(), object_set.clone()));
    let mut workers = Vec::new();
    // A delete-only load ends with its objects. A common pool keeps the concurrency constant up to the last object.
    let assign_objects =
        if load.mix.is_only(Operation::Delete) { ObjectSet::pool } else { ObjectSet::distribute };
    for (n, objects) in assign_objects(object_set, load.concurrency, load.seed).into_iter().enumerate() {
        let state = (shared.clone(), load.arrival_mode != ArrivalMode::Closed);
        let worker =
            Worker::new(env.clone(), object_set.clone(), objects, state, request_context(env).await?);
        workers.push(worker.run(load.mix.clone(), load.seed, shared.sampler(Some(n))).boxed());
    }
    let starts = match load.arrival_mode {
        ArrivalMode::Closed => None,
        ArrivalMode::Open { requests_per_second, spacing } => {
            let starts = Arrivals::new(spacing, requests_per_second, load.seed)
                .with_phase(load.phase)
                .take(shared.max_requests());
            Some(starts.map(|start| (start, ())))
        }
    };
    let subject = |number, ()| {
        let operation = load.mix.draw(mix(load.seed ^ mix(number)));
        RequestSubject { operation, key: SubjectKey::Unknown, size: None }
    };
    let (mut outcome, shares) = run_workers(env, &shared, (starts, workers), load, stop, subject).await?;
    for share in shares {
        outcome.repeated_reads += share.repeated_reads;
        object_set.reclaim(share);
    }
    Ok(outcome)
}

/// Returns a context for the requests of one worker: no deadline, no reserved memory.
pub(crate) async fn request_context(env: &BenchEnv) -> Result<Context> {
    let window = env.budget.admit(0, &Deadline::none(env.clock.clone())).await?;
    Ok(Context::new(Deadline::none(env.clock.clone()), window))
}

/// Starts the workers and, for an open loop, the pacer with the scheduled starts, then waits for the end. Returns the
/// outcome and the result of each worker. Fails at the first request that finds no bucket. `subject` describes a request that never started.
pub(crate) async fn run_workers<T: Send + 'static, W: Send + 'static>(
    env: &BenchEnv,
    shared: &Arc<LoadState<T>>,
    (starts, workers): (Option<impl Iterator<Item = (Duration, T)> + Send + 'static>, Vec<WorkerFuture<W>>),
    load: &Load,
    stop: &StopSignal,
    subject: impl Fn(u64, T) -> RequestSubject,
) -> Result<(LoadOutcome, Vec<W>)> {
    // Without a warm-up the window must open before the first request is released.
    let before = CounterSnapshot::now(env)?;
    let window_begin = load.warm_up.is_zero().then(|| shared.open_window());
    let started = env.clock.wall();
    let pacer = starts.map(|starts| Pacer::start(shared.clone(), starts)).transpose().map_err(usage_error)?;
    let is_open = pacer.is_some();
    let mut workers = env.worker_pool.spawn(workers);
    let (begin, before) = match window_begin {
        Some(begin) => (begin, before),
        None => {
            wait_until(shared, stop, shared.now() + load.warm_up).await;
            (shared.open_window(), CounterSnapshot::now(env)?)
        }
    };
    let end_reason = wait_for_end(shared, stop, load, begin).await;
    let mut ended = None;
    if end_reason != EndReason::Exhausted {
        ended = Some((shared.close_window_now(), CounterSnapshot::now(env)?));
    }
    // If no object is left, queued requests are not waiting for the store.
    let ran_out = end_reason == EndReason::Exhausted && shared.has_run_out_of_objects();
    let queued = if ran_out { 0 } else { shared.queued() };
    let schedule_lag = match pacer {
        // Joining the pacer thread may block briefly; concurrent loads must not stall.
        Some(pacer) => {
            let stopping = move || pacer.finish(end_reason == EndReason::Exhausted);
            let stopped = tokio::task::spawn_blocking(stopping).await;
            stopped.map_err(|e| Error::with_source(Reason::Defect, "the pacer failed", e))?
        }
        None => load_state::latency_histogram(),
    };
    let is_overrun = shared.dropped() > 0 && end_reason != EndReason::Stopped;
    let end_reason = if is_overrun { EndReason::Overrun } else { end_reason };
    if is_overrun {
        shared.cancel_queued();
    } else {
        // Requests that are already due still start, although late.
        shared.finish_releases();
    }
    let mut outcome = LoadOutcome {
        started,
        duration: Duration::ZERO,
        record: LoadRecord::default(),
        usage: CpuUsage::default(),
        traffic: TrafficCounts::default(),
        schedule_lag,
        series_100ms: Vec::new(),
        repeated_reads: 0,
        never_started: shared.dropped(),
        dropped: shared.dropped(),
        queued,
        end_reason,
    };
    // A load with a request limit ends with the last request or with its time limit. Without a time limit, the timeouts
    // of the store's client bound each request.
    let mut is_counting = end_reason == EndReason::Exhausted;
    let time_left = begin.saturating_add(load.stop_condition.duration).saturating_sub(shared.now());
    let timeout = tokio::time::sleep(if is_counting { time_left } else { DRAIN_TIMEOUT });
    let stopped = stop.triggered_for(STOPPED_DRAIN_TIMEOUT);
    tokio::pin!(timeout, stopped);
    let mut all = Vec::new();
    loop {
        let done = tokio::select! {
            done = workers.join_next() => done,
            () = &mut timeout, if !shared.cancelled.is_cancelled() => {
                if std::mem::take(&mut is_counting) {
                    ended = Some((shared.close_window_now(), CounterSnapshot::now(env)?));
                    outcome.end_reason = EndReason::TimeLimit;
                    timeout.as_mut().reset(tokio::time::Instant::now() + DRAIN_TIMEOUT);
                } else {
                    shared.cancel_all();
                }
                continue;
            }
            () = &mut stopped, if !shared.cancelled.is_cancelled() => {
                outcome.end_reason = EndReason::Stopped;
                shared.cancel_all();
                continue;
            }
        };
        let Some(done) = done else { break };
        let (record, result) = done.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?;
        outcome.record.add(&record);
        all.push(result);
    }
    shared.check_bucket()?;
    outcome.record.add(&shared.timeline.take());
    let (end, after) = match ended {
        Some(ended) => ended,
        None => (shared.close_window_at_last_completion().max(begin), CounterSnapshot::now(env)?),
    };
    outcome.duration = end - begin;
    outcome.series_100ms = outcome.record.series(outcome.duration);
    outcome.usage = after.usage.since(&before.usage);
    outcome.traffic = after.traffic.since(&before.traffic);
    let (window, now) = (shared.window(), shared.now());
    let mut samples = shared.sampler(None);
    // Requests of a closed loop have no scheduled start, so none of them can miss it.
    for ((scheduled, request), number) in shared.drain_unstarted().filter(|_| is_open && !ran_out) {
        outcome.never_started += 1;
        let subject = subject(number, request);
        outcome.record.record_truncated(window, subject.operation, scheduled, now);
        if let Some(samples) = &mut samples {
            let response = Err(NEVER_STARTED.to_owned());
            samples.record(
                window,
                &FinishedRequest { scheduled, started: None, ended: now, response },
                subject,
            );
        }
    }
    Ok((outcome, all))
}

/// CPU and traffic counters at one end of the measurement window.
struct CounterSnapshot {
    usage: CpuUsage,
    traffic: TrafficCounts,
}

impl CounterSnapshot {
    fn now(env: &BenchEnv) -> Result<Self> {
        Ok(Self { usage: CpuUsage::snapshot().map_err(usage_error)?, traffic: env.traffic.counts() })
    }
}

fn usage_error(e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("cannot measure the generator's CPU time: {e}"), e)
}

async fn wait_until<T>(shared: &LoadState<T>, stop: &StopSignal, time: Duration) {
    let is_over = || stop.is_triggered() || shared.is_exhausted() || shared.dropped() > 0;
    while shared.now() < time && !is_over() {
        tokio::time::sleep(POLL_INTERVAL.min(time.saturating_sub(shared.now()))).await;
    }
}

async fn wait_for_end<T>(
    shared: &LoadState<T>,
    stop: &StopSignal,
    load: &Load,
    begin: Duration,
) -> EndReason {
    let deadline = begin + load.stop_condition.duration;
    let mut convergence = load.stop_condition.max_ci_fraction.map(ConvergenceCheck::new);
    let (mut completed_before, mut next) = (shared.progress.snapshot().0, begin + SERIES_INTERVAL);
    loop {
        if stop.is_triggered() {
            return EndReason::Stopped;
        }
        if shared.dropped() > 0 {
            return EndReason::Overrun;
        }
        if shared.is_exhausted() {
            return EndReason::Exhausted;
        }
        let now = shared.now();
        if now >= next {
            let (completed, ..) = shared.progress.snapshot();
            let amount = (completed - completed_before) as f64;
            (completed_before, next) = (completed, next + SERIES_INTERVAL);
            if convergence.as_mut().is_some_and(|convergence| convergence.add_and_check(amount)) {
                return EndReason::Converged;
            }
        }
        if now >= deadline {
            return EndReason::TimeLimit;
        }
        tokio::time::sleep(POLL_INTERVAL.min(deadline - now)).await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
