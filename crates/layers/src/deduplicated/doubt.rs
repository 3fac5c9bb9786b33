//! Chunks that a read found damaged. Each has a durable **mark of doubt**, an empty object of the bucket of chunks. The
//! next write of the same bytes stores the chunk again, and then removes the mark: also after a restart.
//!
//! The chunk itself stays. A flip in memory looks like damage of the disk, and no second read tells them apart, because it
//! gets the same cached pages.
//!
//! A write that found the chunk before the mark relies on bytes that cannot be read: its commit fails. So a mark is made
//! under the lock of the stripe, alone, as a deletion is.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedRwLockReadGuard;
use tracing::warn;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Context, ObjectKey};

use super::chunk_store::{ChunkStore, PAGE_ENTRIES, without_deadline};
use super::manifest::ChunkId;

/// The begin of the keys of marks, before the hash of the chunk.
pub(super) const DOUBT_PREFIX: &str = "doubt-";

fn mark_key(chunk: &ChunkId) -> Result<ObjectKey> {
    ObjectKey::new(&format!("{DOUBT_PREFIX}{chunk}"))
}

impl ChunkStore {
    /// Reads the marks of earlier runs.
    pub async fn load_doubts(&self, context: &Context) -> Result<()> {
        let mut after = None;
        loop {
            let prefix = DOUBT_PREFIX.to_owned();
            let request = ListRequest { prefix, after, limit: PAGE_ENTRIES, ..ListRequest::default() };
            let page = self.inner.list(context, &self.bucket, &request).await?;
            let keys = page.entries.iter().filter_map(|entry| entry.name().strip_prefix(DOUBT_PREFIX));
            keys.filter_map(ChunkId::from_key).for_each(|chunk| self.pins.doubt_durably(&chunk));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Marks a chunk that a read found damaged, unless another read of it succeeds. After an error, the doubt lasts until
    /// a restart.
    pub(super) async fn record_damage(self: &Arc<Self>, context: &Context, chunk: ChunkId) -> Result<()> {
        if self.pins.has_durable_doubt(&chunk) {
            return Ok(());
        }
        self.pins.doubt(&chunk);
        let (store, unlimited) = (self.clone(), without_deadline(context));
        self.run_to_end(context, async move {
            let _lock = store.stripe(&chunk).write().await;
            match store.get(&unlimited, &chunk.key()?).await {
                // A write has stored it again, or the first read was wrong.
                Ok(bytes) if ChunkId::of_bytes(&bytes) == chunk => store.pins.trust(&chunk),
                Err(error) if matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchBucket) => {
                    store.pins.trust(&chunk);
                }
                Err(error) if error.reason() != Reason::CorruptData => return Err(error),
                Ok(_) | Err(_) => {
                    // A write that stored it again has ended the doubt, and the chunk was damaged once more.
                    store.pins.doubt(&chunk);
                    store.put(&unlimited, &mark_key(&chunk)?, Bytes::new()).await?;
                    store.pins.doubt_durably(&chunk);
                    warn!(%chunk, "a chunk is damaged; the next write of the same bytes stores it again");
                }
            }
            Ok(())
        })
        .await
    }

    /// Ends the doubt about a chunk that was stored, with its mark. No new mark is made meanwhile: `lock` is that of the
    /// chunk's stripe.
    pub(super) async fn end_doubt(
        self: &Arc<Self>,
        context: &Context,
        chunk: ChunkId,
        lock: OwnedRwLockReadGuard<()>,
    ) -> Result<()> {
        let (store, unlimited) = (self.clone(), without_deadline(context));
        self.run_to_end(context, async move {
            let _lock = lock;
            store.remove_doubt(&unlimited, &chunk).await
        })
        .await
    }

    /// Removes the mark of a chunk that was stored or deleted. The caller holds the lock of its stripe.
    pub(super) async fn remove_doubt(&self, context: &Context, chunk: &ChunkId) -> Result<()> {
        self.delete(context, &mark_key(chunk)?).await?;
        self.pins.trust(chunk);
        Ok(())
    }
}
