//! The Swift-specific parts of a request: URLs, tokens and error classification.

use http::{HeaderMap, HeaderValue, Method, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::Result;
use tradewind_wire::sigv4::{ChunkSignatureChain, encode_path};

use super::service_error::classify_and_record;
use crate::remote::Peer;
use crate::remote::client::{Call, ClassifiedError, ErrorResponse, Protocol};
use crate::remote::header_fields::host_value;
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
        Ok(Self { host: host_value(peer.to_string())?, path, token })
    }
}

impl Protocol for SwiftProtocol {
    fn scheme(&self) -> &'static str {
        "swift://"
    }

    fn request_target(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        let mut path = self.path.clone().into_bytes();
        for element in [call.bucket, call.key].into_iter().flatten() {
            path.push(b'/');
            encode_path(element, &mut path);
        }
        Ok((call.query.append_to(path)?, self.host.clone()))
    }

    fn authorize(
        &self,
        _method: &Method,
        _uri: &Uri,
        headers: &mut HeaderMap,
        _body: &Payload,
        _now: Timestamp,
    ) -> Result<Option<ChunkSignatureChain>> {
        if let Some(token) = &self.token {
            headers.insert("x-auth-token", token.clone());
        }
        Ok(None)
    }

    fn classify_and_record(&self, response: &ErrorResponse<'_>) -> ClassifiedError {
        classify_and_record(response)
    }
}
