//! Timing of one request, reported to the store's model.

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{Clock, Observation};
use tradewind_model::store_model::{RequestOutcome, Failure, Operation, StoreModel, InFlightRequest};

/// State shared by all requests to a store.
#[derive(Debug)]
pub(super) struct Watch {
    pub model: Arc<StoreModel>,
    pub clock: Arc<dyn Clock>,
}

/// A request in flight, from the call to its last byte. Dropping it earlier reports it as abandoned.
///
/// It measures how long the caller waits for the store, and excludes the time that the caller itself takes between
/// pieces.
#[derive(Debug)]
pub(super) struct Request {
    watch: Arc<Watch>,
    operation: Operation,
    /// `None` once the request has ended.
    underway: Option<InFlightRequest>,
    started: Duration,
    waited: Duration,
    /// Start of the current wait; `None` while the caller does not wait.
    since: Option<Duration>,
}

/// The end of a wait: something arrived, or failed.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    now: Duration,
    /// Duration of this wait.
    waited: Duration,
}

impl Request {
    /// Starts a request; the caller waits from now on.
    pub fn begin(watch: &Arc<Watch>, operation: Operation) -> Self {
        let underway = Some(watch.model.begin(operation));
        let started = watch.clock.now();
        Self {
            watch: watch.clone(),
            operation,
            underway,
            started,
            waited: Duration::ZERO,
            since: Some(started),
        }
    }

    /// Starts a wait, unless one is running.
    pub fn wait(&mut self) {
        if self.since.is_none() {
            self.since = Some(self.watch.clock.now());
        }
    }

    /// Ends the current wait.
    pub fn come(&mut self) -> Arrival {
        let now = self.watch.clock.now();
        let waited = self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.waited += waited;
        Arrival { now, waited }
    }

    /// Records the first byte of the response to a request that transfers `bytes` in total.
    pub fn answered(&self, at: Arrival, bytes: u64, observation: &Observation) {
        if let Some(underway) = &self.underway {
            self.watch.model.record_first_byte(at.now, underway, bytes, at.waited, observation.queued);
        }
    }

    /// Records a piece of the body that was received or accepted.
    pub fn carried(&self, at: Arrival, bytes: usize) {
        if let Some(direction) = self.operation.direction() {
            self.watch.model.record_bytes(at.now, direction, bytes as u64);
        }
    }

    /// Completes the request, which transferred `bytes`.
    pub fn done(&mut self, at: Arrival, bytes: u64) {
        self.end(at, RequestOutcome::Done { bytes, service: self.waited });
    }

    /// Ends the request with an error. Later events are ignored.
    pub fn failed(&mut self, at: Arrival, error: &Error) {
        self.end(at, self.outcome_of(at, error));
    }

    /// Ends a request that consists of a single response.
    pub fn end_as<T>(mut self, response: &Result<T>, bytes: impl FnOnce(&T) -> u64) {
        let at = self.come();
        match response {
            Ok(response) => self.done(at, bytes(response)),
            Err(error) => self.failed(at, error),
        }
    }

    fn end(&mut self, at: Arrival, end: RequestOutcome) {
        if let Some(underway) = self.underway.take() {
            self.watch.model.end(at.now, underway, end);
        }
    }

    /// The outcome that an error means for the store.
    fn outcome_of(&self, at: Arrival, error: &Error) -> RequestOutcome {
        let abandoned = RequestOutcome::Cancelled { waited: self.waited };
        let is_callers_delay = at.now.saturating_sub(self.started) > self.waited * 2;
        match (error.reason(), error.kind()) {
            (Reason::Cancelled, _) => abandoned,
            // Most of the time passed while the caller did not wait for the store.
            (Reason::DeadlineExceeded, _) if is_callers_delay => abandoned,
            (Reason::DeadlineExceeded, _) => RequestOutcome::Failed(Failure::TimedOut),
            (_, ErrorKind::Busy) => RequestOutcome::Failed(Failure::Busy),
            (_, ErrorKind::Unavailable) => RequestOutcome::Failed(Failure::Unavailable),
            (_, ErrorKind::Corrupt) => RequestOutcome::Failed(Failure::Corrupt),
            (_, ErrorKind::Internal) => RequestOutcome::Failed(Failure::Internal),
            (_, ErrorKind::NotFound | ErrorKind::Precondition | ErrorKind::Invalid | ErrorKind::Denied) => {
                RequestOutcome::Rejected
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.underway.is_some() {
            let at = self.come();
            self.end(at, RequestOutcome::Cancelled { waited: self.waited });
        }
    }
}
