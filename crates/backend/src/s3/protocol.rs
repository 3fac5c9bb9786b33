//! The S3-specific parts of a request: URLs, signatures and error classification.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{ChunkSigner, Payload as SignedBody};

use super::endpoint::{Endpoint, Style};
use super::failure::Refusal;
use super::login::Login;
use crate::remote::client::{Call, Protocol, Refused, Subject};
use crate::remote::payload::Payload;

/// Header that names the trailing checksum of a body.
pub(super) const TRAILER: &str = "x-amz-trailer";

/// Header with the length of an `aws-chunked` body before framing; its presence marks the framing.
pub(super) const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// State of a service that the clients of all its regions share.
pub(super) struct Shared {
    /// `None` sends unsigned requests.
    pub login: Option<Login>,
    /// The service has returned a checksum, so it verifies them.
    pub compares: AtomicBool,
}

/// The S3 protocol for one endpoint and region.
pub(super) struct S3 {
    endpoint: Endpoint,
    /// The `Host` of every path-style request; `None` if it is not a valid header value.
    host: Option<HeaderValue>,
    /// The region for signatures, if not the store's default.
    region: Option<String>,
    shared: Arc<Shared>,
}

impl S3 {
    pub fn new(endpoint: Endpoint, region: Option<String>, shared: Arc<Shared>) -> Self {
        let host = endpoint.host_header(None).ok();
        Self { endpoint, host, region, shared }
    }

    /// How the signature covers a body. Without TLS, the body is signed, or the store verifies it against a signed
    /// checksum.
    fn payload(&self, headers: &HeaderMap, body: &Payload) -> SignedBody {
        let has_checksum = headers.keys().any(|name| name.as_str().starts_with("x-amz-checksum-"));
        let is_protected =
            self.endpoint.peer.is_tls || (has_checksum && self.shared.compares.load(Ordering::Relaxed));
        match body {
            _ if headers.contains_key(TRAILER) => SignedBody::UnsignedTrailer,
            _ if headers.contains_key(DECODED_LENGTH) => SignedBody::SignedChunks,
            Payload::Held(held) if held.length() == 0 => SignedBody::Empty,
            Payload::Held(held) if !is_protected => SignedBody::Sha256(held.sha256()),
            Payload::Held(_) | Payload::Fed(_) => SignedBody::Unsigned,
        }
    }
}

impl Protocol for S3 {
    fn scheme(&self) -> &'static str {
        "s3://"
    }

    fn address(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        let uri = self.endpoint.target(call.bucket, call.key, &call.query)?;
        let host = match &self.host {
            Some(host) if self.endpoint.style == Style::Path => host.clone(),
            _ => self.endpoint.host_header(call.bucket)?,
        };
        Ok((uri, host))
    }

    fn authorize(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &Payload,
        now: Timestamp,
    ) -> Result<Option<ChunkSigner>> {
        let Some(login) = &self.shared.login else { return Ok(None) };
        let payload = self.payload(headers, body);
        login.signer.sign(self.region.as_deref(), method, uri, headers, payload, now).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("the request cannot be signed: {e}"), e)
        })
    }

    fn refuse(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        subject: Subject,
        what: &str,
    ) -> Refused {
        let refusal = Refusal::read_all(status, headers, body);
        let (is_passing, is_before_all) = (refusal.is_passing(status), refusal.is_before_all(status));
        Refused { error: refusal.into_error(status, subject, what), is_passing, is_before_all }
    }
}
