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
use tradewind_core::threads::thread_error;

use self::compact::{CompactionResult, compact};
use self::pace::Pace;
pub(super) use self::plan::MAX_LIVE_FRACTION;
use self::plan::{CompactionCandidate, CompactionPlan, max_worthwhile_fraction};
use self::reclaim::reclaim;
use super::open_store::OpenStore;
use super::segment::{Segment, SegmentKind};

/// The next round begins after the interval divided by this if the previous one removed segments, and after an open of
/// the store.
const EARLY_ROUND_DIVISOR: u32 = 16;
/// Maximum passes per round. A pass may make work possible that the previous one could not do.
const MAX_PASSES: usize = 16;
/// Maximum segments that are compacted and removed together.
const MAX_GROUP_SEGMENTS: usize = 64;
/// Maximum live bytes of such a group: all of them are copied before any of its segments is removed.
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
    is_stopped: bool,
    is_woken: bool,
}

impl UpkeepControl {
    fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Sleeps for `time`, or until upkeep is stopped, woken or urgent. `is_urgent` is checked every `check_interval`.
    /// Returns false if upkeep is stopped.
    fn wait(&self, time: Duration, check_interval: Duration, is_urgent: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        let mut state = self.state.lock();
        while !state.is_stopped && !state.is_woken && started.elapsed() < time {
            self.changed.wait_for(&mut state, check_interval.min(time.saturating_sub(started.elapsed())));
            if started.elapsed() >= check_interval && is_urgent() {
                break;
            }
        }
        state.is_woken = false;
        !state.is_stopped
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
                .map_err(thread_error)?
        };
        Ok(Self { control, thread: Some(thread) })
    }

    /// Starts a round now instead of at the next interval.
    pub fn wake(&self) {
        self.control.state.lock().is_woken = true;
        self.control.changed.notify_all();
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.control.state.lock().is_stopped = true;
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
    let early_interval = interval / EARLY_ROUND_DIVISOR;
    // The first round comes early, so that a store that is often restarted is maintained, too.
    let mut wait = early_interval;
    // A store that rejects writes, or soon will, needs a round now.
    let is_short = || weak.upgrade().is_some_and(|store| store.state.space.shortage() > 0.0);
    while control.wait(wait, early_interval, is_short) {
        let Some(store) = weak.upgrade() else { return };
        wait = interval;
        if store.committer.is_read_only() {
            continue;
        }
        match run_round(&store, control) {
            // A removal often makes further ones possible.
            Ok(removed) if removed > 0 => wait = early_interval,
            Ok(_) => {}
            Err(e) if e.reason() == Reason::ShuttingDown => {}
            Err(e) => tracing::error!(error = ?e, "upkeep failed and will be retried later"),
        }
    }
}

/// One round of upkeep: frees superseded extents and compacts the segments that are worth it. Returns the number of
/// segments removed. A failing segment does not block the others.
pub(super) fn run_round(store: &OpenStore, control: &UpkeepControl) -> Result<usize> {
    let _guard = store.upkeep_round.lock();
    let rejected_write = store.state.space.largest_rejected_write();
    let mut pace = Pace::new(store.state.options.compact_bytes_per_second);
    let mut skipped = HashSet::new();
    let mut removed = 0;
    for _ in 0..MAX_PASSES {
        let removed_in_pass = run_pass(store, &mut skipped, (control, &mut pace))?;
        removed += removed_in_pass;
        if removed_in_pass == 0 || control.is_stopped() {
            break;
        }
    }
    store.state.space.clear_rejected_write(rejected_write);
    Ok(removed)
}

/// Runs one round on this thread: for commands and tests.
pub(super) fn run_once(store: &OpenStore) -> Result<usize> {
    run_round(store, &UpkeepControl::default())
}

/// One pass: frees and compacts what was pending when it began, so that it ends even if new work keeps arriving.
/// `skipped` are the segments that failed in this round.
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
    // While a log segment exists whose records are uncounted, no other log segment may be removed.
    let mut is_log_blocked = !plan.interrupted.is_empty();
    if is_log_blocked && plan.interrupted.iter().all(|segment| !skipped.contains(&segment.number)) {
        let result = compact(store, &plan.interrupted, skipped, (control, pace))?;
        is_log_blocked = result.removed < plan.interrupted.len();
        removed += result.removed;
    }
    let mut group = CompactionGroup::default();
    for candidate in plan.candidates {
        if control.is_stopped() {
            break;
        }
        if !group.accepts(&candidate) {
            removed += group.compact(store, skipped, &mut is_log_blocked, (control, pace))?;
        }
        let is_blocked = is_log_blocked && candidate.segment.kind == SegmentKind::Log;
        // Lower than when the plan was made if space was freed since.
        let is_worth_it = candidate.live_fraction < max_worthwhile_fraction(store);
        if !is_blocked
            && is_worth_it
            && store.state.space.has_room(group.live_bytes + candidate.live_bytes)?
        {
            group.add(candidate);
        }
    }
    removed += group.compact(store, skipped, &mut is_log_blocked, (control, pace))?;
    Ok(removed)
}

/// Segments that are compacted together.
#[derive(Default)]
struct CompactionGroup {
    segments: Vec<Arc<Segment>>,
    live_bytes: u64,
}

impl CompactionGroup {
    /// Returns true if a candidate may join the group. Segments without live data form groups of their own and come
    /// first: their removal makes room for the copies of others.
    fn accepts(&self, candidate: &CompactionCandidate) -> bool {
        let is_same_kind = (self.live_bytes == 0) == (candidate.live_bytes == 0);
        let live_bytes = self.live_bytes + candidate.live_bytes;
        self.segments.is_empty()
            || is_same_kind && self.segments.len() < MAX_GROUP_SEGMENTS && live_bytes <= MAX_GROUP_BYTES
    }

    fn add(&mut self, candidate: CompactionCandidate) {
        self.live_bytes += candidate.live_bytes;
        self.segments.push(candidate.segment);
    }

    /// Compacts the group and empties it. Returns the number of segments removed. Sets `is_log_blocked` if a log
    /// segment remains of which some or all records are uncounted.
    fn compact(
        &mut self,
        store: &OpenStore,
        skipped: &mut HashSet<u32>,
        is_log_blocked: &mut bool,
        (control, pace): (&UpkeepControl, &mut Pace),
    ) -> Result<usize> {
        let Self { segments, live_bytes } = std::mem::take(self);
        // No file is removed before all live data of the group is copied.
        let Some(_claim) = store.state.space.claim(live_bytes)? else { return Ok(0) };
        let CompactionResult { removed, leaves_uncounted_segment } =
            compact(store, &segments, skipped, (control, pace))?;
        *is_log_blocked |= leaves_uncounted_segment;
        Ok(removed)
    }
}

/// Returns true if upkeep cannot continue at all.
fn is_fatal(e: &Error) -> bool {
    matches!(e.reason(), Reason::ShuttingDown | Reason::ReadOnly)
}
