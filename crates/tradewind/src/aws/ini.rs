//! The form of `~/.aws/config` and `~/.aws/credentials`, read as the AWS CLI reads it: `[section]`, `key = value`
//! (or `key: value`), whole lines of comment after `#` or `;`. A line that stands further in than the key above it
//! belongs to that key: a setting of its own where the key has no value, more of the value where it has one.
//!
//! Sections of the same name are one, and of equal keys the last counts: the CLI refuses both, the SDKs take them.
//! No message repeats what a line says, since it may be a secret.

use std::path::Path;

use super::origin::{Origin, Problem};

/// A whole file. Neither it nor its parts can be printed: they hold secrets.
#[derive(Clone, Default)]
pub(super) struct Document {
    pub sections: Vec<Section>,
}

#[derive(Clone)]
pub(super) struct Section {
    /// What stands between the brackets, without white space around it.
    pub name: String,
    entries: Vec<Entry>,
}

#[derive(Clone)]
pub(super) struct Entry {
    /// In lower case.
    key: String,
    pub value: String,
    /// From 1.
    pub line: usize,
    nested: Vec<Entry>,
}

impl Document {
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problem> {
        let mut reader = Reader { document: Self::default(), section: None, indent: None };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            reader.line(line, index + 1).map_err(|message| {
                Problem::new(Origin::Line { path: path.to_owned(), line: index + 1 }, message)
            })?;
        }
        Ok(reader.document)
    }
}

impl Section {
    /// The entry, where it has a value: an empty one counts as none.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        last(&self.entries, key)
    }

    /// The entry below another, `s3 =` and further in `addressing_style = path`.
    pub fn nested(&self, key: &str, below: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .rev()
            .filter(|entry| entry.key == key)
            .find_map(|entry| last(&entry.nested, below))
    }
}

fn last<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Entry> {
    entries.iter().rev().find(|entry| entry.key == key && !entry.value.is_empty())
}

struct Reader {
    document: Document,
    /// The section that lines belong to.
    section: Option<usize>,
    /// How far in the key stands that lines further in belong to.
    indent: Option<usize>,
}

impl Reader {
    fn line(&mut self, line: &str, number: usize) -> Result<(), String> {
        let text = line.trim();
        if text.is_empty() || is_comment(text) {
            return Ok(());
        }
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        if self.indent.is_some_and(|of_key| indent > of_key) {
            return self.further_in(text, number);
        }
        if let Some(header) = text.strip_prefix('[') {
            return self.header(header);
        }
        let Some(section) = self.section.and_then(|at| self.document.sections.get_mut(at)) else {
            return Err("this stands before any section; begin with [default] or another section".to_owned());
        };
        section.entries.push(entry(text, &['=', ':'], number)?);
        self.indent = Some(indent);
        Ok(())
    }

    fn header(&mut self, header: &str) -> Result<(), String> {
        let Some((name, rest)) = header.split_once(']') else {
            return Err("a section's name ends with ]; write it as [profile NAME]".to_owned());
        };
        let (name, rest) = (name.trim(), rest.trim());
        if name.is_empty() {
            return Err("a section needs a name; write [default] or [profile NAME]".to_owned());
        }
        if !rest.is_empty() && !is_comment(rest) {
            return Err("nothing may follow the ] of a section's name; give it a line of its own".to_owned());
        }
        let sections = &mut self.document.sections;
        let at = sections.iter().position(|section| section.name == name).unwrap_or_else(|| {
            sections.push(Section { name: name.to_owned(), entries: Vec::new() });
            sections.len() - 1
        });
        (self.section, self.indent) = (Some(at), None);
        Ok(())
    }

    fn further_in(&mut self, text: &str, number: usize) -> Result<(), String> {
        let section = self.section.and_then(|at| self.document.sections.get_mut(at));
        // There is a key's indentation only where there is a key.
        let Some(above) = section.and_then(|section| section.entries.last_mut()) else { return Ok(()) };
        if above.value.is_empty() {
            above.nested.push(entry(text, &['='], number)?);
        } else if is_setting(text) {
            // The CLI would take it for more of the value above; nobody means that, and it may be a secret.
            return Err(format!(
                "this stands further in than {:?} above it; begin both in the same column",
                above.key
            ));
        } else {
            above.value.push('\n');
            above.value.push_str(text);
        }
        Ok(())
    }
}

/// Whether a line looks like a setting of its own.
fn is_setting(text: &str) -> bool {
    let is_plain = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    text.split_once('=').is_some_and(|(key, _)| is_plain(key.trim()))
}

fn is_comment(text: &str) -> bool {
    text.starts_with(['#', ';'])
}

fn entry(text: &str, between: &[char], line: usize) -> Result<Entry, String> {
    match text.split_once(between) {
        Some((key, value)) if !key.trim().is_empty() => Ok(Entry {
            key: key.trim().to_lowercase(),
            value: value.trim().to_owned(),
            line,
            nested: Vec::new(),
        }),
        _ => {
            Err("this is neither [section] nor key = value; write it as one, or after # as a comment"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A key, its value, and what stands below it.
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
    fn what_the_cli_reads() {
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
    fn what_nobody_can_read() {
        for (text, expected) in [
            (
                "\nregion = x",
                "etc/config:2: this stands before any section; begin with [default] or another section",
            ),
            ("[default", "etc/config:1: a section's name ends with ]; write it as [profile NAME]"),
            ("# c\n[ ]", "etc/config:2: a section needs a name; write [default] or [profile NAME]"),
            (
                "[a] region = x",
                "etc/config:1: nothing may follow the ] of a section's name; give it a line of its own",
            ),
            (
                "[a]\r\n\r\nhush",
                "etc/config:3: this is neither [section] nor key = value; write it as one, or after # as a comment",
            ),
            (
                "[a]\n= hush",
                "etc/config:2: this is neither [section] nor key = value; write it as one, or after # as a comment",
            ),
            (
                "[a]\ns3 =\n  key: value",
                "etc/config:3: this is neither [section] nor key = value; write it as one, or after # as a comment",
            ),
            (
                "[a]\nregion = x\n  aws_secret_access_key = hush",
                "etc/config:3: this stands further in than \"region\" above it; begin both in the same column",
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

    /// Writes sections in one of many ways that all mean the same.
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
        fn any_text(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn any_text_of_such_characters(text in r"[\[\]=:#; \t\r\na-c]{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn written_and_read_back(
            sections in prop::collection::btree_map("[a-z]([a-z ]{0,8}[a-z])?", prop::collection::vec(written(), 0..5), 0..4),
            noise in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            let sections: Vec<_> = sections.into_iter().collect();
            let text = write(&sections, &noise);
            prop_assert_eq!(parse(&text).map(|document| flat(&document)), Ok(sections), "{}", text);
        }
    }
}
