//! `loadgen`: the second generator of the server benchmark. It trusts nothing it is told: every GET is compared
//! with the expected length and bytes, every PUT with the expected ETag, every LIST with the expected keys.
//! It speaks just enough HTTP/1.1 and presigned SigV4 to be cheap, because it shares the machine with the
//! server it measures. One JSON document on standard output; exit status 1 if anything was wrong.

mod arguments;
mod drive;
mod files;
mod keys;
mod list;
mod record;
mod sign;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::arguments::{Arguments, Command};
use crate::record::Report;

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Get(run) => drive::get(&run).map(Some),
        Command::Put(run) => drive::put(&run).map(Some),
        Command::Fill(fill) => match &fill.directory {
            Some(directory) => files::write(&fill.target.keys, directory).map(Some),
            None => drive::fill(&fill).map(Some),
        },
        Command::Presign(presign) => files::presign(&presign).map(|()| None),
        Command::List(run) => list::list(&run).map(Some),
    };
    match outcome.and_then(|report| report.map_or(Ok(true), |report| print(&report))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loadgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the report and says whether it was free of errors.
fn print(report: &Report) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &report.to_json()).context("writing the report")?;
    writeln!(out).context("writing the report")?;
    Ok(report.is_clean())
}
