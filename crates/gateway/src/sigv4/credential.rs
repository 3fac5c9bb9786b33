//! A client's unverified claim about its signature: the parsed `Authorization` header or `X-Amz-*` parameters.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use tradewind_wire::sigv4::hex::from_hex;
use tradewind_wire::sigv4::{ALGORITHM, NotCanonical};

use crate::error::{Code, WireError};

/// Longest lifetime of a presigned URL, in seconds.
const MAX_EXPIRES_SECONDS: u64 = 7 * 24 * 3600;

/// `id/date/region/service/aws4_request`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Credential<'a> {
    pub(crate) id: &'a str,
    /// Everything after the ID.
    pub(crate) scope: &'a str,
    pub(crate) day: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
}

impl<'a> Credential<'a> {
    /// Parses the text; `None` if it is malformed. An ID may contain slashes.
    fn parse(text: &'a str) -> Option<Self> {
        let mut fields = text.rsplitn(5, '/');
        let (terminal, service, region) = (fields.next()?, fields.next()?, fields.next()?);
        let (day, id) = (fields.next()?, fields.next()?);
        let legal = terminal == "aws4_request"
            && !service.is_empty()
            && service.len() <= 64
            && !region.is_empty()
            && region.len() <= 64
            && !id.is_empty()
            && day.len() == 8
            && day.bytes().all(|c| c.is_ascii_digit());
        legal.then(|| Self { id, scope: &text[id.len() + 1..], day, region, service })
    }
}

/// A signature as claimed in the `Authorization` header or a presigned URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claim<'a> {
    pub(crate) credential: Credential<'a>,
    pub(crate) signed_headers: &'a str,
    pub(crate) signature: [u8; 32],
}

impl<'a> Claim<'a> {
    /// Parses the header's value.
    pub(crate) fn from_header(value: &'a str) -> Result<Self, WireError> {
        let malformed = |what: &'static str| WireError::new(Code::AuthorizationHeaderMalformed, what);
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        if scheme != ALGORITHM {
            return Err(scheme_error(scheme));
        }
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in rest.split(',') {
            let Some((name, value)) = field.trim().split_once('=') else {
                return Err(malformed(
                    "The authorization header is malformed; it must consist of name=value pairs.",
                ));
            };
            let slot = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return Err(malformed("The authorization header is malformed; a field is not known.")),
            };
            if slot.replace(value).is_some() {
                return Err(malformed("The authorization header is malformed; a field is given twice."));
            }
        }
        let credential = credential.and_then(Credential::parse).ok_or_else(|| {
            malformed(
                "The authorization header is malformed; the Credential is mal-formed; expecting \
                 \"<YOUR-AKID>/YYYYMMDD/REGION/s3/aws4_request\".",
            )
        })?;
        let signed_headers = signed_headers
            .filter(|names| !names.is_empty())
            .ok_or_else(|| malformed("The authorization header is malformed; missing SignedHeaders."))?;
        let signature = signature
            .ok_or_else(|| malformed("The authorization header is malformed; missing Signature."))?;
        Ok(Self { credential, signed_headers, signature: parse_signature(signature)? })
    }
}

/// Parses a signature. A malformed signature is reported like a wrong one.
fn parse_signature(text: &str) -> Result<[u8; 32], WireError> {
    from_hex(text.as_bytes()).ok_or_else(signature_mismatch)
}

/// The error of a wrong signature.
pub(crate) fn signature_mismatch() -> WireError {
    WireError::new(
        Code::SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and \
         signing method.",
    )
}

impl From<NotCanonical> for WireError {
    fn from(error: NotCanonical) -> Self {
        match error {
            NotCanonical::Escape => {
                Self::with_source(Code::InvalidUri, "Couldn't parse the specified URI.", error)
            }
            // A header that is signed but missing was removed in transit.
            NotCanonical::MissingHeader | NotCanonical::Date | NotCanonical::Header => signature_mismatch(),
        }
    }
}

fn scheme_error(scheme: &str) -> WireError {
    if scheme == "AWS" || scheme.starts_with("AWS4-") {
        return unsupported_mechanism();
    }
    WireError::new(Code::InvalidArgument, "Unsupported Authorization Type")
}

pub(crate) fn unsupported_mechanism() -> WireError {
    WireError::new(
        Code::InvalidRequest,
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
}

/// The `X-Amz-*` parameters of a presigned URL, decoded.
#[derive(Debug, Default)]
pub(crate) struct Presigned<'a> {
    algorithm: Option<Cow<'a, str>>,
    credential: Option<Cow<'a, str>>,
    date: Option<Cow<'a, str>>,
    expires: Option<Cow<'a, str>>,
    signed_headers: Option<Cow<'a, str>>,
    signature: Option<Cow<'a, str>>,
    token: Option<Cow<'a, str>>,
    pub(crate) payload: Option<Cow<'a, str>>,
}

impl<'a> Presigned<'a> {
    /// Parses a query; `None` if it has no parameter of a signature. Fails for a signature of version 2.
    pub(crate) fn from_query(query: &'a str) -> Result<Option<Self>, WireError> {
        let mut presigned = Self::default();
        let (mut is_presigned, mut is_sigv2) = (false, false);
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let slot = match name {
                "X-Amz-Algorithm" => &mut presigned.algorithm,
                "X-Amz-Credential" => &mut presigned.credential,
                "X-Amz-Date" => &mut presigned.date,
                "X-Amz-Expires" => &mut presigned.expires,
                "X-Amz-SignedHeaders" => &mut presigned.signed_headers,
                "X-Amz-Signature" => &mut presigned.signature,
                "X-Amz-Security-Token" => &mut presigned.token,
                "X-Amz-Content-Sha256" => &mut presigned.payload,
                "Signature" | "AWSAccessKeyId" => {
                    is_sigv2 = true;
                    continue;
                }
                _ => continue,
            };
            let value = percent_decode_str(value).decode_utf8();
            let value =
                value.map_err(|_| invalid_parameter("A query parameter of the signature is not UTF-8."))?;
            if slot.replace(value).is_some() {
                return Err(invalid_parameter("A query parameter of the signature is given twice."));
            }
            // These two parameters describe the payload and the time of a request. They prove nothing about a signature
            // in the query: the request may be signed by its `Authorization` header, or anonymous.
            is_presigned |= !matches!(name, "X-Amz-Content-Sha256" | "X-Amz-Date");
        }
        if !is_presigned && is_sigv2 {
            return Err(unsupported_mechanism());
        }
        Ok(is_presigned.then_some(presigned))
    }

    /// Returns true if the query has a session token.
    pub(crate) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The claim. Fails if a parameter is missing or malformed.
    pub(crate) fn claim(&self) -> Result<Claim<'_>, WireError> {
        const MISSING: &str = "Query-string authentication version 4 requires the X-Amz-Algorithm, \
                               X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and \
                               X-Amz-Expires parameters.";
        let (Some(algorithm), Some(credential), Some(headers), Some(signature), Some(_), Some(_)) = (
            &self.algorithm,
            &self.credential,
            &self.signed_headers,
            &self.signature,
            &self.date,
            &self.expires,
        ) else {
            return Err(invalid_parameter(MISSING));
        };
        if algorithm != ALGORITHM {
            return Err(invalid_parameter("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
        }
        let credential = Credential::parse(credential).ok_or_else(|| {
            invalid_parameter(
                "Error parsing the X-Amz-Credential parameter; the Credential is mal-formed; expecting \
                 \"<YOUR-AKID>/YYYYMMDD/REGION/s3/aws4_request\".",
            )
        })?;
        if headers.is_empty() {
            return Err(invalid_parameter("X-Amz-SignedHeaders must name at least the host header"));
        }
        Ok(Claim { credential, signed_headers: headers, signature: parse_signature(signature)? })
    }

    /// `X-Amz-Date`.
    pub(crate) fn date(&self) -> &str {
        self.date.as_deref().unwrap_or_default()
    }

    /// `X-Amz-Expires` in seconds.
    pub(crate) fn expires(&self) -> Result<i64, WireError> {
        let text = self.expires.as_deref().unwrap_or_default();
        if text.starts_with('-') {
            return Err(invalid_parameter("X-Amz-Expires must be non-negative"));
        }
        if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
            return Err(invalid_parameter("X-Amz-Expires should be a number"));
        }
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
        if seconds > MAX_EXPIRES_SECONDS {
            return Err(invalid_parameter(
                "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds",
            ));
        }
        Ok(i64::try_from(seconds).unwrap_or(i64::MAX))
    }
}

fn invalid_parameter(message: &'static str) -> WireError {
    WireError::new(Code::AuthorizationQueryParametersError, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_authorization_header_is_parsed() {
        let signature = "a".repeat(64);
        let text = format!(
            "AWS4-HMAC-SHA256 Credential=team/key/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-date,Signature={signature}"
        );
        let claim = Claim::from_header(&text).unwrap();
        assert_eq!(claim.credential.id, "team/key");
        assert_eq!(claim.credential.scope, "20130524/us-east-1/s3/aws4_request");
        assert_eq!((claim.signed_headers, claim.signature), ("host;x-amz-date", [0xaa; 32]));
    }

    #[test]
    fn malformed_and_unsupported_claims_are_rejected() {
        let code = |text: &str| Claim::from_header(text).unwrap_err().code();
        assert_eq!(code("AWS id:signature"), Code::InvalidRequest);
        assert_eq!(code("Basic abc"), Code::InvalidArgument);
        assert_eq!(code("AWS4-ECDSA-P256-SHA256 Credential=a"), Code::InvalidRequest);
        assert_eq!(code("AWS4-HMAC-SHA256"), Code::AuthorizationHeaderMalformed);
        assert_eq!(code("AWS4-HMAC-SHA256 Credential=a/b"), Code::AuthorizationHeaderMalformed);
        let twice = "AWS4-HMAC-SHA256 Signature=a, Signature=b";
        assert_eq!(code(twice), Code::AuthorizationHeaderMalformed);
        let short =
            "AWS4-HMAC-SHA256 Credential=k/20130524/r/s3/aws4_request,SignedHeaders=host,Signature=ab";
        assert_eq!(code(short), Code::SignatureDoesNotMatch);
        let query = |q: &str| Presigned::from_query(q).map(|p| p.is_some()).map_err(|e| e.code());
        assert_eq!(query("AWSAccessKeyId=a&Signature=b&Expires=1"), Err(Code::InvalidRequest));
        assert_eq!(query("X-Amz-Date=1&X-Amz-Date=2"), Err(Code::AuthorizationQueryParametersError));
        assert_eq!(query("list-type=2"), Ok(false));
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".*", tail in "[A-Za-z=,/;0-9 ]*") {
            let _ = Claim::from_header(&text);
            let _ = Claim::from_header(&format!("{ALGORITHM} {tail}"));
            if let Ok(Some(presigned)) = Presigned::from_query(&text) {
                let _ = (presigned.claim().is_ok(), presigned.expires().is_ok());
            }
        }
    }
}
