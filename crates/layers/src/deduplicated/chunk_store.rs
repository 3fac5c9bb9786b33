//! The chunks: objects in a bucket of the store below that no client can reach, each named by the hash of its bytes.
//!
//! A write that finds a chunk relies on it: it stays (`pins`) and it is durable, because a store shows durable objects
//! only. A deletion holds the lock of the chunk's stripe alone, from the check that nothing needs the chunk to the end of
//! the deletion. A write pins the chunk, and shares that lock with other writes while it looks for the chunk and stores it.
//!
//! A chunk that a read finds damaged is marked, so that the next write of its bytes stores it again (`doubt`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, RwLock, Semaphore};
use tokio_util::task::TaskTracker;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};
use tradewind_core::object::Expected;
use tradewind_core::store::{ETagForm, GetRequest, StageRequest};
use tradewind_core::{
    Address, BucketName, Checksum, Context, ObjectInfo, ObjectKey, ObjectStore, Precondition,
};

use super::damage::DamagedObject;
use super::examination::{self, Examination, ExaminationProgress};
use super::manifest::ChunkId;
use super::marker::{self, MARKER_KEY};
use super::pins::{Collecting, Pins};

/// The bucket of chunks. The layer hides it.
pub(super) const BUCKET: &str = "tradewind-deduplicated-chunks";
/// Entries of a page of a listing.
pub(super) const PAGE_ENTRIES: usize = 1000;
const STRIPES: usize = 256;
/// Bytes of chunks that all writes together have in memory to store them, in KiB.
const MAX_PENDING_KIB: u32 = 24 << 10;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct ChunkStore {
    pub inner: Arc<dyn ObjectStore>,
    pub bucket: BucketName,
    pub pins: Arc<Pins>,
    pub counters: Counters,
    /// The bucket of chunks is there, and writes may be deduplicated.
    is_ready: AtomicBool,
    /// The examination before the first use, which goes on after an error.
    examination: Mutex<Option<Examination>>,
    pub examination_progress: ExaminationProgress,
    /// Objects, parts and uploads that the last collection could not read.
    pub damaged: parking_lot::Mutex<Vec<DamagedObject>>,
    stripes: Vec<Arc<RwLock<()>>>,
    pending_kib: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub stored_chunks: AtomicU64,
    pub stored_bytes: AtomicU64,
    pub found_chunks: AtomicU64,
    pub found_bytes: AtomicU64,
    pub deleted_chunks: AtomicU64,
    pub deleted_bytes: AtomicU64,
}

impl ChunkStore {
    /// Opens the bucket of chunks. If there is none, [`Self::prepare`] must create it before a write is deduplicated.
    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if a bucket of its name has other objects, or if it is
    /// missing and an unfinished upload has deduplicated parts. Fails with [`CorruptData`](Reason::CorruptData) if the
    /// bucket's marker is damaged and nothing shows its version.
    pub async fn open(inner: Arc<dyn ObjectStore>, context: &Context) -> Result<Self> {
        let bucket = BucketName::new(BUCKET)?;
        let store = Self {
            inner,
            bucket,
            pins: Arc::default(),
            counters: Counters::default(),
            is_ready: AtomicBool::new(false),
            examination: Mutex::default(),
            examination_progress: ExaminationProgress::default(),
            damaged: parking_lot::Mutex::default(),
            stripes: (0..STRIPES).map(|_| Arc::default()).collect(),
            pending_kib: Arc::new(Semaphore::new(MAX_PENDING_KIB as usize)),
            tasks: TaskTracker::new(),
        };
        if marker::is_present(&store, context).await? {
            store.load_doubts(context).await?;
            store.is_ready.store(true, Ordering::Release);
        } else {
            examination::examine_uploads(&store, context).await?;
            store.check_empty(context).await?;
        }
        Ok(store)
    }

    /// True once the bucket of chunks is there. Before, writes must store plain objects.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Creates the bucket of chunks, after a look at all objects. Does nothing if it is there. Requests may be served
    /// concurrently, with plain writes. Fails as [`Examination::run`]; the next call goes on where it failed.
    pub async fn prepare(&self, context: &Context) -> Result<()> {
        let mut slot = context.guard(self.examination.lock()).await?;
        if self.is_ready() {
            return Ok(());
        }
        let examination = match &mut *slot {
            Some(examination) => examination,
            None => slot.insert(Examination::begin(self, context).await?),
        };
        examination.run(self, context).await?;
        match self.inner.create_bucket(context, &self.bucket).await {
            Err(error) if error.reason() != Reason::BucketExists => return Err(error),
            _ => {}
        }
        marker::write(self, context).await?;
        self.is_ready.store(true, Ordering::Release);
        *slot = None;
        Ok(())
    }

    /// Fails if the bucket has objects of someone else, or chunks or references without the object that marks it.
    async fn check_empty(&self, context: &Context) -> Result<()> {
        if self.has_records_only(context).await? {
            return Ok(());
        }
        // Deduplicated objects have an error of their own, which names one of them.
        Examination::begin(self, context).await?.run(self, context).await?;
        let message = format!(
            "the bucket {BUCKET:?} is not one of the layer \"deduplicated\"; copy its objects to another bucket, and \
             delete it"
        );
        Err(Error::new(Reason::InvalidArgument, message))
    }

    /// Returns true if there is no bucket of chunks, or if it has only objects that a bucket without chunks may have.
    async fn has_records_only(&self, context: &Context) -> Result<bool> {
        let mut after = None;
        loop {
            let page = match self.page(context, after).await {
                Err(error) if error.reason() == Reason::NoSuchBucket => return Ok(true),
                page => page?,
            };
            if !page.entries.iter().all(|entry| marker::is_record_key(entry.name())) {
                return Ok(false);
            }
            after = page.next;
            if after.is_none() {
                return Ok(true);
            }
        }
    }

    /// The error of a deduplicated object without a bucket of chunks.
    pub fn missing_chunks(address: &Address) -> Error {
        let message = format!(
            "the chunks of deduplicated objects, such as {:?} of the bucket {:?}, are missing: the bucket {BUCKET:?} has \
             no object {MARKER_KEY:?}; restore the bucket",
            address.key.as_str(),
            address.bucket.as_str()
        );
        Error::new(Reason::InvalidArgument, message)
    }

    /// Waits for the memory of a chunk that will be stored.
    pub async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(MAX_PENDING_KIB);
        let reserved = self.pending_kib.clone().acquire_many_owned(kib).await;
        reserved
            .map_err(|closed| Error::with_source(Reason::Defect, "the memory of chunks is closed", closed))
    }

    /// Stores a chunk, unless it is there. Returns true if it was stored. The caller has pinned it.
    pub async fn ensure(self: &Arc<Self>, context: &Context, chunk: ChunkId, bytes: Bytes) -> Result<bool> {
        // A deletion or a mark of doubt that began before the pin ends first.
        let lock = context.guard(self.stripe(&chunk).clone().read_owned()).await?;
        let (key, length) = (chunk.key()?, bytes.len() as u64);
        let mut is_doubtful = self.pins.is_doubtful(&chunk);
        if !is_doubtful {
            match self.size(context, &key).await {
                Ok(size) if size == Some(length) => {
                    self.counters.found_chunks.fetch_add(1, Ordering::Relaxed);
                    self.counters.found_bytes.fetch_add(length, Ordering::Relaxed);
                    return Ok(false);
                }
                Ok(_) => {}
                Err(error) if error.reason() == Reason::CorruptData => {
                    // Writes that found it before must not be acknowledged until it is stored again.
                    self.pins.doubt(&chunk);
                    is_doubtful = true;
                }
                Err(error) => return Err(error),
            }
        }
        self.put(context, &key, bytes).await?;
        if is_doubtful {
            self.end_doubt(context, chunk, lock).await?;
        }
        self.counters.stored_chunks.fetch_add(1, Ordering::Relaxed);
        self.counters.stored_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(true)
    }

    /// The verified bytes of a chunk. Fails with [`CorruptData`](Reason::CorruptData) if it is damaged or missing. A damaged
    /// one is marked, so that the next write of the same bytes stores them again.
    pub async fn read(self: &Arc<Self>, context: &Context, chunk: ChunkId, length: usize) -> Result<Bytes> {
        let mut why = match self.get(context, &chunk.key()?).await {
            Ok(bytes) if ChunkId::of_bytes(&bytes) != chunk => "has other bytes than were written".to_owned(),
            Ok(bytes) if bytes.len() == length => return Ok(bytes),
            Ok(_) => {
                let message = format!("the chunk {chunk} has another length than the manifest says");
                return Err(Error::new(Reason::CorruptData, message));
            }
            Err(error) if matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchBucket) => {
                return Err(Error::new(Reason::CorruptData, format!("the chunk {chunk} is missing")));
            }
            Err(error) if error.reason() == Reason::CorruptData => format!("is damaged: {}", error.message()),
            Err(error) => return Err(error),
        };
        if let Err(error) = self.record_damage(context, chunk).await {
            why = format!("{why}, and cannot be marked: {}", error.message());
        }
        Err(Error::new(Reason::CorruptData, format!("the chunk {chunk} {why}")))
    }

    /// Deletes a chunk that no manifest refers to. Returns false, and leaves it, if a write needs it.
    pub async fn delete_unneeded(
        self: &Arc<Self>,
        context: &Context,
        collecting: &Collecting,
        chunk: ChunkId,
    ) -> Result<bool> {
        let lock = context.guard(self.stripe(&chunk).clone().write_owned()).await?;
        if collecting.needs(&chunk) {
            return Ok(false);
        }
        let (store, unlimited) = (self.clone(), without_deadline(context));
        self.run_to_end(context, async move {
            let _lock = lock;
            let was_doubtful = store.pins.is_doubtful(&chunk);
            if let Err(error) = store.delete(&unlimited, &chunk.key()?).await {
                // It may be gone: a write must not rely on it.
                store.pins.doubt(&chunk);
                return Err(error);
            }
            if was_doubtful {
                store.remove_doubt(&unlimited, &chunk).await?;
            }
            Ok(())
        })
        .await?;
        Ok(true)
    }

    /// Runs a change to its end, although the caller may stop waiting.
    pub async fn run_to_end<T: Send + 'static>(
        &self,
        context: &Context,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.tasks.is_closed() {
            return Err(Error::new(Reason::ShuttingDown, "the store was closed"));
        }
        match context.guard(self.tasks.spawn(work)).await? {
            Ok(result) => result,
            Err(failed) => Err(Error::with_source(Reason::Defect, "a change did not end", failed)),
        }
    }

    /// A page of the objects in the bucket: chunks and others.
    pub async fn page(
        &self,
        context: &Context,
        after: Option<ListPosition>,
    ) -> Result<ListPage<ObjectSummary>> {
        let request = ListRequest { after, limit: PAGE_ENTRIES, ..ListRequest::default() };
        self.inner.list(context, &self.bucket, &request).await
    }

    /// The chunks and their sizes on a page.
    pub fn chunks(page: &ListPage<ObjectSummary>) -> impl Iterator<Item = ListedChunk> {
        page.entries.iter().filter_map(|entry| match entry {
            ListEntry::Key(key, summary) => {
                ChunkId::from_key(key).map(|chunk| ListedChunk { chunk, bytes: summary.size })
            }
            ListEntry::CommonPrefix(_) => None,
        })
    }

    /// Stores a small object in the bucket.
    pub async fn put(&self, context: &Context, key: &ObjectKey, bytes: Bytes) -> Result<()> {
        let size = Some(bytes.len() as u64);
        let request = StageRequest { size, etag: ETagForm::Unique, ..StageRequest::default() };
        let mut staged = self.own(self.inner.stage(context, &self.address(key), request).await)?;
        staged.write(bytes).await?;
        self.own(staged.commit(Expected { size, ..Expected::default() }).await)?;
        Ok(())
    }

    /// The bytes of a small object in the bucket, in memory of their own.
    pub async fn get(&self, context: &Context, key: &ObjectKey) -> Result<Bytes> {
        let found = self.inner.get(context, &self.address(key), GetRequest::default()).await?;
        context.guard(found.body.collect()).await?
    }

    /// Deletes an object of the bucket.
    pub async fn delete(&self, context: &Context, key: &ObjectKey) -> Result<()> {
        self.own(self.inner.delete(context, &self.address(key), Precondition::None).await).map(drop)
    }

    /// Waits for changes in progress, and closes the store below.
    pub async fn close(&self) -> Result<()> {
        self.tasks.close();
        self.tasks.wait().await;
        self.inner.close().await
    }

    async fn size(&self, context: &Context, key: &ObjectKey) -> Result<Option<u64>> {
        Ok(self.find(context, key).await?.map(|info| info.size))
    }

    /// The record of an object in the bucket; `None` if there is none.
    pub async fn find(&self, context: &Context, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        match self.inner.head(context, &self.address(key), GetRequest::default()).await {
            Ok(found) => Ok(Some(found.info)),
            Err(error) if error.reason() == Reason::NoSuchKey => Ok(None),
            Err(error) => self.own(Err(error)),
        }
    }

    /// The checksums that the store has of an object's bytes.
    pub async fn checksums(&self, context: &Context, key: &ObjectKey) -> Result<Vec<Checksum>> {
        let found = self.inner.head(context, &self.address(key), GetRequest::default()).await?;
        Ok(found.info.checksums)
    }

    /// Names the bucket in an error that the client would take for one of its own bucket.
    fn own<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error.reason() {
            Reason::NoSuchBucket => {
                let message = format!("the bucket of chunks {BUCKET:?} is missing; restore it");
                Error::with_source(Reason::Io, message, error)
            }
            _ => error,
        })
    }

    /// Keeps deletions of a chunk from their check whether it is needed.
    #[cfg(test)]
    pub async fn hold(&self, chunk: &ChunkId) -> tokio::sync::OwnedRwLockReadGuard<()> {
        self.stripe(chunk).clone().read_owned().await
    }

    /// The address of an object in the bucket.
    pub fn address(&self, key: &ObjectKey) -> Address {
        Address::new(self.bucket.clone(), key.clone())
    }

    /// The lock of the chunk: exclusive for deletions and marks of doubt.
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
    pub fn stripe(&self, chunk: &ChunkId) -> &Arc<RwLock<()>> {
        &self.stripes[chunk.tag() as usize % STRIPES]
    }
}

/// A chunk of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedChunk {
    pub chunk: ChunkId,
    pub bytes: u64,
}

/// A context for changes that must not end before the store below has carried them out.
pub(super) fn without_deadline(context: &Context) -> Context {
    let clock = context.deadline.clock().clone();
    Context { deadline: Deadline::none(clock), ..context.clone() }
}
