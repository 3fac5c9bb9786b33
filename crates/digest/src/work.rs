//! The part of a stream that its owner and the engine share: blocks that wait, the chaining value, who waits.
//!
//! Invariants: while `scheduled`, the stream is in the engine's queue or in a pass, exactly once, and only that
//! pass touches the chaining value. Otherwise whoever holds the lock may hash. Wakers are called and dropped unlocked:
//! either may run any code of the caller, even drop the engine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::message::{Segment, Segments};
use crate::scalar::{self, Chain};

/// What is left of a finished message that is cheaper to hash at once than to put in line again.
const SHORT_END: usize = 1024;

/// A stream as the engine sees it.
pub(crate) struct Work {
    state: Mutex<State>,
    /// Bytes in segments that are not hashed yet.
    queued_bytes: AtomicUsize,
    cancelled: AtomicBool,
    /// Whether someone waits for this stream.
    urgent: AtomicBool,
    finished: Condvar,
}

struct State {
    chain: Chain,
    segments: Segments,
    scheduled: bool,
    finishing: bool,
    digest: Option<[u8; 16]>,
    /// Who waits for fewer than `below` queued bytes, or, when finishing, for the digest.
    waker: Option<Waker>,
    below: usize,
}

impl Work {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                chain: scalar::START,
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

    /// Appends segments. True if the caller must now schedule the stream, which is so when `enough` bytes wait.
    pub(crate) fn push(&self, segments: impl IntoIterator<Item = Segment>, enough: usize) -> bool {
        let mut state = self.state.lock();
        let queued = self.append(&mut state, segments);
        let schedule = queued >= enough && !state.scheduled;
        state.scheduled |= schedule;
        schedule
    }

    /// Answers how many bytes wait then.
    fn append(&self, state: &mut State, segments: impl IntoIterator<Item = Segment>) -> usize {
        let mut added = 0;
        for segment in segments {
            added += size_of_val(segment.blocks());
            state.segments.push_back(segment);
        }
        self.queued_bytes.fetch_add(added, Ordering::Relaxed) + added
    }

    /// Ends the message with `padding`. What is left is hashed here unless the stream is with the engine already,
    /// in which case the answer is true and the digest comes later.
    pub(crate) fn finish(&self, padding: impl IntoIterator<Item = Segment>) -> bool {
        let mut state = self.state.lock();
        self.append(&mut state, padding);
        state.finishing = true;
        if state.scheduled {
            self.urgent.store(true, Ordering::Relaxed);
            return true;
        }
        self.hash_here(&mut state);
        false
    }

    /// Hashes everything that waits, for a scheduled stream that no engine will take any more.
    pub(crate) fn run_here(&self) {
        let mut state = self.state.lock();
        state.scheduled = false;
        self.hash_here(&mut state);
    }

    /// The digest, or a promise to wake.
    pub(crate) fn poll_digest(&self, waker: &Waker) -> Poll<[u8; 16]> {
        let mut state = self.state.lock();
        match state.digest {
            Some(digest) => Poll::Ready(digest),
            None => {
                let outdated = state.wake_later(waker);
                drop(state);
                drop(outdated);
                Poll::Pending
            }
        }
    }

    /// Waits for the digest.
    pub(crate) fn wait_digest(&self) -> [u8; 16] {
        let mut state = self.state.lock();
        loop {
            if let Some(digest) = state.digest {
                return digest;
            }
            self.finished.wait(&mut state);
        }
    }

    /// Ready if fewer than `below` bytes wait, else a promise to wake.
    pub(crate) fn poll_drained(&self, below: usize, waker: &Waker) -> Poll<()> {
        let mut state = self.state.lock();
        let outdated = state.wake_later(waker);
        state.below = below;
        // The pass subtracts, then looks at `urgent`; here it is the other way round, so one sees the other.
        self.urgent.store(true, Ordering::SeqCst);
        let drained = self.queued_bytes.load(Ordering::SeqCst) < below;
        let needless = if drained { state.waker.take() } else { None };
        if drained {
            self.urgent.store(false, Ordering::Relaxed);
        }
        drop(state);
        drop((outdated, needless));
        if drained { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Claims the stream for scheduling if it is not scheduled.
    pub(crate) fn claim(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().scheduled, true)
    }

    /// The owner is gone: whatever waits need not be hashed.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        let unwanted = (state.waker.take(), std::mem::take(&mut state.segments));
        drop(state);
        drop(unwanted);
    }

    /// Hands a scheduled stream to a pass: the chaining value and everything that waits.
    pub(crate) fn take(&self) -> (Chain, Segments) {
        let mut state = self.state.lock();
        (state.chain, std::mem::take(&mut state.segments))
    }

    /// Ends a pass over this stream. True if more waits: the stream then stays scheduled and goes back in line.
    pub(crate) fn give_back(&self, chain: Chain, mut rest: Segments) -> bool {
        let mut state = self.state.lock();
        state.chain = chain;
        if self.cancelled.load(Ordering::Relaxed) {
            state.scheduled = false;
            drop(state);
            return false;
        }
        rest.append(&mut state.segments);
        state.segments = rest;
        let ends_soon = state.finishing && self.queued_bytes() <= SHORT_END;
        if !state.segments.is_empty() && !ends_soon {
            return true;
        }
        state.scheduled = false;
        self.hash_here(&mut state);
        let waker = if state.digest.is_some() { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        false
    }

    /// So many bytes of a scheduled stream have been hashed.
    pub(crate) fn consumed(&self, bytes: usize) {
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

    fn hash_here(&self, state: &mut State) {
        while let Some(segment) = state.segments.pop_front() {
            scalar::run(&mut state.chain, segment.blocks());
            self.queued_bytes.fetch_sub(size_of_val(segment.blocks()), Ordering::Relaxed);
        }
        self.complete(state);
    }

    fn complete(&self, state: &mut State) {
        if state.finishing {
            state.digest = Some(scalar::digest(state.chain));
            self.finished.notify_all();
        }
    }
}

impl State {
    /// Remembers whom to wake; the answer, if any, is to be dropped once the lock is released.
    fn wake_later(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => self.waker.replace(waker.clone()),
        }
    }
}
