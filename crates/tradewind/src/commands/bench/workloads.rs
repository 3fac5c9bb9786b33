//! Workload files: loads to run in sequence, one table per load, whose keys are flags of the command that runs them.
//! The workloads of the papers are built in. Errors in a file are reported with their line.

use std::fmt;
use std::fs;

use anyhow::{Context as _, anyhow};
use clap::{Args, CommandFactory as _, Parser};
use toml::de::{DeTable, DeValue};

use crate::commands::UsageError;
use crate::settings::nearest_name;

/// The command that runs a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkloadCommand {
    Object,
    Posix,
}

impl fmt::Display for WorkloadCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Object => "bench object",
            Self::Posix => "bench posix",
        })
    }
}

macro_rules! built_in {
    ($($command:ident $name:literal),*) => {
        [$((WorkloadCommand::$command, $name, include_str!(concat!("../../../workloads/", $name, ".toml")))),*]
    };
}

/// Built-in workloads: command, name and text.
const BUILT_IN: [(WorkloadCommand, &str, &str); 9] = built_in![
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

/// The names of the built-in workloads of a command.
pub(super) fn names(wanted_command: WorkloadCommand) -> Vec<&'static str> {
    BUILT_IN.iter().filter(|(command, ..)| *command == wanted_command).map(|(_, name, _)| *name).collect()
}

/// A list of the built-in workloads, or the text of one.
pub(super) fn list_or_show(name: Option<&str>) -> anyhow::Result<String> {
    match name {
        Some(name) => BUILT_IN.iter().find(|(_, built_in_name, _)| *built_in_name == name).map_or_else(
            || Err(UsageError(format!("there is no built-in workload {name:?}")).into()),
            |(.., text)| Ok((*text).to_owned()),
        ),
        None => BUILT_IN.iter().try_fold(String::new(), |list, (command, name, text)| {
            let about = WorkloadFile::parse(text)?.about;
            Ok(list + &format!("{name:<10} {command:<13} {about}\n"))
        }),
    }
}

/// The tables of a workload, given by name or file, each converted by `read`.
pub(super) fn find<T>(
    name: &str,
    wanted_command: WorkloadCommand,
    read: impl Fn(&LoadTable) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let tables =
        |text: &str| WorkloadFile::parse(text)?.tables.iter().map(&read).collect::<anyhow::Result<Vec<T>>>();
    match BUILT_IN.iter().find(|(_, built_in_name, _)| *built_in_name == name) {
        Some((command, _, text)) if *command == wanted_command => {
            return tables(text).with_context(|| format!("the workload {name}"));
        }
        Some((command, ..)) => {
            return Err(UsageError(format!("{name} is a workload of tradewind {command}")).into());
        }
        None => {}
    }
    let text = fs::read_to_string(name).with_context(|| {
        let names = names(wanted_command).join(", ");
        format!("{name} is neither a readable file nor a built-in workload: {names}")
    })?;
    tables(&text).map_err(|e| UsageError(format!("{name}: {e:#}")).into())
}

/// A parsed workload file.
#[derive(Debug)]
struct WorkloadFile {
    about: String,
    tables: Vec<LoadTable>,
}

/// The table of a load, with line numbers.
#[derive(Debug)]
pub(super) struct LoadTable {
    /// The line of its header, from 1.
    pub line: usize,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    line: usize,
    name: String,
    /// The values as on a command line.
    values: Vec<String>,
}

/// The flags of a table, as a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct FlagLine<F: Args> {
    #[command(flatten)]
    flags: F,
}

impl WorkloadFile {
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
                            return Err(anyhow!("line {line}: write load as [[load]]"));
                        };
                        tables.push(LoadTable { line, keys: keys(table, &line_of)? });
                    }
                }
                (name @ ("about" | "load"), _) => {
                    let line = line_of(key.span().start);
                    let right = if name == "load" { "[[load]]" } else { "about = \"...\"" };
                    return Err(anyhow!("line {line}: write {name} as {right}"));
                }
                (other, _) => {
                    let line = line_of(key.span().start);
                    return Err(anyhow!("line {line}: unknown key {other:?}; use about and [[load]]"));
                }
            }
        }
        let about = about.context("a description is missing: about = \"...\"")?;
        if tables.is_empty() {
            return Err(anyhow!("there is no [[load]]"));
        }
        Ok(Self { about, tables })
    }
}

/// The keys of a table, in order of appearance.
fn keys(table: &DeTable<'_>, line_of: &impl Fn(usize) -> usize) -> anyhow::Result<Vec<Key>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let keys = entries.into_iter().map(|(key, value)| {
        let (line, name) = (line_of(key.span().start), key.get_ref().to_string());
        let text = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Some(text.to_string()),
            // Flags accept numbers as written, except in other bases.
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => None,
        };
        let values: Option<Vec<String>> = match value.get_ref() {
            DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
            value => text(value).map(|text| vec![text]),
        };
        let values = values
            .with_context(|| format!("line {line}: {name} must be text, a number or a list of them"))?;
        Ok(Key { line, name, values })
    });
    keys.collect()
}

impl LoadTable {
    /// The flags of the table.
    pub fn flags<F: Args>(&self) -> anyhow::Result<F> {
        let command = FlagLine::<F>::command();
        let flags = command.get_arguments().filter_map(clap::Arg::get_long);
        let known: Vec<String> = flags.map(|flag| flag.replace('-', "_")).collect();
        let mut command_line = Vec::new();
        for Key { line, name, values } in &self.keys {
            if !known.contains(name) {
                let near = nearest_name(name, known.iter().map(String::as_str));
                let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                return Err(anyhow!("line {line}: there is no {name:?}{near}"));
            }
            let flag = name.replace('_', "-");
            let words: Vec<String> = values.iter().map(|value| format!("--{flag}={value}")).collect();
            // Parsed separately to find the line of an error.
            FlagLine::<F>::try_parse_from(&words).map_err(|e| invalid_flag(*line, &e))?;
            command_line.extend(words);
        }
        FlagLine::<F>::try_parse_from(command_line)
            .map(|line| line.flags)
            .map_err(|e| invalid_flag(self.line, &e))
    }

    /// The line of a key, if the table has it.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|entry| entry.name == key).map(|entry| entry.line)
    }

    /// The names of the keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &*key.name)
    }
}

/// The values of a flag that may be set in two places: the first non-empty list.
pub(super) fn first_non_empty<T: Clone>(values: Vec<T>, fallback: &[T]) -> Vec<T> {
    if values.is_empty() { fallback.to_vec() } else { values }
}

fn invalid_flag(line: usize, error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    anyhow!("line {line}: {}", first.trim_start_matches("error: "))
}

/// The tables of a text, each converted by `read`.
#[cfg(test)]
pub(super) fn read<T>(text: &str, read: impl Fn(&LoadTable) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    WorkloadFile::parse(text)?.tables.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_workloads_are_listed_with_their_command() {
        let list = list_or_show(None).unwrap();
        assert_eq!(list.lines().count(), BUILT_IN.len());
        assert!(list.contains("\nhou        bench object  Uploads and downloads of 1 KiB"), "{list}");
        assert!(list.contains("\npostmark   bench posix   "), "{list}");
        assert!(list_or_show(Some("ou")).unwrap().contains("[[load]]"));
        assert!(list_or_show(Some("nothing")).is_err());
    }

    #[test]
    fn invalid_workloads_are_reported_with_their_line() {
        let error = |text: &str| format!("{:#}", WorkloadFile::parse(text).unwrap_err());
        assert!(error("about = \"x\"\n[[load]]\nsize = = 3").starts_with("line 3: this is not TOML: "));
        assert_eq!(
            error("about = \"x\"\nloads = 1"),
            "line 2: unknown key \"loads\"; use about and [[load]]"
        );
        assert_eq!(error("about = \"x\"\n[load]\n"), "line 2: write load as [[load]]");
        assert_eq!(error("about = 3\n[[load]]\n"), "line 1: write about as about = \"...\"");
        assert_eq!(error("about = \"x\"\nload = [1]\n"), "line 2: write load as [[load]]");
        assert_eq!(error("about = \"x\"\n"), "there is no [[load]]");
        assert_eq!(error("[[load]]\n"), "a description is missing: about = \"...\"");
        let keep = error("about = \"x\"\n[[load]]\nsize = \"4KiB\"\nkeep = true\n");
        assert_eq!(keep, "line 4: keep must be text, a number or a list of them");
    }

    #[test]
    fn workload_of_another_command_is_rejected() {
        let error = find("hou", WorkloadCommand::Posix, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "hou is a workload of tradewind bench object");
        let error = find("/none/here", WorkloadCommand::Posix, |_| Ok(())).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "nor a built-in workload: ou, ou-unit, ou-single, ou-batch, ou-small, ou-large, postmark"
            ),
            "{error}"
        );
    }
}
