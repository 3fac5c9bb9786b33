//! The canonical request: the text that client and server both derive from a request and sign. In S3's variant, the
//! path is encoded once, however the client encoded it on the wire.

use std::ops::Range;

use http::{HeaderMap, Method};

use super::hex::digit;

/// The reason for which a request has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    /// Two hexadecimal digits must follow each `%`.
    #[error("a percent sign in the path or the query is not followed by two hexadecimal digits")]
    Escape,
    /// A signed header is missing.
    #[error("a signed header is missing")]
    MissingHeader,
    /// A time outside of the years with four digits.
    #[error("the time cannot be written as a date")]
    Date,
    /// A character that is not allowed in headers.
    #[error("the access key or the token contains a character that is not allowed in headers")]
    Header,
}

/// The signed parts of a request.
pub struct SignedParts<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path as on the wire.
    pub path: &'a str,
    /// The query as on the wire.
    pub query: Option<&'a str>,
    /// All headers of the request.
    pub headers: &'a HeaderMap,
    /// The names of the signed headers, joined by `;`.
    pub names: &'a str,
    /// The hash of the body, or the keyword in its place.
    pub payload: &'a [u8],
}

impl SignedParts<'_> {
    /// The canonical request.
    #[inline]
    pub fn text(&self) -> Result<Vec<u8>, NotCanonical> {
        let mut text = Vec::with_capacity(512 + self.path.len() + self.query.map_or(0, str::len));
        text.extend_from_slice(self.method.as_str().as_bytes());
        text.push(b'\n');
        encode(self.path.as_bytes(), EncodingTarget::Path, &mut text)?;
        if self.path.is_empty() {
            text.push(b'/');
        }
        text.push(b'\n');
        if let Some(query) = self.query {
            write_query(query, &mut text)?;
        }
        text.push(b'\n');
        for name in self.names.split(';') {
            self.write_header(name, &mut text)?;
        }
        text.push(b'\n');
        text.extend_from_slice(self.names.as_bytes());
        text.push(b'\n');
        text.extend_from_slice(self.payload);
        Ok(text)
    }

    fn write_header(&self, name: &str, text: &mut Vec<u8>) -> Result<(), NotCanonical> {
        // A signed header that is missing was removed in transit.
        let mut values = self.headers.get_all(name).iter();
        let first = values.next().ok_or(NotCanonical::MissingHeader)?;
        text.extend_from_slice(name.as_bytes());
        text.push(b':');
        write_folded(first.as_bytes(), text);
        for value in values {
            text.push(b',');
            write_folded(value.as_bytes(), text);
        }
        text.push(b'\n');
        Ok(())
    }
}

/// Trims a value and folds each run of blanks within it into one.
fn write_folded(value: &[u8], text: &mut Vec<u8>) {
    let blank = |c: &u8| matches!(c, b' ' | b'\t');
    let value = value.trim_ascii();
    if !value.windows(2).any(|pair| blank(&pair[0]) && blank(&pair[1])) {
        text.extend_from_slice(value);
        return;
    }
    let mut last_blank = false;
    for c in value {
        if !(last_blank && blank(c)) {
            text.push(if blank(c) { b' ' } else { *c });
        }
        last_blank = blank(c);
    }
}

/// Parameters in order of their encoded names, then values, without the signature itself.
fn write_query(query: &str, text: &mut Vec<u8>) -> Result<(), NotCanonical> {
    let mut encoded = Vec::with_capacity(query.len() + 16);
    let mut pairs: Vec<(Range<usize>, Range<usize>)> = Vec::with_capacity(8);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == "X-Amz-Signature" {
            continue;
        }
        let start = encoded.len();
        encode(name.as_bytes(), EncodingTarget::Query, &mut encoded)?;
        let middle = encoded.len();
        encode(value.as_bytes(), EncodingTarget::Query, &mut encoded)?;
        pairs.push((start..middle, middle..encoded.len()));
    }
    pairs.sort_by(|a, b| {
        encoded[a.0.clone()]
            .cmp(&encoded[b.0.clone()])
            .then_with(|| encoded[a.1.clone()].cmp(&encoded[b.1.clone()]))
    });
    for (i, (name, value)) in pairs.into_iter().enumerate() {
        if i > 0 {
            text.push(b'&');
        }
        text.extend_from_slice(&encoded[name]);
        text.push(b'=');
        text.extend_from_slice(&encoded[value]);
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EncodingTarget {
    /// `/` stays, even if it was percent-encoded.
    Path,
    /// `+` is a space.
    Query,
}

/// Converts text in any encoding into the canonical one.
fn encode(text: &[u8], place: EncodingTarget, out: &mut Vec<u8>) -> Result<(), NotCanonical> {
    let mut at = 0;
    while at < text.len() {
        let run = text[at..].iter().position(|c| !is_unreserved(*c)).unwrap_or(text.len() - at);
        out.extend_from_slice(&text[at..at + run]);
        at += run;
        let Some(&c) = text.get(at) else { break };
        let (byte, length) = match c {
            b'%' => (percent_byte(&text[at..]).ok_or(NotCanonical::Escape)?, 3),
            b'+' if place == EncodingTarget::Query => (b' ', 1),
            other => (other, 1),
        };
        at += length;
        push(byte, place, out);
    }
    Ok(())
}

fn push(byte: u8, place: EncodingTarget, out: &mut Vec<u8>) {
    if is_unreserved(byte) || (byte == b'/' && place == EncodingTarget::Path) {
        out.push(byte);
    } else {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Adds a key to a path in its canonical encoding: slashes stay.
pub fn encode_path(key: &str, out: &mut Vec<u8>) {
    key.bytes().for_each(|byte| push(byte, EncodingTarget::Path, out));
}

/// Adds a name or a value to a query in its canonical encoding.
pub fn encode_query(text: &str, out: &mut Vec<u8>) {
    text.bytes().for_each(|byte| push(byte, EncodingTarget::Query, out));
}

const fn percent_byte(text: &[u8]) -> Option<u8> {
    if text.len() < 3 {
        return None;
    }
    match (digit(text[1]), digit(text[2])) {
        (Some(high), Some(low)) => Some(high << 4 | low),
        _ => None,
    }
}

const fn is_unreserved(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(text: &str, place: EncodingTarget) -> String {
        let mut out = Vec::new();
        encode(text.as_bytes(), place, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn encodings() {
        assert_eq!(encoded("/b/a b+c~%7e%2f%c3%a9=", EncodingTarget::Path), "/b/a%20b%2Bc~~/%C3%A9%3D");
        assert_eq!(encoded("a/b+c%2B", EncodingTarget::Query), "a%2Fb%20c%2B");
        for bad in ["%", "%2", "%zz", "abc%"] {
            assert_eq!(
                encode(bad.as_bytes(), EncodingTarget::Path, &mut Vec::new()).unwrap_err(),
                NotCanonical::Escape
            );
        }
    }

    #[test]
    fn queries_sort_by_encoded_name_then_value() {
        let mut text = Vec::new();
        write_query("b=2&a=2&a=1&delete&X-Amz-Signature=zz&A=%20&a-b=", &mut text).unwrap();
        assert_eq!(text, b"A=%20&a=1&a=2&a-b=&b=2&delete=".as_slice());
    }

    #[test]
    fn values_fold() {
        let folded = |v: &str| {
            let mut out = Vec::new();
            write_folded(v.as_bytes(), &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(folded("  a   b \t c  "), "a b c");
        assert_eq!(folded("plain"), "plain");
    }

    proptest! {
        #[test]
        fn encoding_is_idempotent(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            let raw: String = bytes.iter().map(|b| format!("%{b:02x}")).collect();
            for place in [EncodingTarget::Path, EncodingTarget::Query] {
                let once = encoded(&raw, place);
                prop_assert_eq!(encoded(&once, place), once);
            }
        }
    }
}
