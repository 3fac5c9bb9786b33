//! A simulated clock: time stands still until a test advances it, so that timing
//! is decided by the test and not by the machine's load.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::clock::{Clock, Timestamp};

/// The default start of wall time: noon on 2 January 2024 UTC.
const DEFAULT_WALL_TIME: Timestamp = Timestamp::from_millis(1_704_196_800_000);

/// A clock that stands at zero until advanced. Wall time advances by the same amounts.
pub struct SimulatedClock {
    wall_origin: Timestamp,
    state: Arc<Mutex<ClockState>>,
}

#[derive(Default)]
struct ClockState {
    now: Duration,
    sleepers: BTreeMap<WakeTime, Waker>,
    last_sleeper: u64,
}

/// The time at which a sleeper wakes, and its sequence number: of sleepers with the same time, the first wakes first.
type WakeTime = (Duration, u64);

impl SimulatedClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::starting_at(DEFAULT_WALL_TIME)
    }

    /// A clock at zero whose wall time starts at `wall`.
    #[must_use]
    pub fn starting_at(wall: Timestamp) -> Arc<Self> {
        Arc::new(Self { wall_origin: wall, state: Arc::default() })
    }

    /// Advances time and wakes the sleepers that are due, in order.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock();
        state.now += by;
        let first_later = (state.now + Duration::from_nanos(1), 0);
        let later = state.sleepers.split_off(&first_later);
        let due = std::mem::replace(&mut state.sleepers, later);
        drop(state);
        due.into_values().for_each(Waker::wake);
    }

    /// The time at which the next sleeper wakes, up to which a simulation can jump.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        self.state.lock().sleepers.keys().next().map(|(at, _)| *at)
    }

    /// The number of sleepers.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.state.lock().sleepers.len()
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        self.state.lock().now
    }

    fn wall(&self) -> Timestamp {
        let elapsed = i64::try_from(self.now().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.wall_origin.millis().saturating_add(elapsed))
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.state.lock();
        state.last_sleeper += 1;
        Box::pin(Sleep { state: self.state.clone(), wake_time: (until, state.last_sleeper) })
    }
}

impl fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedClock({:?}, {} sleep)", self.now(), self.sleepers())
    }
}

struct Sleep {
    state: Arc<Mutex<ClockState>>,
    wake_time: WakeTime,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.now >= self.wake_time.0 {
            return Poll::Ready(());
        }
        state.sleepers.insert(self.wake_time, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.state.lock().sleepers.remove(&self.wake_time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn sleepers_wake_in_order() {
        let clock = SimulatedClock::new();
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for (name, seconds) in [("c", 3), ("a", 1), ("b", 2), ("a2", 1), ("late", 9)] {
            let (sleep, woken) = (clock.sleep_until(seconds * SECOND), woken.clone());
            tasks.spawn(async move {
                sleep.await;
                woken.lock().push(name);
            });
        }
        tokio::task::yield_now().await;
        assert_eq!((clock.sleepers(), clock.next_wake()), (5, Some(SECOND)));
        clock.advance(3 * SECOND);
        for _ in 0..4 {
            tasks.join_next().await.unwrap().unwrap();
        }
        assert_eq!(*woken.lock(), ["a", "a2", "b", "c"]);
        assert_eq!(clock.sleepers(), 1);
        drop(tasks);
        tokio::task::yield_now().await;
        assert_eq!(clock.sleepers(), 0, "a dropped sleeper is forgotten");
    }

    #[test]
    fn wall_time_follows() {
        let clock = SimulatedClock::starting_at(Timestamp::from_millis(5_000));
        assert_eq!(clock.wall().millis(), 5_000);
        clock.advance(Duration::from_millis(1_250));
        assert_eq!((clock.now(), clock.wall().millis()), (Duration::from_millis(1_250), 6_250));
        assert!(clock.sleep_until(SECOND).now_or_never().is_some(), "the past does not sleep");
    }
}
