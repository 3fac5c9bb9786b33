//! Renders results as one HTML page: a summary in words, then charts, then tables. The page is self-contained, without
//! scripts, suits small screens and print, and follows the reader's light or dark theme.

mod carried;
mod charts;
mod conditions;
mod csv;
mod interference;
mod page;
mod posix;
mod rows;
mod words;

use std::fmt;

use serde_json::Error as JsonError;

use crate::compare::{Compared, compare};
use crate::posix::result::Measured;
use crate::result::{Measurement, ResultLine, Run, SCHEMA};

/// A parsed result file.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The file name.
    pub name: String,
    /// The run: version, client machines and store.
    pub run: Run,
    /// Measurements of object requests.
    pub cells: Vec<Measurement>,
    /// Measurements of a mounted file system.
    pub posix: Vec<Measured>,
    /// The run was stopped early.
    pub is_partial: bool,
    /// Addresses of the store's servers.
    pub servers: Vec<String>,
}

/// Error of an invalid result file.
#[derive(Debug)]
pub struct Unreadable {
    /// Line number, from 1.
    pub line: usize,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Json(JsonError),
    Schema(String),
    NoRun,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.why {
            Why::Json(e) => write!(f, "{e}"),
            Why::Schema(schema) => write!(f, "the schema is {schema:?}; this version reads {SCHEMA:?}"),
            Why::NoRun => write!(f, "not a result file: the first line, and only that, must describe the run"),
        }
    }
}

impl std::error::Error for Unreadable {}

impl Kept {
    /// Parses a result file. The last line may be torn, if the process was killed while writing it.
    pub fn parse(name: &str, text: &str) -> Result<Self, Unreadable> {
        let (mut run, mut cells, mut posix) = (None, Vec::new(), Vec::new());
        let (mut is_partial, mut servers) = (true, Vec::new());
        let count = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            let bad = |why| Unreadable { line: n + 1, why };
            match serde_json::from_str(line) {
                Ok(ResultLine::Run(parsed)) if parsed.schema != SCHEMA => return Err(bad(Why::Schema(parsed.schema))),
                Ok(ResultLine::Run(parsed)) if n == 0 => run = Some(*parsed),
                Ok(ResultLine::Run(_)) => return Err(bad(Why::NoRun)),
                Ok(_) if run.is_none() => return Err(bad(Why::NoRun)),
                Ok(ResultLine::Measurement(cell)) => cells.push(*cell),
                Ok(ResultLine::Posix(measured)) => posix.push(*measured),
                Ok(ResultLine::End { partial, servers: seen }) => (is_partial, servers) = (partial, seen),
                Err(_) if n > 0 && n + 1 == count && !text.ends_with('\n') => {}
                Err(e) => return Err(bad(Why::Json(e))),
            }
        }
        let run = run.ok_or(Unreadable { line: 1, why: Why::NoRun })?;
        Ok(Self { name: name.to_owned(), run, cells, posix, is_partial, servers })
    }
}

/// The summary: a heading and sentences for each result, and for each comparison with the first result.
#[must_use]
pub fn words(results: &[Kept]) -> Vec<(String, Vec<String>)> {
    let mut sections: Vec<(String, Vec<String>)> =
        results.iter().map(|result| (result.name.clone(), words::summary(result))).collect();
    if let Some((first, others)) = results.split_first() {
        sections.extend(others.iter().map(|other| {
            let heading = format!("{} compared with {}", other.name, first.name);
            (heading, words::comparison(first, other, &compared(first, other)))
        }));
    }
    sections
}

/// All measurements as CSV, one line per operation of each measurement.
#[must_use]
pub fn csv(results: &[Kept]) -> String {
    csv::write(results)
}

/// Compares the measurements that two results have in common.
fn compared(first: &Kept, other: &Kept) -> Vec<Compared> {
    let mut compared = compare(&first.cells, &other.cells);
    compared.extend(crate::posix::compare::compare(&first.posix, &other.posix));
    compared
}

/// Sorts points by x and averages those with equal x.
fn means(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = points.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups = all.chunk_by(|a, b| a.0 == b.0);
    groups
        .map(|group| (group[0].0, group.iter().map(|point| point.1).sum::<f64>() / group.len() as f64))
        .collect()
}

/// The HTML page about one or several results. All others are compared with the first.
#[must_use]
pub fn page(results: &[Kept]) -> String {
    page::write(results)
}

#[cfg(test)]
mod tests;
