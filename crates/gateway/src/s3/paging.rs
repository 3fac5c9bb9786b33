//! The common parts of the listings of keys, buckets, uploads and parts: the page size, the encoding of names, and the
//! continuation token. A token contains the name after which the next page begins, so that no state is kept between
//! pages and a token survives a restart.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::EncodingType;

use super::failure::{Failure, Result};

/// The maximum number of entries of one page of keys, uploads or parts.
pub(super) const MAX_ENTRIES: i32 = 1000;

/// The characters that `encoding-type=url` does not encode.
const URL_SAFE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// The first byte of a token: the version of its format.
const TOKEN_VERSION: u8 = 1;

/// A page's size, at most S3's maximum. Fails if it is negative.
pub(super) fn page_size(requested: Option<i32>, name: &str) -> Result<i32> {
    match requested {
        None => Ok(MAX_ENTRIES),
        Some(limit) if limit < 0 => Err(Failure::invalid_argument(
            format!("Argument {name} must be an integer between 0 and 2147483647"),
            name,
            &limit.to_string(),
        )),
        Some(limit) => Ok(limit.min(MAX_ENTRIES)),
    }
}

/// The encoding of names in a listing.
#[derive(Debug, Clone, Copy)]
pub(super) enum NameEncoding {
    Plain,
    Url,
}

impl NameEncoding {
    /// Parses `encoding-type`.
    pub(super) fn parse(requested: Option<&EncodingType>) -> Result<Self> {
        match requested.map(EncodingType::as_str) {
            None | Some("") => Ok(Self::Plain),
            Some(EncodingType::URL) => Ok(Self::Url),
            Some(other) => Err(Failure::invalid_argument(
                "Invalid Encoding Method specified in Request",
                "encoding-type",
                other,
            )),
        }
    }

    /// Encodes a name.
    pub(super) fn encode(self, name: &str) -> String {
        match self {
            Self::Plain => name.to_owned(),
            Self::Url => utf8_percent_encode(name, URL_SAFE).to_string(),
        }
    }
}

/// A token for the page after the given name; opaque to clients.
pub(super) fn encode_token(after: &str) -> String {
    let mut bytes = vec![TOKEN_VERSION];
    bytes.extend_from_slice(after.as_bytes());
    BASE64URL.encode(bytes)
}

/// Parses a token.
pub(super) fn decode_token(token: &str) -> Result<String> {
    let invalid = || {
        let message = "The continuation token provided is incorrect";
        Failure::invalid_argument(message, "continuation-token", token)
    };
    let bytes = BASE64URL.decode(token).map_err(|_| invalid())?;
    match bytes.split_first() {
        Some((&TOKEN_VERSION, after)) if !after.is_empty() => {
            std::str::from_utf8(after).map(str::to_owned).map_err(|_| invalid())
        }
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_decode_to_their_name() {
        assert_eq!(decode_token(&encode_token("a/ü")).unwrap(), "a/ü");
        for bad in ["", "garbage", "!!!", "AAAA", &BASE64URL.encode([TOKEN_VERSION])] {
            assert!(decode_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn url_encoding_retains_slashes() {
        assert_eq!(NameEncoding::Url.encode("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }
}
