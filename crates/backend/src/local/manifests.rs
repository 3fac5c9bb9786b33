//! Large manifests, decoded: an object of 10,000 parts has some 700 KB of them, and whoever reads it in
//! ranges would decode all of it for each range. A record never changes and its position never means
//! another one, so what is kept here is never stale.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::local::position::Position;
use crate::local::record::Object;

/// Smaller heads are read and decoded in no time.
const SMALLEST_BYTES: u32 = 16 << 10;
/// Bytes of heads kept: decoded they take about four times as much.
const KEPT_BYTES: u64 = 4 << 20;

/// The manifests used last.
#[derive(Default)]
pub(crate) struct Manifests {
    kept: Mutex<VecDeque<(Position, u32, Arc<Object>)>>,
}

impl Manifests {
    /// The object whose record lies at a position, where it is kept.
    pub fn get(&self, at: Position, head_bytes: u32) -> Option<Arc<Object>> {
        if head_bytes < SMALLEST_BYTES {
            return None;
        }
        let mut kept = self.kept.lock();
        let found = kept.iter().position(|(position, ..)| *position == at)?;
        let entry = kept.remove(found)?;
        let object = entry.2.clone();
        kept.push_front(entry);
        Some(object)
    }

    /// Keeps an object in extents for the next time, if it is large.
    pub fn put(&self, at: Position, head_bytes: u32, object: &Arc<Object>) {
        if head_bytes < SMALLEST_BYTES {
            return;
        }
        let mut kept = self.kept.lock();
        kept.retain(|(position, ..)| *position != at);
        kept.push_front((at, head_bytes, object.clone()));
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
        while bytes > KEPT_BYTES
            && let Some((_, dropped, _)) = kept.pop_back()
        {
            bytes -= u64::from(dropped);
        }
    }
}
