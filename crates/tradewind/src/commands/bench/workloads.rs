//! Workloads: files of what is measured one after the other, a table for each load, whose keys are flags of the command that
//! takes it. Those of the papers are there without a file. Whatever is wrong in a file is told with its line.

use std::fmt;
use std::fs;

use anyhow::{Context as _, anyhow};
use clap::{Args, CommandFactory as _, Parser};
use toml::de::{DeTable, DeValue};

use crate::commands::Misused;
use crate::settings::nearest;

/// The command that takes a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    Object,
    Posix,
}

impl fmt::Display for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Object => "bench object",
            Self::Posix => "bench posix",
        })
    }
}

macro_rules! ready {
    ($($taker:ident $name:literal),*) => {
        [$((Taker::$taker, $name, include_str!(concat!("../../../workloads/", $name, ".toml")))),*]
    };
}

/// Workloads that are there without a file, by name.
const READY: [(Taker, &str, &str); 9] = ready![
    Object "class",
    Object "hou",
    Posix "ou",
    Posix "ou-unit",
    Posix "ou-single",
    Posix "ou-batch",
    Posix "ou-small",
    Posix "ou-large",
    Posix "postmark"
];

/// The names of those that a command takes.
pub(super) fn names(of: Taker) -> Vec<&'static str> {
    READY.iter().filter(|(taker, ..)| *taker == of).map(|(_, name, _)| *name).collect()
}

/// What is ready, and what each is; or the text of one.
pub(super) fn ready(name: Option<&str>) -> anyhow::Result<String> {
    match name {
        Some(name) => READY.iter().find(|(_, ready, _)| *ready == name).map_or_else(
            || Err(Misused(format!("no workload {name:?} is ready")).into()),
            |(.., text)| Ok((*text).to_owned()),
        ),
        None => READY.iter().try_fold(String::new(), |said, (taker, name, text)| {
            let about = File::parse(text)?.about;
            Ok(said + &format!("{name:<10} {taker:<13} {about}\n"))
        }),
    }
}

/// The tables of the workload of a name, or of a file, as what `read` makes of each.
pub(super) fn find<T>(
    name: &str,
    of: Taker,
    read: impl Fn(&Table) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let tables = |text: &str| File::parse(text)?.tables.iter().map(&read).collect::<anyhow::Result<Vec<T>>>();
    match READY.iter().find(|(_, ready, _)| *ready == name) {
        Some((taker, _, text)) if *taker == of => {
            return tables(text).with_context(|| format!("the workload {name}"));
        }
        Some((taker, ..)) => {
            return Err(Misused(format!("{name} is a workload of tradewind {taker}")).into());
        }
        None => {}
    }
    let text = fs::read_to_string(name).with_context(|| {
        let ready = names(of).join(", ");
        format!("{name} is neither a file that can be read nor a workload that is ready: {ready}")
    })?;
    tables(&text).map_err(|why| Misused(format!("{name}: {why:#}")).into())
}

/// A file as it was read.
#[derive(Debug)]
struct File {
    about: String,
    tables: Vec<Table>,
}

/// What is said of a load, and in which lines.
#[derive(Debug)]
pub(super) struct Table {
    /// The line of its heading, from 1 on.
    pub line: usize,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    line: usize,
    name: String,
    /// As a command line has them.
    values: Vec<String>,
}

/// Flags that a table has, as a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Line<F: Args> {
    #[command(flatten)]
    flags: F,
}

impl File {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let line_of =
            |offset: usize| 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
        let root = DeTable::parse(text).map_err(|e| {
            let line = line_of(e.span().map_or(0, |span| span.start));
            anyhow!("line {line}: this is not TOML: {}", e.message())
        })?;
        let (mut about, mut tables) = (None, Vec::new());
        for (key, value) in root.get_ref() {
            match (&**key.get_ref(), value.get_ref()) {
                ("about", DeValue::String(text)) => about = Some(text.to_string()),
                ("load", DeValue::Array(loads)) => {
                    for load in loads.iter() {
                        let line = line_of(load.span().start);
                        let DeValue::Table(table) = load.get_ref() else {
                            return Err(anyhow!("line {line}: load is written [[load]]"));
                        };
                        tables.push(Table { line, keys: keys(table, &line_of)? });
                    }
                }
                (name @ ("about" | "load"), _) => {
                    let line = line_of(key.span().start);
                    let right = if name == "load" { "[[load]]" } else { "about = \"...\"" };
                    return Err(anyhow!("line {line}: {name} is written {right}"));
                }
                (other, _) => {
                    let line = line_of(key.span().start);
                    return Err(anyhow!("line {line}: it has {other:?}; there are about and [[load]]"));
                }
            }
        }
        let about = about.context("say what it is: about = \"...\"")?;
        if tables.is_empty() {
            return Err(anyhow!("it has no [[load]]"));
        }
        Ok(Self { about, tables })
    }
}

/// The keys of a table, in the order in which they stand.
fn keys(table: &DeTable<'_>, line_of: &impl Fn(usize) -> usize) -> anyhow::Result<Vec<Key>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let keys = entries.into_iter().map(|(key, value)| {
        let (line, name) = (line_of(key.span().start), key.get_ref().to_string());
        let text = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Some(text.to_string()),
            // Flags take them as they are written, but for the digits of other bases.
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => None,
        };
        let values: Option<Vec<String>> = match value.get_ref() {
            DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
            one => text(one).map(|text| vec![text]),
        };
        let values =
            values.with_context(|| format!("line {line}: {name} is text, a number or a list of them"))?;
        Ok(Key { line, name, values })
    });
    keys.collect()
}

impl Table {
    /// The flags that it has.
    pub fn flags<F: Args>(&self) -> anyhow::Result<F> {
        let command = Line::<F>::command();
        let flags = command.get_arguments().filter_map(clap::Arg::get_long);
        let known: Vec<String> = flags.map(|flag| flag.replace('-', "_")).collect();
        let mut all = Vec::new();
        for Key { line, name, values } in &self.keys {
            if !known.contains(name) {
                let near = nearest(name, known.iter().map(String::as_str));
                let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                return Err(anyhow!("line {line}: there is no {name:?}{near}"));
            }
            let flag = name.replace('_', "-");
            let words: Vec<String> = values.iter().map(|value| format!("--{flag}={value}")).collect();
            // By itself, so that it is known which line is wrong.
            Line::<F>::try_parse_from(&words).map_err(|e| refused(*line, &e))?;
            all.extend(words);
        }
        Line::<F>::try_parse_from(all).map(|line| line.flags).map_err(|e| refused(self.line, &e))
    }

    /// The line of a key that it has.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|each| each.name == key).map(|each| each.line)
    }

    /// The names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &*key.name)
    }
}

/// Values of a flag that may be said in several places: those of the first that says any.
pub(super) fn first<T: Clone>(mine: Vec<T>, others: &[T]) -> Vec<T> {
    if mine.is_empty() { others.to_vec() } else { mine }
}

fn refused(line: usize, error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    anyhow!("line {line}: {}", first.trim_start_matches("error: "))
}

/// The loads of a text.
#[cfg(test)]
pub(super) fn read<T>(text: &str, read: impl Fn(&Table) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    File::parse(text)?.tables.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_ready_is_named_with_the_command_that_takes_it() {
        let said = ready(None).unwrap();
        assert_eq!(said.lines().count(), READY.len());
        assert!(said.contains("\nhou        bench object  Objects of 1 KiB"), "{said}");
        assert!(said.contains("\npostmark   bench posix   "), "{said}");
        assert!(ready(Some("ou")).unwrap().contains("[[load]]"));
        assert!(ready(Some("nothing")).is_err());
    }

    #[test]
    fn what_is_no_workload_is_told_with_its_line() {
        let said = |text: &str| format!("{:#}", File::parse(text).unwrap_err());
        assert!(said("about = \"x\"\n[[load]]\nsize = = 3").starts_with("line 3: this is not TOML: "));
        assert_eq!(
            said("about = \"x\"\nloads = 1"),
            "line 2: it has \"loads\"; there are about and [[load]]"
        );
        assert_eq!(said("about = \"x\"\n[load]\n"), "line 2: load is written [[load]]");
        assert_eq!(said("about = 3\n[[load]]\n"), "line 1: about is written about = \"...\"");
        assert_eq!(said("about = \"x\"\nload = [1]\n"), "line 2: load is written [[load]]");
        assert_eq!(said("about = \"x\"\n"), "it has no [[load]]");
        assert_eq!(said("[[load]]\n"), "say what it is: about = \"...\"");
        let keep = said("about = \"x\"\n[[load]]\nsize = \"4KiB\"\nkeep = true\n");
        assert_eq!(keep, "line 4: keep is text, a number or a list of them");
    }

    #[test]
    fn a_workload_of_another_command_is_refused() {
        let said = find("hou", Taker::Posix, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(said, "hou is a workload of tradewind bench object");
        let said = find("/none/here", Taker::Posix, |_| Ok(())).unwrap_err().to_string();
        assert!(
            said.ends_with(
                "a workload that is ready: ou, ou-unit, ou-single, ou-batch, ou-small, ou-large, postmark"
            ),
            "{said}"
        );
    }
}
