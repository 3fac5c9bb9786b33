//! A cache of decoded objects with large manifests. An object of 10,000 parts has about 700 KB of manifest, which would
//! be decoded again for every range read. A record never changes and its position is never reused, so an entry is never
//! stale.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::local::position::Position;
use crate::local::record::Object;

/// Smaller heads are read and decoded quickly.
const MIN_CACHED_BYTES: u32 = 16 << 10;
/// Maximum bytes of cached heads; decoded, they take about four times as much.
const MAX_CACHED_BYTES: u64 = 4 << 20;

/// The most recently used objects with large manifests.
#[derive(Default)]
pub(crate) struct ManifestCache {
    /// Position of the record, size of its head in bytes, and the object; the most recently used first.
    cached: Mutex<VecDeque<(Position, u32, Arc<Object>)>>,
}

impl ManifestCache {
    /// The object whose record is at a position, if cached.
    pub fn get(&self, record_position: Position, head_bytes: u32) -> Option<Arc<Object>> {
        if head_bytes < MIN_CACHED_BYTES {
            return None;
        }
        let mut cached = self.cached.lock();
        let index = cached.iter().position(|(position, ..)| *position == record_position)?;
        let entry = cached.remove(index)?;
        let object = entry.2.clone();
        cached.push_front(entry);
        Some(object)
    }

    /// Caches an object in extents if its manifest is large.
    pub fn put(&self, record_position: Position, head_bytes: u32, object: &Arc<Object>) {
        if head_bytes < MIN_CACHED_BYTES {
            return;
        }
        let mut cached = self.cached.lock();
        cached.retain(|(position, ..)| *position != record_position);
        cached.push_front((record_position, head_bytes, object.clone()));
        let mut bytes: u64 = cached.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
        while bytes > MAX_CACHED_BYTES
            && let Some((_, dropped, _)) = cached.pop_back()
        {
            bytes -= u64::from(dropped);
        }
    }
}
