//! The CORS preflight: a browser's `OPTIONS` before a request of a script. This server has no CORS settings, so the
//! response is that of S3 for a bucket without them. It depends on neither the bucket's existence nor a signature: a
//! browser sends no credentials, and those in a presigned URL are for the method that follows.

use http::request::Parts;

use super::operation::Target;
use crate::error::{Code, WireError};

/// The error of every `OPTIONS` request. The path must begin with the bucket.
pub(crate) fn preflight_error(parts: &Parts) -> WireError {
    let requested = parts.headers.get("access-control-request-method").and_then(|value| value.to_str().ok());
    let is_object = Target::parse(parts.uri.path()).is_ok_and(|target| target.key.is_some());
    WireError::new(Code::AccessForbidden, "CORSResponse: CORS is not enabled for this bucket.")
        .with_field("Method", requested.unwrap_or("OPTIONS"))
        .with_field("ResourceType", if is_object { "OBJECT" } else { "BUCKET" })
}
