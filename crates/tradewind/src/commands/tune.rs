//! `tradewind tune`: how large requests to a store are to be, and how many at a time.

mod heat;
mod start;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tradewind_bench::drive::Stop;
use tradewind_bench::tune::{self, Asked, Event, Ground, Probed, Sampled};
use tradewind_core::{ErrorKind, Timestamp};
use tradewind_model::store_model::Direction;
use tradewind_model::tune::carry::Client;
use tradewind_model::tune::sampling::Budget;
use tradewind_model::tune::{Cap, Cell, Surface};

use self::heat::Heat;
use self::start::Start;
use super::Ended;
use super::advice::{self, PARALLEL, cells, name};
use super::bench::ground::{AskingFlags, below, number, until_stopped};
use super::bench::output::client;
use super::caps;
use super::report::rfc3339;
use crate::places::ObjectsPlace;
use crate::profiles::here::cores;
use crate::profiles::{Profile, Profiles};
use crate::settings::{ByteSize, Span};

/// Probes of each direction, at the most.
const PROBES: usize = 8;
/// What of the budget is for uploads; downloads have the rest.
const FOR_UPLOADS: f64 = 0.5;

/// Find the right size and parallelism of requests to a store
///
/// A few short probes write objects below a prefix of their own and read them back; what was never tried is inferred from them.
/// Objects are removed at the end. What was found is kept, and commands that move data to and from this store use it from then
/// on. Where nothing may be written, downloads of objects that are there are tried alone.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind tune s3://bucket\n  \
    tradewind tune s3://bucket/prefix --budget 64MiB,20s\n  \
    tradewind tune s3://bucket --latency 100ms --latency p99=300ms\n  \
    tradewind tune s3://bucket --explain\n\n\
    Exit status: 0 done, 1 nothing could be found out, 2 usage.")]
pub(super) struct Arguments {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    place: ObjectsPlace,
    /// What it may cost: bytes that are carried, and time
    #[arg(long, value_name = "SIZE,TIME", default_value = "1GiB,60s", value_parser = budget)]
    budget: (ByteSize, Duration),
    /// Also the plan whose requests take so long at the most, in the mean, or 95 or 99 of a hundred of them (p99=100ms); may be
    /// given several times
    #[arg(long, value_name = "[p95=|p99=]TIME", value_parser = caps::parse)]
    latency: Vec<Cap>,
    /// Try nothing: say what commands ask this store for, and the evidence for it
    #[arg(long)]
    explain: bool,
    /// What was found as JSON lines on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asking: AskingFlags,
}

fn budget(text: &str) -> Result<(ByteSize, Duration), String> {
    let (size, time) = text.split_once(',').ok_or("write it as 256MiB,60s")?;
    Ok((ByteSize::parse(size)?, Span::parse(time)?.0))
}

/// Tunes.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    if arguments.explain {
        super::profiles::explain(&arguments.place.scheme, arguments.asking.access.clone(), arguments.json)?;
        return Ok(Ended::Done);
    }
    until_stopped(async |stop| tune(&arguments, &stop).await)
}

async fn tune(arguments: &Arguments, stop: &Stop) -> anyhow::Result<Ended> {
    let own = format!("tradewind-tune-{:08x}/", number()?);
    let most = PARALLEL.into_iter().max().unwrap_or(1);
    let place = &arguments.place;
    let bed = tokio::task::block_in_place(|| {
        arguments.asking.open(place, (most, false), own.trim_end_matches('/'))
    })?;
    let prefix = format!("{}{own}", below(&place.key));
    let open = arguments.asking.opener(place, most, &bed)?;
    let ground = Arc::new(Ground::new(bed.clone(), open, prefix.clone()));
    // A place that is not there is told before anything is written, or removed.
    let round_trip = tune::round_trip(&ground).await?;
    let store = format!("{:?}", bed.store);
    // Commands have no profile of a store that is a directory here.
    let service = (bed.store.capabilities().kind != "local").then_some(store.as_str());
    let start = tokio::task::block_in_place(|| Start::new(service, round_trip, bed.files.as_deref()))?;
    let found = find_out(arguments, &ground, &start, stop).await;
    if let Some(files) = &bed.files {
        files.remove();
    }
    let cleaned = tradewind_bench::site::Site::clean_others(&bed, &prefix).await;
    if let Err(e) = &cleaned {
        let (scheme, bucket) = (&place.scheme, &place.bucket);
        writeln!(
            io::stderr(),
            "tradewind: objects are left below {scheme}://{bucket}/{prefix} and cannot be removed: {e}"
        )?;
    }
    let found = found?;
    if stop.is_asked() {
        // What is half known does not take the place of what was known before.
        return Ok(Ended::Done);
    }
    let is_known = found.iter().any(Found::is_known);
    let kept = service
        .filter(|_| is_known)
        .map(|store| keep(store, &found, &start.client, bed.clock.wall()))
        .transpose()?;
    if !arguments.json {
        print_advice(&found, &arguments.latency)?;
        if let Some((profile, path)) = kept {
            advice::print_use(&profile.surfaces(), &path)?;
        }
    }
    Ok(if cleaned.is_err() || !is_known { Ended::FoundFaults } else { Ended::Done })
}

/// Keeps what was found of a store. A direction that was not looked at is left as it was known.
fn keep(store: &str, found: &[Found], here: &Client, now: Timestamp) -> anyhow::Result<(Profile, PathBuf)> {
    let profiles = Profiles::find().context("neither HOME nor XDG_DATA_HOME says where profiles are kept")?;
    let client = client(cores());
    // What was found on another client is none of this one's.
    let known = profiles.of(store).filter(|profile| profile.is_made_on(here)).unwrap_or_default();
    let mut profile = Profile {
        store: store.to_owned(),
        made: rfc3339(now),
        client: client.name,
        cores: client.cores,
        memory: Some(client.memory).filter(|bytes| *bytes > 0),
        storage: here.storage,
        link: here.link,
        round_trip: here.round_trip,
        ..known
    };
    for Found { direction, sampled, .. } in found.iter().filter(|found| found.is_known()) {
        let samples = sampled.surface.samples().to_vec();
        match direction {
            Direction::Write => profile.upload = samples,
            Direction::Read => profile.download = samples,
        }
    }
    let path = profiles.keep(&profile).context("what was found cannot be kept")?;
    Ok((profile, path))
}

/// What came of one direction.
struct Found {
    direction: Direction,
    sampled: Sampled,
    /// Cells that a plan may have.
    cells: Vec<Cell>,
}

impl Found {
    /// Whether a probe said anything.
    fn is_known(&self) -> bool {
        !self.sampled.surface.samples().is_empty()
    }

    /// What failed, in one of those that did.
    fn failure(&self) -> Option<&str> {
        self.sampled.probes.iter().find_map(|probed| probed.failure.as_deref())
    }
}

async fn find_out(
    arguments: &Arguments,
    ground: &Arc<Ground>,
    start: &Start,
    stop: &Stop,
) -> anyhow::Result<Vec<Found>> {
    let (bytes, time) = (arguments.budget.0.0 as f64, arguments.budget.1.as_secs_f64());
    let mut left = Budget { bytes, seconds: time, probes: PROBES };
    let mut found = Vec::new();
    start.print(arguments.json)?;
    for (direction, part) in [(Direction::Write, FOR_UPLOADS), (Direction::Read, 1.0)] {
        if stop.is_asked() {
            break;
        }
        if direction == Direction::Read && ground.most_bytes() == 0 {
            ground.look(&arguments.place.key).await?;
            if ground.most_bytes() == 0 {
                writeln!(
                    io::stderr(),
                    "nothing is there to be downloaded, so that downloads are not looked at"
                )?;
                break;
            }
        }
        let share = Budget { bytes: left.bytes * part, seconds: left.seconds * part, probes: PROBES };
        let asked = Asked { cells: cells(), budget: share, cores: cores() };
        let mut heat = Heat::begin(direction, &asked.cells, arguments.json || !io::stdout().is_terminal());
        let tell = |event: Event<'_>| match event {
            Event::Begins(_, cell) => heat.begins(cell),
            Event::Probed(probed, surface) => {
                heat.probed(probed, surface);
                if arguments.json {
                    print_probe(probed);
                }
            }
        };
        let sampled = tune::sample(ground, direction, (&asked, start.belief(direction)), stop, tell).await;
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(e) if direction == Direction::Write && e.kind() == ErrorKind::Denied => {
                writeln!(io::stderr(), "nothing may be written here: only downloads are looked at")?;
                continue;
            }
            Err(e) if !found.is_empty() => {
                // What is known of uploads is known.
                writeln!(io::stderr(), "tradewind: downloads cannot be looked at: {e}")?;
                break;
            }
            Err(e) => return Err(e.into()),
        };
        left.bytes -= share.bytes - sampled.left.bytes;
        left.seconds -= share.seconds - sampled.left.seconds;
        if arguments.json {
            print_surface(direction, &asked.cells, &sampled.surface);
            for plan in advice::plans(name(direction), &sampled.surface, &asked.cells, &arguments.latency) {
                writeln!(io::stdout(), "{plan}")?;
            }
        } else {
            heat.end(&sampled.surface)?;
        }
        found.push(Found { direction, sampled, cells: asked.cells });
    }
    Ok(found)
}

/// Says what to do, or why nothing is known.
fn print_advice(found: &[Found], caps: &[Cap]) -> io::Result<()> {
    let mut out = io::stdout();
    for one in found {
        let Found { direction, sampled, cells } = one;
        if one.is_known() {
            write!(out, "{}", advice::of(name(*direction), &sampled.surface, cells, caps))?;
        } else {
            let why = one.failure().unwrap_or("the budget is too small for a single probe");
            writeln!(out, "{}: nothing was found out: {why}", name(*direction))?;
        }
    }
    Ok(())
}

fn print_probe(probed: &Probed) {
    let line = json!({
        "line": "probe",
        "direction": name(probed.direction),
        "size": probed.cell.bytes,
        "parallel": probed.cell.parallel,
        "latency_seconds": probed.sample.map(|sample| sample.latency),
        "error": probed.sample.map(|sample| sample.error),
        "bytes_per_second": probed.sample.map(|sample| sample.bandwidth()),
        "requests": probed.requests,
        "failures": probed.failures,
        "failure": probed.failure,
        "p95_seconds": probed.tail[0],
        "p99_seconds": probed.tail[1],
        "cpu_seconds": probed.cpu,
        "busy": probed.busy,
        "bytes": probed.bytes,
        "seconds": probed.time.as_secs_f64(),
    });
    let _ = writeln!(io::stdout(), "{line}");
}

fn print_surface(direction: Direction, cells: &[Cell], surface: &Surface) {
    for cell in cells {
        let found = surface.infer(*cell);
        let line = json!({
            "line": "inferred",
            "direction": name(direction),
            "size": cell.bytes,
            "parallel": cell.parallel,
            "latency_seconds": found.latency,
            "bytes_per_second": found.bandwidth(),
            "deviation": found.deviation,
        });
        let _ = writeln!(io::stdout(), "{line}");
    }
}
