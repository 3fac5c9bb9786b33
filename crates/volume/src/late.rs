//! Parts of one upload that are watched once the last of them has begun: [`model::late`](tradewind_model::late) says which of them
//! everybody waits for, and those are sent again.
//!
//! A part is broken off only while bytes of it are still to be handed over: no store has all of it then, and what it has nothing names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::Notify;
use tradewind_model::late::{self, Parts, UnderWay};

use super::carrier::Carrier;

/// How often parts are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// It waits for its turn.
const NOT_BEGUN: u64 = u64::MAX;

/// A part that is being sent, as whoever watches it sees it.
#[derive(Debug)]
pub(crate) struct Progress {
    bytes: u64,
    sent: AtomicU64,
    /// When, and when the last of them was handed over, in nanoseconds.
    began: AtomicU64,
    moved: AtomicU64,
    late: Notify,
    was_late: AtomicBool,
    /// Seconds that a byte took of the part before it, which went over the same connection.
    before: Option<f64>,
    /// When it was given to that one, where it may wait for its turn.
    given: Duration,
}

impl Progress {
    fn new(bytes: u64, before: Option<f64>, given: Duration) -> Arc<Self> {
        let [sent, moved, began] = [0, 0, NOT_BEGUN].map(AtomicU64::new);
        let (late, was_late) = (Notify::new(), AtomicBool::new(false));
        Arc::new(Self { bytes, sent, began, moved, late, was_late, before, given })
    }

    /// It has its turn: bytes will be sent from the first one on.
    pub fn begin(&self, now: Duration) {
        // What was said of an attempt before is not meant for this one.
        let _ = self.late.notified().now_or_never();
        self.sent.store(0, Ordering::Relaxed);
        self.moved.store(nanos(now), Ordering::Relaxed);
        self.began.store(nanos(now), Ordering::Relaxed);
    }

    /// It waits for another turn: what was sent of it is nowhere.
    pub fn end(&self) {
        self.began.store(NOT_BEGUN, Ordering::Relaxed);
    }

    /// So many more bytes were handed over.
    pub fn more(&self, bytes: usize, now: Duration) {
        self.moved.store(nanos(now), Ordering::Relaxed);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Waits until it is late. Whoever sends it breaks off then.
    pub async fn late(&self) {
        self.late.notified().await;
        self.end();
    }

    fn under_way(&self) -> Option<UnderWay> {
        let began = Some(self.began.load(Ordering::Relaxed)).filter(|began| *began != NOT_BEGUN)?;
        let (sent, moved) = (self.sent.load(Ordering::Relaxed), self.moved.load(Ordering::Relaxed));
        let [began, moved] = [began, moved].map(Duration::from_nanos);
        Some(UnderWay { bytes: self.bytes, sent, began, moved })
    }

    /// The same, or as it will be where it waits for its turn.
    fn given(&self) -> UnderWay {
        let not_begun = UnderWay { bytes: self.bytes, sent: 0, began: self.given, moved: self.given };
        self.under_way().unwrap_or(not_begun)
    }
}

/// The parts of one upload.
#[derive(Debug)]
pub(crate) struct LateParts {
    parts: Parts,
    watched: Vec<Arc<Progress>>,
    /// What the last parts took of connections that have none: of these the next one takes that which had one last, as leaves do.
    idle: Vec<f64>,
    /// When they are looked at.
    next: Duration,
}

impl LateParts {
    /// Of an object of so many bytes.
    pub fn of(size: u64) -> Self {
        Self { parts: Parts::of(size), watched: Vec::new(), idle: Vec::new(), next: Duration::ZERO }
    }

    /// Whether one of so many parts that wait, of so many bytes each, is best begun now.
    pub fn begins(&self, waiting: usize, bytes: u64, now: Duration) -> bool {
        let others = self.watched.iter().map(|part| (part.given(), part.before));
        self.idle.last().is_none_or(|pace| late::begins(waiting, (bytes, *pace), others, now))
    }

    /// A part of so many bytes is about to be sent.
    pub fn watch(&mut self, bytes: u64, now: Duration) -> Arc<Progress> {
        let progress = Progress::new(bytes, self.idle.pop(), now);
        self.watched.push(progress.clone());
        progress
    }

    /// The store has it.
    pub fn end(&mut self, progress: &Arc<Progress>, now: Duration) {
        self.watched.retain(|watched| !Arc::ptr_eq(watched, progress));
        if let Some(part) = progress.under_way() {
            self.idle.push(self.parts.end(part, now));
        }
    }

    /// Waits until it is time to look at them. Dropped, it goes on where it was.
    pub async fn wait(&mut self, carrier: &Carrier) {
        carrier.clock().sleep_until(self.next).await;
        self.next = carrier.clock().now() + LOOK;
    }

    /// Tells those that are late, as many as have turns that nobody waits for.
    pub fn tell(&mut self, carrier: &Carrier) {
        let now = carrier.clock().now();
        let late = |progress: &Arc<Progress>| {
            // None is broken off twice: whatever keeps it, it is not the connection.
            let is_first = !progress.was_late.load(Ordering::Relaxed);
            // Of what was handed over to its end the store may have everything.
            let part = progress.under_way().filter(|part| part.sent < part.bytes && is_first)?;
            Some((self.parts.lateness(part, now)?, part, progress.clone()))
        };
        let mut found: Vec<_> = self.watched.iter().filter_map(late).collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, part, progress) in found.into_iter().take(carrier.spare_requests(part_bytes(&self.watched))) {
            // What was broken off before may have used up what may be sent in vain.
            if self.parts.lateness(part, now).is_some() {
                progress.was_late.store(true, Ordering::Relaxed);
                tracing::debug!(sent = part.sent, bytes = part.bytes, "a part is late and sent again");
                self.parts.broke_off(part.sent);
                progress.late.notify_one();
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Parts are alike but for the last one.
fn part_bytes(parts: &[Arc<Progress>]) -> u64 {
    parts.iter().map(|part| part.bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::Budget;
    use tradewind_core::testing::SimulatedClock;
    use tradewind_model::plan::{LEAST_PART, Plan};
    use tradewind_model::retry::RetryOptions;

    #[test]
    fn a_connection_is_judged_by_its_last_part() {
        let at = Duration::from_millis;
        let mut late = LateParts::of(100 * LEAST_PART);
        let [slow, fast] = [0, 0].map(|began| {
            let part = late.watch(LEAST_PART, at(began));
            part.begin(at(began));
            part
        });
        assert!(late.begins(1, LEAST_PART, at(0)), "nothing is known of the first ones");
        late.end(&fast, at(500));
        assert!(late.begins(1, LEAST_PART, at(500)));
        let next = late.watch(LEAST_PART, at(3900));
        next.begin(at(3900));
        late.end(&slow, at(4000));
        // The fast one has half a second to go, and ends seven more before the slow one would end the next.
        assert!(!late.begins(7, LEAST_PART, at(4000)), "they are the fast one's");
        assert!(late.begins(8, LEAST_PART, at(4000)));
        late.end(&next, at(4400));
        late.watch(LEAST_PART, at(4400));
        assert!(
            !late.begins(7, LEAST_PART, at(4400)),
            "it has been given another one, and waits for its turn"
        );
    }

    #[test]
    fn none_is_sent_again_twice() {
        let at = Duration::from_millis;
        let mut late = LateParts::of(100 * LEAST_PART);
        let parts = [0; 5].map(|began| {
            let part = late.watch(LEAST_PART, at(began));
            part.begin(at(began));
            part
        });
        parts[..3].iter().for_each(|part| late.end(part, at(500)));
        let [was_late, other] = [&parts[3], &parts[4]];
        let plan = Plan { requests: 3, ..Plan::default().with_chunks(LEAST_PART) };
        let clock = SimulatedClock::new();
        clock.advance(at(1500));
        let carrier = Carrier::new(plan, Budget::new(1 << 30), clock, RetryOptions::default());
        was_late.was_late.store(true, Ordering::Relaxed);
        other.more(1, at(600));
        late.tell(&carrier);
        assert!(was_late.late().now_or_never().is_none() && other.late().now_or_never().is_some());
    }
}
