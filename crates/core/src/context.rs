//! The context of a request, passed through every layer: its deadline, its cancellation, its memory
//! window and its client.

use std::future::Future;
use std::sync::Arc;

use crate::budget::Window;
pub use crate::deadline::Deadline;
use crate::error::Result;

/// The context of a request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// The deadline and cancellation of the request. Enforced by every store and layer.
    pub deadline: Deadline,
    /// The request's memory, reserved at admission.
    pub window: Arc<Window>,
    /// The access key id of the client, if any. For layers that treat clients differently; authorization is already
    /// done.
    pub client: Option<Arc<str>>,
}

impl Context {
    /// A context for an admitted request.
    #[must_use]
    pub const fn new(deadline: Deadline, window: Arc<Window>) -> Self {
        Self { deadline, window, client: None }
    }

    /// Sets the client.
    #[must_use]
    pub fn with_client(self, client: Option<Arc<str>>) -> Self {
        Self { client, ..self }
    }

    /// See [`Deadline::check`].
    pub fn check(&self) -> Result<()> {
        self.deadline.check()
    }

    /// See [`Deadline::guard`].
    pub fn guard<'a, F>(&'a self, work: F) -> impl Future<Output = Result<F::Output>> + use<'a, F>
    where
        F: Future,
    {
        self.deadline.guard(work)
    }
}
