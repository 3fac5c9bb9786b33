//! Common parts of all benchmarks of a store: open the store, run the stages with progress output, and remove the
//! objects, also after a signal.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::Content;
use tradewind_bench::caches::CacheDropper;
use tradewind_bench::cluster::coordinator::run_prefix;
use tradewind_bench::drive::{BenchEnv, StopSignal, WorkerPool};
use tradewind_bench::files::LocalFiles;
use tradewind_bench::replay::Replay;
use tradewind_bench::runner::{Runner, Stage};
use tradewind_bench::tune::probe_target::OpenStore;
use tradewind_core::error::{Error, Reason};
use tradewind_core::name::MAX_KEY_BYTES;
use tradewind_core::{Budget, Clock, SystemClock, Traffic};
use tradewind_layers::Scheduled;
use tradewind_layers::scheduled::Priorities;
use tradewind_model::lanes::LanesOptions;

use super::output::{Output, OutputFlags, RunDescription, TABLE_HEADER};
use super::samples::SampleFlags;
use crate::commands::terminal::print_error_line;
use crate::commands::transfer::{AccessFlags, block_until_signal};
use crate::commands::{CommandOutcome, StoppedBySignal, UsageError};
use crate::locations::ObjectsLocation;
use crate::profiles::this_machine::cpus;
use crate::stores::{BenchmarkOptions, ConnectionOptions, MissingDirectory};

/// The memory budget of requests.
const MEMORY_BYTES: usize = 1 << 30;
/// The maximum size of one read from a connection.
const READ_BYTES: usize = 256 << 10;
/// The maximum time to remove objects and files after a signal.
const MAX_CLEANUP_TIME: Duration = Duration::from_secs(600);
/// The concurrency of creating and removing objects.
const WORKERS: usize = 32;
/// The component between the prefix of a run and the keys of a trace, at its maximum length: the number of the round.
const MAX_ROUND_PREFIX: &str = "1000/";

/// Flags for the location, the number of rounds, and the cleanup.
#[derive(Debug, Args)]
pub(super) struct RunFlags {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    pub location: ObjectsLocation,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Use a new connection for each request
    #[arg(long)]
    pub new_connections: bool,
    /// Do not remove the objects at the end
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Flags of a benchmark that runs on this machine.
#[derive(Debug, Args)]
pub(super) struct TargetFlags {
    #[command(flatten)]
    pub run: RunFlags,
    #[command(flatten)]
    pub client: ClientFlags,
    /// Drop all caches of this machine after objects are created and before each measurement (needs root)
    #[arg(long)]
    drop_caches: bool,
    #[command(flatten)]
    samples: SampleFlags,
}

/// The use of connections to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum ConnectionUse {
    /// Requests reuse open connections.
    Reused,
    /// Each request opens a connection.
    NewPerRequest,
}

/// Flags of the machine that generates load.
#[derive(Debug, Args)]
pub(in crate::commands) struct ClientFlags {
    /// Upload from and download to files in this directory instead of memory
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Schedule requests in lanes: large ones are throttled to keep small ones fast
    #[arg(long)]
    pub lanes: bool,
    #[command(flatten)]
    pub access: AccessFlags,
}

impl TargetFlags {
    /// The limit of the length of keys in a trace, in bytes.
    pub fn max_trace_key_bytes(&self) -> usize {
        let prefix_bytes =
            directory_prefix(&self.run.location.key).len() + run_prefix(0).len() + MAX_ROUND_PREFIX.len();
        MAX_KEY_BYTES.saturating_sub(prefix_bytes)
    }

    /// The cache dropper, if requested. Fails if it is not permitted.
    fn cache_dropper(&self) -> anyhow::Result<Option<CacheDropper>> {
        let Some(dropper) = self.drop_caches.then(CacheDropper::default) else { return Ok(None) };
        dropper
            .check_permission()
            .map_err(|reason| anyhow::anyhow!("--drop-caches is not possible: {reason}"))?;
        Ok(Some(dropper))
    }
}

/// The measurements to run.
pub(super) enum Work {
    Stages(Vec<Stage>),
    /// A trace and its number of rounds.
    Replay(Box<Replay>, u32),
}

impl Work {
    /// The highest concurrency of all stages.
    fn max_concurrency(&self) -> usize {
        let of_stage = |stage: &Stage| stage.iter().map(|step| step.load.concurrency).sum();
        match self {
            Self::Stages(stages) => stages.iter().map(of_stage).max().unwrap_or(1),
            Self::Replay(replay, _) => replay.concurrency(),
        }
    }

    /// The highest number of concurrent measurements.
    fn max_concurrent_steps(&self) -> usize {
        match self {
            Self::Stages(stages) => stages.iter().map(Vec::len).max().unwrap_or(1),
            Self::Replay(..) => 1,
        }
    }

    /// The number of measurements.
    fn measurement_count(&self) -> usize {
        match self {
            Self::Stages(stages) => stages.iter().map(Vec::len).sum(),
            Self::Replay(_, rounds) => *rounds as usize,
        }
    }
}

/// The measurements, with a check against the limits of the store.
pub(super) struct BenchRequest {
    pub work: Work,
    /// Fails with the reason if a store with this limit of object bytes is not suitable.
    pub check: Box<dyn Fn(u64) -> Result<(), String>>,
}

/// Runs the measurements.
pub(super) fn run(flags: &TargetFlags, request: BenchRequest) -> anyhow::Result<CommandOutcome> {
    until_stopped(async |stop| measure(flags, request, stop).await)
}

/// Runs `measure` to its end. A signal triggers the stop signal: `measure` then keeps the results so far and has
/// limited time to clean up. The process then ends with the exit status of the signal (130 for Ctrl-C), whatever the
/// outcome.
pub(in crate::commands) fn until_stopped(
    measure: impl AsyncFnOnce(StopSignal) -> anyhow::Result<CommandOutcome>,
) -> anyhow::Result<CommandOutcome> {
    let stop = StopSignal::default();
    let triggered = stop.clone();
    block_until_signal(MAX_CLEANUP_TIME, |stopped| async move {
        let signal_task = tokio::spawn(async move {
            let signal = stopped.await.ok();
            triggered.trigger();
            signal
        });
        let outcome = measure(stop).await;
        // Stops waiting for a signal. If one was caught, the task has already ended.
        signal_task.abort();
        match signal_task.await {
            Ok(Some(signal)) => {
                outcome?;
                Err(StoppedBySignal(signal).into())
            }
            _ => outcome,
        }
    })
}

impl ClientFlags {
    /// Opens the store of a location for this concurrency. A local store may replay its log, which blocks. Files are in
    /// a subdirectory with the unique name `run_name`.
    pub fn open(
        &self,
        location: &ObjectsLocation,
        (concurrency, connection_use): (usize, ConnectionUse),
        run_name: &str,
    ) -> anyhow::Result<BenchEnv> {
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let traffic = Arc::new(Traffic::default());
        let is_single_use = connection_use == ConnectionUse::NewPerRequest;
        let connection_options = ConnectionOptions {
            max_connections: concurrency.max(WORKERS),
            max_read_bytes: READ_BYTES,
            benchmark: Some(BenchmarkOptions { is_single_use, traffic: traffic.clone() }),
        };
        let stores = self.access.stores(clock.clone(), connection_options)?;
        stores.check_schemes(&[&*location.scheme])?;
        let store = stores.open(&location.scheme, MissingDirectory::Fail)?.store;
        let store = if self.lanes {
            Scheduled::new(store, LanesOptions::default(), Priorities::default(), clock.clone())
        } else {
            store
        };
        let files = match &self.files {
            Some(directory) => Some(Arc::new(LocalFiles::new(directory.join(run_name))?)),
            None => None,
        };
        let (content, budget) = (Arc::new(Content::new()), Budget::new(MEMORY_BYTES));
        let worker_pool = WorkerPool::start(cpus()).context("cannot start the threads that send requests")?;
        Ok(BenchEnv {
            store,
            bucket: location.bucket.clone(),
            content,
            clock,
            budget,
            traffic,
            files,
            worker_pool,
        })
    }
}

impl ClientFlags {
    /// Returns a function that opens the store of a location, each time with new connections. For a local store, which
    /// can be open only once, the function returns the open store.
    pub fn opener(
        &self,
        location: &ObjectsLocation,
        max_connections: usize,
        env: &BenchEnv,
    ) -> anyhow::Result<OpenStore> {
        if env.store.capabilities().kind == "local" {
            let store = env.store.clone();
            return Ok(Box::new(move || Ok(store.clone())));
        }
        let connection_options = ConnectionOptions {
            max_connections,
            max_read_bytes: READ_BYTES,
            benchmark: Some(BenchmarkOptions { is_single_use: false, traffic: env.traffic.clone() }),
        };
        let stores = self.access.stores(env.clock.clone(), connection_options)?;
        let scheme = location.scheme.clone();
        Ok(Box::new(move || {
            let opened = stores.open(&scheme, MissingDirectory::Fail);
            Ok(opened.map_err(|e| Error::new(Reason::Io, format!("{e:#}")))?.store)
        }))
    }
}

/// A random number that identifies a run.
pub(in crate::commands) fn random_run_number() -> anyhow::Result<u32> {
    getrandom::u32().map_err(|e| anyhow::anyhow!("cannot get random bytes from the system: {e}"))
}

async fn measure(
    flags: &TargetFlags,
    request: BenchRequest,
    stop: StopSignal,
) -> anyhow::Result<CommandOutcome> {
    let run = &flags.run;
    let cache_dropper = flags.cache_dropper()?;
    let run_directory = run_prefix(random_run_number()?);
    let connection_use =
        if run.new_connections { ConnectionUse::NewPerRequest } else { ConnectionUse::Reused };
    let connections = (request.work.max_concurrency(), connection_use);
    let env = tokio::task::block_in_place(|| {
        flags.client.open(&run.location, connections, run_directory.trim_end_matches('/'))
    })?;
    let capabilities = env.store.capabilities();
    (request.check)(capabilities.max_object_bytes).map_err(UsageError)?;
    let prefix = format!("{}{run_directory}", directory_prefix(&run.location.key));
    let description = RunDescription {
        location: run.location(),
        store: capabilities.kind.to_owned(),
        prefix: prefix.clone(),
        seed: run.seed,
        new_connections: run.new_connections,
        files_dir: flags.client.files.as_ref().map(|files| files.display().to_string()),
        cores: cpus(),
        measurements: request.work.measurement_count(),
        table_header: TABLE_HEADER,
        agents: Vec::new(),
    };
    let samples = flags.samples.begin(request.work.max_concurrency())?;
    let output = Output::begin(&run.output, &description, env.clock.wall(), stop.clone());
    let mut output = output.inspect_err(|_| flags.samples.discard())?;
    let runner =
        Runner::new(&env, &prefix, request.work.max_concurrent_steps(), (description.cores, run.keep));
    let mut runner = runner.with_cache_dropping(cache_dropper).with_samples(samples);
    let measured = match request.work {
        Work::Stages(stages) => runner.run(stages, &stop, |event| output.handle_event(event)).await,
        Work::Replay(replay, rounds) => {
            runner.replay(&replay, rounds, &stop, |event| output.handle_event(event)).await
        }
    };
    let sampled = tokio::task::block_in_place(|| runner.finish_samples());
    if let Some(files) = &env.files {
        // Before the objects, whose removal may take longer than the time after a signal.
        files.remove();
    }
    if stop.is_triggered() && !run.keep {
        print_removal_notice(&run.location, &prefix);
    }
    let cleaned = if run.keep { Ok(0) } else { runner.clean().await };
    let servers = env.traffic.addresses().iter().map(ToString::to_string).collect();
    let outcome = run.conclude(output, (matches!(measured, Ok(true)), servers), &prefix, cleaned);
    measured?;
    let outcome = outcome?;
    flags.samples.end(sampled)?;
    Ok(outcome)
}

/// Tells the user, after a signal, that objects are being removed.
pub(in crate::commands) fn print_removal_notice(location: &ObjectsLocation, prefix: &str) {
    let (scheme, bucket) = (&location.scheme, &location.bucket);
    // The objects are removed even if stderr is closed.
    let _ = writeln!(
        io::stderr(),
        "removing objects below {scheme}://{bucket}/{prefix}; a second signal stops the removal"
    );
}

impl RunFlags {
    /// The location as given.
    pub fn location(&self) -> String {
        let ObjectsLocation { scheme, bucket, key } = &self.location;
        format!("{scheme}://{bucket}/{key}")
    }

    /// Finishes the output, and prints what remains below the prefix.
    pub fn conclude(
        &self,
        output: Output,
        (is_complete, servers): (bool, Vec<String>),
        prefix: &str,
        cleaned: Result<u64, impl fmt::Display>,
    ) -> anyhow::Result<CommandOutcome> {
        let outcome = output.end(is_complete, servers);
        let location = format!("{}://{}/{prefix}", self.location.scheme, self.location.bucket);
        if self.keep {
            writeln!(io::stderr(), "objects are kept below {location}")?;
        }
        if let Err(e) = &cleaned {
            // Reported in addition to any other error.
            print_error_line(format_args!(
                "tradewind: objects remain below {location} and cannot be removed: {e}"
            ))?;
        }
        let outcome = outcome?;
        Ok(if cleaned.is_err() { CommandOutcome::FoundProblems } else { outcome })
    }
}

/// The key as a prefix that ends with a slash, unless empty.
pub(in crate::commands) fn directory_prefix(key: &str) -> String {
    if key.is_empty() || key.ends_with('/') { key.to_owned() } else { format!("{key}/") }
}
