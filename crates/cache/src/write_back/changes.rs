//! Changes in tasks of their own, and the state of a key on which they decide.

use std::future::Future;

use tokio::sync::oneshot;
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

impl Shared {
    /// Runs a change to its end, even if the returned future is dropped. The deadline of the request ends only the wait.
    pub async fn run_change<T: Send + 'static>(
        &self,
        context: &Context,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let in_flight = self.begin_change(context)?;
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let result = work.await;
            drop(in_flight);
            // The request may have been dropped.
            let _ = sender.send(result);
        });
        let ended = context.guard(receiver).await?;
        ended.map_err(|_| Error::new(Reason::Defect, "the task of a change panicked or was ended"))?
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
