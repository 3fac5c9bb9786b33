//! Collection of chunks that nothing refers to: mark and sweep, concurrent with reads and writes.
//!
//! 1. The collection **begins**: from here on, chunks that writes pin are kept until it ends.
//! 2. It **marks** the chunks of parts, then those of all versions of all objects. A manifest that it does not see was
//!    written since the begin, so that its chunks were pinned, or is gone.
//! 3. It **waits** for the reads that began before. Later ones cannot find a manifest with a chunk that is not marked. If
//!    a read does not end within an hour, nothing is deleted this time.
//! 4. It **sweeps**: each chunk that is neither marked nor kept is deleted.
//! 5. It removes marks of chunks that do not exist (`doubt`).
//! 6. It removes the references of parts whose uploads have ended, and counts the others. Uploads and references that are
//!    damaged are recorded, and their references stay.
//!
//! Any error before the sweep ends the collection, and nothing is deleted. Damaged objects and parts end it at the end of
//! the mark, so that all of them are known (`damage`). Single requests that the store is too busy for are repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::warn;
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};

use super::busy_retry::retry_busy;
use super::chunk_store::ChunkStore;
use super::damage::{DamagedObject, FoundDamage};
use super::mark::MarkedChunks;
use super::marking::{MarkedObjects, Marking};
use super::part_references::{self, PartReference, UploadName};
use super::pins::Collecting;
use crate::transformed::keys::random;

/// Deletions in progress: the store below makes them durable together.
const MAX_CONCURRENT_DELETIONS: usize = 8;
/// The longest wait for reads that began before the end of the mark.
const MAX_READ_WAIT: Duration = Duration::from_secs(3600);

/// The result of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectionReport {
    /// Deduplicated objects and versions.
    pub objects: u64,
    /// Their bytes, as far as they are in chunks.
    pub referenced_bytes: u64,
    /// Deduplicated parts of unfinished uploads, with those that were replaced. The ratio leaves them out.
    pub parts: u64,
    /// Their bytes.
    pub part_bytes: u64,
    /// Chunks that remain.
    pub chunks: u64,
    /// Their bytes.
    pub chunk_bytes: u64,
    /// Chunks that were deleted.
    pub deleted_chunks: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
}

impl CollectionReport {
    /// Bytes of objects for each byte of the chunks; `None` without objects.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.objects > 0 && self.chunk_bytes > 0)
            .then(|| self.referenced_bytes as f64 / self.chunk_bytes as f64)
    }
}

/// Deletions in progress. Each returns the bytes that it has deleted.
type Deletions = JoinSet<Result<Option<u64>>>;

/// A collection in progress, after its mark.
struct Collection<'a> {
    store: &'a Arc<ChunkStore>,
    context: &'a Context,
    collecting: Arc<Collecting>,
    marked: MarkedChunks,
    /// Uploads and references of parts that could not be read after the mark.
    damage: FoundDamage,
    report: CollectionReport,
}

/// Runs a collection. `None` if one runs already.
pub(super) async fn collect(store: &Arc<ChunkStore>, context: &Context) -> Result<Option<CollectionReport>> {
    let collecting = store.pins.begin_collection(u64::from_le_bytes(random()?)).map(Arc::new);
    let Some(collecting) = collecting else { return Ok(None) };
    let chunks = count_chunks(store, context).await?;
    let marked = Mutex::new(MarkedChunks::new(chunks, u64::from_le_bytes(random()?)));
    let (damage, totals) = (FoundDamage::default(), MarkedObjects::default());
    let mut marking = Marking { store, context, marked, damage, totals };
    let has_marked = marking.run().await;
    let Marking { marked, damage, totals: MarkedObjects { objects, bytes }, .. } = marking;
    if has_marked.is_ok() || !damage.objects.is_empty() {
        *store.damaged.lock() = damage.objects;
    }
    has_marked?;
    let report = CollectionReport { objects, referenced_bytes: bytes, ..CollectionReport::default() };
    let (marked, damage) = (marked.into_inner(), FoundDamage::default());
    let mut collection = Collection { store, context, collecting, marked, damage, report };
    let have_reads_ended = collection.wait_for_reads().await?;
    if !have_reads_ended {
        let hours = MAX_READ_WAIT.as_secs() / 3600;
        warn!(hours, "a read lasts too long: unused chunks stay until the next collection");
    }
    collection.sweep(have_reads_ended).await?;
    collection.remove_stale_doubts().await?;
    collection.remove_ended().await?;
    *store.damaged.lock() = std::mem::take(&mut collection.damage.objects);
    Ok(Some(collection.report))
}

async fn count_chunks(store: &ChunkStore, context: &Context) -> Result<u64> {
    let (mut after, mut chunks) = (None, 0);
    loop {
        let page = retry_busy(context, || store.page(context, after.clone())).await?;
        chunks += ChunkStore::chunks(&page).count() as u64;
        after = page.next;
        if after.is_none() {
            return Ok(chunks);
        }
    }
}

impl Collection<'_> {
    /// Waits for the reads that began before. Returns false if one lasts too long.
    async fn wait_for_reads(&self) -> Result<bool> {
        let clock = self.context.deadline.clock();
        let reads = self.store.pins.reads_before_now();
        let waited = async {
            tokio::select! {
                () = reads => true,
                () = clock.sleep_until(clock.now() + MAX_READ_WAIT) => false,
            }
        };
        self.context.guard(waited).await
    }

    /// Counts the chunks, and deletes the unused ones if `deletes`.
    async fn sweep(&mut self, deletes: bool) -> Result<()> {
        let mut deletions = JoinSet::new();
        let swept = self.sweep_pages(deletes, &mut deletions).await;
        if swept.is_err() {
            // None is left behind. Those that the store carries out go on to their end.
            deletions.shutdown().await;
        }
        swept
    }

    async fn sweep_pages(&mut self, deletes: bool, deletions: &mut Deletions) -> Result<()> {
        let mut after = None;
        loop {
            let page = retry_busy(self.context, || self.store.page(self.context, after.clone())).await?;
            for listed in ChunkStore::chunks(&page) {
                self.report.chunks += 1;
                self.report.chunk_bytes += listed.bytes;
                if !deletes || self.marked.contains(listed.chunk.tag()) {
                    continue;
                }
                if deletions.len() >= MAX_CONCURRENT_DELETIONS {
                    self.join(deletions).await?;
                }
                let (store, context) = (self.store.clone(), self.context.clone());
                // The collection lasts until the last deletion has checked whether a write needs its chunk.
                let collecting = self.collecting.clone();
                deletions.spawn(async move {
                    let delete = || store.delete_unneeded(&context, &collecting, listed.chunk);
                    let is_deleted = retry_busy(&context, delete).await?;
                    Ok(is_deleted.then_some(listed.bytes))
                });
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        while !deletions.is_empty() {
            self.join(deletions).await?;
        }
        Ok(())
    }

    async fn join(&mut self, deletions: &mut Deletions) -> Result<()> {
        match deletions.join_next().await {
            Some(Ok(deleted)) => {
                if let Some(bytes) = deleted? {
                    self.report.chunks -= 1;
                    self.report.chunk_bytes -= bytes;
                    self.report.deleted_chunks += 1;
                    self.report.deleted_bytes += bytes;
                    let counters = &self.store.counters;
                    counters.deleted_chunks.fetch_add(1, Ordering::Relaxed);
                    counters.deleted_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Ok(())
            }
            Some(Err(failed)) => Err(Error::with_source(Reason::Defect, "a deletion did not end", failed)),
            None => Ok(()),
        }
    }

    async fn remove_stale_doubts(&self) -> Result<()> {
        let mut after = None;
        loop {
            let page =
                retry_busy(self.context, || self.store.doubt_page(self.context, after.clone())).await?;
            for chunk in page.chunks {
                let remove = || self.store.remove_stale_doubt(self.context, &self.collecting, chunk);
                retry_busy(self.context, remove).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Records what could not be read after the mark. The mark has read all manifests, so that this ends nothing.
    fn record_damage(&mut self, object: DamagedObject, error: &Error) {
        warn!(%object, %error, "cannot tell whether an upload has ended: its list of chunks is kept");
        self.damage.record_bounded(object);
    }

    /// Returns true if the upload has ended. One whose record is damaged is recorded, and has not.
    async fn has_ended(&mut self, name: &UploadName) -> Result<bool> {
        match name.has_ended(self.store, self.context).await {
            Err(error) if error.reason() == Reason::CorruptData => {
                let UploadName { address, upload } = name.clone();
                self.record_damage(DamagedObject { address, upload: Some(upload) }, &error);
                Ok(false)
            }
            has_ended => has_ended,
        }
    }

    /// Removes the references of uploads that have ended, and counts the others. The objects that the uploads have become
    /// are visible to the next collection.
    async fn remove_ended(&mut self) -> Result<()> {
        let (mut after, mut known) = (None, None);
        loop {
            let page = part_references::page(self.store, self.context, after).await?;
            for key in page.keys {
                let read = part_references::read(self.store, self.context, &key, |_| {}).await;
                let PartReference { name, bytes } = match read {
                    Err(error) if error.reason() == Reason::CorruptData => {
                        self.record_damage(DamagedObject::object(self.store.address(&key)), &error);
                        continue;
                    }
                    read => read?,
                };
                let has_ended = match known.take() {
                    Some((upload, has_ended)) if upload == name => has_ended,
                    _ => self.has_ended(&name).await?,
                };
                if has_ended {
                    retry_busy(self.context, || self.store.delete(self.context, &key)).await?;
                } else {
                    self.report.parts += 1;
                    self.report.part_bytes += bytes;
                }
                known = Some((name, has_ended));
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::SystemClock;
    use tradewind_core::testing::{MemoryStore, context};

    use super::super::manifest::ChunkId;
    use super::*;

    /// A write has found the chunk during the collection and has committed. Then the collection fails, while the deletion
    /// has not yet checked whether a write needs the chunk.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn deletion_of_a_failed_collection_keeps_a_chunk_that_a_write_found() {
        let inner = MemoryStore::new(SystemClock::shared());
        let store = Arc::new(ChunkStore::open(inner, &context()).await.unwrap());
        store.prepare(&context()).await.unwrap();
        let chunk = ChunkId::of_bytes(b"bytes");
        store.ensure(&context(), chunk, b"bytes"[..].into()).await.unwrap();
        let collecting = Arc::new(store.pins.begin_collection(7).unwrap());
        let held = store.hold(&chunk).await;
        let (deleting, last) = (store.clone(), collecting.clone());
        let deletion =
            tokio::spawn(async move { deleting.delete_unneeded(&context(), &last, chunk).await.unwrap() });
        let mut pins = store.pins.pin_set();
        pins.add(&chunk);
        drop(pins);
        drop(collecting);
        // Another collection would forget what writes pinned before it.
        assert!(collect(&store, &context()).await.unwrap().is_none());
        drop(held);
        assert!(!deletion.await.unwrap());
        assert_eq!(store.read(&context(), chunk, 5).await.unwrap(), &b"bytes"[..]);
        assert_eq!(collect(&store, &context()).await.unwrap().unwrap().deleted_chunks, 1);
    }
}
