//! An XML document for `s3s`: read whole, verified against its declared checksums, and converted to the subset of XML
//! that the parser of `s3s` supports. That parser silently drops CDATA sections, and with them a part of a key; here
//! they become equivalent escaped text. Comments and processing instructions are ignored by XML and by the parser.
//!
//! Elements of checksums that the parser does not support are renamed (`elements`).
//!
//! A document that would decode into many times its size is rejected: one with more list elements than the operation
//! allows.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tradewind_core::{Algorithm, Window};

use super::call::Call;
use super::checksums::DeclaredChecksums;
use super::elements;
use super::failure::{Failure, Result};
use super::operation::Operation;
use crate::error::Code;

const CDATA_OPEN: &[u8] = b"<![CDATA[";
const CDATA_CLOSE: &[u8] = b"]]>";

/// Reads a call's whole document within the request's memory, verifies its declared checksums, and converts it for
/// `s3s`.
pub(super) async fn read(call: &Call, limit: u64) -> Result<Bytes> {
    let Some(mut body) = call.take_body() else { return Ok(Bytes::new()) };
    if body.is_empty() {
        DeclaredChecksums::for_document(call)?.verify(call, &[])?;
        return Ok(Bytes::new());
    }
    let too_big = || Failure::new(Code::MaxMessageLengthExceeded, "Your request was too big.");
    let length = call.body_length()?;
    if length > limit {
        return Err(too_big());
    }
    let size = usize::try_from(length).map_err(|_| too_big())?;
    let reserved = call.context.window.try_reserve(size).ok_or_else(Failure::no_memory)?;
    let mut all = BytesMut::with_capacity(size);
    while let Some(bytes) = call.context.guard(body.next()).await? {
        let bytes = bytes?;
        if all.len() + bytes.len() > size {
            return Err(Failure::invalid_request("The body is longer than declared."));
        }
        all.extend_from_slice(&bytes);
    }
    if all.len() < size {
        return Err(Failure::new(
            Code::IncompleteBody,
            "You did not provide the number of bytes specified by the Content-Length HTTP header",
        ));
    }
    DeclaredChecksums::for_document(call)?.verify(call, &all)?;
    convert(call.operation, reserved.attach(all.freeze()), &call.context.window)
}

/// Converts the document for `s3s`. The memory of a converted document is reserved from the window.
fn convert(operation: Operation, document: Bytes, window: &Arc<Window>) -> Result<Bytes> {
    let mut elements = 0;
    let (mut size, mut is_rewritten) = (0, false);
    for token in Tokens(&document) {
        let token = token?;
        if let Token::Plain(text) = &token {
            // `s3s` ignores the tags of a new bucket.
            if operation == Operation::CreateBucket && is_start_tag(text, "Tag") {
                return Err(Failure::not_implemented("tags of buckets"));
            }
            elements +=
                usize::from(operation.list_element_limit().is_some_and(|(name, _)| is_start_tag(text, name)));
        } else {
            is_rewritten = true;
        }
        token.write(&mut |bytes| size += bytes.len());
    }
    if operation.list_element_limit().is_some_and(|(_, max_elements)| elements > max_elements) {
        return Err(Failure::malformed_xml());
    }
    if !is_rewritten {
        return Ok(document);
    }
    let reserved = window.try_reserve(size).ok_or_else(Failure::no_memory)?;
    let mut text = Vec::with_capacity(size);
    for token in Tokens(&document) {
        token?.write(&mut |bytes| text.extend_from_slice(bytes));
    }
    Ok(reserved.attach(text))
}

/// Returns true if the text begins with the start tag of an element of this name, with or without a namespace prefix.
fn is_start_tag(text: &[u8], name: &str) -> bool {
    let Some(rest) = text.strip_prefix(b"<") else { return false };
    let ends_name = |byte: &u8| matches!(byte, b'>' | b'/') || byte.is_ascii_whitespace();
    let qualified = rest.split(ends_name).next().unwrap_or_default();
    let local = qualified.iter().position(|byte| *byte == b':').map_or(qualified, |at| &qualified[at + 1..]);
    local == name.as_bytes()
}

fn escaped(byte: &u8) -> &[u8] {
    match byte {
        b'<' => b"&lt;",
        b'&' => b"&amp;",
        other => std::slice::from_ref(other),
    }
}

enum Token<'a> {
    /// A tag with the text after it, a comment, or a processing instruction: unchanged.
    Plain(&'a [u8]),
    /// The contents of a CDATA section.
    Quoted(&'a [u8]),
    /// The start tag of a checksum that the parser does not support: the text after its name.
    Begin(Algorithm, &'a [u8]),
    /// The end tag of such a checksum: the text after its name.
    End(&'a [u8]),
}

impl<'a> Token<'a> {
    /// A token that begins with a tag.
    fn from_tag(text: &'a [u8]) -> Self {
        let begin = text.strip_prefix(b"<").unwrap_or(text);
        let (is_end, named) = begin.strip_prefix(b"/").map_or((false, begin), |named| (true, named));
        // A quick check that excludes most names.
        if !named.starts_with(b"Checksum") {
            return Self::Plain(text);
        }
        let ends_name = |byte: &u8| matches!(byte, b'>' | b'/') || byte.is_ascii_whitespace();
        let (name, rest) = named.split_at(named.iter().position(ends_name).unwrap_or(named.len()));
        match elements::unsupported_algorithm(name) {
            None => Self::Plain(text),
            Some(_) if is_end => Self::End(rest),
            Some(algorithm) => Self::Begin(algorithm, rest),
        }
    }

    /// Writes its equivalent for the parser.
    fn write(&self, out: &mut impl FnMut(&[u8])) {
        match self {
            Self::Plain(text) => out(text),
            Self::Quoted(text) => text.iter().for_each(|byte| out(escaped(byte))),
            Self::Begin(algorithm, rest) => {
                let (tag, text) = rest.split_at(rest.iter().position(|b| *b == b'>').map_or(0, |at| at + 1));
                for text in [b"<", elements::CARRIER_ELEMENT.as_bytes(), tag] {
                    out(text);
                }
                // An empty element has no text.
                if !tag.ends_with(b"/>") {
                    out(algorithm.name().as_bytes());
                    out(b":");
                }
                out(text);
            }
            Self::End(rest) => [b"</", elements::CARRIER_ELEMENT.as_bytes(), rest].into_iter().for_each(out),
        }
    }
}

/// Iterates over a document's markup.
struct Tokens<'a>(&'a [u8]);

impl<'a> Tokens<'a> {
    /// Takes the text up to and including `close`, which is searched from the offset `from`.
    fn take_through(&mut self, from: usize, close: &[u8]) -> Result<&'a [u8]> {
        let inside = self.0.get(from..).unwrap_or_default();
        let at = inside
            .windows(close.len())
            .position(|window| window == close)
            .ok_or_else(Failure::malformed_xml)?;
        let (text, rest) = self.0.split_at(from + at + close.len());
        self.0 = rest;
        Ok(text)
    }

    fn next_token(&mut self) -> Result<Token<'a>> {
        if self.0.starts_with(CDATA_OPEN) {
            let section = self.take_through(CDATA_OPEN.len(), CDATA_CLOSE)?;
            return Ok(Token::Quoted(&section[CDATA_OPEN.len()..section.len() - CDATA_CLOSE.len()]));
        }
        if self.0.starts_with(b"<!--") {
            return Ok(Token::Plain(self.take_through(4, b"-->")?));
        }
        if self.0.starts_with(b"<?") {
            return Ok(Token::Plain(self.take_through(2, b"?>")?));
        }
        // A document type definition could redefine the meaning of text.
        if self.0.starts_with(b"<!") {
            return Err(Failure::malformed_xml());
        }
        let next = self.0.iter().skip(1).position(|byte| *byte == b'<');
        let (text, rest) = self.0.split_at(next.map_or(self.0.len(), |at| at + 1));
        self.0 = rest;
        Ok(Token::from_tag(text))
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Result<Token<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let token = self.next_token();
        if token.is_err() {
            self.0 = &[];
        }
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tradewind_core::testing::context;

    fn rewritten(operation: Operation, text: &str) -> Result<String> {
        let bytes = convert(operation, Bytes::copy_from_slice(text.as_bytes()), &context().window)?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn only_cdata_sections_are_converted_to_text() {
        for (text, expected) in [
            ("<Key>logs/<![CDATA[a&b<c>]]>d</Key>", "<Key>logs/a&amp;b&lt;c>d</Key>"),
            ("<Key><![CDATA[]]]]><![CDATA[>]]></Key>", "<Key>]]></Key>"),
            (
                "<a><!-- <![CDATA[x]]> --><?p <![CDATA[ ?></a>",
                "<a><!-- <![CDATA[x]]> --><?p <![CDATA[ ?></a>",
            ),
            ("<?xml version=\"1.0\"?>\n<a b='c'>&amp;</a>", "<?xml version=\"1.0\"?>\n<a b='c'>&amp;</a>"),
            ("no markup", "no markup"),
        ] {
            assert_eq!(rewritten(Operation::DeleteObjects, text).unwrap(), expected, "{text}");
        }
        for text in ["<a><![CDATA[x</a>", "<!-- x", "<?x", "<!DOCTYPE a [<!ENTITY b \"c\">]><a/>", "<!-->"] {
            let error = rewritten(Operation::DeleteObjects, text).unwrap_err();
            assert_eq!(error.code(), crate::error::Code::MalformedXml, "{text}");
        }
    }

    #[test]
    fn unsupported_checksum_elements_are_renamed() {
        for (text, expected) in [
            ("<ChecksumSHA512>v=</ChecksumSHA512>", "<ChecksumSHA256>SHA512:v=</ChecksumSHA256>"),
            ("<ChecksumMD5 a='b' > v</ChecksumMD5 >", "<ChecksumSHA256 a='b' >MD5: v</ChecksumSHA256 >"),
            ("<ChecksumXXHASH3/>", "<ChecksumSHA256/>"),
            (
                "<ChecksumXXHASH128><![CDATA[v]]></ChecksumXXHASH128>",
                "<ChecksumSHA256>XXHASH128:v</ChecksumSHA256>",
            ),
            ("<ChecksumSHA256>v</ChecksumSHA256>", "<ChecksumSHA256>v</ChecksumSHA256>"),
            ("<ChecksumSHA3>v</ChecksumSHA3>", "<ChecksumSHA3>v</ChecksumSHA3>"),
        ] {
            assert_eq!(rewritten(Operation::CompleteMultipartUpload, text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn the_length_of_lists_is_limited() {
        for (operation, element, max_elements) in [
            (Operation::DeleteObjects, "<Object/>", 1000),
            (Operation::DeleteObjects, "<Object><ObjectX/></Object>", 1000),
            (Operation::CompleteMultipartUpload, "<Part\n><PartNumber>1</PartNumber></Part>", 10_000),
        ] {
            assert!(rewritten(operation, &element.repeat(max_elements)).is_ok(), "{element}");
            assert!(rewritten(operation, &element.repeat(max_elements + 1)).is_err(), "{element}");
        }
        assert!(rewritten(Operation::CreateBucket, &"<Part/>".repeat(10_001)).is_ok());
    }

    proptest! {
        #[test]
        fn conversion_is_idempotent_for_any_text(pieces in prop::collection::vec(
            prop_oneof![
                Just("<![CDATA["), Just("]]>"), Just("<!--"), Just("-->"), Just("<?"), Just("?>"),
                Just("<Object"), Just(">"), Just("&"), Just("ü"), Just(" "), Just("<ChecksumMD5"),
                Just("</ChecksumMD5>"),
            ], 0..20)) {
            let text = pieces.concat();
            if let Ok(converted) = rewritten(Operation::DeleteObjects, &text) {
                // A second conversion changes nothing.
                prop_assert_eq!(rewritten(Operation::DeleteObjects, &converted).ok(), Some(converted));
            }
        }
    }
}
