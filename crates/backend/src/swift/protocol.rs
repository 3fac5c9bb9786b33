//! The Swift-specific parts of a request: URLs, tokens and error classification.

use http::{HeaderMap, HeaderValue, Method, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{ChunkSigner, encode_path};

use super::service_error::classify_error;
use crate::remote::Peer;
use crate::remote::client::{Call, ClassifiedError, ErrorResponse, Protocol};
use crate::remote::payload::Payload;

/// The Swift protocol for one base URL and token.
pub(super) struct SwiftProtocol {
    host: HeaderValue,
    /// The path of the account, or of the service that issues tokens.
    path: String,
    token: Option<HeaderValue>,
}

impl SwiftProtocol {
    /// Creates a protocol whose URLs begin with `path`.
    pub fn new(peer: &Peer, path: String, token: Option<HeaderValue>) -> Result<Self> {
        let host = HeaderValue::try_from(peer.to_string()).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, "the endpoint is not a valid host name", e)
        })?;
        Ok(Self { host, path, token })
    }
}

impl Protocol for SwiftProtocol {
    fn scheme(&self) -> &'static str {
        "swift://"
    }

    fn request_target(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        let mut target = self.path.clone().into_bytes();
        for element in [call.bucket, call.key].into_iter().flatten() {
            target.push(b'/');
            encode_path(element, &mut target);
        }
        if !call.query.as_bytes().is_empty() {
            target.push(b'?');
            target.extend_from_slice(call.query.as_bytes());
        }
        let uri = Uri::try_from(target).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, "the key cannot be written into a URL", e)
        })?;
        Ok((uri, self.host.clone()))
    }

    fn authorize(
        &self,
        _method: &Method,
        _uri: &Uri,
        headers: &mut HeaderMap,
        _body: &Payload,
        _now: Timestamp,
    ) -> Result<Option<ChunkSigner>> {
        if let Some(token) = &self.token {
            headers.insert("x-auth-token", token.clone());
        }
        Ok(None)
    }

    fn classify_error(&self, response: &ErrorResponse<'_>) -> ClassifiedError {
        classify_error(response)
    }
}
