//! Statistics of one control interval: the throughput, and signs of a queue overrun.

use std::time::Duration;

use tradewind_model::concurrency_controller::REQUEST_COST_BYTES;

use super::nanos;

/// A queue overruns if at least one packet in 33, and ten in all, were retransmitted, and 10 % of the requests are
/// stalled.
const OVERRUN_ONE_IN: u64 = 33;
const MIN_RETRANSMITS: u64 = 10;
const MIN_STALLED_FRACTION: f64 = 0.1;

/// The interval in progress.
#[derive(Debug)]
pub(super) struct Interval {
    started: Duration,
    /// Completed requests, their total duration in nanoseconds, their duration times permits, and the part of that
    /// inside the interval.
    ended: u64,
    took: u64,
    permit_time: u64,
    permit_time_inside: u128,
    /// Of requests in flight: their permits, and the sum of start time in nanoseconds times permits.
    held: u64,
    held_since: u128,
    /// Packet counters at the start of the interval: sent and retransmitted.
    packets: (u64, u64),
}

/// Statistics of a completed interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IntervalStats {
    /// Throughput per second, in the unit of [`ConcurrencyController`](tradewind_model::concurrency_controller::ConcurrencyController).
    pub throughput: f64,
    /// Many packets were retransmitted, and requests stalled.
    pub is_overrun: bool,
    /// Mean request duration; very long if none completed.
    pub latency: Duration,
}

impl Interval {
    /// Creates the first interval.
    pub const fn new(began: Duration, packets: (u64, u64)) -> Self {
        Self {
            started: began,
            ended: 0,
            took: 0,
            permit_time: 0,
            permit_time_inside: 0,
            held: 0,
            held_since: 0,
            packets,
        }
    }

    /// Start of the interval.
    pub const fn started(&self) -> Duration {
        self.started
    }

    /// Records the start of a request.
    pub const fn record_start(&mut self, permits: u64, now: Duration) {
        self.held += permits;
        self.held_since += now.as_nanos() * permits as u128;
    }

    /// Records the end of a request that started at `began`.
    pub fn record_end(&mut self, permits: u64, began: Duration, now: Duration) {
        let took = nanos(now.saturating_sub(began));
        self.ended += 1;
        self.took += took;
        self.permit_time = self.permit_time.saturating_add(took.saturating_mul(permits));
        self.permit_time_inside +=
            now.saturating_sub(began.max(self.started)).as_nanos() * u128::from(permits);
        self.held -= permits;
        self.held_since -= began.as_nanos() * u128::from(permits);
    }

    /// Completes the interval and starts the next. `permits` is their number in the pool; `bytes` were
    /// transferred and `done` requests completed.
    pub fn finish(
        &mut self,
        now: Duration,
        permits: usize,
        (bytes, done): (u64, u64),
        packets: (u64, u64),
    ) -> IntervalStats {
        let elapsed = nanos(now.saturating_sub(self.started)).max(1);
        // If none completed, the duration is unknown and may be long.
        let latency = self.took.checked_div(self.ended).unwrap_or(u64::MAX / 4);
        let active_fraction = self.active_fraction(permits as u128 * u128::from(elapsed), latency, now);
        let work = (done as f64).mul_add(REQUEST_COST_BYTES, bytes as f64) * 1e9;
        // Requests that start together end together, so the number completed in an interval varies by a whole wave.
        // Throughput derived from their durations does not (Little 1961), but needs requests that are short compared to
        // the interval.
        let throughput = if 2 * latency <= elapsed {
            work / self.permit_time.max(1) as f64 * active_fraction * permits as f64
        } else {
            work / elapsed as f64
        };
        let sent = packets.0.saturating_sub(self.packets.0);
        let retransmitted = packets.1.saturating_sub(self.packets.1);
        let overruns = retransmitted >= MIN_RETRANSMITS
            && retransmitted * OVERRUN_ONE_IN >= sent
            && active_fraction < 1.0 - MIN_STALLED_FRACTION;
        tracing::trace!(throughput, latency, elapsed, sent, retransmitted, active_fraction, "interval ended");
        (self.started, self.packets) = (now, packets);
        (self.ended, self.took, self.permit_time, self.permit_time_inside) = (0, 0, 0, 0);
        IntervalStats { throughput, is_overrun: overruns, latency: Duration::from_nanos(latency) }
    }

    /// The fraction of all permit time used at the rate of completed requests. A request in flight for longer than
    /// `latency` may be stalled: it counts as if it had transferred a usual request's data over its whole age.
    fn active_fraction(&self, all: u128, latency: u64, now: Duration) -> f64 {
        let pending = all.saturating_sub(self.permit_time_inside) as f64;
        let age = now.as_nanos() as f64 - self.held_since as f64 / self.held.max(1) as f64;
        let active_time = self.permit_time_inside as f64 + pending * (latency as f64 / age.max(1.0)).min(1.0);
        (active_time / all.max(1) as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 10;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// An interval of 400 ms: `active` clients complete a request every 50 ms, `stalled_for` ones are stalled from the
    /// start.
    fn look(active: u64, stalled: u64, packets: (u64, u64)) -> IntervalStats {
        let mut look = Interval::new(at(0), (0, 0));
        (0..active + stalled).for_each(|_| look.record_start(1, at(0)));
        for round in 0..8 {
            for _ in 0..active {
                look.record_end(1, at(round * 50), at(round * 50 + 50));
                look.record_start(1, at(round * 50 + 50));
            }
        }
        let done = 8 * active;
        look.finish(at(400), (active + stalled) as usize, (done * BYTES, done), packets)
    }

    /// The throughput of `active` active clients per second.
    fn throughput(active: u64) -> f64 {
        active as f64 * 20.0 * (BYTES as f64 + REQUEST_COST_BYTES)
    }

    #[test]
    fn stalled_requests_hardly_count_as_throughput() {
        let all = look(16, 0, (0, 0)).throughput / throughput(16);
        assert!((all - 1.0).abs() < 0.01, "{all}");
        let half = look(8, 8, (0, 0)).throughput / throughput(8);
        assert!((1.0..1.3).contains(&half), "{half}");
    }

    #[test]
    fn overrun_needs_retransmissions_and_stalled_requests() {
        assert!(look(8, 8, (1000, 60)).is_overrun);
        assert!(!look(16, 0, (1000, 60)).is_overrun, "no request is stalled");
        assert!(!look(8, 8, (1000, 20)).is_overrun, "few packets are lost");
        assert!(!look(8, 8, (100, 6)).is_overrun, "too few packets to be significant");
    }

    #[test]
    fn each_interval_has_statistics_of_its_own() {
        let mut look = Interval::new(at(0), (0, 0));
        look.record_start(4, at(0));
        look.record_end(4, at(0), at(100));
        look.record_start(4, at(100));
        let first = look.finish(at(300), 4, (BYTES, 1), (1000, 500));
        assert_eq!(first.latency, at(100));
        look.record_end(4, at(100), at(600));
        let next = look.finish(at(600), 4, (BYTES, 1), (2000, 500));
        assert_eq!((next.latency, next.is_overrun), (at(500), false));
        // The request took longer than the interval, so throughput is computed from bytes.
        assert!(
            (next.throughput / ((BYTES as f64 + REQUEST_COST_BYTES) / 0.3) - 1.0).abs() < 1e-9,
            "{next:?}"
        );
    }
}
