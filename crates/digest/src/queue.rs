//! The queue of streams that have blocks to hash, and the loop of the hashing threads that serve it.
//!
//! Few threads with full lanes cost the least CPU time, so one thread, the leader, serves the queue, and others help
//! only while a full batch waits. The leader delays a batch to fill more lanes (see [`BatchDelay`]) unless every live
//! stream is already queued: a single stream is never delayed. While the leader waits or hashes, enqueueing a stream
//! wakes no other thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::batch_delay::BatchDelay;
use crate::lanes::{Lanes, MAX_LANES};
use crate::pass;
use crate::stream_state::StreamState;

/// The limit of the batching delay for a stream whose owner waits.
const MAX_URGENT_WAIT: Duration = Duration::from_micros(250);

/// The number of queued streams from which a second thread helps.
const MIN_HELP_STREAMS: usize = MAX_LANES;

/// The queue of streams, shared by the hashing threads.
pub(crate) struct StreamQueue {
    state: Mutex<QueueState>,
    /// Signals the leader that delays a batch.
    batch_ready: Condvar,
    /// Signals idle threads.
    work_available: Condvar,
}

struct QueueState {
    ready: VecDeque<Arc<StreamState>>,
    /// Streams that exist, and how many of them are in a pass.
    live: usize,
    in_pass: usize,
    /// True if there is a leader, and if it currently delays a batch.
    has_leader: bool,
    is_delaying: bool,
    /// The number of idle threads.
    idle: usize,
    closed: bool,
    urgent_since: Option<Instant>,
    batch_delay: BatchDelay,
}

impl StreamQueue {
    pub(crate) fn new() -> Self {
        let state = QueueState {
            ready: VecDeque::new(),
            live: 0,
            in_pass: 0,
            has_leader: false,
            is_delaying: false,
            idle: 0,
            closed: false,
            urgent_since: None,
            batch_delay: BatchDelay::new(),
        };
        Self { state: Mutex::new(state), batch_ready: Condvar::new(), work_available: Condvar::new() }
    }

    /// Registers a stream.
    pub(crate) fn register_stream(&self) {
        self.state.lock().live += 1;
    }

    /// Unregisters a stream.
    pub(crate) fn unregister_stream(&self) {
        let mut state = self.state.lock();
        state.live -= 1;
        self.wake_leader(&state);
    }

    /// Enqueues a claimed stream; hashes it on this thread if the engine is closed.
    pub(crate) fn enqueue(&self, stream: &Arc<StreamState>) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return stream.hash_all_inline();
        }
        state.ready.push_back(Arc::clone(stream));
        if stream.is_urgent() {
            state.urgent_since.get_or_insert_with(Instant::now);
        }
        let needs_thread = !state.has_leader || state.ready.len() == MIN_HELP_STREAMS;
        if needs_thread && state.idle > 0 && !state.is_delaying {
            self.work_available.notify_one();
        } else {
            self.wake_leader(&state);
        }
    }

    /// Shortens the batching delay, because the owner of a queued stream waits.
    pub(crate) fn mark_urgent(&self) {
        let mut state = self.state.lock();
        if state.urgent_since.is_none() && !state.ready.is_empty() {
            state.urgent_since = Some(Instant::now());
            if state.is_delaying && state.batch_delay.max_wait() > MAX_URGENT_WAIT {
                self.batch_ready.notify_one();
            }
        }
    }

    fn wake_leader(&self, state: &QueueState) {
        if state.is_delaying && !state.ready.is_empty() && state.ready.len() >= state.full() {
            self.batch_ready.notify_one();
        }
    }

    /// Lets the threads end once the queue is empty.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.batch_ready.notify_all();
        self.work_available.notify_all();
    }

    /// The loop of a hashing thread.
    pub(crate) fn run_worker(&self, kernels: Lanes) {
        let mut batch = Vec::with_capacity(MAX_LANES);
        let mut state = self.state.lock();
        loop {
            let is_leader = !state.has_leader;
            if is_leader {
                state.has_leader = true;
                self.delay_batch(&mut state);
            }
            if state.ready.is_empty() || (!is_leader && state.ready.len() < MIN_HELP_STREAMS) {
                state.has_leader &= !is_leader;
                if state.closed {
                    return;
                }
                state.idle += 1;
                self.work_available.wait(&mut state);
                state.idle -= 1;
                continue;
            }
            let taken = state.ready.len().min(MAX_LANES);
            batch.extend(state.ready.drain(..taken));
            state.in_pass += taken;
            if state.ready.len() >= MIN_HELP_STREAMS && state.idle > 0 {
                self.work_available.notify_one();
            }
            MutexGuard::unlocked(&mut state, || pass::run(kernels, &mut batch));
            state.in_pass -= taken;
            if batch.iter().any(|stream| stream.is_urgent()) {
                state.urgent_since.get_or_insert_with(Instant::now);
            }
            state.ready.extend(batch.drain(..));
            state.has_leader &= !is_leader;
        }
    }

    /// Delays the batch to fill more lanes, as long as that is worthwhile.
    fn delay_batch(&self, state: &mut MutexGuard<'_, QueueState>) {
        let before = state.ready.len();
        let wait = state.batch_delay.max_wait();
        let started = Instant::now();
        let mut waited = false;
        while !state.closed && (state.ready.is_empty() || state.ready.len() < state.full()) {
            let batch_deadline = started + wait;
            let deadline = state
                .urgent_since
                .map_or(batch_deadline, |since| batch_deadline.min(since + MAX_URGENT_WAIT));
            if Instant::now() >= deadline {
                break;
            }
            waited = true;
            state.is_delaying = true;
            self.batch_ready.wait_until(state, deadline);
            state.is_delaying = false;
        }
        let taken = state.ready.len().min(MAX_LANES);
        state.urgent_since = None;
        match (waited, taken) {
            (_, 0) => {}
            (true, _) => state.batch_delay.record_wait(before, taken),
            (false, _) => state.batch_delay.record_no_wait(taken),
        }
    }
}

impl QueueState {
    /// The number of queued streams at which waiting cannot add any: all lanes are full, or all streams outside of
    /// passes are queued.
    fn full(&self) -> usize {
        (self.live - self.in_pass.min(self.live)).clamp(1, MAX_LANES)
    }
}
