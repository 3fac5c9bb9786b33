//! Error responses of the services that issue credentials. Each has its own format: XML, JSON or plain text.

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;
use serde_json::Value as Json;
use tradewind_core::error::{Error, Reason};

use crate::remote::client::{ClassifiedError, ErrorResponse};
use crate::remote::status::{is_retryable_status, reason_of_status};
use crate::s3::xml::for_each_element;

/// Maximum number of characters of a service's message in an error.
const MAX_QUOTED_CHARS: usize = 300;
/// Codes of transient errors with a status that does not say so.
const RETRYABLE_CODES: [&str; 4] =
    ["Throttling", "ThrottlingException", "TooManyRequestsException", "IDPCommunicationError"];

/// The source of an error that an error response caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    pub status: StatusCode,
    /// The service's error code; empty if it sent none.
    pub code: String,
    /// The service's message; empty if it sent none.
    message: String,
}

impl Rejection {
    /// The rejection that caused an error, if any.
    pub fn cause_of(error: &Error) -> Option<&Self> {
        let mut next = error.source();
        while let Some(cause) = next {
            if let Some(rejection) = cause.downcast_ref() {
                return Some(rejection);
            }
            next = cause.source();
        }
        None
    }

    fn parse(status: StatusCode, body: &[u8]) -> Self {
        let (mut code, mut message) = (String::new(), String::new());
        if let Ok(document) = serde_json::from_slice::<Json>(body) {
            let text = |names: &[&str]| names.iter().find_map(|name| document[name].as_str()).map(quotable);
            code = text(&["code", "Code", "__type", "error"]).unwrap_or_default();
            message = text(&["message", "Message", "error_description"]).unwrap_or_default();
        } else {
            // Anything else than XML, such as the HTML of a proxy, leaves both empty.
            let _ = for_each_element(body, |path, text| match path.last() {
                Some(&"Code") => code = quotable(text),
                Some(&"Message") => message = quotable(text),
                _ => {}
            });
        }
        Self { status, code, message }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        match (self.code.as_str(), self.message.as_str()) {
            ("", "") => Ok(()),
            (text, "") | ("", text) => write!(f, " ({text})"),
            (code, message) => write!(f, " ({code}: {message})"),
        }
    }
}

impl StdError for Rejection {}

/// Classifies an error response.
pub(super) fn classify(response: &ErrorResponse<'_>) -> ClassifiedError {
    let ErrorResponse { status, body, resource, request, .. } = *response;
    let rejection = Rejection::parse(status, body);
    let is_retryable = is_retryable_status(status) || RETRYABLE_CODES.contains(&rejection.code.as_str());
    let reason = match reason_of_status(status, resource) {
        // The service rejects the request for credentials, whatever its status.
        Reason::InvalidRequest if !is_retryable => Reason::AccessDenied,
        reason => reason,
    };
    let message = format!("{request}: {rejection}");
    ClassifiedError {
        error: Error::with_source(reason, message, rejection),
        is_retryable,
        is_unprocessed: false,
    }
}

/// The text in one line of bounded length.
fn quotable(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_read_from_xml_json_and_text() {
        let read = |body: &str| Rejection::parse(StatusCode::FORBIDDEN, body.as_bytes()).to_string();
        let sts = "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>\
                   <Code>AccessDenied</Code><Message>User: x is not\n authorized</Message></Error></ErrorResponse>";
        assert_eq!(read(sts), "403 Forbidden (AccessDenied: User: x is not authorized)");
        assert_eq!(
            read("{\"message\": \"Session token not found\"}"),
            "403 Forbidden (Session token not found)"
        );
        assert_eq!(read("{\"code\": \"C\", \"message\": \"m\"}"), "403 Forbidden (C: m)");
        assert_eq!(read("<html><body>no</body></html>"), "403 Forbidden");
        assert_eq!(read("not"), "403 Forbidden");
    }
}
