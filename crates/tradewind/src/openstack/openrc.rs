//! Parses an openrc file, as exported by OpenStack's dashboard: `export OS_USERNAME="demo"`. Such a file is a shell
//! script, but no shell runs here: lines that set a variable to plain text are read, all others are ignored. Values
//! that the script would prompt for, usually the password, come from the environment.

use std::collections::BTreeMap;

/// The variables that a file sets.
#[derive(Clone, Default)]
pub struct Openrc {
    pub(super) variables: BTreeMap<String, String>,
}

impl Openrc {
    /// Parses the text of a file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { variables: text.lines().filter_map(parse_line).collect() }
    }
}

fn parse_line(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let name = name.trim_start();
    let is_ours = name.starts_with("OS_") || name.starts_with("ST_");
    if !is_ours || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    Some((name.to_owned(), plain_text(value)?))
}

/// The text that a shell would produce; `None` if the value needs expansion or another command.
fn plain_text(value: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = value.chars();
    let mut quote = None;
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => text.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (_, '$' | '`') => return None,
            (None, '\\') => text.push(rest.next()?),
            (Some(_), '\\') => match rest.next()? {
                c @ ('"' | '\\' | '$' | '`') => text.push(c),
                c => text.extend(['\\', c]),
            },
            // A comment or another command follows.
            (None, c) if c.is_whitespace() => return Some(text),
            (None, ';' | '&' | '|' | '<' | '>' | '(' | ')') => return None,
            (_, c) => text.push(c),
        }
    }
    quote.is_none().then_some(text)
}
