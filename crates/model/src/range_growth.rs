//! Growth of the ranges of one download where the RTT is short and throughput high.
//!
//! A request costs client and server a fixed time. At a short RTT the bandwidth-delay product is small, so that a few
//! connections fill the link (Hou 2017, section 4.1.1: beyond the knee, more requests only cost). Fewer and larger
//! ranges then cost less. Whether few connections do fill the link is not known in advance: a store may limit each of
//! them. So ranges double step by step, and a step is undone if throughput falls.
//!
//! The bytes in flight stay within the bound of the [`Plan`]: the concurrency falls as ranges grow. Memory does not
//! depend on the size of a range.

use std::time::Duration;

use crate::plan::Plan;

/// Maximum RTT at which ranges grow. Three connections with windows of 4 MiB still sustain 1.2 GB/s.
const MAX_RTT: Duration = Duration::from_millis(10);
/// Maximum requests per second of one object; with more, its ranges grow. At 2 ms of CPU time per request, as MinIO
/// needs, they cost 3 % of a CPU.
const MAX_REQUESTS_PER_SECOND: f64 = 16.0;
/// Bytes over which the throughput of a range size is measured.
const MEASURED_BYTES: u64 = 64 << 20;
/// Fraction of the best throughput that larger ranges must sustain. With a limit per connection, each step halves it. Over
/// so few bytes, equal throughputs differ by up to 25 % on a busy machine.
const MIN_THROUGHPUT_RATIO: f64 = 0.75;
/// Like [`MIN_THROUGHPUT_RATIO`], until the first larger range has arrived: a step that clearly fails ends early.
const MIN_EARLY_THROUGHPUT_RATIO: f64 = 0.65;
/// Number of failed steps after which the size is final. A single one may be due to other load.
const MAX_FAILED_STEPS: u32 = 2;

/// The arrival of a range. Bytes of other ranges count as they arrive: ranges that start together also end together, so
/// that completed ranges alone say little about throughput.
#[derive(Debug, Clone, Copy)]
pub struct RangeArrival {
    /// Bytes of the range.
    pub range_bytes: u64,
    /// Bytes of the whole object that have arrived so far, also those of incomplete ranges.
    pub received_bytes: u64,
    /// Time of the arrival.
    pub now: Duration,
}

impl RangeArrival {
    /// Bytes that have arrived since an earlier arrival.
    const fn bytes_since(self, earlier: Self) -> u64 {
        self.received_bytes.saturating_sub(earlier.received_bytes)
    }

    /// Bytes per second since an earlier arrival.
    fn throughput_since(self, earlier: Self) -> f64 {
        let seconds = self.now.saturating_sub(earlier.now).as_secs_f64();
        self.bytes_since(earlier) as f64 / seconds.max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// No range has arrived.
    Start,
    /// Larger ranges have been requested since `start`, and none has arrived yet.
    Transition { start: RangeArrival },
    /// The throughput of the current size is measured from `start` on.
    Measurement { start: RangeArrival },
    /// The plan does not change any more.
    Settled,
}

/// Chooses the plan of the next ranges of one download.
#[derive(Debug, Clone)]
pub struct RangeGrowth {
    /// The plan with the largest ranges that sustained the throughput.
    proven: Plan,
    current: Plan,
    /// The highest throughput of any size, in bytes per second.
    best_throughput: f64,
    failed_steps: u32,
    phase: Phase,
}

impl RangeGrowth {
    /// The growth of a download at an RTT, of which an upper bound is enough. Ranges of a tuned plan, and of one with a
    /// fixed chunk size, never grow.
    #[must_use]
    pub fn new(plan: Plan, rtt: Duration) -> Self {
        let phase = if rtt <= MAX_RTT { Phase::Start } else { Phase::Settled };
        Self { phase, ..Self::disabled(plan) }
    }

    /// A plan that never changes.
    #[must_use]
    pub const fn disabled(plan: Plan) -> Self {
        Self { proven: plan, current: plan, best_throughput: 0.0, failed_steps: 0, phase: Phase::Settled }
    }

    /// The plan of the next range.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.current
    }

    /// Records that a range has arrived completely.
    pub fn record_range(&mut self, arrival: RangeArrival) {
        match self.phase {
            Phase::Start => self.phase = Phase::Measurement { start: arrival },
            Phase::Transition { start } if arrival.range_bytes > self.proven.max_range_bytes => {
                let min_throughput = self.best_throughput * MIN_EARLY_THROUGHPUT_RATIO;
                if arrival.throughput_since(start) < min_throughput {
                    self.undo_step(arrival);
                } else {
                    self.phase = Phase::Measurement { start: arrival };
                }
            }
            Phase::Measurement { start } if arrival.bytes_since(start) >= MEASURED_BYTES => {
                self.end_measurement(arrival.throughput_since(start), arrival);
            }
            Phase::Transition { .. } | Phase::Measurement { .. } | Phase::Settled => {}
        }
    }

    /// Keeps or undoes the current size, and takes the next step if requests are still frequent.
    fn end_measurement(&mut self, throughput: f64, arrival: RangeArrival) {
        if throughput < self.best_throughput * MIN_THROUGHPUT_RATIO {
            return self.undo_step(arrival);
        }
        self.best_throughput = self.best_throughput.max(throughput);
        self.proven = self.current;
        let requests_per_second = throughput / self.current.max_range_bytes.max(1) as f64;
        self.phase = match self.current.with_larger_ranges() {
            None => Phase::Settled,
            Some(_) if requests_per_second <= MAX_REQUESTS_PER_SECOND => {
                Phase::Measurement { start: arrival }
            }
            Some(larger) => {
                self.current = larger;
                Phase::Transition { start: arrival }
            }
        };
    }

    /// Returns to the proven size. Its throughput is measured again, because it may have changed.
    fn undo_step(&mut self, arrival: RangeArrival) {
        self.failed_steps += 1;
        self.current = self.proven;
        self.best_throughput = 0.0;
        self.phase = if self.failed_steps < MAX_FAILED_STEPS {
            Phase::Measurement { start: arrival }
        } else {
            Phase::Settled
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SHORT_RTT: Duration = Duration::from_micros(200);

    /// A server and a link. All rates are in bytes per second.
    #[derive(Clone, Copy)]
    struct Link {
        rtt: Duration,
        rate: f64,
        rate_per_connection: f64,
    }

    const FAST: Link = Link { rtt: SHORT_RTT, rate: 1.2e9, rate_per_connection: 1.2e9 };

    /// The result of a simulated download.
    struct Download {
        seconds: f64,
        ranges: Vec<u64>,
        max_bytes_in_flight: u64,
    }

    /// Downloads an object in ranges over connections that share the link equally.
    fn download(link: Link, plan: Plan, size: u64) -> Download {
        let mut growth = RangeGrowth::new(plan, link.rtt);
        let mut rest = crate::plan::RangeQueue::new(0, size, Vec::new());
        // Bytes of each range in flight, and those of them that are missing.
        let mut in_flight: Vec<(u64, f64)> = Vec::new();
        let mut received = 0.0;
        let mut done = Download { seconds: 0.0, ranges: Vec::new(), max_bytes_in_flight: 0 };
        loop {
            while in_flight.len() < growth.plan().range_concurrency()
                && let Some((_, bytes)) = rest.next(growth.plan())
            {
                // The connection is idle for one RTT before the range.
                let idle_bytes = link.rtt.as_secs_f64() * link.rate_per_connection.min(link.rate / 25.0);
                in_flight.push((bytes, bytes as f64 + idle_bytes));
                done.ranges.push(bytes);
            }
            if in_flight.is_empty() {
                return done;
            }
            let total = in_flight.iter().map(|(bytes, _)| bytes).sum();
            done.max_bytes_in_flight = done.max_bytes_in_flight.max(total);
            let each = (link.rate / in_flight.len() as f64).min(link.rate_per_connection);
            let next = in_flight.iter().map(|(_, missing)| *missing).fold(f64::MAX, f64::min);
            done.seconds += next / each;
            in_flight.iter_mut().for_each(|(_, missing)| *missing -= next);
            received += next * in_flight.len() as f64;
            let (now, received_bytes) = (Duration::from_secs_f64(done.seconds), received as u64);
            in_flight.retain(|&(range_bytes, missing)| {
                if missing < 1.0 {
                    growth.record_range(RangeArrival { range_bytes, received_bytes, now });
                }
                missing >= 1.0
            });
        }
    }

    fn largest(download: &Download) -> u64 {
        download.ranges.iter().max().copied().unwrap() / MIB
    }

    #[test]
    fn ranges_grow_at_a_short_rtt_and_high_throughput() {
        let grown = download(FAST, Plan::default(), 2048 * MIB);
        assert_eq!(largest(&grown), 32);
        assert!(grown.ranges.len() < 160, "{}", grown.ranges.len());
        assert!(grown.seconds < 1.05 * 2048.0 * MIB as f64 / FAST.rate, "{}", grown.seconds);
    }

    #[test]
    fn ranges_of_a_long_or_slow_link_do_not_grow() {
        for (milliseconds, rate) in [(50, 1.2e9), (176, 1.2e9), (0, 60e6), (5, 60e6)] {
            let link = Link { rtt: Duration::from_millis(milliseconds), rate, rate_per_connection: rate };
            let found = download(link, Plan::default(), 2048 * MIB);
            let expected: Vec<u64> = Plan::default().ranges(0, 2048 * MIB).map(|(_, bytes)| bytes).collect();
            assert!(found.ranges == expected, "{milliseconds} ms, {rate}");
        }
    }

    #[test]
    fn growth_is_undone_if_connections_are_limited() {
        let link = Link { rate: 2.2e9, rate_per_connection: 90e6, ..FAST };
        let found = download(link, Plan::default(), 2 << 30);
        let large = found.ranges.iter().filter(|bytes| **bytes > 4 * MIB).count();
        assert!((1..=48).contains(&large), "{large}");
        let alone = (2_u64 << 30) as f64 / link.rate;
        assert!(found.seconds < 1.15 * alone, "{} instead of {alone}", found.seconds);
    }

    #[test]
    fn one_disturbance_does_not_end_growth() {
        let mut growth = RangeGrowth::new(Plan::default(), SHORT_RTT);
        let (mut received_bytes, mut now) = (0, Duration::ZERO);
        let mut receive = |growth: &mut RangeGrowth, bytes_per_second: f64| {
            let range_bytes = growth.plan().max_range_bytes;
            received_bytes += range_bytes;
            now += Duration::from_secs_f64(range_bytes as f64 / bytes_per_second);
            growth.record_range(RangeArrival { range_bytes, received_bytes, now });
            range_bytes
        };
        while receive(&mut growth, 1e9) < 8 * MIB {}
        while receive(&mut growth, 3e8) > 4 * MIB {}
        (0..100).for_each(|_| {
            receive(&mut growth, 1e9);
        });
        assert_eq!(growth.plan().max_range_bytes, 32 * MIB);
    }

    #[test]
    fn bytes_in_flight_stay_within_the_bound_of_the_plan() {
        for size in [64, 300, 2048, 8192] {
            let found = download(FAST, Plan::default(), size * MIB);
            assert!(found.max_bytes_in_flight <= 100 * MIB, "{size} MiB: {}", found.max_bytes_in_flight);
        }
    }

    #[test]
    fn small_objects_and_chosen_sizes_do_not_grow() {
        assert!(largest(&download(FAST, Plan::default(), 64 * MIB)) <= 4);
        let fixed = Plan::default().with_chunk_bytes(8 * MIB);
        assert_eq!(largest(&download(FAST, fixed, 2048 * MIB)), 8);
    }

    #[test]
    fn last_large_ranges_keep_all_connections_busy() {
        let larger = |plan: Plan| plan.with_larger_ranges();
        for plan in std::iter::successors(larger(Plan::default()), |plan| larger(*plan)) {
            let (size, connections) = (2048 * MIB, plan.range_concurrency() as u64);
            for (offset, bytes) in plan.ranges(0, size) {
                let left = size - offset;
                // At least two rounds are left, down to the smallest ranges.
                let share = (left / (2 * connections)).next_multiple_of(2 * MIB).max(2 * MIB);
                assert!(bytes <= share, "{bytes} of {left}");
            }
            assert!(plan.ranges(0, size).last().unwrap().1 <= 2 * MIB);
        }
    }
}
