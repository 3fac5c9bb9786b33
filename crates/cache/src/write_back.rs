//! The layer `WriteBack`: a write is acknowledged when it is in the journal, a store on a fast device, and reaches the
//! backing store later.
//!
//! - A key is *dirty* while the journal has an object or a deletion (*tombstone*) of it that the backing store does not
//!   have. The journal is the truth about dirty keys; the [dirty index](dirty_index) in memory says which these are.
//! - A dirty key is read from the journal. If that fails, the read fails: older data is never served instead.
//! - A change that cannot be written back goes *through*: under the locks of its keys, what is dirty of them is written
//!   back and removed from the journal first. So no older dirty data ever replaces a newer change, also after a crash.
//! - Changes run to their end, if need be in a task of their own, so that a request that is dropped does not leave index and
//!   journal different.
//! - Two locks for each key: *commit* orders the changes of the journal, *transfer* the changes of the backing store. A
//!   change that goes through takes both, in the order transfer, commit. Writing back takes the second only to remove the
//!   key from the journal, so that clients can write the key meanwhile.
//! - A [marker](marker) in each bucket names the journal that may have newer data of it.

mod bucket_changes;
mod buckets;
mod changes;
mod counters;
mod dirty_index;
mod drain;
mod journal;
mod key_locks;
mod list;
mod marker;
mod options;
mod ownership;
mod read;
mod stage;
mod through;
mod uncertain;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, OwnedRwLockReadGuard, RwLock, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tradewind_core::class::ClassUpdate;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{CompleteUpload, PartInfo, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    Capabilities, CopyPartRequest, CopyRequest, Deleted, Feature, GetRequest, GetResponse, StageRequest,
};
use tradewind_core::stored_form::{DescriptionChange, Redescribed};
use tradewind_core::version::{ListVersions, VersionsPage};
use tradewind_core::{
    Address, Body, BucketName, Budget, Clock, Context, Generation, ObjectStore, Precondition, Staged, Tags,
    Versioning,
};

use buckets::Buckets;
use counters::Counters;
use dirty_index::DirtyIndex;
use drain::DrainPause;
use journal::Journal;
use key_locks::KeyLocks;
use uncertain::UncertainKeys;

pub use counters::{WriteBackPause, WriteBackStatus};
pub(crate) use journal::is_dirty_generation;
pub use marker::MARKER_KEY;
use options::DRAIN_WINDOW_BYTES;
pub use options::{
    AllowAll, AllowNone, DEFAULT_MAX_DIRTY_OBJECTS, MIN_WRITE_BACK_MEMORY_BYTES, WriteBackOptions,
    WriteBackPolicy,
};

/// The longest time that a request of write-back itself takes, besides the time for bytes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes per second below which a transfer to the backing store counts as hung.
const MIN_BYTES_PER_SECOND: u64 = 256 << 10;

/// Write-back over a store. See the module's head.
pub struct WriteBack {
    shared: Arc<Shared>,
    drain: Mutex<Option<JoinHandle<()>>>,
    closing: OnceCell<()>,
}

/// The state that all tasks of write-back share.
struct Shared {
    backing: Arc<dyn ObjectStore>,
    journal: Journal,
    policy: Arc<dyn WriteBackPolicy>,
    clock: Arc<dyn Clock>,
    options: WriteBackOptions,
    capabilities: OwnCapabilities,
    index: DirtyIndex,
    buckets: Buckets,
    commit_locks: Arc<KeyLocks>,
    transfer_locks: Arc<KeyLocks>,
    uncertain: UncertainKeys,
    /// Dirty keys whose generation in the journal the backing store has already: only their removal from the journal failed.
    unremoved: Mutex<HashMap<Address, Generation>>,
    counters: Counters,
    budget: Budget,
    /// Keys that requests and changes of buckets write back at once: half the drain's, so that others are drained meanwhile.
    bucket_flushes: Semaphore,
    drain_wakeup: Notify,
    /// The pause of the drain after its last failure; `None` after a success.
    drain_pause: Mutex<Option<DrainPause>>,
    /// Writes of clients to the backing store in flight.
    writes_through: AtomicUsize,
    /// True after a failure of the backing store, until it applies a change.
    is_backing_away: AtomicBool,
    /// True while the store is being closed: everything is written back at once.
    is_closing: AtomicBool,
    /// Held for reading by each change in flight.
    changes_in_flight: Arc<RwLock<()>>,
    stop: CancellationToken,
}

impl WriteBack {
    /// Opens write-back over `backing` with the dirty data that `journal` has. Must be called within a runtime.
    ///
    /// Fails if the journal cannot be read: serving the backing store without it would serve old data.
    pub async fn open(
        backing: Arc<dyn ObjectStore>,
        journal: Arc<dyn ObjectStore>,
        policy: Arc<dyn WriteBackPolicy>,
        options: WriteBackOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let drain_bytes = options.concurrency.max(1).saturating_mul(DRAIN_WINDOW_BYTES);
        let bucket_flushes = Semaphore::new((options.concurrency / 2).max(1));
        let shared = Arc::new(Shared {
            backing,
            journal: Journal::new(journal),
            policy,
            clock,
            options,
            capabilities: OwnCapabilities::default(),
            index: DirtyIndex::default(),
            buckets: Buckets::default(),
            commit_locks: Arc::default(),
            transfer_locks: Arc::default(),
            uncertain: UncertainKeys::default(),
            unremoved: Mutex::default(),
            counters: Counters::default(),
            budget: Budget::new(drain_bytes),
            bucket_flushes,
            drain_wakeup: Notify::new(),
            drain_pause: Mutex::default(),
            writes_through: AtomicUsize::new(0),
            is_backing_away: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            changes_in_flight: Arc::default(),
            stop: CancellationToken::new(),
        });
        shared.load().await?;
        if !shared.options.may_have_data && shared.index.totals().entries > 0 {
            return Err(Error::new(
                Reason::InvalidArgument,
                "the journal has data that was not written back",
            ));
        }
        let drain = tokio::spawn(drain::run(shared.clone()));
        Ok(Arc::new(Self { shared, drain: Mutex::new(Some(drain)), closing: OnceCell::new() }))
    }

    /// The dirty data, and what was done so far.
    #[must_use]
    pub fn status(&self) -> WriteBackStatus {
        self.shared.status()
    }

    async fn close_once(&self) {
        let shared = &self.shared;
        shared.is_closing.store(true, Ordering::SeqCst);
        let _no_changes = shared.changes_in_flight.write().await;
        shared.drain_wakeup.notify_one();
        shared.wait_until_clean().await;
        shared.stop.cancel();
        let drain = self.drain.lock().take();
        if let Some(drain) = drain
            && let Err(e) = drain.await
            && e.is_panic()
        {
            tracing::error!("the task that writes dirty data back panicked");
        }
        shared.release_clean_buckets().await;
        let left = shared.index.totals();
        if left.entries > 0 {
            tracing::warn!(
                objects = left.entries,
                bytes = left.bytes,
                "the journal has data that was not written back; it is written back after the next start"
            );
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

/// The capabilities of write-back. A service may turn out to have others than it was taken for, of which it has few.
#[derive(Debug, Default)]
struct OwnCapabilities {
    known: Mutex<Vec<KnownCapabilities>>,
}

#[derive(Debug)]
struct KnownCapabilities {
    backing: usize,
    own: &'static Capabilities,
}

impl OwnCapabilities {
    fn for_backing(&self, backing: &Capabilities) -> &'static Capabilities {
        let address = std::ptr::from_ref(backing).addr();
        let mut known = self.known.lock();
        if let Some(found) = known.iter().find(|found| found.backing == address) {
            return found.own;
        }
        // Leaked once for each volume and kind of service.
        let own = Box::leak(Box::new(own_capabilities(backing)));
        known.push(KnownCapabilities { backing: address, own });
        own
    }
}

/// The capabilities of write-back over a store with these.
fn own_capabilities(backing: &Capabilities) -> Capabilities {
    let mut unsupported = backing.unsupported.to_vec();
    if !unsupported.contains(&Feature::SnapshotListing) {
        // The backing store and the dirty index are not listed at one moment.
        unsupported.push(Feature::SnapshotListing);
    }
    Capabilities {
        // An object gets another generation when it is written back.
        generations: false,
        // A unique tag would change when the object is written back.
        unique_etags: false,
        unsupported: unsupported.leak(),
        ..backing.clone()
    }
}

impl Shared {
    /// Builds the dirty index from the journal.
    async fn load(&self) -> Result<()> {
        let context = self.own_context(0).await?;
        let (now, wall) = (self.clock.now(), self.clock.wall().millis());
        for bucket in self.journal.store.list_buckets(&context).await? {
            let record = marker::read_record(&*self.journal.store, &context, &bucket.name).await?;
            self.buckets.records.lock().extend(record.map(|record| (bucket.name.clone(), record)));
            for entry in self.journal.list(&context, &bucket.name).await? {
                let age = u64::try_from(wall.saturating_sub(entry.modified.millis())).unwrap_or(0);
                let since = now.saturating_sub(Duration::from_millis(age));
                self.index.insert(&entry.address, entry.state, entry.generation, since);
                // A request of the process before this one may still be applied to a service.
                self.uncertain.add(&entry.address, now, self.options.uncertain_window);
            }
        }
        Ok(())
    }

    /// A context for requests of write-back itself, which transfer `bytes`.
    async fn own_context(&self, bytes: u64) -> Result<Context> {
        let timeout = REQUEST_TIMEOUT + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND);
        // The time of the transfer begins with the window: the wait says nothing about the backing store.
        let wait = Deadline::after(self.clock.clone(), REQUEST_TIMEOUT);
        let window = self.budget.admit(DRAIN_WINDOW_BYTES, &wait).await?;
        Ok(Context::new(Deadline::after(self.clock.clone(), timeout), window))
    }

    /// Rejects a request that is over, or that comes after the store was closed.
    fn check_open(&self, context: &Context) -> Result<()> {
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(closed());
        }
        context.check()
    }

    /// Begins a change, which `close` waits for.
    fn begin_change(&self, context: &Context) -> Result<OwnedRwLockReadGuard<()>> {
        self.check_open(context)?;
        self.changes_in_flight.clone().try_read_owned().map_err(|_| closed())
    }
}

fn closed() -> Error {
    Error::new(Reason::ShuttingDown, "the store is closed")
}

/// True for the key of the marker, which clients do not see.
fn is_marker(address: &Address) -> bool {
    address.key.as_str() == MARKER_KEY
}

/// Rejects changes of the marker by clients.
fn reject_marker(address: &Address) -> Result<()> {
    if is_marker(address) {
        let message = format!("the key {MARKER_KEY:?} is reserved by the server");
        return Err(Error::for_client(Reason::AccessDenied, message));
    }
    Ok(())
}

/// Formats as the backing store, which it represents.
impl fmt::Debug for WriteBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.backing.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for WriteBack {
    tradewind_core::forward_methods! {
        to: |layer| &layer.shared.backing;
        prewarm, min_rtt, object_clock, accepts, create_bucket, head_bucket, list_buckets, versioning, list_parts,
        list_uploads, abort_upload,
    }

    fn capabilities(&self) -> &Capabilities {
        self.shared.capabilities.for_backing(self.shared.backing.capabilities())
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.shared.clone().delete_bucket(context, bucket).await
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.shared.clone().set_versioning(context, bucket, versioning).await
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.shared.clone().head(context, address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.shared.clone().get(context, address, request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.shared.clone().stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.shared.clone().delete(context, address, precondition).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.shared.list(context, bucket, request).await
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.shared.clone().list_versions(context, bucket, request).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let (shared, source) = (self.shared.clone(), request.source.clone());
        let destination = request.destination.clone();
        let work_context = context.clone();
        shared.clone().flush_source(context, &source).await?;
        let work = async move { shared.backing.copy(&work_context, request).await };
        self.shared.clone().change_through(context, &destination, work).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        let (shared, own_context, own_address) = (self.shared.clone(), context.clone(), address.clone());
        let work = async move { shared.backing.set_tags(&own_context, &own_address, tags).await };
        self.shared.clone().change_through(context, address, work).await
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        let (shared, own_context, own_address) = (self.shared.clone(), context.clone(), address.clone());
        let work = async move { shared.backing.set_classes(&own_context, &own_address, update).await };
        self.shared.clone().change_through(context, address, work).await
    }

    async fn redescribe(
        &self,
        context: &Context,
        address: &Address,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        let (shared, own_context, own_address) = (self.shared.clone(), context.clone(), address.clone());
        let work = async move { shared.backing.redescribe(&own_context, &own_address, change).await };
        self.shared.clone().change_through(context, address, work).await
    }

    async fn redescribe_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        change: Arc<dyn DescriptionChange>,
    ) -> Result<Redescribed> {
        self.shared.check_open(context)?;
        self.shared.backing.redescribe_upload(context, address, upload, change).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.shared.clone().object_parts(context, address, after, limit).await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: tradewind_core::multipart::CreateUpload,
    ) -> Result<UploadId> {
        reject_marker(address)?;
        // A service may order a completion by the begin of its upload.
        self.shared.clone().flush_source(context, address).await?;
        self.shared.backing.create_upload(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.shared.check_open(context)?;
        self.shared.backing.stage_part(context, address, upload, number, request).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.shared.clone().flush_source(context, &request.source).await?;
        self.shared.backing.copy_part(context, request).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        let (shared, own_context) = (self.shared.clone(), context.clone());
        let (own_address, upload) = (address.clone(), upload.clone());
        let work =
            async move { shared.backing.complete_upload(&own_context, &own_address, &upload, request).await };
        self.shared.clone().change_through(context, address, work).await
    }

    async fn close(&self) -> Result<()> {
        self.closing.get_or_init(|| self.close_once()).await;
        let journal = self.shared.journal.store.close().await;
        self.shared.backing.close().await.and(journal)
    }
}

#[cfg(test)]
mod tests;
