//! What every measurement of a store has in common: the store is opened, stages are gone through and told of, and what was
//! made is removed, also where a signal ended it earlier.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::Content;
use tradewind_bench::caches::Kernel;
use tradewind_bench::cluster::coordinator::prefix;
use tradewind_bench::course::{Course, Stage};
use tradewind_bench::drive::{Bed, Crew, Stop};
use tradewind_bench::files::Files;
use tradewind_bench::replay::Replay;
use tradewind_bench::tune::ground::Open;
use tradewind_core::error::{Error, Reason};
use tradewind_core::name::MAX_KEY_BYTES;
use tradewind_core::{Budget, Clock, SystemClock, Traffic};
use tradewind_model::lanes::LanesOptions;
use tradewind_volume::Scheduled;
use tradewind_volume::scheduled::Priorities;

use super::output::{HEAD, Output, OutputFlags, Told};
use super::samples::SampleFlags;
use crate::commands::terminal::say_line;
use crate::commands::transfer::{AccessFlags, block_until_signal};
use crate::commands::{Ended, Misused, Stopped};
use crate::places::ObjectsPlace;
use crate::profiles::here::cores;
use crate::stores::{Absent, Lines, Measuring};

/// What requests may hold in memory.
const MEMORY: usize = 1 << 30;
/// What is read at once, in bytes.
const READ_BYTES: usize = 256 << 10;
/// After a signal, objects or files are removed for so long at the most.
const TIME_TO_CLEAN: Duration = Duration::from_secs(600);
/// Requests at a time that make objects and remove them.
const HANDS: usize = 32;
/// What stands between the prefix of a run and the keys of a trace, at the longest.
const ROUND: &str = "1000/";

/// Flags about where it is measured, how often, and what is left.
#[derive(Debug, Args)]
pub(super) struct RunFlags {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    pub place: ObjectsPlace,
    /// How often all of it is done, one round behind the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Where chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A connection of its own for each request
    #[arg(long)]
    pub fresh: bool,
    /// Leave the objects there
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub output: OutputFlags,
}

/// The same, and who asks.
#[derive(Debug, Args)]
pub(super) struct GroundFlags {
    #[command(flatten)]
    pub run: RunFlags,
    #[command(flatten)]
    pub asking: AskingFlags,
    /// Drop the caches of this whole machine when objects are made and before each measurement; it takes root
    #[arg(long)]
    drop_caches: bool,
    #[command(flatten)]
    samples: SampleFlags,
}

/// Flags about who asks, on the machine that does.
#[derive(Debug, Args)]
pub(in crate::commands) struct AskingFlags {
    /// Upload from files in this directory and download to files there, in place of memory
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Have requests take turns in lanes: large ones hold back so that small ones are as fast as alone
    #[arg(long)]
    pub lanes: bool,
    #[command(flatten)]
    pub access: AccessFlags,
}

impl GroundFlags {
    /// How many bytes the keys of a trace may have.
    pub fn room_for_keys(&self) -> usize {
        let taken = below(&self.run.place.key).len() + prefix(0).len() + ROUND.len();
        MAX_KEY_BYTES.saturating_sub(taken)
    }

    /// Whoever drops caches, if anybody is to. Refused where that may not be.
    fn kernel(&self) -> anyhow::Result<Option<Kernel>> {
        let Some(kernel) = self.drop_caches.then(Kernel::default) else { return Ok(None) };
        kernel.may_be_asked().map_err(|why| anyhow::anyhow!("--drop-caches cannot be done: {why}"))?;
        Ok(Some(kernel))
    }
}

/// What is measured.
pub(super) enum Work {
    Stages(Vec<Stage>),
    /// A trace, so often.
    Replay(Box<Replay>, u32),
}

impl Work {
    /// Requests at a time, at the most.
    fn at_once(&self) -> usize {
        let of_stage = |stage: &Stage| stage.iter().map(|step| step.load.parallel).sum();
        match self {
            Self::Stages(stages) => stages.iter().map(of_stage).max().unwrap_or(1),
            Self::Replay(replay, _) => replay.parallel(),
        }
    }

    /// Measurements that run at the same time, at the most.
    fn together(&self) -> usize {
        match self {
            Self::Stages(stages) => stages.iter().map(Vec::len).max().unwrap_or(1),
            Self::Replay(..) => 1,
        }
    }

    /// How many measurements there are.
    fn cells(&self) -> usize {
        match self {
            Self::Stages(stages) => stages.iter().map(Vec::len).sum(),
            Self::Replay(_, rounds) => *rounds as usize,
        }
    }
}

/// What is measured, and where it cannot be.
pub(super) struct Wanted {
    pub work: Work,
    /// Why it cannot be measured on a store that takes objects of so many bytes at the most.
    pub check: Box<dyn Fn(u64) -> Result<(), String>>,
}

/// Measures it.
pub(super) fn run(flags: &GroundFlags, wanted: Wanted) -> anyhow::Result<Ended> {
    until_stopped(async |stop| measure(flags, wanted, stop).await)
}

/// Measures until it is done, or until a signal asks it to end: what was measured by then is kept, and for a while it may
/// clean up.
pub(in crate::commands) fn until_stopped(
    measure: impl AsyncFnOnce(Stop) -> anyhow::Result<Ended>,
) -> anyhow::Result<Ended> {
    let stop = Stop::default();
    let stopping = stop.clone();
    block_until_signal(TIME_TO_CLEAN, |stopped| async move {
        let caught = tokio::spawn(async move {
            let caught = stopped.await.ok();
            stopping.ask();
            caught
        });
        let ended = measure(stop).await;
        // It would wait for a signal that nobody needs any more; where one was caught it has ended.
        caught.abort();
        match caught.await {
            Ok(Some(caught)) => {
                ended?;
                Err(Stopped(caught).into())
            }
            _ => ended,
        }
    })
}

impl AskingFlags {
    /// Opens the store of a place, for so many requests at a time, each with a connection of its own or not. It may replay a
    /// log. Files lie in a directory of a name that nobody else has.
    pub fn open(
        &self,
        place: &ObjectsPlace,
        (connections, is_fresh): (usize, bool),
        own: &str,
    ) -> anyhow::Result<Bed> {
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let traffic = Arc::new(Traffic::default());
        let measuring = Some(Measuring { is_fresh, traffic: traffic.clone() });
        let lines = Lines { connections: connections.max(HANDS), most_read_bytes: READ_BYTES, measuring };
        let known = self.access.stores(clock.clone(), lines)?;
        known.check(&[&*place.scheme])?;
        let store = known.open(&place.scheme, Absent::Refuse)?.store;
        let store = if self.lanes {
            let (options, none) = (LanesOptions::default(), Priorities::default());
            Scheduled::new(store, options, none, clock.clone())
        } else {
            store
        };
        let files = match &self.files {
            Some(directory) => Some(Arc::new(Files::new(directory.join(own))?)),
            None => None,
        };
        let (content, budget) = (Arc::new(Content::new()), Budget::new(MEMORY));
        let crew = Crew::hire(cores()).context("cannot start the threads that ask")?;
        Ok(Bed { store, bucket: place.bucket.clone(), content, clock, budget, traffic, files, crew })
    }
}

impl AskingFlags {
    /// Opens the store of a place again and again, each time with connections of its own. One that has none, and that may be
    /// open only once, is the same each time.
    pub fn opener(&self, place: &ObjectsPlace, connections: usize, bed: &Bed) -> anyhow::Result<Open> {
        if bed.store.capabilities().kind == "local" {
            let store = bed.store.clone();
            return Ok(Box::new(move || Ok(store.clone())));
        }
        let measuring = Some(Measuring { is_fresh: false, traffic: bed.traffic.clone() });
        let lines = Lines { connections, most_read_bytes: READ_BYTES, measuring };
        let known = self.access.stores(bed.clock.clone(), lines)?;
        let scheme = place.scheme.clone();
        Ok(Box::new(move || {
            let opened = known.open(&scheme, Absent::Refuse);
            Ok(opened.map_err(|e| Error::new(Reason::Io, format!("{e:#}")))?.store)
        }))
    }
}

/// A number that no other run has.
pub(in crate::commands) fn number() -> anyhow::Result<u32> {
    getrandom::u32().map_err(|e| anyhow::anyhow!("the system gives no random bytes: {e}"))
}

async fn measure(flags: &GroundFlags, wanted: Wanted, stop: Stop) -> anyhow::Result<Ended> {
    let run = &flags.run;
    let kernel = flags.kernel()?;
    let own = prefix(number()?);
    let lines = (wanted.work.at_once(), run.fresh);
    let bed =
        tokio::task::block_in_place(|| flags.asking.open(&run.place, lines, own.trim_end_matches('/')))?;
    let capabilities = bed.store.capabilities();
    (wanted.check)(capabilities.max_object_bytes).map_err(Misused)?;
    let prefix = format!("{}{own}", below(&run.place.key));
    let told = Told {
        place: run.place(),
        kind: capabilities.kind.to_owned(),
        prefix: prefix.clone(),
        seed: run.seed,
        fresh: run.fresh,
        files: flags.asking.files.as_ref().map(|files| files.display().to_string()),
        cores: cores(),
        cells: wanted.work.cells(),
        head: HEAD,
        agents: Vec::new(),
    };
    let samples = flags.samples.begin(wanted.work.at_once())?;
    let output = Output::begin(&run.output, &told, bed.clock.wall(), stop.clone());
    let mut output = output.inspect_err(|_| flags.samples.discard())?;
    let course = Course::new(&bed, &prefix, wanted.work.together(), (told.cores, run.keep));
    let mut course = course.dropping_caches(kernel).sampled(samples);
    let measured = match wanted.work {
        Work::Stages(stages) => course.run(stages, &stop, |event| output.tell(event)).await,
        Work::Replay(replay, rounds) => {
            course.replay(&replay, rounds, &stop, |event| output.tell(event)).await
        }
    };
    let sampled = tokio::task::block_in_place(|| course.end_samples());
    if let Some(files) = &bed.files {
        // Before the objects, which may take longer than a signal leaves time for.
        files.remove();
    }
    if stop.is_asked() && !run.keep {
        tell_removing(&run.place, &prefix);
    }
    let cleaned = if run.keep { Ok(0) } else { course.clean().await };
    let servers = bed.traffic.addresses().iter().map(ToString::to_string).collect();
    let ended = run.conclude(output, (matches!(measured, Ok(true)), servers), &prefix, cleaned);
    measured?;
    let ended = ended?;
    flags.samples.end(sampled)?;
    Ok(ended)
}

/// Says what is done before it ends, to whoever has stopped it.
pub(in crate::commands) fn tell_removing(place: &ObjectsPlace, prefix: &str) {
    let (scheme, bucket) = (&place.scheme, &place.bucket);
    // They are removed also where the terminal that it would be read on has gone away.
    let _ = writeln!(
        io::stderr(),
        "removing objects below {scheme}://{bucket}/{prefix}; a second signal leaves them there"
    );
}

impl RunFlags {
    /// The place as it was given.
    pub fn place(&self) -> String {
        let ObjectsPlace { scheme, bucket, key } = &self.place;
        format!("{scheme}://{bucket}/{key}")
    }

    /// Says how it ended, and what is left below a prefix.
    pub fn conclude(
        &self,
        output: Output,
        (is_whole, servers): (bool, Vec<String>),
        prefix: &str,
        cleaned: Result<u64, impl fmt::Display>,
    ) -> anyhow::Result<Ended> {
        let ended = output.end(is_whole, servers);
        let place = format!("{}://{}/{prefix}", self.place.scheme, self.place.bucket);
        if self.keep {
            writeln!(io::stderr(), "objects are kept below {place}")?;
        }
        if let Err(e) = &cleaned {
            // Whatever else went wrong is told too.
            say_line(format_args!("tradewind: objects are left below {place} and cannot be removed: {e}"))?;
        }
        let ended = ended?;
        Ok(if cleaned.is_err() { Ended::FoundFaults } else { ended })
    }
}

/// A prefix that ends where a directory would.
pub(in crate::commands) fn below(key: &str) -> String {
    if key.is_empty() || key.ends_with('/') { key.to_owned() } else { format!("{key}/") }
}
