//! A clock turned by hand: time stands still until a test moves it, so that what depends on time
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

/// Noon on 2 January 2024 UTC: where wall time begins unless a test says otherwise.
const DEFAULT_WALL: Timestamp = Timestamp::from_millis(1_704_196_800_000);

/// Stands at zero until advanced. Wall time advances by the same amounts.
pub struct SimulatedClock {
    wall_origin: Timestamp,
    hands: Arc<Mutex<Hands>>,
}

#[derive(Default)]
struct Hands {
    now: Duration,
    sleepers: BTreeMap<Moment, Waker>,
    last: u64,
}

/// When a sleeper wakes; of sleepers with the same time, the one that came first wakes first.
type Moment = (Duration, u64);

impl SimulatedClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::starting_at(DEFAULT_WALL)
    }

    /// A clock at zero whose wall time begins here.
    #[must_use]
    pub fn starting_at(wall: Timestamp) -> Arc<Self> {
        Arc::new(Self { wall_origin: wall, hands: Arc::default() })
    }

    /// Moves time on and wakes the sleepers whose time has come, in order.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.hands.lock();
        hands.now += by;
        let first_later = (hands.now + Duration::from_nanos(1), 0);
        let later = hands.sleepers.split_off(&first_later);
        let due = std::mem::replace(&mut hands.sleepers, later);
        drop(hands);
        due.into_values().for_each(Waker::wake);
    }

    /// The moment at which the next sleeper wakes: how far a simulation can jump.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        self.hands.lock().sleepers.keys().next().map(|(at, _)| *at)
    }

    /// How many sleep now.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.hands.lock().sleepers.len()
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        self.hands.lock().now
    }

    fn wall(&self) -> Timestamp {
        let elapsed = i64::try_from(self.now().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.wall_origin.millis().saturating_add(elapsed))
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        let mut hands = self.hands.lock();
        hands.last += 1;
        Box::pin(Sleep { hands: self.hands.clone(), moment: (until, hands.last) })
    }
}

impl fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedClock({:?}, {} sleep)", self.now(), self.sleepers())
    }
}

struct Sleep {
    hands: Arc<Mutex<Hands>>,
    moment: Moment,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut hands = self.hands.lock();
        if hands.now >= self.moment.0 {
            return Poll::Ready(());
        }
        hands.sleepers.insert(self.moment, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.hands.lock().sleepers.remove(&self.moment);
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
