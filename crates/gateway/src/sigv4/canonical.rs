//! The canonical request: the one text that client and server both derive from a request and sign.
//! S3's variant: the path is encoded once, whatever way the client encoded it on the wire.

use std::ops::Range;

use http::{HeaderMap, Method};

use super::credential::does_not_match;
use super::hex::digit;
use crate::error::{Code, WireError};

/// The request's parts that are signed.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a Method,
    /// As on the wire.
    pub(crate) path: &'a str,
    /// As on the wire.
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
    /// Names joined by `;`.
    pub(crate) names: &'a str,
    /// The hash of the body, or the word instead of it.
    pub(crate) payload: &'a [u8],
}

impl Signed<'_> {
    /// The canonical request.
    pub(crate) fn text(&self) -> Result<Vec<u8>, WireError> {
        let mut text = Vec::with_capacity(512 + self.path.len() + self.query.map_or(0, str::len));
        text.extend_from_slice(self.method.as_str().as_bytes());
        text.push(b'\n');
        encode(self.path.as_bytes(), Place::Path, &mut text)?;
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

    fn write_header(&self, name: &str, text: &mut Vec<u8>) -> Result<(), WireError> {
        // A name that is signed but not there was taken away on the way.
        let mut values = self.headers.get_all(name).iter();
        let first = values.next().ok_or_else(does_not_match)?;
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

/// Refuses names that are not in the one form that the signature's text has: in lower case, in ascending
/// order, each once, no more than there are headers. Other names would make that text longer than the
/// request by a factor of the client's choice.
pub(crate) fn check_names(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let mut last = "";
    for (n, name) in names.split(';').enumerate() {
        if name <= last || name.bytes().any(|c| c.is_ascii_uppercase()) || n >= headers.keys_len() {
            return Err(does_not_match());
        }
        last = name;
    }
    Ok(())
}

/// Refuses a request with a header that matters and is not signed.
pub(crate) fn check_coverage(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let signed = |name: &str| names.split(';').any(|n| n == name);
    let matters =
        |name: &str| name.starts_with("x-amz-") || name.starts_with("x-dss-") || name == "content-md5";
    let uncovered = headers.keys().map(http::HeaderName::as_str).any(|name| matters(name) && !signed(name));
    if uncovered || !signed("host") {
        return Err(WireError::new(
            Code::AccessDenied,
            "There were headers present in the request which were not signed",
        ));
    }
    Ok(())
}

/// Trims a value and folds runs of blanks within it into one.
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
fn write_query(query: &str, text: &mut Vec<u8>) -> Result<(), WireError> {
    let mut encoded = Vec::with_capacity(query.len() + 16);
    let mut pairs: Vec<(Range<usize>, Range<usize>)> = Vec::with_capacity(8);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == "X-Amz-Signature" {
            continue;
        }
        let start = encoded.len();
        encode(name.as_bytes(), Place::Query, &mut encoded)?;
        let middle = encoded.len();
        encode(value.as_bytes(), Place::Query, &mut encoded)?;
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
enum Place {
    /// `/` stays, also where it came encoded.
    Path,
    /// `+` is a space.
    Query,
}

/// Brings text that is encoded in any way into the one canonical encoding.
fn encode(text: &[u8], place: Place, out: &mut Vec<u8>) -> Result<(), WireError> {
    let mut at = 0;
    while at < text.len() {
        let run = text[at..].iter().position(|c| !is_unreserved(*c)).unwrap_or(text.len() - at);
        out.extend_from_slice(&text[at..at + run]);
        at += run;
        let Some(&c) = text.get(at) else { break };
        let (byte, length) = match c {
            b'%' => (percent_byte(&text[at..]).ok_or_else(bad_escape)?, 3),
            b'+' if place == Place::Query => (b' ', 1),
            other => (other, 1),
        };
        at += length;
        if is_unreserved(byte) || (byte == b'/' && place == Place::Path) {
            out.push(byte);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
    Ok(())
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

fn bad_escape() -> WireError {
    WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.")
}

const fn is_unreserved(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(text: &str, place: Place) -> String {
        let mut out = Vec::new();
        encode(text.as_bytes(), place, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn encodings() {
        assert_eq!(encoded("/b/a b+c~%7e%2f%c3%a9=", Place::Path), "/b/a%20b%2Bc~~/%C3%A9%3D");
        assert_eq!(encoded("a/b+c%2B", Place::Query), "a%2Fb%20c%2B");
        for bad in ["%", "%2", "%zz", "abc%"] {
            assert_eq!(
                encode(bad.as_bytes(), Place::Path, &mut Vec::new()).unwrap_err().code(),
                Code::InvalidUri
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
    fn names_have_one_form() {
        let headers: HeaderMap = ["host", "x-amz-date", "content-type"]
            .map(|name| (http::HeaderName::from_static(name), http::HeaderValue::from_static("v")))
            .into_iter()
            .collect();
        let check = |names| check_names(&headers, names).map_err(|e| e.code());
        assert_eq!(check("host"), Ok(()));
        assert_eq!(check("content-type;host;x-amz-date"), Ok(()));
        for names in
            ["", "host;host", "x-amz-date;host", "Host;host", "host;", ";host", "a;b;content-type;host"]
        {
            assert_eq!(check(names), Err(Code::SignatureDoesNotMatch), "{names}");
        }
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
            for place in [Place::Path, Place::Query] {
                let once = encoded(&raw, place);
                prop_assert_eq!(encoded(&once, place), once);
            }
        }
    }
}
