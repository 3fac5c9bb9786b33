//! When a request is over, done or not: a point in time or the caller's cancellation.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::{Error, Reason, Result};

/// A deadline and a cancellation, on a given clock.
#[derive(Debug, Clone)]
pub struct Deadline {
    clock: Arc<dyn Clock>,
    at: Option<Duration>,
    cancelled: Option<CancellationToken>,
}

impl Deadline {
    /// No deadline and no cancellation.
    #[must_use]
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self { clock, at: None, cancelled: None }
    }

    /// A deadline this long from now.
    #[must_use]
    pub fn after(clock: Arc<dyn Clock>, patience: Duration) -> Self {
        let at = clock.now() + patience;
        Self { clock, at: Some(at), cancelled: None }
    }

    /// The same, also ended by `token`.
    #[must_use]
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancelled = Some(token);
        self
    }

    /// The clock the deadline is on.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// An error where the deadline has passed or the caller has cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Err(cancelled());
        }
        if self.at.is_some_and(|at| self.clock.now() >= at) {
            return Err(passed());
        }
        Ok(())
    }

    /// Awaits `work`, but not past the deadline or cancellation: then `work` is dropped.
    pub async fn guard<F: Future>(&self, work: F) -> Result<F::Output> {
        if self.at.is_none() && self.cancelled.is_none() {
            return Ok(work.await);
        }
        self.check()?;
        let end = async {
            let time_out = async {
                match self.at {
                    Some(at) => self.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
                passed()
            };
            let cancel = async {
                match &self.cancelled {
                    Some(token) => token.cancelled().await,
                    None => std::future::pending().await,
                }
                cancelled()
            };
            match select(std::pin::pin!(time_out), std::pin::pin!(cancel)).await {
                Either::Left((e, _)) | Either::Right((e, _)) => e,
            }
        };
        match select(std::pin::pin!(work), std::pin::pin!(end)).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right((e, _)) => Err(e),
        }
    }
}

fn passed() -> Error {
    Error::new(Reason::DeadlineExceeded, "the request's deadline passed")
}

fn cancelled() -> Error {
    Error::new(Reason::Cancelled, "the request was cancelled")
}
