//! Why an operation failed, with the headers that its answer carries besides (`ETag` of a 304,
//! `Content-Range` of a 416).

use http::{HeaderMap, HeaderName, HeaderValue};

use super::operation::not_implemented;
use crate::error::{Code, WireError};

/// The result of an operation of ours.
pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure on its way to the answer.
#[derive(Debug)]
pub(super) struct Failure {
    /// What went wrong.
    pub(super) error: WireError,
    /// Headers of the answer.
    pub(super) headers: Option<Box<HeaderMap>>,
}

impl Failure {
    /// A failure with a message for the client.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        WireError::new(code, message.into()).into()
    }

    /// An argument is wrong.
    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The request contradicts itself.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    /// The body is not the XML it should be.
    pub(super) fn xml() -> Self {
        Self::new(
            Code::MalformedXml,
            "The XML you provided was not well-formed or did not validate against our published schema",
        )
    }

    /// There is no room for what the request needs besides its window.
    pub(super) fn no_memory() -> Self {
        Self::new(Code::SlowDown, "There is no memory for this request now. Please try again.")
    }

    /// This is not here.
    pub(super) fn not_implemented(what: &str) -> Self {
        not_implemented(what).into()
    }

    /// Adds a header to the answer.
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
        WireError::from(error).into()
    }
}
