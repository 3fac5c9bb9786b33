//! What travels with a request through every layer: its deadline, its cancellation and its memory
//! window.

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
}

impl Context {
    /// A context for an admitted request.
    #[must_use]
    pub const fn new(deadline: Deadline, window: Arc<Window>) -> Self {
        Self { deadline, window }
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
