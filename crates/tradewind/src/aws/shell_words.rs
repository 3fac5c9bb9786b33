//! Splits a line into words like a POSIX shell, but without expansion of variables, `~`, patterns and commands. A line
//! in a file can therefore specify a program and its arguments, and nothing else.
//!
//! White space separates words. Single quotes preserve everything. In double quotes a backslash escapes only `"` and
//! `\`; elsewhere it escapes any character. Quotes may begin inside a word, and `""` is an empty word.

/// Splits a line. The error never quotes the line, which may contain a secret.
pub(super) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => read_quoted(c, &mut rest, word.get_or_insert_default())?,
            '\\' => match rest.next() {
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("the last backslash escapes nothing; remove it".to_owned()),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Appends the text up to the closing `quote`.
fn read_quoted(quote: char, rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), String> {
    loop {
        match rest.next() {
            None => return Err(format!("a {quote} is not closed")),
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
    fn split_follows_the_rules_of_a_shell() {
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
    fn split_rejects_unterminated_quotes() {
        assert_eq!(split("a \"b").unwrap_err(), "a \" is not closed");
        assert_eq!(split("it's").unwrap_err(), "a ' is not closed");
        assert_eq!(split("a \"b\\").unwrap_err(), "a \" is not closed");
        assert_eq!(split("a\\").unwrap_err(), "the last backslash escapes nothing; remove it");
    }

    proptest! {
        #[test]
        fn split_never_panics(line in any::<String>()) {
            let _ = split(&line);
        }

        #[test]
        fn split_restores_quoted_words(words in prop::collection::vec(any::<String>(), 0..5)) {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words);
        }
    }
}
