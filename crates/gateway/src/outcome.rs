//! What an answer says to the server besides its HTTP form: the operation's name, for logs and
//! metrics, and the failure behind an error answer, which the server logs once. Both ride in the
//! response's extensions and never leave the process.

use std::sync::Arc;

use http::Response;

use crate::error::WireError;

/// The S3 operation that was carried out, as AWS names it (`GetObject`): a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation(pub &'static str);

/// The failure behind an error answer.
#[derive(Debug, Clone)]
pub struct Failure(pub Arc<WireError>);

/// Notes the operation on the answer.
pub fn note_operation<B>(response: &mut Response<B>, operation: &'static str) {
    response.extensions_mut().insert(Operation(operation));
}

/// Notes the failure on the answer.
pub fn note_failure<B>(response: &mut Response<B>, failure: WireError) {
    response.extensions_mut().insert(Failure(Arc::new(failure)));
}
