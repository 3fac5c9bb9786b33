//! Parses `~/.aws/config` and `~/.aws/credentials` like the AWS CLI: `[section]`, `key = value` (or `key: value`), and
//! comment lines that begin with `#` or `;`. A line indented more than the key above it belongs to that key: it is a
//! nested setting if the key has no value, otherwise a continuation of the value.
//!
//! Sections of the same name are merged, and the last of equal keys counts: the CLI rejects both, the SDKs accept them.
//! No message quotes a line, since it may be a secret.

use std::path::Path;

use super::origin::{Origin, Problem};

/// A parsed file. It has no `Debug`, because it contains secrets.
#[derive(Clone, Default)]
pub(super) struct Document {
    pub sections: Vec<Section>,
}

#[derive(Clone)]
pub(super) struct Section {
    /// The text between the brackets, trimmed.
    pub name: String,
    entries: Vec<Entry>,
}

#[derive(Clone)]
pub(super) struct Entry {
    /// Lower-case key.
    key: String,
    pub value: String,
    /// Line number, from 1.
    pub line: usize,
    nested: Vec<Entry>,
}

impl Document {
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problem> {
        let mut reader = IniParser { document: Self::default(), section: None, indent: None };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            reader.parse_line(line, index + 1).map_err(|message| {
                Problem::new(Origin::Line { path: path.to_owned(), line: index + 1 }, message)
            })?;
        }
        Ok(reader.document)
    }
}

impl Section {
    /// The entry of a key; `None` if it is missing or has an empty value.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        last_non_empty(&self.entries, key)
    }

    /// A nested entry, such as `addressing_style = path` below `s3 =`.
    pub fn nested(&self, key: &str, below: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .rev()
            .filter(|entry| entry.key == key)
            .find_map(|entry| last_non_empty(&entry.nested, below))
    }
}

fn last_non_empty<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Entry> {
    entries.iter().rev().find(|entry| entry.key == key && !entry.value.is_empty())
}

struct IniParser {
    document: Document,
    /// Index of the current section.
    section: Option<usize>,
    /// Indentation of the current key; lines indented more belong to it.
    indent: Option<usize>,
}

impl IniParser {
    fn parse_line(&mut self, line: &str, number: usize) -> Result<(), String> {
        let text = line.trim();
        if text.is_empty() || is_comment(text) {
            return Ok(());
        }
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        if self.indent.is_some_and(|key_indent| indent > key_indent) {
            return self.indented_line(text, number);
        }
        if let Some(header) = text.strip_prefix('[') {
            return self.parse_header(header);
        }
        let Some(section) = self.section.and_then(|at| self.document.sections.get_mut(at)) else {
            return Err("this is before any section; begin with [default] or another section".to_owned());
        };
        section.entries.push(parse_entry(text, &['=', ':'], number)?);
        self.indent = Some(indent);
        Ok(())
    }

    fn parse_header(&mut self, header: &str) -> Result<(), String> {
        let Some((name, rest)) = header.split_once(']') else {
            return Err("the ] after the section's name is missing; write it as [profile NAME]".to_owned());
        };
        let (name, rest) = (name.trim(), rest.trim());
        if name.is_empty() {
            return Err("a section needs a name; write [default] or [profile NAME]".to_owned());
        }
        if !rest.is_empty() && !is_comment(rest) {
            return Err("text after the ] of a section is not allowed; move it to the next line".to_owned());
        }
        let sections = &mut self.document.sections;
        let at = sections.iter().position(|section| section.name == name).unwrap_or_else(|| {
            sections.push(Section { name: name.to_owned(), entries: Vec::new() });
            sections.len() - 1
        });
        (self.section, self.indent) = (Some(at), None);
        Ok(())
    }

    fn indented_line(&mut self, text: &str, number: usize) -> Result<(), String> {
        let section = self.section.and_then(|at| self.document.sections.get_mut(at));
        // `indent` is set only after a key, so there always is an entry.
        let Some(above) = section.and_then(|section| section.entries.last_mut()) else { return Ok(()) };
        if above.value.is_empty() {
            above.nested.push(parse_entry(text, &['='], number)?);
        } else if is_setting(text) {
            // The CLI would append it to the value above. That is certainly a mistake, and the line may be a secret.
            return Err(format!("this is indented more than {:?} above it; indent both alike", above.key));
        } else {
            above.value.push('\n');
            above.value.push_str(text);
        }
        Ok(())
    }
}

/// Returns true if a line looks like `key = value`.
fn is_setting(text: &str) -> bool {
    let is_plain = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    text.split_once('=').is_some_and(|(key, _)| is_plain(key.trim()))
}

fn is_comment(text: &str) -> bool {
    text.starts_with(['#', ';'])
}

fn parse_entry(text: &str, between: &[char], line: usize) -> Result<Entry, String> {
    match text.split_once(between) {
        Some((key, value)) if !key.trim().is_empty() => Ok(Entry {
            key: key.trim().to_lowercase(),
            value: value.trim().to_owned(),
            line,
            nested: Vec::new(),
        }),
        _ => {
            Err("this is neither [section] nor key = value; correct it, or begin the line with #".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A key, its value, and its nested entries.
    type Written = (String, String, Vec<(String, String)>);

    fn parse(text: &str) -> Result<Document, String> {
        Document::parse(Path::new("etc/config"), text).map_err(|problem| problem.to_string())
    }

    fn flat(document: &Document) -> Vec<(String, Vec<Written>)> {
        let below = |entry: &Entry| entry.nested.iter().map(|e| (e.key.clone(), e.value.clone())).collect();
        let written = |entry: &Entry| (entry.key.clone(), entry.value.clone(), below(entry));
        document
            .sections
            .iter()
            .map(|section| (section.name.clone(), section.entries.iter().map(written).collect()))
            .collect()
    }

    #[test]
    fn parse_accepts_what_the_cli_accepts() {
        let text = "\u{feff}# first\r\n[ default ] ; why\r\nRegion : eu-west-1\r\n\r\ns3 =\r\n  Addressing_Style=path\r\n\
                    \t# inside\r\n\r\n    max = 3 # kept\r\noutput=json\r\n  [profile far in]\r\nempty =\r\n[other]\r\n\
                    [default]\r\n   a = 1\r\n   b = 2 = 3\r\n   region = eu-west-2";
        let document = parse(text).unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let plain = |key: &str, value: &str| (key.to_owned(), value.to_owned(), Vec::new());
        let expected = vec![
            (
                "default".to_owned(),
                vec![
                    plain("region", "eu-west-1"),
                    (
                        "s3".to_owned(),
                        String::new(),
                        vec![pair("addressing_style", "path"), pair("max", "3 # kept")],
                    ),
                    plain("output", "json\n[profile far in]"),
                    plain("empty", ""),
                    plain("a", "1"),
                    plain("b", "2 = 3"),
                    plain("region", "eu-west-2"),
                ],
            ),
            ("other".to_owned(), vec![]),
        ];
        assert_eq!(flat(&document), expected);
        let section = &document.sections[0];
        let region = section.get("region").unwrap();
        assert_eq!((region.value.as_str(), region.line), ("eu-west-2", 17));
        let style = section.nested("s3", "addressing_style").unwrap();
        assert_eq!((style.value.as_str(), style.line), ("path", 6));
        assert!(section.get("empty").is_none() && section.get("s3").is_none());
        assert!(section.nested("s3", "missing").is_none());
    }

    #[test]
    fn parse_rejects_malformed_lines() {
        for (text, expected) in [
            (
                "\nregion = x",
                "etc/config:2: this is before any section; begin with [default] or another section",
            ),
            (
                "[default",
                "etc/config:1: the ] after the section's name is missing; write it as [profile NAME]",
            ),
            ("# c\n[ ]", "etc/config:2: a section needs a name; write [default] or [profile NAME]"),
            (
                "[a] region = x",
                "etc/config:1: text after the ] of a section is not allowed; move it to the next line",
            ),
            (
                "[a]\r\n\r\nhush",
                "etc/config:3: this is neither [section] nor key = value; correct it, or begin the line with #",
            ),
            (
                "[a]\n= hush",
                "etc/config:2: this is neither [section] nor key = value; correct it, or begin the line with #",
            ),
            (
                "[a]\ns3 =\n  key: value",
                "etc/config:3: this is neither [section] nor key = value; correct it, or begin the line with #",
            ),
            (
                "[a]\nregion = x\n  aws_secret_access_key = hush",
                "etc/config:3: this is indented more than \"region\" above it; indent both alike",
            ),
        ] {
            assert_eq!(parse(text).err().as_deref(), Some(expected), "{text:?}");
        }
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-z_][a-z0-9_]{0,8}"
    }

    fn value() -> impl Strategy<Value = String> {
        "[!-~]([ -~]{0,20}[!-~])?"
    }

    fn written() -> impl Strategy<Value = Written> {
        let nested = prop::collection::vec((name(), value()), 0..4);
        (name(), value(), nested, any::<bool>()).prop_map(|(key, value, nested, is_nested)| {
            if is_nested { (key, String::new(), nested) } else { (key, value, Vec::new()) }
        })
    }

    /// Writes sections in one of many equivalent forms.
    fn write(sections: &[(String, Vec<Written>)], noise: &[u8]) -> String {
        let mut noise = noise.iter().copied().cycle();
        let mut text = String::new();
        let mut line = |indent: usize, line: String| {
            let noise = noise.next().unwrap_or_default();
            if noise & 1 != 0 {
                text.push_str(["\n", "   \r\n", "# [a] = b\n", " ;\n"][usize::from(noise >> 6)]);
            }
            text.push_str(&if noise & 2 != 0 { "\t" } else { " " }.repeat(indent));
            text.push_str(&line);
            text.push_str(["\n", "\r\n", "  \n", "\t\r\n"][usize::from(noise >> 2 & 3)]);
        };
        for (section, entries) in sections {
            line(0, format!("[{section}]"));
            for (key, value, nested) in entries {
                line(2, format!("{} = {value}", key.to_uppercase()));
                for (key, value) in nested {
                    line(3, format!("{key}={value}"));
                }
            }
        }
        text
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn parse_never_panics_on_ini_characters(text in r"[\[\]=:#; \t\r\na-c]{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn parse_round_trips(
            sections in prop::collection::btree_map("[a-z]([a-z ]{0,8}[a-z])?", prop::collection::vec(written(), 0..5), 0..4),
            noise in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            let sections: Vec<_> = sections.into_iter().collect();
            let text = write(&sections, &noise);
            prop_assert_eq!(parse(&text).map(|document| flat(&document)), Ok(sections), "{}", text);
        }
    }
}
