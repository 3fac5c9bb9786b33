//! Timing of one request, recorded in the store's statistics.

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{Clock, Observation};
use tradewind_model::store_statistics::{
    Failure, InFlightRequest, Operation, RequestOutcome, StoreStatistics,
};

/// State shared by all requests to a store.
#[derive(Debug)]
pub(super) struct Instruments {
    pub statistics: Arc<StoreStatistics>,
    pub clock: Arc<dyn Clock>,
}

/// A request in flight, from the call to its last byte. Dropping it earlier records it as cancelled.
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

/// The end of a wait, with a response, a piece or an error.
#[derive(Clone, Copy)]
pub(super) struct WaitEnd {
    now: Duration,
    /// Duration of this wait.
    waited: Duration,
}

impl RequestTimer {
    /// Starts a request; the caller waits from now on.
    pub fn start(instruments: &Arc<Instruments>, operation: Operation) -> Self {
        let in_flight = Some(instruments.statistics.begin(operation));
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
    pub fn end_wait(&mut self) -> WaitEnd {
        let now = self.instruments.clock.now();
        let waited = self.waiting_since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.waited += waited;
        WaitEnd { now, waited }
    }

    /// Records the first byte of the response to a request that transfers `bytes` in total.
    pub fn record_first_byte(&self, wait_end: WaitEnd, bytes: u64, observation: &Observation) {
        if let Some(in_flight) = &self.in_flight {
            let WaitEnd { now, waited } = wait_end;
            self.instruments.statistics.record_first_byte(now, in_flight, bytes, waited, observation.queued);
        }
    }

    /// Records a piece of the body that was received or accepted.
    pub fn record_bytes(&self, wait_end: WaitEnd, bytes: usize) {
        if let Some(direction) = self.operation.direction() {
            self.instruments.statistics.record_bytes(wait_end.now, direction, bytes as u64);
        }
    }

    /// Completes the request, which transferred `bytes`.
    pub fn complete(&mut self, wait_end: WaitEnd, bytes: u64) {
        self.end(wait_end, RequestOutcome::Done { bytes, response_time: self.waited });
    }

    /// Ends the request with an error. Later events are ignored.
    pub fn fail(&mut self, wait_end: WaitEnd, error: &Error) {
        self.end(wait_end, self.outcome_of(wait_end, error));
    }

    /// Ends a request that consists of a single response.
    pub fn end_with_response<T>(mut self, response: &Result<T>, bytes: impl FnOnce(&T) -> u64) {
        let wait_end = self.end_wait();
        match response {
            Ok(response) => self.complete(wait_end, bytes(response)),
            Err(error) => self.fail(wait_end, error),
        }
    }

    fn end(&mut self, wait_end: WaitEnd, outcome: RequestOutcome) {
        if let Some(in_flight) = self.in_flight.take() {
            self.instruments.statistics.end(wait_end.now, in_flight, outcome);
        }
    }

    /// The outcome to record for an error.
    fn outcome_of(&self, wait_end: WaitEnd, error: &Error) -> RequestOutcome {
        let cancelled = RequestOutcome::Cancelled { waited: self.waited };
        let is_callers_delay = wait_end.now.saturating_sub(self.started) > self.waited * 2;
        match (error.reason(), error.kind()) {
            (Reason::Cancelled, _) => cancelled,
            // Most of the time passed while the caller did not wait for the store.
            (Reason::DeadlineExceeded, _) if is_callers_delay => cancelled,
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
            let wait_end = self.end_wait();
            self.end(wait_end, RequestOutcome::Cancelled { waited: self.waited });
        }
    }
}
