//! The common parts of the listings of keys, buckets, uploads and parts: the page size, the encoding of names, and the
//! continuation token. A token contains the position after which the next page begins, so that no state is kept between
//! pages and a token survives a restart. In front of a service, the position includes the service's own token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::EncodingType;

use tradewind_core::error::Error;
use tradewind_core::listing::ListPosition;

use super::failure::{Failure, Result};

/// The maximum number of entries of one page of keys, uploads or parts.
pub(super) const MAX_ENTRIES: i32 = 1000;

/// The characters that `encoding-type=url` does not encode.
const URL_SAFE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// The first byte of a token with a name only: the version of its format.
const NAME_VERSION: u8 = 1;
/// The first byte of a token that contains a service's token, too: its length in two bytes, the token, the name.
const SERVICE_TOKEN_VERSION: u8 = 2;

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

/// A token for the page after the given position; opaque to clients.
///
/// # Errors
/// `Unsupported` if the token of the service is longer than 64 KiB.
pub(super) fn encode_token(after: &ListPosition) -> Result<String> {
    let ListPosition { name, token } = after;
    let mut bytes = Vec::new();
    match token {
        None => bytes.push(NAME_VERSION),
        Some(token) => {
            let length = u16::try_from(token.len())
                .map_err(|_| Error::unsupported("continue a listing whose token is this long"))?;
            bytes.push(SERVICE_TOKEN_VERSION);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(token.as_bytes());
        }
    }
    bytes.extend_from_slice(name.as_bytes());
    Ok(BASE64URL.encode(bytes))
}

/// Parses a token.
pub(super) fn decode_token(token: &str) -> Result<ListPosition> {
    let invalid = || {
        let message = "The continuation token provided is incorrect";
        Failure::invalid_argument(message, "continuation-token", token)
    };
    let bytes = BASE64URL.decode(token).map_err(|_| invalid())?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| invalid());
    match bytes.split_first() {
        Some((&NAME_VERSION, name)) if !name.is_empty() => Ok(ListPosition::after(text(name)?)),
        Some((&SERVICE_TOKEN_VERSION, rest)) => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(invalid)?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (token, name) = rest.split_at_checked(length).filter(|_| length > 0).ok_or_else(invalid)?;
            Ok(ListPosition { name: text(name)?, token: Some(text(token)?) })
        }
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_decode_to_their_position() {
        let service = |name: &str| ListPosition { name: name.to_owned(), token: Some("t/1".to_owned()) };
        for position in [ListPosition::after("a/ü"), service("a/ü"), service("")] {
            let token = encode_token(&position).unwrap();
            assert_eq!(decode_token(&token).unwrap(), position);
        }
        let encoded = |bytes: &[u8]| BASE64URL.encode(bytes);
        let [name_only, no_length, no_token, short] =
            [&[1][..], &[2, 0], &[2, 0, 0, b'a'], &[2, 0, 9, b'a']].map(encoded);
        for bad in ["", "garbage", "!!!", "AAAA", &name_only, &no_length, &no_token, &short] {
            assert!(decode_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn url_encoding_retains_slashes() {
        assert_eq!(NameEncoding::Url.encode("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }
}
