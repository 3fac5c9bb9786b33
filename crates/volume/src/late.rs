//! Straggling parts at the end of an upload. Once its last part has started, [`model::late`](tradewind_model::late)
//! decides which parts delay it; these are aborted and sent again over another connection.
//!
//! A part is aborted only while some of its bytes have not been handed over. The store then has an incomplete part,
//! which no name refers to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::Notify;
use tradewind_model::straggler::{self, StragglerDetector, PartInFlight};

use super::carrier::Carrier;

/// Interval at which parts are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Value of [`Progress::began`] while the part waits for permits.
const NOT_STARTED: u64 = u64::MAX;

/// The progress of a part, shared by its sender and the straggler detection.
#[derive(Debug)]
pub(crate) struct Progress {
    bytes: u64,
    sent: AtomicU64,
    /// When sending started and when the last bytes were handed over, in nanoseconds.
    began: AtomicU64,
    last_sent: AtomicU64,
    straggling: Notify,
    was_aborted: AtomicBool,
    /// Seconds per byte of the previous part on the same connection.
    previous_seconds_per_byte: Option<f64>,
    /// When the part was assigned to that connection; it may still wait for permits.
    assigned: Duration,
}

impl Progress {
    fn new(bytes: u64, previous_seconds_per_byte: Option<f64>, assigned: Duration) -> Arc<Self> {
        let [sent, last_sent, began] = [0, 0, NOT_STARTED].map(AtomicU64::new);
        let (straggling, was_aborted) = (Notify::new(), AtomicBool::new(false));
        Arc::new(Self {
            bytes,
            sent,
            began,
            last_sent,
            straggling,
            was_aborted,
            previous_seconds_per_byte,
            assigned,
        })
    }

    /// Starts an attempt, which sends the part from its first byte.
    pub fn begin(&self, now: Duration) {
        // Discard a notification meant for the previous attempt.
        let _ = self.straggling.notified().now_or_never();
        self.sent.store(0, Ordering::Relaxed);
        self.last_sent.store(nanos(now), Ordering::Relaxed);
        self.began.store(nanos(now), Ordering::Relaxed);
    }

    /// Ends a failed or aborted attempt, of which the store keeps nothing.
    pub fn end(&self) {
        self.began.store(NOT_STARTED, Ordering::Relaxed);
    }

    /// Records that `bytes` more were handed over.
    pub fn more(&self, bytes: usize, now: Duration) {
        self.last_sent.store(nanos(now), Ordering::Relaxed);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Resolves when the sender must abort this attempt, because the part is a straggler.
    pub async fn late(&self) {
        self.straggling.notified().await;
        self.end();
    }

    fn in_flight(&self) -> Option<PartInFlight> {
        let began = Some(self.began.load(Ordering::Relaxed)).filter(|began| *began != NOT_STARTED)?;
        let (sent, last_sent) = (self.sent.load(Ordering::Relaxed), self.last_sent.load(Ordering::Relaxed));
        let [began, moved] = [began, last_sent].map(Duration::from_nanos);
        Some(PartInFlight { bytes: self.bytes, sent, started: began, last_progress: moved })
    }

    /// Like [`in_flight`](Self::in_flight); a part that waits for permits counts from its assignment.
    fn in_flight_or_assigned(&self) -> PartInFlight {
        let not_started = PartInFlight { bytes: self.bytes, sent: 0, started: self.assigned, last_progress: self.assigned };
        self.in_flight().unwrap_or(not_started)
    }
}

/// The parts of one upload.
#[derive(Debug)]
pub(crate) struct LateParts {
    parts: StragglerDetector,
    tracked: Vec<Arc<Progress>>,
    /// Seconds per byte of the last part on each idle connection. The next part takes the most recently used one, as
    /// leaves do.
    idle: Vec<f64>,
    /// When the parts are checked next.
    next: Duration,
}

impl LateParts {
    /// Creates the detection for an object of `size` bytes.
    pub fn of(size: u64) -> Self {
        Self { parts: StragglerDetector::new(size), tracked: Vec::new(), idle: Vec::new(), next: Duration::ZERO }
    }

    /// Returns true if one of `waiting` parts of `bytes` each should start now on the next idle connection.
    pub fn begins(&self, waiting: usize, bytes: u64, now: Duration) -> bool {
        let others =
            self.tracked.iter().map(|part| (part.in_flight_or_assigned(), part.previous_seconds_per_byte));
        self.idle.last().is_none_or(|pace| straggler::should_start_part(waiting, (bytes, *pace), others, now))
    }

    /// Registers a part of `bytes` that is about to be sent.
    pub fn watch(&mut self, bytes: u64, now: Duration) -> Arc<Progress> {
        let progress = Progress::new(bytes, self.idle.pop(), now);
        self.tracked.push(progress.clone());
        progress
    }

    /// Removes a part that the store has acknowledged.
    pub fn end(&mut self, progress: &Arc<Progress>, now: Duration) {
        self.tracked.retain(|tracked| !Arc::ptr_eq(tracked, progress));
        if let Some(part) = progress.in_flight() {
            self.idle.push(self.parts.complete(part, now));
        }
    }

    /// Waits until the next check. Cancel-safe.
    pub async fn wait(&mut self, transfers: &Carrier) {
        transfers.clock().sleep_until(self.next).await;
        self.next = transfers.clock().now() + CHECK_INTERVAL;
    }

    /// Notifies the stragglers, slowest first, as far as permits are free for sending them again.
    pub fn tell(&mut self, transfers: &Carrier) {
        let now = transfers.clock().now();
        let late = |progress: &Arc<Progress>| {
            // A part is aborted once at most: a second delay is not caused by the connection.
            let is_first = !progress.was_aborted.load(Ordering::Relaxed);
            // A part that was handed over completely may already be stored.
            let part = progress.in_flight().filter(|part| part.sent < part.bytes && is_first)?;
            Some((self.parts.straggler_seconds_left(part, now)?, part, progress.clone()))
        };
        let mut found: Vec<_> = self.tracked.iter().filter_map(late).collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, part, progress) in found.into_iter().take(transfers.spare_requests(part_bytes(&self.tracked)))
        {
            // The parts aborted before may have exhausted the budget of wasted bytes.
            if self.parts.straggler_seconds_left(part, now).is_some() {
                progress.was_aborted.store(true, Ordering::Relaxed);
                tracing::debug!(sent = part.sent, bytes = part.bytes, "a part is late and is sent again");
                self.parts.record_abort(part.sent);
                progress.straggling.notify_one();
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The common part size; only the last part is smaller.
fn part_bytes(parts: &[Arc<Progress>]) -> u64 {
    parts.iter().map(|part| part.bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::Budget;
    use tradewind_core::testing::SimulatedClock;
    use tradewind_model::plan::{MIN_PART_BYTES, Plan};
    use tradewind_model::retry::RetryOptions;

    #[test]
    fn slow_connection_leaves_last_parts_to_faster_ones() {
        let at = Duration::from_millis;
        let mut late = LateParts::of(100 * MIN_PART_BYTES);
        let [slow, fast] = [0, 0].map(|began| {
            let part = late.watch(MIN_PART_BYTES, at(began));
            part.begin(at(began));
            part
        });
        assert!(
            late.begins(1, MIN_PART_BYTES, at(0)),
            "the first parts have no predecessor to predict their speed"
        );
        late.end(&fast, at(500));
        assert!(late.begins(1, MIN_PART_BYTES, at(500)));
        let next = late.watch(MIN_PART_BYTES, at(3900));
        next.begin(at(3900));
        late.end(&slow, at(4000));
        // The fast connection completes its part in 0.5 s, and seven more before the slow one would complete the next.
        assert!(!late.begins(7, MIN_PART_BYTES, at(4000)), "the fast connection takes all seven");
        assert!(late.begins(8, MIN_PART_BYTES, at(4000)));
        late.end(&next, at(4400));
        late.watch(MIN_PART_BYTES, at(4400));
        assert!(
            !late.begins(7, MIN_PART_BYTES, at(4400)),
            "the fast connection already has another part assigned"
        );
    }

    #[test]
    fn straggler_is_aborted_only_once() {
        let at = Duration::from_millis;
        let mut late = LateParts::of(100 * MIN_PART_BYTES);
        let parts = [0; 5].map(|began| {
            let part = late.watch(MIN_PART_BYTES, at(began));
            part.begin(at(began));
            part
        });
        parts[..3].iter().for_each(|part| late.end(part, at(500)));
        let [was_aborted, other] = [&parts[3], &parts[4]];
        let plan = Plan { max_concurrency: 3, ..Plan::default().with_chunk_bytes(MIN_PART_BYTES) };
        let clock = SimulatedClock::new();
        clock.advance(at(1500));
        let transfers = Carrier::new(plan, Budget::new(1 << 30), clock, RetryOptions::default());
        was_aborted.was_aborted.store(true, Ordering::Relaxed);
        other.more(1, at(600));
        late.tell(&transfers);
        assert!(was_aborted.late().now_or_never().is_none() && other.late().now_or_never().is_some());
    }
}
