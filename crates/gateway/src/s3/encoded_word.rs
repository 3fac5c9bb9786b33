//! RFC 2047 encoded words: how S3 answers metadata that is not printable ASCII. Values are kept as they
//! were sent; only the answer encodes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderValue;

/// Bytes of UTF-8 in one word: with its frame a word stays under the RFC's 75 characters.
const WORD_BYTES: usize = 45;

/// A header value for the text: itself where it is printable ASCII, else encoded words.
pub(super) fn header_value(text: &str) -> HeaderValue {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && let Ok(value) = HeaderValue::from_str(text)
    {
        return value;
    }
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut cut = rest.len().min(WORD_BYTES);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        let (word, behind) = rest.split_at(cut);
        words.push(format!("=?UTF-8?B?{}?=", BASE64.encode(word)));
        rest = behind;
    }
    HeaderValue::try_from(words.join(" ")).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_stays_and_the_rest_is_encoded() {
        assert_eq!(header_value("a  b, =?x"), "a  b, =?x");
        assert_eq!(header_value(""), "");
        assert_eq!(header_value("Grüße"), "=?UTF-8?B?R3LDvMOfZQ==?=");
        let long = "日本".repeat(20);
        let value = header_value(&long);
        let decoded: Vec<u8> = value
            .to_str()
            .unwrap()
            .split(' ')
            .flat_map(|word| {
                assert!(word.len() <= 75);
                BASE64.decode(word.strip_prefix("=?UTF-8?B?").unwrap().strip_suffix("?=").unwrap()).unwrap()
            })
            .collect();
        assert_eq!(String::from_utf8(decoded).unwrap(), long);
    }
}
