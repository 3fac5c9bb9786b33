//! The task that writes dirty data back, several objects at once.
//!
//! Pace and order follow from [`DirtyLoad::pace`]: the oldest first at the age of [`WriteBackOptions::delay`], the largest
//! first under pressure, and as fast as possible while the store is closed. After a failure all wait, longer each time, while
//! the backing store is away; what it rejects waits by itself and delays nothing else.
//!
//! [`WriteBackOptions::delay`]: super::WriteBackOptions::delay

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, BucketName, Context, Generation};
use tradewind_model::admission::{DirtyLoad, DrainOrder, DrainPace};

use super::buckets::{EnteredBucket, OwnerCheck};
use super::dirty_index::{DirtyIndex, DirtyState, DirtyTotals, TakenKey};
use super::through::CommitLock;
use super::{DRAIN_WINDOW_BYTES, Shared};

const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// Dirty data begins to reach a backing store within this time after that is available again.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The time after which an object that the backing store rejected is tried again.
const REJECTED_DELAY: Duration = Duration::from_secs(60);

/// The time after which a key is tried again that another task changes or writes back.
const BUSY_DELAY: Duration = Duration::from_millis(100);

/// The interval at which keys and buckets that are not dirty any more are removed from memory.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// The time after which an object is tried again that cannot be removed from the journal.
const READ_ONLY_DELAY: Duration = Duration::from_secs(3600);

/// The longest wait for a change of the index.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The interval at which `close` looks whether all is written back.
const CLOSE_INTERVAL: Duration = Duration::from_millis(5);

/// The longest time for which `close` removes markers. One that stays is found by the next start.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The cause of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PauseCause {
    StoreUnavailable,
    OutcomeUnknown,
}

/// A pause after a failure, until the next attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainPause {
    pub cause: PauseCause,
    pub until: Duration,
}

/// The outcome of one write-back.
struct Outcome {
    address: Address,
    /// Bytes of the object when it was begun.
    bytes: u64,
    result: Result<Attempt>,
}

/// The end of an attempt that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    WrittenBack,
    /// The key is not dirty any more, another task changes it, or memory is short. The backing store was not asked.
    Skipped,
}

/// The state of the task.
#[derive(Default)]
struct Schedule {
    /// Nothing is begun before this time.
    paused_until: Duration,
    backoff: Duration,
    /// Keys that are tried again later, the next one first.
    deferred: BinaryHeap<Reverse<Deferred>>,
    /// Keys that were rejected and logged.
    reported: HashSet<Address>,
    /// Bytes of the objects that are being written back.
    running_bytes: u64,
    /// Buckets to which nothing is written until a time.
    blocked: HashMap<BucketName, Duration>,
    /// Nothing is removed from `reported` and `blocked` before this time, unless it was written back.
    next_prune: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Deferred {
    until: Duration,
    address: Address,
}

impl Schedule {
    /// Records an outcome.
    fn record(&mut self, shared: &Shared, outcome: Outcome) {
        let Outcome { address, bytes, result } = outcome;
        self.running_bytes = self.running_bytes.saturating_sub(bytes);
        let now = shared.clock.now();
        let error = match result {
            Ok(Attempt::WrittenBack) => {
                self.backoff = Duration::ZERO;
                *shared.drain_pause.lock() = None;
                shared.is_backing_away.store(false, Ordering::Relaxed);
                self.reported.remove(&address);
                self.blocked.remove(&address.bucket);
                shared.index.requeue(&address);
                return;
            }
            Ok(Attempt::Skipped) => {
                self.deferred.push(Reverse(Deferred { until: now + BUSY_DELAY, address }));
                return;
            }
            Err(error) => error,
        };
        // The backing store has the key; the journal cannot forget it.
        let is_kept = shared.journal.is_read_only() && shared.awaits_removal(&address);
        if is_kept || is_rejection(&error) {
            shared.counters.rejected.increment();
            if error.affects_whole_bucket() {
                let until = now + REJECTED_DELAY;
                if self.blocked.insert(address.bucket.clone(), until).is_none() {
                    tracing::error!(?error, bucket = %address.bucket, "a bucket cannot be written back");
                }
                self.deferred.push(Reverse(Deferred { until, address }));
                return;
            }
            if self.reported.insert(address.clone()) {
                tracing::error!(?error, bucket = %address.bucket, key = ?address.key, "an object cannot be written back");
            }
            let delay = if is_kept { READ_ONLY_DELAY } else { REJECTED_DELAY };
            self.deferred.push(Reverse(Deferred { until: now + delay, address }));
            return;
        }
        shared.is_backing_away.store(true, Ordering::Relaxed);
        shared.counters.failures.increment();
        let uncertain_until = shared.uncertain_until(&address);
        if self.backoff.is_zero() {
            tracing::warn!(?error, "dirty data cannot be written back now; it is tried again");
        }
        // Of those that were begun together and fail together, one counts.
        if now >= self.paused_until {
            self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
            self.paused_until = now + self.backoff;
        }
        let (cause, until) = match uncertain_until {
            Some(until) => (PauseCause::OutcomeUnknown, until.max(self.paused_until)),
            None => (PauseCause::StoreUnavailable, self.paused_until),
        };
        *shared.drain_pause.lock() = Some(DrainPause { cause, until });
        match uncertain_until {
            Some(until) => self.deferred.push(Reverse(Deferred { until, address })),
            None => shared.index.requeue(&address),
        }
    }

    /// Begins what is due, up to the concurrency of the moment.
    fn begin_due(&mut self, shared: &Arc<Shared>, running: &mut JoinSet<Outcome>, now: Duration) {
        loop {
            let pace = shared.drain_pace();
            if !pace.may_begin(running.len(), self.running_bytes) {
                return;
            }
            let Some(TakenKey { address, bytes }) = shared.index.take(&pace, now) else { return };
            let blocked_until = self.blocked.get(&address.bucket).copied().filter(|until| *until > now);
            if let Some(until) = blocked_until.max(shared.uncertain_until(&address)) {
                self.deferred.push(Reverse(Deferred { until, address }));
                continue;
            }
            let Some(entered) = shared.buckets.try_enter(&address.bucket) else {
                self.deferred.push(Reverse(Deferred { until: now + BUSY_DELAY, address }));
                continue;
            };
            self.running_bytes += bytes;
            let shared = shared.clone();
            running.spawn(async move {
                let work = AssertUnwindSafe(shared.write_back_one(&address, entered));
                let result = work.catch_unwind().await.unwrap_or_else(|_| Err(shared.panicked(&address)));
                Outcome { address, bytes, result }
            });
        }
    }

    /// Queues what is due again.
    fn requeue_due(&mut self, shared: &Shared, now: Duration) {
        self.prune(&shared.index, now);
        while let Some(Reverse(first)) = self.deferred.peek() {
            if first.until > now {
                return;
            }
            shared.index.requeue(&first.address);
            self.deferred.pop();
        }
    }

    /// When the next key is due again.
    fn next_deferred(&self) -> Option<Duration> {
        self.deferred.peek().map(|Reverse(first)| first.until)
    }

    /// Forgets keys and buckets that are not dirty any more, also if another change wrote them back.
    fn prune(&mut self, index: &DirtyIndex, now: Duration) {
        if now < self.next_prune {
            return;
        }
        self.next_prune = now + PRUNE_INTERVAL;
        self.reported.retain(|address| index.bytes(address).is_some());
        self.blocked.retain(|bucket, _| index.has_bucket(bucket));
    }
}

/// True if the same request would fail again, as after a panic: it is not repeated soon.
fn is_rejection(error: &Error) -> bool {
    !error.kind().is_retryable() || error.affects_whole_bucket()
}

/// Writes back until the store is closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut schedule = Schedule::default();
    let mut running: JoinSet<Outcome> = JoinSet::new();
    loop {
        let now = shared.clock.now();
        schedule.requeue_due(&shared, now);
        if now >= schedule.paused_until {
            schedule.begin_due(&shared, &mut running, now);
        }
        // After the keys that were deferred instead of begun.
        let mut wake_at = schedule.next_deferred().unwrap_or(now + MAX_WAIT);
        if now < schedule.paused_until {
            wake_at = wake_at.min(schedule.paused_until);
        }
        if let Some(since) = shared.index.oldest_queued() {
            let due = (since + shared.drain_pace().min_age).max(schedule.paused_until);
            // If it is due already, the end of another one makes room.
            if due > now {
                wake_at = wake_at.min(due);
            }
        }
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            Some(ended) = running.join_next() => match ended {
                Ok(outcome) => schedule.record(&shared, outcome),
                // All panics of a write-back are caught.
                Err(error) => tracing::error!(%error, "a task of write-back ended early"),
            },
            () = shared.drain_wakeup.notified() => {}
            () = shared.clock.sleep_until(wake_at) => {}
        }
    }
}

/// The percentage that `part` is of `limit`, rounded up.
fn percent(part: u64, limit: u64) -> u32 {
    let percent = (u128::from(part) * 100).div_ceil(u128::from(limit.max(1)));
    u32::try_from(percent).unwrap_or(u32::MAX)
}

impl Shared {
    /// The pace of writing back now.
    fn drain_pace(&self) -> DrainPace {
        let mut load = self.dirty_load(self.index.totals());
        if !self.options.is_drained_by_age {
            return load.pace(self.options.concurrency, self.options.delay);
        }
        load.writes_through = 0;
        let pace = load.pace(self.options.concurrency, self.options.delay);
        DrainPace { order: DrainOrder::Oldest, ..pace }
    }

    fn dirty_load(&self, totals: DirtyTotals) -> DirtyLoad {
        let DirtyTotals { bytes, entries } = self.limits();
        DirtyLoad {
            bytes_percent: percent(totals.bytes, bytes),
            entries_percent: percent(totals.entries as u64, entries as u64),
            writes_through: self.writes_through.load(Ordering::Relaxed),
            is_closing: self.is_closing.load(Ordering::SeqCst),
        }
    }

    /// Adds what the journal has to the index, and wakes the task that writes back if it may have more to do. Below the low
    /// watermark it waits for the oldest key, so that younger ones change nothing.
    pub fn note_dirty(&self, address: &Address, state: DirtyState, generation: Generation) {
        let inserted = self.index.insert(address, state, generation, self.clock.now());
        if inserted.is_first || !self.dirty_load(inserted.totals).is_low() {
            self.drain_wakeup.notify_one();
        }
    }

    /// The error of a write-back that panicked. A request of it may still be applied.
    fn panicked(&self, address: &Address) -> Error {
        self.uncertain.add(address, self.clock.now(), self.options.uncertain_window);
        Error::new(Reason::Defect, "a write-back panicked")
    }

    /// Writes back what is dirty of a key, if its bucket is still owned.
    async fn write_back_one(self: &Arc<Self>, address: &Address, entered: EnteredBucket) -> Result<Attempt> {
        let Some(size) = self.index.bytes(address) else { return Ok(Attempt::Skipped) };
        // Time that is spent waiting for others says nothing about the backing store.
        let context = match self.own_context(size).await {
            Err(e) if e.reason() == Reason::Overloaded => return Ok(Attempt::Skipped),
            other => other?,
        };
        self.examine(&context, &entered.bucket, OwnerCheck::Strict).await?;
        let Some(_transfer) = self.transfer_locks.try_lock(address) else { return Ok(Attempt::Skipped) };
        if self.index.bytes(address).is_none() {
            return Ok(Attempt::Skipped);
        }
        self.write_back(&context, address, CommitLock::Free).await?;
        Ok(Attempt::WrittenBack)
    }

    /// Waits until nothing is dirty, for at most [`WriteBackOptions::close_timeout`](super::WriteBackOptions).
    pub async fn wait_until_clean(&self) {
        let deadline = self.clock.now() + self.options.close_timeout;
        while self.index.totals().entries > 0 {
            let now = self.clock.now();
            if now >= deadline || self.stop.is_cancelled() {
                return;
            }
            self.clock.sleep_until((now + CLOSE_INTERVAL).min(deadline)).await;
        }
    }

    /// Removes the markers of all buckets of which nothing is dirty, within one deadline for all.
    pub async fn release_clean_buckets(&self) {
        let deadline = Deadline::after(self.clock.clone(), RELEASE_TIMEOUT.min(self.options.close_timeout));
        let owned: Vec<_> = self.buckets.records.lock().keys().cloned().collect();
        let clean = owned.into_iter().filter(|name| !self.may_have_data(name));
        let release = async |name: BucketName| {
            let released = async {
                let window = self.budget.admit(DRAIN_WINDOW_BYTES, &deadline).await?;
                let context = Context::new(deadline.clone(), window);
                let bucket = self.buckets.get(&name);
                let _exclusive = context.guard(bucket.gate.write()).await?;
                context.guard(self.release_owner(&context, &bucket)).await?
            };
            if let Err(error) = released.await {
                tracing::debug!(?error, bucket = %name, "the marker of a bucket stays");
            }
        };
        futures::stream::iter(clean).for_each_concurrent(self.options.concurrency.max(1), release).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_buckets_that_are_clean_are_forgotten() {
        let index = DirtyIndex::default();
        let [clean, dirty] = ["clean", "dirty"].map(|name| Address::parse(name, "k").unwrap());
        index.insert(&dirty, DirtyState::Tombstone, Generation(1), Duration::ZERO);
        let mut schedule = Schedule::default();
        for address in [&clean, &dirty] {
            schedule.reported.insert(address.clone());
            schedule.blocked.insert(address.bucket.clone(), REJECTED_DELAY);
        }
        schedule.prune(&index, Duration::ZERO);
        assert!(schedule.reported.iter().eq([&dirty]) && schedule.blocked.keys().eq([&dirty.bucket]));
        index.remove(&dirty);
        schedule.prune(&index, PRUNE_INTERVAL / 2);
        assert_eq!(schedule.reported.len(), 1);
        schedule.prune(&index, PRUNE_INTERVAL);
        assert!(schedule.reported.is_empty() && schedule.blocked.is_empty());
    }
}
