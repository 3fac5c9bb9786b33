//! The task that writes dirty data back: the oldest first, several at once.
//!
//! Below three quarters of the limits it waits until an object has the age of [`WriteBackOptions::delay`], and uses few
//! requests. Above, and while the store is closed, it writes back as fast as it can. After a failure all wait, longer
//! each time, while the backing store is away; what it rejects waits by itself and delays nothing else.
//!
//! [`WriteBackOptions::delay`]: super::WriteBackOptions::delay

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use tokio::task::JoinSet;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Result};
use tradewind_core::{Address, BucketName, Context};

use super::buckets::OwnerCheck;
use super::dirty_index::DirtyState;
use super::through::CommitLock;
use super::{DRAIN_WINDOW_BYTES, Shared};

const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The time after which an object that the backing store rejected is tried again.
const REJECTED_DELAY: Duration = Duration::from_secs(60);

/// The time after which an object is tried again that cannot be removed from the journal.
const READ_ONLY_DELAY: Duration = Duration::from_secs(3600);

/// The longest wait for a change of the index.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The interval at which `close` looks whether all is written back.
const CLOSE_INTERVAL: Duration = Duration::from_millis(5);

/// The longest time for which `close` removes markers. One that stays is found by the next start.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome of one write-back.
struct Outcome {
    address: Address,
    result: Result<u64>,
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
    /// Buckets to which nothing is written until a time.
    blocked: HashMap<BucketName, Duration>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Deferred {
    until: Duration,
    address: Address,
}

impl Schedule {
    /// Records an outcome.
    fn record(&mut self, shared: &Shared, outcome: Outcome) {
        let Outcome { address, result } = outcome;
        let now = shared.clock.now();
        let Err(error) = result else {
            self.backoff = Duration::ZERO;
            self.reported.remove(&address);
            self.blocked.remove(&address.bucket);
            shared.index.requeue(&address);
            return;
        };
        let is_read_only = shared.journal.is_read_only();
        if is_read_only || is_rejection(&error) {
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
            let delay = if is_read_only { READ_ONLY_DELAY } else { REJECTED_DELAY };
            self.deferred.push(Reverse(Deferred { until: now + delay, address }));
            return;
        }
        shared.counters.failures.increment();
        let uncertain_until = shared.uncertain_until(&address);
        if self.backoff.is_zero() {
            tracing::warn!(?error, "dirty data cannot be written back now; it is tried again");
        }
        self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        self.paused_until = now + self.backoff;
        match uncertain_until {
            Some(until) => self.deferred.push(Reverse(Deferred { until, address })),
            None => shared.index.requeue(&address),
        }
    }

    /// Begins what is due, up to the concurrency of the moment.
    fn begin_due(&mut self, shared: &Arc<Shared>, running: &mut JoinSet<Outcome>, now: Duration) {
        loop {
            let is_urgent = shared.is_urgent();
            let concurrency =
                if is_urgent { shared.options.concurrency } else { shared.options.concurrency / 4 };
            if running.len() >= concurrency.max(1) {
                return;
            }
            let until = if is_urgent { Some(now) } else { now.checked_sub(shared.options.delay) };
            let Some(address) = until.and_then(|until| shared.index.take_oldest(until)) else { return };
            let blocked_until = self.blocked.get(&address.bucket).copied().filter(|until| *until > now);
            if let Some(until) = blocked_until.max(shared.uncertain_until(&address)) {
                self.deferred.push(Reverse(Deferred { until, address }));
                continue;
            }
            let shared = shared.clone();
            running.spawn(async move {
                let result = shared.write_back_one(&address).await;
                Outcome { address, result }
            });
        }
    }

    /// Queues what is due again. Returns when the next one is.
    fn requeue_due(&mut self, shared: &Shared, now: Duration) -> Option<Duration> {
        while let Some(Reverse(first)) = self.deferred.peek() {
            if first.until > now {
                return Some(first.until);
            }
            shared.index.requeue(&first.address);
            self.deferred.pop();
        }
        None
    }
}

/// True if the same request would fail again: it is not repeated soon.
fn is_rejection(error: &Error) -> bool {
    !error.kind().is_retryable() || error.affects_whole_bucket()
}

/// Writes back until the store is closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut schedule = Schedule::default();
    let mut running: JoinSet<Outcome> = JoinSet::new();
    loop {
        let now = shared.clock.now();
        let next_deferred = schedule.requeue_due(&shared, now);
        let mut wake_at = next_deferred.unwrap_or(now + MAX_WAIT);
        if now >= schedule.paused_until {
            schedule.begin_due(&shared, &mut running, now);
        } else {
            wake_at = wake_at.min(schedule.paused_until);
        }
        if let Some(since) = shared.index.oldest_queued() {
            let due = (since + shared.options.delay).max(schedule.paused_until);
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
                Err(error) => tracing::error!(%error, "a write-back panicked"),
            },
            () = shared.drain_wakeup.notified() => {}
            () = shared.clock.sleep_until(wake_at) => {}
        }
    }
}

impl Shared {
    /// True if dirty data is written back as fast as possible.
    fn is_urgent(&self) -> bool {
        let totals = self.index.totals();
        self.is_closing.load(Ordering::SeqCst)
            || totals.bytes > self.options.max_dirty_bytes / 4 * 3
            || totals.entries > self.options.max_dirty_objects / 4 * 3
    }

    /// Writes back what is dirty of a key, if its bucket is still owned.
    async fn write_back_one(&self, address: &Address) -> Result<u64> {
        let Some(entry) = self.index.get(address) else { return Ok(0) };
        let size = match entry.state {
            DirtyState::Object(summary) => summary.size,
            DirtyState::Tombstone => 0,
        };
        let context = self.own_context(size).await?;
        let (_bucket, _entered) = self.enter(&context, &address.bucket, OwnerCheck::Strict).await?;
        let _transfer = context.guard(self.transfer_locks.lock(address)).await?;
        if self.index.get(address).is_none() {
            return Ok(0);
        }
        self.write_back(&context, address, CommitLock::Free).await
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
        let clean = owned.into_iter().filter(|name| !self.index.has_bucket(name));
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
