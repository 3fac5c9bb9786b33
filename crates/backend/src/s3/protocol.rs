//! The S3-specific parts of a request: URLs, signatures and error classification.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderValue, Method, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{ChunkSignatureChain, Payload as SignedBody};

use super::credentials::CredentialProvider;
use super::endpoint::{AddressingStyle, Endpoint};
use super::service_error::ServiceError;
use crate::remote::client::{Call, ClassifiedError, ErrorResponse, Protocol};
use crate::remote::payload::Payload;

/// Header that names the trailing checksum of a body.
pub(super) const TRAILER: &str = "x-amz-trailer";

/// Header with the length of an `aws-chunked` body before framing; its presence marks the framing.
pub(super) const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// State of a service that the clients of all its regions share.
pub(super) struct ServiceState {
    /// `None` sends unsigned requests.
    pub credentials: Option<CredentialProvider>,
    /// The reason why requests are not signed, if there are no credentials.
    pub unsigned_because: Option<Arc<str>>,
    /// The service has returned a checksum, so it verifies them.
    pub verifies_checksums: AtomicBool,
}

/// The S3 protocol for one endpoint and region.
pub(super) struct S3Protocol {
    endpoint: Endpoint,
    /// The `Host` of every path-style request; `None` if it is not a valid header value.
    host: Option<HeaderValue>,
    /// The region for signatures, if not the store's default.
    region: Option<String>,
    shared: Arc<ServiceState>,
}

impl S3Protocol {
    pub fn new(endpoint: Endpoint, region: Option<String>, shared: Arc<ServiceState>) -> Self {
        let host = endpoint.host_header(None).ok();
        Self { endpoint, host, region, shared }
    }

    /// The signature's coverage of a body. Without TLS, the body is signed, or the store verifies it against a signed
    /// checksum.
    fn signed_payload(&self, headers: &HeaderMap, body: &Payload) -> SignedBody {
        let has_checksum = headers.keys().any(|name| name.as_str().starts_with("x-amz-checksum-"));
        let is_protected = self.endpoint.peer.is_tls
            || (has_checksum && self.shared.verifies_checksums.load(Ordering::Relaxed));
        match body {
            _ if headers.contains_key(TRAILER) => SignedBody::UnsignedTrailer,
            _ if headers.contains_key(DECODED_LENGTH) => SignedBody::SignedChunks,
            Payload::Buffered(buffered, _) if buffered.length() == 0 => SignedBody::Empty,
            Payload::Buffered(buffered, _) if !is_protected => SignedBody::Sha256(buffered.sha256()),
            Payload::Buffered(..) | Payload::Streamed(_) => SignedBody::Unsigned,
        }
    }
}

impl Protocol for S3Protocol {
    fn scheme(&self) -> &'static str {
        "s3://"
    }

    fn request_target(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        let uri = self.endpoint.target(call.bucket, call.key, &call.query)?;
        let host = match &self.host {
            Some(host) if self.endpoint.style == AddressingStyle::Path => host.clone(),
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
    ) -> Result<Option<ChunkSignatureChain>> {
        let Some(credentials) = &self.shared.credentials else { return Ok(None) };
        let payload = self.signed_payload(headers, body);
        credentials.signer.sign(self.region.as_deref(), method, uri, headers, payload, now).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("the request cannot be signed: {e}"), e)
        })
    }

    fn classify_and_record(&self, response: &ErrorResponse<'_>) -> ClassifiedError {
        let ErrorResponse { status, headers, body, resource, request } = *response;
        let mut service_error = ServiceError::parse(status, headers, body);
        if self.shared.credentials.is_none() {
            let because = self.shared.unsigned_because.as_deref().map(|why| format!(" {why}"));
            service_error.denial_advice =
                format!("; the request was not signed{}", because.unwrap_or_default());
        }
        ClassifiedError {
            is_retryable: service_error.is_retryable(status),
            is_unprocessed: service_error.is_unprocessed(status),
            error: service_error.into_error(status, resource, request),
        }
    }
}
