//! Extensions of a response, for the server's log and metrics: the operation's name, and the error that caused an error
//! response, which the server logs once. They never leave the process.

use std::sync::Arc;

use http::Response;

use crate::error::WireError;

/// The name of the S3 operation that was executed, as in AWS (`GetObject`). Used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationName(pub &'static str);

/// The error that caused an error response, for the log.
#[derive(Debug, Clone)]
pub struct LoggedError(pub Arc<WireError>);

/// Attaches the operation's name to a response.
pub fn set_operation<B>(response: &mut Response<B>, operation: &'static str) {
    response.extensions_mut().insert(OperationName(operation));
}

/// Attaches the error to a response.
pub fn set_logged_error<B>(response: &mut Response<B>, error: WireError) {
    response.extensions_mut().insert(LoggedError(Arc::new(error)));
}
