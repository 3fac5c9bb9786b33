//! A store: one server with a first-in-first-out queue.

use std::collections::VecDeque;
use std::time::Duration;

use tradewind_model::affinity::queueing::ReadLoad;

use super::scenario::StoreState;

/// A read in flight: an index into the run's reads.
pub(super) type ReadIndex = usize;

/// The completion of the read in service, as an event. It is void if the store has changed since.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Completion {
    pub at: Duration,
    pub epoch: u64,
}

/// Measurements of a store since the last round.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Measured {
    /// Successful reads.
    pub reads: ReadLoad,
    /// Share of the time in which the server was busy, in percent.
    pub busy_percent: f64,
}

#[derive(Debug, Clone, Copy)]
struct QueuedRead {
    read: ReadIndex,
    /// Service time in units of the store's mean.
    work: f64,
}

/// A store.
#[derive(Debug)]
pub(super) struct Store {
    state: StoreState,
    /// The first one is in service.
    queue: VecDeque<QueuedRead>,
    /// When the work of the first read was last reduced.
    progress_at: Duration,
    epoch: u64,
    window: Window,
}

/// Sums since the last round.
#[derive(Debug, Default)]
struct Window {
    start: Duration,
    reads: u64,
    latency_seconds: f64,
    busy_seconds: f64,
}

impl Store {
    /// An idle store.
    pub fn new(state: StoreState) -> Self {
        Self {
            state,
            queue: VecDeque::new(),
            progress_at: Duration::ZERO,
            epoch: 0,
            window: Window::default(),
        }
    }

    /// True if it responds with an error at once.
    pub fn is_failing(&self) -> bool {
        self.state.is_failing
    }

    /// Seconds until a read of average work that arrives now would complete, by queue and service rate. Infinite if
    /// the store is failing.
    pub fn expected_seconds(&self) -> f64 {
        if self.state.is_failing {
            return f64::INFINITY;
        }
        (self.queue.len() + 1) as f64 / self.state.reads_per_second
    }

    /// Queues a read. Returns its completion if it is served at once.
    pub fn push(&mut self, now: Duration, read: ReadIndex, work: f64) -> Option<Completion> {
        self.queue.push_back(QueuedRead { read, work });
        (self.queue.len() == 1).then(|| self.start_service(now))
    }

    /// The read in service is complete. Returns it, and the completion of the next one; `None` if the event is void.
    pub fn complete(&mut self, now: Duration, epoch: u64) -> Option<Served> {
        if epoch != self.epoch {
            return None;
        }
        self.count_busy(now);
        let QueuedRead { read, .. } = self.queue.pop_front()?;
        let next = (!self.queue.is_empty()).then(|| self.start_service(now));
        Some(Served { read, next })
    }

    /// Counts a successful read.
    pub fn record(&mut self, latency: Duration) {
        self.window.reads += 1;
        self.window.latency_seconds += latency.as_secs_f64();
    }

    /// Changes its speed. The completion of the read in service moves.
    pub fn change(&mut self, now: Duration, state: StoreState) -> Option<Completion> {
        self.count_busy(now);
        self.state = state;
        (!self.queue.is_empty()).then(|| self.start_service(now))
    }

    /// Removes all reads, of a store that begins to fail.
    pub fn drain(&mut self, now: Duration) -> Vec<ReadIndex> {
        self.count_busy(now);
        self.epoch += 1;
        self.queue.drain(..).map(|queued| queued.read).collect()
    }

    /// Returns the measurements since the last call.
    pub fn measure(&mut self, now: Duration) -> Measured {
        self.count_busy(now);
        let window = std::mem::replace(&mut self.window, Window { start: now, ..Window::default() });
        let seconds = (now - window.start).as_secs_f64();
        if seconds <= 0.0 {
            return Measured::default();
        }
        Measured {
            reads: ReadLoad {
                reads_per_second: window.reads as f64 / seconds,
                bytes_per_second: 0.0,
                latency_seconds: window.latency_seconds / (window.reads.max(1)) as f64,
                ..ReadLoad::default()
            },
            busy_percent: 100.0 * window.busy_seconds / seconds,
        }
    }

    /// (Re)starts the service of the first read with the work that is left. Earlier completions are void.
    fn start_service(&mut self, now: Duration) -> Completion {
        self.progress_at = now;
        self.epoch += 1;
        let work = self.queue.front().map_or(0.0, |first| first.work);
        let at = now + Duration::from_secs_f64((work / self.state.reads_per_second).max(0.0));
        Completion { at, epoch: self.epoch }
    }

    /// Accounts for the service since the last call: the server's busy time and the work that is left.
    fn count_busy(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.progress_at).as_secs_f64();
        self.progress_at = now;
        if let Some(first) = self.queue.front_mut() {
            self.window.busy_seconds += elapsed;
            first.work = (first.work - elapsed * self.state.reads_per_second).max(0.0);
        }
    }
}

/// The result of [`Store::complete`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Served {
    pub read: ReadIndex,
    /// The completion of the next read, if there is one.
    pub next: Option<Completion>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(reads_per_second: f64) -> Store {
        Store::new(StoreState { reads_per_second, is_failing: false })
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn reads_are_served_one_after_another() {
        let mut store = store(10.0);
        let first = store.push(ms(0), 7, 1.0).unwrap();
        assert_eq!(first.at, ms(100));
        assert_eq!(store.push(ms(20), 8, 0.5), None);
        assert!((store.expected_seconds() - 0.3).abs() < 1e-9);
        let served = store.complete(ms(100), first.epoch).unwrap();
        assert_eq!((served.read, served.next.unwrap().at), (7, ms(150)));
        let last = store.complete(ms(150), served.next.unwrap().epoch).unwrap();
        assert_eq!(last, Served { read: 8, next: None });
    }

    #[test]
    fn change_of_speed_moves_the_completion_of_the_read_in_service() {
        let mut store = store(10.0);
        let old = store.push(ms(0), 1, 1.0).unwrap();
        let half_done = StoreState { reads_per_second: 5.0, is_failing: false };
        let new = store.change(ms(50), half_done).unwrap();
        assert_eq!(new.at, ms(150), "half of the work at half of the speed");
        assert_eq!(store.complete(ms(100), old.epoch), None, "the old completion is void");
        assert_eq!(store.complete(ms(150), new.epoch).unwrap().read, 1);
    }

    #[test]
    fn busy_time_and_latency_are_measured_per_round() {
        let mut store = store(10.0);
        let first = store.push(ms(0), 1, 1.0).unwrap();
        store.push(ms(0), 2, 1.0);
        let next = store.complete(ms(100), first.epoch).unwrap().next.unwrap();
        store.record(ms(100));
        let measured = store.measure(ms(150));
        assert!((measured.busy_percent - 100.0).abs() < 1e-9);
        assert!((measured.reads.reads_per_second - 1.0 / 0.15).abs() < 1e-9);
        store.complete(ms(200), next.epoch).unwrap();
        store.record(ms(200));
        let measured = store.measure(ms(350));
        assert!((measured.busy_percent - 25.0).abs() < 1e-9, "{measured:?}");
        assert!((measured.reads.latency_seconds - 0.2).abs() < 1e-9);
    }

    #[test]
    fn failing_store_returns_all_reads_and_expects_none() {
        let mut store = store(10.0);
        let old = store.push(ms(0), 1, 1.0).unwrap();
        store.push(ms(0), 2, 1.0);
        store.change(ms(10), StoreState { is_failing: true, ..StoreState::FAST });
        assert_eq!(store.drain(ms(10)), [1, 2]);
        assert_eq!(store.complete(ms(100), old.epoch), None);
        assert!(store.is_failing() && store.expected_seconds().is_infinite());
    }
}
