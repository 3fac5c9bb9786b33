//! `tradewind bench replay`: replays a trace of requests.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tradewind_bench::replay::{OpenTrace, Replay};

use super::loads::parse_concurrency;
use super::target::{self, BenchRequest, TargetFlags, Work};
use crate::commands::{CommandOutcome, UsageError};

/// The default maximum concurrency at the pace of the trace.
const DEFAULT_TRACE_CONCURRENCY: usize = 512;
/// The default number of workers with `--pace fast`.
const DEFAULT_FAST_CONCURRENCY: usize = 64;

/// Replay an object trace against a store
///
/// A trace is CSV whose first line names the columns time, op, key, offset and length in any order, or JSON lines with
/// these names. time is in seconds, e.g. 12.5, relative to the first request, so seconds since 1970 work as well. op is
/// put, get, head, list or delete. A get without offset and length reads the whole object, a put needs a length, the
/// key of a list is a prefix. Keys are placed below a prefix of this run; objects that the trace reads before it writes
/// them are created first, and all objects are removed at the end. All data read is compared with the possible contents
/// at that time.
///
/// At the pace of the trace, each request starts at its time, independent of earlier responses, and latencies count
/// from then: requests of one key may overlap even if they did not in the trace. With --pace fast, each worker sends
/// its next request after a response, and requests of one key stay in order.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench replay trace.csv s3://bucket\n  \
    tradewind bench replay trace.csv s3://bucket --speed 2 --repeat 3 -o twice.jsonl\n  \
    tradewind bench replay trace.jsonl s3://bucket/there --pace fast --concurrency 16\n  \
    tradewind bench replay trace.csv s3://bucket --samples requests.csv\n\n\
    A trace:\n  \
    time,op,key,offset,length\n  \
    0,put,photos/a.jpg,,48211\n  \
    0.0125,get,photos/a.jpg,,\n  \
    0.3,get,\"odd, \"\"name\"\"\",4096,1000\n  \
    1.7,list,photos/,,\n\n\
    Exit status: 0 measured, 1 a request failed or data was wrong, 2 usage or invalid lines.")]
pub(in crate::commands) struct Arguments {
    /// Trace file, which is read twice
    trace: PathBuf,
    #[command(flatten)]
    target: TargetFlags,
    /// When requests start
    #[arg(long, value_enum, default_value_t = Pace::Trace)]
    pace: Pace,
    /// Speed relative to the trace
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Maximum concurrent requests [default: 512, with --pace fast 64]
    #[arg(long, value_name = "N", value_parser = parse_concurrency)]
    concurrency: Option<usize>,
    /// Skip invalid lines
    #[arg(long)]
    skip_invalid: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pace {
    /// At the times of the trace
    Trace,
    /// Each after a response, as fast as possible
    Fast,
}

fn speed(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| (0.001..=1000.0).contains(factor));
    factor.ok_or_else(|| "write a number from 0.001 to 1000".to_owned())
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let (follows_trace, speed) = (arguments.pace == Pace::Trace, arguments.speed);
    if !follows_trace && speed != 1.0 {
        return Err(UsageError(
            "--speed scales the times of the trace, which --pace fast ignores".to_owned(),
        )
        .into());
    }
    if arguments.target.client.files.is_some() {
        return Err(UsageError(
            "--files is not supported: objects of a trace are written from memory".to_owned(),
        )
        .into());
    }
    let concurrency = arguments.concurrency.unwrap_or(if follows_trace {
        DEFAULT_TRACE_CONCURRENCY
    } else {
        DEFAULT_FAST_CONCURRENCY
    });
    let replay = read(&arguments, (concurrency, follows_trace.then_some(speed)))?;
    let largest = replay.trace_summary().sizes.map(|(_, largest)| largest);
    let check = move |limit| match largest {
        Some((size, line)) if size > limit => {
            Err(format!("line {line} needs an object of {size} bytes; the limit of this store is {limit}"))
        }
        _ => Ok(()),
    };
    let work = Work::Replay(Box::new(replay), arguments.target.run.repeat);
    target::run(&arguments.target, BenchRequest { work, check: Box::new(check) })
}

/// Reads the trace for the first time, and rejects it if it cannot be replayed.
fn read(arguments: &Arguments, concurrency_and_speed: (usize, Option<f64>)) -> anyhow::Result<Replay> {
    let path = &arguments.trace;
    let (shown, name) = (path.display(), path.file_name().unwrap_or_default().to_string_lossy());
    let read_error = || format!("{shown} cannot be read");
    if !std::fs::metadata(path).with_context(read_error)?.is_file() {
        return Err(UsageError(format!("{shown} is not a regular file: a trace is read twice")).into());
    }
    let replay = Replay::from_trace(
        &name,
        opener(path),
        arguments.target.max_trace_key_bytes(),
        concurrency_and_speed,
    );
    let replay =
        replay.with_context(read_error)?.map_err(|invalid| UsageError(format!("{shown}, {invalid}")))?;
    let summary = replay.trace_summary();
    if summary.invalid_lines > 0 && !arguments.skip_invalid {
        let examples: String = summary.first_invalid.iter().map(|line| format!("\n  {line}")).collect();
        let rest = summary.invalid_lines - summary.first_invalid.len() as u64;
        let more = if rest > 0 { format!("\n  and {rest} more") } else { String::new() };
        let lines = if summary.invalid_lines == 1 { "line" } else { "lines" };
        return Err(UsageError(format!(
            "{shown} has {} invalid {lines} (use --skip-invalid to skip them):{examples}{more}",
            summary.invalid_lines
        ))
        .into());
    }
    if summary.count() == 0 {
        return Err(UsageError(format!("{shown} has no requests")).into());
    }
    Ok(replay)
}

fn opener(path: &Path) -> Arc<OpenTrace> {
    let path = path.to_owned();
    Arc::new(move || Ok(Box::new(BufReader::new(File::open(&path)?)) as Box<dyn BufRead + Send>))
}
