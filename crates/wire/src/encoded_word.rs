//! RFC 2047 encoded words, in which S3 returns metadata that is not printable ASCII. Metadata is stored as sent; it is
//! encoded only in responses, and decoded by their reader.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderValue;

/// The limit of bytes of UTF-8 in one word: with its framing, a word stays under the RFC's 75 characters.
const MAX_WORD_BYTES: usize = 45;

/// The header value of a text: unchanged if it is printable ASCII, else encoded words.
#[must_use]
pub fn encode(text: &str) -> HeaderValue {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && let Ok(value) = HeaderValue::from_str(text)
    {
        return value;
    }
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut cut = rest.len().min(MAX_WORD_BYTES);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        let (word, behind) = rest.split_at(cut);
        words.push(format!("=?UTF-8?B?{}?=", BASE64.encode(word)));
        rest = behind;
    }
    HeaderValue::try_from(words.join(" ")).unwrap_or(HeaderValue::from_static(""))
}

/// Decodes encoded words. Other text is unchanged.
#[must_use]
pub fn decode(text: String) -> String {
    let words: Option<Vec<Vec<u8>>> = text.split(' ').map(decode_word).collect();
    words.and_then(|words| String::from_utf8(words.concat()).ok()).unwrap_or(text)
}

fn decode_word(word: &str) -> Option<Vec<u8>> {
    let inner = word.strip_prefix("=?")?.strip_suffix("?=")?;
    let (charset, inner) = inner.split_once('?')?;
    let (encoding, content) = inner.split_once('?')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    match encoding {
        "B" | "b" => BASE64.decode(content).ok(),
        "Q" | "q" => quoted_printable(content),
        _ => None,
    }
}

fn quoted_printable(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        bytes.push(match first {
            b'_' => b' ',
            b'=' => {
                let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
                rest = &behind[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_non_ascii_text_is_encoded() {
        assert_eq!(encode("a  b, =?x"), "a  b, =?x");
        assert_eq!(encode(""), "");
        assert_eq!(encode("Grüße"), "=?UTF-8?B?R3LDvMOfZQ==?=");
        let long = encode(&"日本".repeat(20));
        assert!(long.to_str().unwrap().split(' ').all(|word| word.len() <= 75));
    }

    #[test]
    fn encoded_words_are_read() {
        for (text, expected) in [
            ("=?UTF-8?B?R3LDvMOfZQ==?=", "Grüße"),
            ("=?UTF-8?Q?Gr=C3=BC_=C3=9F?=", "Grü ß"),
            ("=?UTF-8?B?R3I=?= =?utf-8?b?w7w=?=", "Grü"),
            ("plain =?UTF-8?B?R3I=?=", "plain =?UTF-8?B?R3I=?="),
            ("=?UTF-8?B?***?=", "=?UTF-8?B?***?="),
            ("=?latin1?Q?a?=", "=?latin1?Q?a?="),
        ] {
            assert_eq!(decode(text.to_owned()), expected);
        }
    }

    proptest! {
        #[test]
        fn encoded_text_decodes_to_itself(text in "\\PC*") {
            // Text that looks like an encoded word is decoded as one, as with S3.
            prop_assume!(!text.contains("=?"));
            let value = encode(&text);
            prop_assert_eq!(decode(value.to_str().unwrap().to_owned()), text);
        }
    }
}
