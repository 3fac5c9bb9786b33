//! What the parts of one open store share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tradewind_core::Clock;
use tradewind_core::error::{Error, Result};

use super::buffers::Buffers;
use super::index::Index;
use super::io::IoThreads;
use super::layout::Layout;
use super::manifests::Manifests;
use super::options::LocalOptions;
use super::record::{Bucket, BucketId};
use super::segment::{Segment, SegmentKind, Segments};
use super::space::Space;

/// The state of one open store.
pub(crate) struct Shared {
    pub layout: Layout,
    pub options: LocalOptions,
    pub clock: Arc<dyn Clock>,
    pub index: Index,
    pub segments: Segments,
    pub space: Space,
    pub io: Arc<IoThreads>,
    pub buffers: Arc<Buffers>,
    pub manifests: Manifests,
    /// Bytes that staged writes have gathered and that are not written yet.
    pub gathered: Arc<AtomicUsize>,
    pub hashing: tradewind_digest::Engine,
    pub buckets: RwLock<BTreeMap<String, Bucket>>,
    /// The next seq, extent or upload number; each is given out once.
    pub next_id: AtomicU64,
    pub next_segment: AtomicU32,
    /// Held while a segment is made.
    pub making: Mutex<()>,
}

impl Shared {
    pub fn bucket_id(&self, name: &str) -> Result<BucketId> {
        self.buckets.read().get(name).map(|bucket| bucket.id).ok_or_else(|| Error::no_such_bucket(name))
    }

    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        self.buckets.read().get(name).cloned().ok_or_else(|| Error::no_such_bucket(name))
    }

    /// Makes a segment and adds it to those that are read.
    pub fn create_segment(&self, kind: SegmentKind) -> Result<Arc<Segment>> {
        // A number that is missing looks to the next start like a segment that was removed: each is taken when
        // its file has a name, one after the other.
        let _one_at_a_time = self.making.lock();
        let (number, directory) = (self.next_segment.load(Ordering::Acquire), self.layout.segments());
        let made = Segment::create(&directory, self.layout.salt, number, kind);
        if made.is_ok() || Segment::path(&directory, number, kind).exists() {
            self.next_segment.store(number + 1, Ordering::Release);
        }
        let segment = made?;
        self.segments.add(segment.clone());
        Ok(segment)
    }
}
