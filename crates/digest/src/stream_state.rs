//! The state of a stream shared by its owner and the engine: queued blocks, the chaining value, the waker.
//!
//! Invariants: while `scheduled`, the stream is in the engine's queue or in a pass, exactly once, and only that pass
//! changes the chaining value. Otherwise the holder of the lock may hash. Wakers are called and dropped without the
//! lock: either may run any code of the caller, even drop the engine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::message::{Segment, Segments};
use crate::scalar::{self, Chain};

/// The rest of a finished message up to this size is cheaper to hash at once than to queue again.
const MAX_INLINE_REST_BYTES: usize = 1024;

/// A stream as the engine sees it.
pub(crate) struct StreamState {
    state: Mutex<WorkState>,
    /// Bytes in segments that are not hashed yet.
    queued_bytes: AtomicUsize,
    cancelled: AtomicBool,
    /// True if the owner waits for this stream.
    urgent: AtomicBool,
    finished: Condvar,
}

struct WorkState {
    chain: Chain,
    segments: Segments,
    scheduled: bool,
    finishing: bool,
    digest: Option<[u8; 16]>,
    /// The task that waits for fewer than `below` queued bytes or, when finishing, for the digest.
    waker: Option<Waker>,
    below: usize,
}

impl StreamState {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(WorkState {
                chain: scalar::INITIAL_CHAIN,
                segments: Segments::new(),
                scheduled: false,
                finishing: false,
                digest: None,
                waker: None,
                below: 0,
            }),
            queued_bytes: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            finished: Condvar::new(),
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Appends segments. Returns true if the caller must now schedule the stream, because at least `min_bytes` bytes
    /// are queued.
    pub(crate) fn push(&self, segments: impl IntoIterator<Item = Segment>, min_bytes: usize) -> bool {
        let mut state = self.state.lock();
        let queued = self.append(&mut state, segments);
        let schedule = queued >= min_bytes && !state.scheduled;
        state.scheduled |= schedule;
        schedule
    }

    /// Appends segments and returns the number of queued bytes.
    fn append(&self, state: &mut WorkState, segments: impl IntoIterator<Item = Segment>) -> usize {
        let mut added = 0;
        for segment in segments {
            added += size_of_val(segment.blocks());
            state.segments.push_back(segment);
        }
        self.queued_bytes.fetch_add(added, Ordering::Relaxed) + added
    }

    /// Ends the message with `padding`. Hashes the rest on this thread, unless the stream is scheduled: then returns
    /// true, and the digest follows later.
    pub(crate) fn finish(&self, padding: impl IntoIterator<Item = Segment>) -> bool {
        let mut state = self.state.lock();
        self.append(&mut state, padding);
        state.finishing = true;
        if state.scheduled {
            self.urgent.store(true, Ordering::Relaxed);
            return true;
        }
        self.hash_inline(&mut state);
        false
    }

    /// Hashes all queued blocks on this thread, for a scheduled stream whose engine is closed.
    pub(crate) fn hash_all_inline(&self) {
        let mut state = self.state.lock();
        state.scheduled = false;
        self.hash_inline(&mut state);
    }

    /// Returns the digest, or registers the waker.
    pub(crate) fn poll_digest(&self, waker: &Waker) -> Poll<[u8; 16]> {
        let mut state = self.state.lock();
        match state.digest {
            Some(digest) => Poll::Ready(digest),
            None => {
                let outdated = state.register_waker(waker);
                drop(state);
                drop(outdated);
                Poll::Pending
            }
        }
    }

    /// Blocks until the digest is ready.
    pub(crate) fn wait_digest(&self) -> [u8; 16] {
        let mut state = self.state.lock();
        loop {
            if let Some(digest) = state.digest {
                return digest;
            }
            self.finished.wait(&mut state);
        }
    }

    /// Returns ready if fewer than `below` bytes are queued, else registers the waker.
    pub(crate) fn poll_drained(&self, below: usize, waker: &Waker) -> Poll<()> {
        let mut state = self.state.lock();
        let outdated = state.register_waker(waker);
        state.below = below;
        // The pass subtracts and then reads `urgent`; here the order is reversed, so at least one sees the other's
        // write.
        self.urgent.store(true, Ordering::SeqCst);
        let drained = self.queued_bytes.load(Ordering::SeqCst) < below;
        let unneeded = if drained { state.waker.take() } else { None };
        if drained {
            self.urgent.store(false, Ordering::Relaxed);
        }
        drop(state);
        drop((outdated, unneeded));
        if drained { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Claims the stream for scheduling if it is not scheduled.
    pub(crate) fn claim(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().scheduled, true)
    }

    /// Drops the queued blocks, because the owner is gone.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        let unwanted = (state.waker.take(), std::mem::take(&mut state.segments));
        drop(state);
        drop(unwanted);
    }

    /// Hands a scheduled stream to a pass: the chaining value and all queued segments.
    pub(crate) fn take(&self) -> (Chain, Segments) {
        let mut state = self.state.lock();
        (state.chain, std::mem::take(&mut state.segments))
    }

    /// Ends a pass over this stream. Returns true if more blocks are queued: the stream then stays scheduled and must
    /// be queued again.
    pub(crate) fn end_pass(&self, chain: Chain, mut rest: Segments) -> bool {
        let mut state = self.state.lock();
        state.chain = chain;
        if self.cancelled.load(Ordering::Relaxed) {
            state.scheduled = false;
            drop(state);
            return false;
        }
        rest.append(&mut state.segments);
        state.segments = rest;
        let ends_soon = state.finishing && self.queued_bytes() <= MAX_INLINE_REST_BYTES;
        if !state.segments.is_empty() && !ends_soon {
            return true;
        }
        state.scheduled = false;
        self.hash_inline(&mut state);
        let waker = if state.digest.is_some() { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        false
    }

    /// Records that `bytes` of a scheduled stream have been hashed.
    pub(crate) fn record_hashed(&self, bytes: usize) {
        let queued = self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if !self.urgent.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        let waker = if !state.finishing && queued < state.below { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn hash_inline(&self, state: &mut WorkState) {
        while let Some(segment) = state.segments.pop_front() {
            scalar::run(&mut state.chain, segment.blocks());
            self.queued_bytes.fetch_sub(size_of_val(segment.blocks()), Ordering::Relaxed);
        }
        self.complete(state);
    }

    fn complete(&self, state: &mut WorkState) {
        if state.finishing {
            state.digest = Some(scalar::digest(state.chain));
            self.finished.notify_all();
        }
    }
}

impl WorkState {
    /// Registers a waker; the returned one, if any, must be dropped after the lock is released.
    fn register_waker(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waker {
            Some(current) if current.will_wake(waker) => None,
            _ => self.waker.replace(waker.clone()),
        }
    }
}
