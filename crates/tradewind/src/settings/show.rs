//! `settings show`: every value and its source, as text and as JSON.

use std::fmt;

use serde_json::{Value as Json, json};

use super::{SettingSource, Settings};

impl Settings {
    fn lines(&self) -> Vec<(String, String, SettingSource)> {
        let mut lines = self.scalars.lines();
        lines.extend(self.named.lines());
        match &self.root_key {
            Some(root) => lines.extend(root.lines()),
            None => lines.push((
                "root_key".to_owned(),
                format!("(in {})", self.data_directory().join(crate::root_key::FILE_NAME).display()),
                SettingSource::Default,
            )),
        }
        lines
    }

    /// Returns true if a setting other than the policies of classes has another value. Secrets are not compared.
    #[must_use]
    pub fn differs_beyond_classes(&self, other: &Self) -> bool {
        let values = |settings: &Self| -> Vec<(String, String)> {
            let lines = settings.lines().into_iter().map(|(key, value, _)| (key, value));
            // Tiers are read at start.
            let is_reloaded = |key: &str| {
                key.starts_with("class_rule.") || key.starts_with("class.") && !key.ends_with(".tier")
            };
            lines.filter(|(key, _)| !is_reloaded(key)).collect()
        };
        values(self) != values(other)
    }

    /// All settings as a JSON list, each with key, value and source.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let lines = self.lines().into_iter().map(|(key, value, source)| {
            let location = match &source {
                SettingSource::Default => Json::Null,
                other => Json::String(other.to_string()),
            };
            json!({ "key": key, "value": value, "source": source.kind(), "location": location })
        });
        Json::Array(lines.collect())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let width = |column: fn(&(String, String, SettingSource)) -> usize| {
            lines.iter().map(column).max().unwrap_or(0)
        };
        let (keys, values) = (width(|line| line.0.len()), width(|line| line.1.len()).min(48));
        for (key, value, source) in &lines {
            let value = if value.is_empty() { "-" } else { value };
            writeln!(f, "{key:keys$}  {value:values$}  {source}")?;
        }
        Ok(())
    }
}
