//! The permits of a transfer context. Their number is fixed, or resized by the concurrency controller in
//! [`model::steering`](tradewind_model::concurrency_controller), which is fed the measured throughput once per interval.

mod interval_stats;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tradewind_model::concurrency_controller::ConcurrencyController;

use self::interval_stats::{Interval, IntervalStats};

/// Permits of one request if all size classes have the same concurrency.
pub(super) const PERMITS_PER_REQUEST: usize = 64;

/// Minimum number of largest requests that the permits must allow. Some hold permits while waiting for another request,
/// as those of a search wait for its output; that one must get permits, too.
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

/// The state of an adaptive pool. The counters cover the current interval.
#[derive(Debug)]
struct Adaptive {
    /// Bytes transferred, and requests completed.
    bytes: AtomicU64,
    done: AtomicU64,
    packets: PacketCounters,
    /// The concurrency comes from a plan. Fewer requests are then in flight on new connections, so the throughput of
    /// that time is ignored.
    is_planned: bool,
    /// A task waited for permits.
    has_waited: AtomicBool,
    /// End of the interval, in nanoseconds.
    ends: AtomicU64,
    state: Mutex<ControllerState>,
}

#[derive(Debug)]
struct ControllerState {
    steering: ConcurrencyController,
    interval: Interval,
    /// Number of permits, and of those still held that will be retired when their requests end.
    permits: usize,
    to_retire: usize,
}

impl PermitPool {
    /// A pool of fixed size for `requests` concurrent requests.
    pub fn fixed(requests: usize) -> Self {
        Self {
            permits: Semaphore::new(permits_for_requests(requests)),
            adaptive: None,
            first_data_request: OnceLock::new(),
        }
    }

    /// A pool resized by a [`ConcurrencyController`]. It starts at `requests`, which a plan may have chosen (`is_planned`), and
    /// never exceeds `max`. It never shrinks below [`MIN_LARGEST_REQUESTS`] of the largest requests. One request takes up to `largest`
    /// permits, and up to `heaviest` on new connections.
    pub fn adaptive(
        (requests, is_planned): (usize, bool),
        ((largest, heaviest), max): ((u32, u32), usize),
        now: Duration,
        packets: PacketCounters,
    ) -> Self {
        let min = (largest as usize * MIN_LARGEST_REQUESTS)
            .max(heaviest as usize)
            .div_ceil(PERMITS_PER_REQUEST)
            .min(requests);
        let permits = permits_for_requests(requests);
        let steering = ConcurrencyController::new(requests, min..=max);
        let steering = if is_planned { steering.planned() } else { steering };
        let interval = Interval::new(now, packets());
        let state = ControllerState { steering, interval, permits, to_retire: 0 };
        let adaptive = Adaptive {
            bytes: AtomicU64::new(0),
            done: AtomicU64::new(0),
            packets,
            is_planned,
            has_waited: AtomicBool::new(false),
            ends: AtomicU64::new(nanos(now + ConcurrencyController::interval(Duration::ZERO))),
            state: Mutex::new(state),
        };
        Self {
            permits: Semaphore::new(permits),
            adaptive: Some(adaptive),
            first_data_request: OnceLock::new(),
        }
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
            adaptive.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true while connections are too new to reach the throughput that a plan assumes.
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

    /// Releases the permits of a request that started at `began`.
    pub fn release(&self, mut permits: SemaphorePermit<'_>, began: Duration, now: Duration) {
        let Some(adaptive) = &self.adaptive else { return };
        let mut state = adaptive.state();
        state.interval.record_end(permits.num_permits() as u64, began, now);
        let to_retire = state.to_retire.min(permits.num_permits());
        state.to_retire -= to_retire;
        drop(state);
        if let Some(over) = permits.split(to_retire) {
            over.forget();
        }
        drop(permits);
        self.end_interval_if_due(adaptive, now);
    }

    /// At the end of an interval, asks the controller for the new concurrency and resizes the pool.
    fn end_interval_if_due(&self, adaptive: &Adaptive, now: Duration) {
        if nanos(now) < adaptive.ends.load(Ordering::Relaxed) {
            return;
        }
        let packets = (adaptive.packets)();
        // If another task holds the lock, it either ends the interval, or a later event does.
        let Ok(mut state) = adaptive.state.try_lock() else { return };
        if nanos(now) < adaptive.ends.load(Ordering::Relaxed) {
            return;
        }
        let [bytes, done] = [&adaptive.bytes, &adaptive.done].map(|count| count.swap(0, Ordering::Relaxed));
        let permits = state.permits;
        let was_new = adaptive.is_planned && self.has_new_connections(state.interval.started());
        let IntervalStats { throughput: carried, is_overrun: overruns, latency } =
            state.interval.finish(now, permits, (bytes, done), packets);
        // With exactly as many callers as permits no task waits, but nearly all permits are taken.
        let is_full = self.permits.available_permits() * 8 <= state.permits;
        let is_busy = adaptive.has_waited.swap(false, Ordering::Relaxed) || is_full;
        let requests = if is_busy && !was_new {
            state.steering.end_interval(carried, overruns)
        } else {
            state.steering.end_idle_interval()
        };
        let wanted = permits_for_requests(requests);
        if wanted >= state.permits {
            let more = wanted - state.permits;
            let paid = state.to_retire.min(more);
            state.to_retire -= paid;
            self.permits.add_permits(more - paid);
        } else {
            let fewer = state.permits - wanted;
            state.to_retire += fewer - self.permits.forget_permits(fewer);
        }
        if wanted != state.permits {
            tracing::debug!(requests, "concurrency changed");
        }
        state.permits = wanted;
        adaptive.ends.store(nanos(now + ConcurrencyController::interval(latency)), Ordering::Relaxed);
    }
}

impl Adaptive {
    fn state(&self) -> MutexGuard<'_, ControllerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits of `requests` requests.
pub(super) fn permits_for_requests(requests: usize) -> usize {
    requests.clamp(1, Semaphore::MAX_PERMITS / PERMITS_PER_REQUEST) * PERMITS_PER_REQUEST
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time at which the controller first tries a higher concurrency, under constant throughput.
    fn first_try(is_planned: bool) -> Option<Duration> {
        let permits = PermitPool::adaptive((8, is_planned), ((64, 64), 256), Duration::ZERO, || (0, 0));
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
        let planned = first_try(true).unwrap();
        assert!(planned > Duration::from_secs(2) && planned < Duration::from_secs(5), "{planned:?}");
    }

    #[test]
    fn pool_never_shrinks_below_the_heaviest_request() {
        // Five of the largest requests take the permits of eight.
        let permits = PermitPool::adaptive((64, true), ((100, 1024), 256), Duration::ZERO, || (0, 0));
        let adaptive = permits.adaptive.as_ref().unwrap();
        let mut steering = adaptive.state().steering.clone();
        // The throughput is the same at any concurrency.
        let min = (0..500).map(|_| steering.end_interval(1e6, false)).min().unwrap();
        assert_eq!(min, 16);
    }
}
