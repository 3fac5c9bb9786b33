//! Changes of keys that go through to the backing store, and the write-back of one key.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, GetRequest, GetResponse, StageRequest};
use tradewind_core::{Address, Body, Checksum, Context, Generation, Precondition};

use super::Shared;
use super::bucket_changes::BucketGate;
use super::buckets::OwnerCheck;
use super::changes::run_to_end;
use super::journal::{Journal, Removal, is_tombstone};
use super::reject_marker;

/// The commit lock of a key that is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitLock {
    /// The caller holds it.
    Held,
    /// It is taken, after the transfer lock, while the key is removed from the journal.
    Free,
}

impl Shared {
    /// Applies a change of a key to the backing store, after what is dirty of the key.
    pub async fn change_through<T: Send + 'static>(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.check_open(context)?;
        reject_marker(address)?;
        // The journal and the locks know only the current version.
        let (shared, own_context, own_address) = (self.clone(), context.clone(), current(address));
        let change = async move {
            let (context, address) = (&own_context, &own_address);
            let (_bucket, _entered) = shared.enter(context, &address.bucket, OwnerCheck::Strict).await?;
            let _transfer = context.guard(shared.transfer_locks.lock(address)).await?;
            let _commit = context.guard(shared.commit_locks.lock(address)).await?;
            shared.journal.check_certain(address)?;
            shared.flush(context, address, CommitLock::Held).await?;
            // It may have been applied, or be applied later, although it failed.
            let changed = shared.request(address, work).await.map_err(|e| shared.note_away(e))?;
            shared.is_backing_away.store(false, Ordering::Relaxed);
            shared.counters.through.increment();
            Ok(changed)
        };
        self.run_change(context, change).await
    }

    /// Writes back what is dirty of an object that the backing store is about to read, or to replace.
    pub async fn flush_source(self: Arc<Self>, context: &Context, address: &Address) -> Result<()> {
        self.check_open(context)?;
        if super::is_marker(address) {
            return Err(Error::no_such_key(address.key.as_str()));
        }
        self.bucket(context, &address.bucket).await?;
        if self.index.bytes(address).is_none() {
            return Ok(());
        }
        let (shared, own_context, own_address) = (self.clone(), context.clone(), current(address));
        let change = async move { shared.flush_key(own_context, own_address, BucketGate::Free).await };
        self.run_change(context, change).await
    }

    /// Writes back what is dirty of a key. The caller holds its transfer lock; if it holds the commit lock too, the key is
    /// clean afterwards.
    pub async fn flush(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        commit_lock: CommitLock,
    ) -> Result<()> {
        match self.index.bytes(address) {
            Some(_) => self.write_back(context, address, commit_lock).await,
            None => Ok(()),
        }
    }

    /// Writes what the journal has of a key to the backing store and removes it from the journal. The caller holds the transfer
    /// lock of the key.
    pub async fn write_back(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        commit_lock: CommitLock,
    ) -> Result<()> {
        if self.uncertain_until(address).is_some() {
            let why =
                "an earlier request to the backing store may still change this key; try again in a minute";
            return Err(Error::new(Reason::Overloaded, why));
        }
        let found = self.journal.store.get(context, address, GetRequest::default()).await;
        let found = found.map_err(|e| lost_in_journal(address, e))?;
        // A repeated request would succeed while the first one may still be applied, over a newer object.
        let context = &context.clone().with_on_unknown_outcome(OnUnknownOutcome::Fail);
        let (generation, bytes) = (found.info.generation, found.info.size);
        if self.is_unremoved(address, generation) {
            return self.remove_from_journal(context, address, generation, commit_lock).await;
        }
        if is_tombstone(&found.info) {
            match self.request(address, self.backing.delete(context, address, Precondition::None)).await {
                Err(e) if e.reason() != Reason::NoSuchKey => return Err(e),
                _ => {}
            }
        } else {
            self.write_to_backing(context, address, found).await?;
        }
        self.counters.written_back.increment();
        self.counters.written_back_bytes.add(bytes);
        self.unremoved.lock().insert(address.clone(), generation);
        self.remove_from_journal(context, address, generation, commit_lock).await
    }

    /// True if the backing store has what is dirty of a key, and only its removal from the journal failed.
    pub fn awaits_removal(&self, address: &Address) -> bool {
        self.index.get(address).is_some_and(|entry| self.is_unremoved(address, entry.generation))
    }

    /// True if the backing store has this generation of a key already, and only its removal from the journal failed.
    fn is_unremoved(&self, address: &Address, generation: Generation) -> bool {
        self.unremoved.lock().get(address) == Some(&generation)
    }

    async fn remove_from_journal(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        generation: Generation,
        commit_lock: CommitLock,
    ) -> Result<()> {
        let context = Journal::change_context(context);
        let removal = self.clone().remove_written(context, address.clone(), generation, commit_lock);
        run_to_end(removal).await
    }

    async fn write_to_backing(
        &self,
        context: &Context,
        address: &Address,
        found: GetResponse<Body>,
    ) -> Result<()> {
        let GetResponse { info, body, .. } = found;
        // Also a short body is copied: the backing store may need the window before it takes the first byte.
        let mut body = body.unreserved();
        let identity = info.identity();
        let checksums = match self.backing.capabilities().multiple_checksums {
            true => info.checksums,
            false => info.checksums.into_iter().take(1).collect(),
        };
        let request = StageRequest {
            metadata: info.metadata,
            size: Some(info.size),
            algorithms: checksums.iter().map(Checksum::algorithm).collect(),
            verify_md5: false,
            etag: ETagForm::Md5,
            checksum: checksums.first().copied(),
            precondition: Precondition::None,
            identity: Some(identity),
        };
        let mut staged = self.backing.stage(context, address, request).await?;
        while let Some(piece) = context.guard(body.next_copied()).await?? {
            staged.write(piece).await?;
        }
        let expected = Expected { size: Some(info.size), checksums, ..Expected::default() };
        self.request(address, staged.commit(expected)).await.map(drop)
    }

    /// Awaits a request to the backing store that changes a key. The key is uncertain if the request may be applied later:
    /// after an error of a request that may have been sent, a panic, or a drop before its end.
    pub async fn request<T>(&self, address: &Address, request: impl Future<Output = Result<T>>) -> Result<T> {
        let mut outcome = PendingOutcome { shared: self, address, is_uncertain: true };
        let result = request.await;
        outcome.is_uncertain = result.as_ref().is_err_and(|e| e.kind().is_retryable() && !e.is_unsent());
        result
    }

    /// Records that the backing store could not be reached, or the request's deadline passed, if that is the error.
    pub fn note_away(&self, error: Error) -> Error {
        if matches!(error.reason(), Reason::Io | Reason::DeadlineExceeded) {
            self.is_backing_away.store(true, Ordering::Relaxed);
        }
        error
    }

    /// The time until which an earlier request may still change a key in the backing store.
    pub fn uncertain_until(&self, address: &Address) -> Option<Duration> {
        self.uncertain.until(address, self.clock.now())
    }

    /// Removes what the backing store has now from the journal and the index, unless the key was written again. The context
    /// has no deadline, and the caller polls to the end: between the two, the index names what the journal does not have.
    async fn remove_written(
        self: Arc<Self>,
        context: Context,
        address: Address,
        generation: Generation,
        commit_lock: CommitLock,
    ) -> Result<()> {
        // A commit that ended in the journal enters the index before the journal is changed again.
        let _commit = match commit_lock {
            CommitLock::Held => None,
            CommitLock::Free => Some(self.commit_locks.lock(&address).await),
        };
        match self.journal.remove(&context, &address, generation).await {
            Ok(Removal::Removed) => {
                self.journal.note_change(&address);
                self.forget_written(&address);
            }
            Ok(Removal::Absent) => self.forget_written(&address),
            Ok(Removal::Replaced) => drop(self.unremoved.lock().remove(&address)),
            Err(e) => {
                self.journal.note_error(&e, self.clock.now());
                if self.journal.is_absent(&context, &address).await.is_ok_and(|is_absent| is_absent) {
                    // The backing store has it. The journal may have it again after a restart.
                    self.journal.note_failed_change(&address, &e, self.clock.now());
                    self.forget_written(&address);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    /// Removes a key that the journal does not have any more from the index. The caller holds the commit lock: the entry, if
    /// it has another generation, is of a write that a failed but applied one replaced.
    fn forget_written(&self, address: &Address) {
        self.index.remove(address);
        self.unremoved.lock().remove(address);
    }
}

/// A request to the backing store whose outcome is not known yet. Dropping it records the uncertainty.
struct PendingOutcome<'a> {
    shared: &'a Shared,
    address: &'a Address,
    is_uncertain: bool,
}

impl Drop for PendingOutcome<'_> {
    fn drop(&mut self) {
        if self.is_uncertain {
            let (now, window) = (self.shared.clock.now(), self.shared.options.uncertain_window);
            self.shared.uncertain.add(self.address, now, window);
        }
    }
}

/// The address of a key, whichever version was named.
fn current(address: &Address) -> Address {
    Address::new(address.bucket.clone(), address.key.clone())
}

/// The error of dirty data that cannot be read.
fn lost_in_journal(address: &Address, error: Error) -> Error {
    let Address { bucket, key, .. } = address;
    let message = format!(
        "the journal cannot read {key:?} of bucket {bucket:?}, which was not written back yet: {}",
        error.message()
    );
    let reason = match error.reason() {
        Reason::NoSuchKey | Reason::NoSuchBucket => Reason::CorruptData,
        reason => reason,
    };
    Error::with_source(reason, message, error)
}
