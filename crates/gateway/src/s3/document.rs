//! An XML document on its way to `s3s`: read whole, held against what was promised of it, and brought into
//! the part of XML that the reader of `s3s` reads. That reader drops CDATA sections without a word, and with
//! them a piece of a key: here they become escaped text, which says the same. Comments and processing
//! instructions need nothing: XML has them count for nothing within a value, and so they do there.
//!
//! Elements of checksums that the reader does not know get names that it knows (`elements`).
//!
//! What would decode into many times its size is refused before: more elements of a list than the
//! operation takes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tradewind_core::{Algorithm, Window};

use super::call::Call;
use super::checksums::Plan;
use super::elements;
use super::failure::{Failure, Result};
use super::operation::Operation;
use crate::error::Code;

const CDATA_OPEN: &[u8] = b"<![CDATA[";
const CDATA_CLOSE: &[u8] = b"]]>";

/// Reads a call's document whole, within the request's memory, verifies what was promised about it, and
/// answers it as `s3s` may read it.
pub(super) async fn read(call: &Call, limit: u64) -> Result<Bytes> {
    let Some(mut body) = call.take_body() else { return Ok(Bytes::new()) };
    if body.is_empty() {
        Plan::of_document(call)?.verify(call, &[])?;
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
            return Err(Failure::request("The body is longer than announced."));
        }
        all.extend_from_slice(&bytes);
    }
    if all.len() < size {
        return Err(Failure::new(
            Code::IncompleteBody,
            "You did not provide the number of bytes specified by the Content-Length HTTP header.",
        ));
    }
    Plan::of_document(call)?.verify(call, &all)?;
    readable(call.operation, reserved.attach(all.freeze()), &call.context.window)
}

/// The document as `s3s` may read it. Memory for another one than was given comes out of the window.
fn readable(operation: Operation, document: Bytes, window: &Arc<Window>) -> Result<Bytes> {
    let mut elements = 0;
    let (mut size, mut is_rewritten) = (0, false);
    for piece in Pieces(&document) {
        let piece = piece?;
        if let Piece::Plain(text) = &piece {
            elements += usize::from(operation.list().is_some_and(|(name, _)| opens(text, name)));
        } else {
            is_rewritten = true;
        }
        piece.write(&mut |bytes| size += bytes.len());
    }
    if operation.list().is_some_and(|(_, most)| elements > most) {
        return Err(Failure::xml());
    }
    if !is_rewritten {
        return Ok(document);
    }
    let reserved = window.try_reserve(size).ok_or_else(Failure::no_memory)?;
    let mut text = Vec::with_capacity(size);
    for piece in Pieces(&document) {
        piece?.write(&mut |bytes| text.extend_from_slice(bytes));
    }
    Ok(reserved.attach(text))
}

/// Whether text is the start tag of an element of this name.
fn opens(text: &[u8], name: &str) -> bool {
    let Some(rest) = text.strip_prefix(b"<").and_then(|rest| rest.strip_prefix(name.as_bytes())) else {
        return false;
    };
    rest.first().is_none_or(|byte| matches!(byte, b'>' | b'/') || byte.is_ascii_whitespace())
}

fn escaped(byte: &u8) -> &[u8] {
    match byte {
        b'<' => b"&lt;",
        b'&' => b"&amp;",
        other => std::slice::from_ref(other),
    }
}

enum Piece<'a> {
    /// A tag with the text behind it, a comment, a processing instruction: as it is.
    Plain(&'a [u8]),
    /// What a CDATA section holds.
    Quoted(&'a [u8]),
    /// The start tag of a checksum that the reader does not know: what stands behind its name.
    Begin(Algorithm, &'a [u8]),
    /// The end tag of one: what stands behind its name.
    End(&'a [u8]),
}

impl<'a> Piece<'a> {
    /// A piece that begins with a tag.
    fn of_tag(text: &'a [u8]) -> Self {
        let begin = text.strip_prefix(b"<").unwrap_or(text);
        let (is_end, named) = begin.strip_prefix(b"/").map_or((false, begin), |named| (true, named));
        // Most names are no longer looked at.
        if !named.starts_with(b"Checksum") {
            return Self::Plain(text);
        }
        let is_behind = |byte: &u8| matches!(byte, b'>' | b'/') || byte.is_ascii_whitespace();
        let (name, rest) = named.split_at(named.iter().position(is_behind).unwrap_or(named.len()));
        match elements::foreign(name) {
            None => Self::Plain(text),
            Some(_) if is_end => Self::End(rest),
            Some(algorithm) => Self::Begin(algorithm, rest),
        }
    }

    /// Writes what the reader may read in its place.
    fn write(&self, out: &mut impl FnMut(&[u8])) {
        match self {
            Self::Plain(text) => out(text),
            Self::Quoted(text) => text.iter().for_each(|byte| out(escaped(byte))),
            Self::Begin(algorithm, rest) => {
                let (tag, text) = rest.split_at(rest.iter().position(|b| *b == b'>').map_or(0, |at| at + 1));
                for piece in [b"<", elements::CARRIER.as_bytes(), tag] {
                    out(piece);
                }
                // An empty element has no text.
                if !tag.ends_with(b"/>") {
                    out(algorithm.name().as_bytes());
                    out(b":");
                }
                out(text);
            }
            Self::End(rest) => [b"</", elements::CARRIER.as_bytes(), rest].into_iter().for_each(out),
        }
    }
}

/// A document from one piece of markup to the next.
struct Pieces<'a>(&'a [u8]);

impl<'a> Pieces<'a> {
    /// Takes what ends with `close`, which does not begin within the first `from` bytes.
    fn take_through(&mut self, from: usize, close: &[u8]) -> Result<&'a [u8]> {
        let inside = self.0.get(from..).unwrap_or_default();
        let at = inside.windows(close.len()).position(|window| window == close).ok_or_else(Failure::xml)?;
        let (piece, rest) = self.0.split_at(from + at + close.len());
        self.0 = rest;
        Ok(piece)
    }

    fn piece(&mut self) -> Result<Piece<'a>> {
        if self.0.starts_with(CDATA_OPEN) {
            let section = self.take_through(CDATA_OPEN.len(), CDATA_CLOSE)?;
            return Ok(Piece::Quoted(&section[CDATA_OPEN.len()..section.len() - CDATA_CLOSE.len()]));
        }
        if self.0.starts_with(b"<!--") {
            return Ok(Piece::Plain(self.take_through(4, b"-->")?));
        }
        if self.0.starts_with(b"<?") {
            return Ok(Piece::Plain(self.take_through(2, b"?>")?));
        }
        // A document type may redefine what text means.
        if self.0.starts_with(b"<!") {
            return Err(Failure::xml());
        }
        let next = self.0.iter().skip(1).position(|byte| *byte == b'<');
        let (piece, rest) = self.0.split_at(next.map_or(self.0.len(), |at| at + 1));
        self.0 = rest;
        Ok(Piece::of_tag(piece))
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let piece = self.piece();
        if piece.is_err() {
            self.0 = &[];
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tradewind_core::testing::context;

    fn rewritten(operation: Operation, text: &str) -> Result<String> {
        let bytes = readable(operation, Bytes::copy_from_slice(text.as_bytes()), &context().window)?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn sections_become_text_and_nothing_else_changes() {
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
            let refused = rewritten(Operation::DeleteObjects, text).unwrap_err();
            assert_eq!(refused.code(), crate::error::Code::MalformedXml, "{text}");
        }
    }

    #[test]
    fn checksums_get_names_that_the_reader_knows() {
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
    fn lists_end_somewhere() {
        for (operation, element, most) in [
            (Operation::DeleteObjects, "<Object/>", 1000),
            (Operation::DeleteObjects, "<Object><ObjectX/></Object>", 1000),
            (Operation::CompleteMultipartUpload, "<Part\n><PartNumber>1</PartNumber></Part>", 10_000),
        ] {
            assert!(rewritten(operation, &element.repeat(most)).is_ok(), "{element}");
            assert!(rewritten(operation, &element.repeat(most + 1)).is_err(), "{element}");
        }
        assert!(rewritten(Operation::CreateBucket, &"<Part/>".repeat(10_001)).is_ok());
    }

    proptest! {
        #[test]
        fn any_text(pieces in prop::collection::vec(
            prop_oneof![
                Just("<![CDATA["), Just("]]>"), Just("<!--"), Just("-->"), Just("<?"), Just("?>"),
                Just("<Object"), Just(">"), Just("&"), Just("ü"), Just(" "), Just("<ChecksumMD5"),
                Just("</ChecksumMD5>"),
            ], 0..20)) {
            let text = pieces.concat();
            if let Ok(readable) = rewritten(Operation::DeleteObjects, &text) {
                // A second time there is nothing left to do.
                prop_assert_eq!(rewritten(Operation::DeleteObjects, &readable).ok(), Some(readable));
            }
        }
    }
}
