//! Changes that go through to the backing store, and the write-back of one key.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, GetRequest, GetResponse, StageRequest};
use tradewind_core::{Address, Body, BucketName, Checksum, Context, Generation, Precondition, Versioning};

use super::Shared;
use super::buckets::OwnerCheck;
use super::journal::is_tombstone;
use super::marker::MARKER_KEY;
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
            let changed = work.await.map_err(|e| shared.note_uncertain(address, shared.note_away(e)))?;
            shared.is_backing_away.store(false, Ordering::Relaxed);
            shared.counters.through.increment();
            Ok(changed)
        };
        self.run_change(context, change).await
    }

    /// Writes back what is dirty of an object that the backing store is about to read.
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
        let change = async move {
            let _entered = shared.enter(&own_context, &own_address.bucket, OwnerCheck::Strict).await?;
            let _transfer = own_context.guard(shared.transfer_locks.lock(&own_address)).await?;
            shared.flush(&own_context, &own_address, CommitLock::Free).await
        };
        self.run_change(context, change).await
    }

    /// Writes back what is dirty of a key. The caller holds its transfer lock; if it holds the commit lock too, the key is
    /// clean afterwards.
    pub async fn flush(&self, context: &Context, address: &Address, commit_lock: CommitLock) -> Result<()> {
        match self.index.bytes(address) {
            Some(_) => self.write_back(context, address, commit_lock).await.map(drop),
            None => Ok(()),
        }
    }

    /// Writes what the journal has of a key to the backing store and removes it from the journal. Returns the bytes
    /// written. The caller holds the transfer lock of the key.
    pub async fn write_back(
        &self,
        context: &Context,
        address: &Address,
        commit_lock: CommitLock,
    ) -> Result<u64> {
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
        if is_tombstone(&found.info) {
            match self.backing.delete(context, address, Precondition::None).await {
                Err(e) if e.reason() != Reason::NoSuchKey => return Err(self.note_uncertain(address, e)),
                _ => {}
            }
        } else {
            self.write_to_backing(context, address, found).await?;
        }
        self.counters.written_back.increment();
        self.counters.written_back_bytes.add(bytes);
        // A commit that ended in the journal enters the index before the journal is changed again.
        let _commit = match commit_lock {
            CommitLock::Held => None,
            CommitLock::Free => Some(context.guard(self.commit_locks.lock(address)).await?),
        };
        self.remove_written(context, address, generation).await?;
        Ok(bytes)
    }

    async fn write_to_backing(
        &self,
        context: &Context,
        address: &Address,
        found: GetResponse<Body>,
    ) -> Result<()> {
        let GetResponse { info, mut body, .. } = found;
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
        while let Some(piece) = context.guard(body.next()).await? {
            // Copied: buffers that the write holds would occupy the window for which the next read waits.
            staged.write(Bytes::copy_from_slice(&piece?)).await?;
        }
        let expected = Expected { size: Some(info.size), checksums, ..Expected::default() };
        match staged.commit(expected).await {
            Ok(_) => Ok(()),
            Err(e) => Err(self.note_uncertain(address, e)),
        }
    }

    /// Records that the backing store did not respond in time to a request of a client, if that is the error.
    pub fn note_away(&self, error: Error) -> Error {
        if matches!(error.reason(), Reason::Io | Reason::DeadlineExceeded) {
            self.is_backing_away.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Records that a request to the backing store failed and may be applied later.
    fn note_uncertain(&self, address: &Address, error: Error) -> Error {
        if error.kind().is_retryable() {
            self.uncertain.add(address, self.clock.now(), self.options.uncertain_window);
        }
        error
    }

    /// The time until which an earlier request may still change a key in the backing store.
    pub fn uncertain_until(&self, address: &Address) -> Option<Duration> {
        self.uncertain.until(address, self.clock.now())
    }

    /// Removes what the backing store has now from the journal, unless the key was written again. The caller holds the
    /// commit lock of the key.
    async fn remove_written(
        &self,
        context: &Context,
        address: &Address,
        generation: Generation,
    ) -> Result<()> {
        match self.journal.remove(context, address, generation).await {
            Ok(true) => {
                self.index.remove(address, generation);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(e) => {
                self.journal.note_error(&e, self.clock.now());
                Err(e)
            }
        }
    }

    /// See [`ObjectStore::delete_bucket`](tradewind_core::ObjectStore::delete_bucket).
    pub async fn delete_bucket(self: Arc<Self>, context: &Context, name: &BucketName) -> Result<()> {
        let (shared, own_context, own_name) = (self.clone(), context.clone(), name.clone());
        let change = async move {
            let (context, name) = (&own_context, &own_name);
            let bucket = shared.buckets.get(name);
            let _exclusive = context.guard(bucket.gate.write()).await?;
            shared.examine(context, &bucket, OwnerCheck::Strict).await?;
            if shared.index.has_object(name) {
                return Err(not_empty(name));
            }
            shared.flush_bucket(context, name).await?;
            shared.check_empty(context, name).await?;
            shared.release_owner(context, &bucket).await?;
            shared.backing.delete_bucket(context, name).await?;
            bucket.forget();
            shared.drop_journal_bucket(context, name).await;
            Ok(())
        };
        self.run_change(context, change).await
    }

    /// See [`ObjectStore::set_versioning`](tradewind_core::ObjectStore::set_versioning).
    pub async fn set_versioning(
        self: Arc<Self>,
        context: &Context,
        name: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        let (shared, own_context, own_name) = (self.clone(), context.clone(), name.clone());
        let change = async move {
            let (context, name) = (&own_context, &own_name);
            let bucket = shared.buckets.get(name);
            let _exclusive = context.guard(bucket.gate.write()).await?;
            shared.examine(context, &bucket, OwnerCheck::Strict).await?;
            shared.flush_bucket(context, name).await?;
            shared.release_owner(context, &bucket).await?;
            // Also after a failure: the outcome may be unknown.
            let set = shared.backing.set_versioning(context, name, versioning).await;
            bucket.forget();
            set
        };
        self.run_change(context, change).await
    }

    /// Rejects the deletion of a bucket that holds objects besides its marker.
    async fn check_empty(&self, context: &Context, name: &BucketName) -> Result<()> {
        let request = ListRequest { limit: 2, ..ListRequest::default() };
        let page = self.backing.list(context, name, &request).await?;
        if page.entries.iter().any(|entry| entry.name() != MARKER_KEY) {
            return Err(not_empty(name));
        }
        Ok(())
    }

    /// Writes back all that is dirty of a bucket. The caller holds its gate for writing.
    async fn flush_bucket(&self, context: &Context, name: &BucketName) -> Result<()> {
        for address in self.index.keys(name) {
            let _transfer = context.guard(self.transfer_locks.lock(&address)).await?;
            self.flush(context, &address, CommitLock::Free).await?;
        }
        Ok(())
    }

    /// Removes the journal's bucket of a bucket that was deleted.
    async fn drop_journal_bucket(&self, context: &Context, name: &BucketName) {
        let removed = async {
            super::marker::remove_record(&*self.journal.store, context, name).await?;
            self.journal.store.delete_bucket(context, name).await
        };
        match removed.await {
            Ok(()) => {
                self.buckets.records.lock().remove(name);
            }
            Err(e) if e.reason() == Reason::NoSuchBucket => {}
            Err(error) => tracing::warn!(?error, bucket = %name, "the journal still has an empty bucket"),
        }
    }
}

/// The address of a key, whichever version was named.
fn current(address: &Address) -> Address {
    Address::new(address.bucket.clone(), address.key.clone())
}

fn not_empty(name: &BucketName) -> Error {
    Error::new(Reason::BucketNotEmpty, format!("bucket {name:?} holds objects"))
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
