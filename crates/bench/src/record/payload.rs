//! The payload of one request by the 100 ms intervals of the measurement window in which it passed. A request may take
//! longer than the window and progress unevenly, so its share of the window's time says little about its bytes.

use std::time::Duration;

use super::MeasurementWindow;

/// Bytes that passed in one interval of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct IntervalBytes {
    interval: usize,
    bytes: u64,
}

/// The payload bytes of a request: how many, and when they passed. Most requests pass in one interval and allocate
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// Bytes within and outside the window.
    total: u64,
    earlier: Vec<IntervalBytes>,
    latest: IntervalBytes,
}

impl Payload {
    /// Bytes that passed together, at `time`.
    #[must_use]
    pub fn passed_at(window: MeasurementWindow, time: Duration, bytes: u64) -> Self {
        let mut payload = Self::default();
        payload.add(window, time, bytes);
        payload
    }

    /// Counts bytes that passed at `time`; outside the window they count in the total only. Times must not decrease.
    pub fn add(&mut self, window: MeasurementWindow, time: Duration, bytes: u64) {
        self.total += bytes;
        if bytes == 0 || !window.contains(time) {
            return;
        }
        let interval = window.interval(time);
        if interval != self.latest.interval {
            if self.latest.bytes > 0 {
                self.earlier.push(self.latest);
            }
            self.latest = IntervalBytes { interval, bytes: 0 };
        }
        self.latest.bytes += bytes;
    }

    /// All bytes that passed, within and outside the window.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The intervals of the window in which bytes passed, in order, with their bytes.
    pub(crate) fn intervals(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let all = self.earlier.iter().chain(std::iter::once(&self.latest)).filter(|passed| passed.bytes > 0);
        all.map(|passed| (passed.interval, passed.bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const WINDOW: MeasurementWindow =
        MeasurementWindow { begin: Duration::from_secs(1), end: Duration::from_secs(2) };

    fn passed(bytes_at: &[(u32, u64)]) -> Vec<(usize, u64)> {
        let mut payload = Payload::default();
        bytes_at.iter().for_each(|(time, bytes)| payload.add(WINDOW, *time * MILLI, *bytes));
        assert_eq!(payload.total(), bytes_at.iter().map(|(_, bytes)| bytes).sum::<u64>());
        payload.intervals().collect()
    }

    #[test]
    fn bytes_count_in_the_interval_in_which_they_pass() {
        assert_eq!(passed(&[(1110, 5), (1120, 6), (1500, 7)]), [(1, 11), (5, 7)]);
        assert_eq!(passed(&[(1000, 5), (1999, 6)]), [(0, 5), (9, 6)]);
    }

    #[test]
    fn bytes_outside_the_window_do_not_count() {
        assert_eq!(passed(&[(900, 5), (999, 6), (2000, 7), (2500, 8)]), []);
        assert_eq!(
            passed(&[(0, 5), (1500, 6), (9000, 7)]),
            [(5, 6)],
            "a request that is longer than the window"
        );
        let before_opening = MeasurementWindow { begin: Duration::MAX, end: Duration::MAX };
        assert_eq!(Payload::passed_at(before_opening, MILLI, 1).intervals().count(), 0);
    }

    proptest! {
        #[test]
        fn bytes_in_the_window_are_complete(
            mut bytes_at in proptest::collection::vec((0_u32..3000, 0_u64..1000), 0..100),
        ) {
            bytes_at.sort_unstable();
            let counted: u64 = passed(&bytes_at).iter().map(|(_, bytes)| bytes).sum();
            let inside = bytes_at.iter().filter(|(time, _)| (1000..2000).contains(time));
            prop_assert_eq!(counted, inside.map(|(_, bytes)| bytes).sum::<u64>());
        }
    }
}
