//! What the commands that move data share: their flags, the stores they speak with, the runtime they run in, and how they
//! end.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::thread::disable_transparent_huge_pages;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tradewind_bench::packets::Packets;
use tradewind_core::{Budget, Clock, ObjectStore, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::store_model::SizeClass;
use tradewind_model::tune::Surface;
use tradewind_transfer::files::{Directory, Links};
use tradewind_transfer::journal::Journal;
use tradewind_transfer::objects::Objects;
use tradewind_transfer::{Copier, End, Progress};
use tradewind_volume::buffers::BUFFER_BYTES;
use tradewind_volume::{Carrier, Observed};

use super::Stopped;
use super::advice::scaled_from;
use super::limits::raise_file_limit;
use super::signals::{Caught, Signals};
use crate::logs;
use crate::places::ObjectsPlace;
use crate::profiles::here::cores;
use crate::profiles::{Profile, Profiles};
use crate::remote;
use crate::settings::{ByteSize, Problems};
use crate::stores::{Absent, Lines, Stores};

/// What is held in memory unless flags say otherwise.
const MEMORY: usize = 48 << 20;
/// What a command takes to stop, at the most.
const TIME_TO_STOP: Duration = Duration::from_secs(3);

/// Flags about where stores are, and who asks.
#[derive(Debug, Clone, Args)]
pub(super) struct AccessFlags {
    /// Profile of s3:// in ~/.aws [default: AWS_PROFILE, or default]
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    profile: Option<String>,
    /// Where s3:// answers, as http://HOST:PORT [default: as the AWS CLI finds it]
    #[arg(long, value_name = "URL", help_heading = "Store")]
    endpoint_url: Option<String>,
    /// The region of s3:// [default: as the AWS CLI finds it]
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    region: Option<String>,
    /// Ask without a signature, for what everybody may read
    #[arg(long, help_heading = "Store")]
    no_sign_request: bool,
    /// Settings file whose [store.NAME] are places NAME://BUCKET/KEY [default: TRADEWIND_CONFIG]
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    config: Option<PathBuf>,
}

/// Flags of every command that works with a store.
#[derive(Debug, Clone, Args)]
pub(super) struct StoreFlags {
    #[command(flatten)]
    access: AccessFlags,
    /// Requests at a time
    #[arg(long, value_name = "N", value_parser = jobs, help_heading = "Tuning")]
    jobs: Option<usize>,
    /// Bytes of one request of a large object, as 8MiB or 8M
    #[arg(long, value_name = "SIZE", value_parser = chunk_size, help_heading = "Tuning")]
    chunk_size: Option<ByteSize>,
    /// Bytes that may be held in memory, as 64MiB or 64M
    #[arg(long, value_name = "SIZE", value_parser = max_memory, help_heading = "Tuning")]
    max_memory: Option<ByteSize>,
    /// Requests at a time where neither a flag nor a profile says.
    #[arg(skip)]
    usual_jobs: Option<usize>,
    #[arg(skip)]
    max_bandwidth: Option<ByteSize>,
    #[arg(skip)]
    streams: bool,
}

/// The flag of those that carry the bytes of objects.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct LimitFlags {
    /// Bytes per second at the most, both directions together, as 50MiB or 50M
    #[arg(long, value_name = "RATE", value_parser = max_bandwidth, help_heading = "Tuning")]
    max_bandwidth: Option<ByteSize>,
}

fn jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=4096).contains(jobs));
    jobs.ok_or_else(|| "write a number from 1 to 4096".to_owned())
}

fn within(text: &str, least: u64, most: u64) -> Result<ByteSize, String> {
    let size = ByteSize::parse(text)?;
    let is_within = (least..=most).contains(&size.0);
    let why = || format!("it must be {} to {}", ByteSize(least), ByteSize(most));
    if is_within { Ok(size) } else { Err(why()) }
}

fn chunk_size(text: &str) -> Result<ByteSize, String> {
    within(text, 64 << 10, 5 << 30)
}

/// Less would not hold the pieces of a few requests.
fn max_memory(text: &str) -> Result<ByteSize, String> {
    within(text, 4 << 20, 1 << 40)
}

/// Less would be a request of which a store hears nothing for too long.
fn max_bandwidth(text: &str) -> Result<ByteSize, String> {
    within(text.strip_suffix("/s").unwrap_or(text), 16 << 10, 1 << 40)
}

/// What a command works with.
pub(super) struct Session {
    /// Those that the command's places are in, by name, with what is known of them.
    pub stores: Vec<(Arc<str>, Arc<Observed>)>,
    pub carrier: Arc<Carrier>,
    pub progress: Arc<Progress>,
    /// Directories of local stores, by the names of the stores.
    directories: HashMap<Arc<str>, Arc<Path>>,
    /// Where transfers under way are remembered.
    journals: Option<PathBuf>,
}

impl AccessFlags {
    /// All stores that places can name.
    pub fn stores(&self, clock: Arc<dyn Clock>, lines: Lines) -> Result<Stores, Problems> {
        let overrides = remote::Overrides {
            profile: self.profile.clone(),
            endpoint_url: self.endpoint_url.clone(),
            region: self.region.clone(),
            is_anonymous: self.no_sign_request,
        };
        Stores::find(self.config.clone(), overrides, clock, lines)
    }
}

impl StoreFlags {
    /// As many requests at a time as another flag says; the usual number where that, what is known of the store and --jobs say
    /// nothing.
    pub fn with_jobs(&self, asked: Option<usize>, usual: usize) -> Self {
        Self { jobs: self.jobs.or(asked), usual_jobs: Some(usual), ..self.clone() }
    }

    /// Bodies pass no faster than the limit.
    pub fn limited(&self, limit: LimitFlags) -> Self {
        Self { max_bandwidth: limit.max_bandwidth, ..self.clone() }
    }

    /// Whether what is carried says how many requests are under way: where nobody else does.
    const fn is_steered(&self) -> bool {
        self.jobs.is_none() && self.max_bandwidth.is_none()
    }

    /// Bytes wait in memory for their turn, and not for a file: less of them is read at once.
    pub fn streaming(&self) -> Self {
        Self { streams: true, ..self.clone() }
    }

    /// What a connection reads at once at the most, where there is so much memory for each: a quarter of that. Under a limit
    /// what came at once is waited for behind it, so that it must be little.
    fn most_read_bytes(&self, memory: usize) -> usize {
        let limited = self.max_bandwidth.map(|limit| Carrier::piece_under(limit.0));
        let streaming = self.streams.then_some(BUFFER_BYTES);
        [limited, streaming].into_iter().flatten().fold(memory / 4, usize::min)
    }

    /// Opens the stores that places are in.
    pub fn open<'a>(&self, schemes: impl IntoIterator<Item = Option<&'a str>>) -> anyhow::Result<Session> {
        self.open_or_make(schemes, Absent::Refuse)
    }

    /// The same; a local store that is not there may be made.
    pub fn open_or_make<'a>(
        &self,
        schemes: impl IntoIterator<Item = Option<&'a str>>,
        absent: Absent,
    ) -> anyhow::Result<Session> {
        logs::begin_quietly();
        let mut plan = Plan::default();
        plan.requests = self.jobs.or(self.usual_jobs).unwrap_or(plan.requests);
        let exactly = |plan: Plan| self.chunk_size.map_or(plan, |size| plan.with_chunks(size.0));
        plan = exactly(plan);
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let memory = self.max_memory.map_or(MEMORY, ByteSize::as_usize);
        let lines = |plan: &Plan| Lines {
            connections: if self.is_steered() { Carrier::most_steered(plan.requests) } else { plan.requests },
            most_read_bytes: self.most_read_bytes(of_one(plan, memory)),
            measuring: None,
        };
        let mut known = self.access.stores(clock.clone(), lines(&plan))?;
        let mut schemes: Vec<&str> = schemes.into_iter().flatten().collect();
        known.check(&schemes)?;
        schemes.sort_unstable();
        schemes.dedup();
        if self.jobs.is_none() {
            plan = exactly(tuned(plan, &known, &schemes));
            known = known.over(lines(&plan));
        }
        // Of what is held, requests take half, and what waits for its turn the other.
        let memory = memory / 2;
        plan.memory_bytes = plan.memory_bytes.min(memory as u64);
        let (mut stores, mut retries, mut directories) = (Vec::new(), None, HashMap::new());
        for scheme in schemes {
            // It may replay a log.
            let opened = tokio::task::block_in_place(|| known.open(scheme, absent))?;
            retries = retries.or(opened.retries);
            let scheme: Arc<str> = scheme.into();
            if let Some(directory) = opened.directory {
                directories.insert(scheme.clone(), Arc::from(directory));
            }
            stores.push((scheme, Observed::new(opened.store, clock.clone())));
        }
        let mut carrier = Carrier::new(plan, Budget::new(memory), clock, retries.unwrap_or_default());
        if let Some(limit) = self.max_bandwidth {
            carrier = carrier.limited(limit.0);
        } else if self.is_steered() {
            carrier = carrier.steered(packets);
        }
        let journals = journal_directory();
        let (carrier, progress) = (Arc::new(carrier), Arc::default());
        Ok(Session { stores, carrier, progress, directories, journals })
    }
}

/// Packets that this client has sent, and those of them that it sent again.
fn packets() -> (u64, u64) {
    let Packets { sent, again, .. } = Packets::up_to_now();
    (sent, again)
}

impl Session {
    /// The store that has a name, and its name.
    fn find(&self, scheme: &str) -> anyhow::Result<&(Arc<str>, Arc<Observed>)> {
        let found = self.stores.iter().find(|(name, _)| **name == *scheme);
        found.with_context(|| format!("{scheme}:// was not opened"))
    }

    /// The store that has a name.
    pub fn store(&self, scheme: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
        Ok(self.find(scheme)?.1.clone())
    }

    /// Objects whose keys begin with the place's key.
    pub fn objects(&self, place: &ObjectsPlace) -> anyhow::Result<Objects> {
        let (scheme, store) = self.find(&place.scheme)?.clone();
        let (directory, prefix) = (self.directories.get(&scheme).cloned(), place.key.clone());
        Ok(Objects { store, scheme, bucket: place.bucket.clone(), prefix, directory })
    }

    /// Objects below a place, as in a directory.
    pub fn below(&self, place: &ObjectsPlace) -> anyhow::Result<End> {
        let mut objects = self.objects(place)?;
        if !objects.prefix.is_empty() && !objects.prefix.ends_with('/') {
            objects.prefix.push('/');
        }
        Ok(End::Objects(objects))
    }

    /// A whole bucket, whose names are keys.
    pub fn bucket(&self, place: &ObjectsPlace) -> anyhow::Result<End> {
        Ok(End::Objects(Objects { prefix: String::new(), ..self.objects(place)? }))
    }

    /// A directory.
    pub fn directory(path: &Path, links: Links) -> anyhow::Result<End> {
        let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
        Ok(End::Files(Directory::new(path)?, links))
    }

    /// Where transfers with a store, or between two, are remembered.
    pub fn journal_of(&self, stores: &[&Arc<dyn ObjectStore>]) -> Option<Journal> {
        let names: Vec<String> = stores.iter().map(|store| format!("{store:?}")).collect();
        Some(Journal::new(self.journals.clone()?, names.join("\n")))
    }

    /// What carries between two ends; whether it keeps what files have besides their bytes.
    pub fn copier(&self, from: End, to: End, preserves: bool) -> Arc<Copier> {
        let (carrier, progress) = (self.carrier.clone(), self.progress.clone());
        let journal = match (&from, &to) {
            (End::Files(..), End::Objects(objects)) | (End::Objects(objects), End::Files(..)) => {
                self.journal_of(&[&objects.store])
            }
            (End::Objects(from), End::Objects(to)) => self.journal_of(&[&from.store, &to.store]),
            (End::Files(..), End::Files(..)) => None,
        };
        Arc::new(Copier { from, to, carrier, progress, journal, preserves })
    }
}

/// The memory that each request may have: as much as requests of any size under way can have together.
fn of_one(plan: &Plan, memory: usize) -> usize {
    let sizes = || SizeClass::all().map(|sizes| sizes.most_bytes().unwrap_or(u64::MAX));
    let together = |each: u64| sizes().map(|bytes| plan.parallel(bytes) as u64 * bytes.min(each)).max();
    let mut each = memory / plan.parallel(u64::MAX);
    while each > memory / plan.requests && together(each as u64) > Some(memory as u64) {
        each /= 2;
    }
    each
}

/// The plan that follows from what is known of the stores. Of several each has its say: the larger number counts.
fn tuned(plan: Plan, known: &Stores, schemes: &[&str]) -> Plan {
    let Some(profiles) = Profiles::find().filter(Profiles::has_any) else { return plan };
    let mut surfaces: Vec<Surface> = Vec::new();
    for scheme in schemes {
        let Some(found) = known.service(scheme).and_then(|store| profiles.known(&store, cores())) else {
            continue;
        };
        if found.is_carried {
            let Profile { store, .. } = &found.profile;
            let from = scaled_from(&found.profile);
            tracing::debug!(scheme, store, from, "what is known of another store or client is used, scaled");
        }
        surfaces.extend(found.surfaces.into_iter().map(|(_, surface)| surface));
    }
    plan.tuned(&surfaces)
}

/// Where transfers under way are remembered: where caches belong on this system.
fn journal_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("tradewind"))
}

/// Runs a command to its end, or until a signal stops it: then what is unfinished and not remembered is removed here and
/// given up in the store.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let (runtime, stopped) = start(TIME_TO_STOP)?;
    runtime.block_on(async {
        let caught = tokio::select! {
            ended = work => return ended,
            Ok(caught) = stopped => caught,
        };
        settle().await;
        Err(Stopped(caught).into())
    })
}

/// Runs a command that goes on until a signal comes and then ends by itself, for which it has `grace`.
pub(super) fn block_until_signal<T, F: Future<Output = anyhow::Result<T>>>(
    grace: Duration,
    work: impl FnOnce(oneshot::Receiver<Caught>) -> F,
) -> anyhow::Result<T> {
    let (runtime, stopped) = start(grace + TIME_TO_STOP)?;
    runtime.block_on(async {
        let ended = work(stopped).await;
        // What does not clean up in time is ended with the process.
        let _ = tokio::time::timeout(TIME_TO_STOP, settle()).await;
        ended
    })
}

/// The threads that carry data, and where the first signal is told; the process ends so long after it at the latest.
fn start(time_to_stop: Duration) -> anyhow::Result<(Runtime, oneshot::Receiver<Caught>)> {
    // Buffers are small and change hands: huge pages would double what is held, and be cleared for a part of it only.
    if let Err(e) = disable_transparent_huge_pages(true) {
        tracing::debug!(error = %e, "huge pages stay");
    }
    raise_file_limit();
    let runtime = Builder::new_multi_thread().enable_all().thread_name("tradewind").build();
    let runtime = runtime.context("cannot start the threads that carry data")?;
    let (stop, stopped) = oneshot::channel();
    let signals = runtime.block_on(async { Signals::new() })?;
    runtime.spawn(watch(signals, stop, time_to_stop));
    Ok((runtime, stopped))
}

/// Tells of the first signal, and ends the process where that is not heard: who writes to a pipe that nobody reads does
/// not look up.
async fn watch(mut signals: Signals, stop: oneshot::Sender<Caught>, time_to_stop: Duration) {
    let caught = signals.next().await;
    // Nobody listens any more where the command is at its end.
    let _ = stop.send(caught);
    tokio::select! {
        () = tokio::time::sleep(time_to_stop) => {}
        _ = signals.again() => {}
    }
    std::process::exit(caught.exit_status().into());
}

/// Waits until what was dropped has cleaned up behind itself.
async fn settle() {
    let runtime = Handle::current();
    // The one that is left watches for signals, and ends this when it takes too long.
    while runtime.metrics().num_alive_tasks() > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreFlags,
    }

    #[test]
    fn what_requests_of_any_size_hold_together_is_bounded() {
        use tradewind_model::tune::{Belief, Cell, Sample};
        let sample = |bytes, parallel, latency| Sample {
            cell: Cell { bytes, parallel },
            latency,
            error: 0.02,
            tail: None,
            is_seen: false,
        };
        let samples = vec![
            sample(4 << 10, 256, 0.1),
            sample(1 << 20, 64, 0.6),
            sample(8 << 20, 1, 0.3),
            sample(8 << 20, 16, 1.4),
        ];
        let plan = Plan::default().tuned(&[Surface::new(Belief::default(), samples)]);
        let each = of_one(&plan, MEMORY);
        for sizes in SizeClass::all() {
            let bytes = sizes.most_bytes().unwrap_or(u64::MAX);
            let together = plan.parallel(bytes) as u64 * bytes.min(each as u64);
            assert!(together <= MEMORY as u64, "{bytes}: {together}, {plan:?}");
        }
        assert!(each >= MEMORY / plan.requests);
        assert_eq!(of_one(&Plan::default(), MEMORY), MEMORY / 32);
    }

    #[test]
    fn connections_read_little_at_once_where_little_may_be_held() {
        let flags = Line::parse_from(["any"]).store;
        let limited = |rate| flags.limited(LimitFlags { max_bandwidth: Some(ByteSize(rate)) });
        assert_eq!(flags.most_read_bytes(4 << 20), 1 << 20);
        assert_eq!(flags.streaming().most_read_bytes(4 << 20), BUFFER_BYTES);
        assert_eq!(flags.streaming().most_read_bytes(64 << 10), 16 << 10);
        // A tenth of a second's.
        assert_eq!(limited(1 << 20).most_read_bytes(4 << 20), (1 << 20) / 10);
        assert_eq!(limited(1 << 20).streaming().most_read_bytes(64 << 10), 16 << 10);
    }
}
