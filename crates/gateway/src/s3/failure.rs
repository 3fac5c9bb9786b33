//! The error of an operation, with additional headers of its response (`ETag` of a 304, `Content-Range` of a 416, the
//! delete marker of a 404).

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tradewind_core::Reason;

use super::operation::not_implemented_error;
use super::response::http_date;
use super::version_id;
use crate::error::{Code, WireError};

/// The result of an operation.
pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure that becomes an error response.
#[derive(Debug)]
pub(super) struct Failure {
    /// The error.
    pub(super) error: WireError,
    /// Additional headers of the response.
    pub(super) headers: Option<Box<HeaderMap>>,
}

impl Failure {
    /// A failure with a message for the client.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        WireError::new(code, message.into()).into()
    }

    /// The argument of this name is invalid: a header, a query parameter or an element.
    pub(super) fn invalid_argument(message: impl Into<String>, name: &str, value: &str) -> Self {
        WireError::invalid_argument(message.into(), name, value).into()
    }

    /// Adds an element to the error document.
    pub(super) fn with_field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.error = self.error.with_field(name, value);
        self
    }

    /// The request is invalid or contradicts itself.
    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    /// The body is not valid XML for the operation.
    pub(super) fn malformed_xml() -> Self {
        Self::new(
            Code::MalformedXml,
            "The XML you provided was not well-formed or did not validate against our published schema.",
        )
    }

    /// The request needs more memory than its window, and the budget has none.
    pub(super) fn no_memory() -> Self {
        Self::new(Code::SlowDown, "The server has no memory for this request. Please try again.")
    }

    /// The named feature is not implemented.
    pub(super) fn not_implemented(feature: &str) -> Self {
        not_implemented_error(feature).into()
    }

    /// Adds a header to the response.
    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.get_or_insert_default().insert(name, value);
        self
    }

    /// S3's code.
    pub(super) const fn code(&self) -> Code {
        self.error.code()
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self { error, headers: None }
    }
}

impl From<tradewind_core::Error> for Failure {
    fn from(error: tradewind_core::Error) -> Self {
        let headers = error.delete_marker().map(|marker| Box::new(version_id::delete_marker_headers(marker)));
        let is_delete_marker = error.reason() == Reason::DeleteMarker;
        let created = error.delete_marker_time();
        let mut failure = Self { error: error.into(), headers };
        if is_delete_marker {
            failure = failure.with_header(header::ALLOW, HeaderValue::from_static("DELETE"));
        }
        if let Some(created) = created {
            failure = failure.with_header(header::LAST_MODIFIED, http_date(created));
        }
        failure
    }
}
