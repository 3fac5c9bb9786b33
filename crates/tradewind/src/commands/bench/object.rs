//! `tradewind bench object`: requests of chosen kinds, sizes and parallelisms to a store.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tradewind_bench::arrivals::Spacing;
use tradewind_bench::drive::{Bed, Stop};
use tradewind_bench::load::{Pace, Until};
use tradewind_bench::survey::{Survey, clean};
use tradewind_bench::{Content, Mix, Operation, Sizes};
use tradewind_core::{Budget, Clock, SystemClock};

use super::output::{Output, OutputFlags, Told};
use crate::commands::transfer::{AccessFlags, block_until_signal};
use crate::commands::{Ended, Misused, Stopped};
use crate::places::ObjectsPlace;
use crate::settings::Span;
use crate::stores::{Absent, Lines};

/// What requests may hold in memory.
const MEMORY: usize = 1 << 30;
/// What is read at once, in bytes.
const READ_BYTES: usize = 256 << 10;
/// After a signal, objects are removed for so long at the most.
const TIME_TO_CLEAN: Duration = Duration::from_secs(60);

/// Measure a store with requests for objects
///
/// Objects are written below a prefix of its own and removed at the end; whatever is read is compared, byte for byte, with
/// what was written. By default objects of 4 KiB to 8 MiB are written and read with 1 to 64 requests at a time, which
/// takes some two minutes. Each worker asks again as soon as it has been answered; with --rate requests start at moments
/// of their own, whether or not earlier ones have been answered, and latencies count from there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench object s3://bucket\n  \
    tradewind bench object s3://bucket --mix get --size 4KiB --parallel 1,8,64 --time 10s --repeat 5\n  \
    tradewind bench object s3://bucket --mix get=70,put=20,delete=10 --size 60%4KiB+40%1MiB-4MiB\n  \
    tradewind bench object s3://bucket --mix get --size 64KiB --rate 500 --parallel 128 -o open.jsonl\n\n\
    Sizes: 4KiB, a range 4KiB-1MiB, lognormal:60KiB:1.5 (median and sigma), shares 60%4KiB+40%1MiB.\n\
    Exit status: 0 measured, 1 a request failed or was answered wrongly, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    place: ObjectsPlace,
    /// put, get, head, list or delete, or shares as get=70,put=30; several times for one after the other [default: put, get]
    #[arg(long, value_name = "MIX")]
    mix: Vec<Mix>,
    /// Sizes of objects, each measured apart
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,8MiB")]
    size: Vec<Sizes>,
    /// Requests at a time, each measured apart
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64", value_parser = parallel)]
    parallel: Vec<usize>,
    /// How long each is measured
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = Span::parse)]
    time: Span,
    /// End earlier: after so many requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End earlier: when the throughput is known to within this part of it, as 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    stable: Option<f64>,
    /// Requests a second that start whether or not earlier ones have been answered
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// How the starts of --rate lie apart: poisson or fixed
    #[arg(long, value_name = "HOW", default_value = "poisson", value_parser = spacing, requires = "rate")]
    spacing: Spacing,
    /// How long each runs before it counts
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = Span::parse)]
    warm_up: Span,
    /// How often all of it is done, one round behind the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Objects that are there to be read [default: up to 10000, or 512 MB of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    objects: Option<u64>,
    /// Where chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave the objects there
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    access: AccessFlags,
}

fn parallel(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=4096).contains(number));
    number.ok_or_else(|| "write a number from 1 to 4096".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let part = number.filter(|percent| (0.1..=50.0).contains(percent)).map(|percent: f64| percent / 100.0);
    part.ok_or_else(|| "write a percentage from 0.1 to 50, as 5%".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate: &f64| (0.01..=1e6).contains(rate));
    number.ok_or_else(|| "write requests a second, from 0.01 to 1000000".to_owned())
}

fn spacing(text: &str) -> Result<Spacing, String> {
    match text {
        "poisson" => Ok(Spacing::Poisson),
        "fixed" => Ok(Spacing::Fixed),
        _ => Err("write poisson or fixed".to_owned()),
    }
}

impl Arguments {
    fn survey(&self, cores: usize) -> Survey {
        let usual = || vec![Mix::only(Operation::Put), Mix::only(Operation::Get)];
        let spacing = self.spacing;
        Survey {
            mixes: if self.mix.is_empty() { usual() } else { self.mix.clone() },
            sizes: self.size.clone(),
            parallel: self.parallel.clone(),
            pace: self.rate.map_or(Pace::Closed, |per_second| Pace::Open { per_second, spacing }),
            until: Until { requests: self.count, time: self.time.0, stable: self.stable },
            warm_up: if self.count.is_some() { Duration::ZERO } else { self.warm_up.0 },
            repeats: self.repeat,
            objects: self.objects,
            seed: self.seed,
            keeps: self.keep,
            cores,
        }
    }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let stop = Stop::default();
    let stopping = stop.clone();
    block_until_signal(TIME_TO_CLEAN, |stopped| async move {
        let caught = tokio::spawn(async move {
            let caught = stopped.await.ok();
            stopping.ask();
            caught
        });
        let ended = measure(&arguments, &stop).await;
        if !stop.is_asked() {
            // It would wait for a signal that nobody needs any more.
            caught.abort();
            return ended;
        }
        if let Ok(Some(caught)) = caught.await {
            ended?;
            return Err(Stopped(caught).into());
        }
        ended
    })
}

async fn measure(arguments: &Arguments, stop: &Stop) -> anyhow::Result<Ended> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let survey = arguments.survey(cores);
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let most = survey.parallel.iter().copied().max().unwrap_or(1).max(32);
    let lines = Lines { connections: most, most_read_bytes: READ_BYTES, attempts: Some(1) };
    let known = arguments.access.stores(clock.clone(), lines)?;
    let scheme = &*arguments.place.scheme;
    known.check(&[scheme])?;
    // It may replay a log.
    let store = tokio::task::block_in_place(|| known.open(scheme, Absent::Refuse))?.store;
    survey.check(store.capabilities().max_object_bytes).map_err(Misused)?;
    let kind = store.capabilities().kind;
    let bucket = arguments.place.bucket.clone();
    let content = Arc::new(Content::new());
    let budget = Budget::new(MEMORY);
    let bed = Bed { store, bucket, content, clock: clock.clone(), budget };
    let run = getrandom::u32().map_err(|e| anyhow::anyhow!("the system gives no random bytes: {e}"))?;
    let prefix = format!("{}tradewind-bench-{run:08x}/", below(&arguments.place.key));
    let place = format!("{scheme}://{}/{}", arguments.place.bucket, arguments.place.key);
    let (seed, cells) = (arguments.seed, survey.cells());
    let told = Told { place, kind, prefix: prefix.clone(), seed, cores, cells };
    let mut output = Output::begin(&arguments.output, &told, clock.wall())?;
    let measured = survey.run(&bed, &prefix, stop, |event| output.tell(event)).await;
    let cleaned = if arguments.keep { Ok(0) } else { clean(&bed, &prefix).await };
    let ended = output.end(matches!(measured, Ok(true)));
    let place = format!("{scheme}://{}/{prefix}", bed.bucket);
    if arguments.keep {
        writeln!(io::stderr(), "objects are kept below {place}")?;
    }
    if let Err(e) = &cleaned {
        // Whatever else went wrong is told too.
        writeln!(io::stderr(), "tradewind: objects are left below {place} and cannot be removed: {e}")?;
    }
    measured?;
    let ended = ended?;
    Ok(if cleaned.is_err() { Ended::FoundFaults } else { ended })
}

/// A prefix that ends where a directory would.
fn below(key: &str) -> String {
    if key.is_empty() || key.ends_with('/') { key.to_owned() } else { format!("{key}/") }
}
