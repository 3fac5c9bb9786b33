//! The context of a request, passed through every layer: its deadline, its cancellation, its memory
//! window and its client.

use std::future::Future;
use std::sync::Arc;

use crate::budget::Window;
pub use crate::deadline::Deadline;
use crate::device_gate::DeviceGate;
use crate::error::Result;
use crate::send_progress::SendProgress;

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
    /// The observer of a write's progress on its connections, if any. Leaves without connections ignore it.
    pub send_progress: Option<Arc<SendProgress>>,
    /// The behaviour of a leaf if it does not learn whether a service carried out a change of an object.
    pub on_unknown_outcome: OnUnknownOutcome,
    /// The gate of the leaf's device, if a layer schedules it. Set by that layer alone.
    pub device_gate: Option<Arc<dyn DeviceGate>>,
    /// True for the rest of a request that a store has begun to serve: a full queue delays it, but does not reject it.
    pub is_admitted: bool,
    /// True for a request that finds out whether a service responds: a leaf opens a new connection for it, also beyond its
    /// limit.
    pub is_probe: bool,
}

/// The behaviour of a leaf if no response says whether a service carried out a change of an object.
/// Such a request may be carried out later, also after one that repeated it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnknownOutcome {
    /// It sends the request again if that has the same result.
    #[default]
    Repeat,
    /// It fails: the caller must know that the request may be carried out later.
    Fail,
}

impl Context {
    /// A context for an admitted request.
    #[must_use]
    pub const fn new(deadline: Deadline, window: Arc<Window>) -> Self {
        let on_unknown_outcome = OnUnknownOutcome::Repeat;
        Self {
            deadline,
            window,
            client: None,
            send_progress: None,
            on_unknown_outcome,
            device_gate: None,
            is_admitted: false,
            is_probe: false,
        }
    }

    /// Sets the client.
    #[must_use]
    pub fn with_client(self, client: Option<Arc<str>>) -> Self {
        Self { client, ..self }
    }

    /// Sets the observer of a write's progress.
    #[must_use]
    pub fn with_send_progress(self, progress: Arc<SendProgress>) -> Self {
        Self { send_progress: Some(progress), ..self }
    }

    /// Sets the behaviour of a leaf after a change of unknown outcome.
    #[must_use]
    pub fn with_on_unknown_outcome(self, on_unknown_outcome: OnUnknownOutcome) -> Self {
        Self { on_unknown_outcome, ..self }
    }

    /// Sets the gate of the leaf's device.
    #[must_use]
    pub fn with_device_gate(self, gate: Arc<dyn DeviceGate>) -> Self {
        Self { device_gate: Some(gate), ..self }
    }

    /// Marks calls as the rest of a request that a store has begun to serve.
    #[must_use]
    pub fn admitted(self) -> Self {
        Self { is_admitted: true, ..self }
    }

    /// Marks a request that finds out whether a service responds.
    #[must_use]
    pub fn probing(self) -> Self {
        Self { is_probe: true, ..self }
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
