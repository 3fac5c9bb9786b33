//! A request's query, decoded once. Names retain their case, and values may be empty. A name may be repeated only with
//! the same value.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use tradewind_core::Algorithm;

use crate::error::{Code, WireError};

/// Parameters of a presigned URL that belong to the signature itself.
const SIGNATURE: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// The maximum number of query parameters: several times what any operation uses. Bounds their quadratic comparison.
const MAX_PARAMETERS: usize = 100;

/// The version of a presigned URL's signature.
enum SignatureVersion {
    V2,
    V4,
}

/// Name and value pairs.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes the query of a URI.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, WireError> {
        let items = || query.unwrap_or_default().split('&').filter(|item| !item.is_empty());
        if items().nth(MAX_PARAMETERS).is_some() {
            return Err(WireError::new(
                Code::InvalidArgument,
                format!("A request may have at most {MAX_PARAMETERS} query parameters."),
            ));
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        for item in items() {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            let (name, value) = (form_decode(name)?, form_decode(value)?);
            match pairs.iter().find(|(other, _)| *other == name) {
                None => pairs.push((name, value)),
                Some((_, other)) if *other == value => {}
                Some(_) => {
                    return Err(WireError::new(
                        Code::InvalidArgument,
                        format!("Query parameter {name:?} is given twice."),
                    ));
                }
            }
        }
        Ok(Self(pairs))
    }

    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// All names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns true if it is that of a presigned URL with a checksum of the body by this algorithm, whose value may not be
    /// verified. See [`lift_checksums`](Self::lift_checksums).
    pub(super) fn has_checksum(&self, algorithm: Algorithm) -> bool {
        self.signature_version().is_some()
            && self.names().any(|name| name.eq_ignore_ascii_case(algorithm.header()))
    }

    /// Returns true if it has parameters that `s3s` must not see: those handled before it (signatures) or after it
    /// (`response-*`), and those that it would reject.
    pub(super) fn has_hidden_parameters(&self) -> bool {
        self.0.iter().any(|(name, value)| is_hidden_from_s3s(name, value))
    }

    /// The query without the parameters that `s3s` must not see.
    pub(super) fn without_hidden_parameters(&self) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        let visible = self.0.iter().filter(|(name, value)| !is_hidden_from_s3s(name, value));
        let pairs = visible.map(|(name, value)| {
            let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            format!("{}={}", encode(name), encode(value))
        });
        pairs.collect::<Vec<_>>().join("&")
    }

    /// Adds the headers that a presigned URL has in its query (`x-amz-tagging=...`), as S3 does. Fails if a header has
    /// another value: only one of the two was signed.
    ///
    /// In version 4, checksums are omitted: see [`lift_checksums`](Self::lift_checksums). In version 2, the signature
    /// does not tell a header from a parameter, so that a checksum that was signed as a header may come in the query. The
    /// name of an algorithm alone is omitted in both versions: SDKs sign it without a checksum.
    pub(super) fn lift_headers(&self, headers: &mut HeaderMap) -> Result<(), WireError> {
        match self.signature_version() {
            None => Ok(()),
            Some(SignatureVersion::V2) => self.lift(headers, |name| {
                // The signature of version 2 covers two other headers as well.
                (name.starts_with("x-amz-") && name != SDK_CHECKSUM_ALGORITHM)
                    || matches!(name, "content-md5" | "content-type")
            }),
            Some(SignatureVersion::V4) => {
                self.lift(headers, |name| name.starts_with("x-amz-") && !is_body_checksum(name))
            }
        }
    }

    /// Adds the checksums that [`lift_headers`](Self::lift_headers) omits. Not for a body that is payload: some SDKs sign
    /// the URL before they have the payload, with the checksum of an empty one. A checksum in a header is not affected.
    pub(super) fn lift_checksums(&self, headers: &mut HeaderMap) -> Result<(), WireError> {
        match self.signature_version() {
            None => Ok(()),
            Some(_) => self.lift(headers, is_body_checksum),
        }
    }

    /// The version of the signature that it has.
    fn signature_version(&self) -> Option<SignatureVersion> {
        let has = |name| self.get(name).is_some();
        match (has("X-Amz-Signature"), has("Signature") && has("AWSAccessKeyId")) {
            (true, _) => Some(SignatureVersion::V4),
            (false, true) => Some(SignatureVersion::V2),
            (false, false) => None,
        }
    }

    /// Adds the headers whose names, in lower case, are selected.
    fn lift(&self, headers: &mut HeaderMap, is_selected: impl Fn(&str) -> bool) -> Result<(), WireError> {
        for (name, value) in &self.0 {
            let name = name.to_ascii_lowercase();
            if !is_selected(&name) || SIGNATURE.contains(&name.as_str()) {
                continue;
            }
            let invalid = || {
                WireError::new(
                    Code::InvalidArgument,
                    format!("Query parameter {name} is not a header value."),
                )
            };
            // A header's value has no white space around it, and version 2 signs it without.
            let value = HeaderValue::from_bytes(value.as_bytes().trim_ascii()).map_err(|_| invalid())?;
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            match headers.get(&header) {
                Some(other) if *other != value => {
                    return Err(WireError::new(
                        Code::InvalidRequest,
                        format!("Header {name} contradicts the query parameter of that name."),
                    ));
                }
                Some(_) => {}
                None => {
                    headers.insert(header, value);
                }
            }
        }
        Ok(())
    }
}

/// Parameters that `s3s` parses as numbers or flags.
const NUMBERS_AND_FLAGS: &[&str] =
    &["fetch-owner", "max-buckets", "max-keys", "max-parts", "max-uploads", "part-number-marker"];

/// Names the algorithm of a checksum that the client adds in another header or in the trailer.
const SDK_CHECKSUM_ALGORITHM: &str = "x-amz-sdk-checksum-algorithm";

/// Returns true for the value of a supported checksum of the body, and for the name of its algorithm.
fn is_body_checksum(name: &str) -> bool {
    name == SDK_CHECKSUM_ALGORITHM || Algorithm::from_header(name).is_some()
}

fn is_hidden_from_s3s(name: &str, value: &str) -> bool {
    let begins =
        |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    begins("x-amz-")
        || begins("response-")
        || matches!(name, "Signature" | "AWSAccessKeyId" | "Expires")
        // Without a value, a number or a flag has its default. `s3s` would reject it.
        || value.is_empty() && NUMBERS_AND_FLAGS.contains(&name)
}

/// Decodes `+` and `%xx`.
pub(crate) fn form_decode(text: &str) -> Result<String, WireError> {
    if !text.bytes().any(|b| matches!(b, b'+' | b'%')) {
        return Ok(text.to_owned());
    }
    Ok(percent_decode(&text.replace('+', " "))?.into_owned())
}

/// Decodes `%xx`. Fails with `InvalidURI` if a `%` is not followed by two hexadecimal digits, or if the result is not
/// UTF-8: taken literally, the text would name something else than the client meant.
pub(crate) fn percent_decode(text: &str) -> Result<Cow<'_, str>, WireError> {
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let invalid = || WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.");
    if !text.split('%').skip(1).all(is_escape) {
        return Err(invalid());
    }
    percent_decode_str(text).decode_utf8().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_once() {
        let query = Query::parse(Some("a=1&b&c=x+y%2B&a=1&prefix=%C3%BC")).unwrap();
        assert_eq!(query.get("a"), Some("1"));
        assert_eq!(query.get("b"), Some(""));
        assert_eq!(query.get("c"), Some("x y+"));
        assert_eq!(query.get("prefix"), Some("ü"));
        assert_eq!(Query::parse(Some("a=1&a=2")).unwrap_err().code(), Code::InvalidArgument);
        for bad in ["a=%FF", "a=%ZZ", "a=%", "a=b%2", "%+1=b", "a=%%41"] {
            assert_eq!(Query::parse(Some(bad)).unwrap_err().code(), Code::InvalidUri, "{bad}");
        }
    }

    #[test]
    fn the_number_of_parameters_is_limited() {
        let many = |count: usize| (0..count).map(|n| format!("{n}=")).collect::<Vec<_>>().join("&");
        assert_eq!(Query::parse(Some(&many(100))).unwrap().names().count(), 100);
        // The limit is checked before anything is decoded.
        let more = many(101) + "&%FF";
        assert_eq!(Query::parse(Some(&more)).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn presigned_headers_are_lifted_and_cut() {
        let text = "X-Amz-Signature=s&X-Amz-Date=d&x-amz-tagging=a%3D1&response-expires=never&list-type=2";
        let query = Query::parse(Some(text)).unwrap();
        assert!(query.has_hidden_parameters());
        assert_eq!(query.without_hidden_parameters(), "list%2Dtype=2");
        let mut headers = HeaderMap::new();
        query.lift_headers(&mut headers).unwrap();
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-amz-tagging"], "a=1");
        headers.insert("x-amz-tagging", HeaderValue::from_static("b=2"));
        assert_eq!(query.lift_headers(&mut headers).unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn checksums_of_the_body_are_lifted_separately() {
        let text = "X-Amz-Signature=s&X-Amz-Sdk-Checksum-Algorithm=CRC32&x-amz-checksum-crc32=AAAAAA%3D%3D\
                    &x-amz-checksum-algorithm=CRC32&x-amz-checksum-blake3=AA";
        let query = Query::parse(Some(text)).unwrap();
        let mut headers = HeaderMap::new();
        query.lift_headers(&mut headers).unwrap();
        // The algorithm of an upload is a setting, and an unknown checksum is rejected by its name.
        assert_eq!(headers.len(), 2);
        assert!(
            headers.contains_key("x-amz-checksum-algorithm") && headers.contains_key("x-amz-checksum-blake3")
        );
        let mut with_checksums = headers.clone();
        query.lift_checksums(&mut with_checksums).unwrap();
        assert_eq!(with_checksums.len(), 4);
        assert_eq!(with_checksums["x-amz-checksum-crc32"], "AAAAAA==");
        headers.insert("x-amz-checksum-crc32", HeaderValue::from_static("y/Q5Jg=="));
        query.lift_headers(&mut headers).unwrap();
        assert_eq!(headers["x-amz-checksum-crc32"], "y/Q5Jg==");
        assert_eq!(query.lift_checksums(&mut headers).unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn checksums_of_version_2_are_lifted_with_the_headers() {
        let text = "Signature=s&AWSAccessKeyId=a&x-amz-sdk-checksum-algorithm=CRC32&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-meta-a=+b%20";
        let query = Query::parse(Some(text)).unwrap();
        let mut headers = HeaderMap::new();
        query.lift_headers(&mut headers).unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-amz-checksum-crc32"], "AAAAAA==");
        assert_eq!(headers["x-amz-meta-a"], "b");
        headers.insert("x-amz-checksum-crc32", HeaderValue::from_static("y/Q5Jg=="));
        assert_eq!(query.lift_headers(&mut headers).unwrap_err().code(), Code::InvalidRequest);
    }
}
