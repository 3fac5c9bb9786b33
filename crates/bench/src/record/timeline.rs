//! How a load goes from second to second, kept once for all of its workers: a replay may take a day, and hundreds of workers
//! that kept all of it each would hold gigabytes. A worker has the second that it is in, which it hands over when it comes to
//! another one: that is a lock for each worker and second. What it has at its end comes with its record.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Amount, Record, Second};
use crate::operation::Operation;

/// Tenths of a second.
const TENTHS: usize = 10;

/// The seconds and tenths that workers have handed over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<Record>>);

impl Timeline {
    /// That of one more worker, who has seen nothing yet.
    pub fn record(&self) -> Record {
        let present = Present {
            second: 0,
            seconds: Default::default(),
            tenths: Default::default(),
            timeline: self.clone(),
        };
        Record { present: Some(present), ..Record::default() }
    }

    /// What was handed over, and not taken yet.
    pub fn take(&self) -> Record {
        std::mem::take(&mut self.0.lock())
    }
}

/// The second that a worker is in.
#[derive(Debug, Clone)]
pub(super) struct Present {
    second: usize,
    /// Of each kind of request.
    seconds: [Second; Operation::ALL.len()],
    tenths: [Amount; TENTHS],
    timeline: Timeline,
}

impl Present {
    /// A second of the window.
    pub fn second(&mut self, operation: Operation, number: usize) -> &mut Second {
        self.turn_to(number);
        &mut self.seconds[operation as usize]
    }

    /// A tenth of a second of the window.
    pub fn tenth(&mut self, number: usize) -> &mut Amount {
        self.turn_to(number / TENTHS);
        &mut self.tenths[number % TENTHS]
    }

    /// It may be an earlier one: a request counts in each that it was under way in.
    fn turn_to(&mut self, second: usize) {
        if second != self.second {
            self.hand_over();
            self.second = second;
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        self.add_to(&mut self.timeline.0.lock());
        (self.seconds, self.tenths) = (Default::default(), Default::default());
    }

    /// Adds what was seen in this second.
    pub fn add_to(&self, record: &mut Record) {
        for (operation, second) in Operation::ALL.into_iter().zip(&self.seconds) {
            if *second != Second::default() {
                record.second(operation, self.second).add(second);
            }
        }
        for (number, tenth) in (self.second * TENTHS..).zip(&self.tenths) {
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

    /// A request: kind, how long it came after the one before, how long it took in milliseconds, and whether it failed.
    type Asked = (bool, u64, u64, bool);

    /// What a worker sees that asks one behind the other.
    fn asked(record: &mut Record, requests: &[Asked]) {
        let mut at = Duration::ZERO;
        for (is_put, pause, took, fails) in requests {
            let operation = if *is_put { Operation::Put } else { Operation::Get };
            let begun = at + Duration::from_millis(*pause);
            at = begun + Duration::from_millis(*took);
            if *fails {
                record.failure(WINDOW, operation, at, "busy", "said so");
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
        /// However long requests are and whichever second they end in, all is there that one record of them would have.
        #[test]
        fn what_was_handed_over_and_what_was_left_is_all(
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
                asked(&mut mine, requests);
                apart.add(&mine);
                let mut whole = Record::default();
                asked(&mut whole, requests);
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
    fn a_worker_holds_a_second_however_long_it_works() {
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
