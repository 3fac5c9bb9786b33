//! `tradewind report`: an HTML page of results.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::report::{ResultFile, summaries, to_csv, to_html};

use crate::commands::{CommandOutcome, UsageError};

/// Render results as an HTML page, and compare them
///
/// The page is one self-contained HTML file: a summary, which is also printed, then charts and tables. Given several
/// results, the others are compared with the first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind report bench-20261122T200000Z.jsonl -o report.html\n  \
    tradewind report before.jsonl after.jsonl -o compared.html\n  \
    tradewind report before.jsonl --csv figures.csv")]
pub(in crate::commands) struct Arguments {
    /// Result files of `tradewind bench`
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// Output file of the page; - for standard output [default: report.html, none with --csv -]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write the figures as CSV; - for standard output, which then has nothing else
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub(in crate::commands) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let is_dash = |path: &Path| path.as_os_str() == "-";
    let has_stdout = arguments.csv.as_deref().is_some_and(is_dash);
    let out = arguments.out.clone().or_else(|| (!has_stdout).then(|| PathBuf::from("report.html")));
    if has_stdout && out.as_deref().is_some_and(is_dash) {
        return Err(UsageError(
            "the page and the figures cannot both go to standard output: give a file for one".to_owned(),
        )
        .into());
    }
    let outs = out.iter().chain(&arguments.csv);
    let is_result =
        |out: &&PathBuf| arguments.results.contains(out) || out.extension().is_some_and(|end| end == "jsonl");
    if let Some(out) = outs.into_iter().find(is_result) {
        let out = out.display();
        return Err(UsageError(format!(
            "{out} is a result file and would be overwritten: give another name with -o, e.g. report.html"
        ))
        .into());
    }
    let names = names(&arguments.results);
    let results = arguments.results.iter().zip(names).map(|(path, name)| {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        ResultFile::parse(&name, &text).with_context(|| format!("{shown} is not a valid result"))
    });
    let results = results.collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = &arguments.csv {
        write_out(path, &to_csv(&results))?;
    }
    let Some(out) = out else { return Ok(CommandOutcome::Done) };
    write_out(&out, &to_html(&results))?;
    if has_stdout || is_dash(&out) {
        return Ok(CommandOutcome::Done);
    }
    let mut terminal = io::stdout().lock();
    for (heading, sentences) in summaries(&results) {
        writeln!(terminal, "{heading}:")?;
        sentences.iter().try_for_each(|sentence| writeln!(terminal, "  {sentence}"))?;
    }
    writeln!(terminal, "charts and tables: {}", out.display())?;
    Ok(CommandOutcome::Done)
}

/// Writes to a file, or to standard output.
fn write_out(path: &Path, text: &str) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The names of results: the stems of their files, or the paths if stems are not unique.
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
    fn result_names_are_unique() {
        let named = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(named(&["mon/before.jsonl", "after.jsonl"]), ["before", "after"]);
        assert_eq!(named(&["mon/r.jsonl", "tue/r.jsonl", "x.jsonl"]), ["mon/r.jsonl", "tue/r.jsonl", "x"]);
    }
}
