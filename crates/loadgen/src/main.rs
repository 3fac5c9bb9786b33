//! `loadgen`: the second load generator of the server benchmark. It verifies every response: a GET by its expected
//! length and bytes, a PUT by its expected ETag, a LIST by its expected keys.
//!
//! It implements only the parts of HTTP/1.1 and presigned SigV4 that it needs, to use little CPU: it shares the machine
//! with the server under test. It prints one JSON document; the exit status is 1 if anything was wrong.

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

/// Prints the report. Returns true if it has no errors.
fn print(report: &Report) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &report.to_json()).context("writing the report")?;
    writeln!(out).context("writing the report")?;
    Ok(report.is_clean())
}
