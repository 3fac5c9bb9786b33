//! Chunks that a read found damaged. Each has a durable **mark of doubt**, an empty object of the bucket of chunks. The
//! next write of the same bytes stores the chunk again, and then removes the mark: also after a restart.
//!
//! The chunk itself stays. A flip in memory looks like damage of the disk, and no second read tells them apart, because it
//! gets the same cached pages.
//!
//! A write that found the chunk before the mark relies on bytes that cannot be read: its commit fails. So a mark is made
//! under the lock of the stripe, alone, as a deletion is. The bytes are read before that: such a read may wait for memory of
//! a client that does not read. The generation shows under the lock whether they are still those.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedRwLockReadGuard;
use tracing::warn;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::{ListPosition, ListRequest};
use tradewind_core::{Context, Generation, ObjectKey};

use super::chunk_store::{ChunkStore, PAGE_ENTRIES, without_deadline};
use super::manifest::ChunkId;
use super::pins::Collecting;

/// The begin of the keys of marks, before the hash of the chunk.
pub(super) const DOUBT_PREFIX: &str = "doubt-";

/// A page of the chunks with marks.
pub(super) struct DoubtPage {
    pub chunks: Vec<ChunkId>,
    /// The `after` of the next page, if there are more.
    pub next: Option<ListPosition>,
}

/// The record of a chunk in the store below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkRecord {
    Missing,
    Damaged,
    Stored(Generation),
}

fn mark_key(chunk: &ChunkId) -> Result<ObjectKey> {
    ObjectKey::new(&format!("{DOUBT_PREFIX}{chunk}"))
}

impl ChunkStore {
    /// A page of the chunks with marks.
    pub(super) async fn doubt_page(
        &self,
        context: &Context,
        after: Option<ListPosition>,
    ) -> Result<DoubtPage> {
        let prefix = DOUBT_PREFIX.to_owned();
        let request = ListRequest { prefix, after, limit: PAGE_ENTRIES, ..ListRequest::default() };
        let page = self.inner.list(context, &self.bucket, &request).await?;
        let keys = page.entries.iter().filter_map(|entry| entry.name().strip_prefix(DOUBT_PREFIX));
        Ok(DoubtPage { chunks: keys.filter_map(ChunkId::from_key).collect(), next: page.next })
    }

    /// Reads the marks of earlier runs.
    pub async fn load_doubts(&self, context: &Context) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.doubt_page(context, after).await?;
            page.chunks.iter().for_each(|chunk| self.pins.doubt_durably(chunk));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Marks a chunk that a read found damaged, unless another read of it succeeds. If it was stored or deleted meanwhile,
    /// and after an error, the doubt lasts until the next write of the chunk or a restart.
    pub(super) async fn record_damage(self: &Arc<Self>, context: &Context, chunk: ChunkId) -> Result<()> {
        if self.pins.has_durable_doubt(&chunk) {
            return Ok(());
        }
        self.pins.doubt(&chunk);
        let (store, unlimited) = (self.clone(), without_deadline(context));
        self.run_to_end(context, async move {
            let before = store.chunk_record(&unlimited, &chunk).await?;
            let is_damaged = match store.get(&unlimited, &chunk.key()?).await {
                Ok(bytes) => ChunkId::of_bytes(&bytes) != chunk,
                Err(error) if matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchBucket) => false,
                Err(error) if error.reason() == Reason::CorruptData => true,
                Err(error) => return Err(error),
            };
            let _lock = store.stripe(&chunk).write().await;
            let after = store.chunk_record(&unlimited, &chunk).await?;
            if after != before || store.pins.has_durable_doubt(&chunk) {
                return Ok(());
            }
            if is_damaged || after == ChunkRecord::Damaged {
                // A write that stored it again has ended the doubt, and the chunk was damaged once more.
                store.pins.doubt(&chunk);
                store.put(&unlimited, &mark_key(&chunk)?, Bytes::new()).await?;
                store.pins.doubt_durably(&chunk);
                warn!(%chunk, "a chunk is damaged; the next write of the same bytes stores it again");
            } else {
                // The first read was wrong, or there is no chunk.
                store.pins.trust(&chunk);
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

    /// Removes the mark of a chunk that does not exist: a crash after its deletion leaves one. It stays if a write needs the
    /// chunk.
    pub(super) async fn remove_stale_doubt(
        self: &Arc<Self>,
        context: &Context,
        collecting: &Collecting,
        chunk: ChunkId,
    ) -> Result<()> {
        let lock = context.guard(self.stripe(&chunk).clone().write_owned()).await?;
        if collecting.needs(&chunk) || self.chunk_record(context, &chunk).await? != ChunkRecord::Missing {
            return Ok(());
        }
        let (store, unlimited) = (self.clone(), without_deadline(context));
        self.run_to_end(context, async move {
            let _lock = lock;
            store.remove_doubt(&unlimited, &chunk).await
        })
        .await
    }

    async fn chunk_record(&self, context: &Context, chunk: &ChunkId) -> Result<ChunkRecord> {
        match self.find(context, &chunk.key()?).await {
            Ok(Some(info)) => Ok(ChunkRecord::Stored(info.generation)),
            Ok(None) => Ok(ChunkRecord::Missing),
            Err(error) if error.reason() == Reason::CorruptData => Ok(ChunkRecord::Damaged),
            Err(error) => Err(error),
        }
    }

    /// Removes the mark of a chunk that was stored or deleted. The caller holds the lock of its stripe.
    pub(super) async fn remove_doubt(&self, context: &Context, chunk: &ChunkId) -> Result<()> {
        self.delete(context, &mark_key(chunk)?).await?;
        self.pins.trust(chunk);
        Ok(())
    }
}
