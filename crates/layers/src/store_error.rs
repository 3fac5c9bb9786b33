//! The name of a store in the errors of a layer over several stores.

use std::fmt;

use tradewind_core::error::{ErrorKind, Reason, Result};

/// The name of one of the stores below a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreName<'a> {
    /// The role of the store in the layer: `volume`, `tier`.
    pub role: &'static str,
    /// Its name.
    pub name: &'a str,
}

impl StoreName<'_> {
    /// Adds the name to an error that is about the store, not about the request.
    pub fn in_error<T>(self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let is_about_store = !matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Precondition | ErrorKind::Invalid | ErrorKind::Denied
            ) && !matches!(error.reason(), Reason::DeadlineExceeded | Reason::Cancelled)
                && error.client_message().is_none();
            match is_about_store {
                true => {
                    let message = format!("{self}: {}", error.message());
                    error.with_message(message)
                }
                false => error,
            }
        })
    }
}

impl fmt::Display for StoreName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.role, self.name)
    }
}
