//! Renders results as one HTML page: a summary in words, then charts, then tables. The page is self-contained, without
//! scripts, suits small screens and print, and follows the reader's light or dark theme.

mod charts;
mod conditions;
mod csv;
mod interference;
mod page;
mod posix;
mod rows;
mod sentences;
mod wire_overhead;

use std::fmt;

use serde_json::Error as JsonError;

use crate::compare::{Comparison, compare};
use crate::posix::result::PosixRecord;
use crate::result::{Measurement, ResultLine, Run, SCHEMA};

/// A parsed result file.
#[derive(Debug, Clone)]
pub struct ResultFile {
    /// The file name.
    pub name: String,
    /// The run: version, client machines and store.
    pub run: Run,
    /// Measurements of object requests.
    pub measurements: Vec<Measurement>,
    /// Measurements of a mounted file system.
    pub posix: Vec<PosixRecord>,
    /// The run was stopped early.
    pub is_partial: bool,
    /// Addresses of the store's servers.
    pub servers: Vec<String>,
}

/// Error of an invalid result file.
#[derive(Debug)]
pub struct ResultParseError {
    /// Line number, from 1.
    pub line: usize,
    kind: ParseErrorKind,
}

#[derive(Debug)]
enum ParseErrorKind {
    Json(JsonError),
    Schema(String),
    NoRun,
}

impl fmt::Display for ResultParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.kind {
            ParseErrorKind::Json(e) => write!(f, "{e}"),
            ParseErrorKind::Schema(schema) => {
                write!(f, "the schema is {schema:?}; this version reads {SCHEMA:?}")
            }
            ParseErrorKind::NoRun => {
                write!(f, "not a result file: the first line, and only that, must describe the run")
            }
        }
    }
}

impl std::error::Error for ResultParseError {}

impl ResultFile {
    /// Parses a result file. The last line may be torn, if the process was killed while writing it.
    pub fn parse(name: &str, text: &str) -> Result<Self, ResultParseError> {
        let (mut run, mut measurements, mut posix) = (None, Vec::new(), Vec::new());
        let (mut is_partial, mut servers) = (true, Vec::new());
        let count = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            let error = |kind| ResultParseError { line: n + 1, kind };
            match serde_json::from_str(line) {
                Ok(ResultLine::Run(parsed)) if parsed.schema != SCHEMA => {
                    return Err(error(ParseErrorKind::Schema(parsed.schema)));
                }
                Ok(ResultLine::Run(parsed)) if n == 0 => run = Some(*parsed),
                Ok(ResultLine::Run(_)) => return Err(error(ParseErrorKind::NoRun)),
                Ok(_) if run.is_none() => return Err(error(ParseErrorKind::NoRun)),
                Ok(ResultLine::Measurement(measurement)) => measurements.push(*measurement),
                Ok(ResultLine::Posix(measured)) => posix.push(*measured),
                Ok(ResultLine::End { partial, servers: store_servers }) => {
                    (is_partial, servers) = (partial, store_servers)
                }
                Err(_) if n > 0 && n + 1 == count && !text.ends_with('\n') => {}
                Err(e) => return Err(error(ParseErrorKind::Json(e))),
            }
        }
        let run = run.ok_or(ResultParseError { line: 1, kind: ParseErrorKind::NoRun })?;
        Ok(Self { name: name.to_owned(), run, measurements, posix, is_partial, servers })
    }
}

/// The summary: a heading and sentences for each result, and for each comparison with the first result.
#[must_use]
pub fn summaries(results: &[ResultFile]) -> Vec<(String, Vec<String>)> {
    let mut sections: Vec<(String, Vec<String>)> =
        results.iter().map(|result| (result.name.clone(), sentences::summary(result))).collect();
    if let Some((first, others)) = results.split_first() {
        sections.extend(others.iter().map(|other| {
            let heading = format!("{} compared with {}", other.name, first.name);
            (heading, sentences::comparison(first, other, &compare_results(first, other)))
        }));
    }
    sections
}

/// All measurements as CSV, one line per operation of each measurement.
#[must_use]
pub fn to_csv(results: &[ResultFile]) -> String {
    csv::write_csv(results)
}

/// Compares the measurements that two results have in common.
fn compare_results(first: &ResultFile, other: &ResultFile) -> Vec<Comparison> {
    let mut compared = compare(&first.measurements, &other.measurements);
    compared.extend(crate::posix::compare::compare(&first.posix, &other.posix));
    compared
}

/// Sorts points by x and averages those with equal x.
fn mean_by_x(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = points.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups = all.chunk_by(|a, b| a.0 == b.0);
    groups
        .map(|group| (group[0].0, group.iter().map(|point| point.1).sum::<f64>() / group.len() as f64))
        .collect()
}

/// The HTML page about one or several results. All others are compared with the first.
#[must_use]
pub fn to_html(results: &[ResultFile]) -> String {
    page::write_page(results)
}

#[cfg(test)]
mod tests;
