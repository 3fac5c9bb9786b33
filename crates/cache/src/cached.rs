//! The layer `Cached`: reads from the cache, and writes through to the backing store.
//!
//! - A cached object is a *head* (what the backing store reported) and the data of one immutable *content*. A change of
//!   a key drops its head; content is never changed.
//! - A head is served if it is trusted ([`Validation`]), else after a HEAD to the backing store. HEAD and not a
//!   conditional GET: a 304 says nothing about tags and metadata, which may change while the entity tag stays.
//! - Changes run in tasks of their own, so that a request that is dropped does not leave its key marked, or unmarked
//!   while the change is still applied. Every outcome drops the head: a change that failed may have been applied by an
//!   attempt whose response was lost.
//! - A small object is cached in memory when it is written, as a head that was never compared: the first read compares
//!   it, because a store may keep less metadata than it was given. The SSD holds only what was read.

mod change;
mod checkpoints;
mod class_policies;
mod comparison;
mod contents;
mod read;
mod retention_sweep;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedRwLockWriteGuard, RwLock};
use tokio_util::sync::{CancellationToken, DropGuard};
use tradewind_core::class::ClassUpdate;
use tradewind_core::error::Result;
use tradewind_core::multipart::{CompleteUpload, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::{Capabilities, CopyRequest, Deleted, GetRequest, GetResponse, StageRequest};
use tradewind_core::{
    Address, Body, BucketName, Clock, Context, Error, ObjectStore, Precondition, Reason, Staged, Tags,
    Versioning,
};

use crate::changes::Scope;
use crate::counters::{CacheCounters, Counters};
use crate::disk::{CacheDirectory, Device, DirectoryError, Disk, FileDevice, Verifier, lack_of_space};
use crate::fill::{SharedFills, WholeFills};
use crate::fingerprint::Fingerprints;
use crate::flights::Flights;
use crate::head::ContentId;
use crate::options::{CachedOptions, OutageOptions, TierOptions, Validation};
use crate::policy::Eviction;
use crate::ram::RamTier;
use crate::stamps::StampTable;
use crate::tiers::Tiers;
use change::{CachedStaged, WrittenObject};
use checkpoints::Checkpoints;
use class_policies::PinnedPrefixes;
use comparison::ComparisonPauses;
use retention_sweep::RetentionSweep;

pub use class_policies::OccupiedClass;
pub use contents::CachedPart;
pub(crate) use read::MAX_EXAMINED_EXTENTS;

/// The session of a cache without a directory.
const MEMORY_SESSION: u64 = 1;

/// The memory of the cache divided by that of the stamps of heads on the SSD.
const STAMP_SHARE_DIVISOR: usize = 64;

/// A cache in front of a store. See the module's head.
pub struct Cached {
    inner: Arc<dyn ObjectStore>,
    capabilities: Capabilities,
    tiers: Arc<Tiers>,
    clock: Arc<dyn Clock>,
    validation: Validation,
    outage: OutageOptions,
    comparison_pauses: ComparisonPauses,
    eviction: Eviction,
    /// Heads of earlier sessions are not trusted.
    session: u64,
    checkpoints: Option<Checkpoints>,
    flights: Arc<Flights>,
    next_content: AtomicU64,
    is_closed: AtomicBool,
    /// Held for reading by each change in flight.
    changes_in_flight: Arc<RwLock<()>>,
    fills: Arc<WholeFills>,
    shared_fills: Arc<SharedFills>,
    /// Initialized by the first call of `close`, with the guard that rejects later changes.
    closing: OnceCell<OwnedRwLockWriteGuard<()>>,
    pinned_prefixes: PinnedPrefixes,
    /// Ends the verification in the background when it is dropped.
    verification: Mutex<Option<DropGuard>>,
    _retention_sweep: RetentionSweep,
}

/// The SSD tier when it was opened.
struct OpenedDisk {
    disk: Arc<Disk>,
    directory: CacheDirectory,
}

impl Cached {
    /// Opens a cache in front of `inner`. Must be called within a runtime; serving can begin at once, while the index
    /// is loaded.
    ///
    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if the directory belongs to another volume, to a newer
    /// version or to another process, or is not a cache. If the SSD fails, the cache is opened without it.
    pub fn open(
        inner: Arc<dyn ObjectStore>,
        options: CachedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        Self::open_with_tiers(inner, options, TierOptions::default(), clock)
    }

    /// Like [`Self::open`], with options of its tiers.
    pub fn open_with_tiers(
        inner: Arc<dyn ObjectStore>,
        options: CachedOptions,
        tiers: TierOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        Self::open_with(inner, options, tiers, clock, |device| device)
    }

    /// Like [`Self::open_with_tiers`], with a device in between.
    pub(crate) fn open_with(
        inner: Arc<dyn ObjectStore>,
        options: CachedOptions,
        tier_options: TierOptions,
        clock: Arc<dyn Clock>,
        wrap: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
    ) -> Result<Arc<Self>> {
        let eviction = tier_options.eviction;
        let counters = Arc::new(Counters::default());
        let opened = match open_disk(&options, eviction, &clock, &counters, wrap) {
            Ok(opened) => opened,
            Err(DirectoryError::Rejected(e)) => return Err(e),
            Err(DirectoryError::Io(error)) => {
                counters.ssd_errors.increment();
                tracing::warn!(%error, "the SSD of the cache cannot be used; the cache is in memory only");
                None
            }
        };
        let (disk, directory) = opened.map(|opened| (opened.disk, opened.directory)).unzip();
        if let (Some(disk), Some(rate)) = (&disk, tier_options.max_write_bytes_per_second) {
            disk.limit_writes(rate);
        }
        let verification = disk.as_ref().and_then(|disk| start_verification(disk, tier_options));
        let random = getrandom::u64().map_err(|e| {
            Error::with_source(Reason::Io, "the system has no random numbers for the cache", e.to_string())
        })?;
        let fingerprints = disk.as_ref().map_or(Fingerprints::new(random), |disk| disk.fingerprints());
        let session = directory.as_ref().map_or(MEMORY_SESSION, |directory| directory.session);
        let stamp_bytes = match options.validation {
            Validation::MaxAge(_) => options.memory_bytes / STAMP_SHARE_DIVISOR,
            // No stamp is trusted, or a comparison is final and its head is stored again.
            Validation::Always | Validation::Owner | Validation::SoleWriter => 0,
        };
        let stamps = StampTable::new(stamp_bytes, session);
        let ram_bytes = options.memory_bytes.saturating_sub(stamps.memory_bytes());
        let ram = RamTier::new(ram_bytes, eviction, counters.clone());
        let pins_path = directory.as_ref().map(CacheDirectory::pins_path);
        let tiers = Arc::new(Tiers::new(ram, stamps, disk, fingerprints, counters, clock.clone()));
        if options.validation == Validation::SoleWriter {
            tiers.changes.set_all_uncertain(clock.now());
        }
        let pinned_prefixes = PinnedPrefixes::load(pins_path, &tiers);
        let retention_sweep = RetentionSweep::start(&tiers, clock.clone());
        let checkpoints =
            directory.map(|directory| Checkpoints::start(tiers.clone(), directory, clock.clone()));
        // The cache would serve the stored bytes of a layer above it as those of the object.
        let capabilities = Capabilities { reported_attributes: false, ..inner.capabilities().clone() };
        Ok(Arc::new(Self {
            inner,
            capabilities,
            tiers,
            clock,
            validation: options.validation,
            outage: tier_options.outage,
            comparison_pauses: ComparisonPauses::default(),
            eviction,
            session,
            checkpoints,
            flights: Arc::default(),
            next_content: AtomicU64::new(random),
            is_closed: AtomicBool::new(false),
            changes_in_flight: Arc::default(),
            fills: Arc::default(),
            shared_fills: Arc::default(),
            closing: OnceCell::new(),
            pinned_prefixes,
            verification: Mutex::new(verification),
            _retention_sweep: retention_sweep,
        }))
    }

    /// The counters since the cache was opened.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.tiers.counters.snapshot()
    }

    /// Bytes in use by the memory tier.
    #[must_use]
    pub fn memory_used_bytes(&self) -> usize {
        self.tiers.ram.used_bytes() + self.tiers.stamps.memory_bytes()
    }

    /// Extents on the SSD.
    #[must_use]
    pub fn ssd_extents(&self) -> usize {
        self.tiers.disk.as_ref().map_or(0, |disk| disk.entries())
    }

    /// True once the index of the SSD tier is loaded. Until then, reads find nothing on the SSD.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.tiers.disk.as_ref().is_none_or(|disk| disk.is_loaded())
    }

    /// Waits until what was read so far is stored in the cache, or dropped.
    pub async fn flush(&self) {
        self.tiers.flush().await;
    }

    fn new_content(&self) -> ContentId {
        ContentId(self.next_content.fetch_add(1, Ordering::Relaxed))
    }
}

fn start_verification(disk: &Arc<Disk>, ssd: TierOptions) -> Option<DropGuard> {
    let verifier = Verifier::new(disk.clone(), ssd.verify_bytes_per_second)?;
    let stop = CancellationToken::new();
    tokio::spawn(verifier.run(stop.clone()));
    Some(stop.drop_guard())
}

fn open_disk(
    options: &CachedOptions,
    eviction: Eviction,
    clock: &Arc<dyn Clock>,
    counters: &Arc<Counters>,
    wrap: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
) -> Result<Option<OpenedDisk>, DirectoryError> {
    let Some(path) = &options.directory else { return Ok(None) };
    if let Some(lack) = lack_of_space(path, options.disk_bytes)? {
        return Err(DirectoryError::Rejected(Error::new(Reason::InvalidArgument, lack.to_string())));
    }
    let directory = CacheDirectory::open(path, &options.volume_id)?;
    let device = wrap(Arc::new(FileDevice::open(&directory.extents_path(), options.disk_bytes)?));
    let (bytes, cache_id) = (options.disk_bytes, directory.cache_id);
    let (clock, counters) = (clock.clone(), counters.clone());
    let disk = if directory.has_index {
        Disk::load(device, bytes, eviction, cache_id, clock, counters, &directory.index_path())?
    } else {
        Disk::new(device, bytes, eviction, cache_id, clock, counters)?
    };
    if directory.is_after_crash {
        disk.expect_outdated_entries();
    }
    Ok(Some(OpenedDisk { disk, directory }))
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Cached {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        prewarm, min_rtt, object_clock, accepts, create_bucket, head_bucket, list_buckets, versioning, list,
        list_versions,
        object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads, abort_upload,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.read_head(context, address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.read(context, address, request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let written = WrittenObject::new(address, &request, self.new_content(), self.tiers.max_small_bytes());
        let inner = self.inner.stage(context, address, request).await?;
        Ok(Box::new(CachedStaged { inner, changer: self.changer(), scope: self.key_scope(address), written }))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        let (inner, context, address) = (self.inner.clone(), context.clone(), address.clone());
        let scope = self.key_scope(&address);
        self.changer().apply(scope, async move { inner.delete(&context, &address, precondition).await }).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let (inner, context) = (self.inner.clone(), context.clone());
        let scope = self.key_scope(&request.destination);
        self.changer().apply(scope, async move { inner.copy(&context, request).await }).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        let (inner, context, address) = (self.inner.clone(), context.clone(), address.clone());
        let scope = self.key_scope(&address);
        self.changer().apply(scope, async move { inner.set_tags(&context, &address, tags).await }).await
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        let (inner, context, address) = (self.inner.clone(), context.clone(), address.clone());
        let scope = self.key_scope(&address);
        self.changer().apply(scope, async move { inner.set_classes(&context, &address, update).await }).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        let (inner, context, address) = (self.inner.clone(), context.clone(), address.clone());
        let (scope, upload) = (self.key_scope(&address), upload.clone());
        let work = async move { inner.complete_upload(&context, &address, &upload, request).await };
        self.changer().apply(scope, work).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let (inner, context, bucket) = (self.inner.clone(), context.clone(), bucket.clone());
        let scope = Scope::Bucket(self.tiers.fingerprints.bucket(&bucket));
        self.changer().apply(scope, async move { inner.delete_bucket(&context, &bucket).await }).await
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        let (inner, context, bucket) = (self.inner.clone(), context.clone(), bucket.clone());
        let scope = Scope::Bucket(self.tiers.fingerprints.bucket(&bucket));
        let work = async move { inner.set_versioning(&context, &bucket, versioning).await };
        self.changer().apply(scope, work).await
    }

    async fn close(&self) -> Result<()> {
        let close_cache = async || {
            self.is_closed.store(true, Ordering::SeqCst);
            drop(self.verification.lock().take());
            let no_changes = self.changes_in_flight.clone().write_owned().await;
            if let Some(checkpoints) = &self.checkpoints {
                checkpoints.close().await;
            }
            no_changes
        };
        self.closing.get_or_init(close_cache).await;
        self.inner.close().await
    }
}
