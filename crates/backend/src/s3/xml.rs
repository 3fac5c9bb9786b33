//! Parses the XML of responses and escapes text for requests. Namespaces and attributes are ignored: no response of S3
//! depends on them.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::XmlVersion;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;
use tradewind_core::error::{Error, Reason, Result};

/// Maximum nesting depth: slightly more than any response of S3 has.
const MAX_DEPTH: usize = 16;

/// The expected kind of a response document.
pub(super) struct DocumentKind {
    /// Its name in messages.
    pub name: &'static str,
    /// The accepted root elements, compared case-insensitively.
    pub roots: &'static [&'static str],
}

impl DocumentKind {
    /// Like [`for_each_element`], but fails if the document is empty or of another kind: it must not be taken for an
    /// empty response.
    pub fn for_each_element(&self, document: &[u8], mut take: impl FnMut(&[&str], &str)) -> Result<()> {
        let mut is_answer = false;
        for_each_element(document, |path, text| {
            is_answer |=
                matches!(path, [root] if self.roots.iter().any(|name| name.eq_ignore_ascii_case(root)));
            take(path, text);
        })?;
        if is_answer {
            return Ok(());
        }
        Err(Error::new(Reason::Io, format!("the store's response is not {}", self.name)))
    }
}

/// Calls `take` at the end of each element, with the path of names and its text, in document order. A parent therefore
/// comes after its children; its text is the text directly inside it.
pub(super) fn for_each_element(document: &[u8], mut take: impl FnMut(&[&str], &str)) -> Result<()> {
    let text = std::str::from_utf8(document).map_err(|e| malformed(Some(Box::new(e))))?;
    let mut reader = Reader::from_str(text);
    let mut open: Vec<(String, String)> = Vec::with_capacity(MAX_DEPTH);
    loop {
        let event = reader.read_event().map_err(|e| malformed(Some(Box::new(e))))?;
        match event {
            Event::Start(start) => {
                if open.len() == MAX_DEPTH {
                    return Err(malformed(None));
                }
                open.push((utf8_name(start.local_name().as_ref())?, String::new()));
            }
            Event::Empty(empty) => {
                let name = utf8_name(empty.local_name().as_ref())?;
                let mut path: Vec<&str> = open.iter().map(|(name, _)| name.as_str()).collect();
                path.push(&name);
                take(&path, "");
            }
            Event::Text(piece) => {
                append_text(
                    &mut open,
                    piece.xml_content(XmlVersion::Implicit1_0).map_err(|e| malformed(Some(Box::new(e))))?,
                );
            }
            Event::CData(piece) => {
                append_text(
                    &mut open,
                    piece.xml_content(XmlVersion::Implicit1_0).map_err(|e| malformed(Some(Box::new(e))))?,
                );
            }
            Event::GeneralRef(reference) => {
                let character = reference.resolve_char_ref().map_err(|e| malformed(Some(Box::new(e))))?;
                match character {
                    Some(character) => append_text(&mut open, character.to_string().into()),
                    None => {
                        let entity = reference.decode().map_err(|e| malformed(Some(Box::new(e))))?;
                        let text = resolve_xml_entity(&entity).ok_or_else(|| malformed(None))?;
                        append_text(&mut open, text.into());
                    }
                }
            }
            Event::End(_) => {
                let path: Vec<&str> = open.iter().map(|(name, _)| name.as_str()).collect();
                let text = open.last().map(|(_, text)| text.as_str()).unwrap_or_default();
                take(&path, text);
                open.pop();
            }
            Event::Eof if open.is_empty() => return Ok(()),
            Event::Eof => return Err(malformed(None)),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn append_text(open: &mut [(String, String)], piece: Cow<'_, str>) {
    if let Some((_, text)) = open.last_mut() {
        text.push_str(&piece);
    }
}

fn utf8_name(bytes: &[u8]) -> Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|e| malformed(Some(Box::new(e))))
}

fn malformed(cause: Option<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    const WHAT: &str = "the store sent invalid XML";
    match cause {
        Some(cause) => Error::with_source(Reason::Io, WHAT, cause),
        None => Error::new(Reason::Io, WHAT),
    }
}

/// Appends text to a document, with special characters escaped.
pub(super) fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // Unescaped, a parser would normalize it to a newline or a space.
            '\r' => out.push_str("&#13;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        for_each_element(text.as_bytes(), |path, text| found.push((path.join("/"), text.to_owned())))?;
        Ok(found)
    }

    #[test]
    fn leaves_yields_paths_and_unescaped_text() {
        let text = "<?xml version=\"1.0\"?><a xmlns=\"http://x/\"><b>1 &lt;&#x41;<![CDATA[<&]]></b><!-- c --><e/><b> 2</b></a>";
        let found = all(text).unwrap();
        let expected = [("a/b", "1 <A<&"), ("a/e", ""), ("a/b", " 2"), ("a", "")];
        assert_eq!(found, expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
    }

    #[test]
    fn leaves_rejects_malformed_documents() {
        for bad in ["<a>", "<a></b>", "<a>&unknown;</a>", "</a>", &"<a>".repeat(100)] {
            assert_eq!(all(bad).unwrap_err().reason(), Reason::Io, "{bad}");
        }
        assert!(for_each_element(&[b'<', 0xff, b'>'], |_, _| {}).is_err());
    }

    proptest! {
        #[test]
        fn escape_round_trips(text in "[^\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{fffe}\u{ffff}]*") {
            let mut document = "<a>".to_owned();
            escape(&text, &mut document);
            document.push_str("</a>");
            prop_assert_eq!(all(&document).unwrap(), [("a".to_owned(), text)]);
        }

        #[test]
        fn leaves_never_panics(text in ".*") {
            let _ = all(&text);
        }
    }
}
