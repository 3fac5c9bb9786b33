//! Extensions of a response, for the server's log and metrics: the operation's name, and the error that caused an error
//! response, which the server logs once. They never leave the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use http::{Response, StatusCode};

use crate::error::WireError;

/// The name of the S3 operation that was executed, as in AWS (`GetObject`). Used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationName(pub &'static str);

/// The error that caused an error response, for the log.
#[derive(Debug, Clone)]
pub struct LoggedError(pub Arc<WireError>);

/// The status of an operation whose response had its head before the result was known, for the metrics.
#[derive(Debug, Clone, Default)]
pub struct LateStatus(Arc<AtomicU16>);

impl LateStatus {
    /// Sets the status of the result.
    pub fn set(&self, status: StatusCode) {
        self.0.store(status.as_u16(), Ordering::Relaxed);
    }

    /// The status of the result; `None` if it is not known yet.
    #[must_use]
    pub fn get(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// Attaches the operation's name to a response.
pub fn set_operation<B>(response: &mut Response<B>, operation: &'static str) {
    response.extensions_mut().insert(OperationName(operation));
}

/// Attaches the error to a response.
pub fn set_logged_error<B>(response: &mut Response<B>, error: WireError) {
    response.extensions_mut().insert(LoggedError(Arc::new(error)));
}
