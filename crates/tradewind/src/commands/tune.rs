//! `tradewind tune`: finds request sizes and concurrency for a store.

mod direction;
mod heat_map;
mod json_lines;
mod starting_point;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::drive::StopSignal;
use tradewind_bench::tune::{self, ProbeTarget};
use tradewind_core::Timestamp;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::LatencyTarget;
use tradewind_model::tune::extrapolate::ClientEnvironment;

use self::direction::{DirectionResult, DirectionTuner};
use self::starting_point::StartingPoint;
use self::workload::Workloads;
use super::CommandOutcome;
use super::bench::output::local_client;
use super::bench::target::{
    ClientFlags, ConnectionUse, directory_prefix, print_removal_notice, random_run_number, until_stopped,
};
use super::latency_target;
use super::plan_output::{self, CANDIDATE_CONCURRENCIES};
use super::summary::rfc3339;
use super::terminal::print_error_line;
use crate::locations::{Location, ObjectsLocation};
use crate::profiles::this_machine::cpus;
use crate::profiles::{Profile, Profiles};
use crate::settings::{ByteSize, TimeSpan};

/// Find request sizes and concurrency for a store
///
/// A few short probes write objects below a temporary prefix and read them back; a model infers the rest. Objects are
/// removed at the end. The result is saved as a profile, which commands that transfer data to and from this store use
/// from then on. Without write permission, only downloads of existing objects are measured.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind tune s3://bucket\n  \
    tradewind tune s3://bucket/prefix --budget 64MiB,20s\n  \
    tradewind tune s3://bucket --latency 100ms --latency p99=300ms\n  \
    tradewind tune s3://bucket --workload ~/photos\n  \
    tradewind tune s3://bucket --explain\n\n\
    Exit status: 0 done, 1 no result or objects remain, 2 usage, 130 stopped by Ctrl-C: nothing is saved.")]
pub(super) struct Arguments {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Limits of the probes: bytes transferred in both directions together, and time without the final cleanup
    #[arg(long, value_name = "SIZE,TIME", default_value = "1GiB,60s", value_parser = parse_budget)]
    budget: (ByteSize, Duration),
    /// Also print the best operating point that meets this latency target: of the mean, or of a percentile (p99=100ms);
    /// repeatable
    #[arg(long, value_name = "[p95=|p99=]TIME", value_parser = latency_target::parse_latency_target)]
    latency: Vec<LatencyTarget>,
    /// Measure only the request sizes of this workload: a directory, s3://BUCKET/PREFIX, or a trace as for bench
    /// replay; earlier results for other sizes are discarded
    #[arg(long, value_name = "DIR|PREFIX|TRACE", conflicts_with = "explain")]
    workload: Option<Location>,
    /// Measure nothing: print the best operating points, the concurrency that commands use, and the measurements behind
    /// both
    #[arg(long)]
    explain: bool,
    /// Print the results as JSON lines on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientFlags,
}

fn parse_budget(text: &str) -> Result<(ByteSize, Duration), String> {
    let (size, time) = text.split_once(',').ok_or("write it as 256MiB,60s")?;
    Ok((ByteSize::parse(size)?, TimeSpan::parse(time)?.0))
}

/// Runs `tradewind tune`.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    if arguments.explain {
        super::profiles::explain(
            &arguments.location.scheme,
            arguments.client.access.clone(),
            arguments.json,
        )?;
        return Ok(CommandOutcome::Done);
    }
    until_stopped(async |stop| tune(&arguments, &stop).await)
}

async fn tune(arguments: &Arguments, stop: &StopSignal) -> anyhow::Result<CommandOutcome> {
    let run_name = format!("tradewind-tune-{:08x}", random_run_number()?);
    let max_concurrency = CANDIDATE_CONCURRENCIES.into_iter().max().unwrap_or(1);
    let location = &arguments.location;
    let env = tokio::task::block_in_place(|| {
        arguments.client.open(location, (max_concurrency, ConnectionUse::Reused), &run_name)
    })?;
    let prefix = format!("{}{run_name}/", directory_prefix(&location.key));
    let open = arguments.client.opener(location, max_concurrency, &env)?;
    let target = Arc::new(ProbeTarget::new(env.clone(), open, prefix.clone()));
    // The debug name of a store is the persistent key of its profile, so it must not change.
    let store = format!("{:?}", env.store);
    // There are no profiles of local stores.
    let profile_key = (env.store.capabilities().kind != "local").then_some(store.as_str());
    let profiles = Profiles::find();
    if profile_key.is_some() && profiles.is_none() {
        anyhow::bail!("there is no directory for profiles: set HOME or XDG_DATA_HOME");
    }
    // A missing location is reported before anything is written or removed.
    let preparation = async {
        let rtt = tune::measure_min_rtt(&target).await?;
        let workloads = match &arguments.workload {
            Some(location) => Some(Workloads::examine(location, (arguments, &env)).await?),
            None => None,
        };
        anyhow::Ok((rtt, workloads))
    };
    let (rtt, workloads) = tokio::select! {
        prepared = preparation => prepared?,
        // The caller, `until_stopped`, turns this outcome into exit status 130.
        () = stop.triggered() => return Ok(CommandOutcome::Done),
    };
    let start = tokio::task::block_in_place(|| StartingPoint::new(profile_key, rtt, env.files.as_deref()))?;
    start.print(arguments.json)?;
    if let Some(workloads) = &workloads {
        workloads.print(arguments.json)?;
    }
    let tuner =
        DirectionTuner { arguments, target: &target, start: &start, workloads: workloads.as_ref(), stop };
    let results = tuner.measure().await;
    if let Some(files) = &env.files {
        files.remove();
    }
    if stop.is_triggered() {
        print_removal_notice(location, &prefix);
    }
    let cleaned = target.clean().await;
    if let Err(e) = &cleaned {
        let (scheme, bucket) = (&location.scheme, &location.bucket);
        print_error_line(format_args!(
            "tradewind: objects remain below {scheme}://{bucket}/{prefix} and cannot be removed: {e}"
        ))?;
    }
    let results = results?;
    if stop.is_triggered() {
        // A partial result does not replace an existing profile. `until_stopped` sets exit status 130.
        return Ok(CommandOutcome::Done);
    }
    let has_result = results.iter().any(DirectionResult::has_samples);
    if !arguments.json {
        for result in &results {
            result.print(
                arguments,
                workloads.as_ref().map(|workloads| workloads.for_direction(result.direction)),
            )?;
        }
    }
    if let Some((profiles, store)) = profiles.as_ref().zip(profile_key).filter(|_| has_result) {
        let (profile, path) = save_profile((profiles, store), &results, &start.client, env.clock.wall())?;
        if !arguments.json {
            plan_output::print_saved_profile(&profile.surfaces(), &path)?;
        }
    }
    Ok(if cleaned.is_err() || !has_result { CommandOutcome::FoundProblems } else { CommandOutcome::Done })
}

/// Saves the profile of a store. A direction without a result keeps its samples, if they were measured on this client.
fn save_profile(
    (profiles, store): (&Profiles, &str),
    results: &[DirectionResult],
    this_client: &ClientEnvironment,
    now: Timestamp,
) -> anyhow::Result<(Profile, PathBuf)> {
    let client = local_client(cpus());
    // Samples measured on another client are discarded.
    let existing =
        profiles.load(store).filter(|profile| profile.is_measured_on(this_client)).unwrap_or_default();
    let mut profile = Profile {
        store: store.to_owned(),
        measured_at: rfc3339(now),
        client_name: client.hostname,
        cpus: client.cores,
        memory_bytes: Some(client.memory_bytes).filter(|bytes| *bytes > 0),
        storage_bytes_per_second: this_client.storage_bandwidth,
        interface_bytes_per_second: this_client.interface_bandwidth,
        rtt_seconds: this_client.rtt,
        ..existing
    };
    for DirectionResult { direction, sampled, .. } in results.iter().filter(|result| result.has_samples()) {
        let samples = sampled.surface.samples().to_vec();
        match direction {
            Direction::Write => profile.upload = samples,
            Direction::Read => profile.download = samples,
        }
    }
    let path = profiles.path(store);
    let path =
        profiles.save(&profile).with_context(|| format!("cannot save the profile in {}", path.display()))?;
    Ok((profile, path))
}
