//! The permits of a transfer context. Their number is fixed, or adapted by a [`ConcurrencyController`], which receives
//! the measured throughput once per interval.
//!
//! A permit is 1/64 of a request of the size class with the highest concurrency. A request takes 64 permits times the
//! planned ratio of that concurrency to the one of its own class. The number does not depend on the size of the pool,
//! so that resizing the pool changes the concurrency of all classes in proportion.

mod interval_stats;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tradewind_model::concurrency_controller::ConcurrencyController;

use self::interval_stats::{Interval, IntervalStats};

/// Permits of one request of a size class with the highest concurrency.
pub(super) const PERMITS_PER_REQUEST: usize = 64;

/// Minimum number of largest requests that the pool has permits for. Objects of a search that wait for their output
/// turn keep the permits of one request each, and the object whose turn it is needs some, too (see the permit rule of
/// [`transfer_context`](super::transfer_context)).
pub const MIN_LARGEST_REQUESTS: usize = 5;

/// Time after the first data request during which connections count as new.
const NEW_CONNECTION_PERIOD: Duration = Duration::from_secs(1);

/// Reads the counters of packets sent and retransmitted since boot.
pub type PacketCounters = fn() -> (u64, u64);

/// A pool of concurrency permits.
#[derive(Debug)]
pub(super) struct PermitPool {
    permits: Semaphore,
    adaptive: Option<Adaptive>,
    /// Start of the first data request.
    first_data_request: OnceLock<Duration>,
}

/// Settings of an adaptive pool. Concurrencies are in requests of the size class with the highest concurrency.
#[derive(Debug, Clone, Copy)]
pub(super) struct PermitConfig {
    /// The concurrency at the start.
    pub initial_concurrency: usize,
    /// The initial concurrency was chosen by tuning.
    pub is_tuned: bool,
    /// Permits of a request of the largest size class.
    pub largest_request_permits: u32,
    /// Maximum permits of a request of any size class. On new connections a small request may need more permits than
    /// one of the largest class.
    pub max_request_permits: u32,
    /// The maximum concurrency.
    pub max_concurrency: usize,
}

/// The state of an adaptive pool.
#[derive(Debug)]
struct Adaptive {
    /// Bytes transferred in the current interval.
    bytes: AtomicU64,
    /// Requests that succeeded in the current interval.
    succeeded: AtomicU64,
    packets: PacketCounters,
    /// The initial concurrency was chosen by tuning. Fewer requests are then in flight on new connections, so the
    /// throughput of that time is ignored.
    is_tuned: bool,
    /// A task waited for permits in the current interval.
    has_waited: AtomicBool,
    /// End of the current interval, in nanoseconds.
    interval_end: AtomicU64,
    state: Mutex<ControllerState>,
}

#[derive(Debug)]
struct ControllerState {
    controller: ConcurrencyController,
    interval: Interval,
    /// Number of permits of the pool, without `to_retire`.
    permits: usize,
    /// Number of permits in use that will be retired when their requests end.
    to_retire: usize,
}

impl PermitPool {
    /// A pool of fixed size for a concurrency, in requests of the size class with the highest concurrency.
    pub fn fixed(concurrency: usize) -> Self {
        Self {
            permits: Semaphore::new(permits_for_concurrency(concurrency)),
            adaptive: None,
            first_data_request: OnceLock::new(),
        }
    }

    /// A pool resized by a [`ConcurrencyController`]. It never shrinks below one request of any size, nor below
    /// [`MIN_LARGEST_REQUESTS`] requests of the largest size class, unless it starts with less.
    pub fn adaptive(config: PermitConfig, now: Duration, packets: PacketCounters) -> Self {
        let PermitConfig {
            initial_concurrency,
            is_tuned,
            largest_request_permits,
            max_request_permits,
            max_concurrency,
        } = config;
        let min_concurrency = (largest_request_permits as usize * MIN_LARGEST_REQUESTS)
            .max(max_request_permits as usize)
            .div_ceil(PERMITS_PER_REQUEST)
            .min(initial_concurrency);
        let permits = permits_for_concurrency(initial_concurrency);
        let controller = ConcurrencyController::new(initial_concurrency, min_concurrency..=max_concurrency);
        let controller = if is_tuned { controller.tuned() } else { controller };
        let interval = Interval::new(now, packets());
        let state = ControllerState { controller, interval, permits, to_retire: 0 };
        let adaptive = Adaptive {
            bytes: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            packets,
            is_tuned,
            has_waited: AtomicBool::new(false),
            interval_end: AtomicU64::new(nanos(now + ConcurrencyController::interval(Duration::ZERO))),
            state: Mutex::new(state),
        };
        Self {
            permits: Semaphore::new(permits),
            adaptive: Some(adaptive),
            first_data_request: OnceLock::new(),
        }
    }

    /// Returns true if a [`ConcurrencyController`] resizes the pool.
    pub const fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    /// Waits for permits; `None` if the pool is closed.
    pub async fn acquire(&self, permits: u32) -> Option<SemaphorePermit<'_>> {
        if let Ok(taken) = self.permits.try_acquire_many(permits) {
            return Some(taken);
        }
        if let Some(adaptive) = &self.adaptive {
            adaptive.has_waited.store(true, Ordering::Relaxed);
        }
        self.permits.acquire_many(permits).await.ok()
    }

    /// Takes permits if that is possible without waiting.
    pub fn try_acquire(&self, permits: u32) -> Option<SemaphorePermit<'_>> {
        self.permits.try_acquire_many(permits).ok()
    }

    /// Number of free permits.
    pub fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Records transferred bytes of a body.
    pub fn record_bytes(&self, bytes: u64, now: impl FnOnce() -> Duration) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.end_interval_if_due(adaptive, now());
        }
    }

    /// Records a successful request. Failed ones do not count as throughput.
    pub fn record_success(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.succeeded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true while connections are too new to reach the throughput that the plan assumes.
    pub fn has_new_connections(&self, now: Duration) -> bool {
        self.first_data_request.get().is_none_or(|first| now.saturating_sub(*first) < NEW_CONNECTION_PERIOD)
    }

    /// Records the start of a request. `has_data` is true if it transfers data.
    pub fn record_start(&self, permits: &SemaphorePermit<'_>, has_data: bool, now: Duration) {
        if has_data {
            self.first_data_request.get_or_init(|| now);
        }
        if let Some(adaptive) = &self.adaptive {
            adaptive.state().interval.record_start(permits.num_permits() as u64, now);
        }
    }

    /// Releases the permits of a request that started at `started`.
    pub fn release(&self, mut permits: SemaphorePermit<'_>, started: Duration, now: Duration) {
        let Some(adaptive) = &self.adaptive else { return };
        let mut state = adaptive.state();
        state.interval.record_end(permits.num_permits() as u64, started, now);
        let to_retire = state.to_retire.min(permits.num_permits());
        state.to_retire -= to_retire;
        drop(state);
        if let Some(retired) = permits.split(to_retire) {
            retired.forget();
        }
        drop(permits);
        self.end_interval_if_due(adaptive, now);
    }

    /// At the end of an interval, asks the controller for the new concurrency and resizes the pool.
    fn end_interval_if_due(&self, adaptive: &Adaptive, now: Duration) {
        if nanos(now) < adaptive.interval_end.load(Ordering::Relaxed) {
            return;
        }
        let packets = (adaptive.packets)();
        // If another task holds the lock, it either ends the interval, or a later event does.
        let Ok(mut state) = adaptive.state.try_lock() else { return };
        if nanos(now) < adaptive.interval_end.load(Ordering::Relaxed) {
            return;
        }
        let [bytes, succeeded] =
            [&adaptive.bytes, &adaptive.succeeded].map(|count| count.swap(0, Ordering::Relaxed));
        let permits = state.permits;
        let ignores_interval = adaptive.is_tuned && self.has_new_connections(state.interval.started());
        let IntervalStats { throughput, is_queue_overflow, latency } =
            state.interval.finish(now, permits, (bytes, succeeded), packets);
        // With exactly as many requests as the pool has room for no task waits, but nearly all permits are taken.
        let is_full = self.permits.available_permits() * 8 <= state.permits;
        let is_busy = adaptive.has_waited.swap(false, Ordering::Relaxed) || is_full;
        let pool_concurrency = if is_busy && !ignores_interval {
            state.controller.end_interval(throughput, is_queue_overflow)
        } else {
            state.controller.discard_interval()
        };
        let wanted = permits_for_concurrency(pool_concurrency);
        if wanted >= state.permits {
            let more = wanted - state.permits;
            // Retirements that are still pending are cancelled first.
            let cancelled_retirements = state.to_retire.min(more);
            state.to_retire -= cancelled_retirements;
            self.permits.add_permits(more - cancelled_retirements);
        } else {
            // Permits in use are retired when their requests end.
            let fewer = state.permits - wanted;
            state.to_retire += fewer - self.permits.forget_permits(fewer);
        }
        if wanted != state.permits {
            tracing::debug!(pool_concurrency, "concurrency changed");
        }
        state.permits = wanted;
        adaptive.interval_end.store(nanos(now + ConcurrencyController::interval(latency)), Ordering::Relaxed);
    }
}

impl Adaptive {
    fn state(&self) -> MutexGuard<'_, ControllerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The size of a pool for a concurrency, in requests of the size class with the highest concurrency.
pub(super) fn permits_for_concurrency(concurrency: usize) -> usize {
    concurrency.clamp(1, Semaphore::MAX_PERMITS / PERMITS_PER_REQUEST) * PERMITS_PER_REQUEST
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(
        initial_concurrency: usize,
        is_tuned: bool,
        largest_request_permits: u32,
        max_request_permits: u32,
    ) -> PermitConfig {
        PermitConfig {
            initial_concurrency,
            is_tuned,
            largest_request_permits,
            max_request_permits,
            max_concurrency: 256,
        }
    }

    /// The time at which the controller first tries a higher concurrency, under constant throughput.
    fn first_try(is_tuned: bool) -> Option<Duration> {
        let permits = PermitPool::adaptive(config(8, is_tuned, 64, 64), Duration::ZERO, || (0, 0));
        let held = permits.try_acquire(8 * 64)?;
        permits.record_start(&held, true, Duration::ZERO);
        (0..100).map(|n| Duration::from_millis(50) * n).find(|now| {
            permits.record_bytes(1 << 20, || *now);
            permits.available() > 0
        })
    }

    #[test]
    fn throughput_of_new_connections_is_ignored_with_a_plan() {
        // If no request ends, an interval takes 1.2 s; one that started in the first second is ignored.
        assert!(first_try(false).unwrap() < Duration::from_secs(2));
        let tuned = first_try(true).unwrap();
        assert!(tuned > Duration::from_secs(2) && tuned < Duration::from_secs(5), "{tuned:?}");
    }

    #[test]
    fn pool_never_shrinks_below_the_heaviest_request() {
        // Five of the largest requests take the permits of eight.
        let permits = PermitPool::adaptive(config(64, true, 100, 1024), Duration::ZERO, || (0, 0));
        let adaptive = permits.adaptive.as_ref().unwrap();
        let mut controller = adaptive.state().controller.clone();
        // The throughput is the same at any concurrency.
        let min = (0..500).map(|_| controller.end_interval(1e6, false)).min().unwrap();
        assert_eq!(min, 16);
    }
}
