//! Escaping of untrusted text (keys, file names, messages of stores) for display. Control characters could move a
//! terminal's cursor, change its title or colours, or forge lines of a log.

use std::borrow::Cow;

/// Escapes control characters as in a Rust string literal (`\n`, `\u{1b}`). Everything else, including letters of any
/// script, is unchanged. Allocates only if something is escaped.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => escaped.extend(c.escape_default()),
            c if is_unsafe(c) => escaped.extend(c.escape_unicode()),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Returns true for C0 and C1 control characters, line separators, and marks that reorder text (Unicode TR 36, 3.5).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_are_escaped_and_letters_stay() {
        for plain in ["", "a/b c.txt", "caf\u{e9} \u{65e5}\u{672c} \u{1f600}", "back\\slash \"quotes\""] {
            assert!(matches!(printable(plain), std::borrow::Cow::Borrowed(text) if text == plain));
        }
        assert_eq!(printable("a\x1b]0;title\x07b"), "a\\u{1b}]0;title\\u{7}b");
        assert_eq!(printable("one\ntwo\r\tthree"), "one\\ntwo\\r\\tthree");
        assert_eq!(printable("\u{9b}31m\u{202e}gpj.exe\u{7f}"), "\\u{9b}31m\\u{202e}gpj.exe\\u{7f}");
    }
}
