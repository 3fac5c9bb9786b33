//! What the listings have in common, of keys, buckets, uploads and parts: the size of a page, how names are
//! written in it, and the token that names where the next one begins. A token holds that name itself, so that
//! nothing is kept between two pages and a token outlives a restart.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::EncodingType;

use super::failure::{Failure, Result};

/// The most entries of one page of keys, uploads or parts.
pub(super) const MAX_ENTRIES: i32 = 1000;

/// What `encoding-type=url` leaves as it is.
const URL_SAFE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// The one-byte head of a token: its form.
const TOKEN_FORM: u8 = 1;

/// A page's size: not negative, cut at S3's most.
pub(super) fn limit(asked: Option<i32>, name: &str) -> Result<i32> {
    match asked {
        None => Ok(MAX_ENTRIES),
        Some(limit) if limit < 0 => {
            Err(Failure::argument(format!("Argument {name} must be an integer between 0 and 2147483647")))
        }
        Some(limit) => Ok(limit.min(MAX_ENTRIES)),
    }
}

/// How names are written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Encoding {
    Plain,
    Url,
}

impl Encoding {
    /// Reads `encoding-type`.
    pub(super) fn of(asked: Option<&EncodingType>) -> Result<Self> {
        match asked.map(EncodingType::as_str) {
            None | Some("") => Ok(Self::Plain),
            Some(EncodingType::URL) => Ok(Self::Url),
            Some(_) => Err(Failure::argument("Invalid Encoding Method specified in Request")),
        }
    }

    /// Writes a name.
    pub(super) fn apply(self, name: &str) -> String {
        match self {
            Self::Plain => name.to_owned(),
            Self::Url => utf8_percent_encode(name, URL_SAFE).to_string(),
        }
    }
}

/// A token that names where the next page begins: opaque to clients.
pub(super) fn encode_token(after: &str) -> String {
    let mut bytes = vec![TOKEN_FORM];
    bytes.extend_from_slice(after.as_bytes());
    BASE64URL.encode(bytes)
}

/// Reads a token of ours.
pub(super) fn decode_token(token: &str) -> Result<String> {
    let refuse = || Failure::argument("The continuation token provided is incorrect");
    let bytes = BASE64URL.decode(token).map_err(|_| refuse())?;
    match bytes.split_first() {
        Some((&TOKEN_FORM, after)) if !after.is_empty() => {
            std::str::from_utf8(after).map(str::to_owned).map_err(|_| refuse())
        }
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        assert_eq!(decode_token(&encode_token("a/ü")).unwrap(), "a/ü");
        for bad in ["", "garbage", "!!!", "AAAA", &BASE64URL.encode([TOKEN_FORM])] {
            assert!(decode_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn encoding_leaves_slashes() {
        assert_eq!(Encoding::Url.apply("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }
}
