//! Problems found in the settings. Each message names the location and the remedy. All problems are collected, so that
//! a file can be corrected in one pass.

use std::fmt;

use super::source::SettingSource;

/// A problem with a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Source of the setting.
    pub source: SettingSource,
    /// Description and remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.message)
    }
}

/// All problems found. Not empty if returned as an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, source: &SettingSource, message: impl Into<String>) {
        self.0.push(Problem { source: source.clone(), message: message.into() });
    }

    /// Returns `value` if there are no problems.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The known name most similar to `written`, if one is similar enough to be meant.
#[must_use]
pub fn nearest_name<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_ascii_lowercase().replace('-', "_");
    let limit = (written.chars().count() / 3).max(2);
    known
        .into_iter()
        .map(|name| {
            let contained = name.split('_').any(|word| word == written) || name.starts_with(&written);
            (if contained { 1 } else { distance(&written, name) }, name)
        })
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// The edit distance: insertions, deletions, replacements and swaps of adjacent letters (Damerau-Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut cost = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(rows[i - 2][j - 2] + 1);
            }
            row.push(cost);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_similar_names_only() {
        let known = ["listen", "admin", "max_connections", "tls_cert", "tls_key"];
        for (written, expected) in [
            ("lisen", Some("listen")),
            ("listne", Some("listen")),
            ("Listen", Some("listen")),
            ("connections", Some("max_connections")),
            ("max-connections", Some("max_connections")),
            ("tls", Some("tls_cert")),
            ("tlskey", Some("tls_key")),
            ("zebra", None),
            ("password", None),
        ] {
            assert_eq!(nearest_name(written, known), expected, "{written}");
        }
    }
}
