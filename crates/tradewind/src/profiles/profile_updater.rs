//! Updates the profile of a served store with samples from live traffic, like transfers do, so that the next start uses
//! current measurements.
//!
//! A server is mostly idle, and means over idle time are useless. Therefore only busy periods count: those in which
//! every poll, one per second, found requests in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tradewind_model::store_model::{Operation, StoreModel};
use tradewind_layers::Instrumented;

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
    fn poll(&mut self, model: &StoreModel, now: Duration) -> Option<CounterSnapshot> {
        let data_operations = Operation::ALL.into_iter().filter(|operation| operation.direction().is_some());
        if data_operations.map(|operation| model.in_flight(operation)).sum::<u64>() == 0 {
            self.started_at = None;
            return self.start_counters.take();
        }
        let began = *self.started_at.get_or_insert(now);
        match &self.start_counters {
            None if now.saturating_sub(began) >= WARM_UP => {
                self.start_counters = Some(CounterSnapshot::take(model, now));
                None
            }
            Some(tally) if now.saturating_sub(tally.taken_at()) >= MAX_SAMPLE_TIME => {
                self.start_counters.replace(CounterSnapshot::take(model, now))
            }
            _ => None,
        }
    }
}

impl ProfileUpdater {
    /// Polls until `stop`, then records the sample of the current period.
    pub async fn run(self, stop: CancellationToken) {
        let (mut stretch, mut saved_at) = (BusyPeriod::default(), None);
        let store = &self.store;
        let mut look = tokio::time::interval(POLL_INTERVAL);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = stop.cancelled() => break,
            }
            let now = store.now();
            let due = stretch.poll(store.model(), now);
            if let Some(tally) = due
                && saved_at.is_none_or(|saved: Duration| now.saturating_sub(saved) >= MIN_WRITE_INTERVAL)
                && self.update(&tally)
            {
                saved_at = Some(now);
            }
        }
        if let Some(tally) = stretch.start_counters {
            self.update(&tally);
        }
    }

    /// Adds a sample to the profile. Returns true if the file was written.
    fn update(&self, tally: &CounterSnapshot) -> bool {
        let store = &self.store;
        // Writing the file blocks.
        let added = tokio::task::block_in_place(|| {
            self.profiles.add_observed(&format!("{store:?}"), (tally, store.model()), store.now())
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
    use tradewind_model::store_model::RequestOutcome;

    const SECOND: Duration = Duration::from_secs(1);

    /// One second of requests of 100 ms each, with a concurrency of 4.
    fn carry(model: &StoreModel, second: u32) {
        for n in 0..40 {
            let request = model.begin(Operation::Get);
            let end = RequestOutcome::Done { bytes: 2 << 20, service: SECOND / 10 };
            model.end(SECOND * second + SECOND * n / 40, request, end);
        }
    }

    #[test]
    fn look_samples_only_uninterrupted_busy_periods() {
        let (model, mut stretch) = (StoreModel::new(), BusyPeriod::default());
        let mut found = Vec::new();
        for second in 0..60 {
            // Idle from 20 to 30, and now and then from 40 to 60.
            let is_busy = match second {
                20..30 => false,
                40..60 => second % 3 > 0,
                _ => true,
            };
            let underway = is_busy.then(|| {
                carry(&model, second);
                model.begin(Operation::Get)
            });
            if let Some(tally) = stretch.poll(&model, SECOND * second) {
                found.push((second, observed::sample_since(&tally, &model, SECOND * second)));
            }
            if let Some(underway) = underway {
                model.end(SECOND * second, underway, RequestOutcome::Cancelled { waited: SECOND });
            }
        }
        let seconds: Vec<u32> = found.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [20, 42]);
        let (_, sample) = found[0].1.unwrap();
        assert_eq!((sample.point.bytes, sample.point.concurrency), (2 << 20, 4), "{sample:?}");
    }

    #[test]
    fn look_splits_a_long_busy_period() {
        let (model, mut stretch) = (StoreModel::new(), BusyPeriod::default());
        let _always = model.begin(Operation::Put);
        let due = (0..200).filter(|second| stretch.poll(&model, SECOND * *second).is_some());
        assert_eq!(due.collect::<Vec<u32>>(), [64, 124, 184]);
    }
}
