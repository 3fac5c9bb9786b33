//! Changes: each runs in a task of its own, under a mark, and drops what is cached of its key before it ends.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedRwLockReadGuard, RwLock, oneshot};
use tradewind_core::error::Result;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Clock, Error, ErrorKind, Metadata, ObjectInfo, Observation, Reason, Staged};

use super::Cached;
use crate::changes::{Change, Scope, Token};
use crate::head::{ContentId, Head, Stamp};
use crate::ram::InsertedHead;
use crate::tiers::Tiers;

/// Applies changes. What a task of a change needs of the cache.
#[derive(Clone)]
pub(super) struct Changer {
    tiers: Arc<Tiers>,
    clock: Arc<dyn Clock>,
    in_flight: Arc<RwLock<()>>,
}

impl Cached {
    pub(super) fn changer(&self) -> Changer {
        Changer {
            tiers: self.tiers.clone(),
            clock: self.clock.clone(),
            in_flight: self.changes_in_flight.clone(),
        }
    }

    pub(super) fn key_scope(&self, address: &Address) -> Scope {
        Scope::Key(self.tiers.fingerprints.key(address))
    }
}

impl Changer {
    /// Applies a change. If the future is dropped, the change goes on.
    pub async fn apply<T: Send + 'static>(
        &self,
        scope: Scope,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.apply_then(scope, work, |_, _| ()).await
    }

    /// Like [`Self::apply`]. After a success, `then` gets the result and a token that is current if no other change
    /// intervened.
    async fn apply_then<T: Send + 'static>(
        &self,
        scope: Scope,
        work: impl Future<Output = Result<T>> + Send + 'static,
        then: impl FnOnce(&T, &Token) + Send + 'static,
    ) -> Result<T> {
        let closed = || Error::new(Reason::ShuttingDown, "the cache is closed");
        let in_flight = self.in_flight.clone().try_read_owned().map_err(|_| closed())?;
        let change = self.tiers.changes.begin(scope);
        let mut applied = AppliedChange {
            changer: self.clone(),
            scope,
            change,
            is_certain: false,
            is_rejected: false,
            in_flight,
        };
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let result = work.await;
            applied.is_certain = result.as_ref().map_or_else(is_certain, |_| true);
            applied.is_rejected = result.as_ref().is_err_and(is_certain);
            let token = applied.change.token_after();
            drop(applied);
            if let (Ok(value), Some(token)) = (&result, &token) {
                then(value, token);
            }
            // The request may have been dropped.
            let _ = sender.send(result);
        });
        receiver
            .await
            .map_err(|_| Error::new(Reason::Defect, "the task of a change panicked or was ended"))?
    }
}

/// True if an error says that the change was not applied and will not be.
fn is_certain(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Precondition | ErrorKind::Invalid | ErrorKind::Denied => true,
        ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Internal => false,
    }
}

/// A change that was handed to the backing store. Dropping it drops what is cached, and then the mark: also if the task
/// panicked or the runtime ended it.
struct AppliedChange {
    changer: Changer,
    scope: Scope,
    change: Change,
    is_certain: bool,
    /// The backing store rejected it.
    is_rejected: bool,
    #[expect(dead_code, reason = "held for its drop")]
    in_flight: OwnedRwLockReadGuard<()>,
}

impl Drop for AppliedChange {
    fn drop(&mut self) {
        let Changer { tiers, clock, .. } = &self.changer;
        if !self.is_certain {
            tiers.counters.uncertain_changes.increment();
            self.change.set_uncertain(clock.now());
        }
        match self.scope {
            Scope::Bucket(_) if self.is_rejected => {}
            Scope::Bucket(_) => self.change.set_bucket_changed(),
            Scope::Key(hash) => tiers.remove_head(hash),
        }
    }
}

/// A staged write whose commit is a change.
pub(super) struct CachedStaged {
    pub inner: Box<dyn Staged>,
    pub changer: Changer,
    pub scope: Scope,
    /// `None` if the object is not small.
    pub written: Option<WrittenObject>,
}

/// A small object that is being written, for the memory tier.
pub(super) struct WrittenObject {
    address: Address,
    metadata: Metadata,
    content: ContentId,
    bytes: BytesMut,
    max_bytes: u64,
}

impl WrittenObject {
    /// `None` for an object of more than `max_bytes`, or of unknown size.
    pub fn new(
        address: &Address,
        request: &StageRequest,
        content: ContentId,
        max_bytes: u64,
    ) -> Option<Self> {
        let size = request.size.filter(|size| *size <= max_bytes)?;
        let (address, metadata) = (address.clone(), request.metadata.clone());
        // Its exact size: the memory tier counts the bytes, and the buffer stays with the head.
        let bytes = BytesMut::with_capacity(usize::try_from(size).ok()?);
        Some(Self { address, metadata, content, bytes, max_bytes })
    }

    /// The head that the backing store is expected to report.
    fn into_head(self, committed: &Committed) -> Head {
        let Committed { etag, size, modified, generation, checksums, scope, version, .. } = committed.clone();
        let (metadata, parts, stored) = (self.metadata, None, None);
        let info = ObjectInfo {
            size,
            etag,
            modified,
            generation,
            metadata,
            checksums,
            scope,
            parts,
            version,
            stored,
        };
        Head::new(self.address, info, self.content, Some(self.bytes.freeze()), Stamp::NEVER)
    }
}

#[async_trait]
impl Staged for CachedStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.written {
            Some(written) if (written.bytes.len() + bytes.len()) as u64 <= written.max_bytes => {
                written.bytes.extend_from_slice(&bytes);
            }
            _ => self.written = None,
        }
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, changer, scope, written } = *self;
        let tiers = changer.tiers.clone();
        let fill = move |(committed, _): &(Committed, Observation), token: &Token| {
            let Some(written) = written else { return };
            if written.bytes.len() as u64 == committed.size {
                let head = Arc::new(written.into_head(committed));
                // Without memory for it, the first read fills the cache.
                if let InsertedHead::New = tiers.insert_head(&head, token) {
                    tiers.track(&head, token);
                }
            }
        };
        changer.apply_then(scope, inner.commit(expected), fill).await
    }
}
