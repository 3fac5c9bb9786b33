//! The limit of a request's execution: a point in time, the caller's cancellation, or both. Whichever comes first ends
//! the request with an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use pin_project_lite::pin_project;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::{Error, Reason, Result};

/// A point in time on a given clock, and a cancellation token. Both are optional.
#[derive(Debug, Clone)]
pub struct Deadline {
    clock: Arc<dyn Clock>,
    expires_at: Option<Duration>,
    cancelled: Option<CancellationToken>,
}

impl Deadline {
    /// No deadline and no cancellation.
    #[must_use]
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self { clock, expires_at: None, cancelled: None }
    }

    /// A deadline `timeout` from now.
    #[must_use]
    pub fn after(clock: Arc<dyn Clock>, timeout: Duration) -> Self {
        let expires_at = clock.now() + timeout;
        Self { clock, expires_at: Some(expires_at), cancelled: None }
    }

    /// Adds cancellation by `token`.
    #[must_use]
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancelled = Some(token);
        self
    }

    /// The clock that the deadline refers to.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns an error if the deadline has passed or the request was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Err(cancellation_error());
        }
        if self.expires_at.is_some_and(|expires_at| self.clock.now() >= expires_at) {
            return Err(deadline_error());
        }
        Ok(())
    }

    /// Awaits `work`. At the deadline or cancellation, drops `work` and returns an error instead. The returned future
    /// contains `work` only once, so that nested guards do not multiply the size of a request's future.
    pub fn guard<'a, F>(&'a self, work: F) -> impl Future<Output = Result<F::Output>> + use<'a, F>
    where
        F: Future,
    {
        let end = (self.expires_at.is_some() || self.cancelled.is_some()).then(|| self.wait_for_end());
        Guarded { work, end, deadline: self, is_checked: false }
    }

    /// Waits until the deadline passes or the request is cancelled, and returns the corresponding error.
    async fn wait_for_end(&self) -> Error {
        let time_out = async {
            match self.expires_at {
                Some(expires_at) => self.clock.sleep_until(expires_at).await,
                None => std::future::pending().await,
            }
            deadline_error()
        };
        let cancel = async {
            match &self.cancelled {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
            cancellation_error()
        };
        match select(std::pin::pin!(time_out), std::pin::pin!(cancel)).await {
            Either::Left((e, _)) | Either::Right((e, _)) => e,
        }
    }
}

pin_project! {
    /// A future that is dropped when `end` resolves first.
    struct Guarded<'a, F, E> {
        #[pin]
        work: F,
        #[pin]
        end: Option<E>,
        deadline: &'a Deadline,
        is_checked: bool,
    }
}

impl<F: Future, E: Future<Output = Error>> Future for Guarded<'_, F, E> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(end) = this.end.as_pin_mut() else { return this.work.poll(cx).map(Ok) };
        if !*this.is_checked {
            this.deadline.check()?;
            *this.is_checked = true;
        }
        if let Poll::Ready(output) = this.work.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        end.poll(cx).map(Err)
    }
}

fn deadline_error() -> Error {
    Error::new(Reason::DeadlineExceeded, "the request's deadline passed")
}

fn cancellation_error() -> Error {
    Error::new(Reason::Cancelled, "the request was cancelled")
}
