//! What is S3's own of sending a request: its URLs, its signature, its refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{ChunkSigner, Payload as SignedBody};

use super::endpoint::Endpoint;
use super::failure::Refusal;
use super::login::Login;
use crate::remote::client::{Call, Protocol, Refused, Subject};
use crate::remote::payload::Payload;

/// Says that a checksum follows the body.
pub(super) const TRAILER: &str = "x-amz-trailer";

/// Says how long a body is within its frame, and so that it has one.
pub(super) const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// What is known of a service, wherever it is asked.
pub(super) struct Shared {
    /// `None` asks without a signature.
    pub login: Option<Login>,
    /// The store has answered a checksum that it was told: it compares them.
    pub compares: AtomicBool,
}

/// Where to ask, and as whom.
pub(super) struct S3 {
    pub endpoint: Endpoint,
    /// The region that signatures name, where it is another than the usual one.
    pub region: Option<String>,
    pub shared: Arc<Shared>,
}

impl S3 {
    /// What the signature says of a body. What TLS does not protect is signed, or the store compares it with a checksum
    /// that is signed.
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
        Ok((uri, self.endpoint.host_header(call.bucket)?))
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
