//! One page of HTML that says what results mean: plain words first, then charts, then tables. It needs no network and no
//! script, can be read on a telephone and printed, and follows the reader's light or dark.

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
use crate::result::{Cell, Line, Run, SCHEMA};

/// A result as it was kept.
#[derive(Debug, Clone)]
pub struct Kept {
    /// What it is called: its file's name.
    pub name: String,
    /// What ran where.
    pub run: Run,
    /// What was measured.
    pub cells: Vec<Cell>,
    /// The same of a mounted file system.
    pub posix: Vec<Measured>,
    /// It was stopped before all was measured.
    pub is_partial: bool,
    /// Where the store answered.
    pub servers: Vec<String>,
}

/// Why a result cannot be read: the line, from 1 on, and what is wrong with it.
#[derive(Debug)]
pub struct Unreadable {
    /// Which line.
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
            Why::Schema(schema) => write!(f, "it is written as {schema:?}; this version reads {SCHEMA:?}"),
            Why::NoRun => write!(f, "the first line does not say what ran where: this is no result"),
        }
    }
}

impl std::error::Error for Unreadable {}

impl Kept {
    /// Reads the lines of a result. The last may be torn, where the process ended in the middle of it.
    pub fn parse(name: &str, text: &str) -> Result<Self, Unreadable> {
        let (mut run, mut cells, mut posix) = (None, Vec::new(), Vec::new());
        let (mut is_partial, mut servers) = (true, Vec::new());
        let count = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            let bad = |why| Unreadable { line: n + 1, why };
            match serde_json::from_str(line) {
                Ok(Line::Run(said)) if said.schema != SCHEMA => return Err(bad(Why::Schema(said.schema))),
                Ok(Line::Run(said)) if n == 0 => run = Some(*said),
                Ok(Line::Run(_)) => return Err(bad(Why::NoRun)),
                Ok(_) if run.is_none() => return Err(bad(Why::NoRun)),
                Ok(Line::Cell(cell)) => cells.push(*cell),
                Ok(Line::Posix(measured)) => posix.push(*measured),
                Ok(Line::End { partial, servers: seen }) => (is_partial, servers) = (partial, seen),
                Err(_) if n > 0 && n + 1 == count && !text.ends_with('\n') => {}
                Err(e) => return Err(bad(Why::Json(e))),
            }
        }
        let run = run.ok_or(Unreadable { line: 1, why: Why::NoRun })?;
        Ok(Self { name: name.to_owned(), run, cells, posix, is_partial, servers })
    }
}

/// What the results mean, in plain words: a heading and what is said below it, for each of them and for each comparison with
/// the first.
#[must_use]
pub fn words(results: &[Kept]) -> Vec<(String, Vec<String>)> {
    let mut said: Vec<(String, Vec<String>)> =
        results.iter().map(|result| (result.name.clone(), words::summary(result))).collect();
    if let Some((first, others)) = results.split_first() {
        said.extend(others.iter().map(|other| {
            let heading = format!("{} against {}", other.name, first.name);
            (heading, words::comparison(first, other, &compared(first, other)))
        }));
    }
    said
}

/// All measurements as comma-separated values, a line for each kind of request of each.
#[must_use]
pub fn csv(results: &[Kept]) -> String {
    csv::write(results)
}

/// What two results have in common: about objects and about file systems.
fn compared(first: &Kept, other: &Kept) -> Vec<Compared> {
    let mut compared = compare(&first.cells, &other.cells);
    compared.extend(crate::posix::compare::compare(&first.posix, &other.posix));
    compared
}

/// The means of what lies at the same place, in the order of the places.
fn means(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = points.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups = all.chunk_by(|a, b| a.0 == b.0);
    groups
        .map(|group| (group[0].0, group.iter().map(|point| point.1).sum::<f64>() / group.len() as f64))
        .collect()
}

/// The page about one result or several, the first of which the others are compared with.
#[must_use]
pub fn page(results: &[Kept]) -> String {
    page::write(results)
}

#[cfg(test)]
mod tests;
