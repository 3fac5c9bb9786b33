//! A request's query, decoded once. Names retain their case, and values may be empty. A name may be repeated only with
//! the same value.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode;

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
                        format!("Query parameter {name:?} is given twice"),
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

    /// Returns true if it has parameters that `s3s` must not see: those handled before it (signatures) or after it
    /// (`response-*`).
    pub(super) fn has_hidden_parameters(&self) -> bool {
        self.names().any(is_hidden_from_s3s)
    }

    /// The query without the parameters that `s3s` must not see.
    pub(super) fn without_hidden_parameters(&self) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        let pairs = self.0.iter().filter(|(name, _)| !is_hidden_from_s3s(name)).map(|(name, value)| {
            let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            format!("{}={}", encode(name), encode(value))
        });
        pairs.collect::<Vec<_>>().join("&")
    }

    /// Adds the headers that a presigned URL has in its query (`x-amz-checksum-crc32=...`), as S3 does. Fails if a
    /// header has another value: only one of the two was signed.
    pub(super) fn lift_headers(&self, headers: &mut HeaderMap) -> Result<(), WireError> {
        if self.get("X-Amz-Signature").is_none() {
            return Ok(());
        }
        for (name, value) in &self.0 {
            let name = name.to_ascii_lowercase();
            if !name.starts_with("x-amz-") || SIGNATURE.contains(&name.as_str()) {
                continue;
            }
            let invalid = || {
                WireError::new(Code::InvalidArgument, format!("Query parameter {name} is not a header value"))
            };
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?;
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            match headers.get(&header) {
                Some(other) if *other != value => {
                    return Err(WireError::new(
                        Code::InvalidRequest,
                        format!("Header {name} contradicts the query parameter of that name"),
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

fn is_hidden_from_s3s(name: &str) -> bool {
    let begins =
        |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    begins("x-amz-") || begins("response-") || matches!(name, "Signature" | "AWSAccessKeyId" | "Expires")
}

/// Decodes `+` and `%xx`.
pub(super) fn form_decode(text: &str) -> Result<String, WireError> {
    if !text.bytes().any(|b| matches!(b, b'+' | b'%')) {
        return Ok(text.to_owned());
    }
    let spaced = text.replace('+', " ");
    percent_decode(spaced.as_bytes())
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| WireError::new(Code::InvalidUri, "Couldn't parse the specified URI."))
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
        assert_eq!(Query::parse(Some("a=%FF")).unwrap_err().code(), Code::InvalidUri);
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
}
