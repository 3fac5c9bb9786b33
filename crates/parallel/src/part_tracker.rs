//! Straggling parts at the end of an upload, and whether the next part starts now or is left to faster connections. The
//! connection is not known here; it is assumed to be the idle one that was used last. Once the last part has started, [`straggler`] decides which parts delay the upload; these are aborted and sent again over another
//! connection.
//!
//! A part is aborted only while some of its bytes have not been handed over to the leaf. The store discards an
//! incomplete part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::Notify;
use tradewind_model::straggler::{self, BusyConnection, PartInFlight, StragglerDetector};

use super::transfer_context::TransferContext;

/// Interval at which parts are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Value of [`PartProgress::started`] while the part waits for permits.
const NOT_STARTED: u64 = u64::MAX;

/// The progress of a part, shared by its sender and the straggler detection.
#[derive(Debug)]
pub(crate) struct PartProgress {
    bytes: u64,
    sent: AtomicU64,
    /// Start of the current attempt, in nanoseconds, or [`NOT_STARTED`].
    started: AtomicU64,
    /// Time at which the last bytes were handed over to the leaf, in nanoseconds.
    last_sent: AtomicU64,
    /// Notified when the current attempt must be aborted.
    straggling: Notify,
    /// An attempt was aborted because the part was a straggler.
    was_aborted: AtomicBool,
    /// Seconds per byte of the previous part on the same connection.
    previous_seconds_per_byte: Option<f64>,
    /// Time at which the part was started; it may still wait for permits.
    assigned: Duration,
}

impl PartProgress {
    fn new(bytes: u64, previous_seconds_per_byte: Option<f64>, assigned: Duration) -> Arc<Self> {
        let [sent, last_sent, started] = [0, 0, NOT_STARTED].map(AtomicU64::new);
        let (straggling, was_aborted) = (Notify::new(), AtomicBool::new(false));
        Arc::new(Self {
            bytes,
            sent,
            started,
            last_sent,
            straggling,
            was_aborted,
            previous_seconds_per_byte,
            assigned,
        })
    }

    /// Starts an attempt, which sends the part from its first byte.
    pub fn start_attempt(&self, now: Duration) {
        // Discard a notification meant for the previous attempt.
        let _ = self.straggling.notified().now_or_never();
        self.sent.store(0, Ordering::Relaxed);
        self.last_sent.store(nanos(now), Ordering::Relaxed);
        self.started.store(nanos(now), Ordering::Relaxed);
    }

    /// Ends a failed or aborted attempt. The store discards the incomplete part.
    pub fn end_attempt(&self) {
        self.started.store(NOT_STARTED, Ordering::Relaxed);
    }

    /// Records that `bytes` more were handed over to the leaf.
    pub fn record_sent(&self, bytes: usize, now: Duration) {
        self.last_sent.store(nanos(now), Ordering::Relaxed);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Resolves when the sender must abort this attempt, because the part is a straggler.
    pub async fn until_straggling(&self) {
        self.straggling.notified().await;
        self.end_attempt();
    }

    fn in_flight(&self) -> Option<PartInFlight> {
        let started = Some(self.started.load(Ordering::Relaxed)).filter(|started| *started != NOT_STARTED)?;
        let (sent, last_sent) = (self.sent.load(Ordering::Relaxed), self.last_sent.load(Ordering::Relaxed));
        let [started, last_progress] = [started, last_sent].map(Duration::from_nanos);
        Some(PartInFlight { bytes: self.bytes, sent, started, last_progress })
    }

    /// Like [`in_flight`](Self::in_flight); a part that waits for permits counts from its assignment.
    fn in_flight_or_assigned(&self) -> PartInFlight {
        let not_started =
            PartInFlight { bytes: self.bytes, sent: 0, started: self.assigned, last_progress: self.assigned };
        self.in_flight().unwrap_or(not_started)
    }
}

/// The parts of one upload.
#[derive(Debug)]
pub(crate) struct PartTracker {
    detector: StragglerDetector,
    tracked: Vec<Arc<PartProgress>>,
    /// Seconds per byte of the last part on each idle connection, in the order in which they became idle. The next part
    /// is assumed to use the last of them, because leaves reuse the most recently used connection first.
    idle_seconds_per_byte: Vec<f64>,
    /// Time of the next check of the parts.
    next_check: Duration,
}

impl PartTracker {
    /// Creates a tracker for an object of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self {
            detector: StragglerDetector::new(size),
            tracked: Vec::new(),
            idle_seconds_per_byte: Vec::new(),
            next_check: Duration::ZERO,
        }
    }

    /// Returns true if one of `waiting` parts of `bytes` each should start now on the next idle connection.
    pub fn should_start_part(&self, waiting: usize, bytes: u64, now: Duration) -> bool {
        let busy = self.tracked.iter().map(|part| BusyConnection {
            part: part.in_flight_or_assigned(),
            previous_seconds_per_byte: part.previous_seconds_per_byte,
        });
        self.idle_seconds_per_byte.last().is_none_or(|seconds_per_byte| {
            straggler::should_start_part(waiting, bytes, *seconds_per_byte, busy, now)
        })
    }

    /// Registers a part of `bytes` that is about to be sent.
    pub fn track(&mut self, bytes: u64, now: Duration) -> Arc<PartProgress> {
        let progress = PartProgress::new(bytes, self.idle_seconds_per_byte.pop(), now);
        self.tracked.push(progress.clone());
        progress
    }

    /// Removes a part that the store has acknowledged.
    pub fn complete(&mut self, progress: &Arc<PartProgress>, now: Duration) {
        self.tracked.retain(|tracked| !Arc::ptr_eq(tracked, progress));
        if let Some(part) = progress.in_flight() {
            self.idle_seconds_per_byte.push(self.detector.complete(part, now));
        }
    }

    /// Waits until the next check. Cancellation-safe: a cancelled wait continues with the next call.
    pub async fn until_next_check(&mut self, transfers: &TransferContext) {
        transfers.clock().sleep_until(self.next_check).await;
        self.next_check = transfers.clock().now() + CHECK_INTERVAL;
    }

    /// Notifies the stragglers, slowest first, as far as permits are free for sending them again.
    pub fn abort_stragglers(&mut self, transfers: &TransferContext) {
        let now = transfers.clock().now();
        let straggler = |progress: &Arc<PartProgress>| {
            // A part is aborted once at most: if it is slow again, the connection is not the cause.
            let is_first = !progress.was_aborted.load(Ordering::Relaxed);
            // A part that was handed over to the leaf completely may already be stored.
            let part = progress.in_flight().filter(|part| part.sent < part.bytes && is_first)?;
            Some((self.detector.straggler_seconds_left(part, now)?, part, progress.clone()))
        };
        let mut found: Vec<_> = self.tracked.iter().filter_map(straggler).collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, part, progress) in found.into_iter().take(transfers.free_requests(part_bytes(&self.tracked)))
        {
            // The parts aborted before may have exhausted the budget of wasted bytes.
            if self.detector.straggler_seconds_left(part, now).is_some() {
                progress.was_aborted.store(true, Ordering::Relaxed);
                tracing::debug!(
                    sent = part.sent,
                    bytes = part.bytes,
                    "a part is a straggler: sending it again"
                );
                self.detector.record_abort(part.sent);
                progress.straggling.notify_one();
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The common part size; only the last part is smaller.
fn part_bytes(parts: &[Arc<PartProgress>]) -> u64 {
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
        let mut tracker = PartTracker::new(100 * MIN_PART_BYTES);
        let [slow, fast] = [0, 0].map(|started| {
            let part = tracker.track(MIN_PART_BYTES, at(started));
            part.start_attempt(at(started));
            part
        });
        assert!(
            tracker.should_start_part(1, MIN_PART_BYTES, at(0)),
            "the first parts have no predecessor to predict their speed"
        );
        tracker.complete(&fast, at(500));
        assert!(tracker.should_start_part(1, MIN_PART_BYTES, at(500)));
        let next = tracker.track(MIN_PART_BYTES, at(3900));
        next.start_attempt(at(3900));
        tracker.complete(&slow, at(4000));
        // The fast connection completes its part in 0.5 s, and seven more before the slow one would complete the next.
        assert!(
            !tracker.should_start_part(7, MIN_PART_BYTES, at(4000)),
            "the fast connection takes all seven"
        );
        assert!(tracker.should_start_part(8, MIN_PART_BYTES, at(4000)));
        tracker.complete(&next, at(4400));
        tracker.track(MIN_PART_BYTES, at(4400));
        assert!(
            !tracker.should_start_part(7, MIN_PART_BYTES, at(4400)),
            "the fast connection already has another part assigned"
        );
    }

    #[test]
    fn straggler_is_aborted_only_once() {
        let at = Duration::from_millis;
        let mut tracker = PartTracker::new(100 * MIN_PART_BYTES);
        let parts = [0; 5].map(|started| {
            let part = tracker.track(MIN_PART_BYTES, at(started));
            part.start_attempt(at(started));
            part
        });
        parts[..3].iter().for_each(|part| tracker.complete(part, at(500)));
        let [was_aborted, other] = [&parts[3], &parts[4]];
        let plan = Plan { initial_concurrency: 3, ..Plan::default().with_chunk_bytes(MIN_PART_BYTES) };
        let clock = SimulatedClock::new();
        clock.advance(at(1500));
        let transfers = TransferContext::new(plan, Budget::new(1 << 30), clock, RetryOptions::default());
        was_aborted.was_aborted.store(true, Ordering::Relaxed);
        other.record_sent(1, at(600));
        tracker.abort_stragglers(&transfers);
        assert!(
            was_aborted.until_straggling().now_or_never().is_none()
                && other.until_straggling().now_or_never().is_some()
        );
    }
}
