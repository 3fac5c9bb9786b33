//! Contracts of the statistics, checked against exact values.

use super::*;
use proptest::prelude::*;

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn done(
    statistics: &StoreStatistics,
    now: Duration,
    operation: Operation,
    bytes: u64,
    response_time: Duration,
) {
    let request = statistics.begin(operation);
    statistics.record_first_byte(now, &request, bytes, response_time / 2, Duration::ZERO);
    statistics.end(now, request, RequestOutcome::Done { bytes, response_time });
}

fn near(found: Duration, exact: Duration) -> bool {
    found.abs_diff(exact) <= (exact / 16).max(Duration::from_nanos(1100))
}

#[test]
fn memory_is_within_the_documented_bounds() {
    let kinds = |has_size: bool| Operation::ALL.iter().filter(|kind| kind.has_size() == has_size).count();
    let series = kinds(true) * SizeClass::COUNT + kinds(false);
    assert!(size_of::<Series>() <= 12_800, "{}", size_of::<Series>());
    let all = size_of::<StoreStatistics>() + series * size_of::<Series>();
    assert!(all < 1 << 20, "{all}");
}

#[test]
fn requests_are_counted_by_outcome() {
    let (statistics, now) = (StoreStatistics::new(), millis(1));
    for failure in [Failure::Busy, Failure::TimedOut, Failure::TimedOut] {
        statistics.end(now, statistics.begin(Operation::Get), RequestOutcome::Failed(failure));
    }
    statistics.end(now, statistics.begin(Operation::Get), RequestOutcome::Rejected);
    statistics.end(now, statistics.begin(Operation::Get), RequestOutcome::Cancelled { waited: millis(30) });
    done(&statistics, now, Operation::Get, 10, millis(2));
    let outcomes = statistics.outcomes(now, Operation::Get);
    assert_eq!((outcomes.done, outcomes.rejected, outcomes.failed), (1, 1, [1, 0, 2, 0, 0]));
    assert_eq!((outcomes.cancelled, outcomes.cancelled_after), (1, millis(30)));
    // Cancelled requests do not count towards the failure ratio.
    assert_eq!(
        (outcomes.failure_ratio(Failure::TimedOut), outcomes.total_failure_ratio()),
        (Some(0.4), Some(0.6))
    );
    assert_eq!(statistics.total_outcomes(Operation::Get), outcomes);
    assert_eq!(statistics.outcomes(now, Operation::Put).total_failure_ratio(), None);
    assert_eq!(
        statistics.latencies(now, Operation::Get).count(),
        1,
        "only successful requests count towards latency"
    );
}

#[test]
fn window_expires_and_totals_remain() {
    let statistics = StoreStatistics::new();
    done(&statistics, millis(9_999), Operation::Put, 100, millis(7));
    let queued = statistics.begin(Operation::Put);
    statistics.record_first_byte(millis(9_999), &queued, 100, millis(7), millis(3));
    statistics.end(millis(9_999), queued, RequestOutcome::Failed(Failure::Corrupt));
    let at = |now: u64| {
        let times = statistics.latencies(millis(now), Operation::Put);
        let outcomes = statistics.outcomes(millis(now), Operation::Put);
        (times.count(), outcomes.failures(), outcomes.queue_time, times.linear_fit().is_some())
    };
    assert_eq!(at(59_999), (1, 1, millis(3), true));
    assert_eq!(at(60_000), (0, 0, Duration::ZERO, false));
    // Fed more than a window late, a request counts in the totals only.
    done(&statistics, millis(75_000), Operation::Put, 100, millis(7));
    done(&statistics, millis(10_000), Operation::Put, 100, millis(900));
    assert_eq!(at(75_000), (1, 0, Duration::ZERO, true));
    let times = statistics.latencies(millis(75_000), Operation::Put);
    let stats = times.for_size(100).unwrap();
    assert_eq!((stats.response_time_total.count, stats.response_time_total.time), (3, millis(914)));
    assert_eq!(statistics.latest_sample_age(millis(80_000), Operation::Put), Some(millis(5_000)));
    assert_eq!(statistics.latest_sample_age(millis(80_000), Operation::Get), None);
}

#[test]
fn throughput_covers_the_last_5_to_6_seconds() {
    let statistics = StoreStatistics::new();
    for second in 0..20 {
        statistics.record_bytes(millis(second * 1000 + 500), Direction::Read, 1000 * (second + 1));
    }
    // 15,000 to 20,000 over 5.5 s.
    assert!((statistics.throughput(millis(19_500), Direction::Read) - 105_000.0 / 5.5).abs() < 1e-6);
    assert_eq!(statistics.throughput(millis(19_500), Direction::Write), 0.0);
    assert_eq!(statistics.throughput(millis(26_000), Direction::Read), 0.0);
    assert_eq!(statistics.total_bytes(Direction::Read), 210_000);
}

#[test]
fn linear_fit_matches_the_store_despite_outliers() {
    let (statistics, now) = (StoreStatistics::new(), millis(1));
    let time = |bytes: u64| Duration::from_nanos(20_000_000 + bytes * 10);
    for bytes in [4 << 10, 100 << 10, 1 << 20, 8 << 20, 64 << 20] {
        (0..20).for_each(|_| done(&statistics, now, Operation::Get, bytes, time(bytes)));
        // One in twenty hangs.
        done(&statistics, now, Operation::Get, bytes, Duration::from_secs(30));
    }
    let times = statistics.latencies(now, Operation::Get);
    for bytes in [0, 1 << 10, 3 << 20, 64 << 20, 128 << 20] {
        let found = times.linear_fit().unwrap().for_bytes(bytes);
        assert!(found.abs_diff(time(bytes)) < time(bytes) / 8, "{bytes}: {found:?}");
    }
    let late = times.quantile(3 << 20, 0.9).unwrap();
    assert!(late.abs_diff(time(3 << 20)) < time(3 << 20) / 4, "{late:?}");
    let late = times.quantile(8 << 20, 0.95).unwrap();
    assert!(near(late, time(8 << 20)), "1 in 21 hangs: {late:?}");
    assert_eq!(times.quantile(8 << 20, 0.99), None, "21 samples are too few for p99");
}

#[test]
fn fit_error_is_relative_for_all_sizes() {
    let (statistics, now) = (StoreStatistics::new(), millis(1));
    // Not linear: the middle size takes 10 % more than a line through the others.
    for (bytes, micros) in [(4 << 10, 1_000), (1 << 20, 12_000), (256 << 20, 2_600_000)] {
        (0..20).for_each(|_| done(&statistics, now, Operation::Get, bytes, Duration::from_micros(micros)));
    }
    let times = statistics.latencies(now, Operation::Get);
    for (bytes, micros) in [(4 << 10, 1_000), (1 << 20, 12_000), (256 << 20, 2_600_000)] {
        let (found, exact) = (times.linear_fit().unwrap().for_bytes(bytes), Duration::from_micros(micros));
        assert!(found.abs_diff(exact) < exact / 5, "{bytes}: {found:?} is not {exact:?}");
    }
    assert!(times.quantile(4 << 20, 0.9).is_some(), "two classes away");
    assert_eq!(times.quantile(16 << 20, 0.9), None, "four classes away from both");
}

#[test]
fn first_byte_gives_the_intercept_for_equal_sizes() {
    let (statistics, now) = (StoreStatistics::new(), millis(1));
    for _ in 0..20 {
        done(&statistics, now, Operation::Part, 8 << 20, millis(200));
    }
    let line = statistics.latencies(now, Operation::Part).linear_fit().unwrap();
    assert!(near(line.base, millis(100)) && near(line.for_bytes(8 << 20), millis(200)), "{line:?}");
    // The slope is never negative.
    (0..20).for_each(|_| done(&statistics, now, Operation::Part, 1 << 10, millis(400)));
    let line = statistics.latencies(now, Operation::Part).linear_fit().unwrap();
    assert!(line.nanos_per_byte == 0.0 && line.base > millis(180), "{line:?}");
    // The intercept is never negative.
    let statistics = StoreStatistics::new();
    for (bytes, time) in [(1 << 20, 1), (8 << 20, 100)] {
        done(&statistics, now, Operation::Get, bytes, millis(time));
    }
    let line = statistics.latencies(now, Operation::Get).linear_fit().unwrap();
    assert!(line.base.is_zero() && line.nanos_per_byte > 0.0, "{line:?}");
}

#[test]
fn no_quantile_with_too_few_samples() {
    let statistics = StoreStatistics::new();
    for n in 1..=16 {
        assert_eq!(statistics.latencies(millis(1), Operation::Get).quantile(1, 0.5), None, "{n}");
        done(&statistics, millis(1), Operation::Get, 1, millis(n));
    }
    assert!(statistics.latencies(millis(1), Operation::Get).quantile(1, 0.5).is_some());
    assert_eq!(statistics.latencies(millis(1), Operation::Get).quantile(1, 0.95), None);
}

/// A request: time in milliseconds (up to 100 s), size and latency in nanoseconds.
type Sample = (u64, u64, u64);

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let size = (0_u32..30, any::<u64>()).prop_map(|(bits, low)| low & ((1 << bits) - 1));
    prop::collection::vec((0_u64..100_000, size, 1_000_u64..10_000_000_000), 1..200)
}

fn feed<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> StoreStatistics {
    let statistics = StoreStatistics::new();
    for &(at, bytes, nanos) in samples {
        done(&statistics, millis(at), Operation::Get, bytes, Duration::from_nanos(nanos));
        statistics.record_bytes(millis(at), Direction::Read, bytes);
    }
    statistics
}

proptest! {
    #[test]
    fn quantiles_match_the_samples_of_the_window(samples in samples(), share in 0.0..=1.0_f64) {
        let (statistics, now) = (feed(&samples), millis(100_000));
        let times = statistics.latencies(now, Operation::Get);
        for sizes in SizeClass::all() {
            // Slices 5 to 10, of which the last has just started.
            let is_in = |(at, bytes, _): &&Sample| *at >= 50_000 && SizeClass::for_bytes(*bytes) == sizes;
            let mut exact: Vec<u64> = samples.iter().filter(is_in).map(|(.., nanos)| *nanos).collect();
            let bytes: u64 = samples.iter().filter(is_in).map(|(_, bytes, _)| *bytes).sum();
            exact.sort_unstable();
            let stats = times.classes().iter().find(|stats| stats.size_class == sizes);
            let Some(stats) = stats.filter(|stats| stats.response_time.count() > 0) else {
                prop_assert!(exact.is_empty());
                continue;
            };
            prop_assert_eq!(stats.response_time.count(), exact.len() as u64);
            prop_assert_eq!(stats.mean_bytes, bytes / exact.len() as u64);
            let exact = exact[((exact.len() as f64 * share).ceil() as usize).max(1) - 1];
            let (response_time, first) = (stats.response_time.quantile(share), stats.first_byte.quantile(share));
            prop_assert!(near(response_time.unwrap(), Duration::from_nanos(exact)));
            prop_assert!(near(first.unwrap(), Duration::from_nanos(exact) / 2));
        }
    }

    #[test]
    fn order_of_samples_does_not_matter(
        (samples, shuffled) in samples().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        now in 0_u64..200_000,
    ) {
        let (one, other, now) = (feed(&samples), feed(&shuffled), millis(now.max(100_000)));
        prop_assert_eq!(one.latencies(now, Operation::Get), other.latencies(now, Operation::Get));
        prop_assert_eq!(one.outcomes(now, Operation::Get), other.outcomes(now, Operation::Get));
        prop_assert_eq!(one.throughput(now, Direction::Read), other.throughput(now, Direction::Read));
        let ages = [&one, &other].map(|statistics| statistics.latest_sample_age(now, Operation::Get).unwrap());
        prop_assert!(ages[0].abs_diff(ages[1]) < millis(1));
    }

    #[test]
    fn latency_grows_with_size_and_quantile(
        samples in samples(),
        bytes in 0_u64..1 << 30,
        a in 0.0..1.0_f64,
        b in 0.0..1.0_f64,
    ) {
        let statistics = feed(&samples);
        let times = statistics.latencies(millis(100_000), Operation::Get);
        if let Some(line) = times.linear_fit() {
            prop_assert!(line.for_bytes(bytes) <= line.for_bytes(bytes * 2), "{line:?}");
            prop_assert!(line.nanos_per_byte.is_finite());
            // Quantiles are compared within one size class only.
            if let (Some(less), Some(more)) = (times.quantile(bytes, a.min(b)), times.quantile(bytes, a.max(b)))
                && times.classes().iter().filter(|stats| stats.response_time.count() > 0).count() == 1
            {
                prop_assert!(less <= more);
            }
        } else {
            prop_assert_eq!(times.count(), 0);
        }
    }

    /// A store slower by a constant factor has higher medians. If its latencies are near a line, the fit is higher,
    /// too, at the observed sizes; far beyond them, rounding may decide.
    #[test]
    fn slower_store_has_higher_estimates(
        samples in samples(),
        base in 100_000_u64..100_000_000,
        hundredths_per_byte in 0_u64..10_000,
        factor in 2_u64..10,
    ) {
        let now = millis(100_000);
        let slower = |(at, bytes, nanos): &Sample| (*at, *bytes, nanos * factor);
        let both = |samples: &[Sample]| {
            let slow: Vec<Sample> = samples.iter().map(slower).collect();
            [feed(samples), feed(&slow)].map(|statistics| statistics.latencies(now, Operation::Get))
        };
        let [fast, slow] = both(&samples);
        for (fast, slow) in fast.classes().iter().zip(slow.classes()) {
            prop_assert!(slow.response_time.median() > fast.response_time.median() || fast.response_time.count() == 0);
        }
        // Latencies within 20 % of the linear model.
        let spread = |nanos: u64, by: u64| nanos * (80 + by % 40) / 100;
        let line = |(at, bytes, by): &Sample| (*at, *bytes, spread(base + bytes * hundredths_per_byte / 100, *by));
        let [fast, slow] = both(&samples.iter().map(line).collect::<Vec<Sample>>());
        for stats in fast.classes().iter().filter(|stats| stats.response_time.count() > 0) {
            let [fast, slow] = [&fast, &slow].map(|times| times.linear_fit().unwrap().for_bytes(stats.mean_bytes));
            prop_assert!(slow > fast, "{} bytes: {slow:?} {fast:?}", stats.mean_bytes);
        }
    }

    #[test]
    fn in_flight_counts_started_minus_ended(steps in prop::collection::vec(any::<(bool, usize)>(), 0..200)) {
        let (statistics, mut open) = (StoreStatistics::new(), Vec::new());
        for (begins, which) in steps {
            if begins || open.is_empty() {
                open.push(statistics.begin(Operation::ALL[which % Operation::ALL.len()]));
            } else {
                let request = open.swap_remove(which % open.len());
                statistics.end(millis(1), request, RequestOutcome::Rejected);
            }
            prop_assert_eq!(statistics.total_in_flight(), open.len() as u64);
        }
    }
}

/// Sixteen threads record requests, one reads the statistics.
#[test]
fn concurrent_updates_lose_no_request() {
    const THREADS: u64 = 16;
    const EACH: u64 = 2_000;
    let statistics = StoreStatistics::new();
    let fed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while fed.load(Ordering::Acquire) < THREADS {
                assert!(statistics.total_in_flight() <= THREADS);
                std::thread::yield_now();
            }
        });
        for thread in 0..THREADS {
            let (statistics, fed) = (&statistics, &fed);
            scope.spawn(move || {
                for n in 0..EACH {
                    // All threads reach a new slice at about the same time.
                    let now = millis(n * 20 + thread);
                    done(statistics, now, Operation::Get, thread << 12, Duration::from_micros(n + 1));
                    statistics.record_bytes(now, Direction::Read, thread << 12);
                }
                fed.fetch_add(1, Ordering::Release);
            });
        }
    });
    let now = millis(EACH * 20);
    assert_eq!(statistics.latencies(now, Operation::Get).count(), THREADS * EACH);
    assert_eq!(statistics.outcomes(now, Operation::Get).done, THREADS * EACH);
    assert_eq!(statistics.total_in_flight(), 0);
}

/// Run with optimisation:
/// `cargo test -p tradewind-model --config profile.test.opt-level=3 -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_request() {
    let cost = |threads: u64, each: u64| {
        let statistics = StoreStatistics::new();
        let started = std::time::Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let statistics = &statistics;
                scope.spawn(move || {
                    for n in 0..each {
                        let (now, time) =
                            (Duration::from_micros(n), Duration::from_nanos(20_000 + n % 50_000));
                        done(statistics, now, Operation::Get, 4096, time + Duration::from_nanos(thread));
                        statistics.record_bytes(now, Direction::Read, 4096);
                    }
                });
            }
        });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64).min(threads);
        started.elapsed().as_nanos() as f64 * cores as f64 / (each * threads) as f64
    };
    for threads in [1, 2, 16] {
        println!(
            "{threads} threads that do nothing else: {:.0} ns of CPU time per request",
            cost(threads, 1_000_000)
        );
    }
    let statistics = feed(&[(1, 4096, 20_000), (2, 8 << 20, 9_000_000)]);
    let started = std::time::Instant::now();
    (0..1000).for_each(|_| assert!(statistics.latencies(millis(5), Operation::Get).count() == 2));
    println!(
        "snapshot of the latencies of an operation: {:.0} ns",
        started.elapsed().as_nanos() as f64 / 1000.0
    );
}
