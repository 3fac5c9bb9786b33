//! Translates Swift's error responses into the port's errors. Only the status is significant; a plain-text body is
//! added to the message. <https://docs.openstack.org/api-ref/object-store/>

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use tradewind_core::error::{Error, Reason};

use crate::remote::client::{ClassifiedError, ErrorResponse, ResourceKind};
use crate::remote::status::{is_retryable_status, reason_of_status};

/// Maximum number of characters of a body in an error message.
const MAX_QUOTED_CHARS: usize = 200;

/// The source of an error caused by a rejected token; a retry with a new token may succeed.
#[derive(Debug)]
pub(super) struct Unauthorized;

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("401 Unauthorized")
    }
}

impl StdError for Unauthorized {}

/// Returns true if the error was caused by a rejected token.
pub(super) fn is_unauthorized(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<Unauthorized>())
}

/// Classifies an error response.
pub(super) fn classify_and_record(response: &ErrorResponse<'_>) -> ClassifiedError {
    let ErrorResponse { status, headers, body, resource, request } = *response;
    let is_text = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    let text: String = match std::str::from_utf8(body) {
        Ok(text) if is_text => {
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_QUOTED_CHARS).collect()
        }
        _ => String::new(),
    };
    let text = if text.is_empty() { text } else { format!(" ({text})") };
    let message = format!("{request}: the store answered {status}{text}");
    let error = match status {
        StatusCode::UNAUTHORIZED => {
            let message = format!("{message}; check the user, the key and the account");
            Error::with_source(Reason::AccessDenied, message, Unauthorized).affecting_whole_bucket()
        }
        StatusCode::FORBIDDEN => {
            let why = "neither the user's roles nor an access list of the container allows it";
            Error::new(Reason::AccessDenied, format!("{message}; {why}"))
        }
        _ => Error::new(reason(status, resource), message),
    };
    ClassifiedError {
        error,
        is_retryable: is_retryable_status(status) || matches!(status.as_u16(), 408 | 498),
        // Sent by rate limiters: 429 by one in front of Swift, 498 by Swift's own.
        is_unprocessed: matches!(status.as_u16(), 429 | 498),
    }
}

/// Adds the statuses that Swift uses in its own way.
fn reason(status: StatusCode, resource: ResourceKind) -> Reason {
    match status.as_u16() {
        408 | 499 => Reason::Io,
        422 => Reason::BadDigest,
        498 => Reason::Overloaded,
        _ => reason_of_status(status, resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue};

    #[test]
    fn refuse_classifies_by_status_and_quotes_plain_text() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let read = |status: u16, resource| {
            classify_and_record(&ErrorResponse {
                status: StatusCode::from_u16(status).unwrap(),
                headers: &headers,
                body: b"Errors:\n/c/o, 404 Not Found",
                resource,
                request: "x",
            })
        };
        let classified = read(400, ResourceKind::Object);
        let message = "x: the store answered 400 Bad Request (Errors: /c/o, 404 Not Found)";
        assert_eq!(
            (classified.error.reason(), classified.error.message()),
            (Reason::InvalidRequest, message)
        );
        assert_eq!(read(404, ResourceKind::Bucket).error.reason(), Reason::NoSuchBucket);
        assert!(
            read(503, ResourceKind::Object).is_retryable && !read(503, ResourceKind::Object).is_unprocessed
        );
        assert!(read(498, ResourceKind::Object).is_unprocessed);
        assert!(is_unauthorized(&read(401, ResourceKind::Object).error));
        assert!(!is_unauthorized(&read(403, ResourceKind::Object).error));
    }
}
