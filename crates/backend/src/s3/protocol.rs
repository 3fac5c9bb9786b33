//! What is S3's own of sending a request: its URLs, its signature, its refusals.

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::{Payload, Signer};

use super::endpoint::Endpoint;
use super::failure::Refusal;
use crate::remote::client::{Call, Protocol, Refused, Subject};

/// Says that a checksum follows the body.
pub(super) const TRAILER: &str = "x-amz-trailer";

/// Where to ask, and as whom.
pub(super) struct S3 {
    pub endpoint: Endpoint,
    /// `None` asks without a signature.
    pub signer: Option<Signer>,
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
        length: u64,
        now: Timestamp,
    ) -> Result<()> {
        let Some(signer) = &self.signer else { return Ok(()) };
        let payload = match length {
            _ if headers.contains_key(TRAILER) => Payload::UnsignedTrailer,
            0 => Payload::Empty,
            _ => Payload::Unsigned,
        };
        signer.sign(method, uri, headers, payload, now).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("the request cannot be signed: {e}"), e)
        })
    }

    fn refuse(
        &self,
        status: StatusCode,
        _headers: &HeaderMap,
        body: &[u8],
        subject: Subject,
        what: &str,
    ) -> Refused {
        let refusal = Refusal::read(body);
        let (is_passing, is_before_all) = (refusal.is_passing(status), refusal.is_before_all(status));
        Refused { error: refusal.into_error(status, subject, what), is_passing, is_before_all }
    }
}
