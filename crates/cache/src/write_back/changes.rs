//! Changes that run to their end, and the state of a key on which they decide.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Poll, ready};

use futures::FutureExt;
use tokio::runtime::Handle;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Context, ETag, Generation, Precondition};

use super::Shared;
use super::dirty_index::{DirtyEntry, DirtyState};
use super::journal::dirty_generation;

/// The object that a key has now.
#[derive(Debug, Clone)]
pub(super) struct CurrentObject {
    pub etag: ETag,
    pub generation: Generation,
}

/// The state of a key.
#[derive(Debug, Clone)]
pub(super) enum KeyState {
    Dirty(DirtyEntry),
    /// The state in the backing store.
    Clean(Option<CurrentObject>),
    /// Clean; the change needs to know no more.
    NotExamined,
}

impl KeyState {
    fn object(&self) -> Option<CurrentObject> {
        match self {
            Self::Dirty(entry) => match &entry.state {
                DirtyState::Object(summary) => Some(CurrentObject {
                    etag: summary.etag.clone(),
                    generation: dirty_generation(entry.generation),
                }),
                DirtyState::Tombstone => None,
            },
            Self::Clean(object) => object.clone(),
            Self::NotExamined => None,
        }
    }

    /// Evaluates a precondition.
    pub fn check(&self, address: &Address, precondition: &Precondition) -> Result<()> {
        let current = self.object();
        precondition
            .check(address.key.as_str(), current.as_ref().map(|found| (&found.etag, found.generation)))
    }
}

/// The cases in which a change examines a key that is not dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Examine {
    Always,
    /// Only if the precondition needs it.
    ForPrecondition,
}

/// Work that its caller polls. If the caller drops it before its end, it continues in a task of its own.
struct RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// `None` after the end.
    work: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F> Future for RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let output = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<F> Drop for RunToEnd<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            drop(self.runtime.spawn(work));
        }
    }
}

/// Runs work to its end: in a task of its own, if the returned future is dropped.
pub(super) async fn run_to_end<T: Send>(work: impl Future<Output = T> + Send + 'static) -> T {
    RunToEnd { work: Some(Box::pin(work)), runtime: Handle::current() }.await
}

impl Shared {
    /// Runs a change to its end, even if the returned future is dropped. The deadline of the request ends only the wait.
    ///
    /// The caller polls the change, which may hold locks: a future that is kept must be polled. The cache above
    /// ([`Cached`](crate::Cached)) runs each change in a task of its own, which polls it to its end. So a request that its
    /// client does not poll holds no locks. A second task here would add a spawn and two wake-ups to each write. Reads that
    /// write back what is dirty first, as a GET of the version `null` does, run in the future of their request.
    pub async fn run_change<T: Send + 'static>(
        &self,
        context: &Context,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let in_flight = self.begin_change(context)?;
        let work = async move {
            let result = AssertUnwindSafe(work).catch_unwind().await;
            drop(in_flight);
            result.unwrap_or_else(|_| Err(Error::new(Reason::Defect, "a change of the journal panicked")))
        };
        context.guard(run_to_end(work)).await?
    }

    /// The state of a key. The caller holds its commit lock.
    pub async fn key_state(
        &self,
        context: &Context,
        address: &Address,
        precondition: &Precondition,
        examine: Examine,
    ) -> Result<KeyState> {
        if let Some(entry) = self.index.get(address) {
            return Ok(KeyState::Dirty(entry));
        }
        if *precondition == Precondition::None && examine == Examine::ForPrecondition {
            return Ok(KeyState::NotExamined);
        }
        match self.backing.head(context, address, GetRequest::default()).await {
            Ok(found) => {
                let (etag, generation) = (found.info.etag, found.info.generation);
                Ok(KeyState::Clean(Some(CurrentObject { etag, generation })))
            }
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(KeyState::Clean(None)),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn change_of_a_dropped_request_runs_to_its_end() {
        let (gate, (sender, ended)) = (Arc::new(Notify::new()), oneshot::channel());
        let opened = gate.clone();
        let work = async move {
            opened.notified().await;
            sender.send(7)
        };
        let mut change = RunToEnd { work: Some(Box::pin(work)), runtime: Handle::current() };
        assert!((&mut change).now_or_never().is_none());
        drop(change);
        gate.notify_one();
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn change_that_is_polled_needs_no_task() {
        assert_eq!(run_to_end(async { 7 }).now_or_never(), Some(7));
    }
}
