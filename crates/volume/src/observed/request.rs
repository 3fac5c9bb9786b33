//! One request as its store's model is to see it.

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{Clock, Observation};
use tradewind_model::store_model::{End, Failure, Operation, StoreModel, Underway};

/// What all requests to a store share.
#[derive(Debug)]
pub(super) struct Watch {
    pub model: Arc<StoreModel>,
    pub clock: Arc<dyn Clock>,
}

/// A request under way, from the call to its last byte. Dropping it before its end is giving it up.
///
/// It measures how long the caller waits for the store: not how long the caller itself takes between one piece and the
/// next, which says nothing of the store.
#[derive(Debug)]
pub(super) struct Request {
    watch: Arc<Watch>,
    operation: Operation,
    /// `None` once it has ended.
    underway: Option<Underway>,
    begun: Duration,
    waited: Duration,
    /// Since when the caller waits, where it does.
    since: Option<Duration>,
}

/// What the caller waited for is here, or will not come.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    now: Duration,
    /// How long the caller waited for this.
    waited: Duration,
}

impl Request {
    /// Begins one, for which the caller waits from now on.
    pub fn begin(watch: &Arc<Watch>, operation: Operation) -> Self {
        let underway = Some(watch.model.begin(operation));
        let begun = watch.clock.now();
        Self { watch: watch.clone(), operation, underway, begun, waited: Duration::ZERO, since: Some(begun) }
    }

    /// The caller waits from now on, where it does not already.
    pub fn wait(&mut self) {
        if self.since.is_none() {
            self.since = Some(self.watch.clock.now());
        }
    }

    /// The caller waits no more.
    pub fn come(&mut self) -> Arrival {
        let now = self.watch.clock.now();
        let waited = self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.waited += waited;
        Arrival { now, waited }
    }

    /// What came was the beginning of the answer, to a request that carries so many bytes in all.
    pub fn answered(&self, at: Arrival, bytes: u64, observation: &Observation) {
        if let Some(underway) = &self.underway {
            self.watch.model.answered(at.now, underway, bytes, at.waited, observation.queued);
        }
    }

    /// What came was a piece of the object, or was taken.
    pub fn carried(&self, at: Arrival, bytes: usize) {
        if let Some(direction) = self.operation.direction() {
            self.watch.model.moved(at.now, direction, bytes as u64);
        }
    }

    /// All is done; so many bytes were carried.
    pub fn done(&mut self, at: Arrival, bytes: u64) {
        self.end(at, End::Done { bytes, service: self.waited });
    }

    /// It failed. What comes after that does not count.
    pub fn failed(&mut self, at: Arrival, error: &Error) {
        self.end(at, self.how_it_ended(at, error));
    }

    /// Ends as an answer says that is the whole of it.
    pub fn end_as<T>(mut self, answer: &Result<T>, bytes: impl FnOnce(&T) -> u64) {
        let at = self.come();
        match answer {
            Ok(answer) => self.done(at, bytes(answer)),
            Err(error) => self.failed(at, error),
        }
    }

    fn end(&mut self, at: Arrival, end: End) {
        if let Some(underway) = self.underway.take() {
            self.watch.model.end(at.now, underway, end);
        }
    }

    /// What an error says of the store.
    fn how_it_ended(&self, at: Arrival, error: &Error) -> End {
        let given_up = End::GivenUp { waited: self.waited };
        let is_callers = at.now.saturating_sub(self.begun) > self.waited * 2;
        match (error.reason(), error.kind()) {
            (Reason::Cancelled, _) => given_up,
            // The time went by without anything being asked of the store.
            (Reason::DeadlineExceeded, _) if is_callers => given_up,
            (Reason::DeadlineExceeded, _) => End::Failed(Failure::Late),
            (_, ErrorKind::Busy) => End::Failed(Failure::Busy),
            (_, ErrorKind::Unavailable) => End::Failed(Failure::Unavailable),
            (_, ErrorKind::Corrupt) => End::Failed(Failure::Corrupt),
            (_, ErrorKind::Internal) => End::Failed(Failure::Internal),
            (_, ErrorKind::NotFound | ErrorKind::Precondition | ErrorKind::Invalid | ErrorKind::Denied) => {
                End::Refused
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.underway.is_some() {
            let at = self.come();
            self.end(at, End::GivenUp { waited: self.waited });
        }
    }
}
