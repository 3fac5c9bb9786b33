//! [`StoreState`]: the state of an open store. Requests, upkeep and the committer's thread share it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tradewind_core::error::{Error, Result};
use tradewind_core::{Clock, Versioning};

use super::buffer_pool::BufferPool;
use super::index::Index;
use super::io_threads::IoThreads;
use super::layout::Layout;
use super::manifest_cache::ManifestCache;
use super::options::LocalOptions;
use super::record::{Bucket, BucketId};
use super::segment::{Segment, SegmentKind, SegmentMap};
use super::space::DeviceSpace;

/// The state of an open store, without its committer; see [`OpenStore`](super::open_store::OpenStore).
pub(crate) struct StoreState {
    pub layout: Layout,
    pub options: LocalOptions,
    pub clock: Arc<dyn Clock>,
    pub index: Index,
    pub segments: SegmentMap,
    pub space: DeviceSpace,
    pub io: Arc<IoThreads>,
    pub buffers: Arc<BufferPool>,
    pub manifests: ManifestCache,
    /// Bytes of all writes that are received and not yet in a file, including submitted ones.
    pub unwritten_bytes: Arc<AtomicUsize>,
    pub hashing: tradewind_digest::Engine,
    pub buckets: RwLock<BTreeMap<String, Bucket>>,
    /// The next seq, extent id or unique ETag: one sequence.
    pub next_id: AtomicU64,
    pub next_segment: AtomicU32,
    /// Held while a segment is created.
    pub segment_creation: Mutex<()>,
}

impl StoreState {
    pub fn bucket_id(&self, name: &str) -> Result<BucketId> {
        self.buckets.read().get(name).map(|bucket| bucket.id).ok_or_else(|| Error::no_such_bucket(name))
    }

    pub fn versioning(&self, name: &str) -> Result<Versioning> {
        let buckets = self.buckets.read();
        buckets.get(name).map(|bucket| bucket.versioning).ok_or_else(|| Error::no_such_bucket(name))
    }

    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        self.buckets.read().get(name).cloned().ok_or_else(|| Error::no_such_bucket(name))
    }

    /// Creates a segment and makes it available to readers.
    pub fn create_segment(&self, kind: SegmentKind) -> Result<Arc<Segment>> {
        // The next open of the store takes a number that is missing before an existing one for a lost segment
        // (`index_fit`). So numbers are allocated without gaps, and a number is in use only once its file has its
        // final name.
        let _guard = self.segment_creation.lock();
        let (number, directory) = (self.next_segment.load(Ordering::Acquire), self.layout.segments());
        let created = Segment::create(&directory, self.layout.salt, number, kind);
        if created.is_ok() || Segment::path(&directory, number, kind).exists() {
            self.next_segment.store(number + 1, Ordering::Release);
        }
        let segment = created?;
        self.segments.add(segment.clone());
        Ok(segment)
    }
}
