//! The settings file as a tree in which everything knows its line. Only what settings use of TOML is
//! let in: text, whole numbers, booleans, lists and tables.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::problem::{Problems, nearest};
use super::source::Source;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub source: Source,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Item>),
    Table(Table),
}

impl Value {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Integer(_) => "a number",
            Self::Boolean(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A table whose keys are taken out one by one; what is left over at the end is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub source: Source,
    /// Keys with the place where each stands; for a table, that of its header.
    pub entries: Vec<(String, Item)>,
}

impl Table {
    pub fn take(&mut self, key: &str) -> Option<Item> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Notes every key that was not taken. `inside` is the table's name; `planned` are keys that later
    /// versions will know.
    pub fn refuse_rest(self, inside: &str, known: &[&str], planned: &[&str], problems: &mut Problems) {
        for (key, item) in self.entries {
            let whole = if inside.is_empty() { key.clone() } else { format!("{inside}.{key}") };
            if planned.contains(&key.as_str()) {
                problems.add(&item.source, format!("{whole:?} is planned but not built yet; remove it"));
                continue;
            }
            let help = match nearest(&key, known.iter().copied()) {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("known here: {}", known.join(", ")),
            };
            problems.add(&item.source, format!("unknown key {whole:?}; {help}"));
        }
    }
}

/// Reads a whole file's text.
pub(super) fn parse(path: &Path, text: &str) -> Result<Table, Problems> {
    let lines = Lines { path, text };
    let mut problems = Problems::default();
    match DeTable::parse(text) {
        Ok(root) => {
            let table = convert_table(root.get_ref(), lines.source(0), &lines, &mut problems);
            problems.or(table)
        }
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            problems.add(&lines.source(at), format!("this is not TOML: {}", error.message()));
            Err(problems)
        }
    }
}

struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn source(&self, offset: usize) -> Source {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Source::File { path: self.path.to_owned(), line }
    }
}

fn convert_table(table: &DeTable<'_>, source: Source, lines: &Lines<'_>, problems: &mut Problems) -> Table {
    // The parser orders keys by name; the file's order is what people expect to be answered in.
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    let entries = keys
        .into_iter()
        .filter_map(|(key, value)| {
            let source = lines.source(key.span().start);
            let value = convert(value.get_ref(), &source, lines, problems)?;
            Some((key.get_ref().to_string(), Item { source, value }))
        })
        .collect();
    Table { source, entries }
}

fn convert(
    value: &DeValue<'_>,
    source: &Source,
    lines: &Lines<'_>,
    problems: &mut Problems,
) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => Value::Integer(integer),
            Err(_) => {
                problems.add(source, format!("{} is too large", integer.as_str()));
                return None;
            }
        },
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .filter_map(|item| {
                    let source = lines.source(item.span().start);
                    let value = convert(item.get_ref(), &source, lines, problems)?;
                    Some(Item { source, value })
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, source.clone(), lines, problems)),
        DeValue::Float(_) | DeValue::Datetime(_) => {
            problems.add(source, "no setting takes a fraction or a date; write it as text or a whole number");
            return None;
        }
    })
}
