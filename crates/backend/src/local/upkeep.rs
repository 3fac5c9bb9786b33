//! Background maintenance of a store: frees the extents of superseded objects, moves live data out of segments that
//! hold little of it, and removes those segments. One thread, limited in bytes written per second while there is
//! space.
//!
//! Removal is safe by its order: the copies are durable; the index is changed only where it still refers to the
//! original; the index is made durable; then the file is removed.

mod compact;
mod mover;
mod pace;
mod plan;
mod reclaim;
mod subject;
mod uncount;

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tradewind_core::error::{Error, Reason, Result};

use self::compact::{CompactionResult, compact};
use self::pace::Pace;
pub(super) use self::plan::MAX_LIVE_FRACTION;
use self::plan::{CompactionCandidate, CompactionPlan, max_worthwhile_fraction};
use self::reclaim::reclaim;
use super::io_threads::io_error;
use super::open_store::OpenStore;
use super::segment::{Segment, SegmentKind};

/// After a productive round, the next one starts after the interval divided by this.
const EARLY_ROUND_DIVISOR: u32 = 16;
/// Maximum passes per round. Each handles what the previous one left or was too early for.
const MAX_PASSES: usize = 16;
/// Segments removed together, and the bytes copied before any of them is removed.
const MAX_GROUP_SEGMENTS: usize = 64;
const MAX_GROUP_BYTES: u64 = 64 << 20;

/// The upkeep thread.
pub(crate) struct Upkeep {
    control: Arc<UpkeepControl>,
    thread: Option<JoinHandle<()>>,
}

/// Stop and wake-up signals for the thread.
#[derive(Default)]
pub(super) struct UpkeepControl {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Default)]
struct ControlState {
    stop: bool,
    kicked: bool,
}

impl UpkeepControl {
    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Sleeps for `time`, or until a stop, a kick, or `is_urgent`, which is checked every `step`. Returns false if the
    /// thread must stop.
    fn wait(&self, time: Duration, step: Duration, is_urgent: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        let mut state = self.state.lock();
        while !state.stop && !state.kicked && started.elapsed() < time {
            self.changed.wait_for(&mut state, step.min(time.saturating_sub(started.elapsed())));
            if started.elapsed() >= step && is_urgent() {
                break;
            }
        }
        state.kicked = false;
        !state.stop
    }
}

impl Upkeep {
    pub fn start(store: &Arc<OpenStore>) -> Result<Self> {
        let control = Arc::new(UpkeepControl::default());
        let (weak, interval) = (Arc::downgrade(store), store.state.options.compact_interval);
        let thread = {
            let control = control.clone();
            std::thread::Builder::new()
                .name("local-upkeep".to_owned())
                .spawn(move || run(&weak, &control, interval))
                .map_err(|e| io_error("a thread could not be started", e))?
        };
        Ok(Self { control, thread: Some(thread) })
    }

    /// Starts a round now instead of at the next interval.
    pub fn wake(&self) {
        self.control.state.lock().kicked = true;
        self.control.changed.notify_all();
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.control.state.lock().stop = true;
        self.control.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the upkeep thread panicked");
        }
    }
}

fn run(weak: &Weak<OpenStore>, control: &UpkeepControl, interval: Duration) {
    // The first round comes early: a store that is restarted often is maintained, too.
    let early = interval / EARLY_ROUND_DIVISOR;
    let mut wait = early;
    // A store that rejects writes, or soon will, must not wait.
    let is_short = || weak.upgrade().is_some_and(|store| store.state.space.shortage() > 0.0);
    while control.wait(wait, early, is_short) {
        let Some(store) = weak.upgrade() else { return };
        wait = interval;
        if store.committer.has_failed() {
            continue;
        }
        match run_round(&store, control) {
            // A removal probably leads to more.
            Ok(removed) if removed > 0 => wait = early,
            Ok(_) => {}
            Err(e) if e.reason() == Reason::ShuttingDown => {}
            Err(e) => tracing::error!(error = ?e, "upkeep failed and will be retried later"),
        }
    }
}

/// One round of upkeep: frees what can be freed, compacts what is worth it. Returns the number of segments removed. A
/// failing segment does not block the others.
pub(super) fn run_round(store: &OpenStore, control: &UpkeepControl) -> Result<usize> {
    let _guard = store.upkeep_round.lock();
    let wanted = store.state.space.largest_rejected_write();
    let mut pace = Pace::new(store.state.options.compact_bytes_per_second);
    let mut skipped = HashSet::new();
    let mut removed = 0;
    for _ in 0..MAX_PASSES {
        let passed = run_pass(store, &mut skipped, (control, &mut pace))?;
        removed += passed;
        if passed == 0 || control.is_stopped() {
            break;
        }
    }
    store.state.space.clear_rejected_write(wanted);
    Ok(removed)
}

/// Runs one round on this thread: for commands and tests.
pub(super) fn run_once(store: &OpenStore) -> Result<usize> {
    run_round(store, &UpkeepControl::default())
}

/// Frees and compacts what there was at the start; it ends regardless of new work.
fn run_pass(
    store: &OpenStore,
    skipped: &mut HashSet<u32>,
    (control, pace): (&UpkeepControl, &mut Pace),
) -> Result<usize> {
    if let Err(e) = store.state.space.restore_reserve() {
        tracing::warn!(error = ?e, "the store's reserve could not be allocated again");
    }
    reclaim(store, control)?;
    let plan = CompactionPlan::select(store, skipped)?;
    let mut removed = 0;
    let mut is_log_held = !plan.interrupted.is_empty();
    if is_log_held && plan.interrupted.iter().all(|segment| !skipped.contains(&segment.number)) {
        let result = compact(store, &plan.interrupted, skipped, (control, pace))?;
        is_log_held = result.removed < plan.interrupted.len();
        removed += result.removed;
    }
    let mut group = CompactionGroup::default();
    for candidate in plan.candidates {
        if control.is_stopped() {
            break;
        }
        if !group.accepts(&candidate) {
            removed += group.compact(store, skipped, &mut is_log_held, (control, pace))?;
        }
        let is_held = is_log_held && candidate.segment.kind == SegmentKind::Log;
        // What was freed since may be enough.
        let is_worth_it = candidate.live_fraction < max_worthwhile_fraction(store);
        if !is_held && is_worth_it && store.state.space.has_room(group.live_bytes + candidate.live_bytes)? {
            group.add(candidate);
        }
    }
    removed += group.compact(store, skipped, &mut is_log_held, (control, pace))?;
    Ok(removed)
}

/// Segments that are compacted together.
#[derive(Default)]
struct CompactionGroup {
    segments: Vec<Arc<Segment>>,
    live_bytes: u64,
}

impl CompactionGroup {
    /// Segments without live data are grouped separately and go first: that makes room for the copies of others.
    fn accepts(&self, candidate: &CompactionCandidate) -> bool {
        let is_alike = (self.live_bytes == 0) == (candidate.live_bytes == 0);
        let live_bytes = self.live_bytes + candidate.live_bytes;
        self.segments.is_empty()
            || is_alike && self.segments.len() < MAX_GROUP_SEGMENTS && live_bytes <= MAX_GROUP_BYTES
    }

    fn add(&mut self, candidate: CompactionCandidate) {
        self.live_bytes += candidate.live_bytes;
        self.segments.push(candidate.segment);
    }

    /// Compacts the group and starts a new one. No further log segment may be removed while one is only partly
    /// uncounted.
    fn compact(
        &mut self,
        store: &OpenStore,
        skipped: &mut HashSet<u32>,
        is_log_held: &mut bool,
        (control, pace): (&UpkeepControl, &mut Pace),
    ) -> Result<usize> {
        let Self { segments, live_bytes } = std::mem::take(self);
        // The files are removed only when all of them are copied.
        let Some(_claim) = store.state.space.claim(live_bytes)? else { return Ok(0) };
        let CompactionResult { removed, left_partly_uncounted: left_begun } =
            compact(store, &segments, skipped, (control, pace))?;
        *is_log_held |= left_begun;
        Ok(removed)
    }
}

/// Returns true if upkeep cannot continue at all.
fn is_fatal(e: &Error) -> bool {
    matches!(e.reason(), Reason::ShuttingDown | Reason::ReadOnly)
}
