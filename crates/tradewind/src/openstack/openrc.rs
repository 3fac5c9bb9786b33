//! A file that sets variables, as OpenStack's dashboard gives it out: `export OS_USERNAME="demo"`. It is made for a
//! shell, and this is none: lines that set a variable to plain text count, all others are passed over. What such a file
//! asks for when it runs (the password, mostly) is taken from the environment.

use std::collections::BTreeMap;

/// What a file sets.
#[derive(Clone, Default)]
pub struct Openrc {
    pub(super) variables: BTreeMap<String, String>,
}

impl Openrc {
    /// Reads a file's text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { variables: text.lines().filter_map(line).collect() }
    }
}

fn line(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let name = name.trim_start();
    let is_ours = name.starts_with("OS_") || name.starts_with("ST_");
    if !is_ours || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    Some((name.to_owned(), plain(value)?))
}

/// The text that a shell would make of this; `None` where it is more than text.
fn plain(value: &str) -> Option<String> {
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
            // What follows is a comment, or another command.
            (None, c) if c.is_whitespace() => return Some(text),
            (None, ';' | '&' | '|' | '<' | '>' | '(' | ')') => return None,
            (_, c) => text.push(c),
        }
    }
    quote.is_none().then_some(text)
}
