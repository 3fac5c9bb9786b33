//! A client's signer: puts date, payload hash and signature into a request's headers.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tradewind_core::Timestamp;

use super::canonical::{NotCanonical, SignedParts};
use super::chunks::ChunkSignatureChain;
use super::date::AmzDate;
use super::hex::to_hex;
use super::key::{SigningKey, sha256};
use super::{ALGORITHM, EMPTY_SHA256, scope, string_to_sign};

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The credentials of a signer.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key's id.
    pub id: String,
    /// The access key's secret.
    pub secret: String,
    /// The session token of temporary credentials.
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, <redacted>)", self.id)
    }
}

/// The body as covered by the signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The request has no body.
    Empty,
    /// The body is not signed: TLS or a signed checksum header protects it.
    Unsigned,
    /// Unsigned aws-chunked with trailers: a checksum follows the body.
    UnsignedTrailer,
    /// aws-chunked with signed chunks, by the [`ChunkSignatureChain`] that [`Signer::sign`] returns.
    SignedChunks,
    /// The SHA-256 of the whole body.
    Sha256([u8; 32]),
}

impl Payload {
    fn word(self) -> HeaderValue {
        match self {
            Self::Empty => HeaderValue::from_static(EMPTY_SHA256),
            Self::Unsigned => HeaderValue::from_static("UNSIGNED-PAYLOAD"),
            Self::UnsignedTrailer => HeaderValue::from_static("STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
            Self::SignedChunks => HeaderValue::from_static("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            // Hexadecimal digits are valid in a header.
            Self::Sha256(hash) => {
                HeaderValue::from_bytes(&to_hex(&hash)).unwrap_or(HeaderValue::from_static(""))
            }
        }
    }
}

/// The name of S3 in a scope.
const S3: &str = "s3";

/// Signs requests, with replaceable credentials. The key derived from the secret is cached for its day and region.
pub struct Signer {
    /// The name of the service in the scope.
    service: &'static str,
    region: String,
    /// `None` before the first request with these credentials.
    kept: ArcSwapOption<DayKey>,
    credentials: ArcSwap<Credentials>,
}

struct DayKey {
    credentials: Arc<Credentials>,
    day: [u8; 8],
    region: String,
    scope: String,
    key: Arc<SigningKey>,
}

impl Signer {
    /// A signer for requests to S3 in `region`.
    #[must_use]
    pub fn new(credentials: Credentials, region: String) -> Self {
        Self::for_service(S3, credentials, region)
    }

    /// A signer for requests to a service, such as `sts`, in `region`. Outside S3, `Content-Type` is signed as well.
    #[must_use]
    pub fn for_service(service: &'static str, credentials: Credentials, region: String) -> Self {
        let credentials = ArcSwap::from_pointee(credentials);
        Self { service, region, kept: ArcSwapOption::const_empty(), credentials }
    }

    /// Replaces the credentials.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.credentials.store(Arc::new(credentials));
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256`, the session token and `Authorization`. Signs `host`, `content-md5`
    /// and every `x-amz-*` and `x-dss-*` header present. Unsigned are only `Range`, conditions and content headers:
    /// nothing else that a server acts upon may be changed afterwards. Returns the signer of the body's chunks, if they
    /// are signed. `region` overrides the signer's own.
    pub fn sign(
        &self,
        region: Option<&str>,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        payload: Payload,
        now: Timestamp,
    ) -> Result<Option<ChunkSignatureChain>, NotCanonical> {
        let date = AmzDate::from_timestamp(now).ok_or(NotCanonical::Date)?;
        let day = self.day_key(&date, region.unwrap_or(&self.region));
        let word = payload.word();
        headers.insert(DATE, header(date.text())?);
        headers.insert(CONTENT_SHA256, word.clone());
        if let Some(token) = &day.credentials.token {
            headers.insert(TOKEN, header(token.as_bytes())?);
        }
        let names = signed_names(headers, self.service);
        let signed = SignedParts {
            method,
            path: uri.path(),
            query: uri.query(),
            headers,
            names: &names,
            payload: word.as_bytes(),
        };
        let hash = sha256(&signed.text()?);
        let seed = day.key.sign(&string_to_sign(&date, &day.scope, &hash));
        let signature = to_hex(&seed);
        let mut value = Vec::with_capacity(256);
        for piece in [
            ALGORITHM,
            " Credential=",
            &day.credentials.id,
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
        let has_chunks = payload == Payload::SignedChunks;
        Ok(has_chunks.then(|| ChunkSignatureChain::new(day.key.clone(), &date, &day.scope, &seed)))
    }

    /// The credentials with their key, so that a request is signed with one consistent set even if they are replaced.
    fn day_key(&self, date: &AmzDate, region: &str) -> Arc<DayKey> {
        let credentials = self.credentials.load_full();
        if let Some(kept) = self.kept.load_full()
            && kept.day == date.day()
            && kept.region == region
            && Arc::ptr_eq(&kept.credentials, &credentials)
        {
            return kept;
        }
        let (region, scope) = (region.to_owned(), scope(date, region, self.service));
        let key = Arc::new(SigningKey::derive(&credentials.secret, &scope));
        let mut day = [0; 8];
        day.copy_from_slice(date.day());
        let made = Arc::new(DayKey { credentials, day, region, scope, key });
        self.kept.store(Some(made.clone()));
        made
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({}, {})", self.credentials.load().id, self.region)
    }
}

/// The names of the signed headers, in order.
fn signed_names(headers: &HeaderMap, service: &str) -> String {
    let is_signed = |name: &&str| {
        name.starts_with("x-amz-")
            || name.starts_with("x-dss-")
            || *name == HOST.as_str()
            || *name == "content-md5"
            || (service != S3 && *name == CONTENT_TYPE.as_str())
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
        signer.sign(None, &Method::GET, &uri, &mut headers, payload, now).unwrap();
        headers
    }

    #[test]
    fn signature_matches_the_documentation() {
        let headers = signed(Payload::Empty);
        assert_eq!(headers["x-amz-date"], "20130524T000000Z");
        assert_eq!(
            headers[AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date,\
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    /// The signature is that of botocore for the same request.
    #[test]
    fn request_to_another_service_signs_its_content_type() {
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: Some("a/token+".to_owned()),
        };
        let signer = Signer::for_service("sts", credentials, "us-east-1".to_owned());
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("sts.us-east-1.amazonaws.com"));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
        headers.insert(CONTENT_TYPE, form);
        let (uri, payload) = (Uri::from_static("/"), Payload::Sha256(sha256(b"Action=AssumeRole")));
        let now = Timestamp::from_millis(1_369_353_600_000);
        signer.sign(None, &Method::POST, &uri, &mut headers, payload, now).unwrap();
        assert_eq!(
            headers[AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/sts/aws4_request,\
             SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token,\
             Signature=cebafed91b8fb8b62e04c686d31e2d0bd064db793619d0e04117b0cdbe71d2fd"
        );
    }

    #[test]
    fn payload_declaration_is_signed() {
        let unsigned = signed(Payload::Unsigned);
        assert_eq!(unsigned["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
        assert_ne!(unsigned[AUTHORIZATION], signed(Payload::Empty)[AUTHORIZATION]);
        assert_ne!(unsigned[AUTHORIZATION], signed(Payload::Sha256([7; 32]))[AUTHORIZATION]);
    }

    #[test]
    fn credentials_and_region_change_the_signature() {
        let credentials = |id: &str| Credentials {
            id: id.to_owned(),
            secret: format!("secret of {id}"),
            token: Some(format!("token of {id}")),
        };
        let sign = |signer: &Signer, region: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("h"));
            let (uri, now) = (Uri::from_static("/"), Timestamp::from_millis(1_369_353_600_000));
            signer.sign(region, &Method::GET, &uri, &mut headers, Payload::Empty, now).unwrap();
            (headers[AUTHORIZATION].clone(), headers[TOKEN].clone())
        };
        let fresh = |id: &str, region: &str| sign(&Signer::new(credentials(id), region.to_owned()), None);
        let signer = Signer::new(credentials("one"), "here".to_owned());
        assert_eq!(sign(&signer, None), fresh("one", "here"));
        assert_eq!(sign(&signer, Some("there")), fresh("one", "there"));
        signer.set_credentials(credentials("two"));
        assert_eq!(sign(&signer, Some("there")), fresh("two", "there"));
        assert_eq!(sign(&signer, None), fresh("two", "here"));
    }
}
