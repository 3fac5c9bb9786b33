//! The chunks that must not be deleted although no manifest refers to them yet, and the reads in progress.
//!
//! - A write **pins** each of its chunks before it looks whether the chunk exists, until its manifest is durable or
//!   certainly not stored.
//! - While a collection runs, every chunk that is or was pinned since its begin is **touched**. It is not deleted, because
//!   the mark may have passed the key of the manifest before it was written.
//! - A **read** may be at chunks of an object that was deleted meanwhile. A collection waits for all reads that began
//!   before the end of its mark.
//!
//! Sets hold tags of chunks. Two chunks of equal tags are pinned together, which only delays a deletion.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tradewind_core::error::{Error, Reason, Result};

use super::manifest::ChunkId;

/// Chunks that writes may pin while a collection runs: 256 GiB of the average size. They take up to 108 MiB.
const MAX_TOUCHED_CHUNKS: usize = 4 << 20;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Pins {
    state: Mutex<PinState>,
    readers: Mutex<Readers>,
}

#[derive(Debug, Default)]
struct PinState {
    /// The number of pins by tag.
    pinned: HashMap<u64, usize>,
    /// Present while a collection runs.
    touched: Option<Touched>,
    /// Chunks whose stored bytes may be damaged or missing: a write stores them again.
    doubtful: HashSet<u64>,
}

/// The chunks that were pinned since a collection began.
#[derive(Debug)]
enum Touched {
    Tags(HashSet<u64>),
    /// Too many: any chunk may be among them.
    TooMany,
}

#[derive(Debug, Default)]
struct Readers {
    current: TaskTracker,
    /// Those of earlier collections that have not ended.
    earlier: Vec<TaskTracker>,
}

/// The pins of one write, until it is dropped.
#[derive(Debug)]
pub(super) struct PinSet {
    pins: Arc<Pins>,
    tags: HashSet<u64>,
}

/// A collection that runs. Dropping it ends it: what deletes chunks holds it until it has checked them.
#[derive(Debug)]
pub(super) struct Collecting {
    pins: Arc<Pins>,
}

impl Pins {
    /// A set without pins.
    pub fn pin_set(self: &Arc<Self>) -> PinSet {
        PinSet { pins: self.clone(), tags: HashSet::new() }
    }

    /// Begins a collection; `None` if one runs already.
    pub fn begin_collection(self: &Arc<Self>) -> Option<Collecting> {
        let mut state = self.state.lock();
        if state.touched.is_some() {
            return None;
        }
        let mut touched = Touched::Tags(state.pinned.keys().copied().collect());
        touched.limit(MAX_TOUCHED_CHUNKS);
        state.touched = Some(touched);
        Some(Collecting { pins: self.clone() })
    }

    /// Makes the next write of the chunk store its bytes, whether they are there or not.
    pub fn doubt(&self, chunk: &ChunkId) {
        self.state.lock().doubtful.insert(chunk.tag());
    }

    /// Returns true if the stored bytes may be damaged.
    pub fn is_doubtful(&self, chunk: &ChunkId) -> bool {
        self.state.lock().doubtful.contains(&chunk.tag())
    }

    /// Ends the doubt about a chunk that was stored.
    pub fn trust(&self, chunk: &ChunkId) {
        self.state.lock().doubtful.remove(&chunk.tag());
    }

    /// Begins a read. It ends when the token is dropped.
    pub fn begin_read(&self) -> TaskTrackerToken {
        self.readers.lock().current.token()
    }

    /// Waits until the reads have ended that began before this call.
    pub async fn reads_before_now(&self) {
        let earlier = {
            let mut readers = self.readers.lock();
            let current = std::mem::take(&mut readers.current);
            current.close();
            readers.earlier.push(current);
            readers.earlier.clone()
        };
        for tracker in earlier {
            tracker.wait().await;
        }
        self.readers.lock().earlier.retain(|tracker| !tracker.is_empty());
    }
}

impl PinSet {
    /// Pins a chunk.
    pub fn add(&mut self, chunk: &ChunkId) {
        let tag = chunk.tag();
        if !self.tags.insert(tag) {
            return;
        }
        let mut state = self.pins.state.lock();
        *state.pinned.entry(tag).or_default() += 1;
        if let Some(touched) = &mut state.touched {
            touched.insert(tag, MAX_TOUCHED_CHUNKS);
        }
    }
}

impl Drop for PinSet {
    fn drop(&mut self) {
        let mut state = self.pins.state.lock();
        for tag in &self.tags {
            if let Some(count) = state.pinned.get_mut(tag) {
                *count -= 1;
                if *count == 0 {
                    state.pinned.remove(tag);
                }
            }
        }
    }
}

impl Touched {
    fn insert(&mut self, tag: u64, limit: usize) {
        if let Self::Tags(tags) = self {
            tags.insert(tag);
        }
        self.limit(limit);
    }

    fn limit(&mut self, limit: usize) {
        if matches!(self, Self::Tags(tags) if tags.len() > limit) {
            *self = Self::TooMany;
        }
    }

    fn contains(&self, tag: u64) -> bool {
        match self {
            Self::Tags(tags) => tags.contains(&tag),
            Self::TooMany => true,
        }
    }
}

impl Collecting {
    /// Returns true if a write needs the chunk, or needed it since the collection began.
    pub fn needs(&self, chunk: &ChunkId) -> bool {
        let state = self.pins.state.lock();
        let tag = chunk.tag();
        // Without the set nothing is known: the chunk stays.
        state.pinned.contains_key(&tag) || state.touched.as_ref().is_none_or(|touched| touched.contains(tag))
    }

    /// Fails with [`Overloaded`](Reason::Overloaded) if writes have pinned more chunks than a collection can
    /// record: it deletes no more.
    pub fn check(&self) -> Result<()> {
        match self.pins.state.lock().touched {
            Some(Touched::Tags(_)) => Ok(()),
            Some(Touched::TooMany) | None => {
                let why = "writes used too many chunks during the collection";
                Err(Error::new(Reason::Overloaded, why))
            }
        }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.pins.state.lock().touched = None;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn chunk_is_needed_while_pinned_or_touched_by_a_collection() {
        let pins = Arc::new(Pins::default());
        let [before, during, after] = [b"a", b"b", b"c"].map(|bytes| ChunkId::of_bytes(bytes));
        let pin = |chunk| {
            let mut set = pins.pin_set();
            set.add(chunk);
            set.add(chunk);
            set
        };
        drop(pin(&after));
        let held = pin(&before);
        let collecting = pins.begin_collection().unwrap();
        assert!(pins.begin_collection().is_none());
        drop((held, pin(&during)));
        assert!(collecting.needs(&before) && collecting.needs(&during) && !collecting.needs(&after));
        drop(collecting);
        let (one, other) = (pin(&after), pin(&after));
        drop(one);
        let collecting = pins.begin_collection().unwrap();
        assert!(!collecting.needs(&before) && !collecting.needs(&during) && collecting.needs(&after));
        drop((collecting, other));
        assert!(!pins.begin_collection().unwrap().needs(&after));
    }

    #[test]
    fn a_collection_with_too_many_touched_chunks_ends_and_deletes_none() {
        let mut touched = Touched::Tags(HashSet::new());
        for tag in [1, 2, 2, 1] {
            touched.insert(tag, 2);
        }
        assert!(touched.contains(1) && touched.contains(2) && !touched.contains(4));
        touched.insert(3, 2);
        assert!((1..5).all(|tag| touched.contains(tag)));
        let pins = Arc::new(Pins::default());
        let collecting = pins.begin_collection().unwrap();
        collecting.check().unwrap();
        assert!(!collecting.needs(&ChunkId::of_bytes(b"a")));
        pins.state.lock().touched = Some(touched);
        assert!(collecting.needs(&ChunkId::of_bytes(b"a")));
        assert_eq!(collecting.check().unwrap_err().reason(), Reason::Overloaded);
    }

    #[tokio::test]
    async fn only_earlier_reads_are_waited_for() {
        let pins = Pins::default();
        let early = pins.begin_read();
        let waiting = pins.reads_before_now();
        futures::pin_mut!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        let late = pins.begin_read();
        // An abandoned wait is caught up by the next one.
        let again = pins.reads_before_now();
        futures::pin_mut!(again);
        assert!(again.as_mut().now_or_never().is_none());
        drop(late);
        assert!(again.as_mut().now_or_never().is_none());
        drop(early);
        again.await;
        waiting.await;
        assert!(pins.readers.lock().earlier.is_empty());
    }
}
