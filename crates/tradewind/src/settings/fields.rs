//! Reads a table of the settings file field by field. Messages name the full path of a field.

use super::document::{Item, Table, Value as TomlValue};
use super::problem::Problems;
use super::source::Sourced;
use super::value::SettingValue;

/// The fields of one table, taken one by one.
pub(super) struct Fields {
    path: String,
    table: Table,
    known: Vec<&'static str>,
    found: Vec<&'static str>,
}

impl Fields {
    pub fn new(path: String, table: Table) -> Self {
        Self { path, table, known: Vec::new(), found: Vec::new() }
    }

    /// The name of the table in messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The keys taken so far.
    #[cfg(test)]
    pub fn known_keys(&self) -> &[&'static str] {
        &self.known
    }

    pub fn take(&mut self, key: &'static str) -> Option<Item> {
        self.known.push(key);
        let item = self.table.take(key)?;
        self.found.push(key);
        Some(item)
    }

    /// Returns true if the table had this key. It is false before the key was taken, too.
    pub fn has_taken(&self, key: &str) -> bool {
        self.found.contains(&key)
    }

    pub fn text(&mut self, key: &'static str, problems: &mut Problems) -> Option<Sourced<String>> {
        let Item { source, value } = self.take(key)?;
        match value {
            TomlValue::Text(value) if !value.is_empty() => Some(Sourced { value, source }),
            other => {
                problems.add(&source, format!("{}.{key} must be text, not {}", self.path, describe(&other)));
                None
            }
        }
    }

    /// A single value of any type.
    pub fn single<T: SettingValue>(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<Sourced<T>> {
        let Item { source, value } = self.take(key)?;
        let read = match value.as_text() {
            Ok(text) => T::parse(&text),
            Err(kind) => Err(format!("must be a single value, not {kind}")),
        };
        match read {
            Ok(value) => Some(Sourced { value, source }),
            Err(why) => {
                problems.add(&source, format!("{}.{key}: {why}", self.path));
                None
            }
        }
    }

    pub fn boolean(&mut self, key: &'static str, problems: &mut Problems) -> Option<Sourced<bool>> {
        let Item { source, value } = self.take(key)?;
        match value {
            TomlValue::Boolean(value) => Some(Sourced { value, source }),
            other => {
                let message = format!("{}.{key} must be true or false, not {}", self.path, describe(&other));
                problems.add(&source, message);
                None
            }
        }
    }

    /// A table, with its place in the file.
    pub fn nested(&mut self, key: &'static str, problems: &mut Problems) -> Option<Sourced<Self>> {
        let Item { source, value } = self.take(key)?;
        let path = format!("{}.{key}", self.path);
        match value {
            TomlValue::Table(table) => Some(Sourced { value: Self::new(path, table), source }),
            other => {
                problems.add(&source, format!("{path} must be a table, not {}", describe(&other)));
                None
            }
        }
    }

    pub fn missing(&self, key: &str, example: &str, problems: &mut Problems) {
        problems.add(&self.table.source, format!("{} needs {key}, for example {key} = {example}", self.path));
    }

    pub fn finish(self, planned: &[&str], problems: &mut Problems) {
        self.table.reject_unknown_keys(&self.path, &self.known, planned, problems);
    }
}

fn describe(value: &TomlValue) -> &'static str {
    match value {
        TomlValue::Text(text) if text.is_empty() => "empty",
        other => other.kind(),
    }
}

/// Takes the tables `[kind.NAME]`.
pub(super) fn take_named_tables(
    root: &mut Table,
    kind: &str,
    problems: &mut Problems,
) -> Vec<(Sourced<String>, Fields)> {
    let Some(Item { source, value }) = root.take(kind) else { return Vec::new() };
    let TomlValue::Table(named) = value else {
        problems.add(&source, format!("{kind:?} is written as tables: [{kind}.NAME]"));
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, item) in named.entries {
        match item.value {
            TomlValue::Table(table) => {
                let fields = Fields::new(format!("{kind}.{name}"), table);
                found.push((Sourced { value: name, source: item.source }, fields));
            }
            other => problems.add(
                &item.source,
                format!("{kind}.{name} must be a table, [{kind}.NAME], not {}", other.kind()),
            ),
        }
    }
    found
}
