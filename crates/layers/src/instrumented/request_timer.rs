//! Timing of one request, reported to the store's model.

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{Clock, Observation};
use tradewind_model::store_model::{Failure, InFlightRequest, Operation, RequestOutcome, StoreModel};

/// State shared by all requests to a store.
#[derive(Debug)]
pub(super) struct Instruments {
    pub model: Arc<StoreModel>,
    pub clock: Arc<dyn Clock>,
}

/// A request in flight, from the call to its last byte. Dropping it earlier reports it as abandoned.
///
/// It measures how long the caller waits for the store, and excludes the time that the caller itself takes between
/// pieces.
#[derive(Debug)]
pub(super) struct RequestTimer {
    instruments: Arc<Instruments>,
    operation: Operation,
    /// `None` once the request has ended.
    in_flight: Option<InFlightRequest>,
    started: Duration,
    /// Total time that the caller waited, without the current wait.
    waited: Duration,
    /// Start of the current wait; `None` while the caller does not wait.
    waiting_since: Option<Duration>,
}

/// The end of a wait: something arrived, or failed.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    now: Duration,
    /// Duration of this wait.
    waited: Duration,
}

impl RequestTimer {
    /// Starts a request; the caller waits from now on.
    pub fn start(instruments: &Arc<Instruments>, operation: Operation) -> Self {
        let in_flight = Some(instruments.model.begin(operation));
        let started = instruments.clock.now();
        Self {
            instruments: instruments.clone(),
            operation,
            in_flight,
            started,
            waited: Duration::ZERO,
            waiting_since: Some(started),
        }
    }

    /// Starts a wait, unless one is running.
    pub fn start_wait(&mut self) {
        if self.waiting_since.is_none() {
            self.waiting_since = Some(self.instruments.clock.now());
        }
    }

    /// Ends the current wait.
    pub fn end_wait(&mut self) -> Arrival {
        let now = self.instruments.clock.now();
        let waited = self.waiting_since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.waited += waited;
        Arrival { now, waited }
    }

    /// Records the first byte of the response to a request that transfers `bytes` in total.
    pub fn record_first_byte(&self, at: Arrival, bytes: u64, observation: &Observation) {
        if let Some(in_flight) = &self.in_flight {
            self.instruments.model.record_first_byte(at.now, in_flight, bytes, at.waited, observation.queued);
        }
    }

    /// Records a piece of the body that was received or accepted.
    pub fn record_bytes(&self, at: Arrival, bytes: usize) {
        if let Some(direction) = self.operation.direction() {
            self.instruments.model.record_bytes(at.now, direction, bytes as u64);
        }
    }

    /// Completes the request, which transferred `bytes`.
    pub fn complete(&mut self, at: Arrival, bytes: u64) {
        self.end(at, RequestOutcome::Done { bytes, service: self.waited });
    }

    /// Ends the request with an error. Later events are ignored.
    pub fn fail(&mut self, at: Arrival, error: &Error) {
        self.end(at, self.outcome_of(at, error));
    }

    /// Ends a request that consists of a single response.
    pub fn end_with_response<T>(mut self, response: &Result<T>, bytes: impl FnOnce(&T) -> u64) {
        let at = self.end_wait();
        match response {
            Ok(response) => self.complete(at, bytes(response)),
            Err(error) => self.fail(at, error),
        }
    }

    fn end(&mut self, at: Arrival, outcome: RequestOutcome) {
        if let Some(in_flight) = self.in_flight.take() {
            self.instruments.model.end(at.now, in_flight, outcome);
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

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if self.in_flight.is_some() {
            let at = self.end_wait();
            self.end(at, RequestOutcome::Cancelled { waited: self.waited });
        }
    }
}
