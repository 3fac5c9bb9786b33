//! An XML document on its way to `s3s`: read whole, held against what was promised of it, and brought into
//! the part of XML that the reader of `s3s` reads. That reader drops CDATA sections without a word, and with
//! them a piece of a key: here they become escaped text, which says the same. Comments and processing
//! instructions need nothing: XML has them count for nothing within a value, and so they do there.
//!
//! What would decode into many times its size is refused before: more elements of a list than the
//! operation takes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tradewind_core::Window;

use super::call::Call;
use super::checksums::Plan;
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
        match piece? {
            Piece::Plain(text) => {
                size += text.len();
                elements += usize::from(operation.list().is_some_and(|(name, _)| opens(text, name)));
            }
            Piece::Quoted(text) => {
                size += text.iter().map(|byte| escaped(byte).len()).sum::<usize>();
                is_rewritten = true;
            }
        }
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
        match piece? {
            Piece::Plain(plain) => text.extend_from_slice(plain),
            Piece::Quoted(quoted) => quoted.iter().for_each(|byte| text.extend_from_slice(escaped(byte))),
        }
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
        Ok(Piece::Plain(piece))
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
                Just("<Object"), Just(">"), Just("&"), Just("ü"), Just(" "),
            ], 0..20)) {
            let text = pieces.concat();
            if let Ok(readable) = rewritten(Operation::DeleteObjects, &text) {
                // A second time there is nothing left to do.
                prop_assert_eq!(rewritten(Operation::DeleteObjects, &readable).ok(), Some(readable));
            }
        }
    }
}
