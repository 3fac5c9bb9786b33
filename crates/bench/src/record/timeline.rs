//! The time series of a load, stored once for all workers: a replay may take a day, and a copy for each of hundreds of
//! workers would need gigabytes. A worker accumulates its current second and flushes it when it comes to another one,
//! which takes the lock once per worker and second. The last second stays in the worker's record.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Amount, Record, Second};
use crate::operation::Operation;

/// 100 ms intervals per second.
const INTERVALS_PER_SECOND: usize = 10;

/// The seconds and 100 ms intervals that workers have flushed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<Record>>);

impl Timeline {
    /// Creates the empty record of a worker.
    pub fn record(&self) -> Record {
        let present = Present {
            second: 0,
            seconds: Default::default(),
            tenths: Default::default(),
            timeline: self.clone(),
        };
        Record { present: Some(present), ..Record::default() }
    }

    /// Takes everything that was flushed since the last call.
    pub fn take(&self) -> Record {
        std::mem::take(&mut self.0.lock())
    }
}

/// The current second of a worker.
#[derive(Debug, Clone)]
pub(super) struct Present {
    second: usize,
    /// Statistics by kind of request.
    seconds: [Second; Operation::ALL.len()],
    tenths: [Amount; INTERVALS_PER_SECOND],
    timeline: Timeline,
}

impl Present {
    /// The statistics of a second of the window.
    pub fn second(&mut self, operation: Operation, number: usize) -> &mut Second {
        self.switch_to(number);
        &mut self.seconds[operation as usize]
    }

    /// The work of a 100 ms interval of the window.
    pub fn tenth(&mut self, number: usize) -> &mut Amount {
        self.switch_to(number / INTERVALS_PER_SECOND);
        &mut self.tenths[number % INTERVALS_PER_SECOND]
    }

    /// Flushes the current second and switches to another, possibly an earlier one: a request counts in every second in
    /// which it was in flight.
    fn switch_to(&mut self, second: usize) {
        if second != self.second {
            self.flush();
            self.second = second;
        }
    }

    #[cold]
    fn flush(&mut self) {
        self.add_to(&mut self.timeline.0.lock());
        (self.seconds, self.tenths) = (Default::default(), Default::default());
    }

    /// Adds the current second to a record.
    pub fn add_to(&self, record: &mut Record) {
        for (operation, second) in Operation::ALL.into_iter().zip(&self.seconds) {
            if *second != Second::default() {
                record.second(operation, self.second).add(second);
            }
        }
        for (number, tenth) in (self.second * INTERVALS_PER_SECOND..).zip(&self.tenths) {
            if *tenth != Amount::default() {
                *record.tenth(number) += *tenth;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::record::{Timing, Window};

    const WINDOW: Window = Window { begin: Duration::from_secs(2), end: Duration::from_secs(9) };

    /// A request: true for a put, pause since the previous request and duration in milliseconds, and true if it failed.
    type Request = (bool, u64, u64, bool);

    /// Records the consecutive requests of one worker.
    fn record_all(record: &mut Record, requests: &[Request]) {
        let mut at = Duration::ZERO;
        for (is_put, pause, took, fails) in requests {
            let operation = if *is_put { Operation::Put } else { Operation::Get };
            let begun = at + Duration::from_millis(*pause);
            at = begun + Duration::from_millis(*took);
            if *fails {
                record.failure(WINDOW, operation, at, "busy", "is busy");
            } else {
                let timing = Timing { intended: begun, begun, first: at, ended: at };
                record.success(WINDOW, operation, timing, 1000);
            }
        }
    }

    fn is_near(one: Amount, other: Amount) -> bool {
        (one.operations - other.operations).abs() < 1e-6 && (one.bytes - other.bytes).abs() < 1e-3
    }

    proptest! {
        /// For requests of any length, flushed and unflushed seconds together equal those of a single record.
        #[test]
        fn flushed_and_current_seconds_make_up_the_whole_record(
            workers in proptest::collection::vec(
                proptest::collection::vec(
                    (any::<bool>(), 0_u64..700, prop_oneof![0_u64..50, 0_u64..4000], proptest::bool::weighted(0.1)),
                    0..40,
                ),
                1..5,
            ),
        ) {
            let (timeline, mut apart, mut together) = (Timeline::default(), Record::default(), Record::default());
            for requests in &workers {
                let mut mine = timeline.record();
                record_all(&mut mine, requests);
                apart.add(&mine);
                let mut whole = Record::default();
                record_all(&mut whole, requests);
                together.add(&whole);
            }
            apart.add(&timeline.take());
            prop_assert_eq!(apart.tallies.len(), together.tallies.len());
            for (operation, tally) in &together.tallies {
                let other = &apart.tallies[operation];
                prop_assert_eq!(&other.seconds, &tally.seconds);
                prop_assert_eq!((other.operations, other.failed()), (tally.operations, tally.failed()));
                prop_assert_eq!(&other.latency, &tally.latency);
                prop_assert!(is_near(other.throughput, tally.throughput));
            }
            let time = WINDOW.end - WINDOW.begin;
            let tenths = apart.tenths(time).into_iter().zip(together.tenths(time));
            prop_assert!(tenths.into_iter().all(|(one, other)| is_near(one, other)));
            prop_assert!(timeline.take().tallies.is_empty());
        }
    }

    #[test]
    fn worker_record_holds_only_the_current_second() {
        let (timeline, day) = (Timeline::default(), 24 * 60 * 60);
        let window = Window { begin: Duration::ZERO, end: Duration::MAX };
        let mut records = [timeline.record(), timeline.record()];
        for second in 0..day {
            let (begun, ended) = (Duration::from_secs(second), Duration::from_millis(second * 1000 + 1500));
            let timing = Timing { intended: begun, begun, first: ended, ended };
            records[usize::from(second % 2 == 0)].success(window, Operation::Get, timing, 1);
        }
        for record in &records {
            assert_eq!(record.tenths.capacity(), 0);
            assert!(record.tallies.values().all(|tally| tally.seconds.capacity() == 0));
        }
        let mut all = timeline.take();
        records.iter().for_each(|record| all.add(record));
        assert_eq!(all.tallies[&Operation::Get].seconds.len() as u64, day + 1);
        let done: f64 = all.tenths.iter().map(|tenth| tenth.operations).sum();
        assert!((done - day as f64).abs() < 1e-3, "{done}");
    }
}
