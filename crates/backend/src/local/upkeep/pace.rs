//! Rate limit for the bytes that upkeep writes.

use std::time::{Duration, Instant};

use super::UpkeepControl;
use crate::local::space::DeviceSpace;

/// Maximum unused time that later writes may use to exceed the rate.
const MAX_SAVED_TIME: Duration = Duration::from_secs(1);
/// Shorter sleeps are added to the next one.
const MIN_SLEEP: Duration = Duration::from_millis(20);
/// Maximum shortage of space, from 0 to 1, at which the rate limit applies.
const MAX_LIMITED_SHORTAGE: f64 = 0.75;
/// Interval at which a sleep checks for a shortage.
const SHORTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Limits the rate of upkeep's writes.
pub(super) struct Pace {
    bytes_per_second: u64,
    started: Instant,
    /// Bytes counted since `started`.
    spent_bytes: u64,
}

impl Pace {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), started: Instant::now(), spent_bytes: 0 }
    }

    /// Counts bytes and sleeps until the rate allows them. Does not sleep, or ends the sleep, once the shortage exceeds
    /// [`MAX_LIMITED_SHORTAGE`]. Returns false if upkeep is stopped.
    pub fn spend(&mut self, bytes: u64, control: &UpkeepControl, space: &DeviceSpace) -> bool {
        self.spent_bytes += bytes;
        #[expect(clippy::cast_precision_loss, reason = "a duration")]
        let due = Duration::from_secs_f64(self.spent_bytes as f64 / self.bytes_per_second as f64);
        let elapsed = self.started.elapsed();
        if elapsed > due + MAX_SAVED_TIME {
            // Upkeep did not write for long. More unused time than `MAX_SAVED_TIME` is forfeited.
            *self = Self::new(self.bytes_per_second);
        }
        let ahead = due.saturating_sub(elapsed);
        if ahead < MIN_SLEEP {
            return !control.is_stopped();
        }
        let is_short = || space.shortage() > MAX_LIMITED_SHORTAGE;
        if is_short() || !control.wait(ahead, SHORTAGE_CHECK_INTERVAL, is_short) || is_short() {
            *self = Self::new(self.bytes_per_second);
        }
        !control.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::layout::Layout;

    /// A rate at which a spent byte means a sleep of one second.
    const BYTES_PER_SECOND: u64 = 1;
    const SPENT_BYTES: u64 = 1 << 30;

    fn space() -> (DeviceSpace, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&directory.path().join("store")).unwrap();
        (DeviceSpace::open(&layout, 8 << 20).unwrap(), directory)
    }

    /// A rejected large write counts as a shortage until upkeep has run. Returns false on an empty device, where no
    /// compaction could make room for it.
    fn cause_shortage(space: &DeviceSpace) -> bool {
        space.admit_whole(space.free().unwrap()).unwrap_err();
        let is_short = space.shortage() > MAX_LIMITED_SHORTAGE;
        if !is_short {
            println!("skipped: the device is empty");
        }
        is_short
    }

    #[test]
    fn shortage_lifts_the_rate_limit() {
        let (space, _directory) = space();
        if !cause_shortage(&space) {
            return;
        }
        let mut pace = Pace::new(BYTES_PER_SECOND);
        for _ in 0..3 {
            assert!(pace.spend(SPENT_BYTES, &UpkeepControl::default(), &space));
        }
    }

    #[test]
    fn shortage_during_a_sleep_ends_it() {
        let (space, _directory) = space();
        let control = UpkeepControl::default();
        std::thread::scope(|scope| {
            let paced = scope.spawn(|| Pace::new(BYTES_PER_SECOND).spend(SPENT_BYTES, &control, &space));
            std::thread::sleep(SHORTAGE_CHECK_INTERVAL);
            assert!(!paced.is_finished(), "there is space: the rate limit applies");
            let is_short = cause_shortage(&space);
            control.state.lock().is_stopped = !is_short;
            assert_eq!(paced.join().unwrap(), is_short);
        });
    }

    #[test]
    fn stop_ends_a_sleep() {
        let (space, _directory) = space();
        let control = UpkeepControl::default();
        std::thread::scope(|scope| {
            let paced = scope.spawn(|| Pace::new(BYTES_PER_SECOND).spend(SPENT_BYTES, &control, &space));
            control.state.lock().is_stopped = true;
            control.changed.notify_all();
            assert!(!paced.join().unwrap());
        });
    }
}
