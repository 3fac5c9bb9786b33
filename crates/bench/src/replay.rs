//! Replays an object trace against a store, at the times of the trace or as fast as possible. Keys are placed below
//! the prefix of the run. Objects that the trace reads before it writes them are created first. Every response is
//! checked against the versions that were possible while the request was in flight ([`history`]), because requests to
//! one key may overlap differently than in the trace. The trace is read twice: once to validate it and to find the
//! objects it needs, once to replay it.

pub mod history;
pub mod key_order;
pub mod objects;
pub mod trace;
mod trace_reader;
pub mod trace_summary;
mod worker;

use std::fmt;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, Context};

use self::key_order::KeyOrder;
use self::objects::ReplayObjects;
use self::trace::{InvalidLine, Trace};
use self::trace_reader::TraceReader;
use self::trace_summary::TraceSummary;
use self::worker::{ReplayCounts, ReplayWorker, RequestOrdering};
use crate::arrivals::Spacing;
use crate::drive::load_state::LoadState;
use crate::drive::request::{FAILURE_PAUSE, MAX_PREPARE_ATTEMPTS, RequestFailure, put_object};
use crate::drive::{
    BenchEnv, LoadOutcome, Progress, STOPPED_DRAIN_TIMEOUT, StopSignal, request_context, run_workers,
};
use crate::load::{ArrivalMode, Load, StopCondition};

/// Minimum concurrency with which missing objects are created.
const MIN_PREPARE_CONCURRENCY: usize = 32;
/// Requests read from the trace ahead of unfinished ones when replaying as fast as possible: per worker, and the
/// minimum.
const READ_AHEAD_PER_WORKER: usize = 4;
const MIN_READ_AHEAD: usize = 4096;
/// Shortest time over which a rate is computed.
const MIN_SPAN: Duration = Duration::from_millis(1);

/// Opens a trace from its beginning.
pub type OpenTrace = dyn Fn() -> io::Result<Box<dyn BufRead + Send>> + Send + Sync;

/// A validated trace, and how it is replayed.
pub struct Replay {
    name: String,
    open: Arc<OpenTrace>,
    max_key_bytes: usize,
    trace_summary: TraceSummary,
    /// Maximum concurrent requests.
    concurrency: usize,
    /// Speed as a multiple of that of the trace; `None` for as fast as possible.
    speed: Option<f64>,
}

/// Description of the replayed trace in a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceInfo {
    /// Name of the trace.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of invalid lines, which were skipped.
    pub invalid_lines: u64,
    /// Speed as a multiple of that of the trace; `None` for as fast as possible.
    pub speed: Option<f64>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay of {}", self.name)
    }
}

impl Replay {
    /// Reads and validates a trace whose keys have at most `max_key_bytes` bytes. The outer error is an I/O error;
    /// the inner one describes an invalid header.
    pub fn from_trace(
        name: &str,
        open: Arc<OpenTrace>,
        max_key_bytes: usize,
        (concurrency, speed): (usize, Option<f64>),
    ) -> io::Result<std::result::Result<Self, InvalidLine>> {
        let trace = match Trace::open(open()?, max_key_bytes)? {
            Ok(trace) => trace,
            Err(invalid_line) => return Ok(Err(invalid_line)),
        };
        let trace_summary = TraceSummary::read(trace)?;
        Ok(Ok(Self { name: name.to_owned(), open, max_key_bytes, trace_summary, concurrency, speed }))
    }

    /// The validated contents of the trace.
    #[must_use]
    pub const fn trace_summary(&self) -> &TraceSummary {
        &self.trace_summary
    }

    /// The description for a result.
    #[must_use]
    pub fn trace_info(&self) -> TraceInfo {
        let (requests, invalid_lines) = (self.trace_summary.count(), self.trace_summary.invalid_lines);
        TraceInfo { name: self.name.clone(), requests, invalid_lines, speed: self.speed }
    }

    /// The maximum number of concurrent requests.
    #[must_use]
    pub const fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// The duration of the replay if the store keeps up; `None` if it runs as fast as possible.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        self.speed.map(|speed| self.trace_summary.span.div_f64(speed))
    }

    /// The equivalent load. At the pace of the trace, that is an open loop with the mean rate of the trace.
    #[must_use]
    pub fn load(&self) -> Load {
        let requests = self.trace_summary.count();
        let arrival_mode = self.duration().map_or(ArrivalMode::Closed, |time| ArrivalMode::Open {
            requests_per_second: requests as f64 / time.max(MIN_SPAN).as_secs_f64(),
            spacing: Spacing::Fixed,
        });
        let stop_condition = StopCondition {
            max_requests: Some(requests),
            duration: Duration::MAX / 4,
            max_ci_fraction: None,
        };
        let (mix, warm_up) = (self.trace_summary.mix(), Duration::ZERO);
        Load {
            mix,
            concurrency: self.concurrency,
            arrival_mode,
            stop_condition,
            warm_up,
            seed: 0,
            phase: 0.0,
        }
    }

    /// Creates the objects that must exist before the replay, from the workers' runtime, so that connections are open
    /// when the replay starts. Failed creations are retried a few times. Returns false if it was stopped; requests in
    /// flight then have [`STOPPED_DRAIN_TIMEOUT`] to finish before they are aborted.
    pub async fn prepare(
        &self,
        env: &BenchEnv,
        objects: &Arc<ReplayObjects>,
        stop: &StopSignal,
        progress: &Arc<Progress>,
    ) -> Result<bool> {
        let arguments = (env.clone(), objects.clone(), stop.clone(), progress.clone());
        let mut creating = env
            .worker_pool
            .spawn(vec![create_objects(arguments, MIN_PREPARE_CONCURRENCY.max(self.concurrency)).boxed()]);
        let created = tokio::select! {
            created = creating.join_next() => created,
            () = stop.triggered_for(STOPPED_DRAIN_TIMEOUT) => None,
        };
        let Some(created) = created else { return Ok(false) };
        let created = created
            .map_err(|e| Error::with_source(Reason::Defect, "the task that creates objects panicked", e))?;
        created.map_err(|failure| {
            let (count, _) = self.trace_summary.initial_objects();
            let message = failure.message;
            Error::new(
                Reason::Io,
                format!("cannot create one of the {count} objects that the trace reads: {message}"),
            )
        })?;
        Ok(!stop.is_triggered())
    }

    /// Replays the trace once on prepared objects, to its end or until stopped. Returns the outcome, and notes about
    /// the figures.
    pub async fn run(
        &self,
        env: &BenchEnv,
        objects: &Arc<ReplayObjects>,
        stop: &StopSignal,
        progress: &Arc<Progress>,
    ) -> Result<(LoadOutcome, Vec<String>)> {
        let workers = (self.concurrency, Some(self.trace_summary.count()));
        let shared = Arc::new(LoadState::new(env.clock.clone(), workers, progress.clone(), objects.clone()));
        let read_ahead = MIN_READ_AHEAD.max(READ_AHEAD_PER_WORKER * self.concurrency);
        let ordering = self.speed.is_none().then(|| {
            Arc::new(RequestOrdering {
                order: Mutex::new(KeyOrder::default()),
                read_ahead: Semaphore::new(read_ahead),
            })
        });
        let mut workers = Vec::with_capacity(self.concurrency + 1);
        for n in 0..self.concurrency {
            let worker = ReplayWorker {
                env: env.clone(),
                objects: objects.clone(),
                shared: shared.clone(),
                ordering: ordering.clone(),
                context: request_context(env).await?,
                counts: ReplayCounts::default(),
                samples: shared.sampler(Some(n)),
            };
            workers.push(worker.run().boxed());
        }
        let (trace_reader, requests) = TraceReader::start(self, objects.clone())?;
        let starts = match (self.speed, ordering) {
            (Some(speed), _) => Some(requests.into_starts(speed)),
            (None, Some(ordering)) => {
                workers.push(requests.feed(shared.clone(), ordering).boxed());
                None
            }
            (None, None) => None,
        };
        let subject = |_, request: worker::TraceRequest| request.subject(objects);
        let driven = run_workers(env, &shared, (starts, workers), &self.load(), stop, subject).await;
        trace_reader.join()?;
        let (outcome, counts) = driven?;
        let notes = self.notes(&counts);
        Ok((outcome, notes))
    }

    fn notes(&self, counts: &[ReplayCounts]) -> Vec<String> {
        let mut notes = Vec::new();
        let waited: u64 = counts.iter().map(|counts| counts.waited).sum();
        if waited > 0 {
            notes.push(format!(
                "{waited} requests waited because all {} workers were busy: the store cannot keep up with the trace, or the \
                 concurrency is too low; their latencies include the wait",
                self.concurrency
            ));
        }
        let not_found: u64 = counts.iter().map(|counts| counts.not_found).sum();
        if not_found > 0 {
            notes.push(format!(
                "{not_found} requests correctly found nothing: the trace had deleted the object, or reads beyond its end"
            ));
        }
        if self.trace_summary.invalid_lines > 0 {
            notes.push(format!(
                "{} invalid lines of the trace were skipped",
                self.trace_summary.invalid_lines
            ));
        }
        notes
    }
}

/// Creates the objects that a trace needs with the given concurrency, until stopped.
async fn create_objects(
    (env, objects, stop, progress): (BenchEnv, Arc<ReplayObjects>, StopSignal, Arc<Progress>),
    concurrency: usize,
) -> std::result::Result<(), RequestFailure> {
    let (env, objects, context, progress, stop) =
        (&env, &objects, &request_context(&env).await?, &progress, &stop);
    let creating = objects.initial_objects().take_while(|_| !stop.is_triggered()).map(|object| async move {
        if create_object((env, context), objects, object, stop).await? {
            progress.record_success(object.1);
        }
        Ok::<(), RequestFailure>(())
    });
    let mut creating = futures::stream::iter(creating).buffer_unordered(concurrency);
    while let Some(created) = creating.next().await {
        created?;
    }
    Ok(())
}

/// Creates one object, with retries. Returns true if it exists; false if a failure coincided with the stop.
async fn create_object(
    (env, context): (&BenchEnv, &Context),
    objects: &ReplayObjects,
    (object, size): (usize, u64),
    stop: &StopSignal,
) -> std::result::Result<bool, RequestFailure> {
    let address = Address::parse(env.bucket.as_str(), &objects.name(object))?;
    let content = ReplayObjects::content(address.key.as_str(), 0, size);
    let mut attempts = 1;
    loop {
        match put_object(env, context, &address, (content, size), None).await {
            Ok(()) => return Ok(true),
            Err(_) if stop.is_triggered() => return Ok(false),
            Err(failure) if attempts == MAX_PREPARE_ATTEMPTS || failure.is_missing_bucket => {
                return Err(failure);
            }
            Err(_) => {
                objects.mark_creation_ambiguous(object);
                attempts += 1;
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

impl TraceInfo {
    /// The identifying name of the measurement: trace, concurrency and pace.
    #[must_use]
    pub fn name(&self, concurrency: usize) -> String {
        match self.speed {
            None => format!("{} x {concurrency}", self.name),
            Some(1.0) => format!("{} x {concurrency} at trace pace", self.name),
            Some(speed) => format!("{} x {concurrency} at {speed}x trace pace", self.name),
        }
    }
}

#[cfg(test)]
mod tests;
