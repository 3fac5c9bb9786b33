//! Updates the profile of a served store with samples from live traffic, like transfers do, so that the next start uses
//! current measurements.
//!
//! A server is mostly idle, and means over idle time are useless. Therefore only busy periods count: those in which
//! every poll, one per second, found requests in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tradewind_layers::Instrumented;
use tradewind_model::store_statistics::{Operation, StoreStatistics};

use super::Profiles;
use super::observed::{CounterSnapshot, WARM_UP};

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A longer busy period is split into samples of this length.
const MAX_SAMPLE_TIME: Duration = Duration::from_secs(60);
/// Minimum interval between two writes of the file.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(300);

/// Updates the profile of a store while it is served.
#[derive(Debug)]
pub struct ProfileUpdater {
    /// The store, whose debug name is that of the profile.
    pub store: Arc<Instrumented>,
    /// All profiles of this user.
    pub profiles: Profiles,
}

/// A period in which every poll found requests in flight.
#[derive(Debug, Default)]
struct BusyPeriod {
    started_at: Option<Duration>,
    /// The counters at the end of the warm-up.
    start_counters: Option<CounterSnapshot>,
}

impl BusyPeriod {
    /// Polls the store. Returns the start counters of a sample that ends now, if any.
    fn poll(&mut self, statistics: &StoreStatistics, now: Duration) -> Option<CounterSnapshot> {
        let data_operations = Operation::ALL.into_iter().filter(|operation| operation.direction().is_some());
        if data_operations.map(|operation| statistics.in_flight(operation)).sum::<u64>() == 0 {
            self.started_at = None;
            return self.start_counters.take();
        }
        let started_at = *self.started_at.get_or_insert(now);
        match &self.start_counters {
            None if now.saturating_sub(started_at) >= WARM_UP => {
                self.start_counters = Some(CounterSnapshot::take(statistics, now));
                None
            }
            Some(snapshot) if now.saturating_sub(snapshot.taken_at()) >= MAX_SAMPLE_TIME => {
                self.start_counters.replace(CounterSnapshot::take(statistics, now))
            }
            _ => None,
        }
    }
}

impl ProfileUpdater {
    /// Polls until `stop`, then records the sample of the current period.
    pub async fn run(self, stop: CancellationToken) {
        let (mut busy_period, mut saved_at) = (BusyPeriod::default(), None);
        let store = &self.store;
        let mut poll_interval = tokio::time::interval(POLL_INTERVAL);
        loop {
            tokio::select! {
                _ = poll_interval.tick() => {}
                () = stop.cancelled() => break,
            }
            let now = store.now();
            if let Some(snapshot) = busy_period.poll(store.statistics(), now)
                && saved_at.is_none_or(|saved: Duration| now.saturating_sub(saved) >= MIN_WRITE_INTERVAL)
                && self.update(&snapshot)
            {
                saved_at = Some(now);
            }
        }
        if let Some(snapshot) = busy_period.start_counters {
            self.update(&snapshot);
        }
    }

    /// Adds a sample to the profile. Returns true if the file was written.
    fn update(&self, snapshot: &CounterSnapshot) -> bool {
        let store = &self.store;
        // Writing the file blocks.
        let added = tokio::task::block_in_place(|| {
            self.profiles.add_observed(&format!("{store:?}"), (snapshot, store.statistics()), store.now())
        });
        added.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot save a sample of the store");
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::observed;
    use tradewind_model::store_statistics::RequestOutcome;

    const SECOND: Duration = Duration::from_secs(1);

    /// One second of requests of 100 ms each, with a concurrency of 4.
    fn record_second(statistics: &StoreStatistics, second: u32) {
        for n in 0..40 {
            let request = statistics.begin(Operation::Get);
            let end = RequestOutcome::Done { bytes: 2 << 20, response_time: SECOND / 10 };
            statistics.end(SECOND * second + SECOND * n / 40, request, end);
        }
    }

    #[test]
    fn poll_samples_only_uninterrupted_busy_periods() {
        let (statistics, mut busy_period) = (StoreStatistics::new(), BusyPeriod::default());
        let mut found = Vec::new();
        for second in 0..60 {
            // Idle from 20 to 30, and now and then from 40 to 60.
            let is_busy = match second {
                20..30 => false,
                40..60 => second % 3 > 0,
                _ => true,
            };
            let in_flight = is_busy.then(|| {
                record_second(&statistics, second);
                statistics.begin(Operation::Get)
            });
            if let Some(snapshot) = busy_period.poll(&statistics, SECOND * second) {
                found.push((second, observed::sample_since(&snapshot, &statistics, SECOND * second)));
            }
            if let Some(in_flight) = in_flight {
                statistics.end(SECOND * second, in_flight, RequestOutcome::Cancelled { waited: SECOND });
            }
        }
        let seconds: Vec<u32> = found.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [20, 42]);
        let (_, sample) = found[0].1.unwrap();
        assert_eq!((sample.point.bytes, sample.point.concurrency), (2 << 20, 4), "{sample:?}");
    }

    #[test]
    fn poll_splits_a_long_busy_period() {
        let (statistics, mut busy_period) = (StoreStatistics::new(), BusyPeriod::default());
        let _always = statistics.begin(Operation::Put);
        let due = (0..200).filter(|second| busy_period.poll(&statistics, SECOND * *second).is_some());
        assert_eq!(due.collect::<Vec<u32>>(), [64, 124, 184]);
    }
}
