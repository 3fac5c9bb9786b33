//! The verifier: determines from a request's head the identity that signed it and the properties that its body must
//! have.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, header};
use tradewind_core::{Clock, Timestamp};
use tradewind_wire::sigv4::hex::{from_hex, to_hex};
use tradewind_wire::sigv4::{
    AmzDate, ChunkSignatureChain, EMPTY_SHA256, SignedParts, sha256, string_to_sign,
};

use super::coverage::{check_coverage, check_names};
use super::credential::{Claim, Presigned, signature_mismatch, unsupported_mechanism};
use crate::addressing::Domain;
use crate::auth::Identity;
use crate::error::{Code, WireError};
use crate::keys::Keys;
use crate::sigv2::{self, PresignedV2};

/// The maximum difference between a client's clock and the server's, in seconds.
const MAX_CLOCK_SKEW_SECONDS: i64 = 15 * 60;

/// The client's declaration about the body, by `x-amz-content-sha256`.
#[derive(Debug)]
pub enum BodyDeclaration {
    /// No declaration, or `UNSIGNED-PAYLOAD`: the body is not signed.
    Unsigned,
    /// The SHA-256 of the whole body.
    Sha256([u8; 32]),
    /// aws-chunked with a signature for each chunk and for the trailers, if any.
    SignedChunks {
        /// The chain that the signatures must follow.
        signatures: ChunkSignatureChain,
        /// True if trailers follow the last chunk.
        has_trailers: bool,
    },
    /// aws-chunked without signatures, followed by trailers.
    UnsignedChunks,
}

impl BodyDeclaration {
    /// Returns true if the body has aws-chunked framing.
    #[must_use]
    pub const fn is_chunked(&self) -> bool {
        matches!(self, Self::SignedChunks { .. } | Self::UnsignedChunks)
    }

    /// Returns true if an empty body conforms to the declaration.
    #[must_use]
    pub fn allows_empty_body(&self) -> bool {
        match self {
            Self::Unsigned => true,
            Self::Sha256(hash) => to_hex(hash) == EMPTY_SHA256.as_bytes(),
            Self::SignedChunks { .. } | Self::UnsignedChunks => false,
        }
    }
}

/// The result of a successful verification: the request has a valid signature, or none and is anonymous.
#[derive(Debug)]
pub struct Verified {
    /// The sender of the request.
    pub identity: Arc<Identity>,
    /// The declaration that the body must conform to.
    pub declared: BodyDeclaration,
    /// True if the signature was in the query.
    pub presigned: bool,
}

/// Verifies signatures.
#[derive(Debug, Clone)]
pub struct Verifier {
    keys: Keys,
    clock: Arc<dyn Clock>,
    region: Option<String>,
    /// The service that signatures must name.
    service: &'static str,
    /// Accepts presigned URLs of version 2.
    sigv2: Option<SigV2Settings>,
}

/// Settings for presigned URLs of version 2.
#[derive(Debug, Clone)]
struct SigV2Settings {
    /// The domain of virtual-hosted addressing.
    domain: Option<Domain>,
}

impl Verifier {
    /// A verifier. Signatures for a region other than `region` are rejected; `None` accepts any.
    #[must_use]
    pub const fn new(keys: Keys, clock: Arc<dyn Clock>, region: Option<String>) -> Self {
        Self { keys, clock, region, service: "s3", sigv2: None }
    }

    /// Accepts signatures for `service` instead of S3.
    #[must_use]
    pub(crate) fn for_service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    /// Accepts presigned URLs of version 2, too, which name no region. `domain` is that of virtual-hosted addressing:
    /// their signature covers the bucket, wherever it is.
    #[must_use]
    pub fn accepting_sigv2(self, domain: Option<Domain>) -> Self {
        Self { sigv2: Some(SigV2Settings { domain }), ..self }
    }

    /// Verifies the signature of a request from its head.
    ///
    /// # Errors
    /// The signature is malformed, expired or wrong, or the key does not exist.
    pub fn verify(&self, parts: &Parts) -> Result<Verified, WireError> {
        let mut authorizations = parts.headers.get_all(header::AUTHORIZATION).iter();
        let authorization = authorizations.next();
        if let (None, Some(settings), Some(query)) = (authorization, &self.sigv2, parts.uri.query())
            && sigv2::is_presigned(query)
        {
            return self.verify_sigv2(parts, &PresignedV2::parse(parts, settings.domain.as_ref())?);
        }
        let presigned = match parts.uri.query() {
            Some(query) => Presigned::from_query(query)?,
            None => None,
        };
        match (authorization, presigned) {
            (None, None) => self.anonymous(parts),
            (Some(value), None) if authorizations.next().is_none() => {
                let value = value.to_str().map_err(|e| {
                    WireError::with_source(
                        Code::AuthorizationHeaderMalformed,
                        "The authorization header is malformed.",
                        e,
                    )
                })?;
                self.verify_header(parts, &Claim::from_header(value)?)
            }
            (None, Some(presigned)) => self.verify_query(parts, &presigned),
            _ => Err(WireError::new(
                Code::InvalidArgument,
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query \
                 string parameter or the Authorization header should be specified",
            )),
        }
    }

    /// The sender of a request without a signature.
    pub(crate) fn anonymous_identity(&self) -> Arc<Identity> {
        self.keys.anonymous()
    }

    /// Returns true if a request has no signature of any kind, not even a malformed one.
    pub(crate) fn is_unsigned(&self, parts: &Parts) -> bool {
        let query = parts.uri.query();
        let has_header = parts.headers.contains_key(header::AUTHORIZATION);
        let is_sigv2 = self.sigv2.is_some() && query.is_some_and(sigv2::is_presigned);
        let is_sigv4 = query.is_some_and(|query| !matches!(Presigned::from_query(query), Ok(None)));
        !(has_header || is_sigv2 || is_sigv4)
    }

    fn anonymous(&self, parts: &Parts) -> Result<Verified, WireError> {
        let declared = match parts.headers.get("x-amz-content-sha256") {
            None => BodyDeclaration::Unsigned,
            Some(value) => match ContentSha256::parse(value.as_bytes())? {
                ContentSha256::Unsigned => BodyDeclaration::Unsigned,
                ContentSha256::Sha256(hash) => BodyDeclaration::Sha256(hash),
                ContentSha256::UnsignedChunks => BodyDeclaration::UnsignedChunks,
                ContentSha256::SignedChunks { .. } => return Err(WireError::access_denied()),
            },
        };
        Ok(Verified { identity: self.keys.anonymous(), declared, presigned: false })
    }

    fn verify_header(&self, parts: &Parts, claim: &Claim<'_>) -> Result<Verified, WireError> {
        reject_token(parts.headers.contains_key("x-amz-security-token"))?;
        let date = header_date(&parts.headers)?;
        let now = self.clock.wall().seconds();
        if (now - date.seconds()).abs() > MAX_CLOCK_SKEW_SECONDS {
            return Err(WireError::new(
                Code::RequestTimeTooSkewed,
                "The difference between the request time and the current time is too large.",
            ));
        }
        let content_sha256 = parts.headers.get("x-amz-content-sha256").ok_or_else(|| {
            WireError::new(
                Code::InvalidRequest,
                "Missing required header for this request: x-amz-content-sha256",
            )
        })?;
        self.check(parts, claim, &date, content_sha256.as_bytes(), Code::AuthorizationHeaderMalformed, false)
    }

    fn verify_query(&self, parts: &Parts, presigned: &Presigned<'_>) -> Result<Verified, WireError> {
        reject_token(presigned.has_token())?;
        let claim = presigned.claim()?;
        let date = AmzDate::parse(presigned.date().as_bytes()).ok_or_else(|| {
            WireError::new(
                Code::AuthorizationQueryParametersError,
                "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"",
            )
        })?;
        let expires = presigned.expires()?;
        let now = self.clock.wall().seconds();
        if now < date.seconds() - MAX_CLOCK_SKEW_SECONDS {
            return Err(WireError::new(Code::AccessDenied, "Request is not valid yet."));
        }
        if now > date.seconds() + expires {
            return Err(WireError::new(Code::AccessDenied, "Request has expired."));
        }
        let in_header = parts.headers.get("x-amz-content-sha256").map(http::HeaderValue::as_bytes);
        let in_query = presigned.payload.as_deref().map(str::as_bytes);
        if in_query.is_some() && in_header.is_some_and(|value| Some(value) != in_query) {
            return Err(WireError::new(
                Code::InvalidRequest,
                "Header x-amz-content-sha256 contradicts the query parameter of that name.",
            ));
        }
        let content_sha256 = in_query.or(in_header).unwrap_or(b"UNSIGNED-PAYLOAD");
        self.check(parts, &claim, &date, content_sha256, Code::AuthorizationQueryParametersError, true)
    }

    fn verify_sigv2(&self, parts: &Parts, presigned: &PresignedV2) -> Result<Verified, WireError> {
        reject_token(presigned.has_token)?;
        if self.clock.wall().seconds() > presigned.expires_at {
            return Err(WireError::new(Code::AccessDenied, "Request has expired."));
        }
        let key = self.keys.find(&presigned.key_id).ok_or_else(unknown_key)?;
        if !key.verify_sigv2(presigned.string_to_sign(), &presigned.signature) {
            return Err(signature_mismatch());
        }
        let declared = match parts.headers.get("x-amz-content-sha256") {
            None => BodyDeclaration::Unsigned,
            Some(value) => match ContentSha256::parse(value.as_bytes())? {
                ContentSha256::Unsigned => BodyDeclaration::Unsigned,
                ContentSha256::Sha256(hash) => BodyDeclaration::Sha256(hash),
                ContentSha256::UnsignedChunks => BodyDeclaration::UnsignedChunks,
                ContentSha256::SignedChunks { .. } => return Err(unsupported_mechanism()),
            },
        };
        Ok(Verified { identity: key.identity().clone(), declared, presigned: true })
    }

    /// Verifies a claim. `content_sha256` is the value of `x-amz-content-sha256`, and `malformed` the code of a
    /// malformed credential.
    fn check(
        &self,
        parts: &Parts,
        claim: &Claim<'_>,
        date: &AmzDate,
        content_sha256: &[u8],
        malformed: Code,
        presigned: bool,
    ) -> Result<Verified, WireError> {
        let credential = &claim.credential;
        if credential.day.as_bytes() != date.day() {
            let message = "Invalid credential date. This date is not the same as X-Amz-Date.";
            return Err(WireError::new(malformed, message));
        }
        if credential.service != self.service {
            let (given, expected) = (credential.service, self.service);
            let message = format!("the service '{given}' is wrong; expecting '{expected}'");
            return Err(WireError::new(malformed, message));
        }
        if let Some(region) = self.region.as_deref().filter(|region| *region != credential.region) {
            let message = format!("the region '{}' is wrong; expecting '{region}'", credential.region);
            return Err(WireError::new(malformed, message));
        }
        let key = self.keys.find(credential.id).ok_or_else(unknown_key)?;
        let header = ContentSha256::parse(content_sha256)?;
        check_names(&parts.headers, claim.signed_headers)?;
        check_coverage(&parts.headers, claim.signed_headers)?;
        let canonical = SignedParts {
            method: &parts.method,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            names: claim.signed_headers,
            payload: content_sha256,
        }
        .text()?;
        let (signing_key, is_cached) = key.signing_key(credential.scope);
        let text = string_to_sign(date, credential.scope, &sha256(&canonical));
        if !signing_key.verify(&text, &claim.signature) {
            return Err(signature_mismatch());
        }
        if !is_cached {
            key.cache_signing_key(credential.scope, &signing_key);
        }
        let declared = match header {
            ContentSha256::Unsigned => BodyDeclaration::Unsigned,
            ContentSha256::Sha256(hash) => BodyDeclaration::Sha256(hash),
            ContentSha256::UnsignedChunks => BodyDeclaration::UnsignedChunks,
            ContentSha256::SignedChunks { has_trailers } => BodyDeclaration::SignedChunks {
                signatures: ChunkSignatureChain::new(signing_key, date, credential.scope, &claim.signature),
                has_trailers,
            },
        };
        Ok(Verified { identity: key.identity().clone(), declared, presigned })
    }
}

fn unknown_key() -> WireError {
    WireError::new(
        Code::InvalidAccessKeyId,
        "The AWS Access Key Id you provided does not exist in our records.",
    )
}

fn reject_token(has_token: bool) -> Result<(), WireError> {
    if has_token {
        return Err(WireError::new(
            Code::InvalidToken,
            "The provided token is malformed or otherwise invalid: this server issues no session tokens.",
        ));
    }
    Ok(())
}

/// The value of `x-amz-date`, otherwise of `Date`.
fn header_date(headers: &HeaderMap) -> Result<AmzDate, WireError> {
    let date = match (headers.get("x-amz-date"), headers.get(header::DATE)) {
        (Some(value), _) => AmzDate::parse(value.as_bytes()),
        (None, Some(value)) => value
            .to_str()
            .ok()
            .and_then(|text| httpdate::parse_http_date(text).ok())
            .and_then(|time| AmzDate::from_timestamp(Timestamp::from(time))),
        (None, None) => None,
    };
    date.ok_or_else(|| {
        WireError::new(Code::AccessDenied, "AWS authentication requires a valid Date or x-amz-date header.")
    })
}

/// The parsed value of `x-amz-content-sha256`.
enum ContentSha256 {
    Unsigned,
    Sha256([u8; 32]),
    SignedChunks { has_trailers: bool },
    UnsignedChunks,
}

impl ContentSha256 {
    fn parse(text: &[u8]) -> Result<Self, WireError> {
        match text {
            b"UNSIGNED-PAYLOAD" => Ok(Self::Unsigned),
            b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Ok(Self::SignedChunks { has_trailers: false }),
            b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Ok(Self::SignedChunks { has_trailers: true }),
            b"STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(Self::UnsignedChunks),
            text if text.starts_with(b"STREAMING-AWS4-ECDSA") => Err(WireError::new(
                Code::NotImplemented,
                "Signature Version 4A is not implemented; please use AWS4-HMAC-SHA256.",
            )),
            text => from_hex(text).map(Self::Sha256).ok_or_else(|| {
                WireError::new(
                    Code::InvalidArgument,
                    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
                     STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a \
                     valid sha256 value.",
                )
            }),
        }
    }
}
