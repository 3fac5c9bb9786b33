//! What the parts of one open store share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
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
        let number = self.next_segment.fetch_add(1, Ordering::AcqRel);
        match Segment::create(&self.layout.segments(), self.layout.salt, number, kind) {
            Ok(segment) => {
                self.segments.add(segment.clone());
                Ok(segment)
            }
            Err(e) => {
                // The number goes back where nobody took the next one: a missing number looks to the next start
                // like a segment that was removed.
                if !Segment::path(&self.layout.segments(), number, kind).exists() {
                    let next = &self.next_segment;
                    let _ = next.compare_exchange(number + 1, number, Ordering::AcqRel, Ordering::Relaxed);
                }
                Err(e)
            }
        }
    }
}
