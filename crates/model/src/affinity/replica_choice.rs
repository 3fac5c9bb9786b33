//! The replica that serves a read, chosen for each read from what the client itself has seen of the stores.
//!
//! The choice is the store with the shortest expected wait: `(reads in flight + 1) × service time`. The service time
//! is an average over completions: the time from one completion to the next, or from the first read that an idle store
//! received. It contains what the store does for other clients, so that clients share a store without knowing of each
//! other.
//!
//! - **A failing store is not a fast one.** After an error a store is chosen only if all replicas fail, and by probes.
//!   Each success halves its errors. While it fails, it receives at most one of [`MAX_SKIPPED_READS`] reads of its
//!   objects.
//! - **A silent store is not a fast one.** A store that completes nothing counts as slower and slower.
//! - **A new store is neither.** Until it has completed reads, it counts as the mean of its peers.
//! - **A store that recovers is found.** The more reads a replica was skipped for, the better it counts: one that
//!   seems four times as slow receives one of a hundred.
//! - **Clients do not herd.** Each chooses among the replicas of the object only, and by its own reads in flight.
//!   Among stores that are nearly equal, all are chosen. Of equal ones, a random number decides.

use std::time::Duration;

/// An index into the stores of a [`ReplicaChooser`]: 0 for the first.
pub type StoreIndex = usize;

/// Reads in a row for which a failing replica is skipped. Then it receives one, as a probe.
pub const MAX_SKIPPED_READS: u32 = 256;
/// Reads for which a replica is skipped after a single error. It doubles with every further one, up to
/// [`MAX_SKIPPED_READS`].
const MIN_SKIPPED_READS: u32 = 8;
/// A replica counts as faster by this share of its expected wait for each read for which it was skipped.
const SKIPPED_BONUS: f64 = 0.03;
/// Minimum weight of a completion in the average.
const MIN_COMPLETION_WEIGHT: f64 = 1.0 / 12.0;
/// Weight of a store's first completion, against the mean of its peers.
const FIRST_COMPLETION_WEIGHT: f64 = 0.5;
/// Time after which an average weighs as much as the next completion.
const AVERAGE_HALF_LIFE_SECONDS: f64 = 10.0;
/// Lower limit of a service time: completions that a clock cannot tell apart do not make a store infinitely fast.
const MIN_SERVICE_SECONDS: f64 = 1e-6;
/// A store that has completed nothing for this many of its service times counts as slower.
const PATIENCE: f64 = 4.0;

/// The statistics of one client, and its choices by them.
///
/// The caller reports the end of every read that [`Self::choose`] assigned, by exactly one of [`Self::completed`],
/// [`Self::failed`] and [`Self::cancelled`]. Times are those of one clock that never runs backwards.
///
/// All methods panic for a store that is not among the first [`Self::store_count`]. None of them allocates, except
/// [`Self::add_store`].
#[derive(Debug, Clone, Default)]
pub struct ReplicaChooser {
    stores: Vec<StoreState>,
    /// Sum of the known service times, in seconds.
    known_seconds: f64,
    known_stores: u32,
}

#[derive(Debug, Clone, Default)]
struct StoreState {
    in_flight: u32,
    /// Average over completions; `None` before the first one.
    service_seconds: Option<f64>,
    /// The last completion, or the start of the first read after the store was idle.
    progress_at: Duration,
    /// The last completion.
    completed_at: Option<Duration>,
    /// Recent errors: halved by each success.
    errors: u32,
    /// Reads in a row for which it was a replica and another one was chosen.
    skipped: u32,
}

impl StoreState {
    /// Returns true if it fails, and was skipped often enough to be tried again.
    fn is_due_for_a_probe(&self) -> bool {
        let doublings = self.errors.saturating_sub(1).min(MAX_SKIPPED_READS.ilog2());
        let limit = (MIN_SKIPPED_READS << doublings).min(MAX_SKIPPED_READS);
        self.errors > 0 && self.skipped >= limit
    }

    /// Takes a completion into the average. `initial` is the service time of a store without any.
    fn update_service_seconds(&mut self, now: Duration, initial: Option<f64>) -> f64 {
        let sample = now.saturating_sub(self.progress_at).as_secs_f64();
        let weight = self.completed_at.map_or(FIRST_COMPLETION_WEIGHT, |last| {
            let age = now.saturating_sub(last).as_secs_f64();
            (age / (age + AVERAGE_HALF_LIFE_SECONDS)).max(MIN_COMPLETION_WEIGHT)
        });
        let before = self.service_seconds.or(initial).unwrap_or(sample);
        let service = before + (sample - before) * weight;
        self.service_seconds = Some(service);
        self.progress_at = now;
        self.completed_at = Some(now);
        service
    }
}

impl ReplicaChooser {
    /// A chooser that knows nothing about this number of stores.
    pub fn new(store_count: usize) -> Self {
        Self { stores: vec![StoreState::default(); store_count], ..Self::default() }
    }

    /// Number of stores.
    pub fn store_count(&self) -> usize {
        self.stores.len()
    }

    /// Adds a store and returns its index.
    pub fn add_store(&mut self) -> StoreIndex {
        self.stores.push(StoreState::default());
        self.stores.len() - 1
    }

    /// Chooses one of the replicas of an object for a read that starts now, and counts it as in flight. `None` without
    /// replicas. `random` is uniformly distributed. Takes time in proportion to the number of replicas.
    pub fn choose(&mut self, now: Duration, replicas: &[StoreIndex], random: u64) -> Option<StoreIndex> {
        let store = self.probe(replicas).or_else(|| self.best(now, replicas, random))?;
        for replica in replicas {
            let state = &mut self.stores[*replica];
            state.skipped = state.skipped.saturating_add(1);
        }
        let state = &mut self.stores[store];
        state.skipped = 0;
        if state.in_flight == 0 {
            state.progress_at = now;
        }
        state.in_flight += 1;
        Some(store)
    }

    /// A read succeeded.
    pub fn completed(&mut self, now: Duration, store: StoreIndex) {
        let mean = self.mean_service_seconds();
        let state = &mut self.stores[store];
        let before = state.service_seconds;
        let service = state.update_service_seconds(now, mean);
        state.errors /= 2;
        state.in_flight = state.in_flight.saturating_sub(1);
        self.known_seconds += service - before.unwrap_or(0.0);
        self.known_stores += u32::from(before.is_none());
    }

    /// A read failed for a reason that lies in the store: an error or a timeout. An object that does not exist is not
    /// one: that is a success.
    pub fn failed(&mut self, store: StoreIndex) {
        let state = &mut self.stores[store];
        state.errors = state.errors.saturating_add(1);
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// A read was cancelled by its client. It says nothing about the store.
    pub fn cancelled(&mut self, store: StoreIndex) {
        let state = &mut self.stores[store];
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// Seconds until a read that starts now is expected to complete at this store, errors apart. Before any completion
    /// of any store, a number that grows with the reads in flight.
    pub fn expected_seconds(&self, now: Duration, store: StoreIndex) -> f64 {
        let state = &self.stores[store];
        let mut service = state.service_seconds.or_else(|| self.mean_service_seconds()).unwrap_or(1.0);
        if state.in_flight > 0 {
            service = service.max(now.saturating_sub(state.progress_at).as_secs_f64() / PATIENCE);
        }
        (f64::from(state.in_flight) + 1.0) * service.max(MIN_SERVICE_SECONDS)
    }

    fn mean_service_seconds(&self) -> Option<f64> {
        (self.known_stores > 0).then(|| self.known_seconds.max(0.0) / f64::from(self.known_stores))
    }

    fn probe(&self, replicas: &[StoreIndex]) -> Option<StoreIndex> {
        replicas.iter().copied().find(|store| self.stores[*store].is_due_for_a_probe())
    }

    /// The replica with the fewest errors, and of those the one with the shortest expected wait.
    fn best(&self, now: Duration, replicas: &[StoreIndex], random: u64) -> Option<StoreIndex> {
        let start = usize::try_from(random % replicas.len().max(1) as u64).unwrap_or(0);
        let (before, after) = replicas.split_at(start);
        // Of equal ones the first counts, in an order that starts anywhere.
        after.iter().chain(before).copied().min_by(|a, b| {
            let errors = self.stores[*a].errors.cmp(&self.stores[*b].errors);
            errors.then_with(|| self.score(now, *a).total_cmp(&self.score(now, *b)))
        })
    }

    /// The lower, the better.
    fn score(&self, now: Duration, store: StoreIndex) -> f64 {
        let bonus = SKIPPED_BONUS * f64::from(self.stores[store].skipped);
        self.expected_seconds(now, store) / (1.0 + bonus)
    }
}

#[cfg(test)]
mod tests;
