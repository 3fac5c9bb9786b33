//! `tradewind bench class-table1`: the workload of Chen 2014, table I.

mod contents;
mod streams;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tradewind_bench::class_workload::{
    ClassWorkload, ClassWorkloadReport, PhaseReport, RequestStats, remove_objects,
};
use tradewind_bench::cluster::coordinator::run_prefix;
use tradewind_bench::drive::{BenchEnv, StopSignal};

use self::contents::{ContentsSampler, MetricsUrl};
use super::loads::parse_concurrency;
use super::target::{
    ClientFlags, ConnectionUse, directory_prefix, print_removal_notice, random_run_number, until_stopped,
};
use crate::commands::labels_name::LabelsName;
use crate::commands::terminal::print_error_line;
use crate::commands::transfer::AccessFlags;
use crate::commands::{CommandOutcome, UsageError};
use crate::locations::ObjectsLocation;
use crate::settings::{ByteSize, TimeSpan};

/// Run the workload of Chen 2014, table I: five types of objects with labels
///
/// Clients PUT files, pictures, music, videos and disk images (60, 35, 4, 0.9 and 0.1 %), each with the class of its
/// type, then GET random ones, then DELETE all. Each client has one request in flight, and every byte read is verified.
/// A GET or DELETE fails if its first byte takes longer than --timeout, a PUT if the store does not take the next 256
/// KiB or does not answer one of up to 256 KiB in that time. Failed requests are no throughput. A failed PUT is
/// repeated after its phase, unmeasured, so that all stores get the same GETs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench class-table1 s3://bucket\n  \
    tradewind bench class-table1 s3://bucket --scale 0.1 --bytes 4GiB --concurrency 100 --labels off\n  \
    tradewind bench class-table1 s3://bucket --streams --time 30s --timeout 0s\n  \
    tradewind bench class-table1 s3://bucket --metrics http://127.0.0.1:9001/metrics --json\n\n\
    Exit status: 0 measured, 1 a request failed or data was wrong, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    location: ObjectsLocation,
    /// Number of objects and GETs: 1 is the paper's 26,000 and 100,000
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01, value_parser = scale)]
    scale: f64,
    /// Total size of all objects, which have the same proportions [default: the sizes of the table, about 100 GB x
    /// scale]
    #[arg(long, value_name = "SIZE", value_parser = total_bytes)]
    bytes: Option<ByteSize>,
    /// Classes that clients send
    #[arg(long, value_enum, default_value_t = LabelsName::On)]
    labels: LabelsName,
    /// Instead of the phases, compares the latency of files alone with that next to streams of pictures, music and video,
    /// each with a quarter of the clients
    #[arg(long, conflicts_with = "metrics")]
    streams: bool,
    /// Duration of each measurement of --streams
    #[arg(long, value_name = "TIME", value_parser = measurement_time, default_value = "10s", requires = "streams")]
    time: TimeSpan,
    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = parse_concurrency)]
    concurrency: usize,
    /// Time limit of a request; 0s for none
    #[arg(long, value_name = "TIME", value_parser = TimeSpan::parse, default_value = "500ms")]
    timeout: TimeSpan,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Do not remove the objects that remain at the end
    #[arg(long)]
    keep: bool,
    /// Metrics of the server, http://HOST:PORT/metrics: samples the cache's series with a class every second (with
    /// --json)
    #[arg(long, value_name = "URL", requires = "json", help_heading = "Output")]
    metrics: Option<MetricsUrl>,
    /// Print the result as JSON instead of the table
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    access: AccessFlags,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale: &f64| (0.0001..=10.0).contains(scale));
    scale.ok_or_else(|| "write a number from 0.0001 to 10".to_owned())
}

fn total_bytes(text: &str) -> Result<ByteSize, String> {
    let size = ByteSize::parse(text)?;
    if (1 << 20..=1 << 44).contains(&size.0) { Ok(size) } else { Err("write 1MiB to 16TiB".to_owned()) }
}

fn measurement_time(text: &str) -> Result<TimeSpan, String> {
    let time = TimeSpan::parse(text)?;
    if time.0.is_zero() { Err("write a time longer than 0".to_owned()) } else { Ok(time) }
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    until_stopped(async |stop| measure(&arguments, stop).await)
}

impl Arguments {
    fn workload(&self) -> ClassWorkload {
        let timeout = self.timeout.0;
        ClassWorkload {
            scale: self.scale,
            total_bytes: self.bytes.map(|bytes| bytes.0),
            labels: self.labels.labels(),
            concurrency: self.concurrency,
            timeout: (timeout > Duration::ZERO).then_some(timeout),
            seed: self.seed,
        }
    }

    fn open(&self, run_name: &str) -> anyhow::Result<BenchEnv> {
        let client = ClientFlags { files: None, lanes: false, access: self.access.clone() };
        client.open(&self.location, (self.concurrency, ConnectionUse::Reused), run_name)
    }
}

async fn measure(arguments: &Arguments, stop: StopSignal) -> anyhow::Result<CommandOutcome> {
    let (workload, run_directory) = (arguments.workload(), run_prefix(random_run_number()?));
    let env = tokio::task::block_in_place(|| arguments.open(run_directory.trim_end_matches('/')))?;
    let largest =
        if arguments.streams { workload.max_stream_object_bytes() } else { workload.max_object_bytes() };
    let limit = env.store.capabilities().max_object_bytes;
    if largest > limit {
        let message = format!("an object has {largest} bytes, the store's limit is {limit}: set --bytes");
        return Err(UsageError(message).into());
    }
    let sampler = match &arguments.metrics {
        Some(url) => Some(ContentsSampler::start(url.clone()).await?),
        None => None,
    };
    let prefix = format!("{}{run_directory}", directory_prefix(&arguments.location.key));
    if arguments.streams {
        return streams::measure(arguments, &env, &prefix, &stop).await;
    }
    let mut output = io::stdout().lock();
    let mut written = Ok(());
    if !arguments.json {
        written = write_header(&mut output);
    }
    let on_phase = |phase: &PhaseReport| {
        if let Some(sampler) = &sampler {
            sampler.end_phase(phase.operation);
        }
        if !arguments.json && written.is_ok() {
            written = write_phase(&mut output, phase);
        }
    };
    let measured = workload.run(&env, &prefix, &stop, &Arc::default(), on_phase).await;
    let contents = match sampler {
        Some(sampler) => Some(sampler.finish().await?),
        None => None,
    };
    remove_rest(arguments, &env, &prefix, &stop).await?;
    let report = measured?;
    written?;
    if arguments.json {
        let mut value = serde_json::to_value(&report)?;
        value["contents"] = json!(contents);
        writeln!(output, "{value}")?;
    }
    print_failures(&report)?;
    let is_clean = report.failure_count() == 0 && !report.is_partial;
    Ok(if is_clean { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

/// Removes what the run left: all objects after a stop, and those whose DELETE failed.
async fn remove_rest(
    arguments: &Arguments,
    env: &BenchEnv,
    prefix: &str,
    stop: &StopSignal,
) -> anyhow::Result<()> {
    let ObjectsLocation { scheme, bucket, .. } = &arguments.location;
    if arguments.keep {
        print_error_line(format_args!("objects are kept below {scheme}://{bucket}/{prefix}"))?;
        return Ok(());
    }
    if stop.is_triggered() {
        print_removal_notice(&arguments.location, prefix);
    }
    let cleaned = remove_objects(env, prefix).await;
    if let Err(e) = cleaned {
        return Err(anyhow::anyhow!(
            "objects remain below {scheme}://{bucket}/{prefix} and cannot be removed: {e}"
        ));
    }
    Ok(())
}

fn print_failures(report: &ClassWorkloadReport) -> anyhow::Result<()> {
    for phase in report.phases.iter().filter(|phase| phase.all.failure_count() > 0) {
        let example = phase.failure_samples.first().map_or("", String::as_str);
        print_error_line(format_args!(
            "tradewind: {} of {} failed ({:?}), for example: {example}",
            phase.all.failure_count(),
            phase.operation,
            phase.all.failures,
        ))?;
    }
    Ok(())
}

fn write_header(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<7} {:<9} {:>8} {:>8} {:>9} {:>9} {:>14} {:>9} {:>9}",
        "phase", "type", "requests", "failed %", "MB/s", "req/s", "first byte ms", "mean ms", "p99 ms"
    )
}

fn write_phase(out: &mut impl Write, phase: &PhaseReport) -> io::Result<()> {
    write_row(out, phase, "all", &phase.all)?;
    phase.types.iter().try_for_each(|of_type| write_row(out, phase, of_type.name, &of_type.stats))
}

fn write_row(out: &mut impl Write, phase: &PhaseReport, name: &str, stats: &RequestStats) -> io::Result<()> {
    let millis = |micros: Option<f64>| micros.map_or_else(|| "-".to_owned(), |us| format!("{:.2}", us / 1e3));
    let first_byte = stats.first_byte_us.as_ref().map(|latency| latency.mean);
    let latency = &stats.latency_us;
    writeln!(
        out,
        "{:<7} {name:<9} {:>8} {:>8.2} {:>9.2} {:>9.1} {:>14} {:>9} {:>9}",
        phase.operation.to_string(),
        stats.requests,
        stats.failure_share() * 100.0,
        stats.bytes_per_second / 1e6,
        stats.requests_per_second,
        millis(first_byte),
        millis(latency.figure_if_any(|latency| latency.mean)),
        millis(latency.figure_if_any(|latency| latency.p99 as f64)),
    )
}
