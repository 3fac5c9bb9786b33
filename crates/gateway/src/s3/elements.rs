//! XML elements of checksums whose algorithms `s3s` does not support: SHA-512, MD5 and the XXH family. Their values are
//! encoded in the field of SHA-256 with the algorithm's name: `SHA512:value`, several separated by spaces. Base64
//! contains neither colons nor spaces. In requests, an element such as `ChecksumSHA512` is renamed to the one that
//! `s3s` reads; in responses, each entry becomes an element of its own.

use std::fmt::Write as _;

use bytes::Bytes;
use tradewind_core::Algorithm;

/// The element that carries the values through `s3s`.
pub(super) const CARRIER_ELEMENT: &str = "ChecksumSHA256";

/// Adds a value to the field of SHA-256.
pub(super) fn add(field: &mut Option<String>, algorithm: Algorithm, value: &str) {
    let text = field.get_or_insert_default();
    if !text.is_empty() {
        text.push(' ');
    }
    if algorithm != Algorithm::Sha256 {
        text.push_str(algorithm.name());
        text.push(':');
    }
    text.push_str(value);
}

/// The algorithm and the value encoded in the field of SHA-256.
pub(super) fn decode_value(field: &str) -> (Algorithm, &str) {
    let named = field.split_once(':').and_then(|(name, value)| Some((name.parse().ok()?, value)));
    named.unwrap_or((Algorithm::Sha256, field))
}

/// The algorithm of an element's name; `None` if it is no checksum, or one that `s3s` supports.
pub(super) fn unsupported_algorithm(element: &[u8]) -> Option<Algorithm> {
    let name = element.strip_prefix(b"Checksum")?;
    let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name().as_bytes() == name)?;
    let is_supported = matches!(
        algorithm,
        Algorithm::Crc32 | Algorithm::Crc32c | Algorithm::Crc64Nvme | Algorithm::Sha1 | Algorithm::Sha256
    );
    (!is_supported).then_some(algorithm)
}

/// Expands the encoded values of a document written by `s3s` into one element each.
pub(super) fn expand_values(document: Bytes) -> Bytes {
    let (open, close) = (format!("<{CARRIER_ELEMENT}>"), format!("</{CARRIER_ELEMENT}>"));
    let Ok(text) = std::str::from_utf8(&document) else { return document };
    // Other documents are not copied.
    let is_needed = text.split(&open).skip(1).any(|rest| {
        let field = rest.split('<').next().unwrap_or_default();
        field.contains([':', ' '])
    });
    if !is_needed {
        return document;
    }
    let mut pieces = text.split(&open);
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    out.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (field, rest) = piece.split_once(&close).unwrap_or((piece, ""));
        for entry in field.split(' ') {
            let (algorithm, value) = decode_value(entry);
            let name = algorithm.name();
            let _ = write!(out, "<Checksum{name}>{value}</Checksum{name}>");
        }
        out.push_str(rest);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread_text(text: &str) -> String {
        String::from_utf8(expand_values(Bytes::copy_from_slice(text.as_bytes())).to_vec()).unwrap()
    }

    #[test]
    fn encoded_values_expand_to_one_element_each() {
        let mut field = None;
        for algorithm in [Algorithm::Sha512, Algorithm::Sha256, Algorithm::XxHash3] {
            add(&mut field, algorithm, "v+/=-2");
        }
        let field = field.unwrap();
        let document = format!(
            "<Part>é<{CARRIER_ELEMENT}>{field}</{CARRIER_ELEMENT}><Size>1</Size></Part><Part></Part>"
        );
        let expected = "<Part>é<ChecksumSHA512>v+/=-2</ChecksumSHA512><ChecksumSHA256>v+/=-2</ChecksumSHA256>\
                        <ChecksumXXHASH3>v+/=-2</ChecksumXXHASH3><Size>1</Size></Part><Part></Part>";
        assert_eq!(spread_text(&document), expected);
    }

    #[test]
    fn documents_without_encoded_values_are_unchanged() {
        for text in ["<a>b</a>", "<ChecksumSHA256>abc=</ChecksumSHA256>", "", "<ChecksumSHA256>", "a: b"] {
            assert_eq!(spread_text(text), text);
        }
    }

    #[test]
    fn only_elements_unsupported_by_s3s_are_foreign() {
        let foreign_names = Algorithm::ALL.into_iter().filter(|algorithm| {
            unsupported_algorithm(format!("Checksum{}", algorithm.name()).as_bytes()) == Some(*algorithm)
        });
        assert_eq!(foreign_names.count(), 5);
        for name in ["ChecksumSHA256", "ChecksumType", "Checksum", "SHA512", "ChecksumSHA5", "Checksumsha512"]
        {
            assert_eq!(unsupported_algorithm(name.as_bytes()), None, "{name}");
        }
        assert_eq!(decode_value("MD5:abc"), (Algorithm::Md5, "abc"));
        assert_eq!(decode_value("abc="), (Algorithm::Sha256, "abc="));
        assert_eq!(decode_value("X:abc"), (Algorithm::Sha256, "X:abc"));
    }
}
