//! What keeps a store tidy while it serves: freeing the extents of superseded objects, moving what is
//! live out of segments that hold little of it, and removing those segments. One thread, bounded in
//! the bytes it writes a second.
//!
//! The order that makes removal safe: the copies are durable; the index is changed only where it still
//! refers to the original; the index is made durable; then the file goes.

mod compact;
mod reclaim;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tradewind_core::error::{Reason, Result};

use self::compact::compact;
use self::reclaim::reclaim;
use super::index::entries::SegmentEntry;
use super::index::keys;
use super::io::io_error;
use super::leaf::Local;
use super::segment::Segment;

/// Small sealed segments (left by restarts) are merged when there are more of them than this.
const SMALL_SEGMENTS: usize = 8;

/// The upkeep thread.
pub(crate) struct Upkeep {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread is told to stop or to work now.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    kicked: bool,
}

impl Control {
    fn stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Sleeps, but not past a stop. True where the thread shall go on.
    fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop && !state.kicked {
            self.changed.wait_for(&mut state, time);
        }
        state.kicked = false;
        !state.stop
    }
}

impl Upkeep {
    pub fn start(local: &Arc<Local>) -> Result<Self> {
        let control = Arc::new(Control::default());
        let (weak, interval) = (Arc::downgrade(local), local.shared.options.compact_interval);
        let thread = {
            let control = control.clone();
            std::thread::Builder::new()
                .name("local-upkeep".to_owned())
                .spawn(move || run(&weak, &control, interval))
                .map_err(|e| io_error("a thread could not be started", e))?
        };
        Ok(Self { control, thread: Some(thread) })
    }

    /// Works now instead of at the next interval.
    pub fn kick(&self) {
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

fn run(local: &Weak<Local>, control: &Control, interval: Duration) {
    while control.sleep(interval) {
        let Some(local) = local.upgrade() else { return };
        if local.committer.has_failed() {
            continue;
        }
        if let Err(e) = round(&local, control)
            && e.reason() != Reason::ShuttingDown
        {
            tracing::error!(error = ?e, "upkeep failed; it is tried again later");
        }
    }
}

/// One round of upkeep: frees what can be freed, compacts what is worth it. Answers how many segments
/// were removed. A segment that makes trouble does not keep the others from their turn.
pub(super) fn round(local: &Local, control: &Control) -> Result<usize> {
    let _alone = local.round.lock();
    let mut removed = 0;
    local.shared.space.restore()?;
    reclaim(local, control)?;
    let mut skipped = Vec::new();
    while !control.stopped() {
        let Some(segment) = next_segment(local, &skipped)? else { break };
        match compact(local, &segment, control) {
            Ok(true) => removed += 1,
            Ok(false) => skipped.push(segment.number),
            Err(e) if matches!(e.reason(), Reason::ShuttingDown | Reason::ReadOnly) => return Err(e),
            Err(e) => {
                tracing::error!(error = ?e, segment = %segment.path.display(), "a segment could not be compacted");
                skipped.push(segment.number);
            }
        }
    }
    Ok(removed)
}

/// One round now, on this thread: for commands and tests.
pub(super) fn run_once(local: &Local) -> Result<usize> {
    round(local, &Control::default())
}

/// The segment to compact now: one whose removal was begun and interrupted, else the sealed one with the
/// smallest live share, if that is small enough and there is room for what lives.
fn next_segment(local: &Local, skipped: &[u32]) -> Result<Option<Arc<Segment>>> {
    let shared = &local.shared;
    let room = shared.space.room()?;
    let mut worst: Option<(f64, Arc<Segment>)> = None;
    let mut small = Vec::new();
    for segment in shared.segments.all().values() {
        let entry = shared.index.get(&keys::segment(segment.number))?;
        let entry = entry.map(|value| SegmentEntry::decode(&value)).transpose()?.unwrap_or_default();
        if entry.forgotten > 0 {
            // Its records are not counted any more but still there: until they are gone, no tombstone may go.
            return Ok((!skipped.contains(&segment.number)).then(|| segment.clone()));
        }
        let busy = !segment.sealed.load(Ordering::Acquire) || segment.pins.load(Ordering::Acquire) > 0;
        let live = entry.live_bytes.max(0);
        if busy
            || segment.damaged.load(Ordering::Acquire)
            || skipped.contains(&segment.number)
            || live.cast_unsigned() > room
        {
            continue;
        }
        let size = segment.end.load(Ordering::Acquire);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = live as f64 / f64::from(size.max(1));
        if share < shared.options.compact_below && worst.as_ref().is_none_or(|(least, _)| share < *least) {
            worst = Some((share, segment.clone()));
        }
        if size < shared.options.segment_bytes / 16 {
            small.push(segment.clone());
        }
    }
    if let Some((_, segment)) = worst {
        return Ok(Some(segment));
    }
    small.sort_by_key(|segment| segment.number);
    Ok((small.len() > SMALL_SEGMENTS).then(|| small.swap_remove(0)))
}

/// Spreads writing over time.
struct Pace {
    bytes_per_second: u64,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), begun: Instant::now(), bytes: 0 }
    }

    /// Counts bytes and sleeps while they are ahead of time. False where the thread shall stop.
    fn spend(&mut self, bytes: u64, control: &Control) -> bool {
        self.bytes += bytes;
        #[expect(clippy::cast_precision_loss, reason = "a duration")]
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second as f64);
        let ahead = due.saturating_sub(self.begun.elapsed());
        if ahead < Duration::from_millis(20) { !control.stopped() } else { control.sleep(ahead) }
    }
}
