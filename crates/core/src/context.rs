//! What travels with a request through every layer: its deadline, its cancellation, its memory
//! window and who asks.

use std::future::Future;
use std::sync::Arc;

use crate::budget::Window;
pub use crate::deadline::Deadline;
use crate::error::Result;

/// What travels with a request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// When the request is over, done or not. Enforced by every store and layer.
    pub deadline: Deadline,
    /// The request's memory, reserved at admission.
    pub window: Arc<Window>,
    /// The id of the access key of whoever asks; `None` for nobody in particular. What it may do was found out before: this
    /// is for layers that treat clients differently.
    pub client: Option<Arc<str>>,
}

impl Context {
    /// A context for an admitted request.
    #[must_use]
    pub const fn new(deadline: Deadline, window: Arc<Window>) -> Self {
        Self { deadline, window, client: None }
    }

    /// The same, asked by a client.
    #[must_use]
    pub fn of_client(self, client: Option<Arc<str>>) -> Self {
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
