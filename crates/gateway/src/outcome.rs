//! Facts that a response carries to the server besides its HTTP form: the operation's name, for logs and metrics, and
//! the failure that caused an error response, which the server logs once. Both are stored in the response's extensions
//! and never leave the process.

use std::sync::Arc;

use http::Response;

use crate::error::WireError;

/// The S3 operation that was executed, by its AWS name (`GetObject`). Used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation(pub &'static str);

/// The failure that caused an error response.
#[derive(Debug, Clone)]
pub struct Failure(pub Arc<WireError>);

/// Attaches the operation's name to a response.
pub fn set_operation<B>(response: &mut Response<B>, operation: &'static str) {
    response.extensions_mut().insert(Operation(operation));
}

/// Attaches the failure to a response.
pub fn set_failure<B>(response: &mut Response<B>, failure: WireError) {
    response.extensions_mut().insert(Failure(Arc::new(failure)));
}
