//! Adds samples from transfers to the profile of a tuned store, so that the next transfer uses current measurements.

use std::time::Duration;

use tradewind_model::store_statistics::{Direction, Operation, SizeClass, StoreStatistics, Total};
use tradewind_model::tune::{OperatingPoint, Sample, TailLatency, transfer_samples};

use super::{Profile, Profiles, host, read_profile, this_machine};

/// Warm-up: until then, connections are new and congestion windows are still opening.
pub const WARM_UP: Duration = Duration::from_secs(4);
/// Minimum duration of a sample.
const MIN_SAMPLE_TIME: Duration = Duration::from_secs(6);
/// Minimum number of requests of a sample, per concurrent request.
const MIN_ROUNDS: f64 = 10.0;
/// Minimum share of one operation and size class in the total request time. Below that, the traffic is a mixture that
/// characterizes neither.
const MIN_DOMINANT_SHARE: f64 = 0.9;
/// Relative error of a sample: other traffic may have shared the link, and files were opened in between.
const RELATIVE_ERROR: f64 = 0.1;
/// Minimum number of requests for tail latencies.
const MIN_TAIL_REQUESTS: u64 = 100;

/// A snapshot of a store's request counters and times.
#[derive(Debug, Clone)]
pub struct CounterSnapshot {
    taken_at: Duration,
    /// The total number and time of requests by operation and size class.
    totals: Vec<(Operation, SizeClass, Total)>,
    /// Number of failed requests of each operation, in the order of [`Operation::ALL`].
    failures: Vec<u64>,
}

impl CounterSnapshot {
    /// Takes a snapshot at the time `now`.
    #[must_use]
    pub fn take(statistics: &StoreStatistics, now: Duration) -> Self {
        let data_operations = Operation::ALL.into_iter().filter(|operation| operation.direction().is_some());
        let totals = data_operations.flat_map(|operation| {
            let times = statistics.latencies(now, operation);
            times
                .classes()
                .iter()
                .map(|class| (operation, class.size_class, class.response_time_total))
                .collect::<Vec<_>>()
        });
        let failures =
            Operation::ALL.into_iter().map(|operation| statistics.total_outcomes(operation).failures());
        Self { taken_at: now, totals: totals.collect(), failures: failures.collect() }
    }

    /// The time of the snapshot.
    #[must_use]
    pub const fn taken_at(&self) -> Duration {
        self.taken_at
    }

    /// Number of failed requests of an operation.
    fn failures(&self, operation: Operation) -> u64 {
        let index = Operation::ALL.into_iter().position(|kind| kind == operation);
        index.and_then(|index| self.failures.get(index).copied()).unwrap_or_default()
    }

    /// The total of an operation and size class.
    fn total_of(&self, operation: Operation, size_class: SizeClass) -> Total {
        let mut totals = self.totals.iter();
        let entry = totals.find(|(other, class, _)| (*other, *class) == (operation, size_class));
        entry.map(|(.., total)| *total).unwrap_or_default()
    }
}

/// Computes a sample of the requests since a snapshot. `None` if the time or the number of requests is too small, if
/// the traffic is a mixture of operations or size classes, or if a request failed. The mean concurrency is the sum of
/// the request times divided by the elapsed time (Little 1961). Mean size and tail are those of the last minute: there
/// are no histograms since the start.
#[must_use]
pub fn sample_since(
    snapshot: &CounterSnapshot,
    statistics: &StoreStatistics,
    now: Duration,
) -> Option<(Direction, Sample)> {
    let elapsed =
        now.checked_sub(snapshot.taken_at).filter(|elapsed| *elapsed >= MIN_SAMPLE_TIME)?.as_secs_f64();
    let (mut total_time, mut dominant) = (0.0, None::<(f64, Operation, SizeClass, u64)>);
    for (operation, size_class, total) in CounterSnapshot::take(statistics, now).totals {
        let before = snapshot.total_of(operation, size_class);
        let time = total.time.saturating_sub(before.time).as_secs_f64();
        total_time += time;
        if dominant.is_none_or(|dominant| time > dominant.0) {
            dominant = Some((time, operation, size_class, total.count.saturating_sub(before.count)));
        }
    }
    let (time, operation, size_class, count) = dominant?;
    // Only failures since the snapshot count: a server may have run for days.
    if statistics.total_outcomes(operation).failures() > snapshot.failures(operation)
        || time < total_time * MIN_DOMINANT_SHARE
    {
        return None;
    }
    let concurrency = (time / elapsed).round().max(1.0);
    if (count as f64) < MIN_ROUNDS * concurrency {
        return None;
    }
    let times = statistics.latencies(now, operation);
    let class = times.classes().iter().find(|class| class.size_class == size_class)?;
    let [p95, p99] =
        [0.95, 0.99].map(|share| class.response_time.quantile(share).map(|time| time.as_secs_f64()));
    let tail = p95.zip(p99).map(|(p95, p99)| TailLatency { p95, p99 });
    let sample = Sample {
        point: OperatingPoint { bytes: class.mean_bytes.max(1), concurrency: concurrency as usize },
        latency: time / count as f64,
        relative_error: RELATIVE_ERROR,
        tail: tail.filter(|_| count >= MIN_TAIL_REQUESTS),
        from_transfer: true,
    };
    Some((operation.direction()?, sample))
}

impl Profiles {
    /// Adds a sample of the requests since a snapshot to the store's profile. Returns true if the profile was changed.
    /// A store that was never tuned on this client gets no profile, because one sample contains too little information
    /// about other sizes. A file with ignored parts is not changed.
    pub fn add_observed(
        &self,
        store: &str,
        (snapshot, statistics): (&CounterSnapshot, &StoreStatistics),
        now: Duration,
    ) -> std::io::Result<bool> {
        let Some((direction, sample)) = sample_since(snapshot, statistics, now) else { return Ok(false) };
        let this_client = this_machine::client(host(store), this_machine::cpus());
        if !self.has_any() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        // Rewriting a file with ignored parts would delete them.
        let profile = read_profile(self.path(store))
            .filter(|saved| saved.problems.is_empty())
            .map(|saved| saved.profile);
        let is_usable = |profile: &Profile| profile.store == store && profile.is_measured_on(&this_client);
        let Some(mut profile) = profile.filter(is_usable) else { return Ok(false) };
        let samples = match direction {
            Direction::Write => &mut profile.upload,
            Direction::Read => &mut profile.download,
        };
        if samples.is_empty() {
            return Ok(false);
        }
        transfer_samples::add_transfer_sample(samples, sample);
        self.write(&profile).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::store_statistics::RequestOutcome;

    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    /// Records back-to-back requests with the given concurrency in a range of seconds.
    fn record_requests(
        statistics: &StoreStatistics,
        operation: Operation,
        (bytes, concurrency): (u64, u64),
        (from, to): (u64, u64),
    ) {
        for n in from * 20..to * 20 {
            for _ in 0..concurrency {
                let request = statistics.begin(operation);
                let end = RequestOutcome::Done { bytes, response_time: STEP };
                statistics.end(STEP * u32::try_from(n).unwrap(), request, end);
            }
        }
    }

    const AT: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(14)];

    #[test]
    fn sample_since_computes_size_concurrency_and_latency() {
        let statistics = StoreStatistics::new();
        record_requests(&statistics, Operation::Get, (64 << 10, 1), (0, 4));
        let snapshot = CounterSnapshot::take(&statistics, AT[0]);
        record_requests(&statistics, Operation::Get, (64 << 10, 12), (4, 14));
        let (direction, sample) = sample_since(&snapshot, &statistics, AT[1]).unwrap();
        assert_eq!(
            (direction, sample.point),
            (Direction::Read, OperatingPoint { bytes: 64 << 10, concurrency: 12 })
        );
        assert!((sample.latency - 0.05).abs() < 1e-6 && sample.tail.is_some(), "{sample:?}");
        assert!(
            sample_since(&snapshot, &statistics, Duration::from_secs(5)).is_none(),
            "the sample is too short"
        );
    }

    #[test]
    fn add_observed_updates_a_valid_profile_only() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().to_owned() };
        let (point, tail) = (OperatingPoint { bytes: 64 << 10, concurrency: 4 }, None);
        let sample = Sample { point, latency: 0.01, relative_error: 0.02, tail, from_transfer: false };
        let profile = Profile {
            store: "S3Store(there)".to_owned(),
            cpus: this_machine::cpus(),
            download: vec![sample],
            ..Profile::default()
        };
        let path = profiles.save(&profile).unwrap();
        let statistics = StoreStatistics::new();
        record_requests(&statistics, Operation::Get, (64 << 10, 4), (0, 4));
        let snapshot = CounterSnapshot::take(&statistics, AT[0]);
        record_requests(&statistics, Operation::Get, (64 << 10, 12), (4, 14));
        let add = |store: &str| profiles.add_observed(store, (&snapshot, &statistics), AT[1]).unwrap();
        assert!(add(&profile.store) && !add("S3Store(elsewhere)"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("from_transfer = true"), "{text}");
        let broken = text.replacen("concurrency = 4", "concurrency = \"many\"", 1);
        std::fs::write(&path, &broken).unwrap();
        assert!(!add(&profile.store));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        // A failed save leaves no temporary file.
        let file = Profiles { directory: path };
        assert!(file.save(&profile).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Commands that end at the same time update one profile.
    #[test]
    fn concurrent_add_observed_calls_keep_all_samples() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().to_owned() };
        let point = OperatingPoint { bytes: 64 << 10, concurrency: 4 };
        let sample = Sample { point, latency: 0.01, relative_error: 0.02, tail: None, from_transfer: false };
        let store = "S3Store(there)".to_owned();
        let profile =
            Profile { store, cpus: this_machine::cpus(), download: vec![sample], ..Profile::default() };
        for _ in 0..20 {
            profiles.save(&profile).unwrap();
            let one = |bytes| {
                let statistics = StoreStatistics::new();
                let snapshot = CounterSnapshot::take(&statistics, AT[0]);
                record_requests(&statistics, Operation::Get, (bytes, 12), (4, 14));
                profiles.add_observed(&profile.store, (&snapshot, &statistics), AT[1]).unwrap()
            };
            std::thread::scope(|scope| {
                let all = [1 << 10, 32 << 10, 1 << 20, 8 << 20].map(|bytes| scope.spawn(move || one(bytes)));
                assert!(all.into_iter().all(|each| each.join().unwrap()));
            });
            assert_eq!(profiles.load(&profile.store).unwrap().download.len(), 5);
        }
    }

    #[test]
    fn sample_since_is_none_for_a_mixture_or_failures() {
        let both = StoreStatistics::new();
        let snapshot = CounterSnapshot::take(&both, AT[0]);
        record_requests(&both, Operation::Get, (64 << 10, 4), (4, 14));
        record_requests(&both, Operation::Put, (64 << 10, 4), (4, 14));
        assert!(sample_since(&snapshot, &both, AT[1]).is_none());
        let failing = StoreStatistics::new();
        record_requests(&failing, Operation::Get, (64 << 10, 4), (4, 14));
        let request = failing.begin(Operation::Get);
        failing.end(AT[1], request, RequestOutcome::Failed(tradewind_model::store_statistics::Failure::Busy));
        assert!(sample_since(&snapshot, &failing, AT[1]).is_none());
        assert!(sample_since(&snapshot, &StoreStatistics::new(), AT[1]).is_none());
    }
}
