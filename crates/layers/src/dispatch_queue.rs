//! Tasks that wait until a scheduler of `model` dispatches them.
//!
//! One of the queued tasks, the timekeeper, sleeps until the next possible dispatch and then wakes those that are due.
//! A task that is dropped leaves the queue and passes this role on. A timekeeper that is no longer polled loses it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::select;
use tokio::sync::Notify;
use tradewind_core::Clock;

/// Minimum sleep, the resolution of timers.
const MIN_SLEEP: Duration = Duration::from_micros(100);
/// A timekeeper this late is replaced: its stream may no longer be polled.
const MAX_TIMEKEEPER_DELAY: Duration = Duration::from_millis(20);

/// A scheduler whose requests wait in a [`DispatchQueue`].
pub(crate) trait Scheduler: fmt::Debug + Send + 'static {
    /// The id of a queued request.
    type Ticket: Copy + Ord + fmt::Debug + Send;

    /// The next request that is dispatched; `None` if none can be now.
    fn next_dispatched(&mut self, now: Duration) -> Option<Self::Ticket>;
    /// The time of the next possible dispatch; `None` if it depends on an event.
    fn next_wake(&self, now: Duration) -> Option<Duration>;
    /// Removes a request from the queue.
    fn cancel(&mut self, ticket: Self::Ticket);
}

/// A scheduler and the tasks queued in it.
#[derive(Debug)]
pub(crate) struct DispatchQueue<S: Scheduler> {
    state: Mutex<QueueState<S>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
pub(crate) struct QueueState<S: Scheduler> {
    /// The scheduler.
    pub scheduler: S,
    waiting: BTreeMap<S::Ticket, Arc<Notify>>,
    /// The timekeeper, and when it wakes.
    timekeeper: Option<(S::Ticket, Duration)>,
}

/// A queued task. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuedTask<S: Scheduler> {
    queue: Arc<DispatchQueue<S>>,
    ticket: S::Ticket,
    woken: Arc<Notify>,
}

impl<S: Scheduler> DispatchQueue<S> {
    /// An empty queue; times are those of `clock`.
    pub fn new(scheduler: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Mutex::new(QueueState { scheduler, waiting: BTreeMap::new(), timekeeper: None }),
            clock,
        }
    }

    /// The time of its clock.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The scheduler, for exclusive use.
    pub fn lock(&self) -> MutexGuard<'_, QueueState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the task of a ticket, which was requested under the same lock.
    pub fn enqueue(self: &Arc<Self>, state: &mut QueueState<S>, ticket: S::Ticket) -> QueuedTask<S> {
        let woken = Arc::new(Notify::new());
        state.waiting.insert(ticket, woken.clone());
        QueuedTask { queue: self.clone(), ticket, woken }
    }
}

impl<S: Scheduler> QueueState<S> {
    /// Wakes the tasks whose dispatch is due.
    pub fn wake_due(&mut self, now: Duration) {
        while let Some(ticket) = self.scheduler.next_dispatched(now) {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                waiting.notify_one();
            }
        }
    }

    /// True if the task of a ticket was not dispatched yet.
    pub fn is_waiting(&self, ticket: S::Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// When this task must wake: the timekeeper at the next possible dispatch, others once the timekeeper is overdue.
    /// `None` if no dispatch is pending.
    fn wake_time(&mut self, ticket: S::Ticket, now: Duration) -> Option<Duration> {
        let due = self.scheduler.next_wake(now)?.max(now + MIN_SLEEP);
        match self.timekeeper {
            Some((timekeeper, until))
                if timekeeper != ticket && until <= due && now < until + MAX_TIMEKEEPER_DELAY =>
            {
                Some(until + MAX_TIMEKEEPER_DELAY)
            }
            _ => {
                self.timekeeper = Some((ticket, due));
                Some(due)
            }
        }
    }

    /// Removes a task from the queue, and wakes another one if it may have been the timekeeper.
    fn leave(&mut self, ticket: S::Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            self.scheduler.cancel(ticket);
        }
        // The task woken to take over may have been dropped, too.
        if self.timekeeper.is_none_or(|(timekeeper, _)| timekeeper == ticket) {
            self.timekeeper = None;
            if let Some((_, other)) = self.waiting.first_key_value() {
                other.notify_one();
            }
        }
    }
}

impl<S: Scheduler> QueuedTask<S> {
    /// Returns when the task is dispatched.
    pub async fn wait(self) {
        loop {
            let sleep = {
                let now = self.queue.now();
                let mut state = self.queue.lock();
                state.wake_due(now);
                if !state.is_waiting(self.ticket) {
                    return;
                }
                state.wake_time(self.ticket, now)
            };
            let woken = std::pin::pin!(self.woken.notified());
            match sleep {
                Some(until) => drop(select(woken, self.queue.clock.sleep_until(until)).await),
                None => woken.await,
            }
        }
    }
}

impl<S: Scheduler> Drop for QueuedTask<S> {
    fn drop(&mut self) {
        self.queue.lock().leave(self.ticket);
    }
}
