//! A line cut into words as a POSIX shell cuts it, without anything else that a shell does: no variable, no `~`, no
//! pattern, no command in a command. What stands in a file can therefore name a program and its arguments and no more.
//!
//! White space parts words. In single quotes everything is itself. In double quotes a backslash protects `"` and `\`
//! only. Elsewhere a backslash protects any character. Quotes may begin inside a word, and `""` is an empty word.

/// The words, or what is wrong. The error never repeats the line, which may hold a secret.
pub(super) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => quoted(c, &mut rest, word.get_or_insert_default())?,
            '\\' => match rest.next() {
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("nothing follows the last backslash; remove it".to_owned()),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Adds what stands before the closing `quote`.
fn quoted(quote: char, rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), String> {
    loop {
        match rest.next() {
            None => return Err(format!("a {quote} has no other that closes it")),
            Some(c) if c == quote => return Ok(()),
            Some('\\') if quote == '"' => match rest.next() {
                Some(c @ ('"' | '\\')) => word.push(c),
                Some(c) => word.extend(['\\', c]),
                None => {}
            },
            Some(c) => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_a_shell_does() {
        for (line, expected) in [
            ("", &[][..]),
            ("  \t ", &[]),
            ("get  --for me", &["get", "--for", "me"]),
            (r#""/opt/my tools/get" 'a b' c\ d"#, &["/opt/my tools/get", "a b", "c d"]),
            (r#"a"b c"'d'e"#, &["ab cde"]),
            (r#""" ''"#, &["", ""]),
            (r#""\"\\\n$x" '\"'"#, &[r#""\\n$x"#, r#"\""#]),
            (
                "$HOME ~ * `id` $(id) ; & | > #",
                &["$HOME", "~", "*", "`id`", "$(id)", ";", "&", "|", ">", "#"],
            ),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_is_not_closed() {
        assert_eq!(split("a \"b").unwrap_err(), "a \" has no other that closes it");
        assert_eq!(split("it's").unwrap_err(), "a ' has no other that closes it");
        assert_eq!(split("a \"b\\").unwrap_err(), "a \" has no other that closes it");
        assert_eq!(split("a\\").unwrap_err(), "nothing follows the last backslash; remove it");
    }

    proptest! {
        #[test]
        fn any_line(line in any::<String>()) {
            let _ = split(&line);
        }

        #[test]
        fn quoted_words_come_back(words in prop::collection::vec(any::<String>(), 0..5)) {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words);
        }
    }
}
