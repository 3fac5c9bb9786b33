//! `tradewind tune`: how large requests to a store are to be, and how many at a time.

mod find;
mod heat;
mod lines;
mod start;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::drive::Stop;
use tradewind_bench::tune::{self, Ground};
use tradewind_core::Timestamp;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::Cap;
use tradewind_model::tune::carry::Client;

use self::find::{Finder, Found};
use self::start::Start;
use self::workload::Workloads;
use super::Ended;
use super::advice::{self, PARALLEL};
use super::bench::ground::{AskingFlags, below, number, tell_removing, until_stopped};
use super::bench::output::client;
use super::caps;
use super::report::rfc3339;
use super::terminal::say_line;
use crate::places::{ObjectsPlace, Place};
use crate::profiles::here::cores;
use crate::profiles::{Profile, Profiles};
use crate::settings::{ByteSize, Span};

/// Find how large requests to a store should be, and how many at a time
///
/// A few short probes write objects below a prefix of their own and read them back; what was never tried is inferred from them.
/// Objects are removed at the end. What was found is kept, and commands that move data to and from this store use it from then
/// on. Where nothing may be written, downloads of objects that are there are tried alone.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind tune s3://bucket\n  \
    tradewind tune s3://bucket/prefix --budget 64MiB,20s\n  \
    tradewind tune s3://bucket --latency 100ms --latency p99=300ms\n  \
    tradewind tune s3://bucket --workload ~/photos\n  \
    tradewind tune s3://bucket --explain\n\n\
    Exit status: 0 done, 1 nothing could be found out or objects are left, 2 usage, 130 stopped by Ctrl-C: nothing is kept.")]
pub(super) struct Arguments {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    place: ObjectsPlace,
    /// No probe goes on behind so many bytes, up and down together, or so much time; objects are removed after that
    #[arg(long, value_name = "SIZE,TIME", default_value = "1GiB,60s", value_parser = budget)]
    budget: (ByteSize, Duration),
    /// Also say which plan has requests that take so long at the most, in the mean, or 95 or 99 of a hundred of them (p99=100ms);
    /// may be given several times
    #[arg(long, value_name = "[p95=|p99=]TIME", value_parser = caps::parse)]
    latency: Vec<Cap>,
    /// Look only at sizes of requests that moving this would have: a directory, s3://BUCKET/PREFIX, or a trace as bench replay reads it;
    /// what was known of other sizes is forgotten
    #[arg(long, value_name = "DIR|PREFIX|TRACE", conflicts_with = "explain")]
    workload: Option<Place>,
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
    let store = format!("{:?}", bed.store);
    // Commands have no profile of a store that is a directory here.
    let service = (bed.store.capabilities().kind != "local").then_some(store.as_str());
    let profiles = Profiles::find();
    if service.is_some() && profiles.is_none() {
        anyhow::bail!("neither HOME nor XDG_DATA_HOME says where profiles are kept: set one of them");
    }
    // A place that is not there is told before anything is written, or removed.
    let look = async {
        let round_trip = tune::round_trip(&ground).await?;
        let workloads = match &arguments.workload {
            Some(place) => Some(Workloads::find(place, (arguments, &bed)).await?),
            None => None,
        };
        anyhow::Ok((round_trip, workloads))
    };
    let (round_trip, workloads) = tokio::select! {
        seen = look => seen?,
        () = stop.asked() => return Ok(Ended::Done),
    };
    let start = tokio::task::block_in_place(|| Start::new(service, round_trip, bed.files.as_deref()))?;
    start.print(arguments.json)?;
    if let Some(workloads) = &workloads {
        workloads.print(arguments.json)?;
    }
    let finder = Finder { arguments, ground: &ground, start: &start, workloads: workloads.as_ref(), stop };
    let found = finder.find().await;
    if let Some(files) = &bed.files {
        files.remove();
    }
    if stop.is_asked() {
        tell_removing(place, &prefix);
    }
    let cleaned = ground.clean().await;
    if let Err(e) = &cleaned {
        let (scheme, bucket) = (&place.scheme, &place.bucket);
        say_line(format_args!(
            "tradewind: objects are left below {scheme}://{bucket}/{prefix} and cannot be removed: {e}"
        ))?;
    }
    let found = found?;
    if stop.is_asked() {
        // What is half known does not take the place of what was known before.
        return Ok(Ended::Done);
    }
    let is_known = found.iter().any(Found::is_known);
    if !arguments.json {
        for one in &found {
            one.print(arguments, workloads.as_ref().map(|workloads| workloads.of(one.direction)))?;
        }
    }
    if let Some((profiles, store)) = profiles.as_ref().zip(service).filter(|_| is_known) {
        let (profile, path) = keep((profiles, store), &found, &start.client, bed.clock.wall())?;
        if !arguments.json {
            advice::print_use(&profile.surfaces(), &path)?;
        }
    }
    Ok(if cleaned.is_err() || !is_known { Ended::FoundFaults } else { Ended::Done })
}

/// Keeps what was found of a store. A direction that was not looked at is left as it was known.
fn keep(
    (profiles, store): (&Profiles, &str),
    found: &[Found],
    here: &Client,
    now: Timestamp,
) -> anyhow::Result<(Profile, PathBuf)> {
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
    let path = profiles.path(store);
    let path = profiles
        .keep(&profile)
        .with_context(|| format!("what was found cannot be kept in {}", path.display()))?;
    Ok((profile, path))
}
