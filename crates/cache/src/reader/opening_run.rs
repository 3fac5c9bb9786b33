//! A request for a run of extents that is sent before the reader needs them: while the client receives the cached
//! beginning, the backing store responds. An error that arrives early can still be that of the whole read.

use std::ops::Range;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use tokio::task::JoinSet;
use tradewind_core::error::Result;
use tradewind_core::{Clock, Error, Reason, Span};

use super::Origin;
use crate::fill::FillBody;

/// See the module's head. Dropping it cancels the request.
pub(super) struct OpeningRun {
    /// The first extent of the run.
    pub first: u32,
    state: State,
}

enum State {
    /// The only task goes on with the request and ends with the response.
    InFlight(JoinSet<Result<FillBody>>),
    Open(Box<FillBody>),
}

impl OpeningRun {
    /// Requests the bytes of `span` in the extents of `run`, and waits for the response for at most `max_wait`. After
    /// that, a task goes on with the request: a client that does not read does not stop it. Must be called within a
    /// runtime.
    ///
    /// Fails as [`Origin::open_run`] if the response arrives in time and is an error.
    pub async fn start(
        origin: Origin,
        run: Range<u32>,
        span: Span,
        clock: &dyn Clock,
        max_wait: Duration,
    ) -> Result<Self> {
        let first = run.start;
        let request = async move { origin.open_run(run, span).await }.boxed();
        let state = match select(request, clock.sleep_until(clock.now() + max_wait)).await {
            Either::Left((opened, _)) => State::Open(Box::new(opened?)),
            Either::Right(((), request)) => {
                let mut task = JoinSet::new();
                task.spawn(request);
                State::InFlight(task)
            }
        };
        Ok(Self { first, state })
    }

    /// Waits for the response. Fails as [`Origin::open_run`].
    pub async fn finish(self) -> Result<FillBody> {
        let failed = "the task of a request to the backing store failed";
        match self.state {
            State::Open(body) => Ok(*body),
            State::InFlight(mut task) => match task.join_next().await {
                Some(Ok(opened)) => opened,
                Some(Err(e)) => Err(Error::with_source(Reason::Defect, failed, e)),
                None => Err(Error::new(Reason::Defect, failed)),
            },
        }
    }
}
