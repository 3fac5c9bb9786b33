//! Changes of buckets: what is dirty of a bucket is written back before.
//!
//! Most of it is written back while the bucket is used as before, except that no write begins in the journal. The gate is
//! then held for the rest, which the commits in flight left, and for the change itself.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Address, BucketName, Context, Versioning};

use super::buckets::OwnerCheck;
use super::journal::Journal;
use super::marker::{MARKER_KEY, remove_record};
use super::through::CommitLock;
use super::{DRAIN_WINDOW_BYTES, Shared};

/// The gate of a bucket while its dirty data is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BucketGate {
    /// The caller holds it for writing.
    Held,
    /// It is held for reading while a key is written back.
    Free,
}

impl Shared {
    /// See [`ObjectStore::delete_bucket`](tradewind_core::ObjectStore::delete_bucket).
    pub async fn delete_bucket(self: Arc<Self>, context: &Context, name: &BucketName) -> Result<()> {
        let (shared, own_context, own_name) = (self.clone(), context.clone(), name.clone());
        let change = async move {
            let (context, name) = (&own_context, &own_name);
            let bucket = shared.buckets.get(name);
            {
                let _entered = context.guard(bucket.gate.read()).await?;
                shared.examine(context, &bucket, OwnerCheck::Strict).await?;
            }
            if shared.index.has_object(name) {
                return Err(not_empty(name));
            }
            let _change = bucket.begin_change();
            shared.flush_bucket(context, name, BucketGate::Free).await?;
            let _exclusive = context.guard(bucket.gate.write()).await?;
            shared.examine(context, &bucket, OwnerCheck::Strict).await?;
            if shared.index.has_object(name) {
                return Err(not_empty(name));
            }
            shared.flush_bucket(context, name, BucketGate::Held).await?;
            shared.check_empty(context, name).await?;
            shared.release_owner(context, &bucket).await?;
            shared.backing.delete_bucket(context, name).await?;
            bucket.forget();
            shared.drop_journal_bucket(context, name).await;
            shared.buckets.discard(&bucket);
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
            let _change = bucket.begin_change();
            shared.flush_bucket(context, name, BucketGate::Free).await?;
            let _exclusive = context.guard(bucket.gate.write()).await?;
            shared.examine(context, &bucket, OwnerCheck::Strict).await?;
            shared.flush_bucket(context, name, BucketGate::Held).await?;
            shared.release_owner(context, &bucket).await?;
            // Also after a failure: the outcome may be unknown.
            let set = shared.backing.set_versioning(context, name, versioning).await;
            bucket.forget();
            set
        };
        self.run_change(context, change).await
    }

    /// Writes back what is dirty of a bucket with versions, so that the backing store can list them.
    pub async fn flush_versions(self: Arc<Self>, context: &Context, name: &BucketName) -> Result<()> {
        if !self.index.has_bucket(name) {
            return Ok(());
        }
        let (shared, own_context, own_name) = (self.clone(), context.clone(), name.clone());
        let change = async move { shared.flush_bucket(&own_context, &own_name, BucketGate::Free).await };
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

    /// Writes back what is dirty of a bucket now, several keys concurrently. Returns the first error.
    ///
    /// After an error of one key, the others are written back too. After another one, no key is begun. All that were begun
    /// end first: a request that is dropped may be applied later, over a newer object.
    async fn flush_bucket(
        self: &Arc<Self>,
        context: &Context,
        name: &BucketName,
        gate: BucketGate,
    ) -> Result<()> {
        let keys = futures::stream::iter(self.index.keys(name));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let flushes = keys.map(|address| {
            let (shared, context, is_stopped) = (self.clone(), context.clone(), is_stopped.clone());
            async move {
                if is_stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let is_uncertain = shared.uncertain_until(&address).is_some();
                let flushed = shared.flush_key(context, address, gate).await;
                if flushed.as_ref().is_err_and(|e| !is_uncertain && !is_error_of_key(e)) {
                    is_stopped.store(true, Ordering::Relaxed);
                }
                flushed
            }
        });
        let ended = flushes.buffer_unordered(self.options.concurrency.max(1));
        ended.fold(Ok(()), |first, flushed| ready(first.and(flushed))).await
    }

    /// Writes back what is dirty of a key, within the deadline of a request and a window of its own.
    pub async fn flush_key(
        self: Arc<Self>,
        context: Context,
        address: Address,
        gate: BucketGate,
    ) -> Result<()> {
        // The gate first: what waits for the rest must not wait for a task that holds the gate and waits for it too.
        let _entered = match gate {
            BucketGate::Held => None,
            BucketGate::Free => Some(self.enter(&context, &address.bucket, OwnerCheck::Strict).await?),
        };
        let _permit = match gate {
            // The few keys for which all of the bucket waits do not wait for those of another bucket.
            BucketGate::Held => None,
            BucketGate::Free => {
                let acquired = context.guard(self.bucket_flushes.acquire()).await?;
                let closed =
                    |e| Error::with_source(Reason::Defect, "the permits of bucket changes are closed", e);
                Some(acquired.map_err(closed)?)
            }
        };
        if self.index.bytes(&address).is_none() {
            return Ok(());
        }
        // A window of its own: that of the request is for the bytes of one object.
        let window = self.budget.admit(DRAIN_WINDOW_BYTES, &context.deadline).await?;
        let context = Context { window, ..context };
        let _transfer = context.guard(self.transfer_locks.lock(&address)).await?;
        self.flush(&context, &address, CommitLock::Free).await
    }

    /// Removes the journal's bucket of a bucket that was deleted.
    async fn drop_journal_bucket(&self, context: &Context, name: &BucketName) {
        let context = Journal::change_context(context);
        let removed = async {
            remove_record(&*self.journal.store, &context, name).await?;
            self.journal.store.delete_bucket(&context, name).await
        };
        match removed.await {
            Err(error) if error.reason() != Reason::NoSuchBucket => {
                tracing::warn!(?error, bucket = %name, "the journal still has an empty bucket");
            }
            _ => {
                self.buckets.records.lock().remove(name);
            }
        }
    }
}

/// True if other keys of the bucket can be written back although one failed with this error.
fn is_error_of_key(error: &Error) -> bool {
    !error.kind().is_retryable() && !error.affects_whole_bucket()
}

fn not_empty(name: &BucketName) -> Error {
    Error::new(Reason::BucketNotEmpty, format!("bucket {name:?} holds objects"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tradewind_core::testing::context;

    use super::super::tests::{Fixture, bucket, key};
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn flush_with_the_gate_held_waits_for_no_other_bucket() {
        let fixture = Fixture::open(WAIT).await;
        let shared = fixture.layer.shared.clone();
        let (key, name) = (key("first"), bucket("first"));
        fixture.put(&key).await;
        shared.bucket_flushes.forget_permits(usize::MAX);
        let context = context();
        let flush = shared.flush_bucket(&context, &name, BucketGate::Held);
        tokio::time::timeout(WAIT, flush).await.expect("no permit is awaited").unwrap();
        assert!(fixture.has(&key).await && !shared.index.has_bucket(&name));
    }
}
