//! The settings file as a tree whose values have line numbers. Only the TOML types that settings use are accepted:
//! text, whole numbers, booleans, lists and tables.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::problem::{Problems, nearest_name};
use super::source::SettingSource;

/// A value and its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub source: SettingSource,
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

/// A table whose keys are taken out one by one. The remaining keys are unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub source: SettingSource,
    /// Keys and values. The source of a table is the line of its header.
    pub entries: Vec<(String, Item)>,
}

impl Table {
    pub fn take(&mut self, key: &str) -> Option<Item> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Reports every key that was not taken. `inside` is the name of the table, `planned` are keys of later versions.
    pub fn reject_unknown_keys(
        self,
        inside: &str,
        known: &[&str],
        planned: &[&str],
        problems: &mut Problems,
    ) {
        for (key, item) in self.entries {
            let full_key = if inside.is_empty() { key.clone() } else { format!("{inside}.{key}") };
            if planned.contains(&key.as_str()) {
                problems.add(&item.source, format!("{full_key:?} is planned but not built yet; remove it"));
                continue;
            }
            let help = match nearest_name(&key, known.iter().copied()) {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            problems.add(&item.source, format!("unknown key {full_key:?}; {help}"));
        }
    }
}

/// Parses the text of a settings file.
pub(super) fn parse(path: &Path, text: &str) -> Result<Table, Problems> {
    let lines = LineIndex { path, text };
    let mut problems = Problems::default();
    match DeTable::parse(text) {
        Ok(root) => {
            let table = convert_table(root.get_ref(), lines.source(0), &lines, &mut problems);
            problems.into_result(table)
        }
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            problems.add(&lines.source(at), format!("this is not TOML: {}", error.message()));
            Err(problems)
        }
    }
}

struct LineIndex<'a> {
    path: &'a Path,
    text: &'a str,
}

impl LineIndex<'_> {
    fn source(&self, offset: usize) -> SettingSource {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        SettingSource::File { path: self.path.to_owned(), line }
    }
}

fn convert_table(
    table: &DeTable<'_>,
    source: SettingSource,
    lines: &LineIndex<'_>,
    problems: &mut Problems,
) -> Table {
    // The parser orders keys by name; users expect messages in the order of the file.
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    let entries = keys
        .into_iter()
        .filter_map(|(key, value)| {
            let source = lines.source(key.span().start);
            let value = convert(key.get_ref(), value.get_ref(), &source, lines, problems)?;
            Some((key.get_ref().to_string(), Item { source, value }))
        })
        .collect();
    Table { source, entries }
}

/// The value of a key, or an item of its list.
fn convert(
    key: &str,
    value: &DeValue<'_>,
    source: &SettingSource,
    lines: &LineIndex<'_>,
    problems: &mut Problems,
) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => Value::Integer(integer),
            Err(_) => {
                problems.add(source, format!("{key}: {} is too large", integer.as_str()));
                return None;
            }
        },
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .filter_map(|item| {
                    let source = lines.source(item.span().start);
                    let value = convert(key, item.get_ref(), &source, lines, problems)?;
                    Some(Item { source, value })
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, source.clone(), lines, problems)),
        DeValue::Float(_) | DeValue::Datetime(_) => {
            let message =
                format!("{key}: fractions and dates are not supported; write text or a whole number");
            problems.add(source, message);
            return None;
        }
    })
}
