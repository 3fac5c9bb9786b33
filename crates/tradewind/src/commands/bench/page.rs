//! `tradewind report`: results as a page.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

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
    /// Where the page goes; - for standard output [default: report.html, none with --csv -]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The figures as comma-separated values too; - for standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub(in crate::commands) fn run(arguments: &Arguments) -> anyhow::Result<Ended> {
    let is_dash = |path: &Path| path.as_os_str() == "-";
    let has_stdout = arguments.csv.as_deref().is_some_and(is_dash);
    let out = arguments.out.clone().or_else(|| (!has_stdout).then(|| PathBuf::from("report.html")));
    if has_stdout && out.as_deref().is_some_and(is_dash) {
        return Err(Misused(
            "both the page and the figures go to standard output: name a file for one".to_owned(),
        )
        .into());
    }
    let outs = out.iter().chain(&arguments.csv);
    let is_result =
        |out: &&PathBuf| arguments.results.contains(out) || out.extension().is_some_and(|end| end == "jsonl");
    if let Some(out) = outs.into_iter().find(is_result) {
        let out = out.display();
        return Err(Misused(format!(
            "{out} is a result, and would be lost: name the page with -o, as report.html"
        ))
        .into());
    }
    let names = names(&arguments.results);
    let results = arguments.results.iter().zip(names).map(|(path, name)| {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        Kept::parse(&name, &text).with_context(|| format!("{shown} cannot be read as a result"))
    });
    let results = results.collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = &arguments.csv {
        write_out(path, &csv(&results))?;
    }
    let Some(out) = out else { return Ok(Ended::Done) };
    write_out(&out, &page(&results))?;
    if has_stdout || is_dash(&out) {
        return Ok(Ended::Done);
    }
    let mut terminal = io::stdout().lock();
    for (heading, said) in words(&results) {
        writeln!(terminal, "{heading}:")?;
        said.iter().try_for_each(|said| writeln!(terminal, "  {said}"))?;
    }
    writeln!(terminal, "charts and tables are in {}", out.display())?;
    Ok(Ended::Done)
}

/// Into a file, or to standard output.
fn write_out(path: &Path, text: &str) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What results are called: their files, with as much of the way there as tells them apart.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let stem = |path: &PathBuf| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let is_only = |name: &String| paths.iter().filter(|path| stem(path) == *name).count() == 1;
    let name = |path: &PathBuf| {
        let short = stem(path);
        if is_only(&short) { short } else { path.display().to_string() }
    };
    paths.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_apart_by_their_names() {
        let named = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(named(&["mon/before.jsonl", "after.jsonl"]), ["before", "after"]);
        assert_eq!(named(&["mon/r.jsonl", "tue/r.jsonl", "x.jsonl"]), ["mon/r.jsonl", "tue/r.jsonl", "x"]);
    }
}
