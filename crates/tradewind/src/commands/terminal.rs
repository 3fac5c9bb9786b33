//! Safe printing of names and messages, which come from stores and file systems and may contain control characters.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use tradewind_core::printable;

/// The display of names on standard output: unchanged for programs, with control characters escaped on a terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    is_terminal: bool,
}

impl Names {
    /// For this process's standard output.
    pub fn for_stdout() -> Self {
        Self { is_terminal: io::stdout().is_terminal() }
    }

    /// The printed form of a name.
    pub fn show(self, name: &str) -> Cow<'_, str> {
        if self.is_terminal { printable(name) } else { Cow::Borrowed(name) }
    }
}

/// Writes one line to standard error, always with control characters escaped.
pub(super) fn print_error_line(line: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "{}", printable(&line.to_string()))
}

/// Escapes the control characters that JSON allows unescaped in strings. The value is unchanged.
pub(super) fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // ASCII control characters are escaped by JSON itself, or are line breaks between its tokens.
        if c.is_ascii() && c != '\x7f' || matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_)) {
            text.push(c);
        } else {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::printable_json;

    #[test]
    fn printable_json_means_the_same() {
        let value = serde_json::json!({ "key": "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e9}\u{1f600}\n" });
        for text in [value.to_string(), format!("{value:#}")] {
            let printed = printable_json(&text);
            assert!(
                !printed.contains(['\u{7f}', '\u{9b}', '\u{202e}']) && printed.contains('\u{e9}'),
                "{printed}"
            );
            assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), value);
        }
    }
}
