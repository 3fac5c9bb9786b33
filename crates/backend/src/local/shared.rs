//! What the parts of one open store share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Result};

use super::buffers::Buffers;
use super::commit::SegmentNumbers;
use super::index::Index;
use super::io::IoThreads;
use super::layout::Layout;
use super::options::LocalOptions;
use super::read::Manifests;
use super::record::{Bucket, BucketId};
use super::segment::Segments;
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
    pub hashing: tradewind_digest::Engine,
    pub buckets: RwLock<BTreeMap<String, Bucket>>,
    /// The next seq, extent or upload number; each is given out once.
    pub next_id: AtomicU64,
    pub next_segment: SegmentNumbers,
}

impl Shared {
    pub fn bucket_id(&self, name: &str) -> Result<BucketId> {
        self.buckets.read().get(name).map(|bucket| bucket.id).ok_or_else(|| Error::no_such_bucket(name))
    }

    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        self.buckets.read().get(name).cloned().ok_or_else(|| Error::no_such_bucket(name))
    }
}
