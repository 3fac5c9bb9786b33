//! The chunks that must not be deleted although no manifest refers to them yet, and the reads in progress.
//!
//! - A write **pins** each of its chunks before it looks whether the chunk exists, until its manifest is durable or
//!   certainly not stored.
//! - While a collection runs, every chunk that is or was pinned since its begin is **touched**. It is not deleted, because
//!   the mark may have passed the key of the manifest before it was written.
//! - A chunk whose stored bytes may be damaged or missing is **doubtful** until a write has stored it again. A write that
//!   pinned it before must not be acknowledged.
//! - A **read** may be at chunks of an object that was deleted meanwhile. A collection waits for all reads that began
//!   before the end of its mark.
//!
//! Sets hold tags of chunks. Two chunks of equal tags are pinned together, which only delays a deletion.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::manifest::ChunkId;
use super::mark::MarkedChunks;

/// Chunks that writes pin during a collection, up to which few others are kept with them: 1 TiB of the average size. The
/// set takes 32 MiB. With more of them, the collection deletes fewer chunks.
const MAX_TOUCHED_CHUNKS: u64 = 16 << 20;

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
    /// The chunks that were pinned since a collection began, and a few others. Present while it runs.
    touched: Option<MarkedChunks>,
    /// Chunks whose stored bytes may be damaged or missing: a write stores them again.
    doubtful: HashMap<u64, DoubtDuration>,
}

/// The duration of a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DoubtDuration {
    UntilRestart,
    Durable,
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

    /// Begins a collection; `None` if one runs already. Each has a new random `seed`.
    pub fn begin_collection(self: &Arc<Self>, seed: u64) -> Option<Collecting> {
        let mut state = self.state.lock();
        if state.touched.is_some() {
            return None;
        }
        let mut touched = MarkedChunks::new(MAX_TOUCHED_CHUNKS, seed);
        state.pinned.keys().for_each(|tag| touched.insert(*tag));
        state.touched = Some(touched);
        Some(Collecting { pins: self.clone() })
    }

    /// Makes the next write of the chunk store its bytes, whether they are there or not.
    pub fn doubt(&self, chunk: &ChunkId) {
        self.state.lock().doubtful.entry(chunk.tag()).or_insert(DoubtDuration::UntilRestart);
    }

    /// Does so also after a restart: the doubt is stored.
    pub fn doubt_durably(&self, chunk: &ChunkId) {
        self.state.lock().doubtful.insert(chunk.tag(), DoubtDuration::Durable);
    }

    /// Returns true if the doubt about the chunk is stored.
    pub fn has_durable_doubt(&self, chunk: &ChunkId) -> bool {
        self.state.lock().doubtful.get(&chunk.tag()) == Some(&DoubtDuration::Durable)
    }

    /// Returns true if the stored bytes may be damaged.
    pub fn is_doubtful(&self, chunk: &ChunkId) -> bool {
        self.state.lock().doubtful.contains_key(&chunk.tag())
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
            touched.insert(tag);
        }
    }

    /// Returns true if the stored bytes of a pinned chunk may be damaged, and no write has stored it again.
    pub fn has_doubtful(&self) -> bool {
        let doubtful = &self.pins.state.lock().doubtful;
        match doubtful.len() < self.tags.len() {
            true => doubtful.keys().any(|tag| self.tags.contains(tag)),
            false => self.tags.iter().any(|tag| doubtful.contains_key(tag)),
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

impl Collecting {
    /// Returns true if a write needs the chunk, or needed it since the collection began.
    pub fn needs(&self, chunk: &ChunkId) -> bool {
        let state = self.pins.state.lock();
        let tag = chunk.tag();
        // Without the set nothing is known: the chunk stays.
        state.pinned.contains_key(&tag) || state.touched.as_ref().is_none_or(|touched| touched.contains(tag))
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
        let collecting = pins.begin_collection(7).unwrap();
        assert!(pins.begin_collection(7).is_none());
        drop((held, pin(&during)));
        assert!(collecting.needs(&before) && collecting.needs(&during) && !collecting.needs(&after));
        drop(collecting);
        let (one, other) = (pin(&after), pin(&after));
        drop(one);
        let collecting = pins.begin_collection(7).unwrap();
        assert!(!collecting.needs(&before) && !collecting.needs(&during) && collecting.needs(&after));
        drop((collecting, other));
        assert!(!pins.begin_collection(7).unwrap().needs(&after));
    }

    #[test]
    fn pin_set_has_a_doubtful_chunk_until_it_is_stored_again() {
        let pins = Arc::new(Pins::default());
        let [one, two, other] = [b"a", b"b", b"c"].map(|bytes| ChunkId::of_bytes(bytes));
        let mut set = pins.pin_set();
        set.add(&one);
        set.add(&two);
        pins.doubt(&other);
        assert!(!set.has_doubtful());
        for _ in 0..2 {
            pins.doubt(&two);
            assert!(set.has_doubtful() && !pins.has_durable_doubt(&two));
            pins.doubt_durably(&two);
            pins.doubt(&two);
            assert!(set.has_doubtful() && pins.has_durable_doubt(&two));
            pins.trust(&two);
            assert!(!set.has_doubtful() && !pins.has_durable_doubt(&two));
            // With more doubtful chunks than pins.
            (0..8_u8).for_each(|byte| pins.doubt(&ChunkId::of_bytes(&[byte])));
        }
    }

    /// A set that has too many chunks keeps all: a collection that is too small for the writes deletes nothing wrong.
    #[test]
    fn overfull_set_of_touched_chunks_contains_every_one() {
        let mut touched = MarkedChunks::new(1, 7);
        let tag = |number: u64| ChunkId::of_bytes(&number.to_le_bytes()).tag();
        (0..20_000).for_each(|number| touched.insert(tag(number)));
        assert!((0..20_000).all(|number| touched.contains(tag(number))));
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
