//! A client's signer: puts date, payload hash and signature into a request's headers.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tradewind_core::Timestamp;

use super::canonical::{NotCanonical, Signed};
use super::date::AmzDate;
use super::hex::to_hex;
use super::key::{SigningKey, sha256};
use super::{ALGORITHM, EMPTY_SHA256, scope, string_to_sign};

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Who signs.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key's id.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// The session token of temporary credentials.
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, <redacted>)", self.id)
    }
}

/// What the signature says about the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    Empty,
    /// Nothing: for bodies that TLS protects.
    Unsigned,
    /// aws-chunked with trailers, unsigned: a checksum follows the body.
    UnsignedTrailer,
    /// The SHA-256 of the whole.
    Sha256([u8; 32]),
}

impl Payload {
    fn word(self) -> HeaderValue {
        match self {
            Self::Empty => HeaderValue::from_static(EMPTY_SHA256),
            Self::Unsigned => HeaderValue::from_static("UNSIGNED-PAYLOAD"),
            Self::UnsignedTrailer => HeaderValue::from_static("STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
            // Hexadecimal digits are legal in a header.
            Self::Sha256(hash) => {
                HeaderValue::from_bytes(&to_hex(&hash)).unwrap_or(HeaderValue::from_static(""))
            }
        }
    }
}

/// Signs requests with one set of credentials for one region. The key that is derived from the secret is kept for
/// the day it is good for.
pub struct Signer {
    credentials: Credentials,
    region: String,
    kept: ArcSwapOption<DayKey>,
}

struct DayKey {
    day: [u8; 8],
    scope: String,
    key: SigningKey,
}

impl Signer {
    /// A signer for requests to `region`.
    #[must_use]
    pub const fn new(credentials: Credentials, region: String) -> Self {
        Self { credentials, region, kept: ArcSwapOption::const_empty() }
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256`, the session token and `Authorization`. Signs `host`,
    /// `content-md5` and every `x-amz-*` and `x-dss-*` header that is there: nothing else may be changed
    /// afterwards that a server acts upon but `Range`, conditions and content headers.
    pub fn sign(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        payload: Payload,
        now: Timestamp,
    ) -> Result<(), NotCanonical> {
        let date = AmzDate::from_timestamp(now).ok_or(NotCanonical::Date)?;
        let word = payload.word();
        headers.insert(DATE, header(date.text())?);
        headers.insert(CONTENT_SHA256, word.clone());
        if let Some(token) = &self.credentials.token {
            headers.insert(TOKEN, header(token.as_bytes())?);
        }
        let names = signed_names(headers);
        let signed = Signed {
            method,
            path: uri.path(),
            query: uri.query(),
            headers,
            names: &names,
            payload: word.as_bytes(),
        };
        let hash = sha256(&signed.text()?);
        let day = self.day_key(&date);
        let signature = to_hex(&day.key.sign(&string_to_sign(&date, &day.scope, &hash)));
        let mut value = Vec::with_capacity(256);
        for piece in [
            ALGORITHM,
            " Credential=",
            &self.credentials.id,
            "/",
            &day.scope,
            ",SignedHeaders=",
            &names,
            ",Signature=",
        ] {
            value.extend_from_slice(piece.as_bytes());
        }
        value.extend_from_slice(&signature);
        headers.insert(AUTHORIZATION, header(&value)?);
        Ok(())
    }

    fn day_key(&self, date: &AmzDate) -> Arc<DayKey> {
        if let Some(kept) = self.kept.load_full()
            && kept.day == date.day()
        {
            return kept;
        }
        let scope = scope(date, &self.region);
        let key = SigningKey::derive(&self.credentials.secret, &scope);
        let mut day = [0; 8];
        day.copy_from_slice(date.day());
        let made = Arc::new(DayKey { day, scope, key });
        self.kept.store(Some(made.clone()));
        made
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({}, {})", self.credentials.id, self.region)
    }
}

/// The names of headers that are signed, in order.
fn signed_names(headers: &HeaderMap) -> String {
    let is_signed = |name: &&str| {
        name.starts_with("x-amz-")
            || name.starts_with("x-dss-")
            || *name == HOST.as_str()
            || *name == "content-md5"
    };
    let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).filter(is_signed).collect();
    names.sort_unstable();
    names.join(";")
}

fn header(value: &[u8]) -> Result<HeaderValue, NotCanonical> {
    HeaderValue::from_bytes(value).map_err(|_| NotCanonical::Header)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request to list a bucket of Amazon's documentation.
    fn signed(payload: Payload) -> HeaderMap {
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let signer = Signer::new(credentials, "us-east-1".to_owned());
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("examplebucket.s3.amazonaws.com"));
        let now = Timestamp::from_millis(1_369_353_600_000);
        let uri = Uri::from_static("/?max-keys=2&prefix=J");
        signer.sign(&Method::GET, &uri, &mut headers, payload, now).unwrap();
        headers
    }

    #[test]
    fn the_signature_of_the_documentation() {
        let headers = signed(Payload::Empty);
        assert_eq!(headers["x-amz-date"], "20130524T000000Z");
        assert_eq!(
            headers[AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date,\
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn the_word_for_the_body_is_signed() {
        let unsigned = signed(Payload::Unsigned);
        assert_eq!(unsigned["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
        assert_ne!(unsigned[AUTHORIZATION], signed(Payload::Empty)[AUTHORIZATION]);
        assert_ne!(unsigned[AUTHORIZATION], signed(Payload::Sha256([7; 32]))[AUTHORIZATION]);
    }
}
