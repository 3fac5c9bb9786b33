//! The time series of a load, stored once for all workers: a replay may take a day, and a copy for each of hundreds of
//! workers would need gigabytes. A worker accumulates its current second and flushes it when it comes to another one,
//! which takes the lock once per worker and second. The last second stays in the worker's record.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{LoadRecord, SecondStats, WorkAmount};
use crate::operation::Operation;

/// 100 ms intervals per second.
const INTERVALS_PER_SECOND: usize = 10;

/// The seconds and 100 ms intervals that workers have flushed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<LoadRecord>>);

impl Timeline {
    /// Creates the empty record of a worker.
    pub fn new_record(&self) -> LoadRecord {
        let current_second = CurrentSecond {
            second: 0,
            seconds: Default::default(),
            series: Default::default(),
            timeline: self.clone(),
        };
        LoadRecord { current_second: Some(current_second), ..LoadRecord::default() }
    }

    /// Takes everything that was flushed since the last call.
    pub fn take(&self) -> LoadRecord {
        std::mem::take(&mut self.0.lock())
    }
}

/// The current second of a worker.
#[derive(Debug, Clone)]
pub(super) struct CurrentSecond {
    second: usize,
    /// Statistics by kind of request.
    seconds: [SecondStats; Operation::ALL.len()],
    series: [WorkAmount; INTERVALS_PER_SECOND],
    timeline: Timeline,
}

impl CurrentSecond {
    /// The statistics of a second of the window.
    pub fn second(&mut self, operation: Operation, number: usize) -> &mut SecondStats {
        self.switch_to(number);
        &mut self.seconds[operation as usize]
    }

    /// The work of a 100 ms interval of the window.
    pub fn interval(&mut self, number: usize) -> &mut WorkAmount {
        self.switch_to(number / INTERVALS_PER_SECOND);
        &mut self.series[number % INTERVALS_PER_SECOND]
    }

    /// Flushes the current second and switches to another, possibly an earlier one: a request counts in every second in
    /// which some of its bytes passed.
    fn switch_to(&mut self, second: usize) {
        if second != self.second {
            self.flush();
            self.second = second;
        }
    }

    #[cold]
    fn flush(&mut self) {
        self.add_to(&mut self.timeline.0.lock());
        (self.seconds, self.series) = (Default::default(), Default::default());
    }

    /// Adds the current second to a record.
    pub fn add_to(&self, record: &mut LoadRecord) {
        for (operation, second) in Operation::ALL.into_iter().zip(&self.seconds) {
            if *second != SecondStats::default() {
                record.second(operation, self.second).add(second);
            }
        }
        for (number, interval) in (self.second * INTERVALS_PER_SECOND..).zip(&self.series) {
            if *interval != WorkAmount::default() {
                *record.interval(number) += *interval;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::record::{MeasurementWindow, Payload, RequestTiming};

    const WINDOW: MeasurementWindow =
        MeasurementWindow { begin: Duration::from_secs(2), end: Duration::from_secs(9) };

    /// A request: true for a put, pause since the previous request and duration in milliseconds, and true if it failed.
    type Request = (bool, u64, u64, bool);

    /// Records the consecutive requests of one worker.
    fn record_all(record: &mut LoadRecord, requests: &[Request]) {
        let mut ended = Duration::ZERO;
        for (is_put, pause, duration, fails) in requests {
            let operation = if *is_put { Operation::Put } else { Operation::Get };
            let start = ended + Duration::from_millis(*pause);
            ended = start + Duration::from_millis(*duration);
            if *fails {
                record.record_failure(WINDOW, operation, ended, "busy", "is busy");
            } else {
                let timing = RequestTiming { scheduled: start, first_byte: ended, ended };
                let mut payload = Payload::passed_at(WINDOW, (start + ended) / 2, 400);
                payload.add(WINDOW, ended, 600);
                record.record_success(WINDOW, operation, timing, &payload);
            }
        }
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
            let (timeline, mut separate, mut expected) = (Timeline::default(), LoadRecord::default(), LoadRecord::default());
            for requests in &workers {
                let mut record = timeline.new_record();
                record_all(&mut record, requests);
                separate.add(&record);
                let mut whole = LoadRecord::default();
                record_all(&mut whole, requests);
                expected.add(&whole);
            }
            separate.add(&timeline.take());
            prop_assert_eq!(separate.stats.len(), expected.stats.len());
            for (operation, stats) in &expected.stats {
                let other = &separate.stats[operation];
                prop_assert_eq!(&other.seconds, &stats.seconds);
                prop_assert_eq!((other.operations, other.failure_count()), (stats.operations, stats.failure_count()));
                prop_assert_eq!(&other.latency, &stats.latency);
                prop_assert_eq!(other.passed_bytes, stats.passed_bytes);
            }
            let time = WINDOW.end - WINDOW.begin;
            prop_assert_eq!(separate.series(time), expected.series(time));
            prop_assert!(timeline.take().stats.is_empty());
        }
    }

    #[test]
    fn worker_record_holds_only_the_current_second() {
        let (timeline, day) = (Timeline::default(), 24 * 60 * 60);
        let window = MeasurementWindow { begin: Duration::ZERO, end: Duration::MAX };
        let mut records = [timeline.new_record(), timeline.new_record()];
        for second in 0..day {
            let (start, ended) = (Duration::from_secs(second), Duration::from_millis(second * 1000 + 1500));
            let timing = RequestTiming { scheduled: start, first_byte: ended, ended };
            let payload = Payload::passed_at(window, ended, 1);
            records[usize::from(second % 2 == 0)].record_success(window, Operation::Get, timing, &payload);
        }
        for record in &records {
            assert_eq!(record.series_100ms.capacity(), 0);
            assert!(record.stats.values().all(|stats| stats.seconds.capacity() == 0));
        }
        let mut all = timeline.take();
        records.iter().for_each(|record| all.add(record));
        assert_eq!(all.stats[&Operation::Get].seconds.len() as u64, day + 1);
        let operations: u64 = all.series_100ms.iter().map(|interval| interval.operations).sum();
        assert_eq!(operations, day);
    }
}
