//! The meaning of HTTP status codes without an error code of the protocol. Each protocol evaluates its own codes and
//! statuses first.

use http::StatusCode;
use tradewind_core::error::Reason;

use super::client::ResourceKind;

/// The reason of an error response about a resource.
pub(crate) fn reason_of_status(status: StatusCode, resource: ResourceKind) -> Reason {
    match (status.as_u16(), resource) {
        (304, _) => Reason::NotModified,
        (401 | 403, _) => Reason::AccessDenied,
        (404, ResourceKind::Upload) => Reason::NoSuchUpload,
        (404, ResourceKind::Object) => Reason::NoSuchKey,
        (404, ResourceKind::Bucket) => Reason::NoSuchBucket,
        (405 | 501, _) => Reason::Unsupported,
        (409, _) => Reason::Conflict,
        (412, _) => Reason::PreconditionFailed,
        (413, _) => Reason::EntityTooLarge,
        (416, _) => Reason::InvalidRange,
        (429, _) => Reason::Overloaded,
        (507, _) => Reason::Full,
        (500..=599, _) => Reason::Io,
        _ => Reason::InvalidRequest,
    }
}

/// Returns true if the same request may succeed later.
pub(crate) fn is_retryable_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

/// Returns true if all requests would get this status now: the service is overloaded, or a proxy cannot reach it. A 500
/// may be due to one object.
pub(crate) fn is_unavailable_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
