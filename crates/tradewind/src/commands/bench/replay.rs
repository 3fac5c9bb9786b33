//! `tradewind bench replay`: a trace of requests, asked again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tradewind_bench::replay::{Open, Replay};

use super::ground::{self, GroundFlags, Wanted, Work};
use super::loads::parallel;
use crate::commands::{Ended, Misused};

/// Requests at a time where nothing is said: at its own pace as many as there may be, else some workers.
const OWN_PARALLEL: usize = 512;
const FAST_PARALLEL: usize = 64;

/// Ask a store for what a trace says, at the same pace or as fast as possible
///
/// A trace is CSV whose first line names the columns time, op, key, offset and length in any order, or an object with these
/// names on each line (JSON lines). time is in seconds, as 12.5, and counts from the first request: seconds since 1970 will
/// do. op is put, get, head, list or delete. A get without offset and length reads all, a put needs a length, a list has in
/// key what keys begin with. Keys lie below a prefix of this run; objects that the trace reads before it writes them are made
/// first, and everything is removed at the end. Every byte that is read is compared with what could be there then.
///
/// At its own pace each request starts at its time, whether or not earlier ones have been answered, and latencies count from
/// there: two of one key may overlap as they did not in the trace. With --pace fast a worker asks as soon as it has been
/// answered, and requests of one key do not overtake each other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench replay trace.csv s3://bucket\n  \
    tradewind bench replay trace.csv s3://bucket --speed 2 --repeat 3 -o twice.jsonl\n  \
    tradewind bench replay trace.jsonl s3://bucket/there --pace fast --parallel 16\n  \
    tradewind bench replay trace.csv s3://bucket --samples requests.csv\n\n\
    A trace:\n  \
    time,op,key,offset,length\n  \
    0,put,photos/a.jpg,,48211\n  \
    0.0125,get,photos/a.jpg,,\n  \
    0.3,get,\"odd, \"\"name\"\"\",4096,1000\n  \
    1.7,list,photos/,,\n\n\
    Exit status: 0 measured, 1 a request failed or was answered wrongly, 2 usage or broken lines.")]
pub(in crate::commands) struct Arguments {
    /// A file: it is read twice
    trace: PathBuf,
    #[command(flatten)]
    ground: GroundFlags,
    /// When requests start
    #[arg(long, value_enum, default_value_t = Pace::Own)]
    pace: Pace,
    /// So many times as fast as the trace
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Requests at a time, at the most [default: 512, with --pace fast 64]
    #[arg(long, value_name = "N", value_parser = parallel)]
    parallel: Option<usize>,
    /// Pass over lines that are broken
    #[arg(long)]
    skip_broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pace {
    /// At the times of the trace
    Own,
    /// One behind the other, as fast as they are answered
    Fast,
}

fn speed(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| (0.001..=1000.0).contains(factor));
    factor.ok_or_else(|| "write a number from 0.001 to 1000".to_owned())
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let (is_own, speed) = (arguments.pace == Pace::Own, arguments.speed);
    if !is_own && speed != 1.0 {
        return Err(Misused(
            "--speed is about the times of the trace: with --pace fast there are none".to_owned(),
        )
        .into());
    }
    if arguments.ground.asking.files.is_some() {
        return Err(
            Misused("objects of a trace are written from memory: there is no --files".to_owned()).into()
        );
    }
    let parallel = arguments.parallel.unwrap_or(if is_own { OWN_PARALLEL } else { FAST_PARALLEL });
    let replay = read(&arguments, (parallel, is_own.then_some(speed)))?;
    let largest = replay.planned().sizes.map(|(_, largest)| largest);
    let check = move |most| match largest {
        Some((size, line)) if size > most => Err(format!(
            "line {line} needs an object of {size} bytes; {most} are the most that this store takes"
        )),
        _ => Ok(()),
    };
    let work = Work::Replay(Box::new(replay), arguments.ground.run.repeat);
    ground::run(&arguments.ground, Wanted { work, check: Box::new(check) })
}

/// Reads the trace for the first time, and refuses it where it cannot be replayed.
fn read(arguments: &Arguments, how: (usize, Option<f64>)) -> anyhow::Result<Replay> {
    let path = &arguments.trace;
    let (shown, name) = (path.display(), path.file_name().unwrap_or_default().to_string_lossy());
    let unreadable = || format!("{shown} cannot be read");
    if !std::fs::metadata(path).with_context(unreadable)?.is_file() {
        return Err(Misused(format!("{shown} is no file: a trace is read twice")).into());
    }
    let replay = Replay::plan(&name, opener(path), arguments.ground.room_for_keys(), how);
    let replay = replay.with_context(unreadable)?.map_err(|broken| Misused(format!("{shown}, {broken}")))?;
    let plan = replay.planned();
    if plan.broken > 0 && !arguments.skip_broken {
        let told: String = plan.told.iter().map(|broken| format!("\n  {broken}")).collect();
        let rest = plan.broken - plan.told.len() as u64;
        let more = if rest > 0 { format!("\n  and {rest} more") } else { String::new() };
        let lines = if plan.broken == 1 { "line" } else { "lines" };
        return Err(Misused(format!(
            "{shown} has {} broken {lines}, which --skip-broken passes over:{told}{more}",
            plan.broken
        ))
        .into());
    }
    if plan.count() == 0 {
        return Err(Misused(format!("{shown} has no requests")).into());
    }
    Ok(replay)
}

fn opener(path: &Path) -> Arc<Open> {
    let path = path.to_owned();
    Arc::new(move || Ok(Box::new(BufReader::new(File::open(&path)?)) as Box<dyn BufRead + Send>))
}
