//! Common parts of the commands that transfer data: flags, the session with its stores, the runtime, and shutdown.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::thread::disable_transparent_huge_pages;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tradewind_backend::s3::SubstituteProofs;
use tradewind_bench::tcp_counters::TcpCounters;
use tradewind_core::{Budget, Clock, ObjectStore, SystemClock};
use tradewind_layers::Instrumented;
use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_model::plan::Plan;
use tradewind_model::store_statistics::SizeClass;
use tradewind_model::tune::Surface;
use tradewind_parallel::TransferContext;
use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_transfer::class_rules::ClassRules;
use tradewind_transfer::files::{Directory, Links};
use tradewind_transfer::journal::JournalDirectory;
use tradewind_transfer::objects::Objects;
use tradewind_transfer::{Copier, Endpoint, Progress};

use super::StoppedBySignal;
use super::command_runtime::start_runtime;
use super::limits::{max_transfer_concurrency, raise_file_limit};
use super::plan_output::describe_profile_client;
use super::signals::{CaughtSignal, Signals};
use crate::locations::ObjectsLocation;
use crate::logs;
use crate::profiles::this_machine::cpus;
use crate::profiles::{Profile, Profiles};
use crate::s3_access;
use crate::settings::{ByteSize, Inputs, Problems, Settings};
use crate::stores::{ConnectionOptions, MissingDirectory, Stores};

/// The default of `--max-memory`.
const DEFAULT_MEMORY_BYTES: usize = 48 << 20;
/// The limit of the time that a command takes to stop after a signal.
const MAX_STOP_TIME: Duration = Duration::from_secs(3);

/// Flags for the location of stores and for credentials.
#[derive(Debug, Clone, Args)]
pub(super) struct AccessFlags {
    /// Profile in ~/.aws for s3:// [default: AWS_PROFILE, or default]
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    profile: Option<String>,
    /// Endpoint of s3://, as http://HOST:PORT [default: as for the AWS CLI]
    #[arg(long, value_name = "URL", help_heading = "Store")]
    endpoint_url: Option<String>,
    /// Region of s3:// [default: as for the AWS CLI]
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    region: Option<String>,
    /// Do not sign requests, for public objects
    #[arg(long, help_heading = "Store")]
    no_sign_request: bool,
    /// Settings file whose [store.NAME] tables define NAME://BUCKET/KEY [default: TRADEWIND_CONFIG]
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    config: Option<PathBuf>,
}

/// Flags of all commands that access a store.
#[derive(Debug, Clone, Args)]
pub(super) struct RequestFlags {
    #[command(flatten)]
    access: AccessFlags,
    /// Concurrent requests [default: automatic]
    #[arg(long, value_name = "N", value_parser = parse_concurrency, help_heading = "Tuning")]
    concurrency: Option<usize>,
}

/// Flags of commands that transfer the contents of objects.
#[derive(Debug, Clone, Args)]
pub(super) struct StoreFlags {
    #[command(flatten)]
    requests: RequestFlags,
    /// Size of one request of a large object, e.g. 8MiB or 8M
    #[arg(long, value_name = "SIZE", value_parser = chunk_size, help_heading = "Tuning")]
    chunk_size: Option<ByteSize>,
    /// Memory limit, e.g. 64MiB or 64M [default: 48MiB]
    #[arg(long, value_name = "SIZE", value_parser = max_memory, help_heading = "Tuning")]
    max_memory: Option<ByteSize>,
    /// Concurrency if neither a flag nor a profile sets it.
    #[arg(skip)]
    default_concurrency: Option<usize>,
    /// Set by [`Self::with_rate_limit`].
    #[arg(skip)]
    max_bandwidth: Option<ByteSize>,
    /// The bytes are written to an output in order: see [`Self::streaming`].
    #[arg(skip)]
    streams: bool,
}

/// The rate limit, for commands that transfer the bytes of objects.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct LimitFlags {
    /// Limit of bytes per second, both directions together, e.g. 50MiB or 50M
    #[arg(long, value_name = "RATE", value_parser = max_bandwidth, help_heading = "Tuning")]
    max_bandwidth: Option<ByteSize>,
}

fn parse_concurrency(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=4096).contains(number));
    number.ok_or_else(|| "write a number from 1 to 4096".to_owned())
}

pub(super) fn size_in_range(text: &str, min: u64, max: u64) -> Result<ByteSize, String> {
    let size = ByteSize::parse(text)?;
    let is_in_range = (min..=max).contains(&size.0);
    let why = || format!("it must be {} to {}", ByteSize(min), ByteSize(max));
    if is_in_range { Ok(size) } else { Err(why()) }
}

fn chunk_size(text: &str) -> Result<ByteSize, String> {
    size_in_range(text, 64 << 10, 5 << 30)
}

/// The minimum suffices for the buffers of a few requests.
fn max_memory(text: &str) -> Result<ByteSize, String> {
    size_in_range(text, 4 << 20, 1 << 40)
}

/// Below the minimum, a request would be idle for so long that the store may time out.
fn max_bandwidth(text: &str) -> Result<ByteSize, String> {
    size_in_range(text.strip_suffix("/s").unwrap_or(text), 16 << 10, 1 << 40)
}

/// The stores and the state of one command.
pub(super) struct Session {
    /// The stores of the command's locations, by scheme, with their measurements.
    pub stores: Vec<(Arc<str>, Arc<Instrumented>)>,
    pub transfer_context: Arc<TransferContext>,
    pub progress: Arc<Progress>,
    /// Requests without checksum headers, by the scheme of their S3 service.
    pub substitute_proofs: HashMap<Arc<str>, Arc<SubstituteProofs>>,
    /// Directories of local stores, by scheme.
    directories: HashMap<Arc<str>, Arc<Path>>,
    /// The directory of the journals of unfinished transfers.
    journal_directory: Option<PathBuf>,
}

/// Options of a copier.
#[derive(Debug, Default)]
pub(super) struct CopierOptions {
    /// Keeps the attributes of files.
    pub preserves_attributes: bool,
    /// Gives uploaded files a class.
    pub classes: ClassRules,
}

impl RequestFlags {
    /// The flags for locations and settings.
    pub fn access(&self) -> &AccessFlags {
        &self.access
    }
}

impl AccessFlags {
    /// The policies of classes in the settings file; the default ones without a file.
    pub fn class_policies(&self) -> Result<ClassPolicyTable, Problems> {
        let inputs = Inputs::gather(self.config.clone(), Vec::new())?;
        match &inputs.file {
            Some(_) => Ok(Settings::read(&inputs)?.named.class_policies()),
            None => Ok(ClassPolicyTable::default()),
        }
    }

    /// All stores that a location can name.
    pub fn stores(
        &self,
        clock: Arc<dyn Clock>,
        connection_options: ConnectionOptions,
    ) -> Result<Stores, Problems> {
        let overrides = s3_access::S3Flags {
            profile: self.profile.clone(),
            endpoint_url: self.endpoint_url.clone(),
            region: self.region.clone(),
            is_anonymous: self.no_sign_request,
        };
        Stores::find(self.config.clone(), overrides, clock, connection_options)
    }
}

impl RequestFlags {
    /// Opens the stores with these schemes.
    pub fn open<'a>(&self, schemes: impl IntoIterator<Item = Option<&'a str>>) -> anyhow::Result<Session> {
        self.open_or_create(schemes, MissingDirectory::Fail)
    }

    /// Like [`open`](Self::open), but `missing_directory` decides whether a missing local store is created.
    pub fn open_or_create<'a>(
        &self,
        schemes: impl IntoIterator<Item = Option<&'a str>>,
        missing_directory: MissingDirectory,
    ) -> anyhow::Result<Session> {
        let flags = StoreFlags {
            requests: self.clone(),
            chunk_size: None,
            max_memory: None,
            default_concurrency: None,
            max_bandwidth: None,
            streams: false,
        };
        flags.open_or_create(schemes, missing_directory)
    }
}

impl StoreFlags {
    /// The flags for locations and settings.
    pub fn access(&self) -> &AccessFlags {
        &self.requests.access
    }

    /// Sets the concurrency from another flag, which `--concurrency` overrides, and a default that applies if the store
    /// has no profile either.
    pub fn with_concurrency(&self, requested: Option<usize>, default: usize) -> Self {
        Self {
            requests: RequestFlags {
                concurrency: self.requests.concurrency.or(requested),
                ..self.requests.clone()
            },
            default_concurrency: Some(default),
            ..self.clone()
        }
    }

    /// Sets the rate limit of bodies.
    pub fn with_rate_limit(&self, limit: LimitFlags) -> Self {
        Self { max_bandwidth: limit.max_bandwidth, ..self.clone() }
    }

    /// Returns true if the concurrency adapts to the throughput: no flag sets it or limits the rate.
    const fn is_adaptive(&self) -> bool {
        self.requests.concurrency.is_none() && self.max_bandwidth.is_none()
    }

    /// Reduces the read size for output in order: there, bytes wait in memory instead of going to a file.
    pub fn streaming(&self) -> Self {
        Self { streams: true, ..self.clone() }
    }

    /// The maximum size of one read of a connection: a quarter of the [`read_memory_per_request`]. Under a rate limit a
    /// read delays later ones, so it must be small.
    fn max_read_bytes(&self, read_memory_per_request: usize) -> usize {
        let limited = self.max_bandwidth.map(|limit| TransferContext::piece_bytes_for_rate(limit.0));
        let streaming = self.streams.then_some(BUFFER_BYTES);
        [limited, streaming].into_iter().flatten().fold(read_memory_per_request / 4, usize::min)
    }

    /// Opens the stores with these schemes.
    pub fn open<'a>(&self, schemes: impl IntoIterator<Item = Option<&'a str>>) -> anyhow::Result<Session> {
        self.open_or_create(schemes, MissingDirectory::Fail)
    }

    /// Like [`open`](Self::open), but `missing_directory` decides whether a missing local store is created.
    fn open_or_create<'a>(
        &self,
        schemes: impl IntoIterator<Item = Option<&'a str>>,
        missing_directory: MissingDirectory,
    ) -> anyhow::Result<Session> {
        logs::init_quiet();
        let mut plan = Plan::default();
        plan.initial_concurrency =
            self.requests.concurrency.or(self.default_concurrency).unwrap_or(plan.initial_concurrency);
        plan = plan.with_max_concurrency(max_transfer_concurrency());
        let with_chunk_size_flag =
            |plan: Plan| self.chunk_size.map_or(plan, |size| plan.with_chunk_bytes(size.0));
        plan = with_chunk_size_flag(plan);
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let max_memory_bytes = self.max_memory.map_or(DEFAULT_MEMORY_BYTES, ByteSize::as_usize);
        let connection_options = |plan: &Plan| ConnectionOptions {
            max_connections: if self.is_adaptive() {
                TransferContext::max_adaptive_concurrency(plan)
            } else {
                plan.initial_concurrency
            },
            // Sized from the whole limit. Together the read buffers are about a quarter of it; they hold the bytes of
            // downloads, whose windows are reserved but not used.
            max_read_bytes: self.max_read_bytes(read_memory_per_request(plan, max_memory_bytes)),
            benchmark: None,
        };
        let mut configured = self.requests.access.stores(clock.clone(), connection_options(&plan))?;
        let mut schemes: Vec<&str> = schemes.into_iter().flatten().collect();
        configured.check_schemes(&schemes)?;
        schemes.sort_unstable();
        schemes.dedup();
        if self.requests.concurrency.is_none() {
            plan = with_chunk_size_flag(tuned(plan, &configured, &schemes));
            configured = configured.with_connection_options(connection_options(&plan));
        }
        // Half of the memory is for requests in flight, the other half for data that waits for output in order.
        let half_bytes = max_memory_bytes / 2;
        plan.max_buffered_bytes = plan.max_buffered_bytes.min(half_bytes as u64);
        let (mut stores, mut retries, mut directories) = (Vec::new(), None, HashMap::new());
        let mut substitute_proofs = HashMap::new();
        for scheme in schemes {
            // A local store may replay its log.
            let opened = tokio::task::block_in_place(|| configured.open(scheme, missing_directory))?;
            retries = retries.or(opened.retries);
            let scheme: Arc<str> = scheme.into();
            if let Some(directory) = opened.directory {
                directories.insert(scheme.clone(), Arc::from(directory));
            }
            if let Some(proofs) = opened.substitute_proofs {
                substitute_proofs.insert(scheme.clone(), proofs);
            }
            stores.push((scheme, Instrumented::new(opened.store, clock.clone())));
        }
        let mut transfer_context =
            TransferContext::new(plan, Budget::new(half_bytes), clock, retries.unwrap_or_default());
        if let Some(limit) = self.max_bandwidth {
            transfer_context = transfer_context.with_rate_limit(limit.0);
        } else if self.is_adaptive() {
            transfer_context = transfer_context.with_adaptive_concurrency(tcp_segments);
        }
        Ok(Session {
            stores,
            transfer_context: Arc::new(transfer_context),
            progress: Arc::default(),
            substitute_proofs,
            directories,
            journal_directory: journal_directory(),
        })
    }
}

/// TCP segments of this network namespace: sent without retransmissions, and retransmitted.
fn tcp_segments() -> (u64, u64) {
    let TcpCounters { sent, retransmitted, .. } = TcpCounters::read();
    (sent, retransmitted)
}

impl Session {
    /// The store of this scheme, and the scheme.
    fn find(&self, scheme: &str) -> anyhow::Result<&(Arc<str>, Arc<Instrumented>)> {
        let found = self.stores.iter().find(|(name, _)| **name == *scheme);
        found.with_context(|| format!("{scheme}:// was not opened"))
    }

    /// The store of this scheme.
    pub fn store(&self, scheme: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
        Ok(self.find(scheme)?.1.clone())
    }

    /// Objects whose keys begin with the location's key.
    pub fn objects(&self, location: &ObjectsLocation) -> anyhow::Result<Objects> {
        let (scheme, store) = self.find(&location.scheme)?.clone();
        let (directory, prefix) = (self.directories.get(&scheme).cloned(), location.key.clone());
        Ok(Objects { store, scheme, bucket: location.bucket.clone(), prefix, directory })
    }

    /// Objects below a location, as in a directory: the prefix ends with a slash.
    pub fn objects_below(&self, location: &ObjectsLocation) -> anyhow::Result<Endpoint> {
        let mut objects = self.objects(location)?;
        if !objects.prefix.is_empty() && !objects.prefix.ends_with('/') {
            objects.prefix.push('/');
        }
        Ok(Endpoint::Objects(objects))
    }

    /// A whole bucket, whose names are keys.
    pub fn bucket(&self, location: &ObjectsLocation) -> anyhow::Result<Endpoint> {
        Ok(Endpoint::Objects(Objects { prefix: String::new(), ..self.objects(location)? }))
    }

    /// A directory.
    pub fn directory(path: &Path, links: Links) -> anyhow::Result<Endpoint> {
        let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
        Ok(Endpoint::Files(Directory::new(path)?, links))
    }

    /// The journals of transfers with a store or between two stores.
    pub fn journals_for(&self, stores: &[&Arc<dyn ObjectStore>]) -> Option<JournalDirectory> {
        let names: Vec<String> = stores.iter().map(|store| format!("{store:?}")).collect();
        Some(JournalDirectory::new(self.journal_directory.clone()?, names.join("\n")))
    }

    /// A copier between two endpoints.
    pub fn copier(&self, from: Endpoint, to: Endpoint, options: CopierOptions) -> Arc<Copier> {
        let (transfers, progress) = (self.transfer_context.clone(), self.progress.clone());
        let journals = match (&from, &to) {
            (Endpoint::Files(..), Endpoint::Objects(objects))
            | (Endpoint::Objects(objects), Endpoint::Files(..)) => self.journals_for(&[&objects.store]),
            (Endpoint::Objects(from), Endpoint::Objects(to)) => self.journals_for(&[&from.store, &to.store]),
            (Endpoint::Files(..), Endpoint::Files(..)) => None,
        };
        let CopierOptions { preserves_attributes, classes } = options;
        Arc::new(Copier { from, to, transfers, progress, journals, preserves_attributes, classes })
    }
}

/// The share of the memory limit from which a connection's read buffer is sized. At the plan's concurrency, the
/// requests of every size class fit into `max_memory_bytes` with it; an adaptive pool may go above that. The window of a request is set in
/// [`transfer_context`](tradewind_parallel::transfer_context).
///
/// A request needs at most its size, so that small requests, of which more are concurrent, do not reduce the share of
/// large ones.
fn read_memory_per_request(plan: &Plan, max_memory_bytes: usize) -> usize {
    let max_total = |per_request: u64| {
        let sizes = SizeClass::all().map(|class| class.max_bytes().unwrap_or(u64::MAX));
        sizes.map(|bytes| plan.concurrency_for(bytes) as u64 * bytes.min(per_request)).max()
    };
    // Starts with an equal share for the largest requests, and halves it down to a share at the initial concurrency.
    let mut per_request = max_memory_bytes / plan.concurrency_for(u64::MAX);
    while per_request > max_memory_bytes / plan.initial_concurrency
        && max_total(per_request as u64) > Some(max_memory_bytes as u64)
    {
        per_request /= 2;
    }
    per_request
}

/// The plan adapted to the profiles of the stores. Both directions of each store count, whatever the command transfers:
/// the highest concurrency of all wins.
fn tuned(plan: Plan, configured: &Stores, schemes: &[&str]) -> Plan {
    let Some(profiles) = Profiles::find().filter(Profiles::has_any) else { return plan };
    let mut surfaces: Vec<Surface> = Vec::new();
    for scheme in schemes {
        let Some(found) =
            configured.profile_store_name(scheme).and_then(|store| profiles.for_transfers(&store, cpus()))
        else {
            continue;
        };
        if found.is_extrapolated {
            let Profile { store, .. } = &found.profile;
            let from = describe_profile_client(&found.profile);
            tracing::debug!(
                scheme,
                store,
                from,
                "using the profile of another store or client, extrapolated"
            );
        }
        surfaces.extend(found.surfaces.into_iter().map(|(_, surface)| surface));
    }
    plan.tuned(&surfaces)
}

/// The directory of the journals of unfinished transfers, in the cache directory of the user.
fn journal_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("tradewind"))
}

/// Runs a command until it ends or a signal stops it. After a signal, unfinished files are removed and unfinished
/// uploads aborted, unless a journal records them.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let (runtime, stopped) = start(MAX_STOP_TIME)?;
    runtime.block_on(async {
        let caught = tokio::select! {
            ended = work => return ended,
            Ok(caught) = stopped => caught,
        };
        wait_for_cleanup().await;
        Err(StoppedBySignal(caught).into())
    })
}

/// Runs a command that continues until a signal. It must then end by itself within `grace`.
pub(super) fn block_until_signal<T, F: Future<Output = anyhow::Result<T>>>(
    grace: Duration,
    work: impl FnOnce(oneshot::Receiver<CaughtSignal>) -> F,
) -> anyhow::Result<T> {
    let (runtime, stopped) = start(grace + MAX_STOP_TIME)?;
    runtime.block_on(async {
        let ended = work(stopped).await;
        // Tasks that do not clean up in time end with the process.
        let _ = tokio::time::timeout(MAX_STOP_TIME, wait_for_cleanup()).await;
        ended
    })
}

/// Starts the runtime and returns it with a receiver of the first signal. The process ends at most `max_stop_time`
/// after that signal.
fn start(max_stop_time: Duration) -> anyhow::Result<(Runtime, oneshot::Receiver<CaughtSignal>)> {
    // Buffers are small and move between threads: huge pages would double the memory held, and zero more than is used.
    if let Err(e) = disable_transparent_huge_pages(true) {
        tracing::debug!(error = %e, "cannot disable transparent huge pages");
    }
    raise_file_limit();
    let runtime = start_runtime(None)?;
    let (stop, stopped) = oneshot::channel();
    let signals = runtime.block_on(async { Signals::new() })?;
    runtime.spawn(watch(signals, stop, max_stop_time));
    Ok((runtime, stopped))
}

/// Reports the first signal, and ends the process if the command does not stop in time: a write to a full pipe whose
/// reader has stopped reading may block forever.
async fn watch(mut signals: Signals, stop: oneshot::Sender<CaughtSignal>, max_stop_time: Duration) {
    let caught = signals.next().await;
    // The receiver is gone if the command has just ended.
    let _ = stop.send(caught);
    tokio::select! {
        () = tokio::time::sleep(max_stop_time) => {}
        _ = signals.next_except_hangup() => {}
    }
    std::process::exit(caught.exit_status().into());
}

/// Waits until all cleanup tasks of dropped transfers have ended.
async fn wait_for_cleanup() {
    let runtime = Handle::current();
    // The last task is the signal watcher, which ends the process if this takes too long.
    while runtime.metrics().num_alive_tasks() > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct StoreLine {
        #[command(flatten)]
        store: StoreFlags,
    }

    #[test]
    fn memory_of_concurrent_requests_is_bounded_for_every_size() {
        use tradewind_model::tune::{OperatingPoint, Prior, Sample};
        let sample = |bytes, concurrency, latency| Sample {
            point: OperatingPoint { bytes, concurrency },
            latency,
            relative_error: 0.02,
            tail: None,
            from_transfer: false,
        };
        let samples = vec![
            sample(4 << 10, 256, 0.1),
            sample(1 << 20, 64, 0.6),
            sample(8 << 20, 1, 0.3),
            sample(8 << 20, 16, 1.4),
        ];
        let plan = Plan::default().tuned(&[Surface::new(Prior::default(), samples)]);
        let per_request = read_memory_per_request(&plan, DEFAULT_MEMORY_BYTES);
        for class in SizeClass::all() {
            let bytes = class.max_bytes().unwrap_or(u64::MAX);
            let total = plan.concurrency_for(bytes) as u64 * bytes.min(per_request as u64);
            assert!(total <= DEFAULT_MEMORY_BYTES as u64, "{bytes}: {total}, {plan:?}");
        }
        assert!(per_request >= DEFAULT_MEMORY_BYTES / plan.initial_concurrency);
        assert_eq!(
            read_memory_per_request(&Plan::default(), DEFAULT_MEMORY_BYTES),
            DEFAULT_MEMORY_BYTES / 32
        );
    }

    #[test]
    fn reads_are_small_with_little_memory_or_a_rate_limit() {
        let flags = StoreLine::parse_from(["any"]).store;
        let limited = |rate| flags.with_rate_limit(LimitFlags { max_bandwidth: Some(ByteSize(rate)) });
        assert_eq!(flags.max_read_bytes(4 << 20), 1 << 20);
        assert_eq!(flags.streaming().max_read_bytes(4 << 20), BUFFER_BYTES);
        assert_eq!(flags.streaming().max_read_bytes(64 << 10), 16 << 10);
        // The bytes of 100 ms.
        assert_eq!(limited(1 << 20).max_read_bytes(4 << 20), (1 << 20) / 10);
        assert_eq!(limited(1 << 20).streaming().max_read_bytes(64 << 10), 16 << 10);
    }
}
