//! `tradewind report`: results as a page.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::report::{Kept, csv, page, words};

use crate::commands::{Ended, Misused};

/// Make a page of results, and compare them
///
/// The page is one file of HTML that needs no network: plain words first, which are printed too, then charts and tables. Of
/// several results the others are compared with the first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind report bench-20261122T200000Z.jsonl -o report.html\n  \
    tradewind report before.jsonl after.jsonl -o compared.html\n  \
    tradewind report before.jsonl --csv figures.csv")]
pub(in crate::commands) struct Arguments {
    /// Results that `tradewind bench` kept
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// Where the page goes; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// The figures as comma-separated values too; - for standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub(in crate::commands) fn run(arguments: &Arguments) -> anyhow::Result<Ended> {
    let outs = std::iter::once(&arguments.out).chain(&arguments.csv);
    let is_result =
        |out: &&PathBuf| arguments.results.contains(out) || out.extension().is_some_and(|end| end == "jsonl");
    if let Some(out) = outs.into_iter().find(is_result) {
        let out = out.display();
        return Err(Misused(format!(
            "{out} is a result, and would be lost: name the page with -o, as report.html"
        ))
        .into());
    }
    let results = arguments.results.iter().map(|path| {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let name =
            path.file_stem().map_or_else(|| shown.to_string(), |stem| stem.to_string_lossy().into_owned());
        Kept::parse(&name, &text).with_context(|| format!("{shown} cannot be read as a result"))
    });
    let results = results.collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = &arguments.csv {
        let table = csv(&results);
        if path.as_os_str() == "-" {
            io::stdout().write_all(table.as_bytes())?;
            return Ok(Ended::Done);
        }
        fs::write(path, table).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let page = page(&results);
    if arguments.out.as_os_str() == "-" {
        io::stdout().write_all(page.as_bytes())?;
        return Ok(Ended::Done);
    }
    fs::write(&arguments.out, page).with_context(|| format!("cannot write {}", arguments.out.display()))?;
    let mut out = io::stdout().lock();
    for (heading, said) in words(&results) {
        writeln!(out, "{heading}:")?;
        said.iter().try_for_each(|said| writeln!(out, "  {said}"))?;
    }
    writeln!(out, "charts and tables are in {}", arguments.out.display())?;
    Ok(Ended::Done)
}
