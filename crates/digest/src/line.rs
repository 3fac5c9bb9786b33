//! The line in which streams with something to hash wait, and how the hashing threads attend to it.
//!
//! Few threads and full lanes cost the least, so one thread attends to the line, and others help only while a
//! full batch waits. The attendant lingers for company (see [`Patience`]) unless every stream that is alive is in
//! line already: a stream alone never waits. While it lingers or hashes, putting a stream in line wakes nobody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::lanes::{Lanes, MOST_LANES};
use crate::pass;
use crate::patience::Patience;
use crate::work::Work;

/// The longest that a stream for which somebody waits is kept waiting for company.
const URGENT_WAIT: Duration = Duration::from_micros(250);

/// Streams in line that are worth a second thread.
const HELP_AT: usize = MOST_LANES;

/// Streams in line, and who attends to them.
pub(crate) struct Line {
    state: Mutex<State>,
    /// The attendant lingers here.
    company: Condvar,
    /// Threads without work wait here.
    work: Condvar,
}

struct State {
    ready: VecDeque<Arc<Work>>,
    /// Streams that exist, and those that are in a pass.
    live: usize,
    in_pass: usize,
    /// Whether a thread attends, and whether it lingers at the moment.
    attended: bool,
    lingers: bool,
    /// Threads that wait for work.
    idle: usize,
    closed: bool,
    urgent_since: Option<Instant>,
    patience: Patience,
}

impl Line {
    pub(crate) fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            live: 0,
            in_pass: 0,
            attended: false,
            lingers: false,
            idle: 0,
            closed: false,
            urgent_since: None,
            patience: Patience::new(),
        };
        Self { state: Mutex::new(state), company: Condvar::new(), work: Condvar::new() }
    }

    /// A stream begins.
    pub(crate) fn enter(&self) {
        self.state.lock().live += 1;
    }

    /// A stream ends.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.live -= 1;
        self.call_attendant(&state);
    }

    /// Puts a claimed stream in line; hashes it here if the engine is closed.
    pub(crate) fn put(&self, work: &Arc<Work>) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return work.run_here();
        }
        state.ready.push_back(Arc::clone(work));
        if work.is_urgent() {
            state.urgent_since.get_or_insert_with(Instant::now);
        }
        let nobody = !state.attended || state.ready.len() == HELP_AT;
        if nobody && state.idle > 0 && !state.lingers {
            self.work.notify_one();
        } else {
            self.call_attendant(&state);
        }
    }

    /// Somebody now waits for a stream that is in line.
    pub(crate) fn hurry(&self) {
        let mut state = self.state.lock();
        if state.urgent_since.is_none() && !state.ready.is_empty() {
            state.urgent_since = Some(Instant::now());
            if state.lingers && state.patience.wait() > URGENT_WAIT {
                self.company.notify_one();
            }
        }
    }

    fn call_attendant(&self, state: &State) {
        if state.lingers && !state.ready.is_empty() && state.ready.len() >= state.full() {
            self.company.notify_one();
        }
    }

    /// Lets the threads go when the line is empty.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.company.notify_all();
        self.work.notify_all();
    }

    /// The life of a hashing thread.
    pub(crate) fn attend(&self, kernels: Lanes) {
        let mut batch = Vec::with_capacity(MOST_LANES);
        let mut state = self.state.lock();
        loop {
            let attends = !state.attended;
            if attends {
                state.attended = true;
                self.linger(&mut state);
            }
            if state.ready.is_empty() || (!attends && state.ready.len() < HELP_AT) {
                state.attended &= !attends;
                if state.closed {
                    return;
                }
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
                continue;
            }
            let taken = state.ready.len().min(MOST_LANES);
            batch.extend(state.ready.drain(..taken));
            state.in_pass += taken;
            if state.ready.len() >= HELP_AT && state.idle > 0 {
                self.work.notify_one();
            }
            MutexGuard::unlocked(&mut state, || pass::run(kernels, &mut batch));
            state.in_pass -= taken;
            if batch.iter().any(|work| work.is_urgent()) {
                state.urgent_since.get_or_insert_with(Instant::now);
            }
            state.ready.extend(batch.drain(..));
            state.attended &= !attends;
        }
    }

    /// Waits for company, as long as that is worth it.
    fn linger(&self, state: &mut MutexGuard<'_, State>) {
        let before = state.ready.len();
        let wait = state.patience.wait();
        let begun = Instant::now();
        let mut waited = false;
        while !state.closed && (state.ready.is_empty() || state.ready.len() < state.full()) {
            let patient = begun + wait;
            let deadline = state.urgent_since.map_or(patient, |since| patient.min(since + URGENT_WAIT));
            if Instant::now() >= deadline {
                break;
            }
            waited = true;
            state.lingers = true;
            self.company.wait_until(state, deadline);
            state.lingers = false;
        }
        let taken = state.ready.len().min(MOST_LANES);
        state.urgent_since = None;
        match (waited, taken) {
            (_, 0) => {}
            (true, _) => state.patience.waited(before, taken),
            (false, _) => state.patience.hurried(taken),
        }
    }
}

impl State {
    /// So many streams in line that no more can be hoped for, or used.
    fn full(&self) -> usize {
        (self.live - self.in_pass.min(self.live)).clamp(1, MOST_LANES)
    }
}
